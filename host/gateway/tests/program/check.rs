//! `tidegate check`: what it says of a config.

use super::{Server, fixture, run, write};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

#[test]
fn check_says_what_is_wrong_and_where() {
    let folder = tempfile::tempdir().unwrap();
    let stage = |body: &str| format!("[[pipeline.stage]]\nplugin = \"pii-guard\"\n{body}");
    let key = |name: &str| format!("[[keys]]\nname = \"{name}\"\nhash = \"blake3:{}\"\n", "ab".repeat(32));
    let events = |receiver: &str| format!("[store]\npath = \"data\"\n[store.events]\n{receiver}\n");
    let cases = [
        ("[server]\nlisen = \"127.0.0.1:1\"\n".to_owned(), vec!["line 2", "did you mean `listen`?"]),
        ("[server]\nlisten = \":8080\"\n".to_owned(), vec!["line 2", "`:8080`", "write it as 127.0.0.1:8080"]),
        (
            "[[models]]\nname = \"auto\"\nupstream = \"http://h\"\n[[pipeline.stage]]\nplugin = \"tier-router\"\n"
                .to_owned(),
            vec!["`auto`", "another name"],
        ),
        ("[[pipeline.stage]]\nplugin = \"pii-gard\"\n".to_owned(), vec!["pii-gard", "calculator"]),
        // It could put a message that is taken for a summary of the server's.
        (
            "[[pipeline.stage]]\nplugin = \"conversation\"\nfile = \"x.wasm\"\n".to_owned(),
            vec!["`conversation`", "another name"],
        ),
        (stage("file = \"missing.wasm\"\n"), vec!["missing.wasm"]),
        (stage("[pipeline.stage.config]\nkinds = 7\n"), vec!["pii-guard", "kinds"]),
        (stage("[pipeline.stage.config]\nactoin = \"flag\"\n"), vec!["actoin", "action"]),
        ("[[models]]\nname = \"m\"\npath = \"nowhere\"\n".to_owned(), vec!["model `m`", "nowhere", "config.json"]),
        (
            "[[pipeline.stage]]\nplugin = \"folder-retriever\"\n".to_owned(),
            vec!["folder-retriever", "kv_kib = 1024", "grants"],
        ),
        (stage("stages = []\n"), vec!["pii-guard", "`stages` is empty"]),
        (stage("streamed = \"hold\"\n"), vec!["stage 1 (`pii-guard`)", "`streamed` is for output guards"]),
        (stage("top_k = 3\n"), vec!["`pii-guard`", "`top_k` is for retrievers and memories"]),
        (stage("min_score = 0.5\n"), vec!["`pii-guard`", "`min_score` is for retrievers"]),
        (
            stage("stages = [\"prompt-guard\"]\nlimits = { holdback_bytes = 9 }\n"),
            vec!["`pii-guard`", "`limits.holdback_bytes` is for stream guards"],
        ),
        (
            stage("grants = { http = { origins = [], concurrency = 0 } }\n"),
            vec!["`pii-guard`", "http.concurrency is 0"],
        ),
        ("[engine]\nkv_cache_mib = 99999999999\n".to_owned(), vec!["kv_cache_mib", "MiB of memory"]),
        ("[compute]\nthreads = 100000\n".to_owned(), vec!["compute.threads is 100000"]),
        ("[server]\nmax_inflight = 0\n".to_owned(), vec!["server.max_inflight is 0"]),
        ("[server.tls]\ncert = \"none.pem\"\nkey = \"none.pem\"\n".to_owned(), vec!["none.pem"]),
        ("[[models]]\nname = \"m\"\nupstream = \"ftp://x\"\n".to_owned(), vec!["model `m`"]),
        (key("first") + &key("second"), vec!["first", "second"]),
        // What it is, is known once it is loaded.
        (
            format!("{}plugins = [\"pii-guard\"]\n{}", key("k"), stage("")),
            vec!["key `k`: `plugins` is about tools", "`pii-guard` is none"],
        ),
        (
            format!("[tenants.a.projects.web]\nplugins = [\"pii-guard\"]\n{}", stage("")),
            vec!["tenants.a.projects.web: `plugins` is about tools", "`pii-guard` is none"],
        ),
        (events("webhook = \"billing\""), vec!["store.events.webhook"]),
        (events("nats = \"http://x\""), vec!["store.events.nats"]),
        (
            events("kafka = { brokers = [\"h:1\"], tls = true, ca = \"none.pem\" }"),
            vec!["store.events.kafka.ca", "none.pem"],
        ),
        ("[shared]\nurl = \"http://x\"\n".to_owned(), vec!["shared.url", "Valkey or Redis"]),
        ("[shared]\nurl = \"rediss://x\"\nca = \"none.pem\"\n".to_owned(), vec!["shared.ca", "none.pem"]),
        ("[egress]\nca = \"none.pem\"\n".to_owned(), vec!["egress.ca", "none.pem"]),
        ("[egress]\nca = \"tidegate.toml\"\n".to_owned(), vec!["egress.ca", "holds no certificate"]),
    ];
    for (text, expected) in cases {
        let file = write(folder.path(), "tidegate.toml", &text);
        let (good, said) = run(&["check", file.to_str().unwrap()]);
        assert!(!good, "{text}");
        for part in expected {
            assert!(said.contains(part), "{part} in {said}");
        }
        // What would be done about it is in the config, and nowhere else.
        assert!(!said.contains("on_error"), "{said}");
        assert!(said.matches("os error").count() < 2, "causes are said once: {said}");
    }
}

