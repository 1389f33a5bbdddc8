//! What the parts of an answer are, written down as a grammar: reasoning, then JSON, text or tool calls in the model's own
//! format. The text is llguidance's dialect of Lark, with a schema where JSON stands.

use crate::prepared::{WHITE_SPACE, prepared};
use serde_json::{Value, json};
use std::fmt::Write;

/// How a mark is written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Mark {
    /// As one token.
    Token {
        /// The token.
        id: u32,
        /// What it is read as. A model can spell it in other tokens, and whoever reads the answer sees no difference.
        text: String,
    },
    /// As text: the vocabulary has no token for it.
    Text(String),
}

/// Reasoning before the answer, which is free.
#[derive(Clone, Debug, PartialEq)]
pub struct Reasoning {
    /// What begins it, where the model may; absent where the prompt has begun it already.
    pub open: Option<Mark>,
    /// What ends it.
    pub close: Mark,
}

/// What stands in an answer that is no call.
#[derive(Clone, Debug, PartialEq)]
pub enum Answer {
    /// JSON of this schema.
    Json(Value),
    /// Any text that does not spell the mark of a call, before, between and behind calls, nor begins the answer with the one that
    /// begins reasoning. Only beside marks that are tokens.
    Text,
}

/// How a model writes calls.
#[derive(Clone, Debug, PartialEq)]
pub enum CallForm {
    /// An object with `name` and `arguments` between two marks.
    Hermes {
        /// Before it.
        open: Mark,
        /// Behind it.
        close: Mark,
    },
    /// An object with `name` and `parameters`, several with `;` between them.
    LlamaJson,
    /// A list of objects behind a mark.
    MistralList {
        /// The mark.
        open: Mark,
    },
    /// A mark, the name, another mark, the arguments.
    MistralNamed {
        /// Before the name.
        open: Mark,
        /// Behind it.
        args: Mark,
    },
}

/// A function that may be called.
#[derive(Clone, Debug, PartialEq)]
pub struct Function {
    /// Letters, digits, `_` and `-`.
    pub name: String,
    /// Of its arguments; absent where any object will do.
    pub schema: Option<Value>,
}

/// Calls in an answer.
#[derive(Clone, Debug, PartialEq)]
pub struct Calls {
    /// How they are written.
    pub form: CallForm,
    /// Of what; at least one.
    pub functions: Vec<Function>,
    /// Whether there may be more than one.
    pub several: bool,
}

/// What an answer is made of. Where there are calls and JSON, it is the one or the other.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Layout {
    /// First, where the model reasons.
    pub reasoning: Option<Reasoning>,
    /// What it says.
    pub answer: Option<Answer>,
    /// What it calls.
    pub calls: Option<Calls>,
}

impl Layout {
    /// The grammar as text.
    pub fn source(&self) -> String {
        let mut out = String::new();
        let body = match (&self.answer, &self.calls) {
            (Some(Answer::Text), Some(calls)) if calls.several && !calls.is_list() => "FIRST? (call TEXT?)*",
            (Some(Answer::Text), Some(_)) => "FIRST? calls?",
            (Some(Answer::Text), None) => "FIRST?",
            (Some(Answer::Json(_)), Some(_)) => "(answer | calls)",
            (Some(Answer::Json(_)), None) => "answer",
            (None, _) => "calls",
        };
        let reasoning = self.reasoning.as_ref().map_or_else(String::new, Reasoning::rule);
        rule(&mut out, "start", &format!("{reasoning}{body}"));
        rule(&mut out, "WS", &format!(r"/[ \t\r\n]{{1,4}}|{WHITE_SPACE}/"));
        if let Some(reasoning) = &self.reasoning {
            reasoning.write(&mut out);
        }
        match &self.answer {
            Some(Answer::Json(schema)) => rule(&mut out, "answer", &format!("%json {}", prepared(schema))),
            Some(Answer::Text) => self.write_text(&mut out),
            None => {}
        }
        if let Some(calls) = &self.calls {
            calls.write(&mut out);
        }
        out
    }

    fn write_text(&self, out: &mut String) {
        let text = without(self.calls.as_ref().and_then(Calls::opening));
        let open = self.reasoning.as_ref().and_then(|reasoning| reasoning.open.as_ref());
        rule(out, "FIRST", &format!("{text}{}", open.map_or_else(String::new, not_begun_by)));
        rule(out, "TEXT", &text);
    }
}

impl Reasoning {
    fn rule(&self) -> String {
        match &self.open {
            None => "thought WS? ".to_owned(),
            Some(open) => format!("({} thought WS?)? ", open.written()),
        }
    }

