//! Accepting connections, and stopping without losing an answer.

use crate::auth::SharedAuth;
use crate::backend::Service;
use crate::behind::Desk;
use crate::connection;
use crate::error::ApiError;
use crate::idempotency::answers::Answers;
use crate::kept::Kept;
use crate::lanes::Lanes;
use crate::last_words;
use crate::limits::Limits;
use crate::receive::{Bodies, Room};
use crate::routes::Door;
use crate::tls::Tls;
use metrics::{counter, gauge};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tidegate_settled::Settled;
use tidegate_streams::Streams;
use tidegate_streams::shared::SharedLogs;
use tidegate_types::{Caller, Fault, Reject};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::runtime::Handle;
use tokio::sync::{Mutex, Semaphore};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// What all connections share.
pub struct Api {
    pub(crate) service: Arc<dyn Service>,
    pub(crate) auth: SharedAuth,
    pub(crate) limits: Limits,
    /// Request bodies that are being received.
    receiving: Bodies,
    pub(crate) phase: Phase,
    /// The logs of resumable streams.
    pub(crate) streams: Streams,
    /// Where conversations are kept, where they are.
    pub(crate) kept: Option<Kept>,
    /// What was answered to requests that say which they are.
    pub(crate) answers: Arc<Answers>,
    /// Where what follows answers is written.
    pub(crate) desk: Desk,
    /// Held while an administrator's reload runs.
    pub(crate) reloading: Arc<Mutex<()>>,
    /// Connections, and generations that outlive theirs.
    pub(crate) tasks: TaskTracker,
    /// The threads that serve connections.
    lanes: Arc<Lanes>,
    /// Where streams of HTTP/2 run.
    pub(crate) shared: Handle,
}

impl Api {
    /// What bodies of the caller's requests may take of what all may together.
    pub(crate) fn room_for_bodies<'a>(&'a self, caller: &'a Caller) -> Room<'a> {
        self.receiving.room(caller)
    }

    /// Puts the parts together.
    pub fn new(service: Arc<dyn Service>, auth: impl Into<SharedAuth>, limits: Limits, lanes: Arc<Lanes>) -> Self {
        let auth = auth.into();
        let streams = Streams::new(limits.streams.clone());
        let answers = Arc::new(Answers::new(limits.idempotency.beside(&limits.streams)));
        let receiving = Bodies::new(limits.max_receiving_bytes);
        let (phase, tasks) = (Phase::default(), TaskTracker::new());
        let (desk, reloading) = (Desk::default(), Arc::default());
        let (kept, shared) = (None, Handle::current());
        Self { service, auth, limits, receiving, phase, streams, kept, answers, desk, reloading, tasks, lanes, shared }
    }

    /// Shares the logs of streams with other gateways.
    pub fn with_shared(mut self, logs: Option<Arc<dyn SharedLogs>>) -> Self {
        self.streams.share(logs);
        self
    }

    /// Keeps conversations.
    pub fn with_kept(mut self, kept: Option<Kept>) -> Self {
        self.kept = kept;
        self
    }
}

/// How far the server has stopped.
#[derive(Default)]
pub(crate) struct Phase {
    /// It says that it is not ready; all else goes on.
    pub(crate) settling: CancellationToken,
    /// No new connections and requests; running answers go on.
    pub(crate) draining: CancellationToken,
    /// Running answers end with an error.
    pub(crate) cutting: CancellationToken,
    /// Connections are dropped.
    pub(crate) dropping: CancellationToken,
}

/// An address that is this program's. Whoever connects is turned away by the system until [`serve`] listens there.
pub struct Listener {
    socket: TcpSocket,
    address: SocketAddr,
    tls: Option<Tls>,
    door: Door,
}

/// One that is listened on.
struct Open {
    tcp: TcpListener,
    tls: Option<Tls>,
    door: Door,
}

/// Connections that the system holds until they are accepted.
const BACKLOG: u32 = 1024;

impl Listener {
    /// Takes `address`, or a free port of it for port 0. An address that somebody listens on is told here.
    pub fn bind(address: SocketAddr, tls: Option<Tls>, door: Door) -> Result<Self, ApiError> {
        let bind = || -> std::io::Result<_> {
            let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
            // Past connections keep no address. Another program that has it so too, and does not listen yet, is told of below.
            socket.set_reuseaddr(true)?;
            // Accepted connections inherit it.
            socket.set_keepalive(true)?;
            socket.bind(address)?;
            let address = socket.local_addr()?;
            Ok((socket, address))
        };
        let (socket, address) = bind().map_err(|cause| ApiError::Listen { address, cause })?;
        Ok(Self { socket, address, tls, door })
    }