#[test]
fn check_says_all_that_is_wrong_and_each_of_it_once() {
    let folder = tempfile::tempdir().unwrap();
    let text = "[[models]]\nname = \"here\"\npath = \"nowhere\"\n[[models]]\nname = \"there\"\npath = \"elsewhere\"\n\
        [[pipeline.stage]]\nplugin = \"pii-guard\"\nconfig = { actoin = \"flag\" }\n\
        [[pipeline.stage]]\nplugin = \"calculator\"\n\
        [[pipeline.stage]]\nplugin = \"word-guard\"\nconfig = { action = 7 }\n";
    let file = write(folder.path(), "tidegate.toml", text);
    let (good, said) = run(&["check", file.to_str().unwrap()]);
    assert!(!good && said.contains("4 things are wrong:"), "{said}");
    for once in ["nowhere", "elsewhere", "pipeline.stage 1 (`pii-guard`)", "pipeline.stage 3 (`word-guard`)"] {
        let lines = said.lines().filter(|line| line.starts_with("- ") && line.contains(once));
        assert_eq!(lines.count(), 1, "{once} in {said}");
    }
}

/// Keys, what cannot work together, models and plugins: an operator who mends one of them need not ask again for the next.
#[test]
fn check_says_what_is_wrong_wherever_that_is() {
    let folder = tempfile::tempdir().unwrap();
    let text = format!(
        "[server]\nlisen = \"x\"\n[engine]\nmax_seqs = 0\n[[models]]\nname = \"m\"\npath = \"nowhere\"\n\
         [[keys]]\nname = \"k\"\nhash = \"x\"\nmodels = [\"n\"]\n\
         [[keys]]\nname = \"l\"\nhash = \"blake3:{}\"\nplugins = [\"word-guard\"]\n\
         [[pipeline.stage]]\nplugin = \"pii-gard\"\n\
         [[pipeline.stage]]\nplugin = \"nobodys\"\ntopk = 3\n\
         [[pipeline.stage]]\nplugin = \"word-gard\"\nlimits = {{ memory_mib = 0 }}\n\
         [[pipeline.stage]]\nplugin = \"calculater\"\n\
         [[pipeline.stage]]\nplugin = \"word-guard\"\nconfig = {{ action = 7 }}\ntop_k = 3\n",
        "ab".repeat(32)
    );
    let file = write(folder.path(), "tidegate.toml", &text);
    let (good, said) = run(&["check", file.to_str().unwrap()]);
    let told: Vec<&str> = said.lines().filter(|line| line.starts_with("- ")).collect();
    let expected = [
        "server.lisen (line 2): unknown field `lisen`; did you mean `listen`?",
        "pipeline.stage 2.topk (line 20): unknown field `topk`; did you mean `top_k`?",
        "stage `word-gard`: limits.memory_mib is 0",
        "key `k`: `hash` must be",
        "key `k`: there is no model `n`",
        "engine.max_seqs is 0",
        "model `m` cannot be loaded",
        "pipeline.stage 1 (`pii-gard`): no plugin `pii-gard` is shipped",
        "pipeline.stage 4 (`calculater`): no plugin",
        "pipeline.stage 5 (`word-guard`): `top_k` is for retrievers and memories",
        "key `l`: `plugins` is about tools",
        "pipeline.stage 5 (`word-guard`): ",
    ];
    assert!(!good && said.contains(&format!("{} things are wrong:", expected.len())), "{said}");
    assert_eq!(told.len(), expected.len(), "{said}");
    for (line, expected) in told.iter().zip(expected) {
        assert!(line.starts_with(&format!("- {expected}")), "{line} for {expected}");
    }
}

