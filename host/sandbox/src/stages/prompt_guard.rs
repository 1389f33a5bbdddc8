//! `prompt-guard`: decides on a prompt, before generation. Checked: every edit names something that is there when its turn
//! comes, edits of one text do not overlap, and a message is left. So whoever has the edits can make them. What comes from
//! outside is asked about in `outside.rs`.

mod outside;

pub(crate) use outside::InspectOutside;

use super::{Answer, Direct, StageCall};
use crate::bindings::direct::exports::tidegate::plugin::prompt_guard as direct;
use crate::bindings::exports::tidegate::plugin::prompt_guard as on_fiber;
use crate::bindings::tidegate::plugin::types as wit;
use crate::call_ids::{CallIds, Place};
use crate::check;
use crate::convert::{self, Made, Rows};
use crate::instance::Guests;
use crate::json::{self, Values};
use crate::media;
use crate::stage::{Action, Descriptor, Edit, Prompt, StageKind, Verdict};
use crate::state::HostState;
use serde_json::Value;
use std::borrow::Cow;
use std::cell::OnceCell;
use std::collections::{HashMap, HashSet};
use tidegate_types::{Message, Part, Span};
use wasmtime::Store;

/// Bytes of what one verdict hands on to the plugin's own later stages.
const MAX_NOTES_BYTES: usize = 64 << 10;

pub(crate) struct InspectPrompt<'a> {
    pub(crate) prompt: Prompt<'a>,
    /// The plugin's name in the config.
    pub(crate) plugin: &'a str,
}

/// Hands the prompt to a call, as the one or the other bindings have it.
macro_rules! lowered {
    ($guard:ident, $prompt:expr, |$lowered:ident| $call:expr) => {{
        let Prompt { messages, tools, params } = $prompt;
        let (made, schemas) = (Made::of_messages(messages), Made::of_tools(tools));
        let rows = Rows::of(messages, &made);
        let $lowered = $guard::Prompt {
            messages: &rows.messages(messages),
            tools: &convert::tool_defs(tools, &schemas),
            params: &convert::attrs(params),
            truncated: false,
        };
        $call
    }};
}

impl InspectPrompt<'_> {
    fn enter_directly(
        &self,
        store: &mut Store<HostState>,
        guests: &mut Guests,
        context: wit::Context<'_>,
    ) -> Answer<wit::Verdict> {
        lowered!(direct, self.prompt, |prompt| {
            guests.direct_prompt_guard(store)?.call_inspect_prompt(store, context, prompt)
        })
    }
}

impl StageCall for InspectPrompt<'_> {
    const STAGE: StageKind = StageKind::PromptGuard;
    const DIRECT: Option<Direct<Self>> = Some(Self::enter_directly);
    type Raw = wit::Verdict;
    type Out = Verdict;

    async fn enter(
        &self,
        store: &mut Store<HostState>,
        guests: &mut Guests,
        context: wit::Context<'_>,
    ) -> Answer<wit::Verdict> {
        lowered!(on_fiber, self.prompt, |prompt| {
            guests.prompt_guard(store)?.call_inspect_prompt(store, context, prompt).await
        })
    }

    fn check(&self, raw: wit::Verdict, descriptor: &Descriptor) -> Result<Verdict, String> {
        let notes = notes(raw.attrs, &descriptor.name);
        let seen = Seen::of(self.prompt.messages, self.plugin);
        let findings = check::findings(raw.findings, |id| seen.text_of(id))?;
        let action = match raw.action {
            wit::Action::Allow => Action::Allow,
            wit::Action::Rewrite(_) if !descriptor.mutates => {
                return Err("it rewrites, but its descriptor says `\"mutates\": false`".into());
            }
            wit::Action::Rewrite(edits) => Action::Rewrite(seen.edits(edits)?),
            wit::Action::Respond(parts) => Action::Respond(said(convert::parts(parts, &mut Values::of_result())?)?),
            wit::Action::Refuse(refusal) => Action::Refuse(convert::refusal(refusal)),
        };
        Ok(Verdict { action, findings, notes })
    }
}

