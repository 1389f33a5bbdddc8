//! Real clients against a real gateway.

use std::ffi::OsStr;
use std::process::Command;
use std::sync::OnceLock;
use tidegate_tests::postgres::Database;
use tidegate_tests::{BARE, Gateway};

/// The `openai` package. `TIDEGATE_TEST_PYTHON` names an interpreter that has it (`.ci/run` makes one); without
/// it this test makes an environment of its own, and says loudly when it cannot.
#[tokio::test(flavor = "multi_thread")]
async fn the_openai_package_is_served() {
    let Some(python) = tokio::task::spawn_blocking(python_with_openai).await.unwrap() else { return };
    let (gateway, bare) = (Gateway::start("").await, Gateway::start(BARE).await);
    let (url, bare_url) = (gateway.url("/v1"), bare.url("/v1"));
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/clients/openai_client.py");
    let run = move || Command::new(python).args([script, &url, &bare_url, tidegate::bundled::STARTER_NAME]).output();
    let output = tokio::task::spawn_blocking(run).await.unwrap().unwrap();
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{out}\n{err}");
    assert!(out.contains("ok models"), "{out}");
}

/// The same package, with a model that makes vectors.
#[tokio::test(flavor = "multi_thread")]
async fn the_openai_package_is_given_vectors() {
    let Some(python) = tokio::task::spawn_blocking(python_with_openai).await.unwrap() else { return };
    let gateway = Gateway::start(&format!("{}{BARE}", super::embeddings::model(""))).await;
    let url = gateway.url("/v1");
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/clients/openai_embeddings.py");
    let expected = concat!(env!("CARGO_MANIFEST_DIR"), "/fixtures/models/expected/embedding.json");
    let run = move || Command::new(python).args([script, &url, "embedding", expected]).output();
    let output = tokio::task::spawn_blocking(run).await.unwrap().unwrap();
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && out.contains("ok errors"), "{out}\n{err}");
}

/// The same package, with what is kept: conversations and responses, in SQLite.
#[tokio::test(flavor = "multi_thread")]
async fn the_openai_package_finds_its_conversations_again() {
    let kept = super::conversations::Keeping::start("[pipeline]\n").await;
    finds_conversations_again(kept.gateway).await;
}

/// And in Postgres.
#[tokio::test(flavor = "multi_thread")]
async fn the_openai_package_finds_its_conversations_again_in_postgres() {
    let Some(database) = Database::new("clients") else { return };
    let folder = tempfile::tempdir().unwrap();
    finds_conversations_again(database.gateway("", folder.path()).await).await;
}

async fn finds_conversations_again(kept: Gateway) {
    let Some(python) = tokio::task::spawn_blocking(python_with_openai).await.unwrap() else { return };
    let bare = Gateway::start(BARE).await;
    let (url, bare_url) = (kept.url("/v1"), bare.url("/v1"));
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/clients/openai_responses.py");
    let run = move || Command::new(python).args([script, &url, tidegate::bundled::STARTER_NAME, &bare_url]).output();
    let output = tokio::task::spawn_blocking(run).await.unwrap().unwrap();
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{out}\n{err}");
    assert!(out.contains("ok not_kept"), "{out}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_openai_package_understands_limits() {
    let Some(python) = tokio::task::spawn_blocking(python_with_openai).await.unwrap() else { return };
    let hash = blake3::hash(b"tg-1");
    let limits = "{ requests_per_minute = 1, tokens_per_minute = 10000 }";
    let config = format!("[[keys]]\nname = \"k\"\nhash = \"blake3:{hash}\"\nlimits = {limits}\n{BARE}");
    let gateway = Gateway::start(&config).await;
    let url = gateway.url("/v1");
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/clients/limits_client.py");
    let run = move || Command::new(python).args([script, &url, tidegate::bundled::STARTER_NAME, "tg-1"]).output();
    let output = tokio::task::spawn_blocking(run).await.unwrap().unwrap();
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && out.contains("ok limits"), "{out}\n{err}");
}

/// Another's validator of OpenAPI documents, by the official schemas.
#[tokio::test(flavor = "multi_thread")]
async fn the_document_of_the_api_is_openapi() {
    let Some(python) = tokio::task::spawn_blocking(python_with_openai).await.unwrap() else { return };
    let gateway = Gateway::start(BARE).await;
    let url = gateway.url("/openapi.json");
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/clients/openapi.py");
    let run = move || Command::new(python).args([script, &url]).output();
    let output = tokio::task::spawn_blocking(run).await.unwrap().unwrap();
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && out.contains("ok openapi"), "{out}\n{err}");
}

/// Of the packages, which are in the environment's name, so that none of an older checkout is taken for it.
const OPENAI: &str = "openai==3.52.0";
const VALIDATOR: &str = "openapi-spec-validator==0.9.0";

/// An interpreter that has them; looked for, and made, by one test for all.
fn python_with_openai() -> Option<String> {
    static PYTHON: OnceLock<Option<String>> = OnceLock::new();
    PYTHON.get_or_init(|| std::env::var("TIDEGATE_TEST_PYTHON").ok().or_else(environment)).clone()
}

fn environment() -> Option<String> {
    let name = format!("tidegate-tests-{OPENAI}-{VALIDATOR}").replace("==", "-");
    let venv = std::env::temp_dir().join(name);
    let python = venv.join("bin/python");
    let run = |program: &OsStr, args: &[&OsStr]| {
        Command::new(program).args(args).output().is_ok_and(|output| output.status.success())
    };
    let has_both = || run(python.as_ref(), &["-c", "import openai, openapi_spec_validator"].map(OsStr::new));
    if !has_both() {
        run("python3".as_ref(), &["-m".as_ref(), "venv".as_ref(), venv.as_ref()]);
        run(python.as_ref(), &["-m", "pip", "install", "--quiet", OPENAI, VALIDATOR].map(OsStr::new));
    }
    if has_both() {
        return Some(python.to_string_lossy().into_owned());
    }
    tidegate_skipped::skipped!("real clients, since the openai package could not be installed");
    None
}
