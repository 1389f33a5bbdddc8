//! A connector against servers that behave, and against servers that do not, over real sockets.

// Helpers of tests may fail like tests.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use bytes::Bytes;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tidegate_egress::{Connector, ConnectorConfig, EgressError, HeaderMap, Method, Request};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::mpsc;

fn get(path: &str) -> Request {
    Request { method: Method::GET, path: path.into(), headers: HeaderMap::new(), body: Bytes::new() }
}

fn post(body: &'static str) -> Request {
    Request { method: Method::POST, path: "/x".into(), headers: HeaderMap::new(), body: body.into() }
}

fn config(address: SocketAddr) -> ConnectorConfig {
    ConnectorConfig::new(format!("http://{address}/v1"))
}

/// Reads one request's head and, where it has one, its body.
async fn read_request(stream: &mut TcpStream) -> Option<String> {
    let mut bytes = Vec::new();
    loop {
        let text = String::from_utf8_lossy(&bytes).to_lowercase();
        if let Some((head, body)) = text.split_once("\r\n\r\n") {
            let length = head.split("content-length: ").nth(1).and_then(|rest| rest.lines().next());
            if body.len() >= length.map_or(0, |length| length.parse().unwrap()) {
                return Some(text);
            }
        }
        if stream.read_buf(&mut bytes).await.ok()? == 0 {
            return None;
        }
    }
}

/// A server that answers each request on the `n`th connection (from 0) with what `answer` says. Gives the
/// requests and counts connections.
async fn server(
    answer: impl Fn(usize, usize) -> &'static str + Send + Sync + 'static,
) -> (SocketAddr, mpsc::Receiver<String>, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (seen, requests) = mpsc::channel(100);
    let connections = Arc::new(AtomicUsize::new(0));
    let (count, answer) = (connections.clone(), Arc::new(answer));
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let (nth, seen, answer) = (count.fetch_add(1, Ordering::SeqCst), seen.clone(), answer.clone());
            tokio::spawn(async move {
                let mut round = 0;
                while let Some(request) = read_request(&mut stream).await {
                    seen.send(request).await.unwrap();
                    let text = answer(nth, round);
                    stream.write_all(text.as_bytes()).await.unwrap();
                    round += 1;
                    if text.is_empty() || text.contains("close") {
                        return;
                    }
                }
            });
        }
    });
    (address, requests, connections)
}

const OK: &str = "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nhi";

#[tokio::test]
async fn a_request_arrives_under_the_base_path_with_host_and_length() {
    let (address, mut requests, _) = server(|_, _| OK).await;
    let connector = Connector::new(config(address)).unwrap();
    let mut response = connector.send(&post("body")).await.unwrap();
    assert_eq!(response.status, 200);
    assert_eq!(response.collect(10).await.unwrap(), b"hi");
    let request = requests.recv().await.unwrap();
    assert!(request.starts_with("post /v1/x http/1.1\r\n"), "{request}");
    assert!(request.contains(&format!("host: {address}\r\n")), "{request}");
    assert!(request.contains("content-length: 4\r\n") && request.ends_with("body"), "{request}");
}

/// Servers before registries and storage answer 411 to a POST that does not say how long it is.
#[tokio::test]
async fn what_may_have_a_body_says_also_that_it_has_none() {
    let (address, mut requests, _) = server(|_, _| OK).await;
    let connector = Connector::new(config(address)).unwrap();
    for (method, is_said) in [(Method::POST, true), (Method::PUT, true), (Method::GET, false), (Method::HEAD, false)] {
        connector.send(&Request { method: method.clone(), ..post("") }).await.unwrap();
        let request = requests.recv().await.unwrap();
        assert_eq!(request.matches("content-length: 0\r\n").count(), usize::from(is_said), "{method} {request}");
    }
}

