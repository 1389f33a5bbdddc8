//! What several gateways share, in Valkey or Redis: how much callers have asked for, the logs of streams that clients can
//! come back to, and a board of notes.
//!
//! Invariants, each with a test on a server of its own:
//! - gateways together let no more through than one would (`tests/limits.rs`), and what one holds ends with it;
//! - a request waits for the server no longer than the deadline, whatever streams carry, and a stream not at all;
//! - a stream is read from any gateway as from its own, and ends for its readers when that is no more
//!   (`tests/logs.rs`);
//! - of streams the server holds what their gateways do, and readers of large events so much together (`tests/bounds.rs`);
//! - without the server each gateway goes on with its part of the limits and its own streams, says so, and comes back by
//!   itself.
//!
//! Read `link.rs`, then `limits.rs` and `logs.rs`.

mod board;
mod limits;
mod link;
mod logs;
mod script;

pub use board::Board;
pub use limits::Limits;
pub use logs::{LogSettings, Logs};

use link::Link;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinHandle;

/// Where it is shared, and by whom.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// `redis://`, `rediss://` with TLS, `valkey://`, `valkeys://` or `unix://`.
    pub url: String,
    /// Of the user that `url` names, or of the default one.
    pub password: Option<String>,
    /// PEM of who signs the server's certificate, in place of the public authorities.
    pub authority: Option<Vec<u8>>,
    /// What the names of everything shared begin with.
    pub prefix: String,
    /// Gateways that share: one that is left alone takes this part of the limits.
    pub gateways: u32,
    /// How long a request waits for an answer.
    pub deadline: Duration,
    /// How long a gateway may be silent before what it holds is taken for ended.
    pub lease: Duration,
}

/// Why nothing can be shared.
#[derive(Debug, thiserror::Error)]
pub enum SharedError {
    /// Nobody can be asked at such a place.
    #[error("not the URL of a Valkey or Redis server: {0}")]
    Url(String),
    /// There is no name for this gateway.
    #[error("this machine gives no random numbers: {0}")]
    NoRandomness(String),
}

/// Refuses what is no URL of a server; asks nobody.
pub fn check_url(url: &str) -> Result<(), SharedError> {
    link::parse(url).map(drop)
}

/// What this gateway shares with others. Dropping it lets go of it.
pub struct Shared {
    limits: Arc<Limits>,
    logs: Logs,
    board: Board,
    link: Arc<Link>,
    work: Vec<JoinHandle<()>>,
}

impl Shared {
    /// Begins to share. The server may be out of reach: then it is looked for. Must be called within a tokio runtime.
    pub fn start(config: Config, settings: LogSettings) -> Result<Self, SharedError> {
        let link = Arc::new(Link::new(config)?);
        let (limits, settling) = Limits::new(Arc::clone(&link));
        let (logs, taking_back) = Logs::new(Arc::new(link.of_logs()), settings);
        let limits = Arc::new(limits);
        let board = Board::new(Arc::clone(&link));
        let prepare = link.prepare(limits.scripts().chain([board.script()]));
        let keeping = tokio::spawn(keep(Arc::clone(&link), prepare, Arc::clone(&limits)));
        let logs_work =
            [tokio::spawn(logs.clone().keep()), tokio::spawn(logs.clone().take_stops()), tokio::spawn(taking_back)];
        let work = [keeping, tokio::spawn(settling)].into_iter().chain(logs_work).collect();
        Ok(Self { limits, logs, board, link, work })
    }

    /// Waits for a moment for what is on its way, then lets go.
    pub async fn close(self) {
        // What is not sent by then leaks away, or ends with its lease.
        let settled = async {
            self.limits.settled().await;
            self.logs.settled().await;
        };
        let _ = tokio::time::timeout(LAST_WORDS, settled).await;
        self.link.leave().await;
    }

    /// What gateways say to each other.
    pub fn board(&self) -> Board {
        self.board.clone()
    }

    /// The logs.
    pub fn logs(&self) -> Arc<Logs> {
        Arc::new(self.logs.clone())
    }

    /// The limits.
    pub fn limits(&self) -> Arc<Limits> {
        Arc::clone(&self.limits)
    }
}

/// For corrections of the last requests.
const LAST_WORDS: Duration = Duration::from_millis(500);

impl Drop for Shared {
    fn drop(&mut self) {
        self.work.iter().for_each(JoinHandle::abort);
    }
}

/// Keeps the connection of the limits, and what this gateway holds, for as long as it runs.
async fn keep(link: Arc<Link>, prepare: redis::Pipeline, limits: Arc<Limits>) {
    loop {
        link.connect(&prepare).await;
        limits.renew(limits::Known::Perhaps).await;
        while link.line().is_some() {
            tokio::select! {
                () = link.given_up() => {}
                () = tokio::time::sleep(link.config.lease / 3) => limits.renew(limits::Known::Yes).await,
            }
        }
    }
}