    /// The address, with the port that was taken.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// From now on connections wait to be accepted. Of two programs that have one address the first comes this far.
    fn listen(self) -> Result<Open, ApiError> {
        let Self { socket, address, tls, door } = self;
        let tcp = socket.listen(BACKLOG).map_err(|cause| ApiError::Listen { address, cause })?;
        Ok(Open { tcp, tls, door })
    }
}

/// A running server. [`Server::stop`] ends it in order; dropping it ends it at once.
pub struct Server {
    api: Arc<Api>,
}

impl Drop for Server {
    fn drop(&mut self) {
        let Phase { settling, draining, cutting, dropping } = &self.api.phase;
        [settling, draining, cutting, dropping].into_iter().for_each(CancellationToken::cancel);
    }
}

/// Serves `api` on all `listeners`, which accept connections from now on and not before. Must be called within a tokio runtime.
pub fn serve(listeners: Vec<Listener>, api: Api) -> Result<Server, ApiError> {
    let open = listeners.into_iter().map(Listener::listen).collect::<Result<Vec<_>, _>>()?;
    let server = Server { api: Arc::new(api) };
    let slots = Arc::new(Semaphore::new(server.api.limits.max_connections.min(Semaphore::MAX_PERMITS)));
    for listener in open {
        server.api.tasks.spawn(accept(listener, Arc::clone(&server.api), Arc::clone(&slots)));
    }
    Ok(server)
}

/// For answers that were told to end, to say so to their clients.
const LAST_WORDS: Duration = Duration::from_secs(1);

impl Server {
    /// Says from now on that it is not ready, and answers for `time` as before: until whoever sends it requests has seen that.
    pub async fn settle(&self, time: Duration) {
        self.api.phase.settling.cancel();
        if !time.is_zero() {
            tokio::time::sleep(time).await;
        }
    }

    /// Accepts nothing more, waits up to `grace` for running answers, ends the rest with an error that their
    /// clients see, and returns once every connection is closed.
    pub async fn stop(self, grace: Duration) {
        self.settle(Duration::ZERO).await;
        self.api.tasks.close();
        self.api.phase.draining.cancel();
        if tokio::time::timeout(grace, self.api.tasks.wait()).await.is_ok() {
            return;
        }
        self.api.phase.cutting.cancel();
        if tokio::time::timeout(LAST_WORDS, self.api.tasks.wait()).await.is_err() {
            self.api.phase.dropping.cancel();
            self.api.tasks.wait().await;
        }
    }
}

/// After a failure to accept, which is mostly a lack of file descriptors: others must end first.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

async fn accept(listener: Open, api: Arc<Api>, slots: Arc<Semaphore>) {
    loop {
        let accepted = tokio::select! {
            accepted = listener.tcp.accept() => accepted,
            () = api.phase.draining.cancelled() => return,
        };
        let (tcp, peer) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::warn!("cannot accept a connection: {error}");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let Ok(slot) = Arc::clone(&slots).try_acquire_owned() else {
            refuse(&tcp, listener.tls.is_some());
            continue;
        };
        // It leaves the runtime that accepted it for the one that serves it.
        let Ok(tcp) = tcp.into_std() else { continue };
        let (runtime, lane) = api.lanes.next();
        let (own, tls, door) = (Arc::clone(&api), listener.tls.clone(), listener.door);
        let connection = async move {
            let open = OpenConnection::count();
            if let Ok(tcp) = TcpStream::from_std(tcp) {
                connection::run(own, tcp, peer, tls, door).await;
            }
            drop((open, lane, slot));
        };
        api.tasks.spawn_on(Settled::new(connection), &runtime);
    }
}

/// Says 503 where that can be said without waiting for the other side.
fn refuse(tcp: &TcpStream, tls: bool) {
    counter!("tidegate_http_connections_refused_total").increment(1);
    if tls {
        return;
    }
    let message = "the server has too many connections; try again in a second";
    let reject = Reject::unavailable(Fault::Operator, message, 1).code("too_many_connections");
    // The peer may be gone already, which is as good.
    drop(tcp.try_write(&last_words::whole(&reject)));
}

/// Counts an open connection until it is dropped.
struct OpenConnection;

impl OpenConnection {
    fn count() -> Self {
        gauge!("tidegate_http_connections").increment(1.0);
        Self
    }
}

impl Drop for OpenConnection {
    fn drop(&mut self) {
        gauge!("tidegate_http_connections").decrement(1.0);
    }
}
