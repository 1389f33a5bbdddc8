//! Logs of streams that any gateway reads. A log is written where its generation runs; a task beside it copies what is
//! there to the server (`logs/copy.rs`), and whoever reads it elsewhere asks for the next events (`logs/follow.rs`).
//!
//! A log's gateway has a lease. Where that has ended and the log has not, the log has failed. What gives way there goes from
//! the server too (`logs/early.rs`), so that what that holds is bounded as logs are in memory.

mod copy;
mod early;
mod follow;
mod room;

use self::room::Room;
use crate::link::{Line, Link};
use crate::script::Script;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::future::Future;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};
use tidegate_streams::shared::{About, Asking, Away, Follow, SharedLogs};
use tidegate_streams::{CUT, LOST, Log};
use tidegate_types::{Fault, Reject, RejectKind, TenantId};
use tokio::sync::{Semaphore, mpsc};

/// The logs of all gateways.
#[derive(Clone)]
pub struct Logs {
    core: Arc<Core>,
}

struct Core {
    link: Arc<Link>,
    append: Script,
    look: Script,
    forget: Script,
    take_back: Script,
    settings: LogSettings,
    /// Logs that are written here, for those who want to end them.
    written: Mutex<HashMap<String, Weak<Log>>>,
    /// Logs whose end is not on the server yet.
    copying: AtomicU64,
    /// For the pieces of large events.
    pieces: Semaphore,
    /// In KiB, for large events of all that read logs of others here.
    room: Arc<Room>,
    /// Names of logs that have given way here.
    given_way: mpsc::Sender<String>,
}

/// What holds for all logs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LogSettings {
    /// How long one that has ended can still be read.
    pub keep: Duration,
}

/// For an answer about a log. Longer than a request waits for its limits: events may be large.
const PATIENCE: Duration = Duration::from_secs(1);

/// While the server is away.
const PAUSE: Duration = Duration::from_millis(100);

/// Bytes of events that go together, whichever way. An event that has more goes in pieces.
const MAX_BYTES: usize = 128 << 10;

/// Bytes of an event; gateways share none that has more.
const MAX_EVENT_BYTES: usize = 64 << 20;

/// Pieces of all logs that are on their way at once: more, and what other logs say would wait behind them for too long.
const MAX_PIECES: usize = 2;

/// No log has so many events, and the server writes larger numbers in another form.
const MAX_NUMBER: u64 = 1 << 40;

/// A log as the server has it.
struct Seen {
    tenant: String,
    owner: String,
    /// What readers are told.
    outcome: Option<Result<(), Reject>>,
    /// It is still written, whatever they are told.
    goes_on: bool,
    is_owned: bool,
    /// The oldest event of which all is there.
    first: u64,
    pieces: Vec<Piece>,
    /// Whether there are events behind these.
    has_more: bool,
}

/// A piece of an event, which mostly has only one.
struct Piece {
    /// The event's.
    number: u64,
    /// Which of the event's; the first is 0.
    piece: u64,
    /// Bytes of the event in the pieces behind this one.
    behind: usize,
    bytes: Vec<u8>,
}

/// How much of a log somebody has: events up to the number, and pieces of the next.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Upto {
    number: u64,
    pieces: u64,
}

impl Logs {
    /// With work that runs for ever.
    pub(crate) fn new(link: Arc<Link>, settings: LogSettings) -> (Self, impl Future<Output = ()> + Send + use<>) {
        let (given_way, names) = mpsc::channel(early::MAX_NAMES);
        let of = |text: &str| Script::new(text.to_owned());
        let core = Core {
            link,
            append: of(include_str!("logs/append.lua")),
            look: of(include_str!("logs/look.lua")),
            forget: of(include_str!("logs/forget.lua")),
            take_back: of(include_str!("logs/take_back.lua")),
            settings,
            written: Mutex::default(),
            copying: AtomicU64::new(0),
            pieces: Semaphore::new(MAX_PIECES),
            room: Arc::new(Room::new(follow::ROOM_KIB)),
            given_way,
        };
        let core = Arc::new(core);
        (Self { core: Arc::clone(&core) }, early::take_back(core, names))
    }

