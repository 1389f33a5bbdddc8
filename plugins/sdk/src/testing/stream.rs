//! One answer on its way past a guard, window by window, as a server hands them out.

use super::{Host, Outcome};
use crate::findings::MAX_FINDINGS;
use crate::plugin::Error;
use crate::prefilter::Prefilter;
use crate::stages::{Channel, Inspection, StreamGuard, Window, WindowAction, inspect_with_carry};
use crate::types::{Context, Finding, Span};

/// What a guard's descriptor says of its streams. Read once for a text that comes in many pieces: a table of characters is made for it.
pub(super) struct Declared {
    prefilter: Option<Prefilter>,
    may_mutate: bool,
}

impl Declared {
    /// # Errors
    /// When a server refuses the prefilter.
    pub(super) fn by<G: StreamGuard>() -> Result<Self, Error> {
        let descriptor = G::describe();
        let prefilter = descriptor.declared_prefilter().cloned();
        let checked = prefilter.as_ref().map_or(Ok(()), Prefilter::check);
        checked.map_err(|problem| broken(&format!("its descriptor's prefilter is refused: {problem}")))?;
        Ok(Self { prefilter, may_mutate: descriptor.may_mutate() })
    }
}

/// The answer so far.
pub(super) struct Stream<'a, G> {
    host: &'a Host,
    guard: &'a G,
    declared: &'a Declared,
    carry: Vec<u8>,
    seq: u32,
    /// Look-behind, then pending text.
    text: String,
    settled: usize,
}

impl<'a, G: StreamGuard> Stream<'a, G> {
    /// An answer that begins.
    pub(super) fn begin(host: &'a Host, guard: &'a G, declared: &'a Declared) -> Self {
        Self { host, guard, declared, carry: Vec::new(), seq: 0, settled: 0, text: String::new() }
    }

    /// Returns whether the answer goes on.
    pub(super) fn push(&mut self, piece: &str, is_last: bool, outcome: &mut Outcome) -> Result<bool, Error> {
        self.text.push_str(piece);
        let window = Window {
            seq: self.seq,
            choice: 0,
            channel: self.host.channel.clone(),
            text: self.text.clone(),
            settled: u32::try_from(self.settled).unwrap_or(u32::MAX),
            ending: is_last.then(|| self.host.ending().to_owned()),
            attrs: Vec::new(),
        };
        let inspection = self.judged(&window)?;
        self.seq += 1;
        check_findings(&inspection, &window.text)?;
        outcome.findings.extend(inspection.findings.iter().cloned());
        let through = self.watermark(&inspection)?;
        if let WindowAction::Halt { refusal, farewell } = &inspection.action {
            outcome.halted = Some(refusal.code.clone());
            outcome.text.push_str(farewell.as_deref().unwrap_or_default());
            // The host keeps arguments of a tool call until all of them are judged.
            if matches!(self.host.channel, Channel::ToolArguments(_)) {
                outcome.text.clear();
            }
            return Ok(false);
        }
        let released = self.release(&inspection, through)?;
        outcome.text.push_str(&released.text);
        let held = self.text.len() - released.through;
        outcome.held_bytes = outcome.held_bytes.max(held);
        if is_last && held > 0 {
            return Err(broken(&format!("{held} bytes wait behind the last window")));
        }
        self.settle(&released);
        Ok(true)
    }

    /// What the guard says; where it has declared that, what it has declared.
    fn judged(&mut self, window: &Window) -> Result<Inspection, Error> {
        // Arguments of a tool call are more than words.
        let is_text = !matches!(self.host.channel, Channel::ToolArguments(_));
        let may_filter = is_text && self.carry.is_empty() && !window.is_last();
        let prefilter = self.declared.prefilter.as_ref().filter(|_| may_filter);
        let declared = prefilter.and_then(|prefilter| prefilter.through(window.pending()));
        let (said, carry) = inspect_with_carry(self.guard, &Context::default(), &self.carry, window)?;
        self.carry = carry;
        let Some(through) = declared.map(|through| window.start() + through) else { return Ok(said) };
        let lets_go = said.action == WindowAction::Pass && said.safe_through as usize >= through;
        if !lets_go || !said.findings.is_empty() || !self.carry.is_empty() {
            return Err(broken(&format!(
                "its descriptor says that it need not be asked about {:?}, of which it says {said:?}",
                window.pending()
            )));
        }
        Ok(Inspection::pass(through))
    }