/// The messages as the guard saw them, to be found by what it names. A verdict has as many edits as fit its result, and
/// callers decide how many they need: each costs one look.
struct Seen<'a> {
    messages: &'a [Message],
    plugin: &'a str,
    by_id: OnceCell<HashMap<&'a str, Known<'a>>>,
    /// Tool calls by the ids under which the guard saw them.
    calls: OnceCell<HashMap<String, Place>>,
    /// Images and the like, by kind and body.
    media: OnceCell<HashSet<(&'a str, &'a Value)>>,
}

struct Known<'a> {
    message: &'a Message,
    /// Its text parts as one.
    joined: OnceCell<Cow<'a, str>>,
}

impl<'a> Seen<'a> {
    fn of(messages: &'a [Message], plugin: &'a str) -> Self {
        Self { messages, plugin, by_id: OnceCell::new(), calls: OnceCell::new(), media: OnceCell::new() }
    }

    fn known(&self, id: &str) -> Result<&Known<'a>, String> {
        let by_id = self.by_id.get_or_init(|| {
            // Of two with one id, the first.
            let known = |message: &'a Message| (message.id.as_str(), Known { message, joined: OnceCell::new() });
            self.messages.iter().rev().map(known).collect()
        });
        by_id.get(id).ok_or_else(|| format!("no message `{}`", id.escape_debug()))
    }

    fn message(&self, id: &str) -> Result<&'a Message, String> {
        self.known(id).map(|known| known.message)
    }

    /// The text that a finding's span counts in.
    fn text_of(&self, id: Option<&str>) -> Result<&str, String> {
        let known = self.known(id.ok_or("a finding has a span, but names no message")?)?;
        Ok(known.joined.get_or_init(|| joined_text(known.message)))
    }

    /// The message and its part.
    fn call(&self, id: &str) -> Result<(&'a Message, u32), String> {
        let places = self.calls.get_or_init(|| CallIds::of(self.messages).places(self.messages));
        let found = places.get(id).and_then(|&(at, part)| Some((self.messages.get(at)?, u32::try_from(part).ok()?)));
        found.ok_or_else(|| format!("no tool call `{}`", id.escape_debug()))
    }

    fn media(&self) -> &HashSet<(&'a str, &'a Value)> {
        self.media.get_or_init(|| self.messages.iter().flat_map(media::of_message).collect())
    }

    fn edits(&self, edits: Vec<wit::Edit>) -> Result<Vec<Edit>, String> {
        let mut moved = Moved { put: HashSet::new(), dropped: HashSet::new(), values: Values::of_result() };
        let edits: Vec<Edit> = edits.into_iter().map(|edit| self.edit(edit, &mut moved)).collect::<Result<_, _>>()?;
        refuse_overlaps(&edits)?;
        if !moved.dropped.is_empty() && moved.dropped.len() == self.messages.len() + moved.put.len() {
            return Err("it drops every message".into());
        }
        Ok(edits)
    }

    fn edit(&self, edit: wit::Edit, moved: &mut Moved) -> Result<Edit, String> {
        match edit {
            wit::Edit::ReplaceText(edit) => self.replace_text(edit),
            wit::Edit::PutMessage(insertion) => self.put_message(insertion, moved),
            wit::Edit::DropMessage(id) => {
                let id = self.is_there(&id, moved)?;
                moved.dropped.insert(id.clone());
                Ok(Edit::DropMessage(id))
            }
            wit::Edit::SetArguments((id, arguments)) => {
                let (message, part) = self.call(&id)?;
                json::check(&arguments, "a tool call's new arguments")?;
                Ok(Edit::SetArguments { message_id: message.id.clone(), part, arguments })
            }
            wit::Edit::SetParam((name, _)) => {
                Err(format!("it sets the parameter `{}`, which this host lets no plugin do", name.escape_debug()))
            }
        }
    }

    fn replace_text(&self, edit: wit::TextEdit) -> Result<Edit, String> {
        let wit::TextEdit { message_id, part, span, text } = edit;
        let message = self.message(&message_id)?;
        let old = match message.parts.get(part as usize) {
            Some(Part::Text(old) | Part::Reasoning(old) | Part::Refusal(old)) => old,
            Some(Part::ToolOutcome(outcome)) => &outcome.content,
            Some(_) => return Err(format!("part {part} of message `{message_id}` holds no text")),
            None => return Err(format!("message `{message_id}` has no part {part}")),
        };
        let span = check::span(span, old, "an edit's span")?;
        Ok(Edit::ReplaceText { message_id, part, span, text })
    }

    fn put_message(&self, insertion: wit::Insertion, moved: &mut Moved) -> Result<Edit, String> {
        let mut message = convert::message(insertion.message, &mut moved.values)?;
        media::check(&message, |kind, body| self.media().contains(&(kind, body)))?;
        let given = self.own(&message.id);
        // Nor is the id of one that was dropped free: a text edit of the same verdict may mean that one.
        let is_taken = self.message(&message.id).is_ok() || self.message(&given).is_ok() || moved.put.contains(&given);
        if message.id.is_empty() || is_taken {
            return Err(format!("the id `{}` of a new message is empty or taken", message.id.escape_debug()));
        }
        let after = insertion.after.map(|after| self.is_there(&after, moved)).transpose()?;
        moved.put.insert(given.clone());
        message.id = given;
        Ok(Edit::PutMessage { after, message })
    }

    /// The id that a new message is given: below the plugin's name. What the host has named itself (`m0`, `h0`,
    /// `conversation/summary`) it takes for what it is.
    fn own(&self, id: &str) -> String {
        let is_own = id.strip_prefix(self.plugin).is_some_and(|rest| rest.starts_with('/'));
        if is_own { id.to_owned() } else { format!("{}/{id}", self.plugin) }
    }

    /// The id of a message that is there once the edits so far are made; a new one may be named as the guard has named it.
    fn is_there(&self, id: &str, moved: &Moved) -> Result<String, String> {
        let seen = self.message(id);
        let given = if seen.is_ok() { id.to_owned() } else { self.own(id) };
        if moved.dropped.contains(&given) {
            return Err(format!("the message `{}` was dropped by an edit before", id.escape_debug()));
        }
        if moved.put.contains(&given) { Ok(given) } else { seen.map(|_| given) }
    }
}

