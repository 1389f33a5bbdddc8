//! What an answer of the own engine is held to: a schema (`response_format`), a call (`tool_choice`), arguments that fit
//! (`strict`). Found out from the request, written for the model's own formats, and compiled here once, so that what
//! cannot be held is a 400 that names it.

use crate::models::{EngineModel, Model};
use crate::stages::fit::refusal;
use metrics::histogram;
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Instant;
use tidegate_grammar::{
    Answer, CallForm, Calls, Function, GrammarError, Grammars, Layout, MAX_SOURCE_BYTES, Mark, Reasoning, check_schema,
};
use tidegate_text::{TextError, TextModel, ToolFormat};
use tidegate_turns::Waiting;
use tidegate_types::{Chat, Fault, Form, Reject, TenantId, ToolChoice, ToolDef};

/// The field that asks for JSON, as both endpoints hand it on.
const FORMAT: &str = "response_format";
/// The same as a refusal names it to callers of responses.
const RESPONSES_FORMAT: &str = "text.format";

/// Whether the request asks for anything that an answer would have to be held to.
pub(crate) fn is_wanted(chat: &Chat) -> bool {
    chat.form == Form::Chat
        && (chat.extra.contains_key(FORMAT) || is_forced(chat) || chat.tools.iter().any(|tool| tool.strict))
}

/// Whether it asks for JSON.
pub(super) fn wants_json(chat: &Chat) -> bool {
    chat.form == Form::Chat && chat.extra.contains_key(FORMAT)
}

/// Arguments are an object, also of a schema that does not say so: whoever reads a call takes nothing else for one.
fn of_object(schema: &Value) -> Value {
    let mut schema = schema.clone();
    if let Value::Object(members) = &mut schema {
        members.entry("type").or_insert_with(|| "object".into());
    }
    schema
}

fn is_forced(chat: &Chat) -> bool {
    matches!(chat.tool_choice, ToolChoice::Required | ToolChoice::Named(_))
}

/// Whether no words stand beside calls in an answer that is held.
pub(super) fn has_calls_alone(chat: &Chat) -> bool {
    wants_json(chat) || is_forced(chat)
}

/// Whether a demand is met here.
pub(super) fn meets(demand: &str) -> bool {
    demand == FORMAT || demand == RESPONSES_FORMAT || (demand.starts_with("tools[") && demand.ends_with(".strict"))
}

/// Whether calls of the caller's tools can be told from what else is said, as far as they have to be, where none is forced.
pub(super) fn tells_calls(text: &TextModel, chat: &Chat) -> bool {
    if wants_json(chat) {
        return text.dialect().tools != ToolFormat::LlamaJson;
    }
    !chat.tools.iter().any(|tool| tool.strict) || call_form(text).as_ref().is_some_and(is_told)
}

/// Text and calls are told apart by marks that text cannot have.
fn is_told(form: &CallForm) -> bool {
    match form {
        CallForm::Hermes { open, close } => [open, close].iter().all(|mark| matches!(mark, Mark::Token { .. })),
        CallForm::MistralList { open } | CallForm::MistralNamed { open, .. } => matches!(open, Mark::Token { .. }),
        CallForm::LlamaJson => false,
    }
}

fn call_form(text: &TextModel) -> Option<CallForm> {
    Some(match text.dialect().tools {
        ToolFormat::None => return None,
        ToolFormat::Hermes => CallForm::Hermes { open: mark(text, "<tool_call>"), close: mark(text, "</tool_call>") },
        ToolFormat::LlamaJson => CallForm::LlamaJson,
        ToolFormat::Mistral => match mark(text, "[ARGS]") {
            args @ Mark::Token { .. } => CallForm::MistralNamed { open: mark(text, "[TOOL_CALLS]"), args },
            Mark::Text(_) => CallForm::MistralList { open: mark(text, "[TOOL_CALLS]") },
        },
    })
}

/// The grammar of the answer to a chat with these tools `offered`, if it is held to any, while somebody of `tenant` is
/// `waiting` for it.
pub(super) fn grammar(
    (model, engine): (&Model, &EngineModel),
    chat: &Chat,
    offered: &[ToolDef],
    prompt: &[u32],
    (tenant, waiting): (&TenantId, &Waiting),
) -> Result<Option<Arc<str>>, Reject> {
    if !is_wanted(chat) {
        return Ok(None);
    }
    let (grammars, gone) = (grammars(model, engine)?, || waiting.is_over());
    let held = Held { model: &model.name, text: &engine.text, chat, tenant, gone: &gone, grammars };
    let Some(mut layout) = held.layout(offered)? else { return Ok(None) };
    layout.reasoning = reasoning(&engine.text, prompt);
    held.compiled(layout).map(Some)
}

fn grammars<'a>(model: &Model, engine: &'a EngineModel) -> Result<&'a Grammars, Reject> {
    let unknown = || Reject::internal(Fault::Operator, format!("model `{}` has no grammars", model.name));
    engine.grammars.as_deref().ok_or_else(unknown)
}

