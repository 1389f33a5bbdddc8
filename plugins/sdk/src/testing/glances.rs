//! What a guard says at a glance, beside what it says when it is asked.

use crate::stages::{Channel, Prompt, PromptGlance, StreamGlance, Verdict, Window, WindowAction, inspect_with_carry};
use crate::types::{Context, Message, Role, ToolDef, ToolHints};
use std::collections::BTreeSet;
use std::ops::Range;

/// Windows are of up to so many characters: their number grows with its square.
const LONGEST: usize = 96;

/// Compares glances with what the guard says of the same windows: each piece of the text, of up to 96 characters, of which the client
/// has nothing, its first character, or all but its last, on each channel but arguments. Returns of how many windows there was an
/// answer: a test sees that there are some.
///
/// # Panics
/// When a glance lets go what the guard does not let go without a word, or is not within the window.
#[expect(clippy::panic, reason = "a test helper fails its test")]
pub fn assert_glances_tell<G: StreamGlance>(guard: &G, text: &str) -> usize {
    let borders: Vec<usize> = text.char_indices().map(|(at, _)| at).chain([text.len()]).collect();
    let mut num_answers = 0;
    for (first, &from) in borders.iter().enumerate() {
        let within = borders.iter().skip(first).take(LONGEST + 1);
        for (&to, len) in within.clone().zip(0_usize..).skip(1) {
            for chars in BTreeSet::from([0, 1.min(len - 1), len - 1]) {
                let settled = borders.get(first + chars).map_or(0, |at| at - from);
                let window = window(text.get(from..to).unwrap_or_default(), settled);
                let Some(through) = guard.glance(&window.text, settled) else { continue };
                num_answers += 1;
                if let Some(why) = differs(guard, &window, through) {
                    panic!(
                        "a glance lets {through} bytes of {:?} go, of which {settled} have left; {why}",
                        window.text
                    );
                }
            }
        }
    }
    num_answers
}

/// Compares glances at prompts with what the guard says of the same prompts: of each piece of the text, of up to 96 characters, alone from each
/// role, and of the text in two messages, of a user and a tool, divided within 96 bytes of either end. The guard is asked about them alone, and with all that
/// a glance is not told: names, attributes, a tool, a parameter, another caller. Returns of how many prompts there was an answer: a test sees that there are some.
///
/// # Panics
/// When a glance allows what the guard does not allow without a word.
#[expect(clippy::panic, reason = "a test helper fails its test")]
pub fn assert_prompt_glances_tell<G: PromptGlance>(guard: &G, text: &str) -> usize {
    let mut num_answers = 0;
    for messages in prompts(text) {
        if !guard.glance_prompt(&messages) {
            continue;
        }
        num_answers += 1;
        for (ctx, prompt) in [alone(&messages), with_all_else(&messages)] {
            let said = guard.inspect_prompt(&ctx, &prompt);
            if said.as_ref().ok() != Some(&Verdict::allow()) {
                panic!("at a glance all of {messages:?} is allowed; asked about {prompt:?} the guard says {said:?}");
            }
        }
    }
    num_answers
}

/// Prompts of one and of two messages, of pieces of a text.
fn prompts(text: &str) -> impl Iterator<Item = Vec<(Role, String)>> {
    let borders: Vec<usize> = text.char_indices().map(|(at, _)| at).chain([text.len()]).collect();
    let pieces = borders.clone().into_iter().enumerate().flat_map(move |(first, from)| {
        let ends: Vec<usize> = borders.iter().skip(first + 1).take(LONGEST).copied().collect();
        ends.into_iter().map(move |to| from..to)
    });
    let said = |range: Range<usize>| text.get(range).unwrap_or_default().to_owned();
    let roles = [Role::System, Role::Developer, Role::User, Role::Assistant, Role::Tool];
    let alone = pieces.flat_map(move |piece| roles.clone().map(|role| vec![(role, said(piece.clone()))]));
    let divided = text.char_indices().filter(|(at, _)| (*at).min(text.len() - at) <= LONGEST);
    let divided = divided.map(move |(at, _)| vec![(Role::User, said(0..at)), (Role::Tool, said(at..text.len()))]);
    alone.chain(divided)
}

fn alone(messages: &[(Role, String)]) -> (Context, Prompt) {
    let message = |(idx, (role, text)): (usize, &(Role, String))| Message::text(&format!("m{idx}"), role.clone(), text);
    let messages = messages.iter().enumerate().map(message).collect();
    (Context::default(), Prompt { messages, ..Prompt::default() })
}

