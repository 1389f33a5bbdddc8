//! One file for each verb of the path.

mod admit;
mod as_sent;
mod ask_guard;
mod beside;
mod converse;
mod echo;
mod edits;
mod fit;
mod hold;
mod kept_back;
mod late_verdicts;
mod load;
mod observe;
mod offer_tools;
mod params;
mod reads;
mod recall;
mod remember;
mod route;
mod run_tools;
mod sampling;
mod screen_answer;
mod screen_input;
mod screen_output;
mod screen_refusal;
mod shorten;
mod start;

pub(crate) use admit::{end_user, who};
pub use ask_guard::check_arguments;
pub use edits::apply_to as apply_edits;
pub(crate) use late_verdicts::PendingVerdicts;
pub(crate) use observe::{Ending, Unanswered};
pub use recall::passage;
pub(crate) use sampling::seeds;
pub use screen_answer::{OutputGuardStage, WhenStreamed};
pub(crate) use start::{Ask, LONG_TEXT_BYTES, Started, source};
