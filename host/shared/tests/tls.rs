//! A server whose certificate no public authority has signed.
#![allow(clippy::expect_used, clippy::unwrap_used, clippy::panic, missing_docs)]

#[path = "../../../tests/src/redis.rs"]
#[allow(dead_code, reason = "each file of tests takes what it needs of it")]
mod redis;

use base64::Engine;
use redis::Redis;
use std::sync::Arc;
use std::time::Duration;
use tidegate_shared::{Config, LogSettings, Shared};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio_rustls::TlsAcceptor;

/// Speaks TLS for a server that does not; tells of each handshake whether it came to its end. Gives its URL and its certificate.
async fn front(redis: &Redis, tell: mpsc::Sender<bool>) -> (String, Vec<u8>) {
    let made = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap();
    let key = made.signing_key.serialize_der().try_into().unwrap();
    let config = rustls::ServerConfig::builder()
        .with_no_client_auth()
        .with_single_cert(vec![made.cert.der().clone()], key)
        .unwrap();
    let (acceptor, behind) = (TlsAcceptor::from(Arc::new(config)), redis.url().replace("redis://", ""));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((socket, _)) = listener.accept().await {
            let (acceptor, behind, tell) = (acceptor.clone(), behind.clone(), tell.clone());
            tokio::spawn(async move {
                let secured = acceptor.accept(socket).await;
                tell.send(secured.is_ok()).await.unwrap();
                let (Ok(mut secured), Ok(mut plain)) = (secured, TcpStream::connect(behind).await) else { return };
                let _ = tokio::io::copy_bidirectional(&mut secured, &mut plain).await;
            });
        }
    });
    let text = base64::engine::general_purpose::STANDARD.encode(made.cert.der());
    let pem = format!("-----BEGIN CERTIFICATE-----\n{text}\n-----END CERTIFICATE-----\n");
    (format!("rediss://127.0.0.1:{port}"), pem.into_bytes())
}

fn gateway(url: &str, authority: Option<&[u8]>) -> Shared {
    let config = Config {
        url: url.to_owned(),
        password: None,
        authority: authority.map(<[u8]>::to_vec),
        prefix: "test".into(),
        gateways: 2,
        deadline: Duration::from_secs(5),
        lease: Duration::from_secs(20),
    };
    Shared::start(config, LogSettings::default()).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_is_believed_by_the_authority_that_is_named_for_it() {
    let Some(redis) = Redis::start() else { return };
    let _ = rustls::crypto::ring::default_provider().install_default();
    let (tell, mut told) = mpsc::channel(1000);
    let (url, authority) = front(&redis, tell).await;
    let wary = gateway(&url, None);
    assert_eq!(told.recv().await, Some(false), "nobody has vouched for it");
    drop(wary);
    let trusting = gateway(&url, Some(&authority));
    let asked = async {
        while trusting.board().post("b", "").await.is_none() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), asked).await.expect("it is found");
}
