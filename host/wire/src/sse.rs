//! Cuts the bytes of an event stream into the data of its events, whatever the network's chunks.
//!
//! By the HTML standard: lines end in LF, CR or CRLF, `data` lines of an event join with LF, an empty line ends
//! the event, comments and other fields are skipped. An event that is one line (as all of OpenAI's are) is
//! handed out in place, without a copy. One event has at most `limit_bytes`.

use crate::client::WireError;
use std::ops::Range;

/// An incremental reader of server-sent events.
pub struct SseReader {
    buffer: Vec<u8>,
    /// Start of the next line.
    line_start: usize,
    /// Up to here the next line is known to have no end.
    searched: usize,
    /// The last line ended in CR; a LF that follows belongs to it.
    after_cr: bool,
    at_start: bool,
    pending: Pending,
    joined: Vec<u8>,
    limit_bytes: usize,
}

/// The data of the event that is being read.
enum Pending {
    Nothing,
    /// One line, where it lies in the buffer.
    InPlace(Range<usize>),
    /// In `joined`.
    Joined,
    /// In `joined`, and already handed out.
    Spent,
}

impl SseReader {
    /// A reader that refuses events of more than `limit_bytes`.
    pub fn new(limit_bytes: usize) -> Self {
        Self {
            buffer: Vec::with_capacity(2048),
            line_start: 0,
            searched: 0,
            after_cr: false,
            at_start: true,
            pending: Pending::Nothing,
            joined: Vec::new(),
            limit_bytes,
        }
    }

    /// Adds bytes from the network. Call [`Self::next_event`] until it has none before adding more.
    pub fn push(&mut self, bytes: &[u8]) {
        if let Pending::InPlace(range) = &self.pending {
            self.joined.clear();
            self.joined.extend_from_slice(&self.buffer[range.clone()]);
            self.pending = Pending::Joined;
        }
        self.buffer.drain(..self.line_start);
        self.searched -= self.line_start;
        self.line_start = 0;
        self.buffer.extend_from_slice(bytes);
    }

    /// The data of the next complete event.
    pub fn next_event(&mut self) -> Result<Option<&[u8]>, WireError> {
        while let Some(line) = self.next_line() {
            if line.is_empty() {
                match std::mem::replace(&mut self.pending, Pending::Nothing) {
                    Pending::InPlace(range) => return Ok(Some(&self.buffer[range])),
                    Pending::Joined => {
                        self.pending = Pending::Spent;
                        return Ok(Some(&self.joined));
                    }
                    Pending::Nothing | Pending::Spent => {}
                }
            } else if let Some(data) = data_of(&self.buffer, line) {
                self.add(data);
            }
            self.check_length(0)?;
        }
        self.check_length(self.buffer.len() - self.line_start)?;
        Ok(None)
    }

    /// Whether bytes of an unfinished event are left; at the end of a stream it means that it was cut.
    pub fn is_mid_event(&self) -> bool {
        self.line_start < self.buffer.len() || matches!(self.pending, Pending::InPlace(_) | Pending::Joined)
    }

    /// The data of an event that the end of a stream left unfinished. The standard drops it, since it may be cut: whether
    /// it is whole its reader must see from what it says.
    pub fn last_event(&mut self) -> Result<Option<&[u8]>, WireError> {
        self.push(b"\n\n");
        self.next_event()
    }

    fn next_line(&mut self) -> Option<Range<usize>> {
        if self.after_cr && self.line_start < self.buffer.len() {
            self.after_cr = false;
            if self.buffer[self.line_start] == b'\n' {
                self.line_start += 1;
                self.searched = self.searched.max(self.line_start);
            }
        }
        let Some(offset) = memchr::memchr2(b'\n', b'\r', &self.buffer[self.searched..]) else {
            self.searched = self.buffer.len();
            return None;
        };
        let end = self.searched + offset;
        let mut start = self.line_start;
        if std::mem::take(&mut self.at_start) && self.buffer[start..end].starts_with(b"\xef\xbb\xbf") {
            start += 3;
        }
        self.after_cr = self.buffer[end] == b'\r';
        self.line_start = end + 1;
        self.searched = end + 1;
        Some(start..end)
    }

    fn add(&mut self, data: Range<usize>) {
        match &self.pending {
            Pending::Nothing | Pending::Spent => {
                self.pending = Pending::InPlace(data);
                return;
            }
            Pending::InPlace(first) => {
                self.joined.clear();
                self.joined.extend_from_slice(&self.buffer[first.clone()]);
            }
            Pending::Joined => {}
        }
        self.joined.push(b'\n');
        self.joined.extend_from_slice(&self.buffer[data]);
        self.pending = Pending::Joined;
    }

