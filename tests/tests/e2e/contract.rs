//! The document of the API against the answers: whatever is asked, right or wrong, the status, the type, the headers and
//! the body are among what `/openapi.json` describes, and no member of a body is left undescribed.

pub mod good;
mod kept;
mod wrong;

use hyper::{Method, Request};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use tidegate_tests::schema::Schemas;
use tidegate_tests::{Answer, Gateway, collect};

/// A gateway, its document, and which of what that describes was seen.
pub struct Contract<'a> {
    pub gateway: &'a Gateway,
    pub document: Value,
    /// Operation, status, media type.
    pub seen: BTreeSet<(String, String, String)>,
    /// Answers that are not as described; all of them are told at the end.
    wrong: Vec<String>,
}

/// One request.
#[derive(Clone)]
pub struct Ask {
    method: Method,
    /// As the document has it.
    path: &'static str,
    url: String,
    key: &'static str,
    headers: Vec<(&'static str, String)>,
    body: Option<String>,
}

impl Ask {
    /// To a path of the document, with `words` in the places of its parameters.
    pub fn new(method: Method, path: &'static str, words: &[&str]) -> Self {
        let fill = |url: String, word: &&str| {
            let (before, rest) = url.split_once('{').unwrap();
            format!("{before}{word}{}", rest.split_once('}').unwrap().1)
        };
        let url = words.iter().fold(path.to_owned(), fill);
        assert!(!url.contains('{'), "{url}");
        Self { method, path, url, key: "root", headers: Vec::new(), body: None }
    }

    pub fn get(path: &'static str, words: &[&str]) -> Self {
        Self::new(Method::GET, path, words)
    }

    pub fn post(path: &'static str, words: &[&str], body: Value) -> Self {
        Self { body: Some(body.to_string()), ..Self::new(Method::POST, path, words) }
    }

    pub fn query(mut self, query: &str) -> Self {
        self.url = format!("{}?{query}", self.url);
        self
    }

    /// The key that is sent; none where it is empty.
    pub fn by(self, key: &'static str) -> Self {
        Self { key, ..self }
    }

    pub fn with(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.headers.push((name, value.into()));
        self
    }
}

impl<'a> Contract<'a> {
    pub async fn of(gateway: &'a Gateway) -> Self {
        let document = gateway.get("/openapi.json").await;
        assert_eq!((document.status, &document.headers["content-type"]), (200, &"application/json".parse().unwrap()));
        Self { gateway, document: document.json(), seen: BTreeSet::new(), wrong: Vec::new() }
    }

    /// Sends a request; its answer must be one that is described.
    pub async fn ask(&mut self, ask: Ask) -> Answer {
        let mut request = Request::builder().method(&ask.method).uri(self.gateway.url(&ask.url));
        if !ask.key.is_empty() {
            request = request.header("authorization", format!("Bearer {}", ask.key));
        }
        if ask.body.is_some() && ask.headers.iter().all(|(name, _)| *name != "content-type") {
            request = request.header("content-type", "application/json");
        }
        for (name, value) in &ask.headers {
            request = request.header(*name, value);
        }
        let body = ask.body.clone().unwrap_or_default();
        let answer = collect(self.gateway.send(request.body(body.into()).unwrap()).await).await;
        if let Err(why) = self.check(&ask, &answer) {
            self.wrong.push(format!("{} {} is answered {}, {why:.3000}", ask.method, ask.url, answer.status));
        }
        answer
    }

    /// The same, where the request is right: then it is one that is described, too.
    pub async fn good(&mut self, ask: Ask) -> Answer {
        let operation = &self.document["paths"][ask.path][ask.method.as_str().to_lowercase()];
        if let Some(body) = &ask.body {
            let schema = &operation["requestBody"]["content"]["application/json"]["schema"];
            let sent = serde_json::from_str(body).unwrap();
            let checked = Schemas { document: &self.document }.check(schema, &sent);
            if let Err(why) = checked {
                self.wrong.push(format!("the request {} {} is right, but {why:.3000}", ask.method, ask.url));
            }
        }
        let what = format!("{} {}", ask.method, ask.url);
        let answer = self.ask(ask).await;
        assert!(answer.status < 400, "{what}: {:?}", answer.body);
        answer
    }

