//! One generation in the books, from its first reservation to its end.

use crate::call::Call;
use crate::entry::{Entry, Opening};
use crate::ledger::{Ledger, Who};
use crate::price::{Price, Prices};
use crate::tally::{Tally, Tokens};
use parking_lot::Mutex;
use std::sync::Arc;
use tidegate_types::Reject;
use tidegate_types::clock::unix_ms;

/// Follows one generation. Settled by [`Charge::settle`], or as `client-gone` when it is dropped before.
#[derive(Debug)]
pub struct Charge {
    ledger: Arc<Ledger>,
    /// Of when it began: what calls cost does not change under a generation.
    prices: Arc<Prices>,
    who: Who,
    tally: Arc<Tally>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    opened: Option<(u64, Opening)>,
    /// Billionths that are set aside.
    reserved: u64,
    /// Billionths of the dearest call that a turn may end in.
    dearest: u64,
    settled: bool,
    /// Billionths, once it is settled.
    billed: Option<u64>,
}

impl State {
    fn is_on(&self, model: &str) -> bool {
        matches!(&self.opened, Some((_, opening)) if opening.model == model)
    }
}

impl Charge {
    pub(crate) fn new(ledger: Arc<Ledger>, who: Who) -> Self {
        let prices = ledger.prices();
        Self { ledger, prices, who, tally: Arc::default(), state: Mutex::default() }
    }

    /// Where its tokens are counted.
    pub fn tally(&self) -> &Arc<Tally> {
        &self.tally
    }

    /// A call of a plugin's tool, at its price.
    pub fn tool(&self, plugin: &str, tool: &str) -> Call {
        self.prices.calls.tool(plugin, tool)
    }

    /// A call of a retriever, at its price.
    pub fn retrieval(&self, plugin: &str) -> Call {
        self.prices.calls.retrieval(plugin)
    }

    /// The model may call these: from now on a turn sets aside the dearest of them too, so that a budget that allows the
    /// turn allows a call that it ends in.
    pub fn offer(&self, calls: impl IntoIterator<Item = Call>) {
        let dearest = calls.into_iter().map(|call| call.price).max().unwrap_or_default();
        self.state.lock().dearest = dearest;
    }

    /// A turn on `model` is about to begin, with a prompt of `input` tokens and room for `output`. Sets aside what it
    /// may cost, and writes down that the generation has begun. Refused where a budget does not allow it, or the disk
    /// has no room.
    pub fn reserve(&self, model: &str, input: u64, output: u64) -> Result<(), Reject> {
        let mut state = self.state.lock();
        let before = self.tally.tokens();
        let most = Tokens { input: before.input + input, cached: before.cached, output: before.output + output };
        let ahead = state.dearest;
        self.set_aside(&mut state, model, most, ahead)
    }

    /// `calls` are about to be made, of a generation on `model`. Sets aside and writes down as [`Self::reserve`] does; where
    /// they cost nothing, nothing.
    pub fn reserve_calls(&self, model: &str, calls: &[Call]) -> Result<(), Reject> {
        let ahead = calls.iter().fold(0_u64, |sum, call| sum.saturating_add(call.price));
        if ahead == 0 {
            return Ok(());
        }
        self.set_aside(&mut self.state.lock(), model, self.tally.tokens(), ahead)
    }

    /// A call was answered, and is billed.
    pub fn called(&self, call: Call) {
        self.tally.add_call(call);
    }

    /// Has set aside what `most` tokens, the calls so far and `ahead` for further ones cost together.
    fn set_aside(&self, state: &mut State, model: &str, most: Tokens, ahead: u64) -> Result<(), Reject> {
        let price = match &state.opened {
            Some((_, opening)) if opening.model == model => opening.price,
            _ => self.ledger.price(model),
        };
        let calls = self.tally.calls().amount().saturating_add(ahead);
        let needed = price.of(most).saturating_add(calls).saturating_sub(state.reserved);
        self.ledger.reserve(&self.who, needed)?;
        if !state.is_on(model) {
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

    fn opening(&self, model: &str, price: Price) -> Opening {
        let Who { generation, request_id, tenant, project, key_name, end_user } = self.who.clone();
        let (model, begun_ms) = (model.to_owned(), unix_ms());
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
        let (tokens, calls) = (self.tally.tokens(), self.tally.calls());
        let entry = Entry { opening, tokens, calls, outcome: outcome.into(), ended_ms: unix_ms() };
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
