//! How records lie in a file: a little-endian `u32` length, four bytes of the body's BLAKE3 hash, the body in postcard.
//!
//! A file is only ever appended to, so what a crash can leave is an unfinished record at its end. What could not be read
//! back is never written, and nothing behind bytes that are no record is read: where a record began would be up to whoever
//! chose the texts in them.

use crate::entry::Record;
use crate::error::LedgerError;
use std::path::{Path, PathBuf};

const HEADER_BYTES: usize = 8;
/// A record is a few hundred bytes; what claims to be longer is damage. Less than one read of the drain.
const MAX_BODY_BYTES: usize = 64 << 10;

/// Appends `record` to `out`, or nothing where it is too long.
pub(crate) fn encode(record: &Record, out: &mut Vec<u8>) -> Result<(), LedgerError> {
    let body = postcard::to_allocvec(&*record.written())?;
    if body.len() > MAX_BODY_BYTES {
        return Err(LedgerError::TooLong { bytes: body.len(), limit: MAX_BODY_BYTES });
    }
    out.extend_from_slice(&(body.len() as u32).to_le_bytes());
    out.extend_from_slice(&check(&body));
    out.extend_from_slice(&body);
    Ok(())
}

/// What lies at some place.
pub(crate) enum Found {
    /// A record, and how many bytes it takes.
    Record(Box<Record>, usize),
    /// Nothing, or the beginning of a record.
    End,
    /// Bytes that are no record.
    Damage,
}

/// The record at the start of `bytes`.
pub(crate) fn decode(bytes: &[u8]) -> Found {
    let Some((header, rest)) = bytes.split_first_chunk::<HEADER_BYTES>() else { return Found::End };
    let [l0, l1, l2, l3, sum @ ..] = *header;
    let length = u32::from_le_bytes([l0, l1, l2, l3]) as usize;
    if length == 0 || length > MAX_BODY_BYTES {
        return Found::Damage;
    }
    let Some(body) = rest.get(..length) else { return Found::End };
    if check(body) != sum {
        return Found::Damage;
    }
    match postcard::from_bytes::<Record>(body) {
        Ok(record) => Found::Record(Box::new(record.read()), HEADER_BYTES + length),
        Err(_) => Found::Damage,
    }
}

fn check(body: &[u8]) -> [u8; 4] {
    let hash = blake3::hash(body);
    let [a, b, c, d, ..] = *hash.as_bytes();
    [a, b, c, d]
}

/// The file of a segment.
pub(crate) fn path(folder: &Path, segment: u64) -> PathBuf {
    folder.join(format!("usage-{segment:010}.journal"))
}

/// The segments in a folder, oldest first.
pub(crate) fn list(folder: &Path) -> std::io::Result<Vec<u64>> {
    let mut segments = Vec::new();
    for file in std::fs::read_dir(folder)? {
        let name = file?.file_name();
        let number = name.to_str().and_then(|name| name.strip_prefix("usage-")?.strip_suffix(".journal"));
        segments.extend(number.and_then(|number| number.parse::<u64>().ok()));
    }
    segments.sort_unstable();
    Ok(segments)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::call::{CallKind, Called, Calls};
    use crate::entry::{Entry, Opening};
    use crate::price::Price;
    use crate::tally::Tokens;

    fn mark(number: u64) -> Record {
        Record::Mark(number, Tokens { input: 300, cached: 0, output: number })
    }

    fn calls_of(name: &str) -> Calls {
        Calls([((CallKind::Tool, name.to_owned()), Called { count: 2, price: 5 })].into())
    }

    #[test]
    fn records_follow_each_other_and_a_torn_one_is_the_end() {
        let mut bytes = Vec::new();
        encode(&mark(1), &mut bytes).unwrap();
        let first = bytes.len();
        encode(&mark(2), &mut bytes).unwrap();
        let Found::Record(record, length) = decode(&bytes) else { panic!() };
        assert_eq!((*record, length), (mark(1), first));
        for cut in first..bytes.len() {
            assert!(matches!(decode(&bytes[first..cut]), Found::End), "{cut}");
        }
    }

    #[test]
    fn project_and_calls_are_written_beside_what_older_records_have() {
        let opening = |project: Option<&str>| Opening {
            generation: "g".into(),
            request_id: "r".into(),
            tenant: "t".into(),
            project: project.map(Into::into),
            key_name: "k".into(),
            end_user: None,
            model: "m".into(),
            price: Price::default(),
            begun_ms: 7,
        };
        for project in [None, Some("proj_a")] {
            let opening = opening(project);
            let tokens = Tokens::default();
            let calls = Calls::default();
            let end = Entry { opening: opening.clone(), tokens, calls, outcome: "answered".into(), ended_ms: 9 };
            let called = Entry { calls: calls_of("web/search"), ..end.clone() };
            let mark = Record::MarkCalls(3, calls_of("web"));
            for record in [Record::Open(3, opening), Record::End(3, end), mark, Record::End(3, called)] {
                let mut bytes = Vec::new();
                encode(&record, &mut bytes).unwrap();
                let Found::Record(found, _) = decode(&bytes) else { panic!() };
                assert_eq!(*found, record);
            }
        }
        // What was written before there were projects: an opening, field by field.
        let body = b"\x00\x03\x01g\x01r\x01t\x01k\x00\x01m\x00\x00\x00\x07";
        let mut bytes = (body.len() as u32).to_le_bytes().to_vec();
        bytes.extend(check(body));
        bytes.extend(body);
        let Found::Record(found, _) = decode(&bytes) else { panic!() };
        assert_eq!(*found, Record::Open(3, opening(None)));
    }

    #[test]
    fn what_could_not_be_read_back_is_not_written() {
        let of = |length: usize| Record::MarkCalls(1, calls_of(&"x".repeat(length)));
        let mut bytes = Vec::new();
        encode(&of(MAX_BODY_BYTES - 100), &mut bytes).unwrap();
        let Found::Record(record, length) = decode(&bytes) else { panic!() };
        assert_eq!((*record, length), (of(MAX_BODY_BYTES - 100), bytes.len()));
        let refused = encode(&of(MAX_BODY_BYTES), &mut bytes).unwrap_err();
        assert!(matches!(refused, LedgerError::TooLong { .. }), "{refused}");
        assert_eq!(bytes.len(), length);
    }

    #[test]
    fn every_flipped_byte_of_a_body_is_damage() {
        let mut bytes = Vec::new();
        encode(&mark(1), &mut bytes).unwrap();
        for at in 4..bytes.len() {
            let mut flipped = bytes.clone();
            flipped[at] ^= 0x40;
            assert!(matches!(decode(&flipped), Found::Damage), "{at}");
        }
        assert!(matches!(decode(&[0; 64]), Found::Damage));
        assert!(matches!(decode(&[0xff; 64]), Found::Damage));
    }
}
