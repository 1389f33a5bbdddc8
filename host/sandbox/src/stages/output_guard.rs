//! `output-guard`: decides on a whole answer. Checked: it changes only text and arguments that are there, and changes
//! nothing when it says that it does not mutate.

use super::{Answer, StageCall};
use crate::bindings::exports::tidegate::plugin::output_guard as guest;
use crate::bindings::tidegate::plugin::types as wit;
use crate::convert::{self, Made, Rows};
use crate::instance::Guests;
use crate::stage::{Action, Descriptor, Edit, Output, Prompt, StageKind, Verdict};
use crate::stages::InspectPrompt;
use crate::state::HostState;
use wasmtime::Store;

pub(crate) struct InspectOutput<'a>(pub(crate) Output<'a>);

impl StageCall for InspectOutput<'_> {
    const STAGE: StageKind = StageKind::OutputGuard;
    type Raw = wit::Verdict;
    type Out = Verdict;

    async fn enter(
        &self,
        store: &mut Store<HostState>,
        guests: &mut Guests,
        context: wit::Context<'_>,
    ) -> Answer<wit::Verdict> {
        let Output { choices, finish_reasons, usage, attrs } = self.0;
        let made = Made::of_messages(choices);
        let rows = Rows::of(choices, &made);
        let output = guest::Output {
            choices: &rows.messages(choices),
            finish_reasons,
            usage: usage.as_ref().map(convert::usage_param),
            attrs: &convert::attrs(attrs),
        };
        guests.output_guard(store)?.call_inspect_output(store, context, output).await
    }

    /// The checks are a prompt guard's, with the choices as the messages; fewer kinds of edit make sense.
    fn check(&self, raw: wit::Verdict, descriptor: &Descriptor) -> Result<Verdict, String> {
        let prompt = Prompt { messages: self.0.choices, tools: &[], params: &[] };
        let verdict = InspectPrompt { prompt, plugin: &descriptor.name }.check(raw, descriptor)?;
        if let Action::Rewrite(edits) = &verdict.action {
            let fits = |edit: &Edit| matches!(edit, Edit::ReplaceText { .. } | Edit::SetArguments { .. });
            if !edits.iter().all(fits) {
                return Err("an answer's edits are `replace-text` and `set-arguments` only".into());
            }
        }
        Ok(verdict)
    }
}
