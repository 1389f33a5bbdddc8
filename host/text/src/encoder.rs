//! Text to token ids.
//!
//! Two ways: [`Encoder::encode`] is the tokenizer as it is, where a mark in the text is its token;
//! [`Encoder::encode_veiled`] takes a text whose caller-written marks are veiled, and promises that the control
//! tokens of the result are the unveiled marks and no others.
//!
//! The second runs the tokenizer's own stages (added tokens, normalizer, pre-tokenizer, model), and swaps the
//! stand-ins back between the first and the next, so that ordinary text is encoded as ever. Two more ways for
//! text to become a control token are closed on the way: a normalizer that turns other text into a mark, and
//! a model that has marks in its own vocabulary (Unigram, or BPE with `ignore_merges`).
//!
//! Read next: `veil.rs`.

use crate::added::ControlTokens;
use crate::error::TextError;
use crate::veil::{Veil, is_stand_in};
use std::borrow::Cow;
use std::ops::Range;
use std::panic::AssertUnwindSafe;
use tokenizers::normalizers::NormalizerWrapper;
use tokenizers::{
    Model, NormalizedString, Normalizer, OffsetReferential, OffsetType, PreTokenizedString, PreTokenizer, Token,
    Tokenizer,
};

/// Texts that a tokenizer must be able to encode before it serves.
const TRIALS: [&str; 4] = ["", "Hello, world 123\n\n  (x)", "é世👩‍👩‍👧\u{0}\t", " <s>[INST]<|im_end|> "];

/// Whether the tokens that the tokenizer puts around every text (such as `<s>`) are added.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AddSpecial {
    /// As for a prompt of its own.
    Yes,
    /// As for a part of one.
    No,
}

/// A tokenizer and what surrounds it.
pub(crate) struct Encoder {
    tokenizer: Tokenizer,
    controls: ControlTokens,
    /// Whether the normalizer leaves stand-ins as they are; it runs before they are swapped back.
    normalizer_keeps_stand_ins: bool,
    /// What [`AddSpecial::Yes`] puts before and behind a text.
    around: (Vec<u32>, Vec<u32>),
}

impl Encoder {
    /// Tries the tokenizer out, so that a file that contradicts itself is found here and not by a request.
    pub fn new(tokenizer: Tokenizer, controls: ControlTokens) -> Result<Self, TextError> {
        let mut encoder = Self { tokenizer, controls, normalizer_keeps_stand_ins: true, around: Default::default() };
        encoder.normalizer_keeps_stand_ins = guarded(|| Ok(encoder.keeps_stand_ins()))?;
        encoder.around = encoder.surroundings()?;
        for text in TRIALS {
            encoder.encode(text, AddSpecial::Yes)?;
            encoder.encode_literal(text, AddSpecial::Yes)?;
        }
        Ok(encoder)
    }

    pub fn tokenizer(&self) -> &Tokenizer {
        &self.tokenizer
    }

    pub fn controls(&self) -> &ControlTokens {
        &self.controls
    }

    /// The tokenizer as it is: marks in the text are their tokens.
    pub fn encode(&self, text: &str, add: AddSpecial) -> Result<Vec<u32>, TextError> {
        guarded(|| Ok(self.tokenizer.encode_fast(text, add == AddSpecial::Yes)?.get_ids().to_vec()))
    }

    /// A caller's text: marks in it are plain text.
    pub fn encode_literal(&self, text: &str, add: AddSpecial) -> Result<Vec<u32>, TextError> {
        let mut veil = Veil::new(&self.controls);
        let veiled = veil.text(text)?;
        Ok(self.surrounded(self.encode_veiled(&veiled, &mut veil)?, add))
    }

    /// The ids of a text with those that are added to it.
    pub fn surrounded(&self, ids: Vec<u32>, add: AddSpecial) -> Vec<u32> {
        match add {
            AddSpecial::No => ids,
            AddSpecial::Yes => [self.around.0.as_slice(), &ids, &self.around.1].concat(),
        }
    }

