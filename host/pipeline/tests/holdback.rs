//! The promises of the stream guard's host side, for any text, any chunking and any guard.

use proptest::prelude::*;
use serde_json::json;
use tidegate_pipeline::holdback::{AtCap, Border, Holdback, Released};
use tidegate_sandbox::Prefilter;
use tidegate_sandbox::stage::{Inspection, Redaction, Refusal, WindowAction};
use tidegate_types::{Span, TextLogprob, TopLogprob};

fn inspection(safe_through: usize, redactions: Vec<Redaction>) -> Inspection {
    let action = if redactions.is_empty() { WindowAction::Pass } else { WindowAction::Redact(redactions) };
    Inspection { action, safe_through: safe_through as u32, carry: Vec::new(), findings: Vec::new() }
}

/// Of a token whose text ends there.
fn logprob(token: &str, end: u64) -> TextLogprob {
    let chosen = TopLogprob { token: token.into(), logprob: -0.5, bytes: token.as_bytes().to_vec() };
    TextLogprob { chosen, top: Vec::new(), end: Some(end) }
}

fn floor(text: &str, mut at: usize) -> usize {
    while !text.is_char_boundary(at) {
        at -= 1;
    }
    at
}

/// Pieces of text, each with the share of the pending text that the guard lets go.
fn script() -> impl Strategy<Value = Vec<(String, u8)>> {
    prop::collection::vec(("[a-zäß€😀 ]{1,12}", any::<u8>()), 1..40)
}

/// Text of an event, and the tokens of its log-probabilities.
type Event = (String, Vec<String>);

/// So many at once, again and again.
fn groups<'a, T>(all: &'a [T], sizes: &'a [usize]) -> impl Iterator<Item = &'a [T]> {
    let mut rest = all;
    sizes.iter().cycle().map_while(move |size| {
        let (group, behind) = rest.split_at((*size).min(rest.len()));
        rest = behind;
        (!group.is_empty()).then_some(group)
    })
}

/// Adds events that came together, behind so many bytes of text.
fn push_together(held: &mut Holdback, events: &[Event], came: &mut u64) {
    for (idx, (text, tokens)) in events.iter().enumerate() {
        let of = |token: &String| {
            *came += token.len() as u64;
            logprob(token, *came)
        };
        let logprobs = tokens.iter().map(of).collect();
        if idx == 0 { held.push(text, logprobs) } else { held.push_next(text, logprobs) }
    }
}

/// What leaves, event by event.
fn events(released: Released) -> Vec<Event> {
    let Released { text, logprobs, borders, .. } = released;
    let tokens: Vec<String> = logprobs.into_iter().map(|logprob| logprob.chosen.token).collect();
    let end = Border { text: text.len(), logprobs: tokens.len() };
    let mut from = Border::default();
    let event = |to: Border| {
        let event = (text[from.text..to.text].to_owned(), tokens[from.logprobs..to.logprobs].to_vec());
        from = to;
        event
    };
    borders.into_iter().chain([end]).map(event).collect()
}

/// A guard that redacts one word, and halts at another with what was before it: what it makes of what waits.
fn redacts_and_halts(pending: &str, settled: usize, last: bool) -> Result<Inspection, String> {
    if pending.contains("halt") {
        return Err(left_of(pending));
    }
    let is_begun =
        |len: &usize| ["secret", "halt"].iter().any(|word| word.get(..*len).is_some_and(|of| pending.ends_with(of)));
    let kept = if last { 0 } else { (1..6).rev().find(is_begun).unwrap_or(0) };
    let through = pending.len() - kept;
    let redact = |(at, word): (usize, &str)| {
        let (start, end) = ((settled + at) as u32, (settled + at + word.len()) as u32);
        Redaction { span: Span { start, end }, text: "[x]".into() }
    };
    Ok(inspection(settled + through, pending[..through].match_indices("secret").map(redact).collect()))
}

/// What that guard leaves of a whole text.
fn left_of(text: &str) -> String {
    let (before, farewell) = text.split_once("halt").map_or((text, ""), |(before, _)| (before, "[bye]"));
    format!("{}{farewell}", before.replace("secret", "[x]"))
}

