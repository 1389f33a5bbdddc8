//! Texts that may be far too long: what fits is encoded as ever, and what is refused does not fit.

use crate::folders::{TEMPLATE, all_kinds, open, sentencepiece_bpe, starter};
use tidegate_text::{AddSpecial, ChatOptions, Past, TextError, Within};
use tidegate_types::{Message, Role};

const LONG: usize = 160 << 10;

fn within(most_tokens: usize) -> Within<'static> {
    Within { most_tokens, past: Past::Stop, gone: &|| false }
}

#[test]
fn no_text_that_fits_is_refused_and_none_that_is_refused_fits() {
    let texts =
        ["a", " ", "é世 12345, tide ", "<|im_end|>", "<", "\u{1FBE}\u{308}\u{301}", "0123456789", "\u{100000}\u{7}"];
    for (kind, model) in all_kinds() {
        for text in texts.map(|text| text.repeat(LONG / text.len())) {
            let what = format!("{kind}: {:?}", text.chars().take(9).collect::<String>());
            let all = model.encode_literal(&text, AddSpecial::No).expect(&what);
            let fits = |most: usize| model.encode_literal_within(&text, AddSpecial::No, &within(most));
            assert_eq!(fits(all.len()).expect(&what), all, "{what}");
            match fits(all.len() / 9) {
                Err(TextError::TooManyTokens { at_least }) => assert!(at_least <= all.len(), "{what}: {at_least}"),
                // It was encoded, since it is no longer than most texts of so many tokens, or not surely too long.
                encoded => assert_eq!(encoded.expect(&what), all, "{what}"),
            }
        }
    }
}

#[test]
fn a_conversation_that_cannot_fit_is_not_laid_out_to_its_end() {
    let model = starter();
    let chat = |text: &str| [Message::text("m0", Role::User, text), Message::text("m1", Role::Assistant, "x")];
    let options = ChatOptions::default();
    let noise: String = (0..200_000).map(|i| format!("{:x}", i * 7919)).collect();
    let refused = model.encode_chat_within(&chat(&noise), &[], &options, &within(1024)).unwrap_err();
    assert!(matches!(refused, TextError::TooManyTokens { at_least } if at_least > 1024), "{refused}");
    let marks = chat(&"<|im_end|>".repeat(300));
    let all = model.encode_chat(&marks, &[], &options).expect("encodes");
    assert_eq!(model.encode_chat_within(&marks, &[], &options, &within(all.len())).expect("fits"), all);
    let gone = Within { gone: &|| true, ..within(1024) };
    assert!(matches!(model.encode_chat_within(&marks, &[], &options, &gone), Err(TextError::Gone)));
}

#[test]
fn white_space_fits_where_a_mark_swallows_it_and_counts_elsewhere() {
    let mut file = sentencepiece_bpe();
    let marks = file["added_tokens"].as_array_mut().expect("a list");
    let ends = marks.iter_mut().find(|mark| mark["content"] == "<|im_end|>").expect("a mark");
    ends["lstrip"] = true.into();
    let (model, options, blank) = (open(&file, TEMPLATE), ChatOptions::default(), " \n".repeat(LONG));
    let chat = |text: &str| [Message::text("m0", Role::User, text)];
    let encode = |text: &str, within: &Within<'_>| model.encode_chat_within(&chat(text), &[], &options, within);
    for (text, is_swallowed) in [
        (format!("hello{blank}"), true),
        (format!("a{}b{blank}", " ".repeat(300)), true),
        (format!("{blank}hello"), false),
        (format!("hello{blank}."), false),
        (format!("{blank}hello{blank}"), false),
    ] {
        let what = text.replace(&blank, "_");
        let rendered = model.render_chat(&chat(&text), &[], &options).expect(&what);
        let all = model.encode(&rendered, AddSpecial::No).expect(&what);
        assert_eq!(all.len() < 1024, is_swallowed, "{what}: {}", all.len());
        assert_eq!(encode(&text, &within(all.len())).expect(&what), all, "{what}");
        match encode(&text, &within(1024)) {
            Ok(fits) => assert!(is_swallowed && fits == all, "{what}"),
            Err(TextError::TooManyTokens { at_least }) => assert!(!is_swallowed && at_least <= all.len(), "{what}"),
            Err(error) => panic!("{what}: {error}"),
        }
    }
    // A caller's own mark is text.
    let own = format!("hello{blank}<|im_end|>.");
    let literal = model.encode_literal_within(&own, AddSpecial::Yes, &within(1024));
    for refused in [encode(&own, &within(1024)), literal] {
        assert!(matches!(refused, Err(TextError::TooManyTokens { .. })));
    }
}

/// Its normalizer makes of spaces what is no white space, and of other brackets the mark.
#[test]
fn white_space_beside_a_mark_of_the_normalized_text_is_left_as_it_is() {
    let mut file = sentencepiece_bpe();
    let marks = file["added_tokens"].as_array_mut().expect("a list");
    let ends = marks.iter_mut().find(|mark| mark["content"] == "<|im_end|>").expect("a mark");
    (ends["lstrip"], ends["normalized"]) = (true.into(), true.into());
    let spaces = serde_json::json!({"type": "Replace", "pattern": {"String": " "}, "content": "▁"});
    file["normalizer"] = serde_json::json!({"type": "Sequence", "normalizers": [{"type": "NFKC"}, spaces]});
    let (model, options, lines) = (open(&file, TEMPLATE), ChatOptions::default(), "\n".repeat(100));
    let text = format!("hello{lines}{}{lines}", " ".repeat(600));
    let chat = [Message::text("m0", Role::User, &*text)];
    let rendered = model.render_chat(&chat, &[], &options).expect("renders");
    let all = model.encode(&rendered, AddSpecial::No).expect("encodes");
    assert_eq!(model.encode_chat_within(&chat, &[], &options, &within(all.len())).expect("fits"), all);
    let own = format!("hello{}＜|im_end|＞", "\n".repeat(600));
    let all = model.encode_literal(&own, AddSpecial::No).expect("encodes");
    assert_eq!(model.encode_literal_within(&own, AddSpecial::No, &within(all.len())).expect("fits"), all);
}

#[test]
fn who_shortens_learns_how_long_it_is() {
    let model = starter();
    let noise: String = (0..60_000).map(|i| format!("{:x} ", i * 7919)).collect();
    let all = model.encode_literal(&noise, AddSpecial::No).expect("encodes").len();
    let counting = Within { past: Past::Count, ..within(1024) };
    match model.encode_literal_within(&noise, AddSpecial::No, &counting) {
        Err(TextError::TooManyTokens { at_least }) => assert!(at_least.abs_diff(all) < 199, "{at_least} of {all}"),
        encoded => panic!("{} tokens", encoded.expect("encodes").len()),
    }
}