/// A config that would be refused alone, and one that would not.
#[test]
fn what_looks_at_a_config_sees_it_with_what_its_server_is_started_with() {
    let folder = tempfile::tempdir().unwrap();
    let open = "[server]\nlisten = \"0.0.0.0:8080\"\n[store]\npath = \"data\"\n[pipeline]\n";
    let file = write(folder.path(), "tidegate.toml", open);
    let file = file.to_str().unwrap();
    for command in [&["check"][..], &["audit"], &["plugin", "lock"]] {
        let refused = |more: &[&str]| run(&[command, &[file], more].concat()).1.contains("tidegate key NAME");
        assert_eq!((refused(&[]), refused(&["--listen", "127.0.0.1:0"])), (true, false), "{command:?}");
    }
    let (good, said) = run(&["check", file, "--listen", "127.0.0.1:0", "--model", "m=nowhere"]);
    assert!(!good && said.contains("model `m`") && said.contains("nowhere"), "{said}");
}

/// A misspelt tenant, and a price that nobody keeps the books for: no errors, since it may be meant so.
#[test]
fn what_of_a_config_holds_for_nobody_is_told_by_check_and_by_the_start() {
    let folder = tempfile::tempdir().unwrap();
    let key = format!("[[keys]]\nname = \"k\"\ntenant = \"acme\"\nhash = \"blake3:{}\"\n", "ab".repeat(32));
    let tenant = "[tenants.acme-corp]\nzero_retention = true\n";
    let model = "[[models]]\nname = \"m\"\npath = \"bundled\"\nprice = { input = 1, output = 2 }\n";
    let text = format!("[server]\nlisten = \"127.0.0.1:0\"\n{key}{tenant}{model}[pipeline]\n");
    let file = write(folder.path(), "tidegate.toml", &text);
    let (good, said) = run(&["check", file.to_str().unwrap()]);
    let server = Server::start(&["--config", file.to_str().unwrap()]);
    assert!(good, "{said}");
    for said in [said, server.facts.join("\n")] {
        assert!(said.contains("NOBODY IS OF `acme-corp`") && said.contains("they are of: `acme`"), "{said}");
        assert!(said.contains("BILL NOTHING: there is one, of model `m`"), "{said}");
    }
    let file = write(folder.path(), "tidegate.toml", &format!("{text}[store]\npath = \"data\"\n"));
    let (good, said) = run(&["check", file.to_str().unwrap()]);
    assert!(good && said.contains("(beside keys of the store, which is not asked)"), "{said}");
    assert!(!said.contains("BILL NOTHING"), "{said}");
}

/// It means something to routers only.
#[test]
fn without_a_router_auto_is_a_name_as_any_other() {
    let folder = tempfile::tempdir().unwrap();
    let key = format!("[[keys]]\nname = \"k\"\nhash = \"blake3:{}\"\nmodels = [\"auto\"]\n", "ab".repeat(32));
    let model = "[[models]]\nname = \"auto\"\nupstream = \"http://h\"\n";
    let file = write(folder.path(), "tidegate.toml", &format!("{model}{key}"));
    let (good, said) = run(&["check", file.to_str().unwrap()]);
    assert!(good, "{said}");
}