    fn write(&self, out: &mut String) {
        match &self.close {
            Mark::Token { .. } => {
                rule(out, "thought", &format!("THOUGHT? {}", self.close.written()));
                rule(out, "THOUGHT", &without(Some(&self.close)));
            }
            Mark::Text(_) => rule(out, &format!("thought[suffix={}]", self.close.written()), r"/(.|\n)*/"),
        }
    }
}

impl Calls {
    fn is_list(&self) -> bool {
        matches!(self.form, CallForm::MistralList { .. } | CallForm::LlamaJson)
    }

    /// By what a call is known in a text.
    fn opening(&self) -> Option<&Mark> {
        match &self.form {
            CallForm::Hermes { open, .. } | CallForm::MistralList { open } | CallForm::MistralNamed { open, .. } => {
                Some(open)
            }
            CallForm::LlamaJson => None,
        }
    }

    fn write(&self, out: &mut String) {
        let (call, calls, more) = match &self.form {
            CallForm::Hermes { open, close } => {
                (format!("{} WS? object WS? {}", open.written(), close.written()), "call".to_owned(), "(WS? call)*")
            }
            CallForm::LlamaJson => ("object".to_owned(), "call".to_owned(), "(\";\" WS? call)*"),
            CallForm::MistralList { open } => {
                ("object".to_owned(), format!("{} WS? \"[\" call", open.written()), "(\",\" WS? call)*")
            }
            CallForm::MistralNamed { .. } => ("object".to_owned(), "call".to_owned(), "call*"),
        };
        rule(out, "call", &call);
        let more = if self.several { more } else { "" };
        let end = if matches!(self.form, CallForm::MistralList { .. }) { "\"]\"" } else { "" };
        rule(out, "calls", &format!("{calls} {more} {end}"));
        let objects: Vec<String> = (0..self.functions.len()).map(|i| format!("object_{i}")).collect();
        rule(out, "object", &objects.join(" | "));
        for (i, function) in self.functions.iter().enumerate() {
            rule(out, &format!("object_{i}"), &self.object(function, i));
            if let Some(schema) = &function.schema {
                rule(out, &format!("args_{i}"), &format!("%json {}", prepared(schema)));
            }
        }
        if self.functions.iter().any(|function| function.schema.is_none()) {
            rule(out, "args_any", &format!("%json {}", prepared(&json!({"type": "object"}))));
        }
    }

    fn object(&self, function: &Function, i: usize) -> String {
        let args = if function.schema.is_some() { format!("args_{i}") } else { "args_any".to_owned() };
        let field = match &self.form {
            CallForm::MistralNamed { open, args: mark } => {
                return format!("{} {} {} {args}", open.written(), quoted(&function.name), mark.written());
            }
            CallForm::LlamaJson => "parameters",
            CallForm::Hermes { .. } | CallForm::MistralList { .. } => "arguments",
        };
        let [name_key, name, field] = ["name", &function.name, field].map(|text| quoted(&quoted(text)));
        format!(r#""{{" WS? {name_key} WS? ":" WS? {name} WS? "," WS? {field} WS? ":" WS? {args} WS? "}}""#)
    }
}

impl Mark {
    fn written(&self) -> String {
        match self {
            Self::Token { id, .. } => format!("<[{id}]>"),
            Self::Text(text) => quoted(text),
        }
    }

    /// What it is read as.
    fn text(&self) -> &str {
        let (Self::Token { text, .. } | Self::Text(text)) = self;
        text
    }
}

/// Text that does not have the mark, not even spelled in other tokens than its own.
fn without(mark: Option<&Mark>) -> String {
    let spelled = mark.map(|mark| format!(" & ~({ANY} {} {ANY})", quoted(mark.text())));
    format!(r"/(.|\n)+/{}", spelled.unwrap_or_default())
}

/// Nor does the mark, spelled in other tokens or as text, begin it: whoever reads the answer would take what follows, calls
/// and all, for reasoning.
fn not_begun_by(mark: &Mark) -> String {
    format!(r" & ~(/\s*/ {} {ANY})", quoted(mark.text()))
}

const ANY: &str = r"/(.|\n)*/";

/// A string as JSON and Lark write it.
fn quoted(text: &str) -> String {
    Value::from(text).to_string()
}

fn rule(out: &mut String, name: &str, body: &str) {
    // Writing to a string cannot fail.
    let _ = writeln!(out, "{name}: {body}");
}
