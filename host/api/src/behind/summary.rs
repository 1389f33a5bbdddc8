//! Rolling summaries: what was said before the last turns, in short. Each goes on from the one before it on its branch.

use super::pauses::empty;
use super::{Ask, Kept, Summaries, ask, room_bytes, transcript, window};
use crate::kept::store_failed;
use crate::server::Api;
use std::collections::VecDeque;
use tidegate_store::conversations::{MessagePage, Order, Page, StoredMessage, StoredSummary};
use tidegate_store::{Conversations, StoreError};
use tidegate_types::{Reject, Role, TenantId};

/// Messages that are summed up, and written, together.
const PAGE: u32 = 16;
/// Pages behind one answer; a longer history is caught up with behind the next ones.
const MAX_PAGES: usize = 32;
/// At the end of a branch, where the last turns are looked for.
const NEWEST: u32 = 64;
const NEWEST_BYTES: u64 = 4 << 20;
/// A shorter piece is not parted again.
const LEAST_BYTES: usize = 512;

const INSTRUCTIONS: &str = "You keep the summary of a conversation between a user and an assistant. You are shown the summary \
    so far and what was said after it. Write the new summary: who the user is, what was asked and answered, decisions, \
    names and numbers, and what is still open. Write short plain sentences in the language of the conversation, about \
    what was said and not to anybody. Answer with the summary alone.";

/// Whether a branch is long enough for a summary, or needed one already.
pub(super) fn is_due(api: &Api, settings: &Summaries, kept: &Kept) -> bool {
    let share = |window: u32| u64::from(window) * u64::from(settings.from_percent) / 100;
    kept.unseen > 0 || window(api, &kept.context.caller, &kept.model).is_some_and(|window| kept.tokens >= share(window))
}

/// Sums up what was said before the last turns. Says whether there was something to sum up.
pub(super) async fn write(api: &Api, settings: &Summaries, kept: &Kept) -> Result<bool, Reject> {
    let (store, tenant) = (api.writable(&kept.context.caller)?, kept.context.caller.owner());
    let conversation = kept.conversation.as_str();
    let Some(end) = last_old(store, tenant, kept, settings.recent_turns).await.map_err(store_failed)? else {
        return Ok(false);
    };
    let mut latest = store.summary(tenant, conversation, &kept.leaf).await.map_err(store_failed)?;
    let mut written = false;
    for _ in 0..MAX_PAGES {
        let known = store.summary(tenant, conversation, &end).await.map_err(store_failed)?;
        if known != latest {
            // It covers more than is old now: the branch was longer.
            break;
        }
        let known = known.unwrap_or_default();
        let page = Page { after: known.message.clone(), limit: PAGE, order: Order::Ascending };
        let page = whole_turns(store.branch(tenant, conversation, &end, &page).await.map_err(store_failed)?);
        let Some(last) = page.last() else { break };
        let new = StoredSummary {
            message: last.id.clone(),
            covers: known.covers + page.len() as u64,
            text: fold(api, settings, kept, known.text, &page).await?,
            model: settings.model.clone(),
            created_ms: 0,
        };
        if !store.put_summary(tenant, conversation, &new, &known.message).await.map_err(store_failed)? {
            break;
        }
        written = true;
        latest = store.summary(tenant, conversation, &kept.leaf).await.map_err(store_failed)?;
    }
    Ok(written)
}

/// The message before the last turns.
async fn last_old(
    store: &Conversations,
    tenant: &TenantId,
    kept: &Kept,
    recent_turns: usize,
) -> Result<Option<String>, StoreError> {
    let (newest, _) = store.history(tenant, &kept.conversation, &kept.leaf, NEWEST, NEWEST_BYTES).await?;
    let mut questions = newest.into_iter().rev().filter(|stored| stored.message.role == Role::User);
    let first = questions.nth(recent_turns.saturating_sub(1));
    Ok(first.map(|first| first.parent).filter(|parent| !parent.is_empty()))
}

/// Without the beginning of a turn whose rest is on the next page.
fn whole_turns(MessagePage { messages: mut page, has_more }: MessagePage) -> Vec<StoredMessage> {
    if has_more
        && let Some(last) = page.iter().rposition(|stored| stored.message.role == Role::User).filter(|at| *at > 0)
    {
        page.truncate(last);
    }
    page
}

/// Sums up `messages`, going on from what is known of those before: in as many pieces as the model takes.
async fn fold(
    api: &Api,
    settings: &Summaries,
    kept: &Kept,
    mut so_far: String,
    messages: &[StoredMessage],
) -> Result<String, Reject> {
    let Summaries { model, max_tokens, .. } = settings;
    let room = room_bytes(api, &kept.context.caller, model, 2 * max_tokens);
    let said = transcript(messages);
    let mut pieces: VecDeque<&str> = pieces(&said, room).into();
    while let Some(piece) = pieces.pop_front() {
        let before = if so_far.is_empty() { "(nothing yet)" } else { &so_far };
        let text = format!("Summary so far:\n{before}\n\nWhat was said after it:\n{piece}\n\nThe new summary:");
        let task = Ask { kind: "summary", model, max_tokens: *max_tokens, instructions: INSTRUCTIONS, text };
        match ask(api, kept, task).await {
            Ok(summary) if summary.is_empty() => {
                return Err(empty(model, "summary"));
            }
            Ok(summary) => so_far = summary,
            Err(reject) if is_too_long(&reject) && piece.len() > LEAST_BYTES => {
                let (first, rest) = piece.split_at(piece.floor_char_boundary(piece.len() / 2));
                [rest, first].into_iter().for_each(|half| pieces.push_front(half));
            }
            Err(reject) => return Err(reject),
        }
    }
    Ok(so_far)
}

fn is_too_long(reject: &Reject) -> bool {
    reject.code.as_deref() == Some("context_length_exceeded")
}

fn pieces(mut text: &str, bytes: usize) -> Vec<&str> {
    let mut pieces = Vec::new();
    while !text.is_empty() {
        // A character is at most four bytes, so that each piece has one.
        let (piece, rest) = text.split_at(text.floor_char_boundary(bytes.max(4)));
        pieces.push(piece);
        text = rest;
    }
    pieces
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_tile_the_text_and_split_no_character() {
        let text = "Was gibt es zu der Flut \u{1f30a} zu sagen? ".repeat(9);
        for bytes in [0, 5, 31, 64, 10_000] {
            let pieces = pieces(&text, bytes);
            assert_eq!(pieces.concat(), text);
            assert!(pieces.iter().all(|piece| !piece.is_empty() && piece.len() <= bytes.max(4)), "{bytes}");
        }
    }
}