    /// Keeps the connection of the logs. One that has died is so found out before a reader does. Runs for ever.
    pub(crate) async fn keep(self) {
        let Core { link, append, look, forget, take_back, .. } = &*self.core;
        let prepare = link.prepare([append, look, forget, take_back].into_iter());
        loop {
            link.connect(&prepare).await;
            while let Some(mut line) = link.line() {
                tokio::select! {
                    () = link.given_up() => {}
                    () = tokio::time::sleep(link.config.lease / 3) => {
                        let ping = redis::cmd("PING");
                        let _ = link.wait(&line.clone(), PATIENCE, ping.exec_async(&mut line.connection)).await;
                    }
                }
            }
        }
    }

    /// Once the server has every log that has ended here.
    pub async fn settled(&self) {
        while self.core.copying.load(Ordering::Acquire) > 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Ends logs that are written here, as others ask for it over a connection of their own. Runs for ever.
    pub(crate) async fn take_stops(self) {
        let mail = self.core.mail(&self.core.link.gateway);
        loop {
            if let Ok(mut connection) = self.core.link.dial().await {
                let mut command = redis::cmd("BLPOP");
                command.arg(&mail).arg(1);
                // Silence beyond what was asked for is a connection that has died.
                while let Ok(Ok(stop)) =
                    tokio::time::timeout(3 * PATIENCE, command.query_async::<Option<(String, String)>>(&mut connection))
                        .await
                {
                    let id = stop.map(|(_, id)| id);
                    let log = id.and_then(|id| self.core.written.lock().get(&id).and_then(Weak::upgrade));
                    if let Some(log) = log {
                        log.stop();
                    }
                }
            }
            tokio::time::sleep(PATIENCE / 4).await;
        }
    }
}

impl Core {
    fn keys(&self, id: &str) -> [String; 2] {
        ["stream", "events"].map(|what| self.link.key(what, id))
    }

    fn mail(&self, gateway: &str) -> String {
        self.link.key("stops", gateway)
    }

    /// What the server has of a log, with up to `most` pieces of events behind what was `seen`, of as many bytes as go
    /// together. `None` where it has none.
    async fn look(&self, line: &Line, id: &str, seen: Upto, most: usize) -> Result<Option<Seen>, Away> {
        let mut command = self.look.call(&self.keys(id));
        command.arg(self.link.key("gateway", "")).arg(seen.number).arg(seen.pieces).arg(most).arg(MAX_BYTES);
        let mut connection = line.connection.clone();
        let asking = command.query_async::<redis::Value>(&mut connection);
        let found = self.link.wait(line, PATIENCE, asking).await.ok_or(Away)?;
        if matches!(&found, redis::Value::Array(parts) if parts.is_empty()) {
            return Ok(None);
        }
        type Parts = (String, String, String, u8, u8, u64, Vec<(u64, u64, usize, Vec<u8>)>, u8);
        let parts: Parts = redis::from_redis_value(found).map_err(|error| {
            tracing::error!("what is shared of a stream cannot be read: {error}");
            Away
        })?;
        let (tenant, owner, end, goes_on, owned, first, pieces, more) = parts;
        let pieces = pieces.into_iter();
        let pieces = pieces.map(|(number, piece, behind, bytes)| Piece { number, piece, behind, bytes }).collect();
        let (outcome, goes_on) = (serde_json::from_str(&end).ok(), goes_on == 1);
        // Nobody could renew a lease on a server that was away until now.
        let is_owned = owned == 1 || line.since.elapsed() < self.link.config.lease;
        Ok(Some(Seen { tenant, owner, outcome, goes_on, is_owned, first, pieces, has_more: more == 1 }))
    }

    /// After this time the server has nothing more of a log of which it hears nothing.
    fn outlasting(&self) -> Duration {
        self.settings.keep + self.link.config.lease
    }

    /// Whoever writes it hears of it with what it says next. Says whether the server knows now.
    async fn forget(&self, tenant: &TenantId, id: &str) -> bool {
        let Some(line) = self.link.line() else { return false };
        let mut command = self.forget.call(&self.keys(id));
        command.arg(tenant.as_str()).arg(millis(self.outlasting()));
        let mut connection = line.connection.clone();
        self.link.wait(&line, PATIENCE, command.exec_async(&mut connection)).await.is_some()
    }

