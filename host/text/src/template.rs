//! The chat template: Jinja as transformers' `apply_chat_template` runs it, with caps.
//!
//! A template comes with the model and is trusted not to be hostile, but it may be wrong, and it runs over
//! callers' data: steps and output are capped, it reads no files, and it sees only what it is given.
//! What transformers adds to Jinja is here too: `tojson` as Python's `json.dumps` (`json.rs`),
//! `strftime_now` (`clock.rs`), `raise_exception`, `break` and `continue`, the `generation` block, and Python's
//! methods on strings, lists and maps.
//!
//! Read next: `conversation.rs`, the data that a template gets.

mod clock;
mod json;

use crate::error::TextError;
use crate::files::TemplateSource;
use crate::measure::Measure;
use crate::veil::is_stand_in;
use crate::within::{Within, written_bytes};
use minijinja::syntax::SyntaxConfig;
use minijinja::value::Serde;
use minijinja::{Environment, Error, ErrorKind, Value};
use minijinja_contrib::pycompat::unknown_method_callback;
use std::io::{self, Write};
use std::path::Path;
use std::time::SystemTime;

/// The largest rendered conversation. At four bytes per token this is well over any context that is served.
const MAX_OUTPUT_BYTES: usize = 32 << 20;
/// Steps of a template's program. A message costs in the order of a hundred.
const MAX_STEPS: u64 = 20_000_000;

const DEFAULT: &str = "chat_template";
const TOOL_USE: &str = "tool_use";

/// A model's templates, compiled.
pub(crate) struct ChatTemplate {
    environment: Environment<'static>,
    default: TemplateSource,
    tool_use: Option<TemplateSource>,
}

/// What a template may write, and for whom.
pub(crate) struct Room<'a> {
    pub within: &'a Within<'a>,
    pub measure: Measure,
}

impl Room<'_> {
    /// All that is written at all.
    pub const ALL: Room<'static> = Room { within: &Within::ALL, measure: Measure { longest: None, swallows: false } };
}

/// What a template threw with `raise_exception`.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Raised(String);

impl ChatTemplate {
    /// Compiles the templates; syntax errors name file and line.
    pub fn compile(default: TemplateSource, tool_use: Option<TemplateSource>) -> Result<Self, TextError> {
        let mut environment = environment();
        for (name, source) in [(DEFAULT, Some(&default)), (TOOL_USE, tool_use.as_ref())] {
            let Some(source) = source else { continue };
            let malformed = |cause: String| TextError::Malformed { path: source.path.clone(), cause };
            if source.text.contains(is_stand_in) {
                return Err(malformed("the chat template contains private-use characters of plane 16".to_owned()));
            }
            let text = without_generation_blocks(&source.text);
            environment.add_template_owned(name, text).map_err(|error| malformed(error.to_string()))?;
        }
        Ok(Self { environment, default, tool_use })
    }

    /// Where the one for conversations without tools is from.
    pub fn path(&self) -> &Path {
        &self.default.path
    }

    /// The templates' text, for what can be learnt from it.
    pub fn source(&self) -> String {
        [&self.default].into_iter().chain(&self.tool_use).map(|source| source.text.as_str()).collect()
    }

    /// Renders a conversation.
    pub fn render(
        &self,
        context: &serde_json::Value,
        with_tools: bool,
        now: SystemTime,
        room: &Room<'_>,
    ) -> Result<String, TextError> {
        let name = if with_tools && self.tool_use.is_some() { TOOL_USE } else { DEFAULT };
        let template = self.environment.get_template(name).map_err(failed)?;
        let mut values: Vec<(String, Value)> = Vec::new();
        for (key, value) in context.as_object().into_iter().flatten() {
            values.push((key.clone(), Value::from(Serde(value))));
        }
        let strftime = Value::from_function(move |format: &str| clock::strftime(now, format));
        values.push(("strftime_now".to_owned(), strftime));
        let mut output = CappedOutput { bytes: Vec::new(), num_written: 0, room, stopped: None };
        let rendered = template.render_captured_to(Value::from_pairs(values), &mut output).map(drop);
        if let Some(why) = output.stopped {
            return Err(why);
        }
        rendered.map_err(failed)?;
        String::from_utf8(output.bytes).map_err(|error| TextError::TemplateFailed(error.to_string()))
    }
}

