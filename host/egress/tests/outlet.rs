//! An outlet against URLs that want to be elsewhere, over real sockets.

// Helpers of tests may fail like tests.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tidegate_egress::{AddressPolicy, EgressError, Outlet, OutletConfig, Resolve, Resolving};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

/// A server on loopback that answers with `answer`, and counts who came.
async fn server(answer: &'static str) -> (SocketAddr, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    (listener.local_addr().unwrap(), serve(listener, answer))
}

/// Counts connections; one on which `answer` says nothing of its end is answered on again.
fn serve(listener: TcpListener, answer: &'static str) -> Arc<AtomicUsize> {
    let reached = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&reached);
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            count.fetch_add(1, Ordering::SeqCst);
            let mut head = vec![0; 4096];
            while stream.read(&mut head).await.is_ok_and(|read| read > 0) {
                let _ = stream.write_all(answer.as_bytes()).await;
                if answer.contains("connection: close") {
                    break;
                }
            }
        }
    });
    reached
}

/// Servers on one port of 127.0.0.1 and of 127.0.0.2: the port, and who came to each.
async fn servers_of_one_port(answer: &'static str) -> (u16, [Arc<AtomicUsize>; 2]) {
    loop {
        let first = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = first.local_addr().unwrap().port();
        // Somebody else may have that port there.
        if let Ok(second) = TcpListener::bind(("127.0.0.2", port)).await {
            return (port, [first, second].map(|listener| serve(listener, answer)));
        }
    }
}

const OK: &str = "HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\nhi";
const OK_KEPT: &str = "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nhi";

/// Every name leads to loopback, whatever it is called; one of them only at the second look, one only partly.
fn everything_is_loopback() -> Resolve {
    let looked = Arc::new(AtomicUsize::new(0));
    Arc::new(move |host, port| {
        let looked = Arc::clone(&looked);
        Box::pin(async move {
            let at = |address: &str| SocketAddr::new(address.parse().unwrap(), port);
            Ok(match host.as_str() {
                "mixed.example.com" => vec![at("93.184.216.34"), at("127.0.0.1")],
                "rebind.example.com" if looked.fetch_add(1, Ordering::SeqCst) == 0 => vec![at("169.254.169.254")],
                literal => vec![literal.parse().map_or(at("127.0.0.1"), |ip| SocketAddr::new(ip, port))],
            })
        })
    })
}

/// Every name leads to the first address when it is looked up first, and to the second from then on; counts how often.
fn rebinding(addresses: [&'static str; 2]) -> (Resolve, Arc<AtomicUsize>) {
    let looked = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&looked);
    let resolve = move |_: String, port| -> Resolving {
        let address = addresses[count.fetch_add(1, Ordering::SeqCst).min(1)];
        Box::pin(async move { Ok(vec![SocketAddr::new(address.parse().unwrap(), port)]) })
    };
    (Arc::new(resolve), looked)
}

/// Everything that could be granted by an operator who is not careful, but for the networks.
fn origins(port: u16) -> Vec<String> {
    let hosts = [
        "api.example.com",
        "rebind.example.com",
        "mixed.example.com",
        "localhost",
        "127.0.0.1",
        "[::1]",
        "[::ffff:127.0.0.1]",
        "169.254.169.254",
        "10.0.0.1",
        "0.0.0.0",
    ];
    let with_port = hosts.iter().map(|host| format!("http://{host}:{port}"));
    let plain = hosts.iter().flat_map(|host| [format!("http://{host}"), format!("https://{host}")]);
    with_port.chain(plain).collect()
}

fn outlet(port: u16, networks: &[&str]) -> Outlet {
    outlet_by(everything_is_loopback(), port, networks)
}

fn outlet_by(resolve: Resolve, port: u16, networks: &[&str]) -> Outlet {
    let addresses = AddressPolicy::new(networks.iter().map(|network| network.parse().unwrap()).collect());
    let (timeout, extra_roots, resolve) = (Duration::from_secs(5), Vec::new(), Some(resolve));
    Outlet::new(OutletConfig { origins: origins(port), addresses, timeout, extra_roots, resolve }).unwrap()
}

async fn get(outlet: &Outlet, url: &str) -> Result<tidegate_egress::Fetched, EgressError> {
    outlet.send("GET", url, &[], Vec::new(), 100).await
}

