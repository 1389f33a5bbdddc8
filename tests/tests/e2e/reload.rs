//! Config and plugins that change while requests run.

mod arriving;
mod running;
mod stalled;

use crate::one_read;
use crate::outside::guarded_by;
use crate::usage::Gate;
use base64::Engine;
use bytes::Bytes;
use clap::Parser;
use futures_util::future::join_all;
use http_body_util::{BodyExt, Full};
use hyper::Request;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;
use std::time::Duration;
use tidegate::config::Config;
use tidegate_tests::postgres::Database;
use tidegate_tests::stand_in::{Said, StandIn, completion};
use tidegate_tests::{Gateway, ask, collect, finish_reason, joined, with_model};
use tokio::sync::Semaphore;

/// A config file of its own, and a gateway that was started from it.
struct Files {
    folder: tempfile::TempDir,
}

impl Files {
    fn new() -> Self {
        Self { folder: tempfile::tempdir().unwrap() }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn write(&self, config: &str) {
        std::fs::write(self.path("tidegate.toml"), config).unwrap();
    }

    async fn start(&self) -> Gateway {
        let mut config = Config::load(&self.path("tidegate.toml")).unwrap();
        config.cache_dir = Some(std::env::temp_dir().join("tidegate-tests-cache"));
        Gateway::start_with(config).await
    }
}

fn blocks(word: &str) -> String {
    format!(
        "[[pipeline.stage]]\nplugin = \"word-guard\"\nconfig = {{ words = [\"{word}\"], action = \"block\" }}\n\
         limits = {{ wall_ms = 20000, cpu_ms = 5000 }}\n"
    )
}

fn redacts(word: &str) -> String {
    blocks(word).replace("action = \"block\"", "replacement = \"[x]\"")
}

async fn reload(gateway: &Gateway) -> (u16, String) {
    let answer = gateway.post_raw("/admin/reload", "").await;
    (answer.status, String::from_utf8(answer.body.to_vec()).unwrap())
}

async fn status(gateway: &Gateway, question: &str) -> u16 {
    gateway.chat(ask(question)).await.status
}

#[tokio::test(flavor = "multi_thread")]
async fn a_changed_config_is_taken_whole_and_a_bad_one_not_at_all() {
    let files = Files::new();
    files.write(&blocks("heron"));
    let gateway = files.start().await;
    assert_eq!((status(&gateway, "a heron").await, status(&gateway, "an otter").await), (400, 200));
    files.write(&blocks("otter"));
    let (taken, facts) = reload(&gateway).await;
    assert_eq!((taken, facts.contains("word-guard")), (200, true), "{facts}");
    assert_eq!((status(&gateway, "a heron").await, status(&gateway, "an otter").await), (200, 400));
    let guests = Path::new(env!("CARGO_MANIFEST_DIR")).join("guests/dist");
    let good = blocks("heron");
    for (bad, why) in [
        ("[[pipeline.stage]\n".to_owned(), "tidegate.toml"),
        (blocks("heron").replace("words", "wrods"), "wrods"),
        (format!("{good}[[pipeline.stage]]\nplugin = \"no-such\"\non_error = \"open\"\n"), "no-such"),
        (
            format!(
                "{good}[[pipeline.stage]]\nplugin = \"mumbles\"\nfile = \"{}\"\non_error = \"open\"\n\
                 stages = [\"prompt-guard\"]\n",
                guests.join("mumbles.wasm").display()
            ),
            "mumbles",
        ),
        (format!("[server]\nmax_inflight = 7\n{good}"), "[server] (max_inflight) has changed, which needs a restart"),
        (format!("[[models]]\nname = \"m\"\npath = \"bundled\"\n{good}"), "[[models]] (`m` is new) has changed"),
        (
            format!("[plugins]\nmemory_mib = 2048\n{good}"),
            "[plugins] beside trusted_keys and locked (memory_mib) has changed",
        ),
    ] {
        files.write(&bad);
        let (refused, body) = reload(&gateway).await;
        assert_eq!(refused, 400, "{bad}: {body}");
        assert!(body.contains("reload_refused") && body.contains(why), "{why} is not in {body}");
        assert_eq!((status(&gateway, "a heron").await, status(&gateway, "an otter").await), (200, 400), "{bad}");
    }
    let metrics = String::from_utf8(gateway.get("/metrics").await.body.to_vec()).unwrap();
    assert!(metrics.contains("tidegate_reloads_total{outcome=\"refused\"}"), "{metrics}");
}

/// So that whoever mends them does not reload for each.
#[tokio::test(flavor = "multi_thread")]
async fn a_reload_names_every_stage_that_does_not_load() {
    let files = Files::new();
    files.write(&blocks("heron"));
    let gateway = files.start().await;
    let gone = "[[pipeline.stage]]\nplugin = \"gone\"\nfile = \"no.wasm\"\nstages = [\"router\", \"observer\"]\n";
    files.write(&format!("{}{}{gone}", blocks("otter").replace("words", "wrods"), blocks("otter")));
    let refused = gateway.post_raw("/admin/reload", "").await;
    let why = refused.error().0;
    let parts =
        ["2 things are wrong:\n- ", "- pipeline.stage 1 (`word-guard`): ", "wrods", "- pipeline.stage 3 (`gone`): "];
    assert!(refused.status == 400 && parts.iter().all(|part| why.contains(part)), "{why}");
    assert_eq!((status(&gateway, "a heron").await, status(&gateway, "an otter").await), (400, 200));
}

/// The words are those of `tidegate check`; no plugin is loaded for a config that is wrong without it.
#[tokio::test(flavor = "multi_thread")]
async fn a_reload_names_all_that_is_wrong_in_the_file() {
    let files = Files::new();
    files.write(&blocks("heron"));
    let gateway = files.start().await;
    let zero = "[[pipeline.stage]]\nplugin = \"calculator\"\nlimits = { memory_mib = 0 }\n";
    files.write(&format!("[server]\nlisen = 1\n[engine]\nmax_seqs = 0\n{}topk = 1\n{zero}", blocks("otter")));
    let refused = gateway.post_raw("/admin/reload", "").await;
    let why = refused.error().0;
    let parts = [
        "tidegate.toml: 4 things are wrong:\n- server.lisen (line 2): unknown field `lisen`; did you mean `listen`?",
        "\n- pipeline.stage 1.topk (line 9): unknown field `topk`; did you mean `top_k`?",
        "\n- stage `calculator`: limits.memory_mib is 0",
        "\n- engine.max_seqs is 0",
    ];
    assert!(refused.status == 400 && parts.iter().all(|part| why.contains(part)), "{why}");
    assert_eq!((status(&gateway, "a heron").await, status(&gateway, "an otter").await), (400, 200));
}

/// What is there is no component any more, be it other bytes or a part of it.
#[tokio::test(flavor = "multi_thread")]
async fn a_plugins_file_that_was_spoilt_is_refused_and_what_was_read_of_it_goes_on() {
    let files = Files::new();
    let good = std::fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join("guests/dist/honest.wasm")).unwrap();
    std::fs::write(files.path("guard.wasm"), &good).unwrap();
    files.write(
        "[[pipeline.stage]]\nplugin = \"guard\"\nfile = \"guard.wasm\"\nstages = [\"prompt-guard\"]\n\
         limits = { wall_ms = 20000, cpu_ms = 5000 }\n",
    );
    let gateway = files.start().await;
    for spoilt in [b"no component".as_slice(), &good[..good.len() / 2], &[]] {
        std::fs::write(files.path("guard.wasm"), spoilt).unwrap();
        let (refused, body) = reload(&gateway).await;
        assert!(refused == 400 && body.contains("guard"), "{} bytes: {body}", spoilt.len());
        assert_eq!((status(&gateway, "refuse").await, status(&gateway, "Hello!").await), (400, 200));
    }
    std::fs::write(files.path("guard.wasm"), &good).unwrap();
    assert_eq!(reload(&gateway).await.0, 200);
}