/// Where the config is checked need not be where it serves.
#[test]
fn check_says_what_this_machine_has_not() {
    let folder = tempfile::tempdir().unwrap();
    let file = write(folder.path(), "tidegate.toml", "[store]\npath = \"tidegate.toml/data\"\n[pipeline]\n");
    let (good, said) = run(&["check", file.to_str().unwrap()]);
    assert!(good && said.contains("tidegate.toml/data of store.path cannot be made here"), "{said}");
    assert!(said.contains("tidegate.toml is no folder"), "{said}");
    let file = write(folder.path(), "tidegate.toml", "[store]\npath = \"new/data\"\n[pipeline]\n");
    let (good, said) = run(&["check", file.to_str().unwrap()]);
    assert!(good && !said.contains("cannot be made") && !folder.path().join("new").exists(), "{said}");
}

/// The server's environment may be another one.
#[test]
fn check_says_which_variables_are_not_set() {
    let folder = tempfile::tempdir().unwrap();
    let text = "[store]\npath = \"data\"\npostgres_env = \"TIDEGATE_TEST_UNSET_A\"\n[store.events]\n\
                webhook = \"https://billing.example/\"\nsecret_env = \"TIDEGATE_TEST_UNSET_B\"\n\
                [shared]\nurl = \"redis://h\"\npassword_env = \"TIDEGATE_TEST_UNSET_C\"\n[pipeline]\n\
                [[models]]\nname = \"far\"\nupstream = \"http://h\"\napi_key_env = \"TIDEGATE_TEST_UNSET_D\"\n";
    let file = write(folder.path(), "tidegate.toml", text);
    let (good, said) = run(&["check", file.to_str().unwrap()]);
    assert!(good, "{said}");
    for part in [
        "A of store.postgres_env",
        "B of store.events.secret_env",
        "C of shared.password_env",
        "D of models.api_key_env (model `far`)",
    ] {
        let line = format!("$TIDEGATE_TEST_UNSET_{part} is not set here, and a server would not start without");
        assert!(said.contains(&line), "{part} in {said}");
    }
}

/// A copy of a model's folder in `folder`, with another `tokenizer.json`.
fn with_tokenizer(folder: &Path, model: &str, change: impl FnOnce(&mut Value)) -> PathBuf {
    let copy = folder.join(model);
    std::fs::create_dir(&copy).unwrap();
    for entry in std::fs::read_dir(fixture(model)).unwrap().map(Result::unwrap) {
        std::fs::copy(entry.path(), copy.join(entry.file_name())).unwrap();
    }
    let path = copy.join("tokenizer.json");
    let mut tokenizer = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    change(&mut tokenizer);
    std::fs::write(path, tokenizer.to_string()).unwrap();
    copy
}

/// A config of a copy of the fixture whose tokenizer has a token that the model has no row for.
fn with_a_token_too_many(folder: &Path, content: &str, special: bool) -> PathBuf {
    let model = with_tokenizer(folder, "qwen3", |tokenizer| {
        let mut token = tokenizer["added_tokens"][0].clone();
        (token["id"], token["content"], token["special"]) = (json!(384), json!(content), json!(special));
        tokenizer["added_tokens"].as_array_mut().unwrap().push(token);
    });
    let text = format!("[[models]]\nname = \"q\"\npath = {model:?}\n[pipeline]\n");
    write(folder, "tidegate.toml", &text)
}

/// Else each prompt that has such a token would be refused, as if its caller had made it up.
#[test]
fn a_tokenizer_with_more_tokens_than_the_model_has_rows_is_refused_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let file = with_a_token_too_many(folder.path(), "padding", false);
    let file = file.to_str().unwrap();
    for command in [&["check", file][..], &["serve", "--listen", "127.0.0.1:0", "--config", file]] {
        let (good, said) = run(command);
        assert!(!good, "{command:?}: {said}");
        for part in ["model `q`", "tokenizer.json", "385 tokens", "rows for 384", "padding", "download"] {
            assert!(said.contains(part), "{command:?}: {part} in {said}");
        }
    }
}