#[tokio::test]
async fn of_all_hostile_urls_none_reaches_loopback() {
    let (address, reached) = server(OK).await;
    let outlet = outlet(address.port(), &[]);
    let text = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/fixtures/hostile-urls.json"));
    let urls: Vec<String> = serde_json::from_str(&text.unwrap()).unwrap();
    assert!(urls.len() >= 200, "{}", urls.len());
    for url in urls {
        let url = url.replace("PORT", &address.port().to_string());
        let refused = match get(&outlet, &url).await {
            Err(
                error @ (EgressError::BadTarget { .. }
                | EgressError::OriginDenied { .. }
                | EgressError::AddressDenied { .. }),
            ) => error,
            other => panic!("{url:?}: {other:?}"),
        };
        assert!(!refused.to_string().is_empty());
    }
    assert_eq!(reached.load(Ordering::SeqCst), 0);
}

#[tokio::test]
async fn a_check_refuses_what_is_refused_when_it_is_sent_and_sends_nothing() {
    let (address, reached) = server(OK).await;
    let outlet = outlet(address.port(), &["127.0.0.1/32"]);
    let good = format!("http://api.example.com:{}/", address.port());
    let header = |name: &str| vec![(name.to_owned(), "a".to_owned())];
    assert!(outlet.check("GET", &good, &header("x-kind")).is_ok());
    for (method, url, headers) in [
        ("TRACE", good.as_str(), header("x-kind")),
        ("GET", "http://b.example.com/", header("x-kind")),
        ("GET", "http://api.example.com/#x", header("x-kind")),
        ("GET", good.as_str(), header("x kind")),
        ("GET", "http://169.254.169.254/", header("x-kind")),
    ] {
        let checked = outlet.check(method, url, &headers).unwrap_err().to_string();
        let sent = outlet.send(method, url, &headers, Vec::new(), 100).await.unwrap_err().to_string();
        assert_eq!(checked, sent);
    }
    assert_eq!(reached.load(Ordering::SeqCst), 0);
}

#[test]
fn a_check_refuses_an_address_that_is_not_granted_and_looks_no_name_up() {
    let check = |networks: &[&str], host: &str| {
        outlet(1, networks).check("GET", &format!("http://{host}/"), &[]).map_err(|error| error.to_string())
    };
    for (host, granted, address) in [
        ("127.0.0.1", "127.0.0.0/8", "127.0.0.1"),
        ("169.254.169.254", "169.254.0.0/16", "169.254.169.254"),
        ("[::1]", "::1/128", "::1"),
        ("localhost", "127.0.0.1/32", "127.0.0.1"),
        ("localhost", "::1/128", "127.0.0.1"),
    ] {
        let why = check(&["192.0.2.0/24"], host).unwrap_err();
        assert!(why.contains(&format!("leads to {address}, which is no public address")), "{host}: {why}");
        assert_eq!(check(&[granted], host), Ok(()), "{host}");
    }
    assert_eq!(check(&[], "rebind.example.com"), Ok(()));
}

/// The same server is reached where its network is granted: the test above can fail.
#[tokio::test]
async fn a_granted_network_is_reached() {
    let (address, reached) = server(OK).await;
    let granted = outlet(address.port(), &["127.0.0.1/32"]);
    let answer = get(&granted, &format!("http://api.example.com:{}/", address.port())).await.unwrap();
    assert_eq!((answer.status, answer.body.as_slice(), answer.truncated), (200, &b"hi"[..], false));
    assert_eq!(reached.load(Ordering::SeqCst), 1);
}

/// Of the two addresses only the first is granted; the second has a server as well, which would notice.
#[tokio::test]
async fn a_name_is_looked_up_once_for_a_connection_which_goes_to_the_address_that_was_checked() {
    let (port, [granted, other]) = servers_of_one_port(OK).await;
    let (resolve, looked) = rebinding(["127.0.0.1", "127.0.0.2"]);
    let outlet = outlet_by(resolve, port, &["127.0.0.1/32"]);
    let url = format!("http://api.example.com:{port}/");
    let count = |of: &AtomicUsize| of.load(Ordering::SeqCst);
    assert_eq!(get(&outlet, &url).await.unwrap().body, b"hi");
    assert_eq!([&looked, &granted, &other].map(|of| count(of)), [1, 1, 0]);
    // The next connection looks anew, and checks what it finds.
    let refused = get(&outlet, &url).await;
    assert!(matches!(refused, Err(EgressError::AddressDenied { .. })), "{refused:?}");
    assert_eq!([&looked, &granted, &other].map(|of| count(of)), [2, 1, 0]);
}

