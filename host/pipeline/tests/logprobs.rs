//! Log-probabilities behind guards that redact: for any tokens, chunking and guard, a token leaves only with its text.
#![allow(clippy::unwrap_used)]

use proptest::prelude::*;
use tidegate_pipeline::holdback::{AtCap, Holdback, Released};
use tidegate_sandbox::stage::{Inspection, Redaction, WindowAction};
use tidegate_types::{Span, TextLogprob, TopLogprob};

const WORD: &str = "secret";

/// A token: its bytes, and whether they are text. Those of a special token are none.
type Token = (&'static [u8], bool);

fn tokens() -> impl Strategy<Value = Vec<Token>> {
    let tokens: [Token; 14] = [
        (b"secret", true),
        (b" secret", true),
        (b"sec", true),
        (b"ret", true),
        (b"se", true),
        (b"cret!", true),
        (b"a", true),
        (b"word ", true),
        (b"\xe2", true),
        (b"\x82", true),
        (b"\xac", true),
        ("é€".as_bytes(), true),
        (b"secret", false),
        (b"<|end|>", false),
    ];
    prop::collection::vec(prop::sample::select(tokens.to_vec()), 1..40)
}

/// The text of tokens, and with each where its own ends. Bytes that are no character are none of it.
fn spelled(tokens: &[Token]) -> (String, Vec<TextLogprob>) {
    let joined: Vec<u8> =
        tokens.iter().filter(|(_, is_text)| *is_text).flat_map(|(bytes, _)| *bytes).copied().collect();
    let (mut at, mut begins) = (0, vec![0_usize; joined.len() + 1]);
    let mut text = String::new();
    for chunk in joined.utf8_chunks() {
        text.push_str(chunk.valid());
        // Of U+FFFD no token has the bytes.
        let bad = if chunk.invalid().is_empty() { "" } else { "\u{fffd}" };
        for byte in 0..chunk.valid().len() + chunk.invalid().len() {
            begins[at + byte + 1] = (text.len() - chunk.valid().len() + byte + 1).min(text.len() + bad.len());
        }
        text.push_str(bad);
        at += chunk.valid().len() + chunk.invalid().len();
    }
    let mut at = 0;
    let token = |(idx, (bytes, is_text)): (usize, &Token)| {
        at += if *is_text { bytes.len() } else { 0 };
        let chosen =
            TopLogprob { token: String::from_utf8_lossy(bytes).into(), logprob: -(idx as f32), bytes: bytes.to_vec() };
        TextLogprob { chosen, top: Vec::new(), end: is_text.then(|| begins[at] as u64) }
    };
    (text, tokens.iter().enumerate().map(token).collect())
}

/// The text in events of about these sizes, each with the tokens whose text ends in it.
fn events(text: &str, tokens: Vec<TextLogprob>, sizes: &[usize]) -> Vec<(String, Vec<TextLogprob>)> {
    let (mut events, mut from) = (Vec::new(), 0);
    let mut tokens = tokens.into_iter().peekable();
    let mut last_end = 0;
    for size in sizes.iter().cycle() {
        if from == text.len() {
            break;
        }
        let to = text.ceil_char_boundary((from + size).min(text.len()));
        let mut ended = Vec::new();
        while let Some(token) = tokens.next_if(|token| token.end.unwrap_or(last_end) <= to as u64) {
            last_end = token.end.unwrap_or(last_end);
            ended.push(token);
        }
        events.push((text[from..to].to_owned(), ended));
        from = to;
    }
    events
}

/// Redacts a word, and keeps back what may be one and some more.
fn inspect(held: &Holdback, share: u8, last: bool) -> Inspection {
    let (pending, settled) = (held.pending(), held.window().settled as usize);
    let begun = (1..WORD.len()).rev().find(|len| pending.ends_with(&WORD[..*len])).unwrap_or(0);
    let most = if last { pending.len() } else { pending.len() - begun };
    let mut through = if last { most } else { pending.floor_char_boundary(most * usize::from(share) / 255) };
    let found = |through: usize| pending.match_indices(WORD).filter(move |(at, _)| *at < through);
    through = found(through).last().map_or(through, |(at, word)| through.max(at + word.len()));
    let redact = |(at, word): (usize, &str)| {
        let span = Span { start: (settled + at) as u32, end: (settled + at + word.len()) as u32 };
        Redaction { span, text: if share.is_multiple_of(2) { "[x]".into() } else { String::new() } }
    };
    let redactions: Vec<Redaction> = found(through).map(redact).collect();
    let action = if redactions.is_empty() { WindowAction::Pass } else { WindowAction::Redact(redactions) };
    Inspection { action, safe_through: (settled + through) as u32, carry: Vec::new(), findings: Vec::new() }
}

/// What leaves of events that come one by one, where the guard sees so much of it again: the text, and each token with the length
/// of the text at the end of its event.
fn left(
    look_behind: Option<u32>,
    events: Vec<(String, Vec<TextLogprob>)>,
    shares: &[u8],
) -> (String, Vec<(TextLogprob, usize)>) {
    let (mut held, mut text, mut tokens) = (Holdback::with_look_behind(look_behind), String::new(), Vec::new());
    let mut take = |released: Released| {
        text.push_str(&released.text);
        tokens.extend(released.logprobs.into_iter().map(|token| (token, text.len())));
    };
    for ((said, logprobs), share) in events.into_iter().zip(shares.iter().cycle()) {
        held.push(&said, logprobs);
        let inspection = inspect(&held, *share, false);
        take(held.apply(inspection, false, usize::MAX, AtCap::Halt).unwrap());
    }
    // Even: a word that falls apart where another is taken out whole would be one again.
    let last = inspect(&held, 254, true);
    take(held.apply(last, true, 0, AtCap::Halt).unwrap());
    (text, tokens)
}

/// Which tokens have all of their bytes in the text, and none of them in the word: those that must leave.
fn untouched(text: &str, tokens: &[TextLogprob]) -> Vec<f32> {
    let is_whole = |token: &&TextLogprob| {
        let Some(end) = token.end.map(|end| end as usize) else { return false };
        let Some(start) = end.checked_sub(token.chosen.bytes.len()) else { return false };
        let apart = |(at, word): (usize, &str)| end <= at || at + word.len() <= start;
        text.as_bytes()[start..end] == *token.chosen.bytes && text.match_indices(WORD).all(apart)
    };
    tokens.iter().filter(is_whole).map(|token| token.chosen.logprob).collect()
}

proptest! {
    #[test]
    fn a_token_leaves_with_its_text_as_the_client_reads_it(
        tokens in tokens(),
        sizes in prop::collection::vec(1_usize..9, 1..6),
        shares in prop::collection::vec(any::<u8>(), 1..6),
        look_behind in prop::option::of(0_u32..9),
    ) {
        let (text, tokens) = spelled(&tokens);
        let (read, got) = left(look_behind, events(&text, tokens.clone(), &sizes), &shares);
        prop_assert!(!read.contains(WORD) || shares.iter().any(|share| share % 2 == 1), "{read}");
        for (token, event_end) in &got {
            let end = token.end.unwrap() as usize;
            let bytes = &token.chosen.bytes;
            prop_assert!(end <= *event_end, "{token:?} before its text in {read:?}");
            prop_assert_eq!(&read.as_bytes()[end - bytes.len()..end], &**bytes, "{:?} of {:?}", token, read);
        }
        let names: Vec<f32> = got.iter().map(|(token, _)| token.chosen.logprob).collect();
        prop_assert_eq!(names, untouched(&text, &tokens), "{:?} of {:?}", text, read);
    }

    /// Whatever a source says of where tokens end: each that leaves is what the client reads there.
    #[test]
    fn a_token_that_is_wrong_about_its_place_leaves_nothing_that_is_not_read(
        tokens in tokens(),
        sizes in prop::collection::vec(1_usize..9, 1..6),
        shares in prop::collection::vec(any::<u8>(), 1..6),
        look_behind in prop::option::of(0_u32..9),
        wrong in prop::collection::vec(-9_i64..9, 1..6),
    ) {
        let (text, mut tokens) = spelled(&tokens);
        for (token, by) in tokens.iter_mut().zip(wrong.iter().cycle()) {
            token.end = token.end.unwrap_or(3).checked_add_signed(*by);
        }
        let (read, got) = left(look_behind, events(&text, tokens, &sizes), &shares);
        for (token, _) in got {
            let end = token.end.unwrap() as usize;
            let at = end.checked_sub(token.chosen.bytes.len()).unwrap();
            prop_assert_eq!(&read.as_bytes()[at..end], &*token.chosen.bytes, "{:?} of {:?}", token, read);
        }
    }

    /// Behind another guard, and with several at once, as one that is alone.
    #[test]
    fn a_second_guard_lets_the_same_tokens_go(
        tokens in tokens(),
        sizes in prop::collection::vec(1_usize..9, 1..6),
        shares in prop::collection::vec(any::<u8>(), 1..6),
        look_behind in prop::option::of(0_u32..9),
    ) {
        let (text, tokens) = spelled(&tokens);
        let (read, got) = left(look_behind, events(&text, tokens, &sizes), &shares);
        let names = |tokens: &[TextLogprob]| tokens.iter().map(|token| token.chosen.logprob).collect::<Vec<f32>>();
        let mut second = Holdback::default();
        let got: Vec<TextLogprob> = got.into_iter().map(|(token, _)| token).collect();
        second.push(&read, got.clone());
        prop_assert_eq!(names(&second.release_unjudged().logprobs), names(&got));
    }
}

/// By far more than the guard sees again.
#[test]
fn a_token_leaves_with_its_last_bytes_though_its_first_ones_have_left() {
    let (text, tokens) = spelled(&[(b"word " as &[u8], true); 60]);
    for look_behind in [None, Some(0), Some(2)] {
        let (read, got) = left(look_behind, events(&text, tokens.clone(), &[3]), &[255]);
        assert_eq!((read.len(), got.len()), (text.len(), tokens.len()), "{look_behind:?}");
    }
}

#[test]
fn a_token_whose_first_half_was_redacted_does_not_leave_with_its_second() {
    let mut held = Holdback::default();
    let token = |token: &str, end| {
        let chosen = TopLogprob { token: token.into(), logprob: -0.5, bytes: token.into() };
        TextLogprob { chosen, top: Vec::new(), end: Some(end) }
    };
    held.push("to a@b.c,", vec![token("to", 2), token(" a@b", 7), token(".c,", 9)]);
    let span = Span { start: 3, end: 8 };
    let action = WindowAction::Redact(vec![Redaction { span, text: "[email]".into() }]);
    let inspection = Inspection { action, safe_through: 8, carry: Vec::new(), findings: Vec::new() };
    let released = held.apply(inspection, false, 512, AtCap::Halt).unwrap();
    assert_eq!((released.text.as_str(), released.logprobs), ("to [email]", vec![token("to", 2)]));
    assert_eq!(held.release_unjudged().logprobs, []);
}

#[test]
fn a_token_and_its_alternatives_are_called_what_their_bytes_say() {
    let mut held = Holdback::default();
    let token = |token: &str, bytes: &[u8]| TopLogprob { token: token.into(), logprob: -0.5, bytes: bytes.to_vec() };
    let top = vec![token("Ġso", b" so"), token("Ġthen", b" then"), token("âĤ", b"\xe2\x82")];
    held.push(" so", vec![TextLogprob { chosen: token("Ġso", b" so"), top, end: Some(3) }]);
    let released = held.release_unjudged();
    let left = &released.logprobs[0];
    let names: Vec<&str> = [&left.chosen].into_iter().chain(&left.top).map(|token| token.token.as_str()).collect();
    assert_eq!(names, [" so", " so", " then", "\u{fffd}"]);
}