    fn check_length(&self, unfinished: usize) -> Result<(), WireError> {
        let pending = match &self.pending {
            Pending::InPlace(range) => range.len(),
            Pending::Joined => self.joined.len(),
            Pending::Nothing | Pending::Spent => 0,
        };
        if pending + unfinished > self.limit_bytes {
            return Err(WireError::EventTooLong { limit_bytes: self.limit_bytes });
        }
        Ok(())
    }
}

/// Where the value of a `data` line lies.
fn data_of(buffer: &[u8], line: Range<usize>) -> Option<Range<usize>> {
    let rest = buffer[line.clone()].strip_prefix(b"data")?;
    match rest {
        [] => Some(line.end..line.end),
        [b':', b' ', ..] => Some(line.start + 6..line.end),
        [b':', ..] => Some(line.start + 5..line.end),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn read(chunks: &[&[u8]]) -> Vec<String> {
        let mut reader = SseReader::new(1 << 20);
        let mut events = Vec::new();
        for chunk in chunks {
            reader.push(chunk);
            while let Some(event) = reader.next_event().unwrap() {
                events.push(String::from_utf8(event.to_vec()).unwrap());
            }
        }
        events
    }

    #[test]
    fn follows_the_standard() {
        let check = |text: &str, expected: &[&str]| assert_eq!(read(&[text.as_bytes()]), expected, "{text:?}");
        check("data: a\n\ndata:b\n\n", &["a", "b"]);
        check("data:  two spaces\r\n\r\n", &[" two spaces"]);
        check("data: a\rdata: b\r\r", &["a\nb"]);
        check(": comment\nevent: x\nid: 1\nretry: 5\ndata: a\n\n", &["a"]);
        check("data\n\n", &[""]);
        check("data:\ndata:\n\n", &["\n"]);
        check("\n\n\ndata: a\n\n", &["a"]);
        check("\u{feff}data: a\n\n", &["a"]);
        check("database: a\n\n", &[]);
        check("data: never ended\n", &[]);
    }

    #[test]
    fn an_unfinished_event_is_known() {
        let mut reader = SseReader::new(100);
        reader.push(b"data: a\n\n");
        assert!(reader.next_event().unwrap().is_some());
        assert!(!reader.is_mid_event());
        reader.push(b"data: b\n");
        assert!(reader.next_event().unwrap().is_none());
        assert!(reader.is_mid_event());
    }

    #[test]
    fn what_the_end_left_unfinished_can_be_read() {
        for (chunks, last) in [
            (&["data: a\n\n"][..], None),
            (&["data: b\n"], Some("b")),
            (&["data: b\r"], Some("b")),
            (&["data: b"], Some("b")),
            (&["data: b\n", "data: c"], Some("b\nc")),
            (&["dat"], None),
        ] {
            let mut reader = SseReader::new(100);
            for chunk in chunks {
                reader.push(chunk.as_bytes());
                while reader.next_event().unwrap().is_some() {}
            }
            assert_eq!(reader.last_event().unwrap(), last.map(str::as_bytes), "{chunks:?}");
        }
    }

    #[test]
    fn a_line_without_end_and_an_event_without_end_are_refused() {
        let mut reader = SseReader::new(100);
        reader.push(&[b'x'; 101]);
        assert!(matches!(reader.next_event(), Err(WireError::EventTooLong { limit_bytes: 100 })));
        let mut reader = SseReader::new(100);
        let mut refused = false;
        for _ in 0..30 {
            reader.push(b"data: xxxxx\n");
            refused |= reader.next_event().is_err();
        }
        assert!(refused);
    }

    proptest! {
        #[test]
        fn chunks_do_not_matter(
            events in prop::collection::vec("[a-z :\u{e4}]{0,12}(\n[a-z]{0,5})?", 0..12),
            ending in prop::sample::select(vec!["\n", "\r", "\r\n"]),
            cuts in prop::collection::vec(0usize..400, 0..40),
        ) {
            let mut text = String::new();
            for event in &events {
                for line in event.split('\n') {
                    text += &format!("data: {line}{ending}");
                }
                text += &format!(": note{ending}{ending}");
            }
            let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.min(text.len())).chain([0, text.len()]).collect();
            cuts.sort_unstable();
            let chunks: Vec<&[u8]> = cuts.windows(2).map(|pair| &text.as_bytes()[pair[0]..pair[1]]).collect();
            prop_assert_eq!(read(&chunks), events);
        }
    }
}
