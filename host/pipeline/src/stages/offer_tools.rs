//! Collects the tools of the server's plugins beside the caller's own.

use crate::chat::Pipeline;
use crate::states::{Equipped, Grounded, Request, ServerTool};
use tidegate_sandbox::stage::StageKind;
use tidegate_types::{Form, Reject, ToolChoice};

impl Pipeline {
    pub(crate) async fn offer_tools(&self, grounded: Grounded) -> Result<Equipped, Reject> {
        let Grounded(request) = grounded;
        let mut tools: Vec<ServerTool> = Vec::new();
        // A gateway in front has offered its own, and runs them.
        let first = request.cx.hops == 0;
        if first && request.chat.form == Form::Chat && request.chat.tool_choice != ToolChoice::None {
            for (index, stage) in self.stages.tools.iter().enumerate() {
                let call = request.cx.call(request.chat.stream, stage.wall);
                let list =
                    stage.call(StageKind::ToolProvider, &call, async |plugin| plugin.list_tools(&call).await).await?;
                tools.extend(list.unwrap_or_default().into_iter().map(|def| ServerTool { def, stage: index }));
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

fn check_names(request: &Request, tools: &[ServerTool]) -> Result<(), Reject> {
    for (i, own) in request.chat.tools.iter().enumerate() {
        if tools.iter().any(|tool| tool.def.name == own.name) {
            let message = format!(
                "the tool name `{}` is taken by a tool of this server; rename yours, or send `tool_choice`: \"none\"",
                own.name
            );
            return Err(Reject::invalid(format!("tools[{i}].function.name"), message).code("tool_name_taken"));
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