    fn check(&mut self, ask: &Ask, answer: &Answer) -> Result<(), String> {
        let schemas = Schemas { document: &self.document };
        let operation = &self.document["paths"][ask.path][ask.method.as_str().to_lowercase()];
        let mut described = operation["responses"].get(answer.status.to_string()).ok_or("which is not described")?;
        if let Some(reference) = described.get("$ref") {
            described = schemas.resolve(reference)?;
        }
        headers(described, answer)?;
        if !answer.headers.contains_key("x-request-id") {
            return Err("without an `x-request-id`".into());
        }
        let media = answer.headers.get("content-type").map_or("", |value| value.to_str().unwrap());
        let media = media.split(';').next().unwrap_or_default().to_owned();
        match (described.get("content"), media.as_str()) {
            (None, "") if answer.body.is_empty() => {}
            (Some(content), _) => {
                let content =
                    content.get(&media).ok_or_else(|| format!("of the type {media:?}, which is not described"))?;
                body(&schemas, content, &media, answer)?;
            }
            _ => return Err(format!("with a body of the type {media:?}, which is not described")),
        }
        let name = operation["operationId"].as_str().unwrap().to_owned();
        self.seen.insert((name, answer.status.to_string(), media));
        Ok(())
    }
}

/// What HTTP itself says of a response needs no description.
const PLAIN: [&str; 5] = ["content-type", "content-length", "date", "transfer-encoding", "connection"];

fn headers(described: &Value, answer: &Answer) -> Result<(), String> {
    let known = |name: &str| PLAIN.contains(&name) || described["headers"].get(name).is_some();
    match answer.headers.keys().find(|name| !known(name.as_str())) {
        Some(name) => Err(format!("with the header `{name}`, which is not described")),
        None => Ok(()),
    }
}

fn body(schemas: &Schemas<'_>, content: &Value, media: &str, answer: &Answer) -> Result<(), String> {
    let text = std::str::from_utf8(&answer.body).map_err(|error| error.to_string())?;
    let read = |text: &str| serde_json::from_str::<Value>(text).map_err(|error| format!("{error}: {text}"));
    match media {
        "application/json" => schemas.check(&content["schema"], &read(text)?),
        "application/x-ndjson" => {
            text.lines().try_for_each(|line| schemas.check(&content["x-tidegate-line"], &read(line)?))
        }
        "text/event-stream" => {
            for event in text.split_terminator("\n\n").filter(|event| !event.starts_with(':')) {
                let (mut name, mut data) = (None, None);
                for line in event.lines() {
                    match line.split_once(": ").ok_or_else(|| format!("no field: {line}"))? {
                        ("id", _) => {}
                        ("event", value) => name = Some(value),
                        ("data", value) => data = Some(value),
                        (other, _) => return Err(format!("an event has `{other}`")),
                    }
                }
                let data = data.ok_or("an event says nothing")?;
                if data == "[DONE]" {
                    continue;
                }
                let data = read(data)?;
                schemas.check(&content["x-tidegate-event"], &data)?;
                if name.is_some_and(|name| data["type"] != name) {
                    return Err(format!("an event is named {name:?}: {data}"));
                }
            }
            Ok(())
        }
        _ => schemas.check(&content["schema"], &json!(text)),
    }
}

/// Every operation with its method and path.
pub fn operations(document: &Value) -> impl Iterator<Item = (&str, Method, &Value)> {
    document["paths"].as_object().unwrap().iter().flat_map(|(path, methods)| {
        methods
            .as_object()
            .unwrap()
            .iter()
            .map(move |(method, operation)| (path.as_str(), method.to_uppercase().parse().unwrap(), operation))
    })
}

/// Each operation succeeded in each way that is described, and failed in at least two; gives how many there were.
fn all_was_seen(contract: &Contract<'_>) -> String {
    let (mut ways, mut failures) = (0, 0);
    for (path, method, operation) in operations(&contract.document) {
        let name = operation["operationId"].as_str().unwrap();
        let seen = |status: &str, media: &str| contract.seen.contains(&(name.into(), status.into(), media.into()));
        let mut failed = 0;
        for (status, answer) in operation["responses"].as_object().unwrap() {
            if status.as_str() >= "400" {
                failed += usize::from(seen(status, "application/json"));
                continue;
            }
            let media: Vec<&str> = match answer["content"].as_object() {
                Some(content) => content.keys().map(String::as_str).collect(),
                None => vec![""],
            };
            for media in media {
                assert!(seen(status, media), "{method} {path} was not seen to be answered {status} {media}");
                ways += 1;
            }
        }
        let needed = if operation["security"] == json!([]) { 1 } else { 2 };
        assert!(failed >= needed, "{method} {path} was seen to fail in {failed} ways only");
        failures += failed;
    }
    let count = operations(&contract.document).count();
    format!("{count} operations, {ways} ways to succeed, all of them seen; {failures} ways to fail seen")
}

#[tokio::test(flavor = "multi_thread")]
async fn whatever_is_asked_the_answer_is_as_the_document_describes_it() {
    let server = good::Server::start().await;
    let mut contract = Contract::of(&server.gateway).await;
    good::server(&mut contract).await;
    good::generation(&mut contract).await;
    good::memories(&mut contract).await;
    good::administration(&mut contract).await;
    good::login(&mut contract, &server.provider).await;
    kept::conversations(&mut contract).await;
    kept::responses(&mut contract).await;
    kept::usage(&mut contract).await;
    wrong::everywhere(&mut contract).await;
    wrong::in_its_own_way(&mut contract).await;
    assert!(contract.wrong.is_empty(), "{}", contract.wrong.join("\n"));
    println!("{}", all_was_seen(&contract));
}
