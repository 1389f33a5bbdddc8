//! Collects the tools of the server's plugins beside the caller's own. Next: `offer_tools/priced.rs`, for those that have a price
//! and are not there.

mod priced;

use crate::chat::Pipeline;
use crate::stage::{Opinion, Stage, withheld};
use crate::states::{Equipped, Grounded, Request, ServerTool};
use priced::Listed;
pub use priced::PricedTools;
use tidegate_sandbox::stage::StageKind;
use tidegate_types::{Form, Reject, ToolChoice, ToolDef};

impl Pipeline {
    pub(crate) async fn offer_tools(&self, grounded: Grounded) -> Result<Equipped, Reject> {
        let Grounded(request) = grounded;
        let mut tools: Vec<ServerTool> = Vec::new();
        // A gateway in front has offered its own, and runs them. A call of what no turn may call would end the answer.
        let may_offer = request.cx.hops == 0 && self.limits.tools.max_turns > 0;
        if may_offer && request.chat.form == Form::Chat && request.chat.tool_choice != ToolChoice::None {
            let (scope, mut listed) = (&request.cx.caller.scope, Listed::default());
            for (index, stage) in self.stages.tools.iter().enumerate().filter(|(_, stage)| scope.has(&stage.name)) {
                let list = tools_of(stage, &request).await?;
                let names = list.as_ref().map(|list| list.iter().map(|tool| tool.name.as_str()));
                self.stages.priced.note(&mut listed, &stage.name, names);
                for def in list.unwrap_or_default() {
                    match tools.iter().find(|tool| tool.def.name == def.name) {
                        None => tools.push(ServerTool { def, stage: index }),
                        Some(first) => tracing::warn!(plugin = %stage.name, tool = def.name,
                            of = %self.stages.tools[first.stage].name, "not offered: a plugin before has a tool of that name"),
                    }
                }
            }
            for (plugin, missing) in self.stages.priced.unlisted(listed) {
                tracing::warn!(plugin, "{missing}");
            }
            if let Some(name) = unknown_choice(&request, &tools) {
                Box::pin(self.check_withheld(name, &request)).await?;
            }
        }
        check_names(&request, &tools)?;
        check_n(&request, &tools)?;
        if let Some(charge) = &request.charge {
            charge.offer(tools.iter().map(|tool| charge.tool(&self.stages.tools[tool.stage].name, &tool.def.name)));
        }
        Ok(Equipped { request, tools })
    }
}

impl Pipeline {
    /// Refuses the name of a tool that is there, and not for the caller. Plugins that are not are asked for the names of
    /// their tools here only.
    async fn check_withheld(&self, name: &str, request: &Request) -> Result<(), Reject> {
        let scope = &request.cx.caller.scope;
        for stage in self.stages.tools.iter().filter(|stage| !scope.has(&stage.name)) {
            // Its failure is no matter of a caller's who may not use it.
            let list = tools_of(stage, request).await.unwrap_or_default();
            if list.iter().flatten().any(|tool| tool.name == name) {
                let message =
                    format!("the tool `{name}` is of the plugin `{}`, which this caller may not use", stage.name);
                return Err(withheld("tool_choice", message));
            }
        }
        Ok(())
    }
}

/// The tool that must be called, where neither the caller nor a plugin of its has brought it.
fn unknown_choice<'a>(request: &'a Request, offered: &[ServerTool]) -> Option<&'a str> {
    let ToolChoice::Named(name) = &request.chat.tool_choice else { return None };
    let mut known = request.chat.tools.iter().chain(offered.iter().map(|tool| &tool.def));
    (!known.any(|tool| tool.name == *name)).then_some(name)
}

/// `None` where it could not be asked, and is not closed.
async fn tools_of(stage: &Stage, request: &Request) -> Opinion<Vec<ToolDef>> {
    let call = request.cx.call(request.chat.stream, stage.wall);
    let list = stage.call(StageKind::ToolProvider, &call, async |plugin| plugin.list_tools(&call).await).await?;
    request.note_lack(&list);
    Ok(list)
}

fn check_names(request: &Request, tools: &[ServerTool]) -> Result<(), Reject> {
    for (i, own) in request.chat.tools.iter().enumerate() {
        if tools.iter().any(|tool| tool.def.name == own.name) {
            let message = format!(
                "the tool name `{}` is taken by a tool of this server; rename yours, or send `tool_choice`: \"none\"",
                own.name
            );
            let param = format!("tools[{i}].{}", request.chat.fields.tool_name);
            return Err(Reject::invalid(param, message).code("tool_name_taken"));
        }
    }
    Ok(())
}

fn check_n(request: &Request, tools: &[ServerTool]) -> Result<(), Reject> {
    if request.chat.n == 1 || tools.is_empty() {
        return Ok(());
    }
    let message = format!(
        "`n` is {}, but this server runs tools ({}) and then gives one answer; send `n`: 1, or `tool_choice`: \"none\"",
        request.chat.n, tools[0].def.name
    );
    Err(Reject::invalid("n", message))
}
