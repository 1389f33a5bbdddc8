//! `memory`: what is remembered of a caller. Checked: no more items than asked for, each with an id of its own.

use super::{Answer, StageCall};
use crate::bindings::exports::tidegate::plugin::memory as guest;
use crate::bindings::tidegate::plugin::types as wit;
use crate::convert::{self, Made, Rows};
use crate::instance::Guests;
use crate::stage::{Descriptor, Exchange, MemoryItem, Question, StageKind};
use crate::state::HostState;
use wasmtime::Store;

/// Items that one exchange may leave behind.
const MAX_KEPT: usize = 256;

pub(crate) struct Recall<'a>(pub(crate) Question<'a>);

impl StageCall for Recall<'_> {
    const STAGE: StageKind = StageKind::Memory;
    type Raw = Vec<guest::Item>;
    type Out = Vec<MemoryItem>;

    async fn enter(
        &self,
        store: &mut Store<HostState>,
        guests: &mut Guests,
        context: wit::Context<'_>,
    ) -> Answer<Self::Raw> {
        let question = guest::Question { text: self.0.text, limit: self.0.limit, attrs: &[] };
        guests.memory(store)?.call_recall(store, context, question).await
    }

    fn check(&self, raw: Self::Raw, _: &Descriptor) -> Result<Vec<MemoryItem>, String> {
        items(raw, self.0.limit as usize)
    }
}

pub(crate) struct Remember<'a>(pub(crate) Exchange<'a>);

impl StageCall for Remember<'_> {
    const STAGE: StageKind = StageKind::Memory;
    type Raw = Vec<guest::Item>;
    type Out = Vec<MemoryItem>;

    async fn enter(
        &self,
        store: &mut Store<HostState>,
        guests: &mut Guests,
        context: wit::Context<'_>,
    ) -> Answer<Self::Raw> {
        let messages = self.0.messages;
        let made = Made::of_messages(messages);
        let rows = Rows::of(messages, &made);
        let exchange = guest::Exchange { messages: &rows.messages(messages), attrs: &convert::attrs(self.0.attrs) };
        guests.memory(store)?.call_remember(store, context, exchange).await
    }

    fn check(&self, raw: Self::Raw, _: &Descriptor) -> Result<Vec<MemoryItem>, String> {
        items(raw, MAX_KEPT)
    }
}

pub(crate) struct Forget<'a>(pub(crate) &'a [&'a str]);

impl StageCall for Forget<'_> {
    const STAGE: StageKind = StageKind::Memory;
    type Raw = u32;
    type Out = u32;

    async fn enter(
        &self,
        store: &mut Store<HostState>,
        guests: &mut Guests,
        context: wit::Context<'_>,
    ) -> Answer<Self::Raw> {
        guests.memory(store)?.call_forget(store, context, self.0).await
    }

    fn check(&self, raw: u32, _: &Descriptor) -> Result<u32, String> {
        match raw as usize > self.0.len() {
            true => Err(format!("it forgot {raw} items of {}", self.0.len())),
            false => Ok(raw),
        }
    }
}

fn items(raw: Vec<guest::Item>, limit: usize) -> Result<Vec<MemoryItem>, String> {
    if raw.len() > limit {
        return Err(format!("{} items; at most {limit}", raw.len()));
    }
    let mut items: Vec<MemoryItem> = Vec::with_capacity(raw.len());
    for guest::Item { id, text, score, .. } in raw {
        if id.is_empty() || items.iter().any(|other| other.id == id) {
            return Err(format!("the id `{}` of an item is empty or there twice", id.escape_debug()));
        }
        if score.is_some_and(f32::is_nan) {
            return Err(format!("the score of item `{}` is not a number", id.escape_debug()));
        }
        items.push(MemoryItem { id, text, score });
    }
    Ok(items)
}
