//! One connection: TLS where configured, then HTTP/1.1 or HTTP/2. The version is decided by ALPN, or without TLS
//! by the first bytes, so that each protocol is served by its own implementation and never sniffed by another.

use crate::check::MAX_HEAD_BYTES;
use crate::dispatch::Dispatch;
use crate::lanes::Spread;
use crate::last_words::LastWords;
use crate::pages::Transport;
use crate::routes::Door;
use crate::server::Api;
use crate::socket::Socket;
use crate::tls::Tls;
use hyper::server::conn::{http1, http2};
use hyper_util::rt::{TokioIo, TokioTimer};
use std::future::Future;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;
use tidegate_identity::Certificate;
use tidegate_settled::Gate;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;

/// What HTTP/2 itself lets through of a head, which it answers with a bare status beyond: wider than [`MAX_HEAD_BYTES`],
/// so that what is too long is refused by us, with a reason and a record.
const H2_HEAD_BYTES: u32 = 4 * MAX_HEAD_BYTES as u32;
const H2_STREAMS: u32 = 128;
const H2_STREAM_WINDOW: u32 = 256 << 10;
const H2_CONNECTION_WINDOW: u32 = 1 << 20;
/// Bytes of answers that wait for one stream's client.
const H2_SEND_BUFFER: usize = 64 << 10;
const H2_PING_INTERVAL: Duration = Duration::from_secs(20);
const H2_PING_TIMEOUT: Duration = Duration::from_secs(20);

/// For what a connection has sent when the server stops and nobody has read yet.
const LAST_CHANCE: Duration = Duration::from_millis(100);

/// Serves a connection until it ends.
pub(crate) async fn run(api: Arc<Api>, tcp: TcpStream, peer: SocketAddr, tls: Option<Tls>, door: Door) {
    let dispatch = Dispatch {
        api: Arc::clone(&api),
        activity: Arc::default(),
        cutting: api.phase.cutting.child_token(),
        peer,
        transport: if tls.is_some() { Transport::Tls } else { Transport::Plain },
        certificate: None,
        door,
    };
    match tls {
        None => plain(api, tcp, dispatch).await,
        Some(tls) => Box::pin(secured(api, tcp, peer, tls, dispatch)).await,
    }
}

async fn plain(api: Arc<Api>, tcp: TcpStream, dispatch: Dispatch) {
    let opened = Instant::now();
    let sniffed = tokio::select! {
        // What has come is served.
        biased;
        sniffed = timeout(api.limits.header_timeout, speaks_h2(&tcp)) => sniffed,
        // What is on its way has a moment more.
        () = api.phase.draining.cancelled() => match timeout(LAST_CHANCE, speaks_h2(&tcp)).await {
            Err(_) => return,
            sniffed => sniffed,
        },
    };
    let (http2, since) = match sniffed {
        Ok(Ok(http2)) => (http2, Instant::now()),
        Ok(Err(_)) => return,
        // HTTP/1 is where those are told who were too slow; who sent nothing is not.
        Err(_) => (false, opened),
    };
    if let Ok(socket) = Socket::new(tcp, Arc::clone(&dispatch.activity), &api.limits, since) {
        serve(socket, http2, dispatch).await;
    }
}

async fn secured(api: Arc<Api>, tcp: TcpStream, peer: SocketAddr, tls: Tls, mut dispatch: Dispatch) {
    let activity = Arc::clone(&dispatch.activity);
    let Ok(socket) = Socket::new(tcp, activity, &api.limits, Instant::now()) else { return };
    let handshake = tokio::select! {
        handshake = tls.acceptor().accept(socket) => handshake,
        () = api.phase.draining.cancelled() => return,
    };
    match handshake {
        Ok(stream) => {
            let session = stream.get_ref().1;
            let http2 = session.alpn_protocol() == Some(b"h2");
            let shown = session.peer_certificates().and_then(<[_]>::first);
            dispatch.certificate = shown.map(|certificate| Arc::new(Certificate::new(certificate)));
            serve(stream, http2, dispatch).await;
        }
        Err(error) => tracing::debug!(%peer, "TLS handshake failed: {error}"),
    }
}

