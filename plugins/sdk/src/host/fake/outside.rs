//! What is outside of the host, scripted: HTTP, models, vectors, secrets, randomness. What a test did not script
//! answers [`Error::Denied`], as an ungranted capability would.

use crate::host::http::{Request, Response};
use crate::host::models::{Label, Reply};
use crate::host::vectors::{Entry, Hit};
use crate::plugin::Error;
use crate::types::{Attrs, Message};
use std::cell::RefCell;
use std::collections::BTreeMap;

type Script<I, O> = Option<Box<dyn FnMut(&I) -> Result<O, Error>>>;

#[derive(Default)]
struct Outside {
    http: Script<Request, Response>,
    sent: Vec<Request>,
    embed: Script<[String], Vec<Vec<f32>>>,
    complete: Script<[Message], Reply>,
    classify: Script<[String], Vec<Vec<Label>>>,
    collections: BTreeMap<String, BTreeMap<String, Entry>>,
    secrets: Vec<String>,
    drawn: u64,
}

thread_local! {
    static OUTSIDE: RefCell<Outside> = RefCell::default();
}

fn with<T>(f: impl FnOnce(&mut Outside) -> T) -> T {
    OUTSIDE.with(|outside| f(&mut outside.borrow_mut()))
}

fn denied<T>(capability: &str) -> Result<T, Error> {
    Err(Error::Denied(format!("the test scripts no `{capability}`")))
}

/// Says what HTTP requests are answered.
pub fn on_http(script: impl FnMut(&Request) -> Result<Response, Error> + 'static) {
    with(|o| o.http = Some(Box::new(script)));
}

/// Requests that were sent since the last call, in order.
pub fn take_requests() -> Vec<Request> {
    with(|o| std::mem::take(&mut o.sent))
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

/// Grants secrets by name.
pub fn grant_secrets(names: &[&str]) {
    with(|o| o.secrets = names.iter().map(|name| (*name).to_owned()).collect());
}

pub(in crate::host) fn http(request: &Request) -> Result<Response, Error> {
    with(|o| {
        o.sent.push(request.clone());
        o.http.as_mut().map_or_else(|| denied("http"), |script| script(request))
    })
}

pub(in crate::host) fn embed(_alias: &str, texts: &[String]) -> Result<Vec<Vec<f32>>, Error> {
    with(|o| o.embed.as_mut().map_or_else(|| denied("models.embed"), |script| script(texts)))
}

pub(in crate::host) fn complete(_alias: &str, messages: &[Message], _params: &str) -> Result<Reply, Error> {
    with(|o| o.complete.as_mut().map_or_else(|| denied("models.complete"), |script| script(messages)))
}

pub(in crate::host) fn classify(_alias: &str, texts: &[String]) -> Result<Vec<Vec<Label>>, Error> {
    with(|o| o.classify.as_mut().map_or_else(|| denied("models.classify"), |script| script(texts)))
}

pub(in crate::host) fn secret_names() -> Vec<String> {
    with(|o| {
        o.secrets.sort();
        o.secrets.clone()
    })
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

pub(in crate::host) fn put(collection: &str, entries: &[Entry]) -> Result<(), Error> {
    with(|o| {
        let kept = o.collections.entry(collection.into()).or_default();
        kept.extend(entries.iter().map(|entry| (entry.id.clone(), entry.clone())));
    });
    Ok(())
}

pub(in crate::host) fn delete_vectors(collection: &str, ids: &[String]) -> Result<u32, Error> {
    with(|o| {
        let kept = o.collections.entry(collection.into()).or_default();
        Ok(ids.iter().filter(|id| kept.remove(*id).is_some()).count() as u32)
    })
}

pub(in crate::host) fn search(collection: &str, vector: &[f32], top_k: u32, filter: &Attrs) -> Result<Vec<Hit>, Error> {
    let mut hits: Vec<Hit> = with(|o| {
        let kept = o.collections.get(collection).into_iter().flat_map(BTreeMap::values);
        let wanted = kept.filter(|entry| filter.iter().all(|pair| entry.payload.contains(pair)));
        wanted.map(|e| Hit { id: e.id.clone(), score: cosine(vector, &e.vector), payload: e.payload.clone() }).collect()
    });
    hits.sort_by(|a, b| b.score.total_cmp(&a.score));
    hits.truncate(top_k as usize);
    Ok(hits)
}

fn cosine(a: &[f32], b: &[f32]) -> f32 {
    let dot = |x: &[f32], y: &[f32]| x.iter().zip(y).map(|(x, y)| x * y).sum::<f32>();
    dot(a, b) / (dot(a, a) * dot(b, b)).sqrt()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::{http, random, secrets, vectors};

    #[test]
    fn what_is_not_scripted_is_denied_and_what_is_answers() {
        let request = http::Request::get("https://api.example.com/v1").secret_header("authorization", "Bearer ", "key");
        assert!(matches!(http::send(&request), Err(Error::Denied(_))));
        on_http(|request| {
            let status = if request.method == "GET" { 200 } else { 405 };
            Ok(Response { status, ..Response::default() })
        });
        assert!(http::send(&request).unwrap().is_success());
        assert_eq!(http::send_all(&[http::Request::post_json("https://h/", "{}")])[0].as_ref().unwrap().status, 405);
        assert_eq!(take_requests()[0], request);
        grant_secrets(&["b", "a"]);
        assert_eq!(secrets::names(), ["a", "b"]);
        assert_ne!(random::bytes(8).unwrap(), random::bytes(8).unwrap());
    }

    #[test]
    fn the_nearest_vectors_come_first() {
        let entry = |id: &str, vector: &[f32]| Entry { id: id.into(), vector: vector.into(), payload: Vec::new() };
        vectors::put("notes", &[entry("far", &[0.0, 1.0]), entry("near", &[2.0, 0.1])]).unwrap();
        let hits = vectors::search("notes", &[1.0, 0.0], 1, &Vec::new()).unwrap();
        assert_eq!(hits[0].id, "near");
        assert_eq!(vectors::delete("notes", &["near".into(), "nobody".into()]).unwrap(), 1);
    }
}
