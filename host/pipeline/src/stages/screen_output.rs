//! Stream guards: every text of every choice goes through them in the config's order before it leaves.
//!
//! A guard is called when text is there. A guard that answers within 2 ms sees every event, those of one read at once;
//! behind a slower one what arrives meanwhile is coalesced into the next window (`docs/decisions/0025`). Read next:
//! `reads.rs` for what comes together, `ask_guard.rs` for one guard, `beside.rs` for several at once.

use crate::context::RequestContext;
use crate::holdback::Border;
use crate::stage::Stage;
use crate::stages::ask_guard::{Asked, Asking, Withheld};
use crate::stages::beside::Beside;
use smallvec::SmallVec;
use tidegate_sandbox::stage::Channel;
use tidegate_types::{Fault, Finding, Reject, TextLogprob};

/// The text of one event.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Piece {
    pub(super) text: String,
    pub(super) logprobs: Vec<TextLogprob>,
}

/// What may leave of a text, and whether the answer ends with it.
#[derive(Default)]
pub(super) struct Judged {
    pub(super) text: String,
    pub(super) logprobs: Vec<TextLogprob>,
    pub(super) halted: bool,
    /// Where events end of which it is the text, but for the last.
    pub(super) borders: Vec<Border>,
    /// A guard has let some of it go without a verdict.
    pub(super) unjudged: bool,
}

impl Judged {
    /// What leaves, event by event.
    pub(super) fn pieces(self) -> impl Iterator<Item = Piece> {
        let Self { mut text, logprobs, borders, .. } = self;
        let (mut logprobs, mut from) = (logprobs.into_iter(), Border::default());
        let end = Border { text: text.len(), logprobs: logprobs.len() };
        let pieces = borders.into_iter().chain([end]).map(move |to| {
            let is_whole = from == Border::default() && to == end;
            let part = || text.get(from.text..to.text).unwrap_or_default().to_owned();
            let part = if is_whole { std::mem::take(&mut text) } else { part() };
            let num_logprobs = to.logprobs.saturating_sub(from.logprobs);
            from = to;
            Piece { text: part, logprobs: logprobs.by_ref().take(num_logprobs).collect() }
        });
        // A farewell too is said where the text was: it may have the model's words before it.
        pieces.filter(|piece| *piece != Piece::default())
    }

    /// Whether it has no text, nor have the events that came together with it.
    fn is_empty_with(&self, more: &[Piece]) -> bool {
        self.text.is_empty() && more.iter().all(|piece| piece.text.is_empty())
    }

    /// With the events that came together with it, as one text.
    fn joined(mut self, more: Vec<Piece>) -> Self {
        for Piece { text, mut logprobs } in more {
            self.text.push_str(&text);
            self.logprobs.append(&mut logprobs);
        }
        self
    }
}

/// How text is judged that is there already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Joining {
    /// Each event for itself.
    Never,
    /// The events of one read at once; they leave as they came.
    OneRead,
    /// As [`Self::OneRead`], all that arrived while the guard was busy.
    Events,
    /// All of it at once; it leaves as one event.
    Text,
}

/// Kept of one answer for observers.
const MAX_FINDINGS: usize = 1_024;

/// The guards' memory of one answer.
#[derive(Default)]
pub(super) struct OutputScreen {
    /// Texts of which more is to come. Few: a list is searched faster than a key is hashed.
    held: Vec<Held>,
    /// At most [`MAX_FINDINGS`].
    pub(super) findings: Vec<Finding>,
    has_more_findings: bool,
    slow: bool,
    /// A guard has redacted something.
    pub(super) redacted: bool,
    /// A guard has let something go without a verdict.
    pub(super) unjudged: bool,
    /// Output guards hold the answer. They judge its text as these do, and so see no token that is not of it.
    is_held: bool,
}

impl OutputScreen {
    /// For an answer that output guards hold, or do not.
    pub(super) fn new(is_held: bool) -> Self {
        Self { is_held, ..Self::default() }
    }

    /// Whether it lets all pass as it came.
    pub(super) fn is_open(&self, guards: &[Stage]) -> bool {
        guards.is_empty() && !self.is_held
    }

    /// Whether more of a text is to be judged.
    pub(super) fn holds(&self, choice: u32, channel: &Channel) -> bool {
        self.position(choice, channel).is_some()
    }

    fn position(&self, choice: u32, channel: &Channel) -> Option<usize> {
        self.held.iter().position(|held| held.choice == choice && held.channel == *channel)
    }

    /// What of a text waits at its guards, in the order in which it leaves.
    pub(super) fn waits(&self, choice: u32, channel: &Channel) -> String {
        let held = self.position(choice, channel).map(|at| &self.held[at]);
        held.iter().flat_map(|held| held.chain.iter().rev()).map(Link::pending).collect()
    }