proptest! {
    #[test]
    fn events_that_come_together_leave_as_they_came(
        sent in prop::collection::vec(prop::collection::vec("[a-zé€]{1,5}", 1..4), 1..20),
        together in prop::collection::vec(1_usize..7, 1..6),
    ) {
        let sent: Vec<Event> = sent.into_iter().map(|tokens| (tokens.concat(), tokens)).collect();
        let mut held = Holdback::default();
        let (mut got, mut came) = (Vec::new(), 0);
        for group in groups(&sent, &together) {
            push_together(&mut held, group, &mut came);
            let all = held.window().text.len();
            got.extend(events(held.apply(inspection(all, vec![]), false, 0, AtCap::Halt).unwrap()));
        }
        prop_assert_eq!(got, sent);
    }

    #[test]
    fn however_text_is_cut_and_comes_together_the_client_reads_the_same(
        words in prop::collection::vec(
            prop::sample::select(vec!["secret", "se", "cret ", "secre", "ha", "é€", "ab c", "secret", "lt ", "halt"]), 0..20
        ),
        cuts in prop::collection::vec(1_usize..5, 1..10),
        together in prop::collection::vec(1_usize..7, 1..6),
    ) {
        let text = words.concat();
        let chars: Vec<char> = text.chars().collect();
        let sent: Vec<Event> = groups(&chars, &cuts).map(|piece| (piece.iter().collect(), Vec::new())).collect();
        let (mut held, mut got, mut farewell) = (Holdback::default(), String::new(), None);
        for group in groups(&sent, &together) {
            push_together(&mut held, group, &mut 0);
            let settled = held.window().settled as usize;
            let inspection = match redacts_and_halts(held.pending(), settled, false) {
                Ok(inspection) => inspection,
                Err(said) => {
                    farewell = Some(said);
                    break;
                }
            };
            let left = events(held.apply(inspection, false, usize::MAX, AtCap::Halt).unwrap());
            prop_assert!(left.len() <= group.len(), "{left:?} of {group:?}");
            left.into_iter().for_each(|(text, _)| got.push_str(&text));
        }
        let rest = farewell.unwrap_or_else(|| {
            let last = redacts_and_halts(held.pending(), held.window().settled as usize, true).unwrap();
            held.apply(last, true, 0, AtCap::Halt).unwrap().text
        });
        prop_assert_eq!(got + &rest, left_of(&text));
    }

    #[test]
    fn windows_tile_the_text_and_nothing_passes_the_watermark(script in script()) {
        let mut held = Holdback::default();
        let (mut sent, mut got) = (String::new(), String::new());
        for (piece, share) in &script {
            held.push(piece, Vec::new());
            sent.push_str(piece);
            let (window, settled) = (held.window().text.to_owned(), held.window().settled as usize);
            prop_assert!(settled <= 256 && got.ends_with(&window[..settled]));
            prop_assert_eq!(&window[settled..], &sent[got.len()..]);
            let pending = window.len() - settled;
            let through = floor(&window, settled + pending * usize::from(*share) / 255);
            let released = held.apply(inspection(through, vec![]), false, usize::MAX, AtCap::Halt).unwrap();
            prop_assert_eq!(&released.text, &window[settled..through]);
            got.push_str(&released.text);
        }
        let all = held.window().text.len();
        got.push_str(&held.apply(inspection(all, vec![]), true, 0, AtCap::Halt).unwrap().text);
        prop_assert_eq!(got, sent);
    }

    #[test]
    fn a_guard_sees_the_last_of_what_left_however_long_the_text(
        pieces in prop::collection::vec(("[a-zé€😀]{1,120}", any::<u8>(), any::<bool>()), 20..60),
    ) {
        let mut held = Holdback::default();
        let mut got = String::new();
        for (piece, share, is_redacted) in &pieces {
            held.push(piece, Vec::new());
            let window = held.window();
            let settled = window.settled as usize;
            let far = got.len().saturating_sub(256);
            prop_assert_eq!(&window.text[..settled], &got[got.ceil_char_boundary(far)..]);
            let through = floor(window.text, settled + (window.text.len() - settled) * usize::from(*share) / 255);
            let span = Span { start: settled as u32, end: through as u32 };
            let redactions = is_redacted.then(|| Redaction { span, text: "[a long word instead]".into() });
            let redactions = redactions.into_iter().collect();
            let released = held.apply(inspection(through, redactions), false, usize::MAX, AtCap::Halt).unwrap();
            got.push_str(&released.text);
        }
    }

    #[test]
    fn an_open_stage_never_withholds_more_than_its_cap(script in script(), cap in 0_usize..64) {
        let mut held = Holdback::default();
        let (mut sent, mut got, mut unjudged) = (String::new(), String::new(), 0);
        for (piece, _) in &script {
            held.push(piece, Vec::new());
            sent.push_str(piece);
            let settled = held.window().settled as usize;
            let released = held.apply(inspection(settled, vec![]), false, cap, AtCap::Release).unwrap();
            unjudged += released.unjudged_bytes;
            got.push_str(&released.text);
            prop_assert!(held.pending_bytes() <= cap);
        }
        prop_assert_eq!(unjudged, got.len());
        prop_assert!(sent.starts_with(&got));
    }

    #[test]
    fn a_closed_stage_halts_at_its_cap(piece in "[a-z]{9,30}") {
        let mut held = Holdback::default();
        held.push(&piece, Vec::new());
        let over = held.apply(inspection(0, vec![]), false, 8, AtCap::Halt).unwrap();
        prop_assert_eq!(over, Released { over_cap: Some(piece.len()), ..Released::default() });
    }
}