/// All else of it is as it was.
#[tokio::test(flavor = "multi_thread")]
async fn an_origin_that_is_granted_no_more_is_denied_to_a_plugin_that_runs() {
    let [service, other] =
        [StandIn::start(|_, _| Said::raw(200, "")).await, StandIn::start(|_, _| Said::raw(200, "")).await];
    let one = other.http_grant();
    let both = one.replace(&other.origin(), &format!("{}\", \"{}", other.origin(), service.origin()));
    // Where there are two, a secret says whose it is.
    let placed = format!("key = {{ env = \"PATH\", origins = [\"{}\"] }}", other.origin());
    let config = |grant: &str| {
        let guard = guarded_by(&format!("{}/check", service.origin()), grant, "");
        guard.replace("wall_ms = 20000", "wall_ms = 20000\ncpu_ms = 5000").replace("key = \"PATH\"", &placed)
    };
    let files = Files::new();
    files.write(&config(&both));
    let gateway = files.start().await;
    assert_eq!((status(&gateway, "Hello!").await, service.asked("/check").len()), (200, 1));
    files.write(&config(&one));
    let (taken, facts) = reload(&gateway).await;
    assert_eq!(taken, 200, "{facts}");
    assert_eq!((status(&gateway, "Hello!").await, service.asked("/check").len()), (503, 1));
}

