//! One file for each verb of the path.

mod admit;
mod converse;
mod edits;
mod fit;
mod offer_tools;
mod recall;
mod route;
mod run_tools;
mod screen_input;
mod screen_output;
mod start;

pub(crate) use start::Started;
