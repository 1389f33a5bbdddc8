//! `retriever`: passages for a question. Checked: no more than asked for, each with an id of its own.

use super::{Answer, StageCall};
use crate::bindings::exports::tidegate::plugin::retriever as guest;
use crate::bindings::tidegate::plugin::types as wit;
use crate::convert;
use crate::instance::Guests;
use crate::stage::{Chunk, Descriptor, Query, StageKind};
use crate::state::HostState;
use wasmtime::Store;

pub(crate) struct Retrieve<'a>(pub(crate) &'a Query);

impl StageCall for Retrieve<'_> {
    const STAGE: StageKind = StageKind::Retriever;
    type Raw = Vec<guest::Chunk>;
    type Out = Vec<Chunk>;

    async fn enter(
        &self,
        store: &mut Store<HostState>,
        guests: &mut Guests,
        context: wit::Context<'_>,
    ) -> Answer<Self::Raw> {
        let query = guest::Query { text: &self.0.text, top_k: self.0.top_k, attrs: &[] };
        guests.retriever(store)?.call_retrieve(store, context, query).await
    }

    fn check(&self, raw: Self::Raw, _: &Descriptor) -> Result<Vec<Chunk>, String> {
        if raw.len() > self.0.top_k as usize {
            return Err(format!("{} chunks; at most {} were asked for", raw.len(), self.0.top_k));
        }
        let mut chunks: Vec<Chunk> = Vec::with_capacity(raw.len());
        for found in raw {
            let found = chunk(found)?;
            if chunks.iter().any(|other| other.id == found.id) {
                return Err(format!("chunk `{}` is there twice", found.id.escape_debug()));
            }
            chunks.push(found);
        }
        Ok(chunks)
    }
}

fn chunk(found: guest::Chunk) -> Result<Chunk, String> {
    let guest::Chunk { id, text, uri, title, score, origin, .. } = found;
    if id.is_empty() {
        return Err("a chunk's id is empty".into());
    }
    if score.is_some_and(f32::is_nan) {
        return Err(format!("the score of chunk `{}` is not a number", id.escape_debug()));
    }
    if let Some(span) = origin.filter(|span| span.start > span.end) {
        return Err(format!("the origin of chunk `{}` is {}..{}", id.escape_debug(), span.start, span.end));
    }
    Ok(Chunk { id, text, uri, title, score, origin: origin.map(convert::span) })
}
