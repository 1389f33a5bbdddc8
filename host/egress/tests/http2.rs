//! Shared HTTP/2 connections: how many streams they take, what a server refuses of them, and when they are left.

// Helpers of tests may fail like tests.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use bytes::Bytes;
use http_body_util::Full;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tidegate_egress::{Connector, ConnectorConfig, EgressError, HeaderMap, Method, Request};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

const LONG: Duration = Duration::from_secs(60);
/// More than one stream may have unread.
const BIG: usize = 2 << 20;

/// `GOAWAY` without an error, whose last processed stream is this one.
const fn go_away(last: u8) -> [u8; 17] {
    [0, 0, 8, 7, 0, 0, 0, 0, 0, 0, 0, 0, last, 0, 0, 0, 0]
}

/// `RST_STREAM` of the first stream.
const fn reset(code: u8) -> [u8; 13] {
    [0, 0, 4, 3, 0, 0, 0, 0, 1, 0, 0, 0, code]
}

const REFUSED_STREAM: u8 = 7;
const INTERNAL_ERROR: u8 = 2;

struct Server {
    address: SocketAddr,
    connections: Arc<AtomicUsize>,
    /// Requests so far.
    seen: watch::Receiver<usize>,
    /// Whether they are answered.
    gate: watch::Sender<bool>,
}

impl Server {
    /// Each connection allows `max_streams`; the first `num_refusing` of them answer their first request with `refusal`.
    async fn start(max_streams: u32, num_refusing: usize, refusal: &'static [u8]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let connections = Arc::new(AtomicUsize::new(0));
        let (count, seen) = watch::channel(0);
        let (gate, is_open) = watch::channel(true);
        let accepted = Arc::clone(&connections);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                if accepted.fetch_add(1, Ordering::SeqCst) < num_refusing {
                    tokio::spawn(refuse(stream, refusal));
                } else {
                    tokio::spawn(serve(stream, max_streams, count.clone(), is_open.clone()));
                }
            }
        });
        Self { address, connections, seen, gate }
    }

    async fn well(max_streams: u32) -> Self {
        Self::start(max_streams, 0, &[]).await
    }

    fn connector(&self) -> Connector {
        Connector::new(self.config()).unwrap()
    }

    fn config(&self) -> ConnectorConfig {
        ConnectorConfig { http2_prior_knowledge: true, ..ConnectorConfig::new(format!("http://{}", self.address)) }
    }

    fn connections(&self) -> usize {
        self.connections.load(Ordering::SeqCst)
    }

    async fn wait_for(&mut self, num_requests: usize) {
        timeout(LONG, self.seen.wait_for(|seen| *seen >= num_requests))
            .await
            .expect("a request does not come")
            .unwrap();
    }
}

async fn serve(stream: TcpStream, max_streams: u32, count: watch::Sender<usize>, is_open: watch::Receiver<bool>) {
    let service = service_fn(move |request: hyper::Request<hyper::body::Incoming>| {
        let mut is_open = is_open.clone();
        count.send_modify(|seen| *seen += 1);
        async move {
            is_open.wait_for(|is_open| *is_open).await.unwrap();
            let body = if request.uri().path() == "/big" { Bytes::from(vec![0; BIG]) } else { "hi".into() };
            Ok::<_, Infallible>(hyper::Response::new(Full::new(body)))
        }
    });
    let mut server = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
    let _ = server.max_concurrent_streams(max_streams).serve_connection(TokioIo::new(stream), service).await;
}

/// Says `refusal` behind the first request, and nothing more.
async fn refuse(mut stream: TcpStream, refusal: &'static [u8]) {
    const PREFACE: usize = 24;
    const HEADERS: u8 = 1;
    const SETTINGS: [u8; 9] = [0, 0, 0, 4, 0, 0, 0, 0, 0];
    stream.read_exact(&mut [0; PREFACE]).await.unwrap();
    stream.write_all(&SETTINGS).await.unwrap();
    loop {
        let mut head = [0; 9];
        stream.read_exact(&mut head).await.unwrap();
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
        stream.read_exact(&mut vec![0; length as usize]).await.unwrap();
        if head[3] == HEADERS {
            break;
        }
    }
    stream.write_all(refusal).await.unwrap();
    stream.shutdown().await.unwrap();
    // What is unread when it closes would take back what was said.
    let _ = stream.read_to_end(&mut Vec::new()).await;
}

async fn ask(connector: &Connector, path: &str) -> Result<Vec<u8>, EgressError> {
    let (path, headers) = (path.to_owned(), HeaderMap::new());
    let request = Request { method: Method::POST, path, headers, body: Bytes::from_static(b"x") };
    connector.send(&request).await?.collect(BIG as u64).await
}