    /// The ids of a whole text without a second beginning, where the text has one of its own.
    pub fn begun_once(&self, mut ids: Vec<u32>) -> Vec<u32> {
        let begin = self.around.0.as_slice();
        let rest = ids.strip_prefix(begin).filter(|_| !begin.is_empty());
        if rest.is_some_and(|rest| rest.starts_with(begin)) {
            ids.drain(..begin.len());
        }
        ids
    }

    /// A rendered template: marks in it are their tokens, veiled ones are plain text.
    pub fn encode_veiled(&self, text: &str, veil: &mut Veil<'_>) -> Result<Vec<u32>, TextError> {
        guarded(|| self.run_stages(text, veil))
    }

    fn run_stages(&self, text: &str, veil: &mut Veil<'_>) -> Result<Vec<u32>, TextError> {
        let mut splits = self.split_at_marks(text, veil)?;
        if text.contains(is_stand_in) {
            splits.normalize(|part| {
                part.map(|c| veil.original(c));
                Ok(())
            })?;
        }
        if !self.normalizer_keeps_stand_ins {
            splits.normalize(|part| self.normalize(part))?;
        }
        if let Some(pre_tokenizer) = self.tokenizer.get_pre_tokenizer() {
            pre_tokenizer.pre_tokenize(&mut splits)?;
        }
        splits.tokenize(|part| self.tokenize_plain(part.get()))?;
        let parts = splits.get_splits(OffsetReferential::Normalized, OffsetType::None);
        Ok(parts.into_iter().filter_map(|(_, _, tokens)| tokens.as_ref()).flatten().map(|token| token.id).collect())
    }

    /// Splits off the marks. A mark that only the normalizer made out of other text is veiled and split again.
    fn split_at_marks(&self, text: &str, veil: &mut Veil<'_>) -> Result<PreTokenizedString, TextError> {
        let normalizer = self.normalizer_of_veiled();
        let mut text = Cow::Borrowed(text);
        loop {
            let splits = self.tokenizer.get_added_vocabulary().extract_and_normalize(normalizer, &text);
            let made = self.marks_made_by_normalizer(&splits, &text);
            if made.is_empty() {
                return Ok(splits);
            }
            text = Cow::Owned(veil.swap_at(&text, &made)?);
        }
    }

    /// What a veiled text is normalized by before marks are looked for.
    pub fn normalizer_of_veiled(&self) -> Option<&NormalizerWrapper> {
        self.tokenizer.get_normalizer().filter(|_| self.normalizer_keeps_stand_ins)
    }

    /// Which of these places of a text, runs of white space, a mark swallows as a whole.
    pub fn swallowed(
        &self,
        text: &str,
        places: &[Range<usize>],
        normalizer: Option<&NormalizerWrapper>,
    ) -> Result<Vec<bool>, TextError> {
        guarded(|| {
            let vocabulary = self.tokenizer.get_added_vocabulary();
            let added = vocabulary.get_added_tokens_decoder();
            let swallows = |tokens: Option<&[Token]>| matches!(tokens, Some([token]) if added.get(&token.id).is_some_and(|mark| mark.lstrip || mark.rstrip));
            let splits = vocabulary.extract_and_normalize(normalizer, text);
            let splits = splits.get_splits(OffsetReferential::Original, OffsetType::Byte).into_iter();
            let mut splits: Vec<_> =
                splits.map(|(_, (start, end), tokens)| (start, end, swallows(tokens.as_deref()))).collect();
            splits.sort_by_key(|(start, ..)| *start);
            // Of one that begins at the run or before it, and with no other in it.
            let is_swallowed = |place: &Range<usize>| {
                let next = splits.partition_point(|(start, ..)| *start <= place.start);
                let alone = splits.get(next).is_none_or(|(start, ..)| *start >= place.end);
                alone && next.checked_sub(1).is_some_and(|at| splits[at].1 >= place.end && splits[at].2)
            };
            Ok(places.iter().map(is_swallowed).collect())
        })
    }