    /// Nothing more of a text comes for now: that it waits at its guards is not their doing.
    pub(super) fn rest(&mut self, choice: u32, channel: &Channel) {
        let held = self.position(choice, channel).map(|at| &mut self.held[at]);
        held.into_iter().flat_map(|held| &mut held.chain).for_each(Link::rest);
    }

    /// How text that is there already is joined before it is judged. Several guards hand on what each lets go: only one
    /// alone knows which event that is of.
    pub(super) fn joining(&self, guards: &[Stage], streaming: bool) -> Joining {
        match guards.len() {
            0 => Joining::Never,
            _ if !streaming => Joining::Text,
            1 if self.slow => Joining::Events,
            1 => Joining::OneRead,
            _ if self.slow => Joining::Text,
            _ => Joining::Never,
        }
    }

    /// Has `guards` judge new text of a channel, with `more` that came together with it.
    pub(super) async fn judge(
        &mut self,
        guards: &[Stage],
        asking: Asking<'_>,
        new: Piece,
        more: Vec<Piece>,
    ) -> Result<Judged, Reject> {
        match self.take(guards, asking, new, more)? {
            Taken::Judged(judged) => Ok(judged),
            Taken::Waits(place) => self.ask(guards, asking, place).await,
        }
    }

    /// As [`Self::judge`], as far as no guard has to be asked. With one guard that is most events of a stream: they need no
    /// future, which would be among what the answer keeps, and cold whenever its events pause (`docs/decisions/0026`).
    pub(super) fn take(
        &mut self,
        guards: &[Stage],
        asking: Asking<'_>,
        Piece { text, logprobs }: Piece,
        more: Vec<Piece>,
    ) -> Result<Taken, Reject> {
        let new = Judged { text, logprobs, ..Judged::default() };
        if self.is_open(guards) {
            return Ok(Taken::Judged(new.joined(more)));
        }
        let Asking { choice, channel, .. } = asking;
        let known = self.position(choice, channel);
        if known.is_none() && new.is_empty_with(&more) {
            // A channel that had no text ends, as two of three do with each choice.
            return Ok(Taken::Judged(Judged::default()));
        }
        let held = known.unwrap_or_else(|| {
            let chain = batches(guards).map(Link::new).collect();
            if self.held.is_empty() {
                // Most answers have one text, and they are large.
                self.held.reserve_exact(1);
            }
            self.held.push(Held { choice, channel: channel.clone(), chain });
            self.held.len() - 1
        });
        self.hand_on(guards, asking, Place { held, link: 0, was_halted: false }, new, more)
    }

    /// Asks the guards at `place`, and has those behind it judge what they let go.
    pub(super) async fn ask(
        &mut self,
        guards: &[Stage],
        asking: Asking<'_>,
        mut place: Place,
    ) -> Result<Judged, Reject> {
        loop {
            let Place { held, link, was_halted } = place;
            let asked = batches(guards).zip(&mut self.held[held].chain).nth(link);
            let (batch, asked) = asked.ok_or_else(without_a_place)?;
            let Asked { mut judged, slow, redacted, .. } =
                asked.ask(batch, asking.or_of_the_last(was_halted), &mut self.findings).await?;
            self.bound_findings(asking.cx);
            self.slow |= slow;
            self.redacted |= redacted;
            self.unjudged |= judged.unjudged;
            judged.halted |= was_halted;
            let behind = Place { held, link: link + 1, was_halted: judged.halted };
            match self.hand_on(guards, asking, behind, judged, Vec::new())? {
                Taken::Judged(judged) => return Ok(judged),
                Taken::Waits(next) => place = next,
            }
        }
    }

    /// A stream of thousands of windows may have a million.
    fn bound_findings(&mut self, cx: &RequestContext) {
        if self.findings.len() <= MAX_FINDINGS {
            return;
        }
        self.findings.truncate(MAX_FINDINGS);
        if !std::mem::replace(&mut self.has_more_findings, true) {
            let request = &cx.request_id;
            tracing::warn!(%request, "the answer has more than {MAX_FINDINGS} findings: observers are told of the first");
        }
    }

