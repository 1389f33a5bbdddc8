//! `/auth`: how people log in with a browser, see who they are, and log out. The flow is in `tidegate-identity`, what it
//! leaves in `session.rs`.

use crate::body::{Body, Response};
use crate::credential;
use crate::exchange::{Exchange, json};
use crate::query::{invalid, percent_decoded};
use crate::session::{LOGIN_COOKIE, Open, People, Person, SESSION_COOKIE, cookie, over, set_cookie};
use hyper::header::{CACHE_CONTROL, HeaderMap, HeaderValue, LOCATION, SET_COOKIE};
use hyper::{StatusCode, Uri};
use serde_json::json;
use std::sync::Arc;
use std::time::Duration;
use subtle::ConstantTimeEq;
use tidegate_identity::LoginError;
use tidegate_types::{Fault, Reject, RejectKind};

/// For a person at the issuer's pages.
const LOGIN_TIME: Duration = Duration::from_secs(600);
/// Bytes of the path to go on to.
const MAX_NEXT_BYTES: usize = 512;

/// `GET /auth/login?next=/path&project=ID`: to the issuer.
pub(crate) async fn begin(exchange: Exchange) -> Result<Response, Reject> {
    let people = people(&exchange)?;
    let next = parameter(exchange.request.uri(), "next")?.unwrap_or_else(|| "/".into());
    if !is_own_path(&next) {
        return Err(invalid("next", "`next` must be a path of this server"));
    }
    let project = parameter(exchange.request.uri(), "project")?.unwrap_or_default();
    if project.len() > MAX_NEXT_BYTES {
        return Err(invalid("project", "`project` must be the id of a project"));
    }
    let begun = people.login.begin().await?;
    // What the browser must bring back is its own secret, so that nothing of a login that never ends is kept here.
    let held = [&begun.state, &begun.nonce, &begun.verifier, &encoded(&project).replace('.', "%2E"), &encoded(&next)];
    let held = held.map(String::as_str).join(".");
    let mut response = to(&begun.url)?;
    add_cookie(&mut response, LOGIN_COOKIE, &held, LOGIN_TIME);
    Ok(response)
}

/// `GET /auth/callback`: back from the issuer.
pub(crate) async fn callback(exchange: Exchange) -> Result<Response, Reject> {
    let people = people(&exchange)?;
    let (uri, headers) = (exchange.request.uri(), exchange.request.headers());
    let held = cookie(headers, LOGIN_COOKIE)?.ok_or_else(foreign)?;
    let [state, nonce, verifier, project, next] = parts(held).ok_or_else(foreign)?;
    let told = parameter(uri, "state")?.ok_or_else(foreign)?;
    if !bool::from(told.as_bytes().ct_eq(state.as_bytes())) {
        return Err(foreign());
    }
    // RFC 9207: an answer that says whose it is must be of the one who was asked.
    if parameter(uri, "iss")?.is_some_and(|issuer| issuer != people.login.issuer()) {
        return Err(foreign());
    }
    let code = parameter(uri, "code")?.ok_or(LoginError::Refused)?;
    let claimed = people.login.finish(&code, verifier, nonce, exchange.peer.ip()).await?;
    let project = percent_decoded(project).filter(|project| !project.is_empty());
    let person = Person { claimed: claimed.as_ref().clone(), project };
    let token = people.enter(&person, cookie(headers, SESSION_COOKIE)?).await?;
    let next = percent_decoded(next).filter(|next| is_own_path(next)).unwrap_or_else(|| "/".into());
    let mut response = to(&next)?;
    add_cookie(&mut response, SESSION_COOKIE, &token, people.longest);
    add_cookie(&mut response, LOGIN_COOKIE, "", Duration::ZERO);
    Ok(response)
}

/// `POST /auth/logout`
pub(crate) async fn end(exchange: Exchange) -> Result<Response, Reject> {
    let people = people(&exchange)?;
    people.check_origin(exchange.request.method(), exchange.request.headers())?;
    if let Some(token) = cookie(exchange.request.headers(), SESSION_COOKIE)? {
        people.leave(token).await?;
    }
    let mut response = unstored(Response::new(Body::full("")));
    *response.status_mut() = StatusCode::NO_CONTENT;
    add_cookie(&mut response, SESSION_COOKIE, "", Duration::ZERO);
    Ok(response)
}