/// Beyond the server's limit they would wait for others to end, however long that takes.
#[tokio::test]
async fn requests_that_one_connection_has_no_streams_for_open_another() {
    for (max_streams, num_requests, num_connections) in [(1000, 65, 2), (8, 20, 3)] {
        let mut server = Server::well(max_streams).await;
        server.gate.send_replace(false);
        let connector = server.connector();
        let mut asking = JoinSet::new();
        for n in 1..=num_requests {
            let connector = connector.clone();
            asking.spawn(async move { ask(&connector, "/").await.unwrap() });
            server.wait_for(n).await;
        }
        assert_eq!(server.connections(), num_connections, "{max_streams}");
        server.gate.send_replace(true);
        while let Some(answer) = asking.join_next().await {
            assert_eq!(answer.unwrap(), b"hi");
        }
        for _ in 0..num_requests {
            ask(&connector, "/").await.unwrap();
        }
        assert_eq!(server.connections(), num_connections, "{max_streams}: streams that ended make room");
    }
}

/// The limit is known before a connection is there for others, and not only once it is asked again.
#[tokio::test]
async fn requests_at_once_find_the_limit_of_the_connection_that_they_share() {
    let mut server = Server::well(8).await;
    let connector = server.connector();
    ask(&connector, "/").await.unwrap();
    server.gate.send_replace(false);
    let mut asking = JoinSet::new();
    for _ in 0..20 {
        let connector = connector.clone();
        asking.spawn(async move { ask(&connector, "/").await.unwrap() });
    }
    server.wait_for(21).await;
    server.gate.send_replace(true);
    while let Some(answer) = asking.join_next().await {
        assert_eq!(answer.unwrap(), b"hi");
    }
}

/// Each opens a connection, of which one is kept; the others serve their request to its end.
#[tokio::test]
async fn requests_that_come_at_once_are_all_answered() {
    const REQUESTS: usize = 20;
    let server = Server::well(100).await;
    let connector = server.connector();
    let mut asking = JoinSet::new();
    for _ in 0..REQUESTS {
        let connector = connector.clone();
        asking.spawn(async move { ask(&connector, "/big").await.unwrap().len() });
    }
    while let Some(answer) = asking.join_next().await {
        assert_eq!(answer.unwrap(), BIG);
    }
    let connections = server.connections();
    assert!(connections <= REQUESTS);
    ask(&connector, "/").await.unwrap();
    assert_eq!(server.connections(), connections);
}

#[tokio::test]
async fn what_a_server_did_not_process_is_sent_again_once() {
    const UNPROCESSED: [&[u8]; 2] = [&go_away(0), &reset(REFUSED_STREAM)];
    for refusal in UNPROCESSED {
        let server = Server::start(100, 1, refusal).await;
        let connector = server.connector();
        for _ in 0..3 {
            assert_eq!(ask(&connector, "/").await.unwrap(), b"hi", "{refusal:?}");
        }
        assert_eq!((server.connections(), *server.seen.borrow()), (2, 3), "{refusal:?}");
        let server = Server::start(100, usize::MAX, refusal).await;
        let error = ask(&server.connector(), "/").await.unwrap_err();
        assert!(matches!(error, EgressError::Broken { .. }), "{refusal:?}: {error}");
        assert_eq!(server.connections(), 2, "{refusal:?}");
    }
}

/// An answer may have been made, and billed.
#[tokio::test]
async fn what_a_server_may_have_processed_is_not_sent_again() {
    const PROCESSED: [&[u8]; 2] = [&go_away(1), &reset(INTERNAL_ERROR)];
    for end in PROCESSED {
        let server = Server::start(100, 1, end).await;
        let error = ask(&server.connector(), "/").await.unwrap_err();
        assert!(matches!(error, EgressError::Broken { .. }), "{end:?}: {error}");
        assert_eq!(server.connections(), 1, "{end:?}");
    }
}

/// A firewall forgets what says nothing for long, and tells neither side.
#[tokio::test]
async fn a_shared_connection_that_was_idle_for_too_long_is_not_taken() {
    let server = Server::well(100).await;
    let keep_idle = Duration::from_millis(100);
    let connector = Connector::new(ConnectorConfig { keep_idle, ..server.config() }).unwrap();
    let request = Request { method: Method::GET, path: "/big".into(), headers: HeaderMap::new(), body: Bytes::new() };
    let unread = connector.send(&request).await.unwrap();
    sleep(keep_idle * 2).await;
    ask(&connector, "/").await.unwrap();
    assert_eq!(server.connections(), 1, "with a stream it is not idle");
    drop(unread);
    sleep(keep_idle * 2).await;
    ask(&connector, "/").await.unwrap();
    assert_eq!(server.connections(), 2);
}

#[tokio::test]
async fn who_reads_slowly_keeps_no_other_stream_waiting() {
    let server = Server::well(100).await;
    let connector = server.connector();
    let request = Request { method: Method::GET, path: "/big".into(), headers: HeaderMap::new(), body: Bytes::new() };
    let mut unread = Vec::new();
    for _ in 0..16 {
        unread.push(connector.send(&request).await.unwrap());
    }
    // All that the windows let through is on its way.
    sleep(Duration::from_millis(100)).await;
    assert_eq!(timeout(LONG, ask(&connector, "/")).await.expect("it waits for others").unwrap(), b"hi");
    assert_eq!(server.connections(), 1);
}
