//! `tool-provider`: tools that the model may call. Checked: names that every wire format can carry, schemas that are
//! objects, and an outcome that answers the call that was made.

use super::{Answer, StageCall};
use crate::bindings::tidegate::plugin::types as wit;
use crate::convert;
use crate::instance::Guests;
use crate::json::Values;
use crate::stage::{Descriptor, StageKind};
use crate::state::HostState;
use tidegate_types::{ToolCall, ToolDef, ToolOutcome};
use wasmtime::Store;

const MAX_TOOLS: usize = 128;
const MAX_NAME_BYTES: usize = 64;

pub(crate) struct ListTools;

impl StageCall for ListTools {
    const STAGE: StageKind = StageKind::ToolProvider;
    type Raw = Vec<wit::ToolDefResult>;
    type Out = Vec<ToolDef>;

    async fn enter(
        &self,
        store: &mut Store<HostState>,
        guests: &mut Guests,
        context: wit::Context<'_>,
    ) -> Answer<Self::Raw> {
        guests.tool_provider(store)?.call_list_tools(store, context).await
    }

    fn check(&self, raw: Self::Raw, _: &Descriptor) -> Result<Vec<ToolDef>, String> {
        if raw.len() > MAX_TOOLS {
            return Err(format!("{} tools; at most {MAX_TOOLS}", raw.len()));
        }
        let (mut tools, mut values) = (Vec::<ToolDef>::with_capacity(raw.len()), Values::of_result());
        for tool in raw {
            let tool = tool_def(tool, &mut values)?;
            if tools.iter().any(|other| other.name == tool.name) {
                return Err(format!("tool `{}` is there twice", tool.name));
            }
            tools.push(tool);
        }
        Ok(tools)
    }
}

fn tool_def(tool: wit::ToolDefResult, values: &mut Values) -> Result<ToolDef, String> {
    let wit::ToolDefResult { name, description, input_schema, hints, .. } = tool;
    let is_plain = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
    if name.is_empty() || name.len() > MAX_NAME_BYTES || !name.chars().all(is_plain) {
        return Err(format!("tool name `{}` is not [A-Za-z0-9_-]{{1,{MAX_NAME_BYTES}}}", name.escape_debug()));
    }
    let schema = values.read(&input_schema, &format!("the schema of tool `{name}`"))?;
    if !schema.is_object() {
        return Err(format!("the schema of tool `{name}` is not an object"));
    }
    Ok(ToolDef { name, description, input_schema: schema, strict: false, hints: convert::hints(hints) })
}

pub(crate) struct CallTool<'a>(pub(crate) &'a ToolCall);

impl StageCall for CallTool<'_> {
    const STAGE: StageKind = StageKind::ToolProvider;
    type Raw = wit::ToolOutcomeResult;
    type Out = ToolOutcome;

    async fn enter(
        &self,
        store: &mut Store<HostState>,
        guests: &mut Guests,
        context: wit::Context<'_>,
    ) -> Answer<Self::Raw> {
        let call = convert::tool_call_param(self.0);
        guests.tool_provider(store)?.call_call_tool(store, context, call).await
    }

    fn check(&self, raw: Self::Raw, _: &Descriptor) -> Result<ToolOutcome, String> {
        let outcome = convert::tool_outcome(raw)?;
        if outcome.call_id != self.0.id {
            return Err(format!("it answers call `{}`, not `{}`", outcome.call_id.escape_debug(), self.0.id));
        }
        Ok(outcome)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plugin::tests::load;
    use crate::sandbox::Snapshot;

    /// They are kept for as long as the answer takes.
    #[test]
    fn the_schemas_of_a_plugins_tools_together_have_so_many_values_at_most() {
        let plugin = load(1, Snapshot::Never).unwrap();
        let tool = |name: &str, num_zeros: usize| {
            let hints = wit::ToolHints { read_only: true, destructive: false, idempotent: true, open_world: false };
            let input_schema = format!("{{\"enum\":[{}0]}}", "0,".repeat(num_zeros - 1));
            wit::ToolDefResult { name: name.into(), description: String::new(), input_schema, hints, attrs: Vec::new() }
        };
        let list = |num_zeros| ListTools.check(vec![tool("a", 8190), tool("b", num_zeros)], plugin.descriptor());
        assert_eq!(list(8190).unwrap().len(), 2);
        let why = list(8191).unwrap_err();
        assert_eq!(why, "the schema of tool `b` has too many values: those of one result are 16384 at most");
    }
}