/// Ids of the messages that the edits of a verdict so far have put in and taken out.
struct Moved {
    put: HashSet<String>,
    dropped: HashSet<String>,
    /// Of what is put.
    values: Values,
}

/// What stands in an answer's place: nothing but what its reader is told as it is.
fn said(parts: Vec<Part>) -> Result<Vec<Part>, String> {
    let is_said = |part: &Part| matches!(part, Part::Text(_) | Part::Refusal(_));
    let all = parts.iter().all(is_said).then_some(parts);
    all.ok_or_else(|| "it responds with a part that is neither text nor a refusal".into())
}

/// The text parts of a message as one, which most are anyway.
fn joined_text(message: &Message) -> Cow<'_, str> {
    let mut texts = message.parts.iter().filter_map(|part| if let Part::Text(text) = part { Some(text) } else { None });
    match (texts.next(), texts.next()) {
        (None, _) => Cow::Borrowed(""),
        (Some(text), None) => Cow::Borrowed(text),
        (Some(_), Some(_)) => Cow::Owned(message.joined_text()),
    }
}

/// The attributes that are the plugin's own: JSON under `name/...`. What is anything else is read by nobody: what an
/// author wants to see goes to `log`, which has a budget and knows of which requests nothing may be kept.
fn notes(attrs: wit::AttrsResult, name: &str) -> Vec<(String, String)> {
    let is_own = |key: &str| key.strip_prefix(name).is_some_and(|rest| rest.starts_with('/'));
    let own: Vec<(String, String)> =
        attrs.into_iter().filter(|(key, value)| is_own(key) && json::check(value, "a note").is_ok()).collect();
    let bytes: usize = own.iter().map(|(key, value)| key.len() + value.len()).sum();
    if bytes > MAX_NOTES_BYTES {
        tracing::warn!(target: "plugin", plugin = name, bytes, "a verdict's notes are not handed on: at most {MAX_NOTES_BYTES} bytes are");
        return Vec::new();
    }
    own
}

