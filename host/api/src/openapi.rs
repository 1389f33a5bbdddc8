//! The OpenAPI 3.1 document of every route. What an operation is for stands in `openapi/*.json`, a file for each topic;
//! what follows from the route table is added here: who may ask, what the path names, how it can fail. The schemas are
//! `wire`'s.
//!
//! Invariant: each route is described, and nothing else is (the test below); the answers are as described
//! (`tests/tests/e2e/contract.rs`).

use crate::routes::{Access, Door, Found, Group, Route, find};
use bytes::Bytes;
use hyper::Method;
use serde_json::{Map, Value, json};
use std::sync::LazyLock;
use tidegate_types::{Act, RejectKind};

/// A tag, what it means, and its paths.
const TOPICS: [(&str, &str, &str); 11] = [
    ("Generation", "Chats, completions and vectors.", include_str!("../openapi/generation.json")),
    ("Responses", "Answers that are kept and gone on from.", include_str!("../openapi/responses.json")),
    ("Conversations", "What is said, kept as a tree.", include_str!("../openapi/conversations.json")),
    ("Streams", "Streams that outlive their connections.", include_str!("../openapi/streams.json")),
    ("Models", "What answers.", include_str!("../openapi/models.json")),
    ("Memories", "What plugins remember of a caller.", include_str!("../openapi/memories.json")),
    ("Usage", "What was used and what it cost.", include_str!("../openapi/usage.json")),
    ("Login", "People with a browser.", include_str!("../openapi/login.json")),
    ("Projects", "Parts of a tenant.", include_str!("../openapi/projects.json")),
    ("Administration", "Keys and config.", include_str!("../openapi/administration.json")),
    ("Server", "Probes, figures, and this document.", include_str!("../openapi/server.json")),
];

/// How a request can fail, and what that is called among the document's components.
const FAILURES: [(RejectKind, &str, &str); 13] = [
    (RejectKind::Invalid, "Invalid", "The request is wrong; `param` says where."),
    (RejectKind::Unauthenticated, "Unauthenticated", "There is no credential, or none that is known here."),
    (RejectKind::Forbidden, "Forbidden", "The caller may not do this."),
    (RejectKind::NotFound, "NotFound", "There is no such thing, or it is another tenant's or project's."),
    (RejectKind::RequestTimeout, "RequestTimeout", "The body took too long to arrive."),
    (RejectKind::Conflict, "Conflict", "Something that is there, or was asked before, is in the way."),
    (RejectKind::TooLarge, "TooLarge", "The body is larger than this server takes."),
    (RejectKind::UnsupportedMedia, "UnsupportedMedia", "The body is no JSON, or compressed."),
    (RejectKind::RateLimited, "RateLimited", "A limit or a budget is reached."),
    (RejectKind::Internal, "Internal", "The server failed."),
    (RejectKind::BadUpstream, "BadUpstream", "The server of the model failed."),
    (RejectKind::Unavailable, "Unavailable", "The server is full, not ready, or stopping."),
    (RejectKind::UpstreamTimeout, "UpstreamTimeout", "The server of the model did not answer in time."),
];

/// Headers of an answer to a limited caller, and their names among the components.
static ALLOWANCES: [(&str, &str); 6] = [
    ("x-ratelimit-limit-requests", "limit_requests"),
    ("x-ratelimit-remaining-requests", "remaining_requests"),
    ("x-ratelimit-reset-requests", "reset_requests"),
    ("x-ratelimit-limit-tokens", "limit_tokens"),
    ("x-ratelimit-remaining-tokens", "remaining_tokens"),
    ("x-ratelimit-reset-tokens", "reset_tokens"),
];
static RETRY: [(&str, &str); 3] =
    [("retry-after", "retry_after"), ("retry-after-ms", "retry_after_ms"), ("x-should-retry", "should_retry")];

/// The document as it is served; made once. An error says that a file of this crate is broken, which tests rule out.
pub(crate) static DOCUMENT: LazyLock<Result<Bytes, String>> =
    LazyLock::new(|| document().map(|document| document.to_string().into()).map_err(|error| error.to_string()));

fn document() -> Result<Value, serde_json::Error> {
    let mut document: Value = serde_json::from_str(include_str!("../openapi/root.json"))?;
    document["info"]["version"] = env!("CARGO_PKG_VERSION").into();
    let mut schemas = tidegate_wire::schemas()?;
    schemas.extend(serde_json::from_str::<Map<String, Value>>(include_str!("../openapi/schemas.json"))?);
    document["components"]["schemas"] = Value::Object(schemas);
    document["components"]["responses"] =
        FAILURES.iter().map(|(kind, name, what)| failure(*kind, name, what)).collect();
    let (mut tags, mut paths) = (Vec::new(), Map::new());
    for (tag, what, file) in TOPICS {
        tags.push(json!({"name": tag, "description": what}));
        for (path, mut operations) in serde_json::from_str::<Map<String, Value>>(file)? {
            for (method, operation) in operations.as_object_mut().into_iter().flatten() {
                complete(operation, tag, &path, method);
            }
            paths.insert(path, operations);
        }
    }
    document["tags"] = tags.into();
    document["paths"] = Value::Object(paths);
    Ok(document)
}

