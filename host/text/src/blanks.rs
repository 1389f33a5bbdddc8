//! White space that a mark swallows. Tokenizers let a mark take all white space beside it into its own token (`lstrip`,
//! `rstrip`), and that may be megabytes. Such runs of white space are shortened before a text is measured and encoded, which
//! changes none of its tokens.
//!
//! The tokenizer itself says which they are (`Encoder::swallowed`), of the text with all its long runs shortened: what is left
//! of one is more than a mark could be told apart by.
//!
//! Not where a mark takes it of the normalized text (`normalized`, beside a normalizer): that may have other characters in the
//! middle of a run than at its ends, and marks that nobody wrote. There all white space is measured and encoded like other text.

use std::ops::Range;

/// A run of more bytes is long.
pub(crate) const LONG_BYTES: usize = 256;
/// Left of a long one at each of its ends.
const END_BYTES: usize = 64;

/// The long runs of white space in a text, in their order.
pub(crate) fn long_runs(text: &str) -> Vec<Range<usize>> {
    let (mut runs, mut begun) = (Vec::new(), None);
    let end = [(text.len(), '.')];
    for (at, c) in text.char_indices().chain(end) {
        match begun {
            None if c.is_whitespace() => begun = Some(at),
            Some(start) if !c.is_whitespace() => {
                begun = None;
                if at - start > LONG_BYTES {
                    runs.push(start..at);
                }
            }
            _ => {}
        }
    }
    runs
}

/// The text without the inside of these runs, and where they are in that.
pub(crate) fn shortened(text: &str, runs: &[Range<usize>]) -> (String, Vec<Range<usize>>) {
    let (mut short, mut places, mut done) = (String::new(), Vec::with_capacity(runs.len()), 0);
    for run in runs {
        short.push_str(&text[done..run.start]);
        let start = short.len();
        short.push_str(&text[run.start..text.floor_char_boundary(run.start + END_BYTES)]);
        short.push_str(&text[text.ceil_char_boundary(run.end - END_BYTES)..run.end]);
        places.push(start..short.len());
        done = run.end;
    }
    short.push_str(&text[done..]);
    (short, places)
}

/// A piece of a longer text without white space at its ends, of which a mark beyond the cut may take so much.
pub(crate) fn without_blank_ends(piece: &str) -> &str {
    let head = piece.len() - piece.trim_start().len();
    let piece = if head <= LONG_BYTES { &piece[head..] } else { piece };
    let tail = piece.len() - piece.trim_end().len();
    if tail <= LONG_BYTES { piece.trim_end() } else { piece }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::added::ControlTokens;
    use crate::encoder::Encoder;
    use serde_json::{Value, json};
    use tokenizers::Tokenizer;
    use tokenizers::pre_tokenizers::byte_level::ByteLevel;

    #[test]
    fn long_runs_lose_their_inside() {
        let (long, short) = ("\u{3000}".repeat(LONG_BYTES), " ".repeat(LONG_BYTES));
        let text = format!("a{long}b{short}\n\n{short}");
        let runs = long_runs(&text);
        assert_eq!(runs, [1..1 + long.len(), 2 + long.len()..text.len()]);
        let (left, places) = shortened(&text, &runs);
        let ends = ["\u{3000}".repeat(2 * 21), " ".repeat(2 * END_BYTES)];
        assert_eq!(left, format!("a{}b{}", ends[0], ends[1]));
        let at = |place: &Range<usize>| left[place.clone()].to_owned();
        assert_eq!(places.iter().map(at).collect::<Vec<_>>(), ends);
        assert_eq!(shortened(&text, &[]), (text.clone(), Vec::new()));
        assert!(long_runs(&format!("a{short}b{short}")).is_empty());
    }

    #[test]
    fn no_more_is_left_out_at_a_cut_than_a_mark_beyond_it_may_still_take() {
        let (few, many) = (" ".repeat(LONG_BYTES), " ".repeat(LONG_BYTES + 1));
        for (piece, left) in
            [("a b", "a b"), (format!("{few}a{few}").as_str(), "a"), (&few[..], ""), (&many[..], &many[..])]
        {
            assert_eq!(without_blank_ends(piece), left);
        }
        assert_eq!(without_blank_ends(&format!("{many}a ")), format!("{many}a"));
    }

    fn encoder() -> Encoder {
        let mark = |id: usize, content: &str, lstrip: bool, rstrip: bool| {
            json!({"id": id, "content": content, "single_word": false, "lstrip": lstrip, "rstrip": rstrip,
                "normalized": false, "special": true})
        };
        let alphabet = ByteLevel::alphabet().into_iter().enumerate();
        let vocab: serde_json::Map<String, Value> = alphabet.map(|(id, c)| (c.to_string(), id.into())).collect();
        let num = vocab.len();
        let file = json!({
            "version": "1.0", "truncation": null, "padding": null, "normalizer": null, "post_processor": null,
            "added_tokens":
                [mark(num, "<l>", true, false), mark(num + 1, "<r>", false, true), mark(num + 2, "<n>", false, false)],
            "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
            "decoder": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
            "model": {"type": "BPE", "vocab": vocab, "merges": []},
        });
        let tokenizer: Tokenizer = file.to_string().parse().expect("a tokenizer");
        let controls = ControlTokens::of(&tokenizer, None);
        Encoder::new(tokenizer, controls).expect("an encoder")
    }

    #[test]
    fn what_is_beside_a_mark_is_swallowed_on_the_side_where_it_does_that() {
        let (encoder, blank) = (encoder(), " ".repeat(LONG_BYTES + 1));
        for (text, expected) in [
            ("a_<l>b", vec![true]),
            ("a<l>_b", vec![false]),
            ("<r>_b", vec![true]),
            ("a_<r>_<n>_", vec![false, true, false]),
            ("a_b_<l>_<r>_<l>", vec![false, true, false, true]),
            ("_", vec![false]),
        ] {
            let text = text.replace('_', &blank);
            let runs = long_runs(&text);
            let (short, places) = shortened(&text, &runs);
            assert_eq!(encoder.swallowed(&short, &places, None).expect("extracted"), expected, "{short}");
        }
    }
}