#[tokio::test]
async fn a_connection_that_is_kept_needs_no_second_look() {
    let (port, [granted, other]) = servers_of_one_port(OK_KEPT).await;
    let (resolve, looked) = rebinding(["127.0.0.1", "127.0.0.2"]);
    let outlet = outlet_by(resolve, port, &["127.0.0.1/32"]);
    for _ in 0..3 {
        assert_eq!(get(&outlet, &format!("http://api.example.com:{port}/")).await.unwrap().body, b"hi");
    }
    assert_eq!([looked, granted, other].map(|of| of.load(Ordering::SeqCst)), [1, 1, 0]);
}

/// DNS rebinding. The allowed address is of a network for documents, where nobody listens.
#[tokio::test]
async fn a_name_that_leads_to_loopback_at_a_second_look_reaches_nobody() {
    let (address, reached) = server(OK).await;
    let (resolve, looked) = rebinding(["192.0.2.1", "127.0.0.1"]);
    let outlet = outlet_by(resolve, address.port(), &["192.0.2.0/24"]);
    let url = format!("http://api.example.com:{}/", address.port());
    // Some networks refuse at once, others never answer.
    let asked = tokio::time::timeout(Duration::from_secs(2), get(&outlet, &url)).await;
    assert!(asked.is_err() || asked.is_ok_and(|answer| answer.is_err()));
    assert_eq!([looked, reached].map(|of| of.load(Ordering::SeqCst)), [1, 0]);
}

#[tokio::test]
async fn a_redirect_is_an_answer_and_is_not_followed() {
    let (victim, reached) = server(OK).await;
    let location = format!(
        "HTTP/1.1 302 Found\r\nlocation: http://127.0.0.1:{}/\r\ncontent-length: 0\r\nconnection: close\r\n\r\n",
        victim.port()
    );
    let (address, _) = server(location.leak()).await;
    let outlet = outlet(address.port(), &["127.0.0.1/32"]);
    let answer = get(&outlet, &format!("http://api.example.com:{}/", address.port())).await.unwrap();
    assert_eq!(answer.status, 302);
    assert_eq!(reached.load(Ordering::SeqCst), 0);
}

#[tokio::test]
async fn a_body_is_cut_off_at_its_limit() {
    let (address, _) = server("HTTP/1.1 200 OK\r\ncontent-length: 300\r\nconnection: close\r\n\r\n0123456789").await;
    let outlet = outlet(address.port(), &["127.0.0.1/32"]);
    let url = format!("http://api.example.com:{}/", address.port());
    let answer = outlet.send("GET", &url, &[], Vec::new(), 4).await.unwrap();
    assert_eq!((answer.body.as_slice(), answer.truncated), (&b"0123"[..], true));
    let cut = outlet.send("GET", &url, &[], Vec::new(), 100).await;
    assert!(matches!(cut, Err(EgressError::Broken { .. })), "{cut:?}");
}

#[tokio::test]
async fn what_is_no_request_is_refused_before_it_is_sent() {
    let (address, reached) = server(OK).await;
    let outlet = outlet(address.port(), &["127.0.0.1/32"]);
    let url = format!("http://api.example.com:{}/", address.port());
    let header = |name: &str, value: &str| vec![(name.to_owned(), value.to_owned())];
    for (method, headers) in [
        ("CONNECT", vec![]),
        ("TRACE", vec![]),
        ("GET / HTTP/1.1\r\nx:", vec![]),
        ("GET", header("x\r\ny", "z")),
        ("GET", header("x", "y\r\nhost: evil")),
    ] {
        assert!(outlet.send(method, &url, &headers, Vec::new(), 10).await.is_err(), "{method} {headers:?}");
    }
    assert_eq!(reached.load(Ordering::SeqCst), 0);
}

#[test]
fn origins_are_checked_when_they_are_granted() {
    for bad in ["", "api.example.com", "http://h/path", "http://h?x", "http://u@h", "http://0x7f.1", "file:///etc"] {
        let config = OutletConfig {
            origins: vec![bad.to_owned()],
            addresses: AddressPolicy::default(),
            timeout: Duration::from_secs(1),
            extra_roots: Vec::new(),
            resolve: None,
        };
        assert!(Outlet::new(config).is_err(), "{bad:?}");
    }
}