/// The model says the words that the old guard replaces and the new one blocks only when the reload has been answered.
#[tokio::test(flavor = "multi_thread")]
async fn a_running_answer_finishes_on_what_it_began_with() {
    let (files, let_go) = (Files::new(), Arc::new(Semaphore::new(0)));
    let reads = ["The fox met ", "a heron ", "and left."].map(|text| vec![text.to_owned()]);
    let model = one_read::model("tidegate-starter", reads.to_vec(), &let_go).await;
    files.write(&format!("{model}{}", redacts("left")));
    let gateway = files.start().await;
    let mut body = with_model(ask("Tell me a story."));
    body["stream"] = true.into();
    let mut running = gateway.send(gateway.json_request("/v1/chat/completions", &body)).await.into_body();
    let mut text = Vec::new();
    while one_read::texts(&text).is_empty() {
        text.extend_from_slice(&running.frame().await.unwrap().unwrap().into_data().unwrap());
    }
    files.write(&format!("{model}{}", blocks("heron")));
    assert_eq!(reload(&gateway).await.0, 200);
    let_go.add_permits(3);
    text.extend(running.collect().await.unwrap().to_bytes());
    let told = tidegate_tests::events(&text);
    assert_eq!((joined(&told, 0).as_str(), finish_reason(&told, 0)), ("The fox met a heron and [x].", "stop".into()));
    let_go.add_permits(3);
    let new = gateway.stream(ask("Tell me a story.")).await;
    assert_eq!((joined(&new, 0).as_str(), finish_reason(&new, 0)), ("The fox met a ", "content_filter".into()));
}

