//! What is outside of the host: models, scripted, secrets by name, randomness. What a test did not script answers
//! [`Error::Denied`], as an ungranted capability would.

use super::{hand_over, may_have_secrets, params, values};
use crate::host::models::{Label, Reply};
use crate::plugin::Error;
use crate::types::Message;
use std::cell::RefCell;

const MAX_TEXTS: usize = 256;

pub(super) type Script<I, O> = Option<Box<dyn FnMut(&I) -> Result<O, Error>>>;

#[derive(Default)]
struct Outside {
    embed: Script<[String], Vec<Vec<f32>>>,
    complete: Script<[Message], Reply>,
    classify: Script<[String], Vec<Vec<Label>>>,
    secrets: Vec<String>,
    drawn: u64,
}

thread_local! {
    static OUTSIDE: RefCell<Outside> = RefCell::default();
}

fn with<T>(f: impl FnOnce(&mut Outside) -> T) -> T {
    OUTSIDE.with(|outside| f(&mut outside.borrow_mut()))
}

pub(super) fn denied<T>(capability: &str) -> Result<T, Error> {
    Err(Error::Denied(format!("the test scripts no `{capability}`")))
}

/// Says what models make of texts, whatever the alias.
pub fn on_embed(script: impl FnMut(&[String]) -> Result<Vec<Vec<f32>>, Error> + 'static) {
    with(|o| o.embed = Some(Box::new(script)));
}

/// Says what models answer, whatever the alias.
pub fn on_complete(script: impl FnMut(&[Message]) -> Result<Reply, Error> + 'static) {
    with(|o| o.complete = Some(Box::new(script)));
}

/// Says how models label texts, whatever the alias.
pub fn on_classify(script: impl FnMut(&[String]) -> Result<Vec<Vec<Label>>, Error> + 'static) {
    with(|o| o.classify = Some(Box::new(script)));
}

/// Grants secrets by name; others are denied.
pub fn grant_secrets(names: &[&str]) {
    with(|o| o.secrets = names.iter().map(|name| (*name).to_owned()).collect());
}

pub(in crate::host) fn embed(alias: &str, texts: &[String]) -> Result<Vec<Vec<f32>>, Error> {
    hand_over("models.embed", &[&alias, &texts]);
    check_texts(texts)?;
    with(|o| o.embed.as_mut().map_or_else(|| denied("models.embed"), |script| script(texts)))
}

pub(in crate::host) fn complete(alias: &str, messages: &[Message], given: &str) -> Result<Reply, Error> {
    hand_over("models.complete", &[&alias, &messages, &given]);
    if messages.is_empty() {
        return Err(Error::InvalidInput("there are no messages".into()));
    }
    values::check(messages, given)?;
    params::check(given)?;
    with(|o| o.complete.as_mut().map_or_else(|| denied("models.complete"), |script| script(messages)))
}

pub(in crate::host) fn classify(alias: &str, texts: &[String]) -> Result<Vec<Vec<Label>>, Error> {
    hand_over("models.classify", &[&alias, &texts]);
    check_texts(texts)?;
    with(|o| o.classify.as_mut().map_or_else(|| denied("models.classify"), |script| script(texts)))
}

fn check_texts(texts: &[String]) -> Result<(), Error> {
    if texts.len() > MAX_TEXTS {
        return Err(Error::InvalidInput(format!("{} texts; at most {MAX_TEXTS}", texts.len())));
    }
    Ok(())
}

pub(in crate::host) fn secret_names() -> Vec<String> {
    with(|o| {
        o.secrets.sort();
        o.secrets.clone()
    })
}

/// Whether a plugin may refer to a secret in a request.
pub(super) fn check_secret(name: &str) -> Result<(), Error> {
    if !may_have_secrets() {
        let message =
            "the plugin's descriptor does not name `secrets` among its `capabilities`, which a secret header needs";
        return Err(Error::Denied(message.into()));
    }
    match with(|o| o.secrets.iter().any(|granted| granted == name)) {
        true => Ok(()),
        false => Err(Error::Denied(format!("the secret `{name}` is not granted here"))),
    }
}

/// The bytes of a counter: different each time, the same in each run.
pub(in crate::host) fn random_bytes(len: u32) -> Result<Vec<u8>, Error> {
    if !(1..=4096).contains(&len) {
        return Err(Error::InvalidInput(format!("{len} random bytes; 1 to 4096 may be asked for")));
    }
    let next = || {
        with(|o| {
            o.drawn += 1;
            (o.drawn.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 56) as u8
        })
    };
    Ok((0..len).map(|_| next()).collect())
}

#[cfg(test)]
mod tests {
    use super::super::{on_http, take_requests};
    use super::*;
    use crate::host::http::Response;
    use crate::host::{http, models, random, secrets};
    use crate::types::Role;

    #[test]
    fn what_is_not_scripted_is_denied_and_what_is_answers() {
        let request = http::Request::get("https://api.example.com/v1").secret_header("authorization", "Bearer ", "key");
        assert!(matches!(http::send(&request), Err(Error::Denied(_))));
        grant_secrets(&["key", "a"]);
        assert!(matches!(http::send(&request), Err(Error::Denied(_))));
        on_http(|request| {
            let status = if request.method == "GET" { 200 } else { 405 };
            Ok(Response { status, ..Response::default() })
        });
        assert!(http::send(&request).unwrap().is_success());
        assert_eq!(http::send_all(&[http::Request::post_json("https://h/", "{}")])[0].as_ref().unwrap().status, 405);
        assert_eq!(take_requests()[0], request);
        assert_eq!(secrets::names(), ["a", "key"]);
        assert_ne!(random::bytes(8).unwrap(), random::bytes(8).unwrap());
    }

    #[test]
    fn questions_to_models_have_bounds() {
        on_embed(|texts| Ok(vec![vec![1.0]; texts.len()]));
        let embedded = |count: usize| models::embed("embedder", &vec!["a".to_owned(); count]);
        assert_eq!(embedded(MAX_TEXTS).unwrap().len(), MAX_TEXTS);
        assert!(matches!(embedded(MAX_TEXTS + 1), Err(Error::InvalidInput(_))));
        let messages = [Message::text("m0", Role::User, "hi")];
        let asked = |params| models::complete("judge", &messages, params);
        assert!(matches!(asked("[]"), Err(Error::InvalidInput(_))));
        assert!(matches!(asked(r#"{"tools":[]}"#), Err(Error::InvalidInput(_))));
        assert!(matches!(asked(r#"{"seed":1}"#), Err(Error::Denied(_))), "it is not scripted");
        assert!(matches!(models::complete("judge", &[], ""), Err(Error::InvalidInput(_))));
        let many = format!("{{\"stop\":[{}0]}}", "0,".repeat(1 << 14));
        assert!(matches!(asked(&many), Err(Error::InvalidInput(why)) if why.contains("too many values")));
    }
}