#[test]
fn redactions_apply_within_the_released_text() {
    let mut held = Holdback::default();
    held.push("mail a@b.c now", Vec::new());
    let redaction = Redaction { span: Span { start: 5, end: 10 }, text: "[email]".into() };
    let released = held.apply(inspection(14, vec![redaction]), true, 0, AtCap::Halt).unwrap();
    assert_eq!(released.text, "mail [email] now");
    assert_eq!(held.window().text, "mail [email] now");
}

#[test]
fn inspections_that_break_the_contract_are_refused() {
    let span = |start, end| Redaction { span: Span { start, end }, text: String::new() };
    let refused = |safe: usize, redactions: Vec<Redaction>| {
        let mut held = Holdback::default();
        held.push("aé€b", Vec::new());
        held.apply(inspection(safe, redactions), false, 512, AtCap::Release).is_err()
    };
    assert!(refused(2, vec![]), "inside a character");
    assert!(refused(99, vec![]), "past the window");
    assert!(refused(3, vec![span(0, 6)]), "past the watermark");
    assert!(refused(7, vec![span(0, 3), span(1, 6)]), "overlap");
    assert!(refused(7, vec![span(2, 3)]), "inside a character");
    assert!(!refused(7, vec![span(0, 1), span(1, 3)]));
}

#[test]
fn a_halt_is_not_followed_as_a_release() {
    let mut held = Holdback::default();
    held.push("text", Vec::new());
    let refusal = Refusal { code: "x".into(), public_message: String::new(), private_reason: None };
    let action = WindowAction::Halt { refusal, farewell: None };
    let halt = Inspection { action, safe_through: 4, carry: vec![], findings: vec![] };
    assert!(held.apply(halt, false, 512, AtCap::Release).is_err());
}

#[test]
fn what_is_redacted_leaves_the_other_events_of_its_read_as_they_came() {
    let sent = ["mail ", "a@", "b.c", " now", "!"].map(|text| (text.to_owned(), vec![text.to_owned()]));
    let mut held = Holdback::default();
    push_together(&mut held, &sent, &mut 0);
    let redaction = Redaction { span: Span { start: 5, end: 10 }, text: "[email]".into() };
    let left = events(held.apply(inspection(15, vec![redaction]), false, 0, AtCap::Halt).unwrap());
    let left: Vec<(&str, Vec<&str>)> =
        left.iter().map(|(text, tokens)| (text.as_str(), tokens.iter().map(String::as_str).collect())).collect();
    assert_eq!(left, [("mail ", vec!["mail "]), ("[email]", vec![]), (" now", vec![" now"]), ("!", vec!["!"])]);
}

#[test]
fn what_is_kept_back_of_a_read_leaves_with_the_next_event() {
    let mut held = Holdback::default();
    let sent = |texts: &[&str]| texts.iter().map(|text| ((*text).to_owned(), Vec::new())).collect::<Vec<Event>>();
    let mut texts = |events_in: &[&str], through: usize| {
        push_together(&mut held, &sent(events_in), &mut 0);
        let settled = held.window().settled as usize;
        let released = held.apply(inspection(settled + through, vec![]), false, 512, AtCap::Halt).unwrap();
        events(released).into_iter().map(|(text, _)| text).collect::<Vec<String>>()
    };
    assert_eq!(texts(&["ab", "cd", "ef"], 3), ["ab", "c"]);
    assert_eq!(texts(&["gh", "ij"], 7), ["defgh", "ij"]);
}

