//! Random characters that make events of a stream alike in size, as OpenAI's `obfuscation` does. Who sees an encrypted
//! stream sees the sizes of its events, and from those of its tokens much of the text can be told (Weiss et al., "What Was
//! Your Prompt? A Remote Keylogging Attack on AI Assistants", 2024).
//!
//! What differs between events of one kind is their text and its log-probabilities. Those bytes and the characters after
//! them make a multiple of [`STEP`] together, so that the size says how many steps there are, and of a token, which is
//! shorter than a step, nothing. It costs at most 49 bytes for each event. Characters are random, for equal
//! ones would be compressed away; they are no secret, so a generator without a key will do.

use crate::write::raw;
use bytes::BytesMut;
use std::hash::{BuildHasher, Hasher, RandomState};

/// Longer than nearly all tokens are, once written as JSON.
pub(crate) const STEP: usize = 32;

/// Pads the events of one stream.
pub(crate) struct Padding {
    state: u64,
}

impl Padding {
    pub(crate) fn new() -> Self {
        Self { state: RandomState::new().build_hasher().finish() }
    }

    /// Writes a member behind others: at least one character, and with `bytes` before it whole steps.
    pub(crate) fn write(&mut self, bytes: usize, out: &mut BytesMut) {
        const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
        let mut letters = [b'A'; STEP];
        for some in letters.chunks_mut(8) {
            let mut random = self.next();
            for letter in some {
                *letter = LETTERS[(random & 63) as usize];
                random >>= 6;
            }
        }
        raw(out, r#","obfuscation":""#);
        out.extend_from_slice(&letters[..STEP - bytes % STEP]);
        raw(out, "\"");
    }

    /// SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014).
    fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_and_characters_make_whole_steps_and_no_two_are_alike() {
        let (mut padding, mut seen) = (Padding::new(), std::collections::HashSet::new());
        for bytes in 0..200 {
            let mut out = BytesMut::new();
            padding.write(bytes, &mut out);
            let text = std::str::from_utf8(&out).unwrap();
            let letters = text.strip_prefix(",\"obfuscation\":\"").unwrap().strip_suffix('"').unwrap();
            assert!(
                (1..=STEP).contains(&letters.len()) && (bytes + letters.len()).is_multiple_of(STEP),
                "{bytes}: {letters}"
            );
            assert!(letters.bytes().all(|letter| letter.is_ascii_alphanumeric() || b"-_".contains(&letter)));
            assert!(letters.len() < 8 || seen.insert(letters.to_owned()), "{letters}");
        }
    }
}