    /// Has the guards from `place` on take what is new, until some have to be asked.
    fn hand_on(
        &mut self,
        guards: &[Stage],
        asking: Asking<'_>,
        mut place: Place,
        mut judged: Judged,
        mut more: Vec<Piece>,
    ) -> Result<Taken, Reject> {
        for (batch, link) in batches(guards).zip(&mut self.held[place.held].chain).skip(place.link) {
            let asking = asking.or_of_the_last(place.was_halted);
            let let_go = link.take(batch, asking, judged, std::mem::take(&mut more))?;
            self.slow |= link.was_slow();
            let Some(let_go) = let_go else { return Ok(Taken::Waits(place)) };
            judged = let_go;
            judged.halted |= place.was_halted;
            place = Place { link: place.link + 1, was_halted: judged.halted, ..place };
        }
        if judged.halted || asking.ending.is_some() {
            self.held.swap_remove(place.held);
        }
        Ok(Taken::Judged(judged))
    }
}

/// What came of text that guards were to judge.
pub(super) enum Taken {
    /// None had to be asked.
    Judged(Judged),
    /// These have to be.
    Waits(Place),
}

/// Guards that wait to be asked about what they hold.
pub(super) struct Place {
    held: usize,
    /// Which batch of guards.
    link: usize,
    /// A guard before them has halted the answer.
    was_halted: bool,
}

/// Guards that do not mutate run beside each other; one that does sees what the ones before it let go. None are one batch.
fn batches(stages: &[Stage]) -> impl Iterator<Item = &[Stage]> {
    stages.chunk_by(|a, b| !a.mutates() && !b.mutates()).chain(stages.is_empty().then_some(stages))
}

/// A text on its way past the guards. With one guard all of it but the text lies together: each place apart would be one more
/// wait for memory, one after the other, whenever events pause (`docs/decisions/0026`).
struct Held {
    choice: u32,
    channel: Channel,
    chain: SmallVec<[Link; 1]>,
}

/// The text of one channel at one batch of guards.
enum Link {
    Alone(Withheld),
    Beside(Beside),
}

impl Link {
    fn new(batch: &[Stage]) -> Self {
        if let [stage] = batch { Self::Alone(Withheld::by(stage)) } else { Self::Beside(Beside::default()) }
    }

    /// Whether a glance took long, of a guard that is alone; of several each says so when they are asked.
    fn was_slow(&mut self) -> bool {
        if let Self::Alone(held) = self { held.was_slow() } else { false }
    }

    fn rest(&mut self) {
        match self {
            Self::Alone(held) => held.let_go(),
            Self::Beside(several) => several.rest(),
        }
    }

    fn pending(&self) -> &str {
        match self {
            Self::Alone(held) => held.text.pending(),
            Self::Beside(several) => several.pending(),
        }
    }

    /// Takes what is new, and says what leaves where no guard has to be asked. Of several each is looked at in its turn.
    fn take(
        &mut self,
        stages: &[Stage],
        asking: Asking<'_>,
        new: Judged,
        more: Vec<Piece>,
    ) -> Result<Option<Judged>, Reject> {
        match (self, stages) {
            (Self::Alone(held), [stage]) => {
                let nothing_new = new.is_empty_with(&more);
                held.text.push(&new.text, new.logprobs);
                more.into_iter().for_each(|piece| held.text.push_next(&piece.text, piece.logprobs));
                if asking.may_wait(&held.text, nothing_new) {
                    return Ok(Some(Judged::default()));
                }
                asking.without_asking(stage, held)
            }
            (Self::Beside(several), stages) => several.take(stages, asking, new.joined(more)),
            (Self::Alone(_), _) => Err(without_a_place()),
        }
    }

    /// What the guards of this batch let go of what they hold. What they saw goes to `findings`.
    async fn ask(
        &mut self,
        stages: &[Stage],
        asking: Asking<'_>,
        findings: &mut Vec<Finding>,
    ) -> Result<Asked, Reject> {
        match (self, stages) {
            (Self::Alone(held), [stage]) => {
                let mut asked = asking.call(stage, held).await?;
                findings.append(&mut asked.findings);
                Ok(asked)
            }
            (Self::Beside(several), stages) => several.ask(stages, asking, findings).await,
            (Self::Alone(_), _) => Err(without_a_place()),
        }
    }
}

fn without_a_place() -> Reject {
    Reject::internal(Fault::Plugin, "a guard without a place")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_many_findings_about_an_answer_the_first_are_kept() {
        let cx = crate::reply::tests::context();
        let finding = |number: usize| {
            let (category, severity) = (number.to_string(), tidegate_types::Severity::Low);
            Finding { category, severity, score: None, message_id: None, span: None }
        };
        let mut screen = OutputScreen::new(false);
        for window in 0..10 {
            screen.findings.extend((0..256).map(|number| finding(256 * window + number)));
            screen.bound_findings(&cx);
        }
        let kept: Vec<String> = screen.findings.into_iter().map(|finding| finding.category).collect();
        assert_eq!(kept, (0..MAX_FINDINGS).map(|number| number.to_string()).collect::<Vec<_>>());
    }
}
