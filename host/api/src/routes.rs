//! Every path that exists, and nothing else.

use crate::backend::BoxFuture;
use crate::body::Response;
use crate::endpoints::{chat_completions, completions, health, metrics, models, reload, streams, usage};
use crate::exchange::Exchange;
use hyper::Method;
use tidegate_types::Reject;

/// Who may ask.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    /// A caller with a key.
    Keyed,
    /// A caller whose key is an administrator's; without keys, this machine.
    Admin,
    /// Anyone who reaches the server: probes, which say nothing.
    Open,
}

pub(crate) type Handler = fn(Exchange) -> BoxFuture<'static, Result<Response, Reject>>;

/// One path with one method. A path may end in `*`, which stands for at least one character, slashes included.
pub(crate) struct Route {
    pub(crate) method: Method,
    pub(crate) path: &'static str,
    pub(crate) access: Access,
    pub(crate) handler: Handler,
}

const fn route(method: Method, path: &'static str, access: Access, handler: Handler) -> Route {
    Route { method, path, access, handler }
}

static ROUTES: &[Route] = &[
    route(Method::POST, "/v1/chat/completions", Access::Keyed, |x| Box::pin(chat_completions::create(x))),
    route(Method::POST, "/v1/completions", Access::Keyed, |x| Box::pin(completions::create(x))),
    route(Method::GET, "/v1/models", Access::Keyed, |x| Box::pin(models::list(x))),
    route(Method::GET, "/v1/models/*", Access::Keyed, |x| Box::pin(models::get(x))),
    route(Method::GET, "/v1/streams/*", Access::Keyed, |x| Box::pin(streams::read(x))),
    route(Method::POST, "/v1/streams/*", Access::Keyed, |x| Box::pin(streams::cancel(x))),
    route(Method::GET, "/v1/usage", Access::Keyed, |x| Box::pin(usage::usage(x))),
    route(Method::GET, "/v1/usage/costs", Access::Keyed, |x| Box::pin(usage::costs(x))),
    // OpenAI's own names of the two.
    route(Method::GET, "/v1/organization/usage/completions", Access::Keyed, |x| Box::pin(usage::usage(x))),
    route(Method::GET, "/v1/organization/costs", Access::Keyed, |x| Box::pin(usage::costs(x))),
    route(Method::GET, "/metrics", Access::Keyed, |x| Box::pin(metrics::render(x))),
    route(Method::POST, "/admin/reload", Access::Admin, |x| Box::pin(reload::create(x))),
    route(Method::GET, "/livez", Access::Open, |x| Box::pin(health::live(x))),
    route(Method::GET, "/readyz", Access::Open, |x| Box::pin(health::ready(x))),
];

/// What a method and a path lead to.
pub(crate) enum Found {
    /// A route, and what stands for its `*`.
    Route(&'static Route, String),
    /// The path exists, for these methods.
    Methods(String),
    /// No such path.
    Nothing,
}

/// Finds a route. `HEAD` is `GET` without a body.
pub(crate) fn find(method: &Method, path: &str) -> Found {
    let wanted = if method == Method::HEAD { &Method::GET } else { method };
    let mut allowed = String::new();
    for route in ROUTES {
        let Some(rest) = matches(route.path, path) else { continue };
        if route.method == wanted {
            return Found::Route(route, rest.to_owned());
        }
        allowed.push_str(route.method.as_str());
        allowed.push_str(if route.method == Method::GET { ", HEAD, " } else { ", " });
    }
    if allowed.is_empty() { Found::Nothing } else { Found::Methods(allowed + "OPTIONS") }
}

fn matches<'a>(pattern: &str, path: &'a str) -> Option<&'a str> {
    match pattern.strip_suffix('*') {
        Some(start) => path.strip_prefix(start).filter(|rest| !rest.is_empty()),
        None => (pattern == path).then_some(""),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_found_exactly() {
        let found = |method: Method, path: &str| match find(&method, path) {
            Found::Route(route, rest) => format!("{} {} [{rest}]", route.method, route.path),
            Found::Methods(allowed) => allowed,
            Found::Nothing => "nothing".into(),
        };
        assert_eq!(found(Method::POST, "/v1/chat/completions"), "POST /v1/chat/completions []");
        assert_eq!(found(Method::HEAD, "/v1/models"), "GET /v1/models []");
        assert_eq!(found(Method::GET, "/v1/models/org/name"), "GET /v1/models/* [org/name]");
        assert_eq!(found(Method::GET, "/v1/chat/completions"), "POST, OPTIONS");
        assert_eq!(found(Method::DELETE, "/v1/models"), "GET, HEAD, OPTIONS");
        for path in ["/", "", "*", "/v1/models/", "/v1/models//../x/", "//v1/models", "/V1/models", "/v1/models;a"] {
            let nothing = found(Method::GET, path);
            assert!(nothing == "nothing" || path.starts_with("/v1/models//"), "{path}: {nothing}");
        }
    }
}
