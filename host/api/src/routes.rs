//! Every path that exists, and nothing else.

use crate::backend::BoxFuture;
use crate::body::Response;
use crate::endpoints::{
    chat_completions, completions, conversations, embeddings, health, items, keys, login, members, memories, messages,
    metrics, models, openapi, projects, reload, responses, streams, usage,
};
use crate::exchange::Exchange;
use hyper::Method;
use tidegate_types::{Act, Reject};

/// Who may ask.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    /// A caller with a key for this group, whose role lets it do this.
    Keyed(Group, Act),
    /// A caller who administers the server (without keys, this machine), or whose role lets it do this.
    Admin(Act),
    /// Anyone who reaches the server: probes, and the description of the API, which say nothing of what it holds.
    Open,
    /// Anyone who reaches the server's callers' address: people who log in.
    Login,
}

impl Access {
    /// Whether no credential is asked for here.
    pub(crate) fn is_open(self) -> bool {
        matches!(self, Self::Open | Self::Login)
    }
}

/// Endpoints that a key may be for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Group {
    /// `/v1/chat/completions`
    Chat,
    /// `/v1/completions`
    Completions,
    /// `/v1/embeddings`
    Embeddings,
    /// `/v1/models` and `/v1/models/{id}`
    Models,
    /// `/v1/streams/{id}`: streams of the tenant, whichever key began them.
    Streams,
    /// `/v1/conversations` and what is below it.
    Conversations,
    /// `/v1/responses` and what is below it.
    Responses,
    /// `/v1/memories` and what is below it.
    Memories,
    /// `/v1/usage` and what is below it, by OpenAI's names too.
    Usage,
    /// `/metrics`, which say something of all tenants: they are for administrators, and for keys that name them.
    Metrics,
}

impl Group {
    /// All there are.
    pub const ALL: [Self; 10] = [
        Self::Chat,
        Self::Completions,
        Self::Embeddings,
        Self::Models,
        Self::Streams,
        Self::Conversations,
        Self::Responses,
        Self::Memories,
        Self::Usage,
        Self::Metrics,
    ];

    /// Its name in the config.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Chat => "chat",
            Self::Completions => "completions",
            Self::Embeddings => "embeddings",
            Self::Models => "models",
            Self::Streams => "streams",
            Self::Conversations => "conversations",
            Self::Responses => "responses",
            Self::Memories => "memories",
            Self::Usage => "usage",
            Self::Metrics => "metrics",
        }
    }
}

pub(crate) type Handler = fn(Exchange) -> BoxFuture<'static, Result<Response, Reject>>;

