//! Collections of vectors in the memory of a test. Each may be read and written, which the operator's grant decides elsewhere.

use super::{hand_over, may_keep};
use crate::host::vectors::{Entry, Hit};
use crate::plugin::Error;
use crate::types::Attrs;
use std::cell::RefCell;
use std::collections::BTreeMap;

const MAX_TOP_K: u32 = 1000;
const MAX_ENTRIES: usize = 256;
const MAX_DELETED: usize = 1024;
const MAX_ID_BYTES: usize = 512;
const MAX_DIMENSIONS: usize = 4096;
const MAX_PAYLOAD_BYTES: usize = 64 << 10;
const MAX_PAYLOAD_PAIRS: usize = 4096;
const MAX_FILTER_PAIRS: usize = 64;

thread_local! {
    static COLLECTIONS: RefCell<BTreeMap<String, BTreeMap<String, Entry>>> = RefCell::default();
}

fn with<T>(collection: &str, f: impl FnOnce(&mut BTreeMap<String, Entry>) -> T) -> T {
    COLLECTIONS.with_borrow_mut(|collections| f(collections.entry(collection.into()).or_default()))
}

pub(in crate::host) fn put(collection: &str, entries: &[Entry]) -> Result<(), Error> {
    hand_over("vectors.put", &[&collection, &entries]);
    may_keep()?;
    at_most(entries.len(), "entries", MAX_ENTRIES)?;
    entries.iter().try_for_each(check_entry)?;
    with(collection, |kept| {
        let dimensions = kept.values().chain(entries).next().map(|entry| entry.vector.len());
        if let Some(odd) = entries.iter().map(|entry| entry.vector.len()).find(|len| Some(*len) != dimensions) {
            let message = format!("a vector of {odd} dimensions; the collection's have others");
            return Err(Error::InvalidInput(message));
        }
        kept.extend(entries.iter().map(|entry| (entry.id.clone(), entry.clone())));
        Ok(())
    })
}

pub(in crate::host) fn delete(collection: &str, ids: &[String]) -> Result<u32, Error> {
    hand_over("vectors.delete", &[&collection, &ids]);
    at_most(ids.len(), "ids", MAX_DELETED)?;
    Ok(with(collection, |kept| ids.iter().filter(|id| kept.remove(*id).is_some()).count() as u32))
}

/// The nearest first; of equal ones the first by id. Those of other dimensions are not found.
pub(in crate::host) fn search(collection: &str, vector: &[f32], top_k: u32, filter: &Attrs) -> Result<Vec<Hit>, Error> {
    hand_over("vectors.search", &[&collection, &vector, &filter]);
    if filter.len() > MAX_FILTER_PAIRS {
        let message = format!("a filter of {} pairs; at most {MAX_FILTER_PAIRS}", filter.len());
        return Err(Error::InvalidInput(message));
    }
    check_vector(vector)?;
    let mut hits: Vec<Hit> = with(collection, |kept| {
        let is_found = |entry: &&Entry| {
            entry.vector.len() == vector.len() && filter.iter().all(|pair| entry.payload.contains(pair))
        };
        let hit = |e: &Entry| Hit { id: e.id.clone(), score: cosine(vector, &e.vector), payload: e.payload.clone() };
        kept.values().filter(is_found).map(hit).collect()
    });
    hits.sort_by(|a, b| b.score.total_cmp(&a.score));
    hits.truncate(top_k.min(MAX_TOP_K) as usize);
    Ok(hits)
}

fn at_most(count: usize, what: &str, most: usize) -> Result<(), Error> {
    if count > most {
        return Err(Error::InvalidInput(format!("{count} {what} at once; at most {most}")));
    }
    Ok(())
}

fn check_entry(entry: &Entry) -> Result<(), Error> {
    let Entry { id, vector, payload } = entry;
    let bytes: usize = payload.iter().map(|(key, value)| key.len() + value.len()).sum();
    if id.is_empty() || id.len() > MAX_ID_BYTES || bytes > MAX_PAYLOAD_BYTES || payload.len() > MAX_PAYLOAD_PAIRS {
        return Err(Error::InvalidInput(format!(
            "an id has 1 to {MAX_ID_BYTES} bytes, a payload at most {MAX_PAYLOAD_BYTES} in {MAX_PAYLOAD_PAIRS} pairs"
        )));
    }
    check_vector(vector)
}

