//! `tidegate plugin push`, `pull`, `sign` and `lock` against a registry over real sockets: one that behaves, one that
//! wants to know who asks, and ones that lie.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod bundles;
mod server;

use base64::Engine;
use hyper::Method;
use server::{Door, Fault, Registry};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// A folder with a packed, signed plugin in `mine.oci`.
struct Desk {
    folder: tempfile::TempDir,
    key: String,
    environment: Vec<(&'static str, String)>,
}

impl Desk {
    fn new() -> Self {
        let mut desk = Self { folder: tempfile::tempdir().unwrap(), key: String::new(), environment: Vec::new() };
        desk.component("template");
        desk.key = desk.good("plugin key new key.pem").trim().to_owned();
        desk.good("plugin pack mine.wasm --sign key.pem");
        desk
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Makes a shipped component the one that is packed.
    fn component(&self, shipped: &str) {
        let dist = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../plugins/dist");
        std::fs::copy(dist.join(format!("{shipped}.wasm")), self.path("mine.wasm")).unwrap();
    }

    fn run(&self, args: &str) -> (bool, String) {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
        command.current_dir(&self.folder).args(args.split_whitespace());
        command.env("XDG_CACHE_HOME", std::env::temp_dir().join("tidegate-tests-cache"));
        // Nobody's own credentials.
        command.env("DOCKER_CONFIG", self.path("docker"));
        command.envs(self.environment.iter().map(|(key, value)| (key, value)));
        let Output { status, stdout, stderr } = command.output().unwrap();
        (status.success(), String::from_utf8_lossy(&stdout).into_owned() + &String::from_utf8_lossy(&stderr))
    }

    fn good(&self, args: &str) -> String {
        let (good, said) = self.run(args);
        assert!(good, "{args}: {said}");
        said
    }

    fn refused(&self, args: &str, parts: &[&str]) -> String {
        let (good, said) = self.run(args);
        assert!(!good, "{args}: {said}");
        parts.iter().for_each(|part| assert!(said.contains(part), "`{part}` is not in what {args} said:\n{said}"));
        said
    }

    /// Packs it as nobody has signed it.
    fn pack_unsigned(&self) {
        std::fs::remove_dir_all(self.path("mine.oci")).unwrap();
        self.good("plugin pack mine.wasm");
    }

    fn push(&self, registry: &Registry, tag: &str) {
        self.good(&format!("plugin push {} --from mine.oci", registry.reference(tag)));
    }

    fn artifact(&self) -> String {
        let said = self.good("plugin inspect --json mine.oci");
        let report: serde_json::Value = serde_json::from_str(&said).unwrap();
        report["artifact"].as_str().unwrap().to_owned()
    }

    fn index(&self, folder: &str) -> String {
        std::fs::read_to_string(self.path(folder).join("index.json")).unwrap()
    }
}

#[test]
fn what_was_pushed_is_pulled_by_tag_and_by_digest_with_its_signature() {
    let (desk, registry) = (Desk::new(), Registry::start(Door::Open));
    let said = desk.good(&format!("plugin push {} --from mine.oci", registry.reference("")));
    let digest = desk.artifact();
    // Without a tag, its version.
    assert!(said.contains(&format!("{}@{digest}", registry.reference(":0.1.0"))), "{said}");
    assert_eq!(registry.tags().iter().filter(|tag| tag.ends_with(".sig")).count(), 1);
    for which in [":0.1.0".to_owned(), format!("@{digest}"), format!(":whatever@{digest}")] {
        let said = desk.good(&format!("plugin pull {} --output taken", registry.reference(&which)));
        assert!(said.contains(&digest) && said.contains(&format!("signed by      {}", desk.key)), "{said}");
    }
    desk.good(&format!("plugin pull {} --output taken", registry.reference(":0.1.0")));
    assert_eq!(desk.index("taken"), desk.index("mine.oci"));
    let said = desk.good(&format!("plugin inspect {}", registry.reference(":0.1.0")));
    assert!(said.contains("stages         stream-guard") && said.contains(&desk.key), "{said}");
    // What is there is not sent again.
    registry.record();
    desk.push(&registry, ":again");
    let sent: Vec<String> = registry.record().into_iter().filter(|a| a.method == "PUT").map(|a| a.path).collect();
    assert!(sent.iter().all(|path| path.contains("/manifests/")), "{sent:?}");
    let absent = ["there is no `none`", "plugins/mine", "MANIFEST_UNKNOWN: manifest unknown"];
    desk.refused(&format!("plugin pull {}", registry.reference(":none")), &absent);
}

/// Registries do not give a list to whom has not said that it may be one.
#[test]
fn a_tag_that_is_a_list_of_artifacts_is_said_to_be_one() {
    let (desk, registry) = (Desk::new(), Registry::start(Door::Open));
    desk.push(&registry, ":1");
    let index = "application/vnd.oci.image.index.v1+json";
    registry.put("1", &serde_json::json!({"schemaVersion": 2, "mediaType": index, "manifests": []}));
    let parts = ["`1` is a list of artifacts", "name its digest"];
    desk.refused(&format!("plugin pull {}", registry.reference(":1")), &parts);
    desk.good(&format!("plugin pull {}", registry.reference(&format!("@{}", desk.artifact()))));
}

#[test]
fn a_second_signer_is_added_to_the_first() {
    let (desk, registry) = (Desk::new(), Registry::start(Door::Open));
    desk.push(&registry, ":1");
    let second = desk.good("plugin key new second.pem").trim().to_owned();
    desk.good(&format!("plugin sign {} --key second.pem", registry.reference(":1")));
    let said = desk.good(&format!("plugin pull {}", registry.reference(":1")));
    assert!(said.contains(&desk.key) && said.contains(&second), "{said}");
}

/// A registry keeps the manifest that comes last, whatever it was made from.
#[test]
fn those_who_sign_at_once_add_to_what_the_other_one_has_written() {
    let (desk, registry) = (Desk::new(), Registry::start(Door::Open));
    desk.push(&registry, ":1");
    let second = desk.good("plugin key new second.pem").trim().to_owned();
    let sign = format!("plugin sign {} --key second.pem", registry.reference(":1"));
    registry.fault(Some(Fault::Overtaken(99)));
    desk.refused(&sign, &["others have written the signatures", "each of the 5 times", "do it again"]);
    registry.fault(Some(Fault::Overtaken(2)));
    desk.good(&sign);
    let said = desk.good(&format!("plugin pull {}", registry.reference(":1")));
    assert!(said.contains(&desk.key) && said.contains(&second), "{said}");
    let tag = registry.tags().into_iter().find(|tag| tag.ends_with(".sig")).unwrap();
    assert_eq!(registry.manifest(&tag)["annotations"]["write-0"], "theirs");
}

#[test]
fn a_registry_that_lies_is_caught_and_nothing_is_written() {
    let (desk, registry) = (Desk::new(), Registry::start(Door::Open));
    desk.push(&registry, ":1");
    let by_digest = format!("@{}", desk.artifact());
    for (fault, which, part) in [
        (Fault::ChangedBlob, ":1", "was changed"),
        (Fault::ShortBlob, ":1", "it was cut or changed"),
        (Fault::CutBlob, ":1", "broke"),
        (Fault::LongBlob, ":1", "is longer than"),
        (Fault::ChangedManifest, ":1", "the manifest has the digest"),
        (Fault::ChangedManifest, by_digest.as_str(), "the manifest has the digest"),
        (Fault::EndlessManifest, ":1", "is longer than 1048576 bytes"),
        (Fault::ManifestType("text/html"), ":1", "came as `text/html`"),
        (Fault::ManifestType("application/vnd.oci.image.index.v1+json"), ":1", "is a list of artifacts"),
    ] {
        registry.fault(Some(fault));
        desk.refused(
            &format!("plugin pull {} --output taken", registry.reference(which)),
            &[part, "cannot take oci://"],
        );
        assert!(!desk.path("taken").exists());
    }
    registry.fault(None);
    desk.good(&format!("plugin pull {} --output taken", registry.reference(":1")));
}

#[test]
fn what_only_asks_is_asked_again_while_a_registry_is_busy_and_no_longer() {
    let (desk, registry) = (Desk::new(), Registry::start(Door::Open));
    desk.push(&registry, ":1");
    let pull = format!("plugin pull {} --output taken", registry.reference(":1"));
    for fault in [
        Fault::Busy(Method::GET, 3, 503, "0"),
        Fault::Busy(Method::GET, 2, 429, ""),
        Fault::Busy(Method::GET, 1, 502, "1"),
        Fault::CutOff(2),
    ] {
        registry.fault(Some(fault.clone()));
        assert!(desk.good(&pull).contains("asking again in"), "{fault:?}");
    }
    registry.record();
    registry.fault(Some(Fault::Busy(Method::GET, 99, 504, "0")));
    desk.refused(&pull, &["does not give the manifest", "504"]);
    assert_eq!(registry.record().len(), 4);
    registry.fault(Some(Fault::Busy(Method::GET, 99, 429, "11")));
    desk.refused(&pull, &["429", "; it may in 11 s"]);
    assert_eq!(registry.record().len(), 1);
    registry.fault(Some(Fault::Busy(Method::GET, 99, 500, "0")));
    desk.refused(&pull, &["500"]);
    assert_eq!(registry.record().len(), 1);
    // What changes something is not sent twice.
    registry.fault(Some(Fault::Busy(Method::PUT, 1, 503, "0")));
    desk.refused(&format!("plugin push {} --from mine.oci", registry.reference(":2")), &["does not take", "503"]);
}

#[test]
fn who_gives_tokens_is_asked_again_too() {
    let (mut desk, tokens) = (Desk::new(), Registry::start(Door::Open));
    let registry = Registry::start(Door::Bearer(format!("http://{}/token", tokens.addr)));
    desk.environment = credentials(&registry);
    tokens.fault(Some(Fault::Busy(Method::GET, 1, 503, "0")));
    desk.push(&registry, ":1");
}

/// Only the lock is all or nothing.
#[test]
fn what_was_fetched_for_a_lock_is_kept_where_another_plugin_fails() {
    let (desk, registry) = (Desk::new(), Registry::start(Door::Open));
    desk.push(&registry, ":1");
    let stage = |tag: &str| {
        let source = registry.reference(tag);
        format!("[[pipeline.stage]]\nplugin = \"mine\"\nsource = \"{source}\"\n")
    };
    std::fs::write(desk.path("tidegate.toml"), stage(":1") + &stage(":2")).unwrap();
    desk.refused("plugin lock tidegate.toml", &["there is no `2`"]);
    assert!(!desk.path("tidegate.lock").exists());
    assert!(desk.index("tidegate-plugins").contains(&desk.artifact()));
}

#[test]
fn a_redirect_is_followed_without_credentials_and_no_further_than_it_may() {
    let (mut desk, elsewhere) = (Desk::new(), Registry::start(Door::Open));
    let registry = Registry::start(Door::Basic("Basic dTpw"));
    desk.environment = credentials(&registry);
    for place in [&registry, &elsewhere] {
        desk.push(place, ":1");
        place.record();
    }
    let pull = format!("plugin pull {} --output taken", registry.reference(":1"));
    registry.fault(Some(Fault::Redirect(format!("http://{}/elsewhere/", elsewhere.addr))));
    desk.good(&pull);
    let asked = elsewhere.record();
    assert!(asked.len() == 3 && asked.iter().all(|asked| asked.authorization.is_empty()), "{asked:?}");

    // What is elsewhere is there, and not sent again.
    registry.record();
    desk.push(&registry, ":again");
    assert!(registry.record().iter().all(|asked| asked.method != Method::POST), "uploads were begun");
    assert!(elsewhere.record().is_empty());

    // The other place must give the same bytes, and the way there must end.
    registry.fault(Some(Fault::Redirect(format!("http://{}/nowhere/", elsewhere.addr))));
    desk.refused(&pull, &["does not give the content", "404"]);
    registry.fault(Some(Fault::Redirect("/v2/plugins/mine/blobs/".into())));
    desk.refused(&pull, &["led elsewhere more than 3 times"]);
    registry.fault(Some(Fault::Redirect("http://registry.invalid/".into())));
    desk.refused(&pull, &["http://registry.invalid would be reached without TLS"]);
    registry.fault(Some(Fault::Redirect("file:///etc/passwd?".into())));
    desk.refused(&pull, &["is no URL of a registry"]);
    // What is sent goes to the registry itself.
    registry.fault(Some(Fault::UploadsTo(format!("http://{}/v2/", elsewhere.addr))));
    desk.component("pii-guard");
    desk.good("plugin pack mine.wasm");
    desk.refused(&format!("plugin push {} --from mine.oci", registry.reference(":2")), &["sends uploads to"]);
    assert!(elsewhere.record().iter().all(|asked| asked.authorization.is_empty()));
}

fn credentials(registry: &Registry) -> Vec<(&'static str, String)> {
    vec![
        ("TIDEGATE_REGISTRY_HOST", registry.addr.to_string()),
        ("TIDEGATE_REGISTRY_USER", "u".into()),
        ("TIDEGATE_REGISTRY_PASSWORD", "p".into()),
    ]
}

#[test]
fn a_registry_that_asks_who_is_there_is_told() {
    let (mut desk, registry) = (Desk::new(), Registry::start(Door::Basic("Basic dTpw")));
    let push = format!("plugin push {} --from mine.oci", registry.reference(":1"));
    desk.refused(&push, &["wants credentials, and there are none", "TIDEGATE_REGISTRY_HOST", "docker login"]);
    // Another host's are not sent.
    desk.environment = credentials(&registry);
    desk.environment[0].1 = "registry.example".into();
    desk.refused(&push, &["there are none for it"]);
    desk.environment = credentials(&registry);
    desk.environment[2].1 = "wrong".into();
    let said = desk.refused(&push, &["does not take the credentials", "UNAUTHORIZED: who[31m are you"]);
    assert!(!said.contains('\u{1b}') && !said.contains("wrong"), "{said:?}");
    assert!(registry.tags().is_empty());
    desk.environment = credentials(&registry);
    desk.good(&push);
    // Docker's own file serves as well.
    desk.environment.clear();
    std::fs::create_dir(desk.path("docker")).unwrap();
    let auths = format!("{{\"auths\": {{\"{}\": {{\"auth\": \"dTpw\"}}}}}}", registry.addr);
    std::fs::write(desk.path("docker/config.json"), auths).unwrap();
    desk.good(&format!("plugin pull {}", registry.reference(":1")));
}

#[test]
fn tokens_are_fetched_where_the_registry_says_and_for_no_more_than_is_done() {
    let (mut desk, tokens) = (Desk::new(), Registry::start(Door::Open));
    let registry = Registry::start(Door::Bearer(format!("http://{}/token", tokens.addr)));
    let pull = format!("plugin pull {}", registry.reference(":1"));
    // Without credentials there is a token too, which is not enough here.
    desk.refused(&pull, &["does not take the credentials"]);
    desk.environment = credentials(&registry);
    tokens.record();
    desk.push(&registry, ":1");
    let scope = |actions: &str| format!("/token?service=reg%20istry&scope=repository:plugins/mine:{actions}");
    let asked = tokens.record();
    assert_eq!((asked.len(), asked[0].path.as_str()), (1, scope("pull,push").as_str()));
    assert_eq!(asked[0].authorization, "Basic dTpw");
    desk.good(&pull);
    assert_eq!(tokens.record()[0].path, scope("pull"));
    assert!(registry.record().iter().all(|asked| !asked.authorization.starts_with("Basic")));
}

#[test]
fn a_source_is_locked_by_digest_whatever_its_tag_leads_to_later() {
    let (desk, registry) = (Desk::new(), Registry::start(Door::Open));
    desk.push(&registry, ":stable");
    let first = desk.artifact();
    let source = registry.reference(":stable");
    let config = format!(
        "[plugins]\ntrusted_keys = [\"{}\"]\n[[pipeline.stage]]\nplugin = \"mine\"\nsource = \"{source}\"\n",
        desk.key
    );
    std::fs::write(desk.path("tidegate.toml"), config).unwrap();
    desk.refused("check tidegate.toml", &["is not locked", "run `tidegate plugin lock tidegate.toml`"]);
    desk.good("plugin lock tidegate.toml");
    assert!(desk.good("check tidegate.toml").contains("is good"));
    let locked = || std::fs::read_to_string(desk.path("tidegate.lock")).unwrap();
    assert!(locked().contains(&first));

    // The tag moves; nobody notices until they ask.
    desk.component("pii-guard");
    desk.good("plugin pack mine.wasm --sign key.pem");
    desk.push(&registry, ":stable");
    let second = desk.artifact();
    registry.record();
    desk.good("check tidegate.toml");
    desk.good("plugin lock tidegate.toml");
    assert!(registry.record().is_empty() && locked().contains(&first));
    // What was pulled is lost: exactly that is fetched again.
    std::fs::remove_dir_all(desk.path("tidegate-plugins")).unwrap();
    desk.refused("check tidegate.toml", &["is not here", "`tidegate plugin lock tidegate.toml` fetches it"]);
    desk.good("plugin lock tidegate.toml");
    desk.good("check tidegate.toml");
    assert!(locked().contains(&first));

    desk.refused("plugin lock tidegate.toml --upgrade", &["+ stage prompt-guard", "--allow-more"]);
    assert!(locked().contains(&first));
    desk.good("plugin lock tidegate.toml --upgrade --allow-more");
    assert!(locked().contains(&second) && !locked().contains(&first));
    desk.good("check tidegate.toml");

    // A tag that leads to what nobody trusted has signed is not taken.
    desk.component("template");
    desk.good("plugin pack mine.wasm");
    let unsigned = Registry::start(Door::Open);
    desk.push(&unsigned, ":stable");
    let config = std::fs::read_to_string(desk.path("tidegate.toml")).unwrap();
    std::fs::write(desk.path("tidegate.toml"), config.replace(&source, &unsigned.reference(":stable"))).unwrap();
    desk.refused("plugin lock tidegate.toml", &["is not signed", &desk.key]);
}

/// A server that watches them would take that for a change. Of two plugins each is looked at, and one is signed.
#[test]
fn a_lock_that_changes_nothing_writes_nothing() {
    let (desk, registry) = (Desk::new(), Registry::start(Door::Open));
    desk.push(&registry, ":1");
    desk.component("pii-guard");
    desk.pack_unsigned();
    desk.push(&registry, ":2");
    let stage = |tag: &str| {
        let source = registry.reference(tag);
        format!("[[pipeline.stage]]\nplugin = \"mine{}\"\nsource = \"{source}\"\n", &tag[1..])
    };
    std::fs::write(desk.path("tidegate.toml"), stage(":1") + &stage(":2")).unwrap();
    let looks = || {
        let look = |name: &str| {
            let about = std::fs::metadata(desk.path(name)).unwrap();
            (about.ino(), about.modified().unwrap())
        };
        (look("tidegate.lock"), look("tidegate-plugins/index.json"))
    };
    desk.good("plugin lock tidegate.toml");
    let before = looks();
    for args in ["plugin lock tidegate.toml", "plugin lock tidegate.toml --upgrade"] {
        assert_eq!(desk.good(args).matches("same     ").count(), 2, "{args}");
        assert_eq!(looks(), before, "{args}");
    }
}

#[test]
fn a_source_without_its_scheme_is_inspected_locked_and_stored_as_with_it() {
    let (desk, registry) = (Desk::new(), Registry::start(Door::Open));
    desk.push(&registry, ":1");
    let whole = registry.reference(":1");
    let short = whole.trim_start_matches("oci://");
    assert!(desk.good(&format!("plugin inspect {short}")).contains(&desk.artifact()));
    desk.refused(&format!("plugin inspect {}", short.trim_end_matches(":1")), &["cannot read", "tag or digest"]);
    let config = |source: &str| {
        let config = format!("[[pipeline.stage]]\nplugin = \"mine\"\nsource = \"{source}\"\n");
        std::fs::write(desk.path("tidegate.toml"), config).unwrap();
    };
    config(short);
    desk.good("plugin lock tidegate.toml");
    for source in [short, &whole] {
        config(source);
        assert!(desk.good("check tidegate.toml").contains("is good"), "{source}");
    }
    assert!(std::fs::read_to_string(desk.path("tidegate.lock")).unwrap().contains(&format!("source = \"{whole}\"")));
}

/// What is stored has the signatures of then.
#[test]
fn what_was_signed_after_it_was_stored_is_fetched_with_its_signature() {
    let (desk, registry) = (Desk::new(), Registry::start(Door::Open));
    desk.pack_unsigned();
    desk.push(&registry, ":1");
    let source = registry.reference(":1");
    let config = |plugins: &str| {
        let config = format!("{plugins}[[pipeline.stage]]\nplugin = \"mine\"\nsource = \"{source}\"\n");
        std::fs::write(desk.path("tidegate.toml"), config).unwrap();
    };
    config("");
    desk.good("plugin lock tidegate.toml");
    config(&format!("[plugins]\ntrusted_keys = [\"{}\"]\n", desk.key));
    desk.refused("plugin lock tidegate.toml", &["is not signed"]);
    desk.good(&format!("plugin sign {source} --key key.pem"));
    desk.refused("check tidegate.toml", &["is not signed"]);
    desk.good("plugin lock tidegate.toml");
    assert!(desk.good("check tidegate.toml").contains("is good"));
    // Now it is: nobody is asked.
    registry.record();
    desk.good("plugin lock tidegate.toml");
    assert!(registry.record().is_empty());
    // A signature that is damaged in the store is fetched anew, as the artifact would be.
    let blobs = desk.path("tidegate-plugins/blobs/sha256");
    for damage in ["gone", "changed"] {
        let of_signatures = std::fs::read_dir(&blobs).unwrap().map(|file| file.unwrap().path());
        let is_payload = |file: &std::path::PathBuf| {
            std::fs::read(file).unwrap().windows(22).any(|part| part == b"docker-manifest-digest")
        };
        let payload = of_signatures.into_iter().find(is_payload).unwrap();
        match damage {
            "gone" => std::fs::remove_file(&payload).unwrap(),
            _ => std::fs::write(&payload, b"docker-manifest-digest").unwrap(),
        }
        let remedy = "`tidegate plugin lock tidegate.toml` fetches its signatures anew";
        desk.refused("check tidegate.toml", &["is not signed", remedy]);
        let said = desk.good("plugin lock tidegate.toml");
        assert!(said.contains("passed over a signature of"), "{damage}: {said}");
        assert!(desk.good("check tidegate.toml").contains("is good"), "{damage}");
    }
}

fn pem(certificate: &[u8]) -> String {
    let text = base64::engine::general_purpose::STANDARD.encode(certificate);
    format!("-----BEGIN CERTIFICATE-----\n{text}\n-----END CERTIFICATE-----\n")
}

#[test]
fn a_registry_with_tls_is_believed_by_its_certificate_only() {
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let key = rustls::pki_types::PrivateKeyDer::try_from(made.signing_key.serialize_der()).unwrap();
    let provider = std::sync::Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![made.cert.der().clone()], key)
        .unwrap();
    let acceptor = tokio_rustls::TlsAcceptor::from(std::sync::Arc::new(config));
    let (desk, registry) = (Desk::new(), Registry::start_with(Door::Open, Some(acceptor)));
    std::fs::write(desk.path("ca.pem"), pem(made.cert.der())).unwrap();
    let reference = format!("oci://localhost:{}/plugins/mine:1", registry.addr.port());
    desk.good(&format!("plugin push {reference} --from mine.oci --ca ca.pem"));
    desk.good(&format!("plugin pull {reference} --ca ca.pem"));
    // Who speaks TLS leads nobody to who does not, be it to this machine.
    registry.fault(Some(Fault::Redirect("http://127.0.0.1:9/".into())));
    desk.refused(
        &format!("plugin pull {reference} --ca ca.pem"),
        &["led to http://127.0.0.1:9, which is not encrypted"],
    );
    registry.fault(None);
    // This machine's own registries are spoken to plainly; this one does not understand that.
    desk.refused(&format!("plugin pull {reference}"), &["cannot take"]);
    std::fs::write(
        desk.path("ca.pem"),
        pem(rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap().cert.der()),
    )
    .unwrap();
    desk.refused(&format!("plugin pull {reference} --ca ca.pem"), &["cannot connect to https://localhost"]);
    desk.refused(&format!("plugin pull {reference} --ca mine.wasm"), &["certificate"]);
}