#[tokio::test]
async fn a_connection_is_reused_after_a_response_was_read_to_its_end() {
    let (address, _requests, connections) = server(|_, _| OK).await;
    let connector = Connector::new(config(address)).unwrap();
    for _ in 0..5 {
        assert_eq!(connector.send(&get("/")).await.unwrap().collect(10).await.unwrap(), b"hi");
    }
    assert_eq!(connections.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn a_response_whose_end_is_not_awaited_still_gives_its_connection_back() {
    let (address, _requests, connections) = server(|_, _| OK).await;
    let connector = Connector::new(config(address)).unwrap();
    for _ in 0..5 {
        let mut response = connector.send(&get("/")).await.unwrap();
        assert_eq!(response.data().await.unwrap().unwrap(), "hi");
        response.settle();
    }
    assert_eq!(connections.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn a_connection_that_died_while_idle_is_replaced() {
    // The server closes after its answer without saying so.
    let (address, _requests, connections) = server(|_, round| if round == 0 { OK } else { "" }).await;
    let connector = Connector::new(config(address)).unwrap();
    for _ in 0..3 {
        assert_eq!(connector.send(&get("/")).await.unwrap().collect(10).await.unwrap(), b"hi");
    }
    assert_eq!(connections.load(Ordering::SeqCst), 3);
}

#[tokio::test]
async fn a_fresh_connection_that_breaks_is_an_error_and_not_tried_again() {
    let (address, _requests, connections) = server(|_, _| "").await;
    let connector = Connector::new(config(address)).unwrap();
    assert!(matches!(connector.send(&get("/")).await, Err(EgressError::Broken { .. })));
    assert_eq!(connections.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn no_redirect_is_followed() {
    let redirect = "HTTP/1.1 307 Temporary Redirect\r\nlocation: http://127.0.0.1:1/\r\ncontent-length: 0\r\n\r\n";
    let (address, _requests, connections) = server(move |_, _| redirect).await;
    let response = Connector::new(config(address)).unwrap().send(&get("/")).await.unwrap();
    assert_eq!(response.status, 307);
    assert_eq!(connections.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn a_body_that_is_cut_is_an_error() {
    for cut in [
        "HTTP/1.1 200 OK\r\ncontent-length: 9\r\nconnection: close\r\n\r\nhi",
        "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\nconnection: close\r\n\r\n2\r\nhi\r\n",
    ] {
        let (address, _requests, _) = server(move |_, _| cut).await;
        let mut response = Connector::new(config(address)).unwrap().send(&get("/")).await.unwrap();
        assert_eq!(response.data().await.unwrap().unwrap(), "hi");
        assert!(matches!(response.data().await, Some(Err(EgressError::Broken { .. }))));
        assert!(response.data().await.is_none());
    }
}

#[tokio::test]
async fn a_body_over_the_limit_is_an_error() {
    let (address, _requests, _) = server(|_, _| OK).await;
    let config = ConnectorConfig { max_response_bytes: 1, ..config(address) };
    let mut response = Connector::new(config).unwrap().send(&get("/")).await.unwrap();
    assert!(matches!(response.data().await, Some(Err(EgressError::TooLarge { limit_bytes: 1, .. }))));
}

#[tokio::test]
async fn a_body_that_may_be_longer_than_others_is() {
    let (address, _requests, _) = server(|_, _| OK).await;
    let config = ConnectorConfig { max_response_bytes: 1, ..config(address) };
    let mut response = Connector::new(config).unwrap().send(&get("/")).await.unwrap();
    response.allow(100);
    assert!(response.collect(100).await.unwrap().len() > 1);
}

#[tokio::test]
async fn something_that_is_not_http_is_an_error() {
    let (address, _requests, _) = server(|_, _| "SSH-2.0-close\r\n\r\n").await;
    let error = Connector::new(config(address)).unwrap().send(&get("/")).await.err().unwrap();
    assert!(matches!(error, EgressError::Broken { .. }), "{error}");
}

#[tokio::test]
async fn a_server_that_is_not_there_is_an_error() {
    // Nobody else takes its port meanwhile.
    let closed = TcpSocket::new_v4().unwrap();
    closed.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let address = closed.local_addr().unwrap();
    let error = Connector::new(config(address)).unwrap().send(&get("/")).await.err().unwrap();
    assert!(matches!(&error, EgressError::Connect { origin, .. } if origin.contains(&address.to_string())), "{error}");
}

#[tokio::test]
async fn silence_before_and_within_an_answer_is_bounded() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        let mut kept = Vec::new();
        for head in ["", "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nhi\r\n"] {
            let (mut stream, _) = listener.accept().await.unwrap();
            read_request(&mut stream).await;
            stream.write_all(head.as_bytes()).await.unwrap();
            kept.push(stream);
        }
        std::future::pending::<()>().await;
    });
    let (short, long) = (Duration::from_millis(50), Duration::from_secs(60));
    let with = |first_byte_timeout, idle_timeout| {
        Connector::new(ConnectorConfig { first_byte_timeout, idle_timeout, ..config(address) }).unwrap()
    };
    let connector = with(short, long);
    let error = connector.send(&get("/")).await.err().unwrap();
    assert!(matches!(error, EgressError::FirstByteTimeout { .. }) && error.is_timeout(), "{error}");
    let connector = with(long, short);
    let mut response = connector.send(&get("/")).await.unwrap();
    assert_eq!(response.data().await.unwrap().unwrap(), "hi");
    assert!(matches!(response.data().await, Some(Err(EgressError::IdleTimeout { .. }))));
}

#[tokio::test]
async fn dropping_a_response_closes_the_connection() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let connector = Connector::new(config(listener.local_addr().unwrap())).unwrap();
    let (response, mut stream) = tokio::join!(async { connector.send(&get("/")).await.unwrap() }, async {
        let (mut stream, _) = listener.accept().await.unwrap();
        read_request(&mut stream).await;
        stream.write_all(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n").await.unwrap();
        stream
    });
    drop(response);
    assert_eq!(stream.read(&mut [0; 1]).await.unwrap_or(0), 0);
}

mod tls {
    use super::*;
    use http_body_util::Full;
    use hyper::service::service_fn;
    use hyper_util::rt::{TokioExecutor, TokioIo};
    use rustls::pki_types::{CertificateDer, PrivateKeyDer};
    use tokio_rustls::TlsAcceptor;

    /// A TLS server that offers `alpn` and answers with the HTTP version it was asked in.
    async fn tls_server(alpn: &[&str]) -> (SocketAddr, CertificateDer<'static>) {
        let certified = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
        let certificate = certified.cert.der().clone();
        let key = PrivateKeyDer::try_from(certified.signing_key.serialize_der()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut config = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![certificate.clone()], key)
            .unwrap();
        config.alpn_protocols = alpn.iter().map(|name| name.as_bytes().to_vec()).collect();
        let acceptor = TlsAcceptor::from(Arc::new(config));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let Ok(stream) = acceptor.accept(stream).await else { continue };
                let service = service_fn(|request: hyper::Request<hyper::body::Incoming>| async move {
                    let text = format!("{:?} {}", request.version(), request.uri().path());
                    Ok::<_, std::convert::Infallible>(hyper::Response::new(Full::new(Bytes::from(text))))
                });
                let server = hyper_util::server::conn::auto::Builder::new(TokioExecutor::new());
                tokio::spawn(async move { server.serve_connection(TokioIo::new(stream), service).await.unwrap() });
            }
        });
        (address, certificate)
    }

    fn config(address: SocketAddr, roots: Vec<CertificateDer<'static>>) -> ConnectorConfig {
        let base = format!("https://localhost:{}/v1", address.port());
        ConnectorConfig { extra_roots: roots, ..ConnectorConfig::new(base) }
    }

    #[tokio::test]
    async fn the_server_chooses_the_version() {
        for (alpn, version) in [(&["h2", "http/1.1"][..], "HTTP/2.0"), (&["http/1.1"], "HTTP/1.1"), (&[], "HTTP/1.1")] {
            let (address, certificate) = tls_server(alpn).await;
            let connector = Connector::new(config(address, vec![certificate])).unwrap();
            for _ in 0..2 {
                let body = connector.send(&post("x")).await.unwrap().collect(100).await.unwrap();
                assert_eq!(String::from_utf8(body).unwrap(), format!("{version} /v1/x"));
            }
        }
    }

    #[tokio::test]
    async fn an_unknown_certificate_is_refused() {
        let (address, _) = tls_server(&[]).await;
        let error = Connector::new(config(address, Vec::new())).unwrap().send(&get("/")).await.err().unwrap();
        assert!(matches!(&error, EgressError::Connect { why, .. } if why.contains("certificate")), "{error}");
    }
}

/// A runtime that hears from another's connection is woken across threads for every piece.
#[tokio::test]
async fn a_connection_stays_with_the_runtime_that_opened_it() {
    let (address, mut requests, connections) = server(|_, _| OK).await;
    let connector = Connector::new(config(address)).unwrap();
    let ask = async |connector: &Connector| connector.send(&get("/a")).await.unwrap().collect(100).await.unwrap();
    ask(&connector).await;
    let (own, elsewhere) = (connector.clone(), connector.clone());
    let other = move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async { (ask(&elsewhere).await, ask(&elsewhere).await) });
    };
    tokio::task::spawn_blocking(other).await.unwrap();
    assert_eq!(connections.load(Ordering::SeqCst), 2, "one for each runtime, used twice by the second");
    own.send(&get("/b")).await.unwrap();
    assert_eq!(connections.load(Ordering::SeqCst), 2, "and the first runtime's is still there");
    for _ in 0..4 {
        requests.recv().await.unwrap();
    }
}

/// Its server may have had the request, and made an answer that somebody pays for.
#[tokio::test]
async fn a_kept_connection_that_breaks_late_is_no_reason_to_ask_again() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (seen, count) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let (of_server, of_connections) = (seen.clone(), count.clone());
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            of_connections.fetch_add(1, Ordering::SeqCst);
            let seen = of_server.clone();
            tokio::spawn(async move {
                while read_request(&mut stream).await.is_some() {
                    if seen.fetch_add(1, Ordering::SeqCst) > 0 {
                        tokio::time::sleep(Duration::from_millis(1300)).await;
                        return;
                    }
                    stream.write_all(OK.as_bytes()).await.unwrap();
                }
            });
        }
    });
    let connector = Connector::new(config(address)).unwrap();
    connector.send(&post("one")).await.unwrap().collect(100).await.unwrap();
    let error = connector.send(&post("two")).await.err().unwrap();
    assert!(matches!(error, EgressError::Broken { .. }), "{error}");
    assert_eq!((seen.load(Ordering::SeqCst), count.load(Ordering::SeqCst)), (2, 1));
}
