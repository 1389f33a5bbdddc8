//! Uses every capability that leads out, as it is told: a tool per function of the host, words with a space between
//! them (or a JSON string of them, as models call tools), the answer printed. As a prompt guard it asks the URL of its config about each prompt, and allows what is
//! answered with 200. With the config `{"salt":true}` it draws four bytes when it is configured; `trap` ends an instance.

wit_bindgen::generate!({
    path: "../../../wit",
    inline: "
        package guests:reaches;
        world reaches {
            include tidegate:plugin/tool-plugin@0.1.0;
            include tidegate:plugin/prompt-guard-plugin@0.1.0;
            import tidegate:plugin/http@0.1.0;
            import tidegate:plugin/secrets@0.1.0;
            import tidegate:plugin/models@0.1.0;
            import tidegate:plugin/vectors@0.1.0;
            import tidegate:plugin/random@0.1.0;
        }
    ",
    world: "guests:reaches/reaches",
    generate_all,
});

use exports::tidegate::plugin::prompt_guard::Prompt;
use exports::tidegate::plugin::{meta, prompt_guard, tool_provider};
use std::cell::RefCell;
use tidegate::plugin::http::{Request, Response, SecretHeader};
use tidegate::plugin::types::{
    Action, Context, Error, Message, Part, Refusal, Role, ToolCall, ToolDef, ToolHints, ToolOutcome, Verdict,
};
use tidegate::plugin::{http, models, random, secrets, vectors};

thread_local! {
    static URL: RefCell<String> = const { RefCell::new(String::new()) };
    static SALT: RefCell<String> = const { RefCell::new(String::new()) };
}

struct Component;

impl meta::Guest for Component {
    fn describe() -> String {
        let named = |name: &str| format!("{{\"name\":\"{name}\",\"reason\":\"as the test asks\"}}");
        let names = ["http", "secrets", "models", "vectors", "random"].map(named).join(",");
        kit::descriptor_with("reaches", false, &format!(",\"capabilities\":[{names}]"))
    }

    /// `{"url":"..."}` or `{"salt":true}` and nothing else.
    fn configure(config: String) -> Result<(), Error> {
        if config.contains("salt") {
            let drawn = drawn(4)?;
            SALT.with(|kept| kept.replace(drawn));
        }
        let url = config.split('"').nth(3).unwrap_or_default();
        URL.with(|kept| *kept.borrow_mut() = url.to_owned());
        Ok(())
    }
}

impl prompt_guard::Guest for Component {
    fn inspect_prompt(_: Context, _: Prompt) -> Result<Verdict, Error> {
        let url = URL.with(|url| url.borrow().clone());
        let answer = http::send(&get(&url))?;
        let refusal = Refusal { code: "asked".into(), public_message: "no".into(), private_reason: None };
        let action = if answer.status == 200 { Action::Allow } else { Action::Refuse(refusal) };
        Ok(Verdict { action, findings: Vec::new(), attrs: Vec::new() })
    }
}

impl tool_provider::Guest for Component {
    fn list_tools(_: Context) -> Result<Vec<ToolDef>, Error> {
        let hints = ToolHints { read_only: true, destructive: false, idempotent: false, open_world: true };
        let tool = |name: &str| ToolDef {
            name: name.into(),
            description: String::new(),
            input_schema: "{\"type\":\"string\"}".into(),
            hints,
            attrs: Vec::new(),
        };
        Ok(["secret", "get-all", "random", "complete", "salt", "trap"].map(tool).into())
    }

    fn call_tool(_: Context, call: ToolCall) -> Result<ToolOutcome, Error> {
        let quoted = call.arguments.strip_prefix('"').and_then(|rest| rest.strip_suffix('"'));
        let words: Vec<&str> = quoted.unwrap_or(&call.arguments).split(' ').collect();
        let content = run(&call.name, &words)?;
        Ok(ToolOutcome { call_id: call.id, content, structured: None, is_error: false })
    }
}

fn run(function: &str, words: &[&str]) -> Result<String, Error> {
    let word = |index: usize| words.get(index).copied().unwrap_or_default();
    let texts: Vec<String> = words.iter().skip(1).map(|word| word.to_string()).collect();
    match function {
        "get" => http::send(&get(word(0))).map(show),
        "header" => {
            let header = http::Header { name: word(1).into(), value: word(2).into() };
            http::send(&Request { headers: vec![header], ..get(word(0)) }).map(show)
        }
        "secret" => {
            let header = SecretHeader { name: word(1).into(), prefix: "Bearer ".into(), secret: word(2).into() };
            http::send(&Request { secret_headers: vec![header], ..get(word(0)) }).map(show)
        }
        "get-all" => {
            let requests: Vec<Request> = words.iter().map(|url| get(url)).collect();
            let shown = |answer: Result<Response, Error>| answer.map_or_else(|e| format!("{e:?}"), show);
            Ok(http::send_all(&requests).into_iter().map(shown).collect::<Vec<_>>().join("|"))
        }
        "secrets" => Ok(secrets::names().join(",")),
        "random" => drawn(word(0).parse().unwrap_or(0)),
        "salt" => Ok(SALT.with(|salt| salt.borrow().clone())),
        "trap" => panic!("as the test asked"),
        "embed" => models::embed(word(0), &texts).map(|vectors| format!("{vectors:?}")),
        "complete" => {
            let parts = vec![Part::Text(texts.join(" "))];
            let message = Message { id: "m0".into(), role: Role::User, name: None, parts, attrs: Vec::new() };
            models::complete(word(0), &[message], "{\"max_tokens\":24}").map(|reply| format!("{reply:?}"))
        }
        "classify" => models::classify(word(0), &texts).map(|labels| format!("{labels:?}")),
        "put" => {
            let payload = vec![("kind".into(), "\"test\"".into())];
            let entry = vectors::Entry { id: word(1).into(), vector: numbers(&words[2..]), payload };
            vectors::put(word(0), &[entry]).map(|()| "put".into())
        }
        "search" => vectors::search(word(0), &numbers(&words[1..]), 3, &[])
            .map(|hits| hits.iter().map(|hit| format!("{}:{:.2}", hit.id, hit.score)).collect::<Vec<_>>().join(",")),
        "forget" => vectors::delete(word(0), &texts).map(|count| count.to_string()),
        _ => Err(Error::Unsupported(function.into())),
    }
}

fn drawn(len: u32) -> Result<String, Error> {
    random::bytes(len).map(|bytes| format!("{bytes:02x?}"))
}

fn get(url: &str) -> Request {
    Request {
        method: "GET".into(),
        url: url.into(),
        headers: Vec::new(),
        secret_headers: Vec::new(),
        body: Vec::new(),
        timeout_ms: 0,
    }
}

fn show(answer: Response) -> String {
    let cut = if answer.truncated { " (cut)" } else { "" };
    format!("{} {}{cut}", answer.status, String::from_utf8_lossy(&answer.body))
}

fn numbers(words: &[&str]) -> Vec<f32> {
    words.iter().filter_map(|word| word.parse().ok()).collect()
}

export!(Component);
