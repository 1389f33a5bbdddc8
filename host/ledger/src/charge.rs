//! One generation in the books, from its first reservation to its end.

use crate::entry::{Entry, Opening};
use crate::ledger::{Ledger, Who, now_ms};
use crate::tally::{Tally, Tokens};
use parking_lot::Mutex;
use std::sync::Arc;
use tidegate_types::Reject;

/// Follows one generation. Settled by [`Charge::settle`], or as `client-gone` when it is dropped before.
#[derive(Debug)]
pub struct Charge {
    ledger: Arc<Ledger>,
    who: Who,
    tally: Arc<Tally>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    opened: Option<(u64, Opening)>,
    /// Billionths that are set aside.
    reserved: u64,
    settled: bool,
    /// Billionths, once it is settled.
    billed: Option<u64>,
}

impl Charge {
    pub(crate) fn new(ledger: Arc<Ledger>, who: Who) -> Self {
        Self { ledger, who, tally: Arc::default(), state: Mutex::default() }
    }

    /// Where its tokens are counted.
    pub fn tally(&self) -> &Arc<Tally> {
        &self.tally
    }

    /// A turn on `model` is about to begin, with a prompt of `input` tokens and room for `output`. Sets aside what it
    /// may cost, and writes down that the generation has begun. Refused where a budget does not allow it, or the disk
    /// has no room.
    pub fn reserve(&self, model: &str, input: u64, output: u64) -> Result<(), Reject> {
        let mut state = self.state.lock();
        let price = match &state.opened {
            Some((_, opening)) if opening.model == model => opening.price,
            _ => self.ledger.price(model),
        };
        let before = self.tally.tokens();
        let most = Tokens { input: before.input + input, cached: before.cached, output: before.output + output };
        let needed = price.of(most).saturating_sub(state.reserved);
        self.ledger.reserve(&self.who, needed)?;
        if !matches!(&state.opened, Some((_, opening)) if opening.model == model) {
            let opening = self.opening(model, price);
            let number = state.opened.as_ref().map(|(number, _)| *number);
            match self.ledger.open(number, &opening, &self.tally) {
                Ok(number) => state.opened = Some((number, opening)),
                Err(reject) => {
                    self.ledger.release(&self.who, needed);
                    return Err(reject);
                }
            }
        }
        state.reserved = state.reserved.saturating_add(needed);
        Ok(())
    }

    fn opening(&self, model: &str, price: crate::Price) -> Opening {
        let Who { generation, request_id, tenant, project, key_name, end_user } = self.who.clone();
        let (model, begun_ms) = (model.to_owned(), now_ms());
        Opening { generation, request_id, tenant, project, key_name, end_user, model, price, begun_ms }
    }

    /// Bills what was counted, once; later calls do nothing.
    pub fn settle(&self, outcome: &str) {
        let mut state = self.state.lock();
        if std::mem::replace(&mut state.settled, true) {
            return;
        }
        state.billed = Some(0);
        let Some((number, opening)) = state.opened.take() else { return };
        let entry = Entry { opening, tokens: self.tally.tokens(), outcome: outcome.into(), ended_ms: now_ms() };
        state.billed = Some(entry.amount());
        self.ledger.end(&self.who, number, entry, state.reserved);
    }

    /// What is billed, in billionths of the operator's currency, once it is settled.
    pub fn billed(&self) -> Option<u64> {
        self.state.lock().billed
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.settle("client-gone");
    }
}
