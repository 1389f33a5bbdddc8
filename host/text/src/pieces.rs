//! The bytes of every token, worked out once at load, so that detokenizing is a table look-up.
//!
//! A tokenizer's decoder is a chain of steps over token strings. All steps that language models use act on
//! each token alone, but for two that look at the beginning of the text (they drop the space that the
//! tokenizer put there). So a token's bytes are computed here by running the chain on it, and the
//! beginning is a [`HeadRule`]. Decoders that join tokens in other ways are refused at load.
//!
//! The text of tokens is their bytes joined, read as UTF-8 with U+FFFD for what is not. Hugging Face's
//! decoder says the same except for byte tokens (`<0xE2>`) that do not form characters: it replaces a whole
//! run of those, also the characters in it, which a stream cannot do after having sent them.
//!
//! Read next: `detokenizer.rs`.

use tokenizers::decoders::DecoderWrapper;
use tokenizers::decoders::metaspace::PrependScheme;
use tokenizers::{Decoder, Tokenizer};

/// What [`PieceTable::build`] can decode, for error messages.
pub(crate) const SUPPORTED_DECODERS: &str =
    "ByteLevel, Metaspace, and sequences of Replace, ByteFallback, Fuse, Strip (of an ASCII character, at the start)";

/// Token ids are below this, as is the `vocab_size` of any model that is loaded: tables are as long as the highest id.
pub(crate) const MAX_IDS: u32 = 1 << 22;

/// What happens to the beginning of a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HeadRule {
    /// Nothing.
    Keep,
    /// Up to `count` times this byte is dropped.
    Strip { byte: u8, count: usize },
    /// The first token loses all its space markers.
    Unspace { marker: char },
}

/// How one token's string becomes bytes.
#[derive(Clone)]
enum Step {
    /// The GPT-2 alphabet of printable stand-ins for bytes.
    ByteLevel,
    /// `<0x41>` is the byte 0x41.
    ByteFallback,
    /// A space marker is a space.
    Unmark(char),
    /// A step of the tokenizers crate that acts on each token alone.
    Each(DecoderWrapper),
}

/// Bytes and kind of every token id.
pub(crate) struct PieceTable {
    /// `bytes[starts[id]..starts[id + 1]]` is token `id`.
    starts: Vec<u32>,
    bytes: Vec<u8>,
    special: Vec<bool>,
    steps: Vec<Step>,
    head: HeadRule,
}

impl PieceTable {
    /// Runs the tokenizer's decoder on every token; on failure says what is not supported. No id is [`MAX_IDS`] or above.
    pub fn build(tokenizer: &Tokenizer) -> Result<Self, String> {
        let (steps, head) = compile(tokenizer.get_decoder())?;
        let num_ids = tokenizer.get_vocab(true).values().max().map_or(0, |id| *id as usize + 1);
        debug_assert!(num_ids <= MAX_IDS as usize, "{num_ids} ids");
        let mut table = Self { starts: vec![0], bytes: Vec::new(), special: vec![false; num_ids], steps, head };
        for id in 0..num_ids as u32 {
            if let Some(token) = tokenizer.id_to_token(id) {
                table.bytes.extend(run_steps(&table.steps, &token)?);
            }
            table.starts.push(u32::try_from(table.bytes.len()).map_err(|_| "a vocabulary of over 4 GiB".to_owned())?);
        }
        for (id, added) in tokenizer.get_added_vocabulary().get_added_tokens_decoder() {
            if let Some(flag) = table.special.get_mut(*id as usize) {
                *flag = added.special;
            }
        }
        Ok(table)
    }

    /// One more than the highest token id.
    pub fn num_ids(&self) -> usize {
        self.special.len()
    }

    /// The token's bytes; none for an id without a token (models pad their vocabulary).
    pub fn bytes(&self, id: u32) -> &[u8] {
        let id = id as usize;
        match (self.starts.get(id), self.starts.get(id + 1)) {
            (Some(&start), Some(&end)) => &self.bytes[start as usize..end as usize],
            _ => &[],
        }
    }

    /// Whether the tokenizer calls the token special, so that it is no part of the text.
    pub fn is_special(&self, id: u32) -> bool {
        self.special.get(id as usize).copied().unwrap_or(false)
    }

    pub fn head(&self) -> HeadRule {
        self.head
    }

    /// The bytes of a token that opens a text, under [`HeadRule::Unspace`].
    pub fn bytes_without(&self, token: &str, marker: char) -> Vec<u8> {
        run_steps(&self.steps, &token.replace(marker, "")).unwrap_or_default()
    }
}