#[test]
fn what_the_guard_lets_go_leaves_however_the_cap_is_passed() {
    let texts = ["line\n".to_owned(), "a".repeat(300), "a".repeat(300)];
    let read = |together: usize| {
        let (mut held, mut got) = (Holdback::default(), String::new());
        let sent: Vec<Event> = texts.iter().map(|text| (text.clone(), Vec::new())).collect();
        for group in sent.chunks(together) {
            push_together(&mut held, group, &mut 0);
            let whole_lines = held.pending().rfind('\n').map_or(0, |at| at + 1);
            let settled = held.window().settled as usize;
            let released = held.apply(inspection(settled + whole_lines, vec![]), false, 512, AtCap::Halt).unwrap();
            got.push_str(&released.text);
            if released.over_cap.is_some() {
                return (got, true);
            }
        }
        (got, false)
    };
    for together in 1..=3 {
        assert_eq!(read(together), ("line\n".to_owned(), true), "{together} at once");
    }
}

#[test]
fn what_a_guard_has_declared_stands_for_its_answer_while_it_remembers_nothing() {
    let next = json!({"letters": "word", "ends": "start"});
    let classes = json!({"letters": ["ac"], "ends": [" "]});
    let words = json!({"classes": classes, "states": {"start": next, "word": next}, "run-bytes": 4});
    let words = Prefilter::new(&words).unwrap();
    let mut held = Holdback::default();
    held.push("ab cab", Vec::new());
    assert_eq!(held.prefiltered(&words, 2), None, "more would wait than the stage may withhold");
    assert_eq!(held.prefiltered(&words, 3), Some(inspection(3, Vec::new())));
    let passed = held.prefiltered(&words, 3).unwrap();
    assert_eq!(held.apply(passed, false, 3, AtCap::Halt).unwrap().text, "ab ");
    held.push(" a", Vec::new());
    let passed = held.prefiltered(&words, 3).unwrap();
    assert_eq!(passed.safe_through, 7, "it counts in the window, which has what was settled");
    held.apply(Inspection { carry: vec![1], ..passed }, false, 3, AtCap::Halt).unwrap();
    assert_eq!((held.pending(), held.seq()), ("a", 2));
    assert_eq!(held.prefiltered(&words, 3), None, "it remembers something");
    held.apply(inspection(7, Vec::new()), false, 3, AtCap::Halt).unwrap();
    held.push("1", Vec::new());
    assert_eq!(held.prefiltered(&words, 3), None, "it has to look");
}

#[test]
fn a_guard_sees_as_much_of_what_has_left_again_as_it_wants_and_the_last_character() {
    let long = "x".repeat(997) + "abc€";
    for (wanted, seen) in [(0, "€"), (2, "€"), (4, "c€"), (6, "abc€"), (u32::MAX, &long[long.len() - 256..])] {
        let mut held = Holdback::with_look_behind(Some(wanted));
        assert_eq!(held.window().settled, 0, "nothing has left");
        for char in long.chars() {
            held.push(char.encode_utf8(&mut [0; 4]), Vec::new());
            let all = held.window().text.len();
            held.apply(inspection(all, Vec::new()), false, 0, AtCap::Halt).unwrap();
        }
        held.push("d", Vec::new());
        assert_eq!(
            (held.window().text, held.window().settled as usize),
            (&*format!("{seen}d"), seen.len()),
            "{wanted}"
        );
    }
}

/// Else a guard would take what follows for the rest of a word that it has judged.
#[test]
fn behind_what_left_unjudged_a_text_begins_anew() {
    let mut held = Holdback::default();
    held.push("to joh", Vec::new());
    let remembers = |through| Inspection { carry: vec![1], ..inspection(through, Vec::new()) };
    held.apply(remembers(3), false, 512, AtCap::Release).unwrap();
    assert_eq!(held.carry(), [1]);
    assert_eq!(held.release_unjudged().text, "joh");
    assert_eq!((held.carry(), held.seq()), ([0; 0].as_slice(), 2));
    held.push("ndoe@example.com to", Vec::new());
    assert_eq!((held.window().text, held.window().settled), ("ndoe@example.com to", 0));
    let forced = held.apply(remembers(0), false, 2, AtCap::Release).unwrap();
    assert_eq!((forced.text.as_str(), forced.unjudged_bytes), ("ndoe@example.com ", 17));
    assert_eq!(held.carry(), [0; 0]);
    assert_eq!((held.window().text, held.window().settled), ("to", 0));
}
