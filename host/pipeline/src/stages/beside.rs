//! Stream guards beside each other: none of them changes text, so all see the same, at once, and what leaves is the
//! minimum of their watermarks. Each keeps its own place in the text: a guard that has let text go is not asked about
//! it again because another one holds it. Where one halts, the others decide on what is left to say. Without any all of it
//! leaves, but for log-probabilities of tokens that are not its text.

use crate::holdback::{AtCap, Holdback};
use crate::stage::Stage;
use crate::stages::ask_guard::{Asked, Asking, Withheld};
use crate::stages::screen_output::Judged;
use tidegate_sandbox::stage::Inspection;
use tidegate_types::{Fault, Finding, Reject};

/// One text on its way past several guards.
#[derive(Debug, Default)]
pub(super) struct Beside {
    /// What no guard but the slowest holds any more, with its log-probabilities.
    all: Holdback,
    each: Vec<Place>,
}

/// How far one guard is.
#[derive(Debug)]
struct Place {
    held: Withheld,
    /// Bytes that it has let go and `all` still has.
    ahead: usize,
    /// Bytes that it has let go since text left it unjudged, where some has.
    judged: Option<usize>,
}

impl Beside {
    /// As [`Withheld::let_go`], of each guard.
    pub(super) fn rest(&mut self) {
        self.each.iter_mut().for_each(|place| place.held.let_go());
    }

    /// What waits at the guards.
    pub(super) fn pending(&self) -> &str {
        self.all.pending()
    }

    /// Takes new text of the channel, and says what leaves where the guards need not be asked yet.
    pub(super) fn take(&mut self, stages: &[Stage], asking: Asking<'_>, new: Judged) -> Result<Option<Judged>, Reject> {
        self.each.extend(stages.iter().skip(self.each.len()).map(Place::of));
        let nothing_new = new.text.is_empty();
        self.each.iter_mut().for_each(|place| place.held.text.push(&new.text, Vec::new()));
        self.all.push(&new.text, new.logprobs);
        if stages.is_empty() {
            return self.let_go().map(Some);
        }
        Ok(asking.may_wait(&self.all, nothing_new).then(Judged::default))
    }

    /// Asks each guard about what it has not let go; what all let go leaves. What each of them saw goes to `findings`, whatever
    /// becomes of the others.
    pub(super) async fn ask(
        &mut self,
        stages: &[Stage],
        asking: Asking<'_>,
        findings: &mut Vec<Finding>,
    ) -> Result<Asked, Reject> {
        let asks = stages.iter().zip(&mut self.each).map(|(stage, place)| place.ask(stage, asking));
        let answers = all(futures_util::future::join_all(asks).await, findings)?;
        let slow = answers.iter().any(|asked| asked.slow);
        let unjudged = answers.iter().any(|asked| asked.judged.unjudged);
        let judged = match answers.into_iter().enumerate().find(|(_, asked)| asked.judged.halted) {
            Some((by, halt)) => {
                let last = self.last_words(stages, asking.of_the_last(), by, &halt.judged.text, findings);
                Judged { text: Box::pin(last).await?, halted: true, ..Judged::default() }
            }
            None => self.let_go()?,
        };
        Ok(Asked { judged: Judged { unjudged, ..judged }, slow, ..Asked::default() })
    }

    /// What leaves of a text that the guard `by` has halted: what it had let go and its farewell, which may have more of
    /// the model's words, as far as each of the others lets that go.
    async fn last_words(
        &mut self,
        stages: &[Stage],
        asking: Asking<'_>,
        by: usize,
        farewell: &str,
        findings: &mut Vec<Finding>,
    ) -> Result<String, Reject> {
        let all = self.all.pending();
        let let_go = all.get(..self.each.get(by).map_or(0, |place| place.ahead)).unwrap_or_default();
        let mut last = format!("{let_go}{farewell}");
        for (idx, (stage, place)) in stages.iter().zip(&mut self.each).enumerate() {
            let known = common_len(&last, all).min(place.ahead);
            if idx == by || known == last.len() {
                continue;
            }
            if known < place.ahead {
                // What it let go beyond that leaves no more: it begins anew behind what does.
                let behind = format!("{}{}", self.all.look_behind(), &last[..known]);
                place.held = Withheld::by(stage);
                place.held.text.comes_behind(place.judged_of(&behind, known));
            }
            place.held.text.replace(&last[known..]);
            let mut asked = place.ask(stage, asking).await?;
            findings.append(&mut asked.findings);
            if asked.judged.halted {
                // What it lets go of that stays, before its farewell.
                last.truncate(last.len().saturating_sub(place.held.text.pending_bytes()));
                last.push_str(&asked.judged.text);
            }
        }
        Ok(last)
    }