/// Whether the client speaks HTTP/2 by prior knowledge. No HTTP/1 method begins like its preface.
async fn speaks_h2(tcp: &TcpStream) -> std::io::Result<bool> {
    const PREFACE: &[u8] = b"PRI ";
    let mut first = [0; PREFACE.len()];
    loop {
        let len = tcp.peek(&mut first).await?;
        if len == 0 || first[..len] != PREFACE[..len] {
            return Ok(false);
        }
        if len == PREFACE.len() {
            return Ok(true);
        }
        // The rest of a preface that came in pieces; what was peeked at stays readable, so only time helps.
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// What each protocol needs has a box of its own: a connection holds its future for as long as it is open, and in one
/// future together they are 20 KB.
async fn serve<S>(stream: S, http2: bool, dispatch: Dispatch)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let api = Arc::clone(&dispatch.api);
    if http2 {
        dispatch.activity.set_multiplexed();
        let spread = Spread { runtime: api.shared.clone(), patience: api.limits.write_timeout };
        let mut builder = http2::Builder::new(spread);
        builder
            .timer(TokioTimer::new())
            .max_concurrent_streams(H2_STREAMS)
            .initial_stream_window_size(H2_STREAM_WINDOW)
            .initial_connection_window_size(H2_CONNECTION_WINDOW)
            .max_header_list_size(H2_HEAD_BYTES)
            .max_send_buf_size(H2_SEND_BUFFER)
            .keep_alive_interval(H2_PING_INTERVAL)
            .keep_alive_timeout(H2_PING_TIMEOUT);
        let io = TokioIo::new(stream);
        Box::pin(drive(builder.serve_connection(io, dispatch), http2::Connection::graceful_shutdown, &api)).await;
    } else {
        let mut builder = http1::Builder::new();
        // The socket bounds slow headers and idle connections, see `socket.rs`. `pipeline_flush` must stay off: it
        // lifts hyper's bound on what waits for a client that does not read.
        builder.max_buf_size(MAX_HEAD_BYTES).max_header_size(MAX_HEAD_BYTES).header_read_timeout(None);
        let io = TokioIo::new(LastWords::new(stream, Arc::clone(&dispatch.activity), api.limits.max_body_bytes));
        Box::pin(drive(builder.serve_connection(io, dispatch), http1::Connection::graceful_shutdown, &api)).await;
    }
}

/// Runs a connection; when the server stops, the connection ends after the answers that are running.
async fn drive<C: Future<Output = hyper::Result<()>>>(connection: C, drain: fn(Pin<&mut C>), api: &Api) {
    // Each look at a token takes its lock, which would be one for all connections of all threads.
    let [draining, dropping] = [&api.phase.draining, &api.phase.dropping].map(CancellationToken::child_token);
    let mut connection = pin!(connection);
    let drained = pin!(draining.cancelled());
    let mut drained = Gate::new(drained);
    let mut ending = false;
    loop {
        tokio::select! {
            // A broken connection has no one left to tell; its requests have records of their own.
            _ = connection.as_mut() => return,
            () = &mut drained, if !ending => {
                ending = true;
                drain(connection.as_mut());
            }
            () = dropping.cancelled(), if ending => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn size_of_future<A, F>(_: impl FnOnce(A) -> F) -> usize {
        std::mem::size_of::<F>()
    }

    /// Each open connection holds one, idle or not.
    #[test]
    fn the_future_of_a_connection_is_small() {
        let run = size_of_future(|(api, tcp, peer)| run(api, tcp, peer, None, Door::Callers));
        let http1 = size_of_future(|(io, dispatch, api): (TokioIo<LastWords<Socket>>, Dispatch, &'static Api)| {
            let connection = http1::Builder::new().serve_connection(io, dispatch);
            drive(connection, http1::Connection::graceful_shutdown, api)
        });
        println!("{run} {http1}");
        assert!(run <= 2 << 10 && http1 <= 3 << 10, "{run} and {http1} bytes");
    }
}