/// Adds what follows from the route. One that there is no route for stays as it is, and fails the test below.
fn complete(operation: &mut Value, tag: &str, path: &str, method: &str) {
    let Some(route) = route_of(path, method) else { return };
    operation["tags"] = json!([tag]);
    let posted = route.method == Method::POST;
    let mut parameters = vec![refers("parameters", "request_id")];
    parameters.extend((!route.access.is_open()).then(|| refers("parameters", "project")));
    parameters.extend(posted.then(|| refers("parameters", "idempotency_key")));
    parameters.extend(words(path).map(|word| refers("parameters", word)));
    parameters.extend(operation["parameters"].as_array().cloned().unwrap_or_default());
    operation["parameters"] = parameters.into();
    if route.access.is_open() {
        operation["security"] = json!([]);
    }
    if matches!(route.access, Access::Admin(_)) {
        let where_to = "At the server's `admin_listen`, where its config has one.";
        operation["servers"] = json!([{"url": "/", "description": where_to}]);
    }
    let has_body = operation.get("requestBody").is_some();
    let Some(responses) = operation["responses"].as_object_mut() else { return };
    for answer in responses.values_mut() {
        answer["headers"]["x-request-id"] = refers("headers", "request_id");
        if posted {
            answer["headers"]["idempotent-replayed"] = refers("headers", "replayed");
        }
        for (header, name) in ALLOWANCES.iter().filter(|_| is_limited(route)) {
            answer["headers"][*header] = refers("headers", name);
        }
        if answer["content"].get("text/event-stream").is_some() {
            answer["headers"]["cache-control"] = refers("headers", "cache_control");
            answer["headers"]["x-accel-buffering"] = refers("headers", "unbuffered");
        }
    }
    for (kind, name, _) in FAILURES.iter().filter(|(kind, ..)| can_fail(route, has_body, *kind)) {
        responses.insert(tidegate_wire::status(*kind).to_string(), refers("responses", name));
    }
}

fn is_limited(route: &Route) -> bool {
    matches!(
        route.access,
        Access::Keyed(Group::Chat | Group::Completions | Group::Embeddings | Group::Responses, Act::Ask)
    )
}

fn can_fail(route: &Route, has_body: bool, kind: RejectKind) -> bool {
    let (open, login) = (route.access == Access::Open, route.access == Access::Login);
    let asks = matches!(route.access, Access::Keyed(_, Act::Ask));
    match kind {
        RejectKind::Invalid | RejectKind::Internal | RejectKind::Unavailable => true,
        RejectKind::Unauthenticated | RejectKind::Forbidden => !open,
        // Of the rest only the list of models and the server's own affairs need nothing that may be missing.
        RejectKind::NotFound => {
            let always =
                matches!(route.access, Access::Keyed(Group::Models | Group::Metrics, _) | Access::Admin(Act::Operate));
            !open && (!always || route.path.ends_with('*'))
        }
        RejectKind::RequestTimeout | RejectKind::TooLarge | RejectKind::UnsupportedMedia => has_body,
        RejectKind::Conflict => route.method == Method::POST || matches!(route.access, Access::Admin(_)),
        RejectKind::RateLimited => asks || matches!(route.access, Access::Keyed(Group::Memories, _)),
        RejectKind::BadUpstream | RejectKind::UpstreamTimeout => asks || login,
        RejectKind::MethodNotAllowed | RejectKind::ContentFilter => false,
    }
}

fn failure(kind: RejectKind, name: &str, what: &str) -> (String, Value) {
    let mut headers = json!({"x-request-id": refers("headers", "request_id")});
    let more = match kind {
        RejectKind::RateLimited => [&ALLOWANCES[..], &RETRY[..]].concat(),
        RejectKind::Unavailable => RETRY[..1].to_vec(),
        RejectKind::BadUpstream | RejectKind::UpstreamTimeout => RETRY[2..].to_vec(),
        RejectKind::Unauthenticated => vec![("www-authenticate", "www_authenticate")],
        _ => Vec::new(),
    };
    for (header, name) in more {
        headers[header] = refers("headers", name);
    }
    let content = json!({"application/json": {"schema": refers("schemas", "Error")}});
    (name.to_owned(), json!({"description": what, "headers": headers, "content": content}))
}

fn refers(kind: &str, name: &str) -> Value {
    json!({"$ref": format!("#/components/{kind}/{name}")})
}

/// What a path names.
fn words(path: &str) -> impl Iterator<Item = &str> {
    path.split('/').filter_map(|word| word.strip_prefix('{')?.strip_suffix('}'))
}

/// The route of an operation.
fn route_of(path: &str, method: &str) -> Option<&'static Route> {
    let path = words(path).fold(path.to_owned(), |path, word| path.replace(&format!("{{{word}}}"), "x"));
    let method = Method::from_bytes(method.to_ascii_uppercase().as_bytes()).ok()?;
    match find(Door::Every, &method, &path) {
        Found::Route(route, _) => Some(route),
        Found::Methods(_) | Found::Nothing => None,
    }
}

#[cfg(test)]
mod tests;
