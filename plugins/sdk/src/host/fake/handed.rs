//! What a call of a capability hands over. The host counts it before it looks at it, a list with what its elements take
//! there, which is about what they take here; where it is more than the stage's `output_bytes`, it ends the plugin's call.

use crate::host::http::{Request, SecretHeader};
use crate::host::vectors::Entry;
use crate::types::{Media, MediaSource, Message, Part, ToolCall, ToolOutcome};

/// The host's default of `output_bytes`.
const OUTPUT_BYTES: usize = 1 << 20;

/// Counts the arguments of one call.
///
/// # Panics
/// When they are more than the host takes: it would end the plugin's call, which no `Err` can stand for.
pub(super) fn hand_over(function: &str, arguments: &[&dyn Handed]) {
    let bytes: usize = arguments.iter().map(|argument| argument.handed_bytes()).sum();
    assert!(
        bytes <= OUTPUT_BYTES,
        "`{function}` hands over {bytes} bytes at once: the host ends the call of a plugin that hands over more than \
         {OUTPUT_BYTES} (`output_bytes`)"
    );
}

/// Something that is handed over.
pub(super) trait Handed {
    /// What it takes beside its own place, which is its list's.
    fn handed_bytes(&self) -> usize;
}

impl<T: Handed + ?Sized> Handed for &T {
    fn handed_bytes(&self) -> usize {
        (**self).handed_bytes()
    }
}

impl Handed for u8 {
    fn handed_bytes(&self) -> usize {
        0
    }
}

impl Handed for f32 {
    fn handed_bytes(&self) -> usize {
        0
    }
}

impl Handed for str {
    fn handed_bytes(&self) -> usize {
        self.len()
    }
}

impl Handed for String {
    fn handed_bytes(&self) -> usize {
        self.len()
    }
}

impl<T: Handed> Handed for Option<T> {
    fn handed_bytes(&self) -> usize {
        self.as_ref().map_or(0, T::handed_bytes)
    }
}

impl<T: Handed> Handed for [T] {
    fn handed_bytes(&self) -> usize {
        size_of_val(self) + self.iter().map(T::handed_bytes).sum::<usize>()
    }
}

impl<T: Handed> Handed for Vec<T> {
    fn handed_bytes(&self) -> usize {
        self.as_slice().handed_bytes()
    }
}

impl Handed for (String, String) {
    fn handed_bytes(&self) -> usize {
        self.0.len() + self.1.len()
    }
}

impl Handed for Entry {
    fn handed_bytes(&self) -> usize {
        self.id.len() + self.vector.handed_bytes() + self.payload.handed_bytes()
    }
}

impl Handed for SecretHeader {
    fn handed_bytes(&self) -> usize {
        self.name.len() + self.prefix.len() + self.secret.len()
    }
}

impl Handed for Request {
    fn handed_bytes(&self) -> usize {
        let headers = self.headers.handed_bytes() + self.secret_headers.handed_bytes();
        self.method.len() + self.url.len() + headers + self.body.len()
    }
}

impl Handed for Message {
    fn handed_bytes(&self) -> usize {
        self.id.len() + self.name.handed_bytes() + self.parts.handed_bytes() + self.attrs.handed_bytes()
    }
}

impl Handed for Part {
    fn handed_bytes(&self) -> usize {
        match self {
            Self::Text(text) | Self::Reasoning(text) | Self::Refusal(text) => text.len(),
            Self::Image(media) | Self::Audio(media) | Self::File(media) => media.handed_bytes(),
            Self::ToolCall(ToolCall { id, name, arguments }) => id.len() + name.len() + arguments.len(),
            Self::ToolOutcome(ToolOutcome { call_id, content, structured, .. }) => {
                call_id.len() + content.len() + structured.handed_bytes()
            }
            Self::Opaque { kind, body } => kind.len() + body.len(),
        }
    }
}

impl Handed for Media {
    fn handed_bytes(&self) -> usize {
        let source = match &self.source {
            MediaSource::Url(url) => url.len(),
            MediaSource::Inline(bytes) => bytes.len(),
            MediaSource::Withheld => 0,
        };
        self.mime.len() + source
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::{http, kv, models, vectors};

    #[test]
    fn a_call_may_hand_over_a_mebibyte() {
        kv::set("key", &vec![0; OUTPUT_BYTES - 3], None).unwrap();
        let payload = vec![("k".to_owned(), "v".to_owned())];
        let entry = Entry { id: "id".into(), vector: vec![1.0; 4], payload };
        assert_eq!([entry].handed_bytes(), 72 + 2 + 16 + 48 + 2, "as wasmtime counts it");
    }

    #[test]
    #[should_panic(expected = "`kv.set` hands over 1048577 bytes at once: the host ends the call")]
    fn a_byte_more_ends_it() {
        let _ = kv::set("key", &vec![0; OUTPUT_BYTES - 2], None);
    }

    #[test]
    #[should_panic(expected = "`vectors.put` hands over")]
    fn all_entries_of_a_call_count_together() {
        let entry = |n: usize| Entry { id: n.to_string(), vector: vec![1.0; 1024], payload: Vec::new() };
        let _ = vectors::put("notes", &(0..256).map(entry).collect::<Vec<_>>());
    }

    #[test]
    #[should_panic(expected = "`http.send-all` hands over")]
    fn so_do_all_requests() {
        let request = http::Request::post_json("https://h/", vec![b' '; 70_000]);
        http::send_all(&vec![request; 15]);
    }

    #[test]
    #[should_panic(expected = "`models.classify` hands over")]
    fn and_all_texts() {
        let _ = models::classify("judge", &vec!["x".repeat(4096); 256]);
    }
}