/// The same prompt with what else one may have, of which a glance is told nothing.
fn with_all_else(messages: &[(Role, String)]) -> (Context, Prompt) {
    let (_, mut prompt) = alone(messages);
    for message in &mut prompt.messages {
        message.id = format!("put/{}", message.id);
        message.name = Some("Jo".into());
        message.attrs = vec![("source".into(), r#""retrieval""#.into())];
    }
    prompt.tools = vec![ToolDef {
        name: "send".into(),
        description: "Sends a letter".into(),
        input_schema: r#"{"type":"object"}"#.into(),
        hints: ToolHints::default(),
        attrs: Vec::new(),
    }];
    prompt.params = vec![("temperature".into(), "2".into())];
    let attrs = vec![("key".into(), r#""jo""#.into())];
    let ctx = Context { request_id: "r1".into(), caller: "jo".into(), deadline_ms: 1, streaming: true, attrs };
    (ctx, prompt)
}

fn window(text: &str, settled: usize) -> Window {
    let settled = u32::try_from(settled).unwrap_or(u32::MAX);
    Window { seq: 0, choice: 0, channel: Channel::Text, text: text.into(), settled, ending: None, attrs: Vec::new() }
}

/// What the guard says of a window that a glance lets go up to there.
fn differs<G: StreamGlance>(guard: &G, window: &Window, through: usize) -> Option<String> {
    if !(window.start()..=window.text.len()).contains(&through) {
        return Some("the window has no such place".into());
    }
    let channels = [Channel::Text, Channel::Reasoning, Channel::Refusal];
    channels.into_iter().find_map(|channel| says_otherwise(guard, &Window { channel, ..window.clone() }, through))
}

fn says_otherwise<G: StreamGlance>(guard: &G, window: &Window, through: usize) -> Option<String> {
    let (said, carry) = match inspect_with_carry(guard, &Context::default(), &[], window) {
        Ok(said) => said,
        Err(error) => return Some(format!("asked about it the guard fails: {error}")),
    };
    let passes = said.action == WindowAction::Pass && said.safe_through as usize >= through;
    (!passes || !said.findings.is_empty() || !carry.is_empty()).then(|| {
        format!("asked about it ({:?}) the guard says {said:?}, and carries {} bytes", window.channel, carry.len())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::descriptor::Descriptor;
    use crate::plugin::{Error, Plugin};
    use crate::stages::{Inspection, PromptGuard, StreamGuard};
    use std::panic::{AssertUnwindSafe, catch_unwind};

    /// Lets go all before the first `#`; a glance lets go what its test says.
    struct Glances(fn(&str, usize) -> Option<usize>);

    impl Plugin for Glances {
        type Config = ();
        fn describe() -> Descriptor {
            Descriptor::new("glances", "0.1.0", "Lets go what its test says")
        }
        fn configure((): ()) -> Result<Self, Error> {
            Ok(Self(|_, _| None))
        }
    }

    impl StreamGuard for Glances {
        type State = bool;
        fn inspect_window(&self, _: &Context, has_at: &mut bool, window: &Window) -> Result<Inspection, Error> {
            *has_at |= window.pending().contains('@');
            if window.channel == Channel::Reasoning && window.text.contains('é') {
                return Ok(Inspection::pass(window.start()));
            }
            Ok(Inspection::pass(window.start() + window.pending().find('#').unwrap_or(window.pending().len())))
        }
    }

    impl StreamGlance for Glances {
        fn glance(&self, text: &str, settled: usize) -> Option<usize> {
            self.0(text, settled)
        }
    }

    impl PromptGuard for Glances {
        fn inspect_prompt(&self, _: &Context, prompt: &Prompt) -> Result<Verdict, Error> {
            let is_from = |message: &Message, role, found| {
                message.role == role
                    && message.parts.iter().any(|part| part.as_text().is_some_and(|text| text.contains(found)))
            };
            let messages = &prompt.messages;
            if messages.iter().any(|message| is_from(message, Role::User, '#')) {
                return Err(Error::Other("`#`".into()));
            }
            let mut verdict = Verdict::allow();
            if messages.iter().any(|message| is_from(message, Role::Tool, '@')) {
                verdict.attrs.push(("glances/a".into(), "1".into()));
            }
            Ok(verdict)
        }
    }

    impl PromptGlance for Glances {
        fn glance_prompt(&self, messages: &[(Role, String)]) -> bool {
            messages.iter().all(|(role, text)| self.0(text, usize::from(*role == Role::User)).is_some())
        }
    }

    #[test]
    fn a_glance_at_a_prompt_that_allows_what_the_guard_does_not_is_found() {
        let told = |glance| {
            catch_unwind(AssertUnwindSafe(|| assert_prompt_glances_tell(&Glances(glance), "ab#é@c"))).map_err(|_| ())
        };
        assert_eq!(told(|_, _| None), Ok(0));
        assert_eq!(told(|_, is_user| (is_user == 0).then_some(0)), Err(()), "a tool says `@`");
        assert_eq!(told(|text, _| (!text.contains('@')).then_some(0)), Err(()), "a user says `#`");
        // Pieces of `ab`, and two letters, from five roles; no pair, for each has both.
        assert_eq!(told(|text, _| (!text.contains(['#', '@'])).then_some(0)), Ok(5 * 5));
        let by_role = |text: &str, is_user| (!text.contains(if is_user == 1 { '#' } else { '@' })).then_some(0);
        assert_eq!(told(by_role), Ok(9 + 4 * 11));
    }

    /// Allows all at a glance, and what its test says when it is asked.
    struct Allows(fn(&Context, &Prompt) -> bool);

    impl Plugin for Allows {
        type Config = ();
        fn describe() -> Descriptor {
            Descriptor::new("allows", "0.1.0", "Allows what its test says")
        }
        fn configure((): ()) -> Result<Self, Error> {
            Ok(Self(|_, _| true))
        }
    }

    impl PromptGuard for Allows {
        fn inspect_prompt(&self, ctx: &Context, prompt: &Prompt) -> Result<Verdict, Error> {
            if (self.0)(ctx, prompt) { Ok(Verdict::allow()) } else { Err(Error::Other("no".into())) }
        }
    }

    impl PromptGlance for Allows {
        fn glance_prompt(&self, _: &[(Role, String)]) -> bool {
            true
        }
    }

    #[test]
    fn a_glance_that_goes_by_what_it_is_not_told_is_found() {
        let is_found = |allows| {
            let told = || assert_prompt_glances_tell(&Allows(allows), "ab");
            catch_unwind(AssertUnwindSafe(told)).is_err()
        };
        assert!(!is_found(|_, _| true));
        for allows in [
            (|ctx, _| ctx.caller.is_empty()) as fn(&Context, &Prompt) -> bool,
            |ctx, _| !ctx.streaming,
            |_, prompt| prompt.tools.is_empty(),
            |_, prompt| prompt.params.is_empty(),
            |_, prompt| prompt.messages.iter().all(|message| message.name.is_none()),
            |_, prompt| prompt.messages.iter().all(|message| message.attrs.is_empty()),
            |_, prompt| prompt.messages.iter().all(|message| !message.id.contains('/')),
            |_, prompt| !prompt.tools.is_empty(),
        ] {
            assert!(is_found(allows));
        }
    }

    #[test]
    fn a_glance_that_lets_go_what_the_guard_does_not_is_found() {
        let panics =
            |glance| catch_unwind(AssertUnwindSafe(|| assert_glances_tell(&Glances(glance), "ab#é@c"))).is_err();
        assert!(!panics(|_, _| None));
        assert!(!panics(|text, settled| (!text.contains(['#', '@', 'é'])).then_some(text.len().max(settled))));
        assert!(panics(|text, _| (!text.contains(['@', 'é'])).then_some(text.len())), "it keeps back `#`");
        assert!(panics(|text, _| (!text.contains(['#', 'é'])).then_some(text.len())), "it remembers `@`");
        assert!(panics(|text, _| text.starts_with('é').then_some(text.len())), "it keeps back reasoning with `é`");
        assert!(panics(|_, settled| settled.checked_sub(1)), "that has left");
        assert!(panics(|text, _| Some(text.len() + 1)));
    }

    #[test]
    fn the_windows_are_all_pieces_with_and_without_look_behind() {
        assert_eq!(assert_glances_tell(&Glances(|text, _| Some(text.len())), ""), 0);
        // a; b; ab, ab, of which `a` has left: to leave one and to leave all but one are the same.
        assert_eq!(assert_glances_tell(&Glances(|text, _| Some(text.len())), "ab"), 4);
        assert_eq!(assert_glances_tell(&Glances(|text, settled| (settled > 1).then_some(text.len())), "abc"), 1);
    }
}
