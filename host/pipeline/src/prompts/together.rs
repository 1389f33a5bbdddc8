//! Where the prompts of one request wait for each other before anything is generated.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tidegate_types::{Fault, Reject, RejectKind};
use tokio::sync::watch;

/// One prompt's place among those that begin together. Clones are the same place.
#[derive(Clone)]
pub(crate) struct Seat(Arc<Counted>);

struct Counted {
    all: watch::Sender<All>,
    /// Whether this prompt is counted, so that it is counted once.
    is_counted: AtomicBool,
}

#[derive(Clone, Copy)]
struct All {
    /// Of how many it is not known yet whether they can begin.
    uncounted: usize,
    is_one_refused: bool,
}

/// Places for so many prompts.
pub(super) fn seats(count: usize) -> Vec<Seat> {
    let all = watch::Sender::new(All { uncounted: count, is_one_refused: false });
    (0..count).map(|_| Seat(Arc::new(Counted { all: all.clone(), is_counted: AtomicBool::new(false) }))).collect()
}

impl Seat {
    /// This prompt could begin. Waits until that is known of all of them; an error where another one is refused.
    pub(crate) async fn ready(&self) -> Result<(), Reject> {
        self.count(false);
        let mut all = self.0.all.subscribe();
        // The sender is here, so that waiting ends with what was waited for.
        match all.wait_for(|all| all.uncounted == 0).await {
            Ok(all) if !all.is_one_refused => Ok(()),
            _ => Err(gave_way()),
        }
    }

    /// What became of this prompt, if that was not known before.
    pub(super) fn count(&self, is_refused: bool) {
        if !self.0.is_counted.swap(true, Ordering::Relaxed) {
            self.0.all.send_modify(|all| {
                all.uncounted -= 1;
                all.is_one_refused |= is_refused;
            });
        }
    }
}

/// A prompt that could begin, but for another one; nobody is told this of it.
fn gave_way() -> Reject {
    Reject::new(RejectKind::Invalid, Fault::Client, "another prompt of the request is refused").code(GAVE_WAY)
}

const GAVE_WAY: &str = "another_prompt_refused";

pub(super) fn has_given_way(reject: &Reject) -> bool {
    reject.code.as_deref() == Some(GAVE_WAY)
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::future::join_all;

    #[tokio::test]
    async fn all_begin_once_each_could_and_none_where_one_could_not() {
        for refused in [None, Some(0), Some(2)] {
            let came = join_all(seats(3).into_iter().enumerate().map(|(at, seat)| async move {
                tokio::time::sleep(std::time::Duration::from_millis(3 - at as u64)).await;
                if refused == Some(at) {
                    seat.count(true);
                    return false;
                }
                let ready = seat.ready().await;
                seat.count(true);
                assert!(ready.as_ref().err().is_none_or(has_given_way));
                ready.is_ok()
            }))
            .await;
            assert_eq!(came, vec![refused.is_none(); 3], "{refused:?}");
        }
    }
}