fn compile(decoder: Option<&DecoderWrapper>) -> Result<(Vec<Step>, HeadRule), String> {
    let mut chain = Chain { steps: Vec::new(), head: HeadRule::Keep, fused: false };
    match decoder {
        None => return Err("no decoder".to_owned()),
        Some(DecoderWrapper::Sequence(sequence)) => {
            for decoder in sequence.get_decoders() {
                chain.add(decoder)?;
            }
        }
        Some(decoder) => chain.add(decoder)?,
    }
    Ok((chain.steps, chain.head))
}

struct Chain {
    steps: Vec<Step>,
    head: HeadRule,
    /// From here on steps see the whole text instead of tokens.
    fused: bool,
}

impl Chain {
    fn add(&mut self, decoder: &DecoderWrapper) -> Result<(), String> {
        match decoder {
            DecoderWrapper::Fuse(_) => self.fused = true,
            DecoderWrapper::Strip(strip) if self.fused => {
                if strip.stop != 0 || !strip.content.is_ascii() || self.head != HeadRule::Keep {
                    return Err(format!("the decoder step {strip:?} on the whole text"));
                }
                self.head = HeadRule::Strip { byte: strip.content as u8, count: strip.start };
            }
            _ if self.fused => return Err(format!("the decoder step {decoder:?} on the whole text")),
            DecoderWrapper::ByteLevel(_) => {
                self.steps.push(Step::ByteLevel);
                self.fused = true;
            }
            DecoderWrapper::ByteFallback(_) => self.steps.push(Step::ByteFallback),
            DecoderWrapper::Replace(_) | DecoderWrapper::Strip(_) => self.steps.push(Step::Each(decoder.clone())),
            DecoderWrapper::Metaspace(metaspace) => {
                let marker = metaspace.get_replacement();
                if !self.steps.is_empty() {
                    return Err("a Metaspace decoder after other steps".to_owned());
                }
                if metaspace.get_prepend_scheme() != PrependScheme::Never {
                    self.head = HeadRule::Unspace { marker };
                }
                self.steps.push(Step::Unmark(marker));
            }
            _ => return Err(format!("the decoder {decoder:?}")),
        }
        Ok(())
    }
}

fn run_steps(steps: &[Step], token: &str) -> Result<Vec<u8>, String> {
    let mut text = token.to_owned();
    for step in steps {
        match step {
            Step::ByteLevel => return Ok(byte_level(&text)),
            Step::ByteFallback => {
                if let Some(byte) = fallback_byte(&text) {
                    return Ok(vec![byte]);
                }
            }
            Step::Unmark(marker) => text = text.replace(*marker, " "),
            Step::Each(decoder) => {
                let parts = decoder.decode_chain(vec![text]).map_err(|error| error.to_string())?;
                text = parts.concat();
            }
        }
    }
    Ok(text.into_bytes())
}

/// `<0x41>` as 0x41, by the rule of the tokenizers crate.
fn fallback_byte(token: &str) -> Option<u8> {
    let digits = token.strip_prefix("<0x")?.strip_suffix('>')?;
    if digits.len() == 2 { u8::from_str_radix(digits, 16).ok() } else { None }
}

/// A token of which any character is not of the alphabet stands for itself (added tokens do).
fn byte_level(token: &str) -> Vec<u8> {
    token.chars().map(byte_of_char).collect::<Option<Vec<u8>>>().unwrap_or_else(|| token.as_bytes().to_vec())
}

/// GPT-2's `bytes_to_unicode`, read backwards: printable Latin-1 stands for itself, the 68 other bytes are, in
/// their order, U+0100 and up.
fn byte_of_char(c: char) -> Option<u8> {
    let stands_for_itself = |b: u8| matches!(b, b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF);
    match u32::from(c) {
        code @ 0..=0xFF => Some(code as u8).filter(|b| stands_for_itself(*b)),
        code @ 0x100..=0x143 => (0..=255u8).filter(|b| !stands_for_itself(*b)).nth((code - 0x100) as usize),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_byte_alphabet_covers_every_byte_once() {
        let mut bytes: Vec<u8> = (0..0x200).filter_map(char::from_u32).filter_map(byte_of_char).collect();
        bytes.sort_unstable();
        assert_eq!(bytes, (0..=255).collect::<Vec<u8>>());
    }

    #[test]
    fn the_byte_alphabet_is_that_of_gpt2() {
        for (c, byte) in [('!', b'!'), ('Ġ', b' '), ('Ċ', b'\n'), ('ł', 0xA0), ('Ń', 0xAD), ('ÿ', 0xFF), ('Ā', 0)]
        {
            assert_eq!(byte_of_char(c), Some(byte), "{c}");
        }
    }

    #[test]
    fn byte_tokens_are_bytes_and_look_alikes_are_text() {
        assert_eq!(fallback_byte("<0xE2>"), Some(0xE2));
        for token in ["<0xE>", "<0xE22>", "<0xGG>", "0xE2", "<0x+2>x"] {
            assert_eq!(fallback_byte(token), None, "{token}");
        }
    }
}