/// `GET /auth/me`: who is logged in, in which project, and in which the same person may be.
pub(crate) async fn me(exchange: Exchange) -> Result<Response, Reject> {
    let people = people(&exchange)?;
    let headers: &HeaderMap = exchange.request.headers();
    let token = cookie(headers, SESSION_COOKIE)?.ok_or_else(over)?.to_owned();
    let Open { person, session } = people.find(&token).await?.ok_or_else(over)?;
    let asked = credential::project(headers)?;
    let standing = match people.standing(&person, asked) {
        // The login's own project is no more, or is another's: who is logged in can choose one of those below.
        Err(gone) if asked.is_none() && gone.code.as_deref() == Some("project_not_found") => None,
        standing => standing?,
    };
    let caller = standing.as_ref().map(|grant| &grant.caller);
    let (project, role) =
        (caller.map(|caller| caller.owner()), caller.map_or(person.claimed.role, |caller| caller.role));
    let body = json!({
        "object": "session", "user": person.claimed.user, "tenant": person.claimed.tenant, "role": role,
        "project": project, "projects": people.projects(&person),
        "created_at": session.created_ms / 1000, "expires_at": session.ends_ms / 1000,
    });
    Ok(unstored(json(body.to_string())))
}

fn people(exchange: &Exchange) -> Result<Arc<People>, Reject> {
    exchange.api.auth.load().people().ok_or_else(|| {
        let message = "people do not log in at this server; its operator can change that by [auth.login] of its config";
        Reject::new(RejectKind::NotFound, Fault::Operator, message).code("login_not_configured")
    })
}

/// Somebody else's login, or one that was not begun in this browser.
fn foreign() -> Reject {
    let message = "this login was not begun in this browser, or too long ago; begin again at /auth/login";
    Reject::new(RejectKind::Invalid, Fault::Client, message).code("login_unknown")
}

fn parts(held: &str) -> Option<[&str; 5]> {
    let mut parts = held.splitn(5, '.');
    let [one, two, three] = [parts.next()?, parts.next()?, parts.next()?];
    let (project, next) = (parts.next()?, parts.next()?);
    [one, two, three].iter().all(|word| word.len() == 43).then_some([one, two, three, project, next])
}

/// A parameter of the URL; others may be there, since issuers add what they like. Given twice it is refused.
fn parameter(uri: &Uri, name: &str) -> Result<Option<String>, Reject> {
    let pairs = uri.query().unwrap_or_default().split('&').filter_map(|pair| pair.split_once('='));
    let mut values = pairs.filter(|(known, _)| *known == name).map(|(_, value)| value);
    let (first, more) = (values.next(), values.next().is_some());
    let decoded = first.map(|value| percent_decoded(&value.replace('+', " ")));
    match decoded {
        Some(None) => Err(invalid(name, &format!("`{name}` is not percent-encoded UTF-8"))),
        _ if more => Err(invalid(name, &format!("`{name}` is given twice"))),
        Some(value) => Ok(value),
        None => Ok(None),
    }
}

/// A path that no browser reads as another host's.
fn is_own_path(path: &str) -> bool {
    path.starts_with('/')
        && !path.starts_with("//")
        && path.len() <= MAX_NEXT_BYTES
        && path.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'\\')
}

/// Of a path: what a cookie may not hold is encoded, and the percent signs with it.
fn encoded(path: &str) -> String {
    let plain =
        |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'/' | b'-' | b'_' | b'.' | b'?' | b'=' | b'&');
    path.bytes().map(|byte| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") }).collect()
}

fn to(url: &str) -> Result<Response, Reject> {
    let location = HeaderValue::from_str(url)
        .map_err(|_| Reject::internal(Fault::Operator, "where to send the browser is no header's value"))?;
    let mut response = unstored(Response::new(Body::full("")));
    *response.status_mut() = StatusCode::SEE_OTHER;
    response.headers_mut().insert(LOCATION, location);
    Ok(response)
}

fn unstored(mut response: Response) -> Response {
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

/// All parts are hex, base64url or encoded above.
fn add_cookie(response: &mut Response, name: &str, value: &str, lasts: Duration) {
    if let Ok(line) = HeaderValue::from_str(&set_cookie(name, value, lasts)) {
        response.headers_mut().append(SET_COOKIE, line);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_paths_of_this_server_are_gone_on_to() {
        for good in ["/", "/chat?id=1&x=%20", "/a/b-c_d.html"] {
            assert!(is_own_path(good), "{good}");
            assert_eq!(percent_decoded(&encoded(good)).as_deref(), Some(good));
        }
        for bad in ["", "//evil.example", "/\\evil.example", "https://evil.example", "evil", "/a b", "/a\r\nx: y", "/é"]
        {
            assert!(!is_own_path(bad), "{bad}");
        }
    }

    #[test]
    fn a_parameter_is_given_once() {
        let uri: Uri = "/auth/callback?code=a%2Bb+c&state=1&state=2&session_state=x".parse().unwrap();
        assert_eq!(parameter(&uri, "code").unwrap().as_deref(), Some("a+b c"));
        assert!(parameter(&uri, "state").is_err());
        assert_eq!(parameter(&uri, "iss").unwrap(), None);
    }
}
