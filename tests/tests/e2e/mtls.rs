//! Client certificates: who signs them, whom they name, and what they may stand beside.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http_body_util::Full;
use hyper::Request;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use rcgen::{BasicConstraints, CertificateParams, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, SanType};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use serde_json::{Value, json};
use std::path::Path;
use std::sync::Arc;
use tidegate_tests::{Answer, Gateway, collect};
use tokio::net::TcpStream;

/// Somebody who signs certificates.
pub struct Authority {
    pub certificate: CertificateDer<'static>,
    issuer: Issuer<'static, KeyPair>,
}

/// A certificate with its key.
pub struct Made {
    pub certificate: CertificateDer<'static>,
    pub key: Vec<u8>,
}

impl Authority {
    pub fn new() -> Self {
        let mut params = CertificateParams::new(Vec::<String>::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        let certificate = params.self_signed(&key).unwrap().der().clone();
        Self { certificate, issuer: Issuer::new(params, key) }
    }

    pub fn make(&self, host: &str, uri: Option<&str>, usage: ExtendedKeyUsagePurpose) -> Made {
        let mut params = CertificateParams::new(vec![host.to_owned()]).unwrap();
        params.subject_alt_names.extend(uri.map(|uri| SanType::URI(uri.try_into().unwrap())));
        params.extended_key_usages = vec![usage];
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap().der().clone();
        Made { certificate, key: key.serialize_der() }
    }

    fn client(&self, host: &str) -> Made {
        self.make(host, None, ExtendedKeyUsagePurpose::ClientAuth)
    }
}

pub fn pem(label: &str, der: &[u8]) -> String {
    format!("-----BEGIN {label}-----\n{}\n-----END {label}-----\n", STANDARD.encode(der))
}

/// A gateway with HTTPS, whose clients' authority is `clients`.
async fn start(folder: &Path, authority: &Authority, clients: &Authority, auth: &str, entries: &str) -> Gateway {
    let server = authority.make("localhost", None, ExtendedKeyUsagePurpose::ServerAuth);
    let write = |name: &str, text: String| std::fs::write(folder.join(name), text).unwrap();
    write("cert.pem", pem("CERTIFICATE", &server.certificate));
    write("key.pem", pem("PRIVATE KEY", &server.key));
    write("clients.pem", pem("CERTIFICATE", &clients.certificate));
    let key = |name: &str| {
        let hash = blake3::hash(name.as_bytes());
        format!("[[keys]]\nname = \"{name}\"\nhash = \"blake3:{hash}\"\n")
    };
    let tls = "[server.tls]\ncert = \"cert.pem\"\nkey = \"key.pem\"\nclient_ca = \"clients.pem\"\nclient_auth = ";
    let text = format!("{tls}\"{auth}\"\n{}{}{entries}[pipeline]\n", key("acme"), key("other"));
    write("tidegate.toml", text);
    Gateway::start_with(tidegate::config::Config::load(&folder.join("tidegate.toml")).unwrap()).await
}

/// Asks for the models; the error is that of the connection.
async fn ask(gateway: &Gateway, roots: &Authority, shown: Option<&Made>, key: Option<&str>) -> Result<Answer, String> {
    let request = Request::get("/v1/models");
    let request = key.into_iter().fold(request, |request, key| request.header("x-api-key", key));
    send(gateway, roots, shown, request).await
}

/// A connection without a certificate, to be asked over later.
async fn connect(gateway: &Gateway, roots: &Authority) -> http1::SendRequest<Full<Bytes>> {
    handshake(gateway, trusting(roots).with_no_client_auth()).await.unwrap()
}

async fn handshake(gateway: &Gateway, config: rustls::ClientConfig) -> Result<http1::SendRequest<Full<Bytes>>, String> {
    let stream = TcpStream::connect(gateway.addr).await.unwrap();
    let name = ServerName::try_from("localhost").unwrap();
    let connector = tokio_rustls::TlsConnector::from(Arc::new(config));
    let stream = connector.connect(name, stream).await.map_err(|error| error.to_string())?;
    let (sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(|error| error.to_string())?;
    tokio::spawn(connection);
    Ok(sender)
}

fn trusting(roots: &Authority) -> rustls::ConfigBuilder<rustls::ClientConfig, rustls::client::WantsClientCert> {
    let mut store = rustls::RootCertStore::empty();
    store.add(roots.certificate.clone()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    config.with_root_certificates(store)
}

async fn send(
    gateway: &Gateway,
    roots: &Authority,
    shown: Option<&Made>,
    request: hyper::http::request::Builder,
) -> Result<Answer, String> {
    let config = trusting(roots);
    let config = match shown {
        Some(made) => {
            let key = PrivateKeyDer::try_from(made.key.clone()).unwrap();
            config.with_client_auth_cert(vec![made.certificate.clone()], key).unwrap()
        }
        None => config.with_no_client_auth(),
    };
    let mut sender = handshake(gateway, config).await?;
    let request = request.header("host", "localhost").body(Full::<Bytes>::default()).unwrap();
    let response = sender.send_request(request).await;
    Ok(collect(response.map_err(|error| format!("{error:?}"))?).await)
}

/// Open connections go on with what they began with.
#[tokio::test(flavor = "multi_thread")]
async fn a_renewed_certificate_is_taken_by_a_reload_and_one_with_another_key_is_not() {
    let folder = tempfile::tempdir().unwrap();
    let [first, second, clients] = [(); 3].map(|()| Authority::new());
    let gateway = start(folder.path(), &first, &clients, "optional", "").await;
    let models = async |roots: &Authority, shown: Option<&Made>| {
        ask(&gateway, roots, shown, Some("acme")).await.map(|answer| answer.status)
    };
    let write = |name: &str, text: String| std::fs::write(folder.path().join(name), text).unwrap();
    let mut open = connect(&gateway, &first).await;
    assert!(models(&second, None).await.is_err());
    let renewed = second.make("localhost", None, ExtendedKeyUsagePurpose::ServerAuth);
    let other = second.make("localhost", None, ExtendedKeyUsagePurpose::ServerAuth);
    write("cert.pem", pem("CERTIFICATE", &renewed.certificate));
    for (key, taken) in [(Some(&other), false), (None, false), (Some(&renewed), true), (Some(&other), false)] {
        write("key.pem", key.map_or_else(String::new, |key| pem("PRIVATE KEY", &key.key)));
        let was_taken = gateway.running.reload().await.map_err(|error| format!("{error:#}"));
        assert_eq!(was_taken.is_ok(), taken, "{was_taken:?}");
        assert!(taken || was_taken.unwrap_err().contains("cert.pem"), "it says which");
    }
    assert_eq!((models(&second, None).await, models(&first, None).await.is_err()), (Ok(200), true));
    let request = Request::get("/livez").header("host", "localhost").body(Full::<Bytes>::default()).unwrap();
    assert_eq!(open.send_request(request).await.unwrap().status(), 200);
    // Who signs the certificates of clients is taken with them.
    let shown = second.client("batch.example");
    assert!(models(&second, Some(&shown)).await.is_err());
    write("key.pem", pem("PRIVATE KEY", &renewed.key));
    write("clients.pem", pem("CERTIFICATE", &second.certificate));
    gateway.running.reload().await.unwrap();
    assert_eq!(models(&second, Some(&shown)).await, Ok(200));
}

const ENTRIES: &str = "[[auth.certificate]]\nname = \"batch\"\nhost = \"batch.example\"\ntenant = \"acme\"\n\
                       [[auth.certificate]]\nname = \"mesh\"\nuri = \"spiffe://x/mesh\"\ntenant = \"acme\"\n\
                       endpoints = [\"chat\"]\n";

#[tokio::test(flavor = "multi_thread")]
async fn a_certificate_names_its_caller_and_conflicts_are_refused() {
    let (folder, ours, theirs) = (tempfile::tempdir().unwrap(), Authority::new(), Authority::new());
    let pinned = ours.client("pinned.example");
    let digest = ring::digest::digest(&ring::digest::SHA256, &pinned.certificate);
    let digits: String = digest.as_ref().iter().map(|byte| format!("{byte:02X}:")).collect();
    let pin = format!("[[auth.certificate]]\nname = \"pinned\"\nsha256 = \"{digits}\"\nrole = \"read-only\"\n");
    let gateway = start(folder.path(), &ours, &ours, "optional", &format!("{ENTRIES}{pin}")).await;
    let batch = ours.client("batch.example");
    let mesh = ours.make("x.example", Some("spiffe://x/mesh"), ExtendedKeyUsagePurpose::ClientAuth);
    let stranger = ours.client("stranger.example");
    for (shown, key, status, code) in [
        (Some(&batch), None, 200, None),
        (Some(&pinned), None, 200, None),
        // For chat only.
        (Some(&mesh), None, 403, Some("insufficient_permissions")),
        (Some(&batch), Some("acme"), 200, None),
        (Some(&batch), Some("other"), 400, Some("conflicting_credentials")),
        (Some(&batch), Some("wrong"), 401, Some("invalid_api_key")),
        // Signed by ours, and named by no entry: it needs a key, and may have any.
        (Some(&stranger), None, 401, Some("invalid_api_key")),
        (Some(&stranger), Some("other"), 200, None),
        (None, Some("other"), 200, None),
        (None, None, 401, Some("invalid_api_key")),
    ] {
        let answer = ask(&gateway, &ours, shown, key).await.unwrap();
        assert_eq!(answer.status, status, "{key:?}: {:?}", answer.body);
        code.into_iter().for_each(|code| assert_eq!(answer.error().2, json!(code), "{key:?}"));
    }
    // The same name by another authority, and a server's certificate, are none.
    let forged = theirs.client("batch.example");
    let server = ours.make("batch.example", None, ExtendedKeyUsagePurpose::ServerAuth);
    for bad in [&forged, &server] {
        assert!(ask(&gateway, &ours, Some(bad), Some("acme")).await.is_err());
    }
}

/// Browsers send it with whatever any page asks them to.
#[tokio::test(flavor = "multi_thread")]
async fn by_a_certificate_another_sites_page_changes_nothing() {
    let (folder, ours) = (tempfile::tempdir().unwrap(), Authority::new());
    let gateway = start(folder.path(), &ours, &ours, "optional", ENTRIES).await;
    let batch = ours.client("batch.example");
    for (name, value, key, status) in [
        ("origin", "https://evil.example", None, 403),
        ("sec-fetch-site", "cross-site", None, 403),
        ("origin", "http://localhost", None, 403),
        ("origin", "https://localhost", None, 404),
        ("x-program", "says nothing of a page", None, 404),
        // No browser sends a key by itself.
        ("origin", "https://evil.example", Some("acme"), 404),
    ] {
        let request = Request::post("/v1/streams/none/cancel").header(name, value);
        let request = key.into_iter().fold(request, |request, key: &str| request.header("x-api-key", key));
        let answer = send(&gateway, &ours, Some(&batch), request).await.unwrap();
        assert_eq!(answer.status, status, "{name}: {value}: {:?}", answer.body);
        if status == 403 {
            assert_eq!(answer.error().2, json!("cross_site"));
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn where_a_certificate_is_required_nobody_comes_without() {
    let (folder, ours) = (tempfile::tempdir().unwrap(), Authority::new());
    let gateway = start(folder.path(), &ours, &ours, "required", ENTRIES).await;
    assert!(ask(&gateway, &ours, None, Some("acme")).await.is_err());
    let answer = ask(&gateway, &ours, Some(&ours.client("batch.example")), None).await.unwrap();
    assert_eq!((answer.status, answer.json()["object"].clone()), (200, Value::from("list")));
}

#[test]
fn a_certificates_entry_needs_an_authority_and_one_name() {
    let why = |text: &str| format!("{:#}", tidegate::config::Config::parse(text).unwrap_err());
    let tls = "[server.tls]\ncert = \"c\"\nkey = \"k\"\n";
    let entry = "[[auth.certificate]]\nname = \"a\"\n";
    assert!(why(&format!("{entry}host = \"a.example\"")).contains("client_ca"));
    assert!(why(&format!("{tls}client_auth = \"required\"")).contains("client_ca"));
    for (names, word) in [
        ("", "one of"),
        ("host = \"a.example\"\nuri = \"x:y\"", "one of"),
        ("host = \"a b\"", "DNS name"),
        ("sha256 = \"00\"", "64 hex"),
    ] {
        let why = why(&format!("{tls}client_ca = \"x\"\n{entry}{names}"));
        assert!(why.contains(word), "{names}: {why}");
    }
    let (one, two) = (format!("{entry}host = \"a.example\"\n"), format!("{entry}host = \"b.example\"\n"));
    assert!(why(&format!("{tls}client_ca = \"x\"\n{one}{two}")).contains("two of [[auth.certificate]]"));
}
