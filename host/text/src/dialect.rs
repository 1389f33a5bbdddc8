//! How a model writes tool calls and reasoning, read off its chat template and vocabulary.
//!
//! A model was trained on what its template writes, so the template tells the format; a config may say another
//! ([`TextOverrides`](crate::TextOverrides)). An unknown format is [`ToolFormat::None`]: offering tools to such a model
//! would only lose its calls.
//!
//! Read next: `output.rs`, which parses these formats.

use serde::Deserialize;

/// How a model writes a tool call. Configs know the formats by these names.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub enum ToolFormat {
    /// In no way that is known here.
    None,
    /// `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`, anywhere (Hermes, Qwen, the starter model).
    Hermes,
    /// `{"name": ..., "parameters": {...}}` as the whole answer, after an optional `<|python_tag|>` (Llama 3).
    LlamaJson,
    /// `[TOOL_CALLS] [{"name": ..., "arguments": {...}}]`, or newer `[TOOL_CALLS]name[ARGS]{...}` (Mistral).
    Mistral,
}

impl ToolFormat {
    /// The marks that the format is written in.
    pub(crate) fn marks(self) -> &'static [&'static str] {
        match self {
            Self::None => &[],
            Self::Hermes => &["<tool_call>", "</tool_call>"],
            Self::LlamaJson => &["<|python_tag|>"],
            Self::Mistral => &["[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"],
        }
    }
}

/// What a model writes around its reasoning.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReasoningTags {
    /// Such as `<think>`.
    pub open: String,
    /// Such as `</think>`.
    pub close: String,
}

impl ReasoningTags {
    fn new(open: &str, close: &str) -> Self {
        Self { open: open.to_owned(), close: close.to_owned() }
    }
}

/// A model's way of writing what is not plain text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dialect {
    /// Tool calls.
    pub tools: ToolFormat,
    /// Reasoning, at the beginning of an answer; `None` where the model has none.
    pub reasoning: Option<ReasoningTags>,
}

impl Dialect {
    /// Plain text only.
    pub fn plain() -> Self {
        Self { tools: ToolFormat::None, reasoning: None }
    }

    /// The same without tool calls, for a request that offers no tools.
    pub fn without_tools(&self) -> Self {
        Self { tools: ToolFormat::None, reasoning: self.reasoning.clone() }
    }

    /// What a template and a vocabulary show. Templates that write calls as XML inside `<tool_call>`
    /// (`<function=...>`, `<arg_key>`) are other formats, and not supported. Models derived from Llama 3 keep its
    /// vocabulary whatever they write, so there the template must speak of Llama's `ipython` too.
    pub(crate) fn detect(template: &str, has_token: impl Fn(&str) -> bool) -> Self {
        let tools = if template.contains("<function=") || template.contains("<arg_key>") {
            ToolFormat::None
        } else if template.contains("<tool_call>") {
            ToolFormat::Hermes
        } else if template.contains("[TOOL_CALLS]") {
            ToolFormat::Mistral
        } else if has_token("<|python_tag|>") && template.contains("ipython") {
            ToolFormat::LlamaJson
        } else {
            ToolFormat::None
        };
        let tags = [("<think>", "</think>"), ("[THINK]", "[/THINK]")];
        let reasoning = tags.iter().find(|(_, close)| template.contains(close));
        Self { tools, reasoning: reasoning.map(|(open, close)| ReasoningTags::new(open, close)) }
    }

    /// All marks of the dialect.
    pub(crate) fn marks(&self) -> impl Iterator<Item = &str> {
        let reasoning = self.reasoning.iter().flat_map(|tags| [tags.open.as_str(), tags.close.as_str()]);
        self.tools.marks().iter().copied().chain(reasoning)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_format_is_read_off_the_template() {
        let cases = [
            ("{{ '<tool_call>' }}{{ '</think>' }}", false, ToolFormat::Hermes, true),
            ("<tool_call>\n<function=name>", false, ToolFormat::None, false),
            ("[AVAILABLE_TOOLS] [TOOL_CALLS]", false, ToolFormat::Mistral, false),
            ("{% if role == 'ipython' %}", true, ToolFormat::LlamaJson, false),
            ("{% if tools %}<｜tool▁calls▁begin｜>", true, ToolFormat::None, false),
            ("{{ messages }}", true, ToolFormat::None, false),
        ];
        for (template, has_python_tag, tools, has_reasoning) in cases {
            let dialect = Dialect::detect(template, |token| has_python_tag && token == "<|python_tag|>");
            assert_eq!((dialect.tools, dialect.reasoning.is_some()), (tools, has_reasoning), "{template}");
        }
    }

    #[test]
    fn formats_have_names_for_configs() {
        let parse = |name: &str| serde_json::from_value::<ToolFormat>(name.into());
        for (name, format) in [
            ("none", ToolFormat::None),
            ("hermes", ToolFormat::Hermes),
            ("llama-json", ToolFormat::LlamaJson),
            ("mistral", ToolFormat::Mistral),
        ] {
            assert_eq!(parse(name).expect(name), format);
        }
        let error = parse("xml").expect_err("unknown").to_string();
        assert!(error.contains("`xml`") && error.contains("llama-json"), "{error}");
    }
}
