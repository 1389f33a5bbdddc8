//! Reads the key of a request, in one place: whatever way it is sent, there is one, or the request is refused.

use crate::grant::no_project;
use hyper::header::{AUTHORIZATION, HeaderMap, HeaderValue};
use tidegate_types::{Fault, Reject, RejectKind};

/// Headers beside `Authorization` in which clients of other APIs send their key.
const KEY_HEADERS: [&str; 2] = ["x-api-key", "api-key"];

/// In which OpenAI's clients name the project that a request is for.
const PROJECT_HEADER: &str = "openai-project";

/// Names under which keys are found in URLs, letter case aside.
const KEY_PARAMETERS: [&str; 6] = ["api_key", "api-key", "apikey", "access_token", "key", "token"];

/// The key or token of a request, where it has one.
pub(crate) fn key(headers: &HeaderMap) -> Result<Option<&[u8]>, Reject> {
    let bearers = headers.get_all(AUTHORIZATION).iter().map(bearer);
    let plain = KEY_HEADERS.iter().flat_map(|name| headers.get_all(*name));
    let plain = plain.map(|value| Ok(value.as_bytes().trim_ascii()));
    let mut found = None;
    for key in bearers.chain(plain) {
        let key = key?;
        if found.is_some_and(|other| other != key) {
            return Err(conflicting());
        }
        found = Some(key);
    }
    Ok(found)
}

/// The id of the project that a request is for, where it says so; an empty one says nothing. Of several, none is preferred.
pub(crate) fn project(headers: &HeaderMap) -> Result<Option<&str>, Reject> {
    let mut found = None;
    for value in headers.get_all(PROJECT_HEADER) {
        let project = value.to_str().map_err(|_| no_project())?.trim();
        if found.is_some_and(|other| other != project) {
            let message = "the request has several different `OpenAI-Project` headers; send one";
            return Err(Reject::new(RejectKind::Invalid, Fault::Client, message).code("conflicting_projects"));
        }
        found = Some(project);
    }
    Ok(found.filter(|project| !project.is_empty()))
}

fn bearer(value: &HeaderValue) -> Result<&[u8], Reject> {
    match value.as_bytes().split_at_checked(7) {
        Some((scheme, key)) if scheme.eq_ignore_ascii_case(b"bearer ") => Ok(key.trim_ascii()),
        _ => Err(unauthenticated("`Authorization` must be `Bearer KEY`")),
    }
}

/// Refuses a key in the URL: URLs are kept in logs, histories and referrers.
pub(crate) fn none_in_url(query: Option<&str>) -> Result<(), Reject> {
    let names = query.unwrap_or_default().split('&').map(|pair| pair.split('=').next().unwrap_or_default());
    let is_key = |name: &str| KEY_PARAMETERS.iter().any(|known| known.eq_ignore_ascii_case(name));
    match names.into_iter().find(|name| is_key(name)) {
        Some(name) => {
            let message = format!(
                "`{name}` in the URL is not read; send the key as `Authorization: Bearer KEY`, and replace it if it was \
                 a real one, for URLs end up in logs"
            );
            Err(Reject::new(RejectKind::Invalid, Fault::Client, message).code("key_in_url"))
        }
        None => Ok(()),
    }
}

fn conflicting() -> Reject {
    let message = "the request has several different keys in `Authorization`, `x-api-key` or `api-key`; send one";
    Reject::new(RejectKind::Invalid, Fault::Client, message).code("conflicting_credentials")
}

/// Refuses credentials of different tenants in one request: which of them counts would be a matter of order.
pub(crate) fn different_tenants() -> Reject {
    let message = "the request's credentials are of different tenants; send one, or such of the same tenant";
    Reject::new(RejectKind::Invalid, Fault::Client, message).code("conflicting_credentials")
}

pub(crate) fn missing() -> Reject {
    unauthenticated("send your API key as `Authorization: Bearer KEY`")
}

pub(crate) fn unauthenticated(message: &str) -> Reject {
    Reject::new(RejectKind::Unauthenticated, Fault::Client, message)
}

#[cfg(test)]
mod tests {
    use super::*;
    use hyper::header::HeaderName;

    fn read(headers: &[(&'static str, &'static str)]) -> Result<String, Option<String>> {
        let pair = |(name, value): &(&'static str, &'static str)| {
            (HeaderName::from_static(name), HeaderValue::from_static(value))
        };
        let headers: HeaderMap = headers.iter().map(pair).collect();
        let found = key(&headers).map(|key| String::from_utf8(key.unwrap_or_default().to_vec()).unwrap());
        found.map_err(|reject| reject.code)
    }

    #[test]
    fn one_key_is_read_whatever_header_it_is_in() {
        for headers in [
            &[("authorization", "bearer  tg-1")][..],
            &[("x-api-key", " tg-1 ")],
            &[("api-key", "tg-1")],
            &[("authorization", "Bearer tg-1"), ("api-key", "tg-1"), ("x-api-key", "tg-1")],
        ] {
            assert_eq!(read(headers).as_deref(), Ok("tg-1"), "{headers:?}");
        }
    }

    #[test]
    fn different_keys_are_refused_and_none_is_preferred() {
        let conflict = Err(Some("conflicting_credentials".to_owned()));
        for headers in [
            &[("authorization", "Bearer tg-1"), ("authorization", "Bearer tg-2")][..],
            &[("authorization", "Bearer tg-1"), ("x-api-key", "tg-2")],
            &[("x-api-key", "tg-1"), ("api-key", "tg-2")],
            &[("x-api-key", "tg-1"), ("x-api-key", "")],
        ] {
            assert_eq!(read(headers), conflict, "{headers:?}");
        }
        assert_eq!(read(&[]), Ok(String::new()));
        for headers in [&[("authorization", "tg-1")][..], &[("authorization", "Basic tg-1"), ("api-key", "tg-1")]] {
            assert_eq!(read(headers), Err(None), "{headers:?}");
        }
    }

    #[test]
    fn a_project_is_named_once_or_not_at_all() {
        let read = |values: &[&'static str]| {
            let name = HeaderName::from_static("openai-project");
            let headers: HeaderMap =
                values.iter().map(|value| (name.clone(), HeaderValue::from_static(value))).collect();
            project(&headers).map(|project| project.map(str::to_owned)).map_err(|reject| reject.code.unwrap())
        };
        assert_eq!((read(&[]), read(&[""])), (Ok(None), Ok(None)));
        assert_eq!(read(&["proj_a", " proj_a "]), Ok(Some("proj_a".into())));
        assert_eq!(read(&["proj_a", "proj_b"]), Err("conflicting_projects".into()));
        assert_eq!(read(&["proj_a", ""]), Err("conflicting_projects".into()));
        let odd: HeaderMap = [(HeaderName::from_static("openai-project"), HeaderValue::from_bytes(&[0xe9]).unwrap())]
            .into_iter()
            .collect();
        assert_eq!(project(&odd).unwrap_err().code.as_deref(), Some("project_not_found"));
    }

    #[test]
    fn keys_in_urls_are_refused() {
        for query in ["api_key=x", "a=b&API-KEY=x", "access_token", "key="] {
            assert!(none_in_url(Some(query)).is_err(), "{query}");
        }
        for query in [None, Some(""), Some("starting_after=5"), Some("monkey=1&a=key")] {
            assert!(none_in_url(query).is_ok(), "{query:?}");
        }
    }
}