/// Grammars begin behind reasoning, which is free: what the prompt has opened, and what the model may open itself.
fn reasoning(text: &TextModel, prompt: &[u32]) -> Option<Reasoning> {
    let tags = text.dialect().reasoning.as_ref()?;
    let open = (!text.opens_reasoning(prompt)).then(|| mark(text, &tags.open));
    Some(Reasoning { open, close: mark(text, &tags.close) })
}

fn mark(text: &TextModel, mark: &str) -> Mark {
    match text.token_to_id(mark).filter(|id| text.is_mark(*id)) {
        Some(id) => Mark::Token { id, text: mark.to_owned() },
        None => Mark::Text(mark.to_owned()),
    }
}

struct Held<'a> {
    model: &'a str,
    text: &'a TextModel,
    chat: &'a Chat,
    tenant: &'a TenantId,
    /// Whether nobody waits any more; asked before each compile.
    gone: &'a dyn Fn() -> bool,
    grammars: &'a Grammars,
}

impl Held<'_> {
    fn layout(&self, offered: &[ToolDef]) -> Result<Option<Layout>, Reject> {
        let chat = self.chat;
        let json = if wants_json(chat) { Some(Answer::Json(self.schema()?)) } else { None };
        let functions = self.functions(offered)?;
        let calls = self.calls(functions);
        Ok(match (json, calls) {
            (_, calls) if is_forced(chat) => {
                Some(Layout { calls: Some(calls.ok_or_else(|| self.no_tool())?), ..Layout::default() })
            }
            (Some(json), calls) => Some(Layout { answer: Some(json), calls, ..Layout::default() }),
            (None, Some(calls)) if offered.iter().any(|tool| tool.strict) => {
                self.check_tells_calls(&calls.form)?;
                Some(Layout { answer: Some(Answer::Text), calls: Some(calls), ..Layout::default() })
            }
            (None, _) => None,
        })
    }

    /// What JSON is asked for. Without a schema it is an object, as for OpenAI.
    fn schema(&self) -> Result<Value, Reject> {
        let schema = self.chat.extra.get(FORMAT).and_then(|format| format.get("json_schema")?.get("schema"));
        let schema = schema.filter(|schema| !schema.is_null()).cloned().unwrap_or_else(|| json!({"type": "object"}));
        check_schema(&schema).map_err(|error| self.refused(&self.schema_param(), &error))?;
        Ok(schema)
    }

    fn schema_param(&self) -> String {
        if self.chat.demands.iter().any(|demand| demand == RESPONSES_FORMAT) {
            format!("{RESPONSES_FORMAT}.schema")
        } else {
            format!("{FORMAT}.json_schema.schema")
        }
    }

    /// The functions that may be called. Of one that is not strict the schema is held where that is possible.
    fn functions(&self, offered: &[ToolDef]) -> Result<Vec<Function>, Reject> {
        let may_be = |tool: &&ToolDef| match &self.chat.tool_choice {
            ToolChoice::Named(name) => tool.name == *name,
            _ => true,
        };
        let function = |tool: &ToolDef| match check_schema(&tool.input_schema) {
            Err(error) if tool.strict => Err(self.refused(&self.tool_param(&tool.name), &error)),
            Err(_) => Ok(Function { name: tool.name.clone(), schema: None }),
            Ok(()) => Ok(Function { name: tool.name.clone(), schema: Some(of_object(&tool.input_schema)) }),
        };
        offered.iter().filter(may_be).map(function).collect()
    }

    fn tool_param(&self, name: &str) -> String {
        let index = self.chat.tools.iter().position(|tool| tool.name == name).unwrap_or_default();
        let within = self.chat.fields.tool_name.strip_suffix("name").unwrap_or_default();
        format!("tools[{index}].{within}parameters")
    }

    fn calls(&self, functions: Vec<Function>) -> Option<Calls> {
        let form = call_form(self.text)?;
        let several =
            self.chat.parallel_tool_calls != Some(false) && !matches!(self.chat.tool_choice, ToolChoice::Named(_));
        (!functions.is_empty()).then_some(Calls { form, functions, several })
    }

    fn no_tool(&self) -> Reject {
        let message = match &self.chat.tool_choice {
            ToolChoice::Named(name) => format!("there is no tool `{name}` in `tools` that the model could call"),
            _ => "there are no `tools` of which the model could call one".to_owned(),
        };
        Reject::invalid("tool_choice", message).code("invalid_value")
    }

    fn check_tells_calls(&self, form: &CallForm) -> Result<(), Reject> {
        if is_told(form) {
            return Ok(());
        }
        let name = self.model;
        let message = format!(
            "model `{name}` writes calls as text, and cannot be held to their schema where it may answer in words, too; send `tool_choice`: \"required\", or leave `strict` out"
        );
        let param = self.chat.demands.iter().find(|demand| demand.ends_with(".strict"));
        let param = param.map_or("tools", String::as_str);
        Err(Reject::invalid(param, message).code("unsupported_parameter"))
    }

    /// Compiles it. Where that fails it is found out for which schema; one that nobody asked to hold is let go. What is too long
    /// as a whole is no single schema's fault.
    fn compiled(&self, mut layout: Layout) -> Result<Arc<str>, Reject> {
        let source = layout.source();
        let Err(error) = self.compile(&source)? else { return Ok(source.into()) };
        let whole = if layout.calls.is_some() { "tools".to_owned() } else { self.schema_param() };
        if source.len() > MAX_SOURCE_BYTES {
            let refused = self.refused(&whole, &error);
            let message = format!("{}; leave some of it out, or shorten it", refused.message);
            return Err(Reject { message, ..refused });
        }
        if let Some(answer @ Answer::Json(_)) = &layout.answer {
            let alone = Layout { answer: Some(answer.clone()), ..Layout::default() };
            self.compile(&alone.source())?.map_err(|error| self.refused(&self.schema_param(), &error))?;
        }
        let mut let_go = false;
        for function in layout.calls.iter_mut().flat_map(|calls| &mut calls.functions) {
            let Some(schema) = &function.schema else { continue };
            let alone = Layout { answer: Some(Answer::Json(schema.clone())), ..Layout::default() };
            let Err(error) = self.compile(&alone.source())? else { continue };
            if self.chat.tools.iter().any(|tool| tool.strict && tool.name == function.name) {
                return Err(self.refused(&self.tool_param(&function.name), &error));
            }
            (function.schema, let_go) = (None, true);
        }
        let source = layout.source();
        if let_go && self.compile(&source)?.is_ok() {
            return Ok(source.into());
        }
        Err(self.refused(&whole, &error))
    }

    /// Nothing ends a compile, so it is not begun for nobody.
    fn compile(&self, source: &str) -> Result<Result<(), GrammarError>, Reject> {
        if (self.gone)() {
            return Err(refusal(self.chat.form, &TextError::Gone));
        }
        if self.grammars.kept(self.tenant, source).is_some() {
            return Ok(Ok(()));
        }
        let start = Instant::now();
        let compiled = self.grammars.compile(self.tenant, source);
        let outcome = if compiled.is_ok() { "compiled" } else { "refused" };
        let labels = [("model", self.model.to_owned()), ("outcome", outcome.to_owned())];
        histogram!("tidegate_grammar_compile_seconds", &labels).record(start.elapsed().as_secs_f64());
        Ok(compiled.map(drop))
    }

    fn refused(&self, param: &str, error: &GrammarError) -> Reject {
        match error {
            GrammarError::Schema(why) => {
                let message = format!("answers of model `{}` cannot be held to `{param}`: {why}", self.model);
                Reject::invalid(param, message).code("invalid_json_schema")
            }
            error => Reject::internal(Fault::Operator, error.to_string()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;
    use std::path::Path;
    use tidegate_grammar::Token;
    use tidegate_types::{Message, Role, ToolHints};

    /// What becomes of so many tools of this schema, one of which must be called, and how often it was asked whether somebody
    /// waits; nobody does when it is asked for the last time.
    fn forced(num_tools: usize, input_schema: &Value, last: u32) -> (Result<Arc<str>, Reject>, u32) {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../gateway/assets/starter");
        let text = TextModel::open(&dir).unwrap();
        let tool = |i| ToolDef {
            name: format!("t{i}"),
            description: String::new(),
            input_schema: input_schema.clone(),
            strict: false,
            hints: ToolHints::default(),
        };
        let mut chat = Chat::new("m", vec![Message::text("m0", Role::User, "hi")]);
        chat.tools = (0..num_tools).map(tool).collect();
        chat.tool_choice = ToolChoice::Required;
        let grammars = Grammars::new(|| Ok((0..=255).map(|byte| Token::Text(vec![byte])).collect()));
        let asked = Cell::new(0);
        let gone = || asked.replace(asked.get() + 1) + 1 >= last;
        let tenant = TenantId::new("t");
        let held = Held { model: "m", text: &text, chat: &chat, tenant: &tenant, gone: &gone, grammars: &grammars };
        let layout = held.layout(&chat.tools).unwrap().unwrap();
        (held.compiled(layout), asked.get())
    }

    #[test]
    fn no_compile_is_begun_for_a_client_that_has_left() {
        let overlapping = json!({"properties": {"a": {"oneOf": [{"type": "string"}, {"type": "string"}]}}});
        let (source, asked) = forced(5, &overlapping, u32::MAX);
        assert!(source.unwrap().contains("args_any"), "they are let go");
        assert_eq!(asked, 7, "all together, each alone, all together");
        for last in 1..=asked {
            let (refused, asked) = forced(5, &overlapping, last);
            assert_eq!((refused.unwrap_err().message, asked), (TextError::Gone.to_string(), last));
        }
    }

    #[test]
    fn tools_that_are_too_long_together_are_not_tried_one_by_one() {
        let (refused, asked) = forced(6, &json!({"description": "x".repeat(100_000)}), u32::MAX);
        let refused = refused.unwrap_err();
        assert_eq!((refused.param.as_deref(), asked), (Some("tools"), 1));
        for part in ["bytes", &MAX_SOURCE_BYTES.to_string(), "leave some of it out, or shorten it"] {
            assert!(refused.message.contains(part), "{}", refused.message);
        }
    }
}
