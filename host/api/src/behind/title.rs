//! Titles: what a conversation is about, in a few words, found behind its first answer. A caller's own word wins.

use super::pauses::empty;
use super::{Ask, Kept, Titles, ask, room_bytes, transcript};
use crate::kept::store_failed;
use crate::server::Api;
use tidegate_store::conversations::{Order, Page};
use tidegate_types::Reject;

/// Messages at the beginning that say what it is about.
const FIRST: u32 = 4;
/// Of them; a title needs no more.
const FIRST_BYTES: usize = 8 << 10;
const MAX_CHARS: usize = 80;

const INSTRUCTIONS: &str = "You name conversations. You are shown the beginning of one. Answer with a title of at most six \
    words that says what it is about, in its language, without quotes and without a full stop. Answer with the title alone.";

/// Names the conversation, where nobody has. Says whether it has the name now.
pub(super) async fn write(api: &Api, settings: &Titles, kept: &Kept) -> Result<bool, Reject> {
    let (store, tenant) = (api.writable(&kept.context.caller)?, kept.context.caller.owner());
    if !store.is_unnamed(tenant, &kept.conversation).await.map_err(store_failed)? {
        return Ok(false);
    }
    let first = Page { after: String::new(), limit: FIRST, order: Order::Ascending };
    let first = store.branch(tenant, &kept.conversation, &kept.leaf, &first).await;
    let first = first.map_err(store_failed)?.messages;
    let said = transcript(&first);
    let Titles { model, max_tokens } = settings;
    let room = room_bytes(api, &kept.context.caller, model, *max_tokens).min(FIRST_BYTES);
    let text = format!("{}\n\nThe title:", said[..said.floor_char_boundary(room)].trim_end());
    let task = Ask { kind: "title", model, max_tokens: *max_tokens, instructions: INSTRUCTIONS, text };
    let title = cleaned(&ask(api, kept, task).await?).ok_or_else(|| empty(model, "title"))?;
    let found_in: Vec<String> = first.into_iter().map(|message| message.id).collect();
    store.name(tenant, &kept.conversation, &title, &found_in).await.map_err(store_failed)
}

/// The first line that says something, without what models put around titles.
fn cleaned(said: &str) -> Option<String> {
    let around = |c: char| c.is_whitespace() || "\"'`*#_.“”„«»".contains(c);
    let said = said.replace(|c: char| c.is_control() && c != '\n', " ");
    let lines = said.lines().map(|line| line.trim_matches(around));
    let mut lines = lines.map(|line| line.strip_prefix("Title:").unwrap_or(line).trim_matches(around));
    let line = lines.find(|line| !line.is_empty())?;
    Some(short(line).to_owned())
}

/// As much of a line as a title may have, in whole words as far as it can be told: guards judged the line, and not what a cut or a
/// character that is left out would make of it.
fn short(line: &str) -> &str {
    let Some((most, c)) = line.char_indices().nth(MAX_CHARS) else { return line };
    let head = &line[..most];
    let end = if c.is_whitespace() { None } else { head.rfind(char::is_whitespace) };
    head[..end.unwrap_or(most)].trim_end()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_title_is_one_short_line() {
        for (said, title) in [
            ("Harbour tides", Some("Harbour tides")),
            ("\n  **\"Harbour tides.\"**\nIt is about tides.", Some("Harbour tides")),
            ("Title: Harbour tides", Some("Harbour tides")),
            ("jane\u{7}@example.com", Some("jane @example.com")),
            (" \n\"\"\n", None),
            ("\u{7}\r\n", None),
            ("", None),
        ] {
            assert_eq!(cleaned(said).as_deref(), title, "{said:?}");
        }
        assert_eq!(cleaned(&"ü".repeat(500)).unwrap().chars().count(), MAX_CHARS);
        let long = |last: usize| format!("{} {}", "ü".repeat(MAX_CHARS - 4), "b".repeat(last));
        assert_eq!(cleaned(&long(3)).unwrap(), long(3));
        assert_eq!(cleaned(&format!("{} c", long(3))).unwrap(), long(3));
        assert_eq!(cleaned(&long(4)).unwrap(), "ü".repeat(MAX_CHARS - 4), "no word is cut to another");
    }
}
