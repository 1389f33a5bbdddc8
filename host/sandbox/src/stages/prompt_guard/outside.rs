//! `prompt-guard`, asked about text from outside: one message, alone. Followed are new texts, and that the message is
//! dropped. Other edits are for whole prompts; they are left out before any is checked, since a guard that makes them here
//! too has judged this text all the same, and what one document says shall not end a request.

use super::InspectPrompt;
use crate::bindings::tidegate::plugin::types as wit;
use crate::instance::Guests;
use crate::stage::{Action, Descriptor, Edit, Prompt, StageKind, Verdict};
use crate::stages::{Answer, Direct, StageCall};
use crate::state::HostState;
use tidegate_types::Message;
use wasmtime::Store;

pub(crate) struct InspectOutside<'a> {
    pub(crate) message: &'a Message,
    /// The plugin's name in the config.
    pub(crate) plugin: &'a str,
}

impl<'a> InspectOutside<'a> {
    fn enter_directly(
        &self,
        store: &mut Store<HostState>,
        guests: &mut Guests,
        context: wit::Context<'_>,
    ) -> Answer<wit::Verdict> {
        self.as_prompt().enter_directly(store, guests, context)
    }

    fn as_prompt(&self) -> InspectPrompt<'a> {
        let messages = std::slice::from_ref(self.message);
        InspectPrompt { prompt: Prompt { messages, tools: &[], params: &[] }, plugin: self.plugin }
    }
}

impl StageCall for InspectOutside<'_> {
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
        self.as_prompt().enter(store, guests, context).await
    }

    fn check(&self, mut raw: wit::Verdict, descriptor: &Descriptor) -> Result<Verdict, String> {
        let mut drops = false;
        if let wit::Action::Rewrite(edits) = &mut raw.action {
            drops = edits.iter().any(|edit| matches!(edit, wit::Edit::DropMessage(id) if *id == self.message.id));
            edits.retain(|edit| matches!(edit, wit::Edit::ReplaceText(_)));
        }
        let verdict = self.as_prompt().check(raw, descriptor)?;
        if drops {
            let action = Action::Rewrite(vec![Edit::DropMessage(self.message.id.clone())]);
            return Ok(Verdict { action, ..verdict });
        }
        Ok(verdict)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_types::{Role, Span};

    fn descriptor(mutates: bool) -> Descriptor {
        Descriptor {
            name: "guard".into(),
            version: "0.1.0".into(),
            summary: String::new(),
            config_schema: serde_json::Value::Null,
            mutates,
            deterministic: true,
            capabilities: Default::default(),
            metrics: Default::default(),
            holdback_bytes: None,
            look_behind_bytes: None,
            prefilter: None,
            unknown_keys: Vec::new(),
        }
    }

    /// What is made of a verdict of these edits about the passage `notes/a`, of three letters.
    fn followed(edits: Vec<wit::Edit>, mutates: bool) -> Result<Vec<Edit>, String> {
        let message = Message::text("notes/a", Role::User, "abc");
        let call = InspectOutside { message: &message, plugin: "guard" };
        let raw = wit::Verdict { action: wit::Action::Rewrite(edits), findings: Vec::new(), attrs: Vec::new() };
        match call.check(raw, &descriptor(mutates))?.action {
            Action::Rewrite(edits) => Ok(edits),
            other => panic!("{other:?}"),
        }
    }

    fn replace(end: u32) -> wit::Edit {
        let span = wit::Span { start: 0, end };
        wit::Edit::ReplaceText(wit::TextEdit { message_id: "notes/a".into(), part: 0, span, text: "x".into() })
    }

    fn put() -> wit::Edit {
        let (name, parts, attrs) = (None, Vec::new(), Vec::new());
        let message = wit::MessageResult { id: "n".into(), role: wit::RoleResult::User, name, parts, attrs };
        wit::Edit::PutMessage(wit::Insertion { after: None, message })
    }

    fn drop_message(id: &str) -> wit::Edit {
        wit::Edit::DropMessage(id.into())
    }

    #[test]
    fn new_texts_are_followed_whatever_else_the_verdict_has() {
        let set = || wit::Edit::SetParam(("temperature".into(), "0".into()));
        let (message_id, span) = ("notes/a".to_owned(), Span { start: 0, end: 2 });
        let expected = Edit::ReplaceText { message_id, part: 0, span, text: "x".into() };
        for more in [set(), put(), drop_message("m9"), wit::Edit::SetArguments(("c9".into(), "{".into()))] {
            assert_eq!(followed(vec![more, replace(2)], true).unwrap(), std::slice::from_ref(&expected));
        }
        assert!(followed(vec![set()], true).unwrap().is_empty());
        assert!(followed(vec![set(), replace(4)], true).unwrap_err().contains("0..4, out of a text of 3 bytes"));
        assert!(followed(vec![set()], false).unwrap_err().contains("`\"mutates\": false`"));
    }

    #[test]
    fn a_message_that_is_dropped_or_replaced_by_another_is_dropped() {
        let dropped = [Edit::DropMessage("notes/a".into())];
        for edits in [
            vec![drop_message("notes/a")],
            vec![replace(2), drop_message("notes/a")],
            vec![put(), drop_message("notes/a")],
        ] {
            assert_eq!(followed(edits, true).unwrap(), dropped);
        }
        assert!(followed(vec![replace(4), drop_message("notes/a")], true).is_err(), "that is no such text");
    }
}
