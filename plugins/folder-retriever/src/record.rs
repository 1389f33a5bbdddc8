//! One file's part of the index: where its passages are and which terms stand in them.

use crate::passages;
use crate::tokens;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// What a file was when it was indexed; another size, date or passage length means another index.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stamp {
    /// Its size.
    pub size_bytes: u64,
    /// When it was changed last.
    pub modified_unix_ms: u64,
    /// About how long its passages are.
    pub passage_bytes: u32,
}

/// An indexed file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileIndex {
    /// Its path, mount first.
    pub path: String,
    /// What was indexed.
    pub stamp: Stamp,
    /// Its first heading, or its name.
    pub title: String,
    /// In order.
    pub passages: Vec<Passage>,
    /// By term, sorted: in which passages it stands, and how often.
    terms: Vec<(String, Vec<Posting>)>,
}

/// A passage.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Passage {
    /// First byte.
    pub start: u32,
    /// One past the last byte.
    pub end: u32,
    /// Terms in it.
    pub num_terms: u32,
    /// Of its text, so that a citation is of what was found.
    pub fingerprint: u64,
}

/// A term in a passage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Posting {
    /// Which passage of the file.
    pub passage: u32,
    /// How often.
    pub count: u32,
}

impl FileIndex {
    /// Indexes a text. Files are far below 4 GiB.
    pub fn new(path: &str, stamp: Stamp, text: &str) -> Self {
        let mut passages = Vec::new();
        let mut terms: BTreeMap<String, Vec<Posting>> = BTreeMap::new();
        for range in passages::split(text, stamp.passage_bytes as usize) {
            let body = &text[range.clone()];
            let passage = passages.len() as u32;
            let mut num_terms = 0;
            for term in tokens::terms(body) {
                num_terms += 1;
                let postings = terms.entry(term).or_default();
                match postings.last_mut() {
                    Some(last) if last.passage == passage => last.count += 1,
                    _ => postings.push(Posting { passage, count: 1 }),
                }
            }
            let (start, end) = (range.start as u32, range.end as u32);
            passages.push(Passage { start, end, num_terms, fingerprint: fingerprint(body) });
        }
        let title = title(path, text);
        Self { path: path.into(), stamp, title, passages, terms: terms.into_iter().collect() }
    }

    /// Where a term stands.
    pub fn postings(&self, term: &str) -> &[Posting] {
        let at = self.terms.binary_search_by(|(known, _)| known.as_str().cmp(term));
        at.ok().and_then(|at| self.terms.get(at)).map_or(&[], |(_, postings)| postings)
    }
}

fn title(path: &str, text: &str) -> String {
    let heading = text.lines().find_map(|line| line.strip_prefix("# ")).map(str::trim);
    let name = path.rsplit('/').next().unwrap_or(path);
    let title = heading.filter(|heading| !heading.is_empty()).unwrap_or(name);
    title.chars().take(120).collect()
}

/// FNV-1a: not against malice, for the folder is the operator's, but against files that change meanwhile.
pub fn fingerprint(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_knows_its_terms_passages_and_title() {
        let stamp = Stamp { size_bytes: 0, modified_unix_ms: 0, passage_bytes: 30 };
        let text = "# The ferry\n\nFerry tickets cost 12 euros, a ticket back too.";
        let file = FileIndex::new("docs/ferry.md", stamp.clone(), text);
        assert_eq!(file.title, "The ferry");
        let of = |term| file.postings(term).iter().map(|p| (p.passage, p.count)).collect::<Vec<_>>();
        assert_eq!(of("ticket").iter().map(|(_, count)| count).sum::<u32>(), 2);
        assert_eq!(of("ferry")[0], (0, 1));
        assert_eq!(of("bus"), []);
        for passage in &file.passages {
            let body = &text[passage.start as usize..passage.end as usize];
            assert_eq!(
                (fingerprint(body), tokens::terms(body).count() as u32),
                (passage.fingerprint, passage.num_terms)
            );
        }
        assert_eq!(FileIndex::new("docs/notes.txt", stamp, "no heading").title, "notes.txt");
    }
}