    /// Lets go what every guard has let go.
    fn let_go(&mut self) -> Result<Judged, Reject> {
        let common = self.each.iter().map(|place| place.ahead).min().unwrap_or(self.all.pending_bytes());
        self.each.iter_mut().for_each(|place| place.ahead -= common);
        let pass = Inspection::pass(self.all.window().settled as usize + common);
        let released = self.all.apply(pass, false, usize::MAX, AtCap::Halt);
        let released = released.map_err(|error| Reject::internal(Fault::Plugin, error.to_string()))?;
        Ok(Judged { text: released.text, logprobs: released.logprobs, ..Judged::default() })
    }
}

/// The answers of guards that were asked at once. Whichever fails, the others saw what they saw.
fn all(mut answers: Vec<Result<Asked, Reject>>, findings: &mut Vec<Finding>) -> Result<Vec<Asked>, Reject> {
    for asked in answers.iter_mut().flatten() {
        findings.append(&mut asked.findings);
    }
    answers.into_iter().collect()
}

/// Bytes that both begin with, in whole characters.
pub(super) fn common_len(a: &str, b: &str) -> usize {
    let same = a.bytes().zip(b.bytes()).take_while(|(a, b)| a == b).count();
    a.floor_char_boundary(same)
}

impl Place {
    fn of(stage: &Stage) -> Self {
        Self { held: Withheld::by(stage), ahead: 0, judged: None }
    }

    /// What it sees again of the text `behind` which it begins anew, `known` bytes into what it has let go and `all` still has:
    /// none from before what left it unjudged.
    fn judged_of<'a>(&self, behind: &'a str, known: usize) -> &'a str {
        let bytes = self.judged.map_or(behind.len(), |judged| (judged + known).saturating_sub(self.ahead));
        behind.get(behind.len().saturating_sub(bytes)..).unwrap_or_default()
    }

    async fn ask(&mut self, stage: &Stage, asking: Asking<'_>) -> Result<Asked, Reject> {
        if self.held.text.is_empty() && asking.ending.is_none() {
            return Ok(Asked::default());
        }
        let waited = self.held.text.pending_bytes();
        let mut asked = asking.ask(stage, &mut self.held).await?;
        let let_go = waited.saturating_sub(self.held.text.pending_bytes());
        self.ahead += let_go;
        self.judged = match self.judged {
            _ if asked.judged.unjudged && let_go > 0 => Some(0),
            judged => judged.map(|judged| judged + let_go),
        };
        if asked.judged.halted && let_go > 0 {
            // It keeps back more than it may, and says nothing: this is what it had let go before.
            asked.judged.text.clear();
        }
        Ok(asked)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_types::Severity;

    fn finding(category: &str) -> Finding {
        Finding { category: category.into(), severity: Severity::Low, score: None, message_id: None, span: None }
    }

    #[test]
    fn what_guards_saw_is_left_whichever_of_them_fails() {
        let asked = |category: &str| Ok(Asked { findings: vec![finding(category)], ..Asked::default() });
        let broken = || Err(Reject::internal(Fault::Plugin, "it trapped"));
        for (answers, is_good) in [
            (vec![asked("a"), asked("b")], true),
            (vec![asked("a"), broken(), asked("b")], false),
            (vec![broken(), asked("a"), asked("b"), broken()], false),
        ] {
            let mut findings = vec![finding("before")];
            assert_eq!(all(answers, &mut findings).is_ok(), is_good);
            let categories: Vec<&str> = findings.iter().map(|finding| finding.category.as_str()).collect();
            assert_eq!(categories, ["before", "a", "b"]);
        }
    }
}