/// Published folders have such tokens; callers cannot write them, but a template may.
#[test]
fn a_control_token_too_many_is_in_nobodys_way_unless_the_template_writes_it() {
    let folder = tempfile::tempdir().unwrap();
    let file = with_a_token_too_many(folder.path(), "<pad>", true);
    let check = || run(&["check", file.to_str().unwrap()]);
    let (good, said) = check();
    assert!(good, "{said}");
    write(&folder.path().join("qwen3"), "chat_template.jinja", "<pad>{{ messages[0].content }}");
    let (good, said) = check();
    assert!(!good && said.contains("<pad>") && said.contains("chat template"), "{said}");
}

#[test]
fn check_says_which_words_on_a_models_text_cannot_be_followed() {
    let folder = tempfile::tempdir().unwrap();
    let check = |model: &str, more: &str| {
        let path = fixture(model);
        let text = format!("[[models]]\nname = \"m\"\npath = {path:?}\n{more}\n[pipeline]\n");
        run(&["check", write(folder.path(), "tidegate.toml", &text).to_str().unwrap()])
    };
    write(folder.path(), "own.jinja", "{{ messages[0].content }}");
    let (good, said) = check("qwen3", "tool_format = \"none\"\nchat_template = \"own.jinja\"");
    assert!(good, "{said}");
    for (model, more, why) in [
        ("qwen3", "chat_template = \"none.jinja\"", "none.jinja: no such file"),
        ("embedding", "chat_template = \"own.jinja\"", "`chat_template` is for models that answer chats"),
        ("embedding", "tool_format = \"hermes\"", "`tool_format` is for models that answer chats"),
    ] {
        let (good, said) = check(model, more);
        assert!(!good && said.contains("model `m` cannot be loaded") && said.contains(why), "{said}");
    }
}

/// Nothing is wrong with them; but somebody may think that they do something.
#[test]
fn check_says_which_grants_do_nothing_and_that_nothing_leaves_by_them() {
    let folder = tempfile::tempdir().unwrap();
    let http = "http = { origins = [\"https://a.example\"] }, content = true";
    let text = format!(
        "[[pipeline.stage]]\nplugin = \"calculator\"\ngrants = {{ kv_kib = 64, {http}, random = true }}\n\
         [[pipeline.stage]]\nplugin = \"webhook-guard\"\nconfig = {{ url = \"https://a.example/\" }}\n\
         grants = {{ {http}, kv_kib = 64 }}\n\
         [[pipeline.stage]]\nplugin = \"semantic-cache\"\n[pipeline.stage.grants]\nkv_kib = 64\n\
         vectors = {{ answers = \"write\" }}\nmodels = {{ embedder = \"far\", other = \"near\" }}\n\
         [[models]]\nname = \"far\"\nupstreams = [\"https://b.example/v1\", \"http://c.example:8000\"]\n\
         [[models]]\nname = \"near\"\npath = \"bundled\"\n"
    );
    let file = write(folder.path(), "tidegate.toml", &text);
    let (good, said) = run(&["check", file.to_str().unwrap()]);
    assert!(good, "{said}");
    for part in [
        "calculator uses nothing of these grants, which can go: kv_kib, http, content, random",
        "webhook-guard MAY SEND WHAT IT SEES TO https://a.example",
        "semantic-cache MAY SEND WHAT IT SEES TO https://b.example, http://c.example:8000 by its model `embedder`",
    ] {
        assert!(said.contains(part), "{part} in {said}");
    }
    assert!(!said.contains("calculator MAY SEND") && !said.contains("model `other`"), "{said}");
}

