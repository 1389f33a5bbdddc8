//! Others' certificates: where this server asks by TLS, `[egress] ca` is trusted beside the public authorities.

use crate::mtls::{Authority, pem};
use crate::talk::until;
use hyper::Request;
use rcgen::ExtendedKeyUsagePurpose;
use rustls::pki_types::PrivateKeyDer;
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use tidegate::config::Config;
use tidegate_tests::issuer::{Signer, TestIssuer};
use tidegate_tests::stand_in::{Said, StandIn};
use tidegate_tests::{Answer, BARE, Gateway, ask, collect};
use tokio::net::{TcpListener, TcpStream};

/// Takes TLS off and hands what is said on to `address`; gives the origin that has it.
async fn tls_in_front_of(address: SocketAddr, authority: &Authority) -> String {
    let made = authority.make("localhost", None, ExtendedKeyUsagePurpose::ServerAuth);
    let key = PrivateKeyDer::try_from(made.key).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let config = config.with_no_client_auth().with_single_cert(vec![made.certificate], key).unwrap();
    let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let acceptor = acceptor.clone();
            tokio::spawn(async move {
                let Ok(mut stream) = acceptor.accept(stream).await else { return };
                let mut there = TcpStream::connect(address).await.unwrap();
                let _ = tokio::io::copy_bidirectional(&mut stream, &mut there).await;
            });
        }
    });
    format!("https://localhost:{port}")
}

/// Everything that a gateway asks by HTTP, but for a collector of traces, each with a certificate of `authority`.
struct Others {
    engine: Gateway,
    issuer: TestIssuer,
    signer: Signer,
    guard: StandIn,
    receiver: StandIn,
}

impl Others {
    async fn start() -> Self {
        let signer = Signer::new("one");
        Self {
            engine: Gateway::start(BARE).await,
            issuer: TestIssuer::start(&[&signer]).await,
            signer,
            guard: StandIn::start(|_, _| Said::json(&json!({"verdict": "allow"}))).await,
            receiver: StandIn::start(|_, _| Said::raw(204, "")).await,
        }
    }

    /// A gateway that asks all of them by TLS.
    async fn gateway(&self, folder: &Path, authority: &Authority, more: &str) -> Gateway {
        let behind = async |address| tls_in_front_of(address, authority).await;
        let (engine, keys) = (behind(self.engine.addr).await, behind(self.issuer.server.address).await);
        let (guard, receiver) = (behind(self.guard.address).await, behind(self.receiver.address).await);
        let local = "networks = [\"127.0.0.0/8\", \"::1/128\"]";
        let issuer = self.issuer.server.origin();
        let config = format!(
            "[[models]]\nname = \"tidegate-starter\"\nupstream = \"{engine}/v1\"\nretry = {{ retries = 0 }}\n\
             [store]\npath = \"data\"\n[store.events]\nwebhook = \"{receiver}/events\"\n\
             [[auth.issuer]]\nname = \"corp\"\nissuer = \"{issuer}\"\njwks_url = \"{keys}/jwks\"\n{local}\n\
             audience = [\"tidegate\"]\ntenant = \"acme\"\n\
             [[pipeline.stage]]\nplugin = \"webhook-guard\"\nstages = [\"prompt-guard\"]\n\
             config = {{ url = \"{guard}/check\" }}\n[pipeline.stage.grants]\ncontent = true\n\
             http = {{ origins = [\"{guard}\"], {local} }}\n[pipeline.stage.limits]\nwall_ms = 20000\n{more}"
        );
        std::fs::write(folder.join("tidegate.toml"), config).unwrap();
        Gateway::start_with(Config::load(&folder.join("tidegate.toml")).unwrap()).await
    }

    async fn chat(&self, gateway: &Gateway) -> Answer {
        let mut body: Value = ask("What is Tidegate?");
        body["model"] = "tidegate-starter".into();
        let mut request: Request<_> = gateway.json_request("/v1/chat/completions", &body);
        let token = self.signer.token(&self.issuer.claims("ann"));
        request.headers_mut().insert("authorization", format!("Bearer {token}").parse().unwrap());
        collect(gateway.send(request).await).await
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_private_authority_is_trusted_by_everything_that_asks_others() {
    let (folder, authority, others) = (tempfile::tempdir().unwrap(), Authority::new(), Others::start().await);
    std::fs::write(folder.path().join("ca.pem"), pem("CERTIFICATE", &authority.certificate)).unwrap();
    let gateway = others.gateway(folder.path(), &authority, "[egress]\nca = \"ca.pem\"\n").await;
    // What was read goes on, whatever becomes of the file.
    std::fs::remove_file(folder.path().join("ca.pem")).unwrap();
    assert!(others.chat(&gateway).await.text().contains("Rust program"));
    assert_eq!((others.issuer.fetches(), others.guard.asked("/check").len()), (1, 1));
    until("the webhook has an event", async || (!others.receiver.asked("/events").is_empty()).then_some(())).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_it_a_certificate_of_nobody_known_is_refused() {
    let (folder, authority, others) = (tempfile::tempdir().unwrap(), Authority::new(), Others::start().await);
    let gateway = others.gateway(folder.path(), &authority, "").await;
    let refused = others.chat(&gateway).await;
    assert_eq!((refused.status, refused.error().2), (503, json!("issuer_away")));
    assert_eq!(others.issuer.fetches(), 0);
}
