//! Each `curl` of the README, the guides and the examples is sent as it stands there, by curl itself, to a server with the
//! config that it is for, and so is the request that the server offers when it starts. Those of `docs/plugins.md` are run
//! with the commands around them, by `host/gateway/tests/guide.rs`.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use tidegate::config::Config;
use tidegate_tests::Gateway;
use tidegate_tests::stand_in::{Said, StandIn, completion, embeddings};

/// A document, what its server is, and what comes back for its commands: in their order, and again where there is more.
struct Row {
    document: &'static str,
    /// In place of the config beside the document.
    config: Option<String>,
    others: Others,
    comes: Vec<Comes>,
}

/// Whether the other servers that a config names are there.
#[derive(PartialEq)]
enum Others {
    There,
    Away,
}

struct Comes {
    status: u16,
    has: &'static [&'static str],
    lacks: &'static str,
    /// Not at once: it is written behind an answer.
    soon: bool,
}

fn page(document: &'static str, config: String, comes: Comes) -> Row {
    Row { document, config: Some(config), others: Others::There, comes: vec![comes] }
}

fn example(document: &'static str, comes: Vec<Comes>) -> Row {
    Row { document, config: None, others: Others::There, comes }
}

/// With the servers that it asks gone.
fn alone(document: &'static str, comes: Vec<Comes>) -> Row {
    Row { others: Others::Away, ..example(document, comes) }
}

fn with(status: u16, has: &'static [&'static str]) -> Comes {
    Comes { status, has, lacks: "\0", soon: false }
}

fn soon(has: &'static [&'static str]) -> Comes {
    Comes { soon: true, ..with(200, has) }
}

