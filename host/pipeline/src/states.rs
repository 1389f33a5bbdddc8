//! The states of a request. Each stage takes one by value and returns the next, so that none can be skipped or
//! run twice; what a later stage needs travels in it.

use crate::admission::Place;
use crate::context::RequestContext;
use crate::figures::InWork;
use crate::gate::{Hold, Keeps, Kept};
use crate::models::Model;
use crate::prompts::together::Seat;
use crate::reply::Reply;
use crate::stages::{PendingVerdicts, Unanswered};
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tidegate_ledger::{Charge, Tally};
use tidegate_types::{Allowances, Chat, Citation, Finding, LeftOut, Limited, Reject, Summary, ToolDef};
use tidegate_upstream::Attempts;

/// How the path ends before generation.
pub(crate) enum Ended {
    /// With an error.
    Rejected(Reject),
    /// A guard answered in the model's place.
    Answered(Box<Reply>),
}

impl Ended {
    /// A failure says what is left to the caller.
    pub(crate) fn with(self, allowances: Allowances) -> Self {
        match self {
            Self::Rejected(reject) => Self::Rejected(telling(reject, allowances)),
            answered @ Self::Answered(_) => answered,
        }
    }
}

/// A refusal that says what is left to the caller.
pub(crate) fn telling(mut reject: Reject, allowances: Allowances) -> Reject {
    if reject.limited.is_none() && !allowances.is_empty() {
        reject.limited = Some(Box::new(Limited { exceeded: None, allowances }));
    }
    reject
}

impl From<Reject> for Ended {
    fn from(reject: Reject) -> Self {
        Self::Rejected(reject)
    }
}

/// What the request is and holds, from admission to its record. Boxed, since each stage takes it by value and keeps a
/// place for it in the future of the path.
pub(crate) struct Request {
    /// Changed by who changes it for all behind; what was sent before stays as it was sent.
    pub(crate) chat: Arc<Chat>,
    pub(crate) cx: RequestContext,
    pub(crate) findings: Seen,
    /// Verdicts of guards that are asked while the path goes on.
    pub(crate) pending: Option<PendingVerdicts>,
    /// What was asked, where memories want to know.
    pub(crate) question: Option<String>,
    /// What it costs, where that is written down.
    pub(crate) charge: Option<Arc<Charge>>,
    /// Where its tokens are counted.
    pub(crate) tally: Arc<Tally>,
    /// How often it was sent to upstreams.
    pub(crate) attempts: Attempts,
    /// Of the passages that it was given.
    pub(crate) citations: Vec<Citation>,
    /// Messages of the history that the model does not see.
    pub(crate) left_out: LeftOut,
    /// Of those, the ones that the summary stands for.
    pub(crate) summarized: LeftOut,
    /// Whether more of them may be left out where they do not fit.
    pub(crate) may_shorten: bool,
    /// Of the beginning of the history; taken when something is left out.
    pub(crate) summary: Option<Summary>,
    /// How much of the history the summary that was taken covers.
    pub(crate) summary_through: usize,
    /// What prompt guards noted for their own plugin's memory.
    pub(crate) notes: Vec<Notes>,
    /// A retriever, a memory or a tool that it should have had failed, and its stage is open: the answer is made without.
    pub(crate) lacks: AtomicBool,
    /// Among other prompts of one request, which begin together.
    pub(crate) seat: Option<Seat>,
    /// What is counted for it until the reply is dropped.
    pub(crate) held: HeldLimits,
}

impl Request {
    /// Notes where nothing was got of a stage: it failed, and is open.
    pub(crate) fn note_lack<T>(&self, got: &Option<T>) {
        if got.is_none() {
            self.lacks.store(true, Ordering::Relaxed);
        }
    }
}

/// What guards saw so far. A request that ends before there is a reply, wherever that is, leaves it where observers are
/// told from.
#[derive(Default)]
pub(crate) struct Seen {
    findings: Vec<Finding>,
    unanswered: Option<Arc<Unanswered>>,
}

impl Seen {
    /// By a request that is that one.
    pub(crate) fn by(&mut self, unanswered: Option<Arc<Unanswered>>) {
        self.unanswered = unanswered;
    }

    /// Which tells observers from now on.
    pub(crate) fn has_record(&self) {
        self.unanswered.iter().for_each(|unanswered| unanswered.has_record());
    }
}

impl Deref for Seen {
    type Target = Vec<Finding>;

    fn deref(&self) -> &Vec<Finding> {
        &self.findings
    }
}

impl DerefMut for Seen {
    fn deref_mut(&mut self) -> &mut Vec<Finding> {
        &mut self.findings
    }
}

impl Drop for Seen {
    fn drop(&mut self) {
        if let Some(unanswered) = &self.unanswered {
            unanswered.saw(&mut self.findings);
        }
    }
}

/// Places that a request takes while it runs.
pub(crate) struct HeldLimits {
    pub(crate) place: Arc<Place>,
    /// Of its caller's limits; of the prompts of one request they are one.
    pub(crate) caller: Hold,
    /// Of the limits of the model that answers.
    pub(crate) model: Hold,
    _in_work: InWork,
}

impl HeldLimits {
    /// Before its model is chosen.
    pub(crate) fn new(place: Arc<Place>, caller: Hold) -> Self {
        Self { place, caller, model: Hold::default(), _in_work: InWork::count() }
    }

    /// A further turn of the answer begins, with a prompt of about `input` tokens.
    pub(crate) fn go_on(&mut self, input: u64) {
        self.caller.go_on(input);
        self.model.go_on(input);
    }

    /// For work that may outlive the request.
    pub(crate) fn kept(&self) -> Kept {
        let place: Keeps = Arc::<Place>::clone(&self.place);
        let mut kept = vec![place];
        kept.extend(self.caller.kept().into_iter().chain(self.model.kept()));
        kept
    }

    /// What is left to the caller.
    pub(crate) fn allowances(&self) -> Allowances {
        self.caller.allowances.tighter(self.model.allowances)
    }
}

/// What one prompt guard noted.
#[derive(Clone)]
pub(crate) struct Notes {
    /// The plugin's name in the config.
    pub(crate) plugin: Arc<str>,
    /// Key and JSON.
    pub(crate) attrs: Vec<(String, String)>,
}

/// Let in.
pub(crate) struct Admitted(pub(crate) Box<Request>);

/// What was said before is in front.
pub(crate) struct Loaded(pub(crate) Box<Request>);

/// The prompt passed the guards, perhaps changed.
pub(crate) struct Screened(pub(crate) Box<Request>);

/// Context was added, screened and attributed.
pub(crate) struct Grounded(pub(crate) Box<Request>);

/// The server's tools are known.
pub(crate) struct Equipped {
    pub(crate) request: Box<Request>,
    pub(crate) tools: Vec<ServerTool>,
}

/// A tool of a plugin.
#[derive(Clone)]
pub(crate) struct ServerTool {
    pub(crate) def: ToolDef,
    /// Index into the pipeline's tool stages.
    pub(crate) stage: usize,
}

/// The candidates are in order; never empty.
pub(crate) struct Routed {
    pub(crate) equipped: Equipped,
    pub(crate) candidates: Vec<Arc<Model>>,
}