    /// Has the server keep logs that were written here for no longer than that. Says whether it knows now.
    async fn take_back(&self, ids: &[String], keep: Duration) -> bool {
        let Some(line) = self.link.line() else { return false };
        let mut commands = redis::pipe();
        for id in ids {
            let mut command = self.take_back.call(&self.keys(id));
            command.arg(&self.link.gateway).arg(millis(keep));
            commands.add_command(command).ignore();
        }
        let mut connection = line.connection.clone();
        self.link.wait(&line, PATIENCE, commands.exec_async(&mut connection)).await.is_some()
    }

    async fn find(&self, tenant: &TenantId, id: &str) -> Result<Option<Seen>, Away> {
        let line = self.link.line().ok_or(Away)?;
        let seen = self.look(&line, id, Upto::default(), 0).await?;
        Ok(seen.filter(|seen| seen.tenant == tenant.as_str()))
    }
}

impl SharedLogs for Logs {
    fn publish(&self, tenant: &TenantId, id: &str, log: &Arc<Log>) {
        self.core.written.lock().insert(id.to_owned(), Arc::downgrade(log));
        self.core.copying.fetch_add(1, Ordering::AcqRel);
        let copy = copy::Copying::new(Arc::clone(&self.core), tenant.clone(), id.to_owned(), Arc::clone(log));
        tokio::spawn(copy.run());
    }

    fn find<'a>(&'a self, tenant: &'a TenantId, id: &'a str) -> Asking<'a, Option<About>> {
        Box::pin(async move {
            let seen = self.core.find(tenant, id).await?;
            Ok(seen.map(|seen| About {
                first_kept: seen.first.max(1),
                outcome: match seen.outcome {
                    None if !seen.is_owned => Some(Err(lost())),
                    Some(_) if seen.goes_on && seen.is_owned => None,
                    outcome => outcome,
                },
            }))
        })
    }

    fn follow(&self, id: &str, seen: u64) -> Box<dyn Follow> {
        Box::new(follow::start(Arc::clone(&self.core), id.to_owned(), seen.min(MAX_NUMBER)))
    }

    fn stop<'a>(&'a self, tenant: &'a TenantId, id: &'a str) -> Asking<'a, ()> {
        Box::pin(async move {
            let Some(seen) = self.core.find(tenant, id).await? else { return Ok(()) };
            let line = self.core.link.line().ok_or(Away)?;
            let mail = self.core.mail(&seen.owner);
            let mut commands = redis::pipe();
            commands.cmd("RPUSH").arg(&mail).arg(id).ignore();
            // Who does not take it is not there.
            commands.cmd("PEXPIRE").arg(&mail).arg(millis(self.core.link.config.lease)).ignore();
            let mut connection = line.connection.clone();
            self.core.link.wait(&line, PATIENCE, commands.exec_async(&mut connection)).await.ok_or(Away)
        })
    }

    fn let_go(&self, id: &str) {
        self.core.let_go(id);
    }

    fn forget(&self, tenant: &TenantId, ids: Vec<String>) {
        let (core, tenant) = (Arc::clone(&self.core), tenant.clone());
        tokio::spawn(async move {
            let began = Instant::now();
            for id in ids {
                while !core.forget(&tenant, &id).await {
                    if began.elapsed() > core.outlasting() {
                        return;
                    }
                    tokio::time::sleep(PAUSE).await;
                }
            }
        });
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX).max(1)
}

/// A log whose gateway is no more.
fn lost() -> Reject {
    let message = "the gateway that made this answer is gone, and the answer ends here; ask again";
    Reject::new(RejectKind::Unavailable, Fault::Operator, message).code(LOST)
}

/// A log of which gateways can share no more; it goes on where it is written.
fn too_large(bytes: usize) -> Reject {
    let message = format!(
        "the other gateways have no more of this stream: what comes next has {bytes} bytes, more than they share or the \
         server that they share takes; where the answer is kept it can be read whole"
    );
    Reject::new(RejectKind::Unavailable, Fault::Operator, message).code(CUT)
}

/// Whether no event of a log says this end: there is only what was told of it.
fn is_unsaid(reject: &Reject) -> bool {
    matches!(reject.code.as_deref(), Some(LOST | CUT))
}

/// A reader that cannot go on here, and may come back.
fn interrupted() -> Reject {
    let message = "the other gateways cannot be asked for the rest of this stream now; come back with the id of the last \
                   event";
    Reject::unavailable(Fault::Operator, message, 5).code("stream_interrupted")
}