fn environment() -> Environment<'static> {
    let mut environment = Environment::new();
    if let Ok(syntax) = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build() {
        environment.set_syntax(syntax);
    }
    environment.set_auto_escape_callback(|_| minijinja::AutoEscape::None);
    environment.set_unknown_method_callback(unknown_method_callback);
    environment.set_fuel(Some(MAX_STEPS));
    environment.add_filter("tojson", json::tojson);
    environment.add_function("raise_exception", |message: String| -> Result<Value, Error> {
        Err(Error::new(ErrorKind::InvalidOperation, "raise_exception").with_source(Raised(message)))
    });
    environment
}

/// Tells the template's own refusal from its failure.
fn failed(error: Error) -> TextError {
    if error.kind() == ErrorKind::OutOfFuel {
        return TextError::TemplateTooSlow { limit_steps: MAX_STEPS };
    }
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(&error);
    while let Some(current) = cause {
        if let Some(Raised(message)) = current.downcast_ref::<Raised>() {
            return TextError::Template(message.clone());
        }
        if current.downcast_ref::<Error>().is_some_and(|error| error.kind() == ErrorKind::OutOfFuel) {
            return TextError::TemplateTooSlow { limit_steps: MAX_STEPS };
        }
        cause = current.source();
    }
    TextError::TemplateFailed(error.to_string())
}

/// `{% generation %}` marks the assistant's tokens for training and prints what is inside; so does `{% if true %}`.
fn without_generation_blocks(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(open) = rest.find("{%") {
        let Some(close) = rest[open..].find("%}").map(|at| open + at) else { break };
        let inner = &rest[open + 2..close];
        out.push_str(&rest[..open + 2]);
        out.push_str(&match inner.trim_matches(['-', '+']).trim() {
            "generation" => inner.replace("generation", "if true"),
            "endgeneration" => inner.replace("endgeneration", "endif"),
            _ => inner.to_owned(),
        });
        rest = &rest[close..];
    }
    out.push_str(rest);
    out
}

/// Takes output up to the cap, or to where it cannot fit or nobody waits for it, and fails from there.
struct CappedOutput<'a> {
    bytes: Vec<u8>,
    /// Without the veil, at least.
    num_written: usize,
    room: &'a Room<'a>,
    stopped: Option<TextError>,
}

impl CappedOutput<'_> {
    fn check(&self, num_more: usize) -> Result<(), TextError> {
        let Room { within, measure } = self.room;
        within.check_gone()?;
        if let (Some(most), Some(longest)) = (within.most_bytes(*measure), measure.longest)
            && self.num_written > most
        {
            return Err(TextError::TooManyTokens { at_least: self.num_written.div_ceil(longest) });
        }
        if self.bytes.len() + num_more > MAX_OUTPUT_BYTES {
            return Err(TextError::TemplateTooLong { limit_bytes: MAX_OUTPUT_BYTES });
        }
        Ok(())
    }
}