    /// How far the guard lets the text go, lowered to the start of the character that it lies in.
    fn watermark(&self, inspection: &Inspection) -> Result<usize, Error> {
        let through = inspection.safe_through as usize;
        if through < self.settled || through > self.text.len() {
            return Err(broken(&format!("safe_through {through} is not within {}..{}", self.settled, self.text.len())));
        }
        Ok(self.text.floor_char_boundary(through))
    }

    fn release(&self, inspection: &Inspection, through: usize) -> Result<Released, Error> {
        let mut text = String::new();
        let (mut from, mut before) = (self.settled, None);
        if let WindowAction::Redact(redactions) = &inspection.action {
            if !self.declared.may_mutate {
                return Err(broken("it redacts, but its descriptor says `\"mutates\": false`; declare `.mutates()`"));
            }
            for redaction in redactions {
                let (start, end) = (redaction.span.start as usize, redaction.span.end as usize);
                // The order of two empty ones at one place would be a guess.
                let fits = end <= through && self.text.get(start..end).is_some() && before != Some(redaction.span);
                let kept = self.text.get(from..start).filter(|_| fits);
                text.push_str(kept.ok_or_else(|| broken(&format!("redaction {start}..{end} is out of place")))?);
                before = Some(redaction.span);
                text.push_str(&redaction.text);
                from = end;
            }
        }
        text.push_str(&self.text[from..through]);
        Ok(Released { through, text })
    }

    /// Look-behind is what the client has, redactions included, as with the real host.
    fn settle(&mut self, released: &Released) {
        let mut look_behind = format!("{}{}", &self.text[..self.settled], released.text);
        let last = look_behind.floor_char_boundary(look_behind.len().saturating_sub(1));
        let excess = look_behind.len().saturating_sub(self.host.look_behind);
        look_behind.drain(..look_behind.ceil_char_boundary(excess).min(last));
        self.settled = look_behind.len();
        self.text = look_behind + &self.text[released.through..];
    }
}

struct Released {
    through: usize,
    text: String,
}

fn broken(what: &str) -> Error {
    Error::Other(format!("the guard broke the contract: {what}"))
}

const MAX_CATEGORY_BYTES: usize = 128;
const MAX_MESSAGE_ID_BYTES: usize = 128;