fn check_vector(vector: &[f32]) -> Result<(), Error> {
    let good = (1..=MAX_DIMENSIONS).contains(&vector.len())
        && vector.iter().all(|x| x.is_finite())
        && vector.iter().any(|x| *x != 0.0);
    if good {
        return Ok(());
    }
    let message = format!("a vector has 1 to {MAX_DIMENSIONS} finite numbers, not all of them 0");
    Err(Error::InvalidInput(message))
}

/// In double precision, as the host has lengths: large numbers have no squares in single.
fn cosine(a: &[f32], b: &[f32]) -> f32 {
    let dot = |x: &[f32], y: &[f32]| x.iter().zip(y).map(|(x, y)| f64::from(*x) * f64::from(*y)).sum::<f64>();
    (dot(a, b) / (dot(a, a) * dot(b, b)).sqrt()).clamp(-1.0, 1.0) as f32
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::vectors;

    fn entry(id: &str, vector: &[f32]) -> Entry {
        Entry { id: id.into(), vector: vector.into(), payload: Vec::new() }
    }

    fn found(vector: &[f32], top_k: u32) -> Vec<String> {
        let hits = vectors::search("notes", vector, top_k, &Vec::new()).unwrap();
        hits.into_iter().map(|hit| hit.id).collect()
    }

    fn is_refused<T>(answer: Result<T, Error>) -> bool {
        matches!(answer, Err(Error::InvalidInput(_)))
    }

    #[test]
    fn the_nearest_vectors_come_first() {
        vectors::put("notes", &[entry("far", &[0.0, 1.0]), entry("near", &[2.0, 0.1]), entry("as near", &[4.0, 0.2])])
            .unwrap();
        assert_eq!(found(&[1.0, 0.0], 9), ["as near", "near", "far"]);
        assert_eq!(found(&[1.0, 0.0], 1), ["as near"]);
        assert_eq!(found(&[1.0], 9), [""; 0], "of other dimensions");
        assert_eq!(vectors::delete("notes", &["near".into(), "nobody".into()]), Ok(1));
    }

    #[test]
    fn a_collection_has_the_dimensions_of_its_first_vector() {
        assert!(is_refused(vectors::put("notes", &[entry("a", &[1.0]), entry("b", &[1.0, 2.0])])));
        assert_eq!(found(&[1.0], 9), [""; 0], "all are put or none");
        vectors::put("notes", &[entry("a", &[1.0])]).unwrap();
        assert!(is_refused(vectors::put("notes", &[entry("a", &[1.0, 2.0])])));
        vectors::delete("notes", &["a".into()]).unwrap();
        vectors::put("notes", &[entry("a", &[1.0, 2.0])]).unwrap();
    }

    #[test]
    fn what_is_no_direction_is_neither_put_nor_looked_for() {
        for vector in [&[][..], &[f32::NAN, 1.0], &[f32::INFINITY], &[0.0, 0.0], &[1.0; MAX_DIMENSIONS + 1]] {
            assert!(is_refused(vectors::put("notes", &[entry("a", vector)])));
            assert!(is_refused(vectors::search("notes", vector, 1, &Vec::new())));
        }
        assert!(vectors::put("notes", &[entry("a", &[1.0; MAX_DIMENSIONS])]).is_ok());
    }

    #[test]
    fn entries_ids_and_filters_have_bounds() {
        let pair = ("k".to_owned(), String::new());
        let search = |pairs| vectors::search("notes", &[1.0], 1, &vec![pair.clone(); pairs]);
        assert!(search(MAX_FILTER_PAIRS).is_ok() && is_refused(search(MAX_FILTER_PAIRS + 1)));
        let put = |count| vectors::put("notes", &vec![entry("a", &[1.0]); count]);
        assert!(put(MAX_ENTRIES).is_ok() && is_refused(put(MAX_ENTRIES + 1)));
        let delete = |count| vectors::delete("notes", &vec!["a".to_owned(); count]);
        assert!(delete(MAX_DELETED).is_ok() && is_refused(delete(MAX_DELETED + 1)));
        for id in ["", &"a".repeat(MAX_ID_BYTES + 1)] {
            assert!(is_refused(vectors::put("notes", &[entry(id, &[1.0])])));
        }
        let payload = vec![("text".to_owned(), "x".repeat(MAX_PAYLOAD_BYTES))];
        assert!(is_refused(vectors::put("notes", &[Entry { payload, ..entry("a", &[1.0]) }])));
    }
}