impl Write for CappedOutput<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.num_written += written_bytes(bytes);
        if let Err(why) = self.check(bytes.len()) {
            self.stopped = Some(why);
            return Err(io::Error::other("no more is wanted"));
        }
        self.bytes.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use std::path::PathBuf;

    fn compile(text: &str) -> Result<ChatTemplate, TextError> {
        let source = TemplateSource { path: PathBuf::from("chat_template.jinja"), text: text.to_owned() };
        ChatTemplate::compile(source, None)
    }

    fn render(text: &str, context: serde_json::Value) -> Result<String, TextError> {
        compile(text)?.render(&context, false, SystemTime::UNIX_EPOCH, &Room::ALL)
    }

    fn check(text: &str, context: serde_json::Value, expected: &str) {
        assert_eq!(render(text, context).expect(text), expected, "{text}");
    }

    #[test]
    fn blocks_take_their_line_break_and_indentation_with_them() {
        check("a\n  {% if x %}\nb\n  {% endif %}\nc", json!({"x": 1}), "a\nb\nc");
    }

    #[test]
    fn python_methods_and_loop_controls_work() {
        check("{{ s.strip().split(',')[-1].upper() }}", json!({"s": " a,b "}), "B");
        check(
            "{% for x in xs %}{% if x == 2 %}{% continue %}{% endif %}{{ x }}{% endfor %}",
            json!({"xs": [1, 2, 3]}),
            "13",
        );
        check(
            "{% for k, v in m.items() %}{{ k }}={{ v }};{% endfor %}",
            json!({"m": {"z": 1, "a": true}}),
            "z=1;a=True;",
        );
    }

    #[test]
    fn generation_blocks_print_their_content() {
        check(
            "{% for x in xs %}{%- generation -%} {{ x }} {%- endgeneration -%}{% endfor %}",
            json!({"xs": [1, 2]}),
            "12",
        );
    }

    #[test]
    fn tojson_writes_as_python_does() {
        let value = json!({"b": [1, 2.0, null, true], "a": "é<'\"\n\u{7f}"});
        check("{{ v | tojson }}", json!({"v": value}), "{\"b\": [1, 2.0, null, true], \"a\": \"é<'\\\"\\n\u{7f}\"}");
        check(
            "{{ v | tojson(indent=2) }}",
            json!({"v": {"a": [1], "e": []}}),
            "{\n  \"a\": [\n    1\n  ],\n  \"e\": []\n}",
        );
        check("{{ v | tojson(ensure_ascii=true) }}", json!({"v": "é😀"}), "\"\\u00e9\\ud83d\\ude00\"");
        check("{{ v | tojson(separators=(',', ':')) }}", json!({"v": {"a": [1, 2]}}), "{\"a\":[1,2]}");
        check("{{ v | tojson(sort_keys=true) }}", json!({"v": {"b": 1, "a": 2}}), "{\"a\": 2, \"b\": 1}");
        check("{{ v | tojson }}", json!({"v": [1e16, 1e-5, 0.1, 1e22, -0.0]}), "[1e+16, 1e-05, 0.1, 1e+22, -0.0]");
    }

    #[test]
    fn the_date_is_the_given_one() {
        check("{{ strftime_now('%d %b %Y') }}", json!({}), "01 Jan 1970");
    }

    #[test]
    fn a_template_that_refuses_is_told_from_one_that_fails() {
        let refusal = render("{% if true %}{{ raise_exception('no system role') }}{% endif %}", json!({}));
        assert!(matches!(refusal, Err(TextError::Template(message)) if message == "no system role"));
        let macro_refusal = render("{% macro m() %}{{ raise_exception('no') }}{% endmacro %}{{ m() }}", json!({}));
        assert!(matches!(macro_refusal, Err(TextError::Template(message)) if message == "no"));
        assert!(matches!(render("{{ missing.field }}", json!({})), Err(TextError::TemplateFailed(_))));
        assert!(matches!(compile("{% if %}"), Err(TextError::Malformed { .. })));
    }

    #[test]
    fn endless_and_boundless_templates_are_ended() {
        let nested = "{% for a in range(9999) %}{% for b in range(9999) %}{% for c in range(9999) %}{% endfor %}{% endfor %}{% endfor %}";
        assert!(matches!(render(nested, json!({})), Err(TextError::TemplateTooSlow { .. })));
        let long = "{% for a in range(40) %}{{ s }}{% endfor %}";
        let result = render(long, json!({"s": "x".repeat(1 << 20)}));
        assert!(matches!(result, Err(TextError::TemplateTooLong { .. })));
    }
}
