//! The floor: a proxy of hyper's own parts that reads nothing and decides nothing. What a gateway costs above it is
//! the gateway's own doing; what it costs itself is the machine's.

use bytes::Bytes;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioIo};
use std::net::SocketAddr;
use tokio::net::TcpListener;

type Upstream = Client<HttpConnector, Full<Bytes>>;

/// Serves until killed.
pub(crate) async fn run(listen: SocketAddr, upstream: SocketAddr) -> anyhow::Result<()> {
    let listener = TcpListener::bind(listen).await?;
    let mut connector = HttpConnector::new();
    connector.set_nodelay(true);
    let client: Upstream = Client::builder(TokioExecutor::new()).build(connector);
    loop {
        let (socket, _) = listener.accept().await?;
        socket.set_nodelay(true)?;
        let client = client.clone();
        tokio::task::spawn(async move {
            let service = service_fn(move |request| forward(client.clone(), upstream, request));
            hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(socket), service).await
        });
    }
}

async fn forward(
    client: Upstream,
    upstream: SocketAddr,
    request: Request<Incoming>,
) -> anyhow::Result<Response<Incoming>> {
    use http_body_util::BodyExt;
    let (head, body) = request.into_parts();
    let body = body.collect().await?.to_bytes();
    let onward = Request::builder()
        .method(head.method)
        .uri(format!("http://{upstream}{}", head.uri.path()))
        .header("content-type", "application/json")
        .body(Full::new(body))?;
    Ok(client.request(onward).await?)
}
