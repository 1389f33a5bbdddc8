//! Puts the models that could answer in order. A caller that names a model gets that model, or what the config lets
//! stand in for it; one that asks for `auto` gets what the routers say. Where none of them says anything it gets the
//! default route: the models that the config names for that, else all in the order of the config.

use crate::chat::Pipeline;
use crate::estimate::{estimated_input, given_bytes};
use crate::models::{Model, ModelBackend};
use crate::stage::Size;
use crate::states::{Ended, Equipped, Request, Routed};
use metrics::counter;
use std::sync::Arc;
use tidegate_sandbox::stage::{Candidate, RouteRequest, StageKind};
use tidegate_types::{Chat, Fault, ROUTED_MODEL, Reject, RejectKind, Scope};

impl Pipeline {
    pub(crate) async fn route(self: &Arc<Self>, mut equipped: Equipped) -> Result<Routed, Ended> {
        let routed = equipped.request.chat.model == ROUTED_MODEL && self.routes();
        if routed {
            equipped.request = self.settled_before(equipped.request, self.stages.routers.iter()).await?;
        }
        let Request { chat, cx, .. } = &*equipped.request;
        let candidates = if routed {
            Box::pin(self.ask_routers(&equipped.request)).await?
        } else {
            let model = self.models.allowed(&chat.model, &cx.caller.scope)?;
            model.check_answers()?;
            let fallbacks = self.models.fallbacks(model, &cx.caller.scope).filter(|model| model.answers());
            std::iter::once(model).chain(fallbacks).cloned().collect()
        };
        Ok(Routed { equipped, candidates })
    }

    async fn ask_routers(&self, request: &Request) -> Result<Vec<Arc<Model>>, Reject> {
        let default = &self.stages.default_route;
        let scope = &request.cx.caller.scope;
        let mut models = self.models.answering(default, scope);
        if models.is_empty() {
            return Err(self.no_choice());
        }
        let mut decided = false;
        for stage in &self.stages.routers {
            let candidates: Vec<Candidate> = models.iter().map(|model| candidate(model)).collect();
            let attrs = request_attrs(request);
            let route = RouteRequest {
                messages: &request.chat.messages,
                prompt_tokens: estimate_tokens(&request.chat),
                findings: &request.findings,
                attrs: &attrs,
            };
            let call = request.cx.call(request.chat.stream, stage.wall);
            let decision = stage
                .call_about(Size::Sent(given_bytes(&request.chat.messages)), StageKind::Router, &call, async |plugin| {
                    plugin.route(&call, route, &candidates).await
                })
                .await?;
            let Some(decision) = decision else { continue };
            let reason = request.cx.for_log(Some(decision.reason));
            tracing::debug!(request = %request.cx.request_id, router = %stage.name, reason, "routed");
            let order = decision.order.iter().filter_map(|id| models.iter().find(|m| m.name == *id).cloned()).collect();
            models = order;
            decided = true;
            if models.is_empty() {
                break;
            }
        }
        if !decided && !default.is_empty() {
            models.retain(|model| default.contains(&model.name));
            if models.is_empty() {
                return Err(not_allowed(
                    "no router has chosen a model, and the default route leads to none that this caller may use",
                ));
            }
        }
        if models.is_empty() {
            return Err(no_candidate());
        }
        Ok(models)
    }

    /// What a caller is told who may name none of the models that answer. No router is asked: what it makes of nothing
    /// to choose from is no news of its health.
    fn no_choice(&self) -> Reject {
        match self.models.answering(&[], &Scope::default()).is_empty() {
            true => no_candidate(),
            false => not_allowed(&format!("the model `{ROUTED_MODEL}` leads to none that this caller may use")),
        }
    }
}

/// Which models there are that the caller may not use, it is not told.
fn not_allowed(message: &str) -> Reject {
    counter!("tidegate_scope_denials_total", "reason" => "model").increment(1);
    let message = format!("{message}; name one among the `models` of its entry, or of its project");
    Reject::new(RejectKind::Forbidden, Fault::Client, message).at("model").code("insufficient_permissions")
}

fn no_candidate() -> Reject {
    Reject::unavailable(
        Fault::Operator,
        "the server's routers, or its default route, leave no model for this request",
        1,
    )
}

fn candidate(model: &Model) -> Candidate {
    let (healthy, attrs) = match &model.backend {
        ModelBackend::Engine(engine) => {
            let stats = engine.handle.stats();
            let attrs = vec![
                ("running".to_owned(), stats.snapshot.running.to_string()),
                ("waiting".to_owned(), stats.snapshot.waiting.to_string()),
                ("kind".to_owned(), "\"engine\"".to_owned()),
            ];
            (engine.handle.health().is_ready(), attrs)
        }
        ModelBackend::Upstream(replicas) => {
            let attrs = vec![
                ("outstanding".to_owned(), replicas.outstanding().to_string()),
                ("kind".to_owned(), "\"upstream\"".to_owned()),
            ];
            (replicas.is_available(), attrs)
        }
    };
    Candidate {
        id: model.name.clone(),
        model: model.name.clone(),
        healthy,
        context_tokens: model.context_tokens,
        attrs,
    }
}

/// With results of tools and calls: an agent's conversation is mostly these.
fn estimate_tokens(chat: &Chat) -> u32 {
    u32::try_from(estimated_input(chat, [])).unwrap_or(u32::MAX)
}

fn request_attrs(request: &Request) -> Vec<(String, String)> {
    let caller = &request.cx.caller;
    let class = serde_json::to_string(&caller.class).unwrap_or_default();
    let tier = serde_json::Value::from(caller.key_name.as_ref()).to_string();
    vec![("class".into(), class), ("key".into(), tier), ("tools".into(), (!request.chat.tools.is_empty()).to_string())]
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_types::{Message, Part, Role, ToolOutcome};

    #[test]
    fn what_tools_brought_counts_for_a_prompt() {
        let mut results = Message::text("m1", Role::Tool, "");
        let content = "x".repeat(400_000);
        results.parts =
            vec![Part::ToolOutcome(ToolOutcome { call_id: "c".into(), content, structured: None, is_error: false })];
        let chat = Chat::new("auto", vec![results, Message::text("m2", Role::User, "And now?")]);
        assert_eq!(estimate_tokens(&chat), 100_002);
    }
}
