//! What was said before, as a request that goes on from it has it: read from the store once the request was let in, and put in
//! front of what is asked.

use crate::backend::History;
use crate::kept::{Kept, store_failed};
use std::sync::Arc;
use tidegate_store::conversations::{StoredMessage, StoredSummary};
use tidegate_types::{LeftOut, Message, Reject, Summary, TenantId, Transcript};
use tidegate_wire::items::{joined, uncalled, unreturned};
use tidegate_wire::responses::Truncation;

/// Messages of a history that are read; older ones count as left out, unless they are pinned.
const RECENT: u32 = 1000;
/// Of their text: more than any window holds.
const RECENT_BYTES: u64 = 16 << 20;

/// What was said up to `leaf`, in front of what is asked.
pub(crate) fn history(
    kept: &Kept,
    tenant: &TenantId,
    (conversation, leaf): (&str, &str),
    instructed: bool,
    truncation: Truncation,
) -> History {
    let (conversations, tenant) = (kept.conversations.clone(), tenant.clone());
    let sums_up = kept.behind.summaries.is_some() && truncation == Truncation::Auto;
    let (conversation, leaf) = (conversation.to_owned(), leaf.to_owned());
    History(Arc::new(move |mut asked| {
        let (conversations, tenant) = (conversations.clone(), tenant.clone());
        let (conversation, leaf) = (conversation.clone(), leaf.clone());
        Box::pin(async move {
            let found = conversations.history(&tenant, &conversation, &leaf, RECENT, RECENT_BYTES).await;
            let (earlier, left_out) = found.map_err(store_failed)?;
            if left_out > 0 && truncation == Truncation::Disabled {
                let message = format!(
                    "{left_out} messages of the conversation are more than a request reads; \
                     send `truncation`: \"auto\" to leave out the oldest"
                );
                return Err(Reject::invalid("truncation", message).code("context_length_exceeded"));
            }
            let summary = match sums_up {
                true => conversations.summary(&tenant, &conversation, &leaf).await,
                false => Ok(None),
            };
            let summary = summary.map_err(store_failed)?;
            // No model takes a call without its outcome, or that without the call, and its caller has no other way to be answered.
            let lone = lone(&earlier, &asked);
            let summary = summary.map(|summary| covering(summary, &earlier, (left_out, &lone)));
            let left_out = LeftOut { long: left_out, lone: lone.len() as u64 };
            let instructions = usize::from(instructed).min(asked.len());
            asked.splice(instructions..instructions, said(earlier, &lone));
            let messages = joined(asked)?;
            Ok(Transcript { messages, left_out, may_shorten: truncation == Truncation::Auto, summary })
        })
    }))
}

/// The places of messages of a history that lack what no model takes them without, also in what is `asked` behind them.
fn lone(earlier: &[StoredMessage], asked: &[Message]) -> Vec<usize> {
    let said = || earlier.iter().map(|stored| &stored.message);
    let mut lone = uncalled(said());
    lone.extend(unreturned(said(), asked));
    lone.sort_unstable();
    lone
}

/// The messages of a history but for those at some places, each by the place that it was read at.
fn said(earlier: Vec<StoredMessage>, but: &[usize]) -> impl Iterator<Item = Message> {
    let said = earlier.into_iter().enumerate().filter(|(n, _)| but.binary_search(n).is_err());
    said.map(|(n, stored)| {
        let id = if stored.pinned { Transcript::pinned(n) } else { Transcript::earlier(n) };
        Message { id, ..stored.message }
    })
}

/// A summary, beside the messages that were read of a history, the number of those that were not, and the places of those that
/// are not said for all that.
fn covering(stored: StoredSummary, read: &[StoredMessage], (not_read, unsaid): (u64, &[usize])) -> Summary {
    let through = read.iter().position(|message| message.id == stored.message).map_or(0, |at| at + 1);
    // It covers the beginning, and what was not read is older than what was.
    let long = stored.covers.saturating_sub(through as u64).min(not_read);
    let lone = unsaid.iter().filter(|place| **place < through).count() as u64;
    Summary { text: stored.text, through, absent: LeftOut { long, lone } }
}