/// Each request of it that sends one is denied, which nobody would expect of a grant that loads.
#[test]
fn check_says_which_plugin_is_denied_its_secrets_and_why() {
    let folder = tempfile::tempdir().unwrap();
    let guest = |name: &str| Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../../tests/guests/dist/{name}.wasm"));
    let stage = |name: &str, more: &str| {
        format!(
            "[[pipeline.stage]]\nplugin = \"{name}\"\nfile = {:?}\nstages = [\"prompt-guard\"]\n\
             grants = {{ http = {{ origins = [\"https://a.example\"] }}, content = true, \
              secrets = {{ key = \"PATH\" }}{more} }}\n",
            guest(name)
        )
    };
    let all = ", random = true, models = { small = \"tidegate-starter\" }, vectors = { notes = \"read\" }";
    for (name, more, is_denied) in [("conceals", "", true), ("reaches", all, false)] {
        let file = write(folder.path(), "tidegate.toml", &stage(name, more));
        let (good, said) = run(&["check", file.to_str().unwrap()]);
        assert!(good, "{said}");
        let denied =
            format!("{name} is denied each secret: its descriptor does not name `secrets` among its `capabilities`");
        assert_eq!(said.contains(&denied), is_denied, "{said}");
        assert!(!said.contains("uses nothing"), "a grant that is denied is not idle: {said}");
    }
}

#[test]
fn check_says_where_a_guard_would_withhold_more_than_its_stage_lets_it() {
    let folder = tempfile::tempdir().unwrap();
    let guest = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/guests/dist/watches.wasm");
    let stage = |more: &str| format!("[[pipeline.stage]]\nplugin = \"watches\"\nfile = {guest:?}\n{more}");
    for (more, warns) in
        [("", true), ("limits = { holdback_bytes = 4095 }\n", true), ("limits = { holdback_bytes = 4096 }\n", false)]
    {
        let file = write(folder.path(), "tidegate.toml", &stage(more));
        let (good, said) = run(&["check", file.to_str().unwrap()]);
        assert!(good, "{said}");
        assert_eq!(said.contains("watches MAY WITHHOLD 4096 BYTES OF A STREAM"), warns, "{more}: {said}");
    }
}

#[test]
fn check_says_which_stage_never_has_the_instances_that_it_asks_for() {
    let folder = tempfile::tempdir().unwrap();
    let stage = |name: &str, more: &str| format!("[[pipeline.stage]]\nplugin = \"{name}\"\n{more}\n");
    let asks = "config = { url = \"https://a.example/\" }\ngrants = { http = { origins = [\"https://a.example\"] }, content = true }";
    let keeper = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/guests/dist/remembers.wasm");
    // Whose calls wait where it keeps that in the store, which nobody asks here.
    let keeps = format!("file = {keeper:?}\ngrants = {{ kv_kib = 4 }}");
    let (few, none) = ("[plugins]\ninstances = 600\nwaiting_instances = 299\n", "");
    let in_store = |key: &str| format!("[store]\npath = \"data\"\n{few}{key} = \"store\"\n");
    for (plugins, name, more, asked, told) in [
        (none, "calculator", "", 256, None),
        (none, "calculator", "", 257, Some("plugins.instances allows 256 of")),
        (none, "webhook-guard", asks, 512, None),
        (few, "webhook-guard", asks, 300, Some("plugins.waiting_instances allows 299 of")),
        (few, "calculator", "", 300, None),
        (none, "remembers", &keeps, 300, Some("plugins.instances allows 256 of")),
        (few, "remembers", &keeps, 300, None),
        (&in_store("kv"), "remembers", &keeps, 300, Some("plugins.waiting_instances allows 299 of")),
        (&in_store("vectors"), "remembers", &keeps, 300, None),
    ] {
        let text = format!("{plugins}{}limits = {{ instances = {asked} }}\n", stage(name, more));
        let (good, said) = run(&["check", write(folder.path(), "tidegate.toml", &text).to_str().unwrap()]);
        assert!(good, "{said}");
        let remark =
            told.map(|told| format!("{name} NEVER HAS limits.instances = {asked} INSTANCES: {told} all plugins"));
        assert_eq!(said.contains("NEVER HAS"), remark.is_some(), "{said}");
        assert!(remark.is_none_or(|remark| said.contains(&remark)), "{said}");
    }
}