/// One path with one method. `{}` stands for one word between slashes; a path may end in `*`, which stands for at least
/// one character, slashes included.
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
    route(Method::POST, "/v1/chat/completions", Access::Keyed(Group::Chat, Act::Ask), |x| {
        Box::pin(chat_completions::create(x))
    }),
    route(Method::POST, "/v1/completions", Access::Keyed(Group::Completions, Act::Ask), |x| {
        Box::pin(completions::create(x))
    }),
    route(Method::POST, "/v1/embeddings", Access::Keyed(Group::Embeddings, Act::Ask), |x| {
        Box::pin(embeddings::create(x))
    }),
    route(Method::GET, "/v1/models", Access::Keyed(Group::Models, Act::Read), |x| Box::pin(models::list(x))),
    route(Method::GET, "/v1/models/*", Access::Keyed(Group::Models, Act::Read), |x| Box::pin(models::get(x))),
    route(Method::GET, "/v1/streams/*", Access::Keyed(Group::Streams, Act::Read), |x| Box::pin(streams::read(x))),
    route(Method::POST, "/v1/streams/*", Access::Keyed(Group::Streams, Act::Change), |x| Box::pin(streams::cancel(x))),
    route(Method::GET, "/v1/usage", Access::Keyed(Group::Usage, Act::Usage), |x| Box::pin(usage::usage(x))),
    route(Method::GET, "/v1/usage/costs", Access::Keyed(Group::Usage, Act::Usage), |x| Box::pin(usage::costs(x))),
    // OpenAI's own names of the two.
    route(Method::GET, "/v1/organization/usage/completions", Access::Keyed(Group::Usage, Act::Usage), |x| {
        Box::pin(usage::usage(x))
    }),
    route(Method::GET, "/v1/organization/costs", Access::Keyed(Group::Usage, Act::Usage), |x| {
        Box::pin(usage::costs(x))
    }),
    route(Method::POST, "/v1/conversations", Access::Keyed(Group::Conversations, Act::Change), |x| {
        Box::pin(conversations::create(x))
    }),
    route(Method::GET, "/v1/conversations", Access::Keyed(Group::Conversations, Act::Read), |x| {
        Box::pin(conversations::list(x))
    }),
    route(Method::GET, "/v1/conversations/{}", Access::Keyed(Group::Conversations, Act::Read), |x| {
        Box::pin(conversations::get(x))
    }),
    route(Method::POST, "/v1/conversations/{}", Access::Keyed(Group::Conversations, Act::Change), |x| {
        Box::pin(conversations::update(x))
    }),
    route(Method::DELETE, "/v1/conversations/{}", Access::Keyed(Group::Conversations, Act::Change), |x| {
        Box::pin(conversations::delete(x))
    }),
    route(Method::GET, "/v1/conversations/{}/export", Access::Keyed(Group::Conversations, Act::Read), |x| {
        Box::pin(conversations::export(x))
    }),
    route(Method::GET, "/v1/conversations/{}/items", Access::Keyed(Group::Conversations, Act::Read), |x| {
        Box::pin(items::list(x))
    }),
    route(Method::POST, "/v1/conversations/{}/items", Access::Keyed(Group::Conversations, Act::Change), |x| {
        Box::pin(items::create(x))
    }),
    route(Method::GET, "/v1/conversations/{}/items/{}", Access::Keyed(Group::Conversations, Act::Read), |x| {
        Box::pin(items::get(x))
    }),
    route(Method::POST, "/v1/conversations/{}/items/{}", Access::Keyed(Group::Conversations, Act::Change), |x| {
        Box::pin(items::change(x))
    }),
    route(Method::DELETE, "/v1/conversations/{}/items/{}", Access::Keyed(Group::Conversations, Act::Change), |x| {
        Box::pin(items::delete(x))
    }),
    route(
        Method::POST,
        "/v1/conversations/{}/items/{}/feedback",
        Access::Keyed(Group::Conversations, Act::Change),
        |x| Box::pin(items::rate(x)),
    ),
    route(
        Method::POST,
        "/v1/conversations/{}/items/{}/regenerate",
        Access::Keyed(Group::Conversations, Act::Ask),
        |x| Box::pin(messages::regenerate(x)),
    ),
    route(Method::POST, "/v1/conversations/{}/messages", Access::Keyed(Group::Conversations, Act::Ask), |x| {
        Box::pin(messages::create(x))
    }),
    route(Method::POST, "/v1/responses", Access::Keyed(Group::Responses, Act::Ask), |x| Box::pin(responses::create(x))),
    route(Method::GET, "/v1/responses/{}", Access::Keyed(Group::Responses, Act::Read), |x| Box::pin(responses::get(x))),
    route(Method::DELETE, "/v1/responses/{}", Access::Keyed(Group::Responses, Act::Change), |x| {
        Box::pin(responses::delete(x))
    }),
    route(Method::POST, "/v1/responses/{}/cancel", Access::Keyed(Group::Responses, Act::Change), |x| {
        Box::pin(responses::cancel(x))
    }),
    route(Method::GET, "/v1/responses/{}/input_items", Access::Keyed(Group::Responses, Act::Read), |x| {
        Box::pin(responses::input_items(x))
    }),
    route(Method::GET, "/v1/memories", Access::Keyed(Group::Memories, Act::Read), |x| Box::pin(memories::list(x))),
    route(Method::POST, "/v1/memories/forget", Access::Keyed(Group::Memories, Act::Change), |x| {
        Box::pin(memories::forget(x))
    }),
    route(Method::GET, "/metrics", Access::Keyed(Group::Metrics, Act::Metrics), |x| Box::pin(metrics::render(x))),
    route(Method::GET, "/admin/keys", Access::Admin(Act::Keys), |x| Box::pin(keys::list(x))),
    route(Method::POST, "/admin/keys", Access::Admin(Act::Keys), |x| Box::pin(keys::make(x))),
    route(Method::POST, "/admin/keys/*", Access::Admin(Act::Keys), |x| Box::pin(keys::rotate(x))),
    route(Method::DELETE, "/admin/keys/*", Access::Admin(Act::Keys), |x| Box::pin(keys::revoke(x))),
    route(Method::GET, "/v1/organization/projects", Access::Admin(Act::Members), |x| Box::pin(projects::list(x))),
    route(Method::POST, "/v1/organization/projects", Access::Admin(Act::Projects), |x| Box::pin(projects::create(x))),
    route(Method::GET, "/v1/organization/projects/{}", Access::Admin(Act::Members), |x| Box::pin(projects::get(x))),
    route(Method::POST, "/v1/organization/projects/{}", Access::Admin(Act::Projects), |x| {
        Box::pin(projects::change(x))
    }),
    route(Method::POST, "/v1/organization/projects/{}/archive", Access::Admin(Act::Projects), |x| {
        Box::pin(projects::archive(x))
    }),
    route(Method::GET, "/v1/organization/projects/{}/users", Access::Admin(Act::Members), |x| {
        Box::pin(members::list(x))
    }),
    route(Method::POST, "/v1/organization/projects/{}/users", Access::Admin(Act::Members), |x| {
        Box::pin(members::add(x))
    }),
    route(Method::GET, "/v1/organization/projects/{}/users/*", Access::Admin(Act::Members), |x| {
        Box::pin(members::get(x))
    }),
    route(Method::POST, "/v1/organization/projects/{}/users/*", Access::Admin(Act::Members), |x| {
        Box::pin(members::role(x))
    }),
    route(Method::DELETE, "/v1/organization/projects/{}/users/*", Access::Admin(Act::Members), |x| {
        Box::pin(members::remove(x))
    }),
    route(Method::POST, "/admin/reload", Access::Admin(Act::Operate), |x| Box::pin(reload::create(x))),
    route(Method::GET, "/auth/login", Access::Login, |x| Box::pin(login::begin(x))),
    route(Method::GET, "/auth/callback", Access::Login, |x| Box::pin(login::callback(x))),
    route(Method::GET, "/auth/me", Access::Login, |x| Box::pin(login::me(x))),
    route(Method::POST, "/auth/logout", Access::Login, |x| Box::pin(login::end(x))),
    route(Method::GET, "/livez", Access::Open, |x| Box::pin(health::live(x))),
    route(Method::GET, "/readyz", Access::Open, |x| Box::pin(health::ready(x))),
    // The name that vLLM and llama.cpp give it.
    route(Method::GET, "/health", Access::Open, |x| Box::pin(health::ready(x))),
    route(Method::GET, "/openapi.json", Access::Open, |x| Box::pin(openapi::read(x))),
];

