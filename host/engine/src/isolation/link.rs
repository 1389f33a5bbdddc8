//! One worker process and the threads at its pipes.
//!
//! The supervisor never touches a pipe: a worker that does not read would hold it up. The writer's line is
//! bounded by what the inbox is bounded by; the reader hands reports on as they come.

use super::{End, WorkerCommand};
use crate::frame::{Beginning, FromWorker, ToWorker, read_frame, write_frame};
use crate::inbox::Command;
use crate::isolation::ledger::Ledger;
use crate::shared::Shared;
use std::io::{BufReader, BufWriter, Read, Write};
use std::process::{Child, Stdio};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Instant;
use tidegate_types::JobId;

/// Commands that may be on their way to a worker that does not read, before it counts as gone.
const MAX_UNREAD: usize = 1 << 16;

#[derive(Debug)]
struct Heard {
    ready: bool,
    gone: Option<String>,
    last: Instant,
    /// The jobs of a step that may kill the worker, until its report is here.
    trying: Option<Vec<JobId>>,
}

/// A running worker.
pub(super) struct Link {
    child: Child,
    commands: SyncSender<ToWorker>,
    heard: Arc<Mutex<Heard>>,
    threads: [JoinHandle<()>; 2],
}

impl Link {
    /// Starts a worker and sends it its setup.
    pub(super) fn spawn(
        command: &WorkerCommand,
        beginning: Beginning,
        shared: Arc<Shared>,
        ledger: Arc<Ledger>,
    ) -> std::io::Result<Self> {
        let mut child = start(command)?;
        let (Some(input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(std::io::Error::other("the worker has no pipes"));
        };
        let (commands, to_write) = sync_channel(MAX_UNREAD);
        let heard = Heard { ready: false, gone: None, last: Instant::now(), trying: None };
        let heard = Arc::new(Mutex::new(heard));
        let (config, facts) = (shared.config.clone(), shared.facts.clone());
        let setup = ToWorker::Setup { config, facts, beginning };
        let reader = Reader { shared, ledger, heard: heard.clone() };
        let threads = [
            thread("tidegate-to-worker", move || write_all(input, setup, &to_write))?,
            thread("tidegate-from-worker", move || reader.read_all(output))?,
        ];
        Ok(Self { child, commands, heard, threads })
    }

    /// Sends a command; a worker that does not take it is gone.
    pub(super) fn send(&self, command: Command) {
        if self.commands.try_send(ToWorker::Command(command)).is_err() {
            lock(&self.heard).gone.get_or_insert_with(|| "the worker takes no commands".into());
        }
    }

    pub(super) fn is_ready(&self) -> bool {
        lock(&self.heard).ready
    }

    pub(super) fn gone(&self) -> Option<String> {
        lock(&self.heard).gone.clone()
    }

    pub(super) fn last_heard(&self) -> Instant {
        lock(&self.heard).last
    }

    /// Kills the worker, takes in what it had said, and adds what is known about its end.
    pub(super) fn finish(mut self, end: End) -> End {
        if let Err(error) = self.child.kill() {
            tracing::warn!(%error, "the worker could not be killed");
        }
        let status = self.child.wait();
        drop(self.commands);
        for thread in self.threads {
            if thread.join().is_err() {
                tracing::error!("a thread at the worker's pipe panicked");
            }
        }
        let trying = lock(&self.heard).trying.take();
        match end {
            End::Stopped => End::Stopped,
            End::Died { cause, blamed } => {
                let status = status.map_or_else(|error| error.to_string(), |status| status.to_string());
                End::Died { cause: format!("{cause} ({status})"), blamed: blamed.or(trying) }
            }
        }
    }
}

/// In a process group of its own, so that a Ctrl-C at the terminal reaches the parent alone, which drains.
fn start(command: &WorkerCommand) -> std::io::Result<Child> {
    let mut process = std::process::Command::new(&command.program);
    process.args(&command.args).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::inherit());
    #[cfg(unix)]
    {
        use std::os::unix::process::CommandExt;
        // Lists of processes show this, and not the path by which it is found.
        process.process_group(0).arg0("tidegate");
    }
    process.spawn()
}

fn thread(name: &str, body: impl FnOnce() + Send + 'static) -> std::io::Result<JoinHandle<()>> {
    std::thread::Builder::new().name(name.into()).spawn(body)
}

/// Ends with the line, or when the worker does not read any more; the reader sees that too.
fn write_all(input: impl Write, setup: ToWorker, commands: &Receiver<ToWorker>) {
    let mut input = BufWriter::new(input);
    for frame in std::iter::once(setup).chain(commands) {
        if write_frame(&mut input, &frame).is_err() {
            return;
        }
    }
}

struct Reader {
    shared: Arc<Shared>,
    ledger: Arc<Ledger>,
    heard: Arc<Mutex<Heard>>,
}

impl Reader {
    fn read_all(self, output: impl Read) {
        let mut output = BufReader::new(output);
        let cause = loop {
            match read_frame(&mut output) {
                Ok(Some(frame)) => self.take(frame),
                Ok(None) => break "the worker ended".to_owned(),
                Err(error) => break format!("the worker cannot be understood: {error}"),
            }
        };
        lock(&self.heard).gone.get_or_insert(cause);
        self.shared.inbox.poke();
    }

    fn take(&self, frame: FromWorker) {
        let mut heard = lock(&self.heard);
        heard.last = Instant::now();
        match frame {
            FromWorker::Ready => {
                heard.ready = true;
                self.shared.inbox.poke();
            }
            FromWorker::NotLoaded(cause) => heard.gone = Some(cause),
            FromWorker::Trying(jobs) => heard.trying = Some(jobs),
            FromWorker::Report(mut report) => {
                heard.trying = None;
                self.ledger.note_report(&mut report);
                self.shared.send_events(report);
            }
            FromWorker::Resting(snapshot) => self.shared.publish_idle(snapshot),
            FromWorker::Lost { cause, blamed } => {
                heard.gone = Some(format!("the worker's device is lost: {cause}"));
                heard.trying = Some(blamed);
            }
        }
    }
}

fn lock(heard: &Mutex<Heard>) -> MutexGuard<'_, Heard> {
    heard.lock().unwrap_or_else(PoisonError::into_inner)
}
