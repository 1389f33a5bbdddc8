//! The child's side of `isolation = "process"`: the same loop, over a pipe.
//!
//! The program runs [`run`] in its hidden `engine-worker` subcommand with the process's own standard input and
//! output; nothing else may be written to that output (logs go to standard error). The worker ends when its parent
//! does: at the end of its input.

use crate::compute::try_out;
use crate::config::{Ahead, ModelFacts};
use crate::error::EngineError;
use crate::frame::{Beginning, FromWorker, ToWorker, read_frame, write_frame};
use crate::guides::Guides;
use crate::handle::ExecutorFactory;
use crate::inbox::{Command, Inbox};
use crate::run::{self, Ended, Front, new_scheduler};
use crate::scheduler::{Rules, Scheduler};
use crate::stats::Snapshot;
use crate::step::StepReport;
use std::io::{BufReader, BufWriter, Read, Write};
use std::sync::{Arc, Mutex, PoisonError};
use tidegate_device::Executor;
use tidegate_grammar::Grammars;
use tidegate_types::JobId;

/// Serves a parent until it says to stop or is gone. `facts` and `factory` are of the model that this process was told
/// to load; a parent that expects another is refused. `grammars` are the model's, if its answers can be held to any.
pub fn run(
    input: impl Read + Send + 'static,
    output: impl Write + Send,
    facts: &ModelFacts,
    grammars: Option<Arc<Grammars>>,
    factory: ExecutorFactory,
) -> Result<(), EngineError> {
    let mut input = BufReader::new(input);
    let pipe = Pipe { inbox: Arc::default(), output: Mutex::new(BufWriter::new(output)) };
    let (ahead, mut scheduler, mut executor) = match load(&mut input, facts, factory) {
        Ok(loaded) => loaded,
        Err(error) => {
            pipe.say(&FromWorker::NotLoaded(error.to_string()));
            return Err(error);
        }
    };
    let inbox = pipe.inbox.clone();
    std::thread::Builder::new()
        .name("tidegate-commands".into())
        .spawn(move || listen(input, &inbox))
        .map_err(|cause| EngineError::Spawn { what: "the worker's listener".into(), cause })?;
    pipe.say(&FromWorker::Ready);
    let mut guides = Guides::new(grammars, facts.vocab);
    match run::run(&pipe, ahead, &mut scheduler, &mut guides, &mut *executor) {
        Ended::Stopped => Ok(()),
        Ended::Lost(lost) => {
            pipe.say(&FromWorker::Lost { cause: lost.cause.to_string(), blamed: lost.blamed });
            Err(EngineError::Load(lost.cause))
        }
    }
}

fn load(
    input: &mut impl Read,
    facts: &ModelFacts,
    mut factory: ExecutorFactory,
) -> Result<(Ahead, Scheduler, Box<dyn Executor>), EngineError> {
    let setup = read_frame(input).map_err(|error| EngineError::Died(format!("reading the setup: {error}")))?;
    let Some(ToWorker::Setup { config, facts: expected, beginning }) = setup else {
        return Err(EngineError::Died("the parent sent no setup".into()));
    };
    if *facts != expected {
        return Err(EngineError::Config(format!("the worker loads {facts:?}; the parent expects {expected:?}")));
    }
    let limits = config.limits(facts)?;
    let scheduler = new_scheduler(Rules::new(&config, facts, &limits), facts)?;
    let mut executor = factory(limits)?;
    if beginning == Beginning::Again {
        try_out(&mut *executor)?;
    }
    Ok((config.ahead, scheduler, executor))
}

/// Passes commands on until the parent is gone.
fn listen(mut input: impl Read, inbox: &Inbox) {
    loop {
        match read_frame(&mut input) {
            Ok(Some(ToWorker::Command(command))) => inbox.push(command),
            Ok(Some(ToWorker::Setup { .. })) => tracing::error!("a second setup is ignored"),
            Ok(None) => return inbox.push(Command::Stop),
            Err(error) => {
                tracing::error!(%error, "the parent cannot be understood");
                return inbox.push(Command::Stop);
            }
        }
    }
}

/// The way to the parent.
struct Pipe<W: Write> {
    inbox: Arc<Inbox>,
    output: Mutex<BufWriter<W>>,
}

impl<W: Write> Pipe<W> {
    fn say(&self, frame: &FromWorker) {
        let mut output = self.output.lock().unwrap_or_else(PoisonError::into_inner);
        if let Err(error) = write_frame(&mut *output, frame) {
            tracing::error!(%error, "the parent cannot be reached; the worker ends");
            self.inbox.push(Command::Stop);
        }
    }
}

impl<W: Write> Front for Pipe<W> {
    fn inbox(&self) -> &Inbox {
        &self.inbox
    }

    fn announce(&self, jobs: Vec<JobId>) {
        self.say(&FromWorker::Trying(jobs));
    }

    fn deliver(&self, report: StepReport) {
        self.say(&FromWorker::Report(report));
    }

    fn rest(&self, snapshot: Snapshot) {
        self.say(&FromWorker::Resting(snapshot));
    }
}