fn table() -> Vec<Row> {
    let ended = || with(200, &[r#""finish_reason":"stop""#]);
    let redacted = Comes { lacks: "WebAssembly plugins", ..with(200, &["[redacted]", "data: [DONE]"]) };
    let used = soon(&[r#""user_id":"ann""#, r#""model":"tidegate-starter""#]);
    let cost = Comes { lacks: NO_COST, ..soon(&["organization.costs.result"]) };
    vec![
        page("README.md", String::new(), with(200, &["391"])),
        page("docs/idempotency.md", String::new(), with(200, &["data: [DONE]"])),
        page("docs/streams.md", String::new(), with(200, &["x-tidegate-stream-id: ", "\nid: ", "data: [DONE]"])),
        page("docs/embeddings.md", embedder(), with(200, &[r#""index":1"#, r#""embedding":["#])),
        example("examples/billing/README.md", vec![ended(), used, cost]),
        example("examples/documents/README.md", vec![with(200, &["12 euros"])]),
        example("examples/failover/README.md", vec![with(200, &[r#""model":"chat""#])]),
        alone("examples/failover/README.md", vec![with(200, &[r#""model":"small""#])]),
        example("examples/guards/README.md", vec![redacted]),
        example("examples/keys/README.md", vec![with(200, &["391"])]),
        example("examples/router/README.md", vec![with(200, &[r#""model":"small""#])]),
        example(
            "examples/semantic/README.md",
            vec![with(200, &[r#""model":"starter""#]), soon(&["x-tidegate-answered-by: semantic-cache"])],
        ),
        example("examples/upstream/README.md", vec![with(200, &[r#""model":"remote""#, "Rust"])]),
        example("examples/webhook/README.md", vec![ended(), with(400, &["content_filter"])]),
        alone("examples/webhook/README.md", vec![with(503, &["error"]), with(503, &["error"])]),
    ]
}

const NO_COST: &str = r#""amount":{"value":0.0,"#;

fn embedder() -> String {
    crate::embeddings::model("").replace("name = \"embedding\"", "name = \"embedder\"")
}

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn read(document: &str) -> String {
    std::fs::read_to_string(repository().join(document)).unwrap()
}

/// The commands of a document, each on a line of its own.
fn commands(document: &str) -> Vec<String> {
    let text = read(document).replace("\\\n", " ");
    text.lines().map(str::trim).filter(|line| line.starts_with("curl ")).map(str::to_owned).collect()
}

#[test]
fn no_curl_of_a_document_stands_where_it_is_not_sent() {
    let files = |folder: &str, file: &str| {
        let entries = std::fs::read_dir(repository().join(folder)).unwrap().map(|entry| entry.unwrap().file_name());
        entries.map(|name| format!("{folder}/{}{file}", name.to_str().unwrap())).collect::<Vec<_>>()
    };
    let documents =
        ["README.md".to_owned()].into_iter().chain(files("docs", "")).chain(files("examples", "/README.md"));
    let guides = documents.filter(|document| document.ends_with(".md") && document != "docs/plugins.md");
    for document in guides.filter(|document| !commands(document).is_empty()) {
        assert!(table().iter().any(|row| row.document == document), "{document} has a curl, and no row here");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_curl_of_the_documents_is_answered_as_they_say() {
    if Command::new("curl").arg("--version").output().is_err() {
        tidegate_skipped::skipped!("what README, guides and examples send: curl is not there");
        return;
    }
    crate::usage::clear_of_midnight().await;
    let home = tempfile::tempdir().unwrap();
    let settings = "silent\nshow-error\nnoproxy = \"*\"\nmax-time = 120\nwrite-out = \"\\n%{http_code}\"\n";
    std::fs::write(home.path().join(".curlrc"), settings).unwrap();
    let server = Gateway::start("").await;
    let service = StandIn::start(service).await;
    // In the order of their ports in `config`.
    let there = [server.addr, service.address, service.address, service.address].map(|address| address.to_string());
    let away = [1, 2, 3, 4].map(|port| format!("127.0.0.1:{port}"));
    for row in table() {
        check(&row, if row.others == Others::There { &there } else { &away }, home.path()).await;
    }
}

/// What the examples' other servers say: a check of texts, a model that makes vectors, one that answers.
fn service(path: &str, body: &serde_json::Value) -> Said {
    match path {
        "/check" if body.to_string().contains("secret") => Said::raw(200, r#"{"verdict":"refuse"}"#),
        "/check" => Said::raw(200, r#"{"verdict":"allow"}"#),
        "/v1/embeddings" => embeddings(body),
        _ => completion("Hello."),
    }
}

async fn check(row: &Row, others: &[String; 4], home: &Path) {
    let document = row.document;
    let folder = tempfile::tempdir().unwrap();
    let gateway = Gateway::start_with(config(row, others, folder.path())).await;
    let commands = commands(document);
    assert!(!commands.is_empty() && row.comes.len().is_multiple_of(commands.len()), "{document}: {commands:?}");
    let offered = gateway.running.facts.iter().find_map(|fact| fact.strip_prefix("try       "));
    let offered = offered.unwrap_or_else(|| panic!("{document}: {:?}", gateway.running.facts));
    let answered = with(row.comes[0].status, &[]);
    let documented = commands.iter().map(String::as_str).cycle().zip(&row.comes);
    for (command, comes) in documented.chain([(offered, &answered)]) {
        let command = command.replace("http://127.0.0.1:8080", &gateway.url(""));
        let mut patience = if comes.soon { 600 } else { 0 };
        loop {
            let (status, said) = run(&command, &key(document), home).await;
            let has_all = comes.has.iter().all(|words| said.contains(words));
            if status == comes.status && has_all && !said.contains(comes.lacks) {
                break;
            }
            assert!(patience > 0, "{document}: {command}\n{said}\n{status}");
            patience -= 1;
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }
}

/// The config, in a folder of its own with what lies beside it, so that nothing is written among the examples.
fn config(row: &Row, others: &[String; 4], folder: &Path) -> Config {
    let file = folder.join("tidegate.toml");
    let mut text = row.config.clone().unwrap_or_else(|| {
        let example = repository().join(row.document).parent().unwrap().join(".");
        assert!(Command::new("cp").arg("-r").arg(&example).arg(folder).status().unwrap().success());
        std::fs::read_to_string(&file).unwrap()
    });
    for (port, other) in [8081, 8082, 8000, 9000].iter().zip(others) {
        text = text.replace(&format!("127.0.0.1:{port}"), other);
    }
    // A machine that is busy makes no call of a plugin's fail.
    std::fs::write(&file, text.replace("timeout_ms = 1000\n", "timeout_ms = 20000\n")).unwrap();
    Config::load(&file).unwrap()
}

/// The first key of a document, for the request that the server offers.
fn key(document: &str) -> String {
    let text = read(document);
    let mut words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '-');
    words.find(|word| word.starts_with("tg-example-")).unwrap_or_default().to_owned()
}

/// Runs a command: the status of the answer, and all that it said, with the text of a stream in one piece at the end.
async fn run(command: &str, key: &str, home: &Path) -> (u16, String) {
    let mut shell = Command::new("sh");
    shell.args(["-c", command]).env("CURL_HOME", home).env("TIDEGATE_API_KEY", key);
    let output = tokio::task::spawn_blocking(move || shell.output()).await.unwrap().unwrap();
    let (said, wrong) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{command}\n{said}\n{wrong}");
    let (said, status) = said.rsplit_once('\n').unwrap();
    let events =
        said.lines().filter_map(|line| serde_json::from_str::<serde_json::Value>(line.strip_prefix("data: ")?).ok());
    let text = events.filter_map(|event| event["choices"][0]["delta"]["content"].as_str().map(str::to_owned));
    (status.parse().unwrap(), format!("{said}\n{}", text.collect::<String>()))
}