/// Which routes an address has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Door {
    /// All.
    Every,
    /// All but the administrator's.
    Callers,
    /// The administrator's, and those of probes.
    Administrators,
}

impl Door {
    fn has(self, route: &Route) -> bool {
        match self {
            Self::Every => true,
            Self::Callers => !matches!(route.access, Access::Admin(_)),
            Self::Administrators => matches!(route.access, Access::Admin(_) | Access::Open),
        }
    }
}

/// What a method and a path lead to.
pub(crate) enum Found {
    /// A route, and what stands for its `{}` and `*`, joined by slashes.
    Route(&'static Route, String),
    /// The path exists, for these methods.
    Methods(String),
    /// No such path.
    Nothing,
}

/// Finds a route of a door. `HEAD` is `GET` without a body.
pub(crate) fn find(door: Door, method: &Method, path: &str) -> Found {
    let wanted = if method == Method::HEAD { &Method::GET } else { method };
    let mut allowed = String::new();
    for route in ROUTES.iter().filter(|route| door.has(route)) {
        let Some(rest) = matches(route.path, path) else { continue };
        if route.method == wanted {
            return Found::Route(route, rest);
        }
        allowed.push_str(route.method.as_str());
        allowed.push_str(if route.method == Method::GET { ", HEAD, " } else { ", " });
    }
    if allowed.is_empty() { Found::Nothing } else { Found::Methods(allowed + "OPTIONS") }
}

fn matches(pattern: &str, path: &str) -> Option<String> {
    let (mut held, mut rest, mut pattern) = (String::new(), path, pattern);
    while let Some((before, after)) = pattern.split_once("{}") {
        rest = rest.strip_prefix(before)?;
        let (word, tail) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
        if word.is_empty() {
            return None;
        }
        if !held.is_empty() {
            held.push('/');
        }
        held.push_str(word);
        (rest, pattern) = (tail, after);
    }
    let last = match pattern.strip_suffix('*') {
        Some(start) => rest.strip_prefix(start).filter(|rest| !rest.is_empty())?,
        None if pattern == rest => "",
        None => return None,
    };
    if !held.is_empty() && !last.is_empty() {
        held.push('/');
    }
    held.push_str(last);
    Some(held)
}

/// Every path that exists with each of its methods and what that does, for tests that must miss none; `None` is what
/// anybody may.
pub fn routes() -> impl Iterator<Item = (&'static Method, &'static str, Option<Act>)> {
    ROUTES.iter().map(|route| {
        let act = match route.access {
            Access::Keyed(_, act) | Access::Admin(act) => Some(act),
            Access::Open | Access::Login => None,
        };
        (&route.method, route.path, act)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_found_exactly() {
        let found = |method: Method, path: &str| match find(Door::Every, &method, path) {
            Found::Route(route, rest) => format!("{} {} [{rest}]", route.method, route.path),
            Found::Methods(allowed) => allowed,
            Found::Nothing => "nothing".into(),
        };
        assert_eq!(found(Method::POST, "/v1/chat/completions"), "POST /v1/chat/completions []");
        assert_eq!(found(Method::HEAD, "/v1/models"), "GET /v1/models []");
        assert_eq!(found(Method::GET, "/v1/models/org/name"), "GET /v1/models/* [org/name]");
        assert_eq!(found(Method::GET, "/v1/conversations/c"), "GET /v1/conversations/{} [c]");
        assert_eq!(found(Method::GET, "/v1/conversations/c/items/i"), "GET /v1/conversations/{}/items/{} [c/i]");
        let user = "/v1/organization/projects/p/users/corp/ann";
        assert_eq!(found(Method::GET, user), "GET /v1/organization/projects/{}/users/* [p/corp/ann]");
        for path in
            ["/v1/conversations/", "/v1/conversations/c/", "/v1/conversations//items", "/v1/conversations/c/items/i/j"]
        {
            assert_eq!(found(Method::GET, path), "nothing", "{path}");
        }
        assert_eq!(found(Method::GET, "/v1/chat/completions"), "POST, OPTIONS");
        assert_eq!(found(Method::DELETE, "/v1/models"), "GET, HEAD, OPTIONS");
        for path in ["/", "", "*", "/v1/models/", "/v1/models//../x/", "//v1/models", "/V1/models", "/v1/models;a"] {
            let nothing = found(Method::GET, path);
            assert!(nothing == "nothing" || path.starts_with("/v1/models//"), "{path}: {nothing}");
        }
    }

    #[test]
    fn a_door_has_its_own_routes_only() {
        let found = |door, path: &str| matches!(find(door, &Method::GET, path), Found::Route(..));
        assert!(found(Door::Every, "/admin/keys") && found(Door::Every, "/v1/models"));
        assert!(!found(Door::Callers, "/admin/keys") && found(Door::Callers, "/v1/models"));
        assert!(found(Door::Administrators, "/admin/keys") && !found(Door::Administrators, "/v1/models"));
        for probe in ["/livez", "/readyz", "/health"] {
            assert!(found(Door::Callers, probe) && found(Door::Administrators, probe), "{probe}");
        }
    }
}
