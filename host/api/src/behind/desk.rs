//! What is written at once, and who is left alone: the bounds of what happens behind answers.

use super::pauses::{Pauses, Whose};
use metrics::counter;
use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tidegate_types::Reject;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Texts that are written at once; further ones wait for the next answer of their conversation.
const AT_ONCE: usize = 16;

/// Bounds what is written at once, and of each conversation to one text of a kind; pauses what fails. Clones are one.
#[derive(Clone)]
pub(crate) struct Desk {
    slots: Arc<Semaphore>,
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    busy: HashSet<String>,
    pauses: Pauses,
}

impl Default for Desk {
    fn default() -> Self {
        Self { slots: Arc::new(Semaphore::new(AT_ONCE)), state: Arc::default() }
    }
}

/// Why a text is not begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NotNow {
    /// Somebody writes it.
    Busy,
    /// The model, or this text, failed lately.
    Paused,
    /// Too much is written already.
    Full,
}

/// A text that may be written. Dropping it gives the place back, and says nothing of the model.
pub(super) struct Place {
    desk: Desk,
    /// Names the text: its kind, whose it is, and the conversation.
    text: String,
    model: String,
    _slot: OwnedSemaphorePermit,
}

impl Desk {
    /// A place for the text of that name, written by that model.
    pub(super) fn take(&self, text: String, model: &str, now: Instant) -> Result<Place, NotNow> {
        let model = format!("model/{model}");
        let mut state = self.lock();
        if state.busy.contains(&text) {
            return Err(NotNow::Busy);
        }
        let Ok(slot) = Arc::clone(&self.slots).try_acquire_owned() else { return Err(NotNow::Full) };
        // The model last: who is admitted behind its pause has to try it.
        if !state.pauses.admits(&text, now) || !state.pauses.admits(&model, now) {
            state.pauses.unknown(&text);
            return Err(NotNow::Paused);
        }
        state.busy.insert(text.clone());
        drop(state);
        Ok(Place { desk: self.clone(), text, model, _slot: slot })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Place {
    /// The model wrote it.
    pub(super) fn written(&self) {
        let mut state = self.desk.lock();
        state.pauses.fine(&self.model);
        state.pauses.fine(&self.text);
    }

    /// It failed: whoever is the reason is left alone for the time that this gives.
    pub(super) fn failed(&self, kind: &'static str, reject: &Reject) -> (Whose, Duration) {
        let whose = Whose::of(reject);
        let name = match whose {
            Whose::Model => &self.model,
            Whose::Conversation => &self.text,
        };
        let at_least = Duration::from_secs(reject.retry_after_s.unwrap_or_default().into());
        let time = self.desk.lock().pauses.failed(name, at_least, Instant::now());
        counter!("tidegate_behind_pauses_total", "kind" => kind, "of" => whose.as_str()).increment(1);
        (whose, time)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut state = self.desk.lock();
        state.busy.remove(&self.text);
        state.pauses.unknown(&self.text);
        state.pauses.unknown(&self.model);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_types::{Fault, RejectKind};

    fn reject(kind: RejectKind) -> Reject {
        Reject::new(kind, Fault::Upstream, "")
    }

    #[test]
    fn a_model_that_fails_is_left_alone_by_all_and_a_text_by_itself() {
        let (desk, now) = (Desk::default(), Instant::now());
        let take = |text: &str, model: &str| desk.take(text.to_owned(), model, now).map(drop);
        let place = desk.take("title/a".into(), "m", now).unwrap_or_else(|why| panic!("{why:?}"));
        assert_eq!(take("title/a", "m"), Err(NotNow::Busy));
        assert_eq!(take("title/b", "m"), Ok(()));
        place.failed("title", &reject(RejectKind::ContentFilter));
        drop(place);
        assert_eq!(take("title/a", "m"), Err(NotNow::Paused));
        let place = desk.take("title/b".into(), "m", now).unwrap_or_else(|why| panic!("{why:?}"));
        place.failed("title", &reject(RejectKind::BadUpstream));
        drop(place);
        assert_eq!((take("title/c", "m"), take("summary/c", "m")), (Err(NotNow::Paused), Err(NotNow::Paused)));
        assert_eq!(take("title/c", "another"), Ok(()));
    }

    #[test]
    fn behind_a_pause_one_text_is_tried_and_what_it_says_counts() {
        let (desk, now) = (Desk::default(), Instant::now());
        let place = |text: &str, at| desk.take(text.to_owned(), "m", at);
        let (_, time) =
            place("a", now).map(|place| place.failed("title", &reject(RejectKind::BadUpstream))).ok().unwrap();
        let later = now + time + Duration::from_secs(1);
        let first = place("a", later).ok().unwrap();
        assert_eq!(place("b", later).map(drop), Err(NotNow::Paused));
        // One that found nothing to write says nothing; the next one tries.
        drop(first);
        let second = place("b", later).ok().unwrap();
        second.written();
        assert!(place("c", later).is_ok() && place("d", now).is_ok());
    }

    #[test]
    fn what_is_written_at_once_is_bounded() {
        let (desk, now) = (Desk::default(), Instant::now());
        let held: Vec<_> = (0..AT_ONCE).map(|n| desk.take(n.to_string(), "m", now).ok().unwrap()).collect();
        assert_eq!(desk.take("more".into(), "m", now).map(drop), Err(NotNow::Full));
        drop(held);
        assert!(desk.take("more".into(), "m", now).is_ok());
    }
}