    /// Where a control token was found whose text does not stand there; each position has a character to swap.
    fn marks_made_by_normalizer(&self, splits: &PreTokenizedString, text: &str) -> Vec<usize> {
        let added = self.tokenizer.get_added_vocabulary().get_added_tokens_decoder();
        let is_made = |id: u32, written: &str| {
            self.controls.contains(id)
                && added.get(&id).is_some_and(|token| token.content.trim() != written.trim())
                && written.chars().any(|c| !is_stand_in(c))
        };
        let mut made = Vec::new();
        for (_, (start, end), tokens) in splits.get_splits(OffsetReferential::Original, OffsetType::Byte) {
            let Some([token]) = tokens.as_deref() else { continue };
            if text.get(start..end).is_some_and(|written| is_made(token.id, written)) {
                let unveiled = text[start..end].char_indices().filter(|(_, c)| !is_stand_in(*c));
                made.extend(unveiled.map(|(at, _)| start + at));
            }
        }
        made
    }

    fn normalize(&self, part: &mut NormalizedString) -> tokenizers::Result<()> {
        self.tokenizer.get_normalizer().map_or(Ok(()), |normalizer| normalizer.normalize(part))
    }

    /// The model's tokens of plain text, without control tokens that its own vocabulary may have.
    fn tokenize_plain(&self, text: &str) -> tokenizers::Result<Vec<Token>> {
        let mut tokens = Vec::new();
        let mut parts = vec![text];
        while let Some(part) = parts.pop() {
            let found = self.tokenizer.get_model().tokenize(part)?;
            let cuts = self.cuts(part, &found);
            if cuts.is_empty() {
                tokens.extend(found);
                continue;
            }
            let ends = cuts[1..].iter().copied().chain([part.len()]);
            let pieces: Vec<&str> = cuts.iter().copied().zip(ends).map(|(start, end)| &part[start..end]).collect();
            parts.extend(pieces.into_iter().rev());
            parts.push(&part[..cuts[0]]);
        }
        Ok(tokens)
    }

    /// Where to cut a text so that the control tokens in its encoding break: behind their first characters.
    fn cuts(&self, text: &str, tokens: &[Token]) -> Vec<usize> {
        let controls = tokens.iter().filter(|token| self.controls.contains(token.id));
        let cut = |token: &Token| {
            let first = text.get(token.offsets.0..token.offsets.1)?.chars().next()?;
            Some(token.offsets.0 + first.len_utf8()).filter(|cut| *cut < token.offsets.1)
        };
        controls.filter_map(cut).collect()
    }

    fn keeps_stand_ins(&self) -> bool {
        let mut probe = NormalizedString::from("a\u{100000}\u{10FFFD}a");
        self.normalize(&mut probe).is_ok() && probe.get().contains("a\u{100000}\u{10FFFD}a")
    }

    /// What the post-processor puts around a text, seen on a text of one letter.
    fn surroundings(&self) -> Result<(Vec<u32>, Vec<u32>), TextError> {
        let inner = self.encode("a", AddSpecial::No)?;
        let outer = self.encode("a", AddSpecial::Yes)?;
        let at = outer.windows(inner.len().max(1)).position(|window| window == inner);
        Ok(at.map(|at| (outer[..at].to_vec(), outer[at + inner.len()..].to_vec())).unwrap_or_default())
    }
}

/// The tokenizers crate panics on some files that contradict themselves. That is an error of this one request.
fn guarded<T>(run: impl FnOnce() -> Result<T, TextError>) -> Result<T, TextError> {
    let outcome = std::panic::catch_unwind(AssertUnwindSafe(run));
    outcome.unwrap_or_else(|_| Err(TextError::Encode("its description contradicts itself".to_owned())))
}

impl From<tokenizers::Error> for TextError {
    fn from(error: tokenizers::Error) -> Self {
        Self::Encode(error.to_string())
    }
}
