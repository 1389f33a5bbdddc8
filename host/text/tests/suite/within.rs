//! Texts that may be far too long: what fits is encoded as ever, and what is refused does not fit.

use crate::folders::{all_kinds, starter};
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