fn refuse_overlaps(edits: &[Edit]) -> Result<(), String> {
    let mut spans: Vec<(&str, u32, Span)> = Vec::new();
    for edit in edits {
        if let Edit::ReplaceText { message_id, part, span, .. } = edit {
            spans.push((message_id, *part, *span));
        }
    }
    spans.sort_by_key(|(message, part, _)| (*message, *part));
    spans
        .chunk_by_mut(|a, b| (a.0, a.1) == (b.0, b.1))
        .try_for_each(|of_one_text| check::disjoint(of_one_text, |edit| edit.2, "the edits of"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_types::{Role, ToolCall};

    #[test]
    fn a_new_message_is_found_by_either_of_its_names_and_takes_no_other() {
        let messages = [Message::text("m0", Role::User, "x"), Message::text("guard/seen", Role::User, "x")];
        let put = |id: &str| {
            let (id, role, name) = (id.to_owned(), wit::RoleResult::User, None);
            let message = wit::MessageResult { id, role, name, parts: Vec::new(), attrs: Vec::new() };
            wit::Edit::PutMessage(wit::Insertion { after: None, message })
        };
        let gone = |id: &str| wit::Edit::DropMessage(id.into());
        let edits = |edits: Vec<wit::Edit>| Seen::of(&messages, "guard").edits(edits).map(|edits| edits.len());
        for good in [vec![put("h5"), gone("h5")], vec![put("n"), gone("guard/n")], vec![put("guard/n"), gone("n")]] {
            assert_eq!(edits(good), Ok(2));
        }
        for taken in [vec![put("n"), put("guard/n")], vec![put("seen")], vec![put("guard/n"), put("n")]] {
            assert!(edits(taken).unwrap_err().contains("is empty or taken"));
        }
        assert!(edits(vec![put("n"), gone("n"), gone("guard/n")]).unwrap_err().contains("was dropped by an edit"));
    }

    /// Callers repeat ids, and what a guard redacts must not stay in one call because another has its id.
    #[test]
    fn arguments_are_set_in_the_call_that_was_seen_under_the_id() {
        let asked = |id: &str| {
            let call = ToolCall { id: "c".into(), name: "f".into(), arguments: "{}".into() };
            Message { parts: vec![Part::Text("x".into()), Part::ToolCall(call)], ..Message::text(id, Role::User, "") }
        };
        let messages = [asked("m0"), asked("m1")];
        let set_to = |id: &str, json: &str| wit::Edit::SetArguments((id.into(), json.into()));
        let set = |id: &str| set_to(id, "[1]");
        let made = |id: &str| {
            let (message_id, arguments) = (id.to_owned(), "[1]".to_owned());
            Edit::SetArguments { message_id, part: 1, arguments }
        };
        let edits = |edits| Seen::of(&messages, "guard").edits(edits);
        assert_eq!(edits(vec![set("c~2"), set("c")]), Ok(vec![made("m1"), made("m0")]));
        assert_eq!(edits(vec![set("c~3")]), Err("no tool call `c~3`".into()));
        // What a caller wrote beside what is redacted stays as it is.
        let deep = format!("{}1{}", "[".repeat(200), "]".repeat(200));
        for json in ["{\"to\":\"[email]\",\"n\":1e999}", "[\"\\ud83d\"]", &deep] {
            assert_eq!(edits(vec![set_to("c", json)]).map(|edits| edits.len()), Ok(1), "{json}");
        }
        assert!(edits(vec![set_to("c", "{\"to\":}")]).unwrap_err().contains("new arguments is not JSON"));
    }

    #[test]
    fn notes_are_the_plugins_own_json_and_bounded() {
        let attrs = |pairs: &[(&str, &str)]| -> Vec<(String, String)> {
            pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
        };
        let mixed = [("cache/a", "1"), ("cache", "1"), ("cached/a", "1"), ("other/a", "1"), ("cache/b", "{")];
        assert_eq!(notes(attrs(&mixed), "cache"), attrs(&[("cache/a", "1")]));
        let quoted = |bytes: usize| format!("\"{}\"", "x".repeat(bytes - 2 - "cache/a".len()));
        assert_eq!(notes(attrs(&[("cache/a", &quoted(MAX_NOTES_BYTES))]), "cache").len(), 1);
        assert_eq!(notes(attrs(&[("cache/a", &quoted(MAX_NOTES_BYTES + 1))]), "cache").len(), 0);
    }
}
