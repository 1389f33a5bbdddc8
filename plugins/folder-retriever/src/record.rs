//! One file's part of the index: where its passages are and which terms stand in them.
//!
//! It is a few flat stretches of memory, so that the index of a folder is about as large as its text, and comes from
//! storage as fast as it is copied.

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
    /// The terms, sorted and joined.
    words: String,
    /// Of each term: where it ends in `words`, and its postings in `postings`.
    ends: Vec<(u32, u32)>,
    /// Of each term how many postings it has, and those, as [`put`] writes numbers: how many passages on, and how often.
    #[serde(with = "bytes")]
    postings: Vec<u8>,
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
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Posting {
    /// Which passage of the file.
    pub passage: u32,
    /// How often.
    pub count: u32,
}

/// Where a term stands, by passage.
#[derive(Clone, Copy, Debug, Default)]
pub struct Postings<'a> {
    left: u32,
    passage: u32,
    bytes: &'a [u8],
}

impl Postings<'_> {
    /// How many follow.
    pub fn num(&self) -> usize {
        self.left as usize
    }
}

impl Iterator for Postings<'_> {
    type Item = Posting;

    fn next(&mut self) -> Option<Posting> {
        self.left = self.left.checked_sub(1)?;
        self.passage = self.passage.saturating_add(take(&mut self.bytes)?);
        Some(Posting { passage: self.passage, count: take(&mut self.bytes)? })
    }
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
        let mut file = Self {
            path: path.into(),
            stamp,
            title,
            passages,
            words: String::new(),
            ends: Vec::new(),
            postings: Vec::new(),
        };
        terms.into_iter().for_each(|(term, postings)| file.push(&term, &postings));
        file.words.shrink_to_fit();
        file.ends.shrink_to_fit();
        file.postings.shrink_to_fit();
        file
    }

    /// Adds a term that sorts behind those that are there.
    fn push(&mut self, term: &str, postings: &[Posting]) {
        self.words.push_str(term);
        put(&mut self.postings, postings.len() as u32);
        let mut before = 0;
        for posting in postings {
            put(&mut self.postings, posting.passage - before);
            put(&mut self.postings, posting.count);
            before = posting.passage;
        }
        self.ends.push((self.words.len() as u32, self.postings.len() as u32));
    }

    /// Where a term stands.
    pub fn postings(&self, term: &str) -> Postings<'_> {
        self.find(term).unwrap_or_default()
    }

    fn find(&self, term: &str) -> Option<Postings<'_>> {
        let (mut low, mut high) = (0, self.ends.len());
        while low < high {
            let middle = (low + high) / 2;
            let (word, postings) = self.term(middle)?;
            match word.cmp(term) {
                std::cmp::Ordering::Less => low = middle + 1,
                std::cmp::Ordering::Greater => high = middle,
                std::cmp::Ordering::Equal => {
                    let mut bytes = postings;
                    return Some(Postings { left: take(&mut bytes)?, passage: 0, bytes });
                }
            }
        }
        None
    }

    /// One of the terms, with its postings; `None` where what was stored is torn.
    fn term(&self, idx: usize) -> Option<(&str, &[u8])> {
        let (word_start, start) = idx.checked_sub(1).map_or(Some((0, 0)), |before| self.ends.get(before).copied())?;
        let (word_end, end) = self.ends.get(idx).copied()?;
        let word = self.words.get(word_start as usize..word_end as usize)?;
        Some((word, self.postings.get(start as usize..end as usize)?))
    }

    /// About what it takes in memory.
    pub fn memory_bytes(&self) -> usize {
        let parts = [self.path.len(), self.title.len(), self.words.len(), self.postings.len()];
        let flat = size_of_val(&*self.passages) + size_of_val(&*self.ends);
        parts.iter().sum::<usize>() + flat + size_of::<Self>()
    }
}

/// A number, seven bits a byte, the lowest first: most are below 128.
fn put(bytes: &mut Vec<u8>, mut number: u32) {
    while number >= 0x80 {
        bytes.push(number as u8 | 0x80);
        number >>= 7;
    }
    bytes.push(number as u8);
}

fn take(bytes: &mut &[u8]) -> Option<u32> {
    let mut number = 0;
    for shift in [0, 7, 14, 21, 28] {
        let (byte, rest) = bytes.split_first()?;
        *bytes = rest;
        number |= u32::from(byte & 0x7f) << shift;
        if *byte < 0x80 {
            break;
        }
    }
    Some(number)
}

/// Bytes for serde, which otherwise takes each of a `Vec<u8>` by itself.
pub(crate) mod bytes {
    use serde::de::{Deserializer, Error, Visitor};
    use serde::ser::Serializer;

    pub(crate) fn serialize<S: Serializer>(bytes: &[u8], serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(bytes)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<u8>, D::Error> {
        deserializer.deserialize_bytes(Bytes)
    }

    struct Bytes;

    impl Visitor<'_> for Bytes {
        type Value = Vec<u8>;

        fn expecting(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            formatter.write_str("bytes")
        }

        fn visit_bytes<E: Error>(self, bytes: &[u8]) -> Result<Vec<u8>, E> {
            Ok(bytes.to_vec())
        }
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
        let of = |term| file.postings(term).map(|p| (p.passage, p.count)).collect::<Vec<_>>();
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

    #[test]
    fn a_term_is_where_it_was_put_however_often() {
        let mut file = FileIndex::new("a", Stamp { size_bytes: 0, modified_unix_ms: 0, passage_bytes: 30 }, "");
        let far = [(0, 1), (127, 128), (300, 1 << 20), (1 << 30, u32::MAX)]
            .map(|(passage, count)| Posting { passage, count });
        for (term, postings) in [("ant", &far[1..2]), ("bee", &far[..]), ("cat", &[])] {
            file.push(term, postings);
        }
        assert_eq!(file.postings("bee").num(), 4);
        assert_eq!(file.postings("bee").collect::<Vec<_>>(), far);
        assert_eq!(file.postings("ant").collect::<Vec<_>>(), far[1..2]);
        for none in ["", "an", "beetle", "cat", "dog"] {
            assert_eq!(file.postings(none).num(), 0, "{none}");
        }
        file.postings.truncate(3);
        assert_eq!(file.postings("bee").count(), 0, "what is torn is not there");
    }

    #[test]
    fn an_index_is_about_as_large_as_its_text() {
        let text: String = (0..20_000u32).map(|n| format!("word{} ", n.wrapping_mul(2_654_435_761) >> 22)).collect();
        let stamp = Stamp { size_bytes: 0, modified_unix_ms: 0, passage_bytes: 800 };
        let have = FileIndex::new("a", stamp, &text).memory_bytes();
        assert!(have < text.len(), "{have} for {}", text.len());
    }
}