/// In either config the second guard lets pass what the first leaves of a heron; of a stage of each it would not.
#[tokio::test(flavor = "multi_thread")]
async fn under_load_each_request_has_all_stages_of_one_config() {
    const CHAT: &str = "/v1/chat/completions";
    let upstream = StandIn::start(|_, asked| {
        let seen = asked["messages"][0]["content"].as_str().unwrap_or_default();
        completion(&format!("{seen}, you say; but a heron"))
    })
    .await;
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../plugins/dist/word-guard.wasm");
    let config = |leaves: &str, blocked: &str| {
        let first = redacts("heron").replace("[x]", leaves);
        let second = blocks(blocked).replace("\"word-guard\"", &format!("\"second\"\nfile = {file:?}"));
        format!("{}{first}{second}", upstream.model("tidegate-starter"))
    };
    let configs = [config("amber", "birch"), config("birch", "amber")];
    let files = Files::new();
    files.write(&configs[0]);
    let gateway = files.start().await;
    let reloading = AtomicBool::new(true);
    let asking = || async {
        let mut said = Vec::new();
        while reloading.load(Ordering::Relaxed) {
            let answer = gateway.chat(ask("a heron")).await;
            assert_eq!(answer.status, 200, "{:?}", answer.body);
            said.push(answer.text());
        }
        said
    };
    let reloads = async {
        for config in configs.iter().rev().cycle().take(20) {
            files.write(config);
            assert_eq!(reload(&gateway).await.0, 200);
            // So that some are asked with each.
            let asked = upstream.asked(CHAT).len();
            while upstream.asked(CHAT).len() < asked + 4 {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        }
        reloading.store(false, Ordering::Relaxed);
    };
    let (said, ()) = tokio::join!(join_all((0..4).map(|_| asking())), reloads);
    let said = said.concat();
    for word in ["amber", "birch"] {
        let whole = format!("a {word}, you say; but a {word}");
        assert!(said.contains(&whole), "none was asked with {word}: {said:?}");
    }
    let mixed: Vec<&String> = said.iter().filter(|said| said.contains("amber") == said.contains("birch")).collect();
    assert!(mixed.is_empty(), "{mixed:?}");
}

/// The plugin's file is replaced, nothing else: the watcher sees it.
#[tokio::test(flavor = "multi_thread")]
async fn a_changed_plugin_file_is_taken_by_the_watcher() {
    let files = Files::new();
    let guests = Path::new(env!("CARGO_MANIFEST_DIR")).join("guests/dist");
    let put = |guest: &str| std::fs::copy(guests.join(guest), files.path("guard.wasm")).unwrap();
    put("panics.wasm");
    files.write(&format!("{WATCHED}{GUARD}"));
    let gateway = files.start().await;
    // `honest` refuses this word, `panics` allows it.
    assert_eq!(status(&gateway, "refuse").await, 200);
    put("honest.wasm");
    for _ in 0..400 {
        if status(&gateway, "refuse").await == 400 {
            return;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("the new file was never taken");
}

/// Waits until a question is answered with a status.
async fn becomes(gateway: &Gateway, question: &str, wanted: u16) {
    for _ in 0..400 {
        if status(gateway, question).await == wanted {
            return;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("{question} is never answered {wanted}");
}

/// The component in a file beside the config, as the only stage.
const GUARD: &str = "[[pipeline.stage]]\nplugin = \"guard\"\nfile = \"guard.wasm\"\nstages = [\"prompt-guard\"]\n\
    limits = { wall_ms = 20000, cpu_ms = 5000 }\n";
const WATCHED: &str = "[server]\nwatch = true\n";

/// A config that cannot be taken yet is, once the file that it lacks is there.
#[tokio::test(flavor = "multi_thread")]
async fn the_watcher_sees_the_files_of_a_config_that_was_refused() {
    let files = Files::new();
    files.write(&format!("{WATCHED}{}", blocks("heron")));
    let gateway = files.start().await;
    files.write(&format!("{WATCHED}{GUARD}"));
    // It has rested by then, and was refused, by this or by the watcher.
    assert_eq!(reload(&gateway).await.0, 400);
    tokio::time::sleep(Duration::from_millis(1500)).await;
    assert_eq!(status(&gateway, "a heron").await, 400);
    let guests = Path::new(env!("CARGO_MANIFEST_DIR")).join("guests/dist");
    std::fs::copy(guests.join("honest.wasm"), files.path("guard.wasm")).unwrap();
    becomes(&gateway, "refuse", 400).await;
    becomes(&gateway, "a heron", 200).await;
}

/// Who asked for it has gone when it had seen what is new and not taken it.
#[tokio::test(flavor = "multi_thread")]
async fn the_watcher_takes_what_a_reload_that_was_cut_off_has_seen() {
    let files = Files::new();
    files.write(&format!("{WATCHED}{}", blocks("heron")));
    let gateway = files.start().await;
    files.write(&format!("{WATCHED}{}", blocks("otter")));
    let mut reload = Box::pin(gateway.running.reload());
    let polled = std::future::poll_fn(|context| Poll::Ready(reload.as_mut().poll(context).is_pending()));
    assert!(polled.await, "it loads the plugin");
    drop(reload);
    becomes(&gateway, "an otter", 400).await;
}

/// A reload reads what is spent of budgets.
#[tokio::test(flavor = "multi_thread")]
async fn the_watcher_takes_a_config_again_that_the_absence_of_the_store_kept_out() {
    let Some(database) = Database::new("reload_away") else { return };
    let gate = Gate::to(database.address()).await;
    let files = Files::new();
    let write = |word: &str| {
        let store =
            format!("[store]\npath = {:?}\n[tenants.local]\nbudget = {{ daily = 1000.0 }}\n", files.path("store"));
        files.write(&format!("{WATCHED}{store}{}", blocks(word)));
    };
    write("heron");
    let mut config = Config::load(&files.path("tidegate.toml")).unwrap();
    config.store.as_mut().unwrap().postgres = Some(database.url_by(gate.address));
    let gateway = Gateway::start_with(config).await;
    gate.open.send_replace(false);
    write("otter");
    let (refused, why) = reload(&gateway).await;
    assert!(refused == 503 && why.contains("the database does not answer"), "{refused}: {why}");
    assert_eq!((status(&gateway, "an otter").await, status(&gateway, "a heron").await), (200, 400));
    gate.open.send_replace(true);
    becomes(&gateway, "an otter", 400).await;
}

/// What changes while the models are loaded, say, is neither missed nor taken for what runs.
#[tokio::test(flavor = "multi_thread")]
async fn what_changes_during_the_start_is_seen() {
    let files = Files::new();
    let start_from = async |before: &str, after: &str| {
        files.write(before);
        let config = Config::load(&files.path("tidegate.toml")).unwrap();
        files.write(after);
        Gateway::start_with(config).await
    };
    let gateway = start_from("[pipeline]\n", "[server]\nmax_inflight = 7\n[pipeline]\n").await;
    for _ in 0..2 {
        let (refused, body) = reload(&gateway).await;
        assert!(refused == 400 && body.contains("[server] (max_inflight) has changed"), "{body}");
    }
    let gateway = start_from(&format!("{WATCHED}[pipeline]\n"), &format!("{WATCHED}{}", blocks("otter"))).await;
    becomes(&gateway, "an otter", 400).await;
}

/// A component that changes under a lock is refused by a reload, and the old one goes on.
#[tokio::test(flavor = "multi_thread")]
async fn a_reload_refuses_what_is_not_locked() {
    let files = Files::new();
    let guests = Path::new(env!("CARGO_MANIFEST_DIR")).join("guests/dist");
    let put = |guest: &str| std::fs::copy(guests.join(guest), files.path("guard.wasm")).unwrap();
    put("honest.wasm");
    files.write(GUARD);
    lock(&files, &["--upgrade"]);
    let gateway = files.start().await;
    // `honest` refuses this word, `panics` allows it.
    assert_eq!(status(&gateway, "refuse").await, 400);
    put("panics.wasm");
    let (refused, body) = reload(&gateway).await;
    assert_eq!(refused, 400, "{body}");
    assert!(body.contains("has the digest sha256:") && body.contains("tidegate plugin lock --upgrade"), "{body}");
    assert_eq!(status(&gateway, "refuse").await, 400);
    // So is one that nobody trusted has signed.
    put("honest.wasm");
    let trust = format!("[plugins]\ntrusted_keys = [\"ed25519:{}\"]\n", "ab".repeat(32));
    files.write(&(trust + GUARD));
    let (refused, body) = reload(&gateway).await;
    assert!(refused == 400 && body.contains("plugins.trusted_keys"), "{body}");
    files.write(GUARD);
    put("panics.wasm");
    lock(&files, &["--upgrade", "--allow-more"]);
    assert_eq!(reload(&gateway).await.0, 200);
    assert_eq!(status(&gateway, "refuse").await, 200);
}

/// A reload is for what it takes: a key is revoked whatever became of a file that only the next start reads.
#[tokio::test(flavor = "multi_thread")]
async fn a_reload_goes_on_with_the_authorities_of_the_start() {
    let files = Files::new();
    let authority = |name: &str| {
        let made = rcgen::generate_simple_self_signed(vec![name.to_owned()]).unwrap();
        let der = base64::engine::general_purpose::STANDARD.encode(made.cert.der());
        let pem = format!("-----BEGIN CERTIFICATE-----\n{der}\n-----END CERTIFICATE-----\n");
        std::fs::write(files.path("ca.pem"), pem).unwrap();
    };
    let trust = "[egress]\nca = \"ca.pem\"\n";
    let blocking = |word: &str| files.write(&format!("{trust}{}", blocks(word)));
    authority("one.example");
    blocking("heron");
    let gateway = files.start().await;
    authority("other.example");
    blocking("otter");
    let (taken, facts) = reload(&gateway).await;
    assert_eq!((taken, status(&gateway, "an otter").await), (200, 400), "{facts}");
    for broken in ["no PEM", ""] {
        std::fs::write(files.path("ca.pem"), broken).unwrap();
        assert_eq!(reload(&gateway).await.0, 200, "{broken:?}");
    }
    std::fs::remove_file(files.path("ca.pem")).unwrap();
    blocking("heron");
    let (taken, facts) = reload(&gateway).await;
    assert_eq!((taken, status(&gateway, "a heron").await), (200, 400), "{facts}");
    // Another name is another config.
    authority("one.example");
    std::fs::rename(files.path("ca.pem"), files.path("moved.pem")).unwrap();
    files.write(&format!("{}{}", trust.replace("ca.pem", "moved.pem"), blocks("otter")));
    let (refused, body) = reload(&gateway).await;
    assert!(refused == 400 && body.contains("[egress] (ca) has changed, which needs a restart"), "{body}");
    // At the start there is nothing to go on with.
    blocking("otter");
    assert!(Config::load(&files.path("tidegate.toml")).is_err());
}

/// `tidegate plugin lock`, in this process.
fn lock(files: &Files, options: &[&str]) {
    let config = files.path("tidegate.toml");
    let words = ["tidegate", "plugin", "lock"].into_iter().chain(options.iter().copied());
    let arguments = words.map(Into::into).chain([config.into_os_string()]);
    let cli = tidegate::cli::Cli::try_parse_from(arguments).unwrap();
    let Some(tidegate::cli::Command::Plugin(command)) = cli.command else { panic!("no plugin command") };
    // It has a runtime of its own.
    std::thread::spawn(|| tidegate::plugin::run(command, &mut Vec::new()).unwrap()).join().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn only_an_administrators_key_reloads() {
    let files = Files::new();
    let key = |name: &str, secret: &str| {
        let hash = blake3::hash(secret.as_bytes());
        format!("[[keys]]\nname = \"{name}\"\nhash = \"blake3:{hash}\"\n")
    };
    files.write(&format!("{}{}admin = true\n[pipeline]\n", key("ann", "tg-1"), key("bob", "tg-2")));
    let gateway = files.start().await;
    for (secret, status) in [("tg-1", 403), ("tg-2", 200), ("tg-3", 401)] {
        let request = Request::post(gateway.url("/admin/reload"))
            .header("authorization", format!("Bearer {secret}"))
            .body(Full::<Bytes>::default())
            .unwrap();
        let answer = collect(gateway.send(request).await).await;
        assert_eq!(answer.status, status, "{secret}: {:?}", answer.body);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reload_names_tenants_that_nobody_is_of() {
    let files = Files::new();
    files.write("[pipeline]\n");
    let gateway = files.start().await;
    files.write("[tenants.acme]\nzero_retention = true\n[pipeline]\n");
    let (taken, facts) = reload(&gateway).await;
    assert!(taken == 200 && facts.contains("NOBODY IS OF `acme`") && facts.contains("they are of: `local`"), "{facts}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_without_a_config_file_has_nothing_to_reload() {
    let gateway = Gateway::start("").await;
    let (status, body) = reload(&gateway).await;
    let error: Value = serde_json::from_str(&body).unwrap();
    assert_eq!((status, error["error"]["code"].as_str()), (400, Some("reload_refused")));
}