/// What a server refuses of findings.
fn check_findings(inspection: &Inspection, text: &str) -> Result<(), Error> {
    let findings = &inspection.findings;
    if findings.len() > MAX_FINDINGS {
        return Err(broken(&format!("{} findings; at most {MAX_FINDINGS}", findings.len())));
    }
    findings.iter().try_for_each(|Finding { category, score, span, message_id, .. }| {
        if message_id.as_ref().is_some_and(|id| id.len() > MAX_MESSAGE_ID_BYTES) {
            return Err(broken(&format!("finding `{category}` names a message by more than {MAX_MESSAGE_ID_BYTES} bytes")));
        }
        if category.is_empty() || category.len() > MAX_CATEGORY_BYTES || category.contains(char::is_control) {
            return Err(broken(&format!("the category {category:?} is not a line of 1 to {MAX_CATEGORY_BYTES} bytes")));
        }
        if let Some(score) = score.filter(|score| !(0.0..=1.0).contains(score)) {
            return Err(broken(&format!("finding `{category}` has the score {score}; scores are from 0 to 1")));
        }
        let is_there = |span: &Span| text.get(span.start as usize..span.end as usize).is_some();
        match span.as_ref().filter(|span| !is_there(span)) {
            Some(Span { start, end }) => Err(broken(&format!(
                "the span {start}..{end} of finding `{category}` is out of the window or inside a character; spans count in \
                 the window's text, look-behind included"
            ))),
            None => Ok(()),
        }
    })
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::descriptor::Descriptor;
    use crate::plugin::Plugin;
    use crate::stages::Redaction;
    use crate::types::Refusal;

    #[test]
    fn findings_that_a_server_refuses_are_told() {
        let found = |finding: Finding| check_findings(&Inspection::pass(0).with(vec![finding]), "aü");
        let finding = |category: &str| Finding::new(category, crate::types::Severity::Low);
        let at = |start, end| Finding { span: Some(Span { start, end }), ..finding("a") };
        let sure = |score| Finding { score: Some(score), ..finding("a") };
        for good in [finding("a"), at(0, 3), at(3, 3), sure(0.0), sure(1.0)] {
            assert!(found(good).is_ok());
        }
        for (bad, why) in [
            (finding(""), "category"),
            (finding(&"a".repeat(129)), "category"),
            (at(2, 3), "span 2..3"),
            (at(0, 4), "span 0..4"),
            (sure(1.5), "score 1.5"),
            (Finding { message_id: Some("m".repeat(129)), ..finding("a") }, "names a message"),
        ] {
            assert!(found(bad).unwrap_err().to_string().contains(why), "{why}");
        }
        let many = Inspection::pass(0).with(vec![finding("a"); MAX_FINDINGS + 1]);
        assert!(check_findings(&many, "").unwrap_err().to_string().contains("257 findings"));
    }

    /// Says what its test has it say.
    pub(in crate::testing) struct Says(pub(in crate::testing) fn(&Window) -> Inspection);

    impl Plugin for Says {
        type Config = ();
        fn describe() -> Descriptor {
            Descriptor::new("says", "0.1.0", "Says what it is made of").mutates()
        }
        fn configure(_: Self::Config) -> Result<Self, Error> {
            Ok(Self(|window| Inspection::pass(window.text.len())))
        }
    }

    impl StreamGuard for Says {
        type State = ();
        fn inspect_window(&self, _: &Context, _: &mut (), window: &Window) -> Result<Inspection, Error> {
            Ok((self.0)(window))
        }
    }

    #[test]
    fn what_a_server_refuses_or_mends_of_an_answer_is_refused_or_mended_here() {
        let halts_behind_what_left: fn(&Window) -> Inspection = |window| {
            let refusal = Refusal::new("x", "No.");
            let halt = WindowAction::Halt { refusal, farewell: None };
            let action = if window.settled > 0 { halt } else { WindowAction::Pass };
            let safe_through = if window.settled > 0 { 0 } else { 2 };
            Inspection { action, safe_through, ..Inspection::pass(0) }
        };
        let why = Host::default().stream(&Says(halts_behind_what_left), &["ab", "cd"]).unwrap_err().to_string();
        assert!(why.contains("safe_through 0 is not within"), "{why}");
        let puts_two_at_one_place: fn(&Window) -> Inspection = |_| {
            let put = |text: &str| Redaction { span: Span { start: 1, end: 1 }, text: text.into() };
            Inspection { action: WindowAction::Redact(vec![put("x"), put("y")]), ..Inspection::pass(2) }
        };
        let why = Host::default().stream(&Says(puts_two_at_one_place), &["ab"]).unwrap_err().to_string();
        assert!(why.contains("redaction 1..1 is out of place"), "{why}");
        let cuts_a_character: fn(&Window) -> Inspection =
            |window| Inspection::pass(if window.is_last() { window.text.len() } else { window.text.len() - 1 });
        assert_eq!(Host::default().stream(&Says(cuts_a_character), &["aé", "b"]).unwrap().text, "aéb");
    }

    /// Declares that it need not be asked about small letters, and breaks that at some of them.
    struct Careless;

    impl Plugin for Careless {
        type Config = ();
        fn describe() -> Descriptor {
            let next = [("letters", "word"), ("ends", "start")];
            let words = Prefilter::new(8).class("letters", ["az"]).class("ends", [" "]);
            let words = words.state("start", &next).state("word", &next);
            Descriptor::new("careless", "0.1.0", "Promises too much").holdback(8).prefilter(words)
        }
        fn configure(_: Self::Config) -> Result<Self, Error> {
            Ok(Self)
        }
    }

    impl StreamGuard for Careless {
        type State = u8;
        fn inspect_window(&self, _: &Context, state: &mut u8, window: &Window) -> Result<Inspection, Error> {
            let has = |letter: char| window.pending().contains(letter);
            *state = u8::from(has('s'));
            let through = if has('h') { window.start() } else { window.text.len() };
            let mut found = has('f').then(|| Finding::new("x-careless:f", crate::types::Severity::Low));
            if has('0') {
                let score = Some(2.0);
                found = Some(Finding { score, ..Finding::new("x-careless:0", crate::types::Severity::Low) });
            }
            Ok(Inspection::pass(through).with(found.into_iter().collect()))
        }
    }

    /// Redacts what is asked about, whatever it declares of that, and says how the answer ended.
    struct Redacts<const DECLARED: bool>;

    impl<const DECLARED: bool> Plugin for Redacts<DECLARED> {
        type Config = ();
        fn describe() -> Descriptor {
            let descriptor = Descriptor::new("redacts", "0.1.0", "Redacts");
            if DECLARED { descriptor.mutates() } else { descriptor }
        }
        fn configure(_: Self::Config) -> Result<Self, Error> {
            Ok(Self)
        }
    }

    impl<const DECLARED: bool> StreamGuard for Redacts<DECLARED> {
        type State = ();
        fn inspect_window(&self, _: &Context, _: &mut (), window: &Window) -> Result<Inspection, Error> {
            let (range, text) = (window.start()..window.text.len(), window.ending.clone().unwrap_or_default());
            Ok(Inspection::redact(range.end, vec![(range, text)]))
        }
    }

    /// Declares a state twice.
    struct Twice;

    impl Plugin for Twice {
        type Config = ();
        fn describe() -> Descriptor {
            Descriptor::new("twice", "0.1.0", "Says two things")
                .prefilter(Prefilter::new(1).state("start", &[]).state("start", &[]))
        }
        fn configure(_: Self::Config) -> Result<Self, Error> {
            Ok(Self)
        }
    }

    impl StreamGuard for Twice {
        type State = ();
        fn inspect_window(&self, _: &Context, _: &mut (), window: &Window) -> Result<Inspection, Error> {
            Ok(Inspection::pass(window.text.len()))
        }
    }

    #[test]
    fn a_guard_that_redacts_must_declare_it() {
        let error = Host::default().stream(&Redacts::<false>, &["a"]).unwrap_err().to_string();
        assert!(error.contains("it redacts, but its descriptor says `\"mutates\": false`"), "{error}");
        assert!(Host::default().stream(&Redacts::<true>, &["a"]).is_ok());
    }

    #[test]
    fn an_answer_ends_with_a_call_where_its_arguments_are_judged() {
        let ending = |channel| {
            let host = Host { channel, ..Host::default() };
            host.stream(&Redacts::<true>, &["{}"]).unwrap().text
        };
        assert_eq!(ending(Channel::ToolArguments("call_1".into())), "tool_calls");
        assert_eq!((ending(Channel::Text), ending(Channel::Refusal)), ("stop".into(), "stop".into()));
    }

    #[test]
    fn a_prefilter_that_a_host_refuses_is_named() {
        let error = Host::default().stream(&Twice, &["a"]).unwrap_err().to_string();
        assert!(error.contains("prefilter is refused: \"start\" is in it twice"), "{error}");
    }

    #[test]
    fn a_prefilter_that_promises_too_much_is_found() {
        let streamed = |pieces: &[&str]| Host::default().stream(&Careless, pieces).map(|outcome| outcome.text);
        assert_eq!(streamed(&["ab c", "d 1 f", "e"]).unwrap(), "ab cd 1 fe", "it is asked about what has a digit");
        let refused = streamed(&["a 0 b"]).unwrap_err().to_string();
        assert!(refused.contains("has the score 2"), "{refused}");
        for broken in ["af z", "as z", "ah z"] {
            let error = streamed(&["ab ", broken, "!"]).unwrap_err().to_string();
            assert!(error.contains(&format!("need not be asked about {broken:?}, of which it says")), "{error}");
        }
    }
}
