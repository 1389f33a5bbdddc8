//! A tool for arithmetic: the model writes an expression, the tool answers with its value.
//!
//! Whole numbers and fractions are exact as long as they fit 128 bits; see [`number`]. What the model can mend
//! is a tool outcome that says what is wrong and where; see [`expression`].

pub mod expression;
pub mod number;
mod wide;

use serde::Deserialize;
use tidegate_plugin_sdk::{
    Context, Descriptor, Error, Plugin, Setting, ToolCall, ToolDef, ToolHints, ToolOutcome, ToolProvider,
};

/// The tool's name.
pub const TOOL: &str = "calculator";

const DESCRIPTION: &str = "Evaluates an arithmetic expression exactly. Operators: + - * / % ^ and parentheses. \
    Functions: sqrt, abs, min, max, round, floor, ceil, ln, log10, exp, sin, cos, tan (radians). \
    Constants: pi, e.";

const SCHEMA: &str = r#"{"type":"object","properties":{"expression":{"type":"string","description":"for example 2*(3+4)^2"}},"required":["expression"]}"#;

/// The settings.
#[derive(Debug, Deserialize)]
pub struct Config {
    decimals: u32,
}

/// The plugin.
#[derive(Debug)]
pub struct Calculator {
    decimals: u32,
}

impl Plugin for Calculator {
    type Config = Config;

    fn describe() -> Descriptor {
        let summary = "Digits after the point; a result below 1 keeps as many digits from its first one on";
        Descriptor::new("calculator", env!("CARGO_PKG_VERSION"), "A tool that evaluates arithmetic expressions")
            .setting(Setting::integer("decimals", 6, 0, 15, summary))
            .deterministic()
    }

    fn configure(config: Config) -> Result<Self, Error> {
        if config.decimals > 15 {
            return Err(Error::InvalidConfig(format!("`decimals` is {}; at most 15 are exact", config.decimals)));
        }
        Ok(Self { decimals: config.decimals })
    }
}

impl ToolProvider for Calculator {
    fn list_tools(&self, _: &Context) -> Result<Vec<ToolDef>, Error> {
        Ok(vec![ToolDef {
            name: TOOL.into(),
            description: DESCRIPTION.into(),
            input_schema: SCHEMA.into(),
            hints: ToolHints::PURE,
            attrs: Vec::new(),
        }])
    }

    fn call_tool(&self, _: &Context, call: &ToolCall) -> Result<ToolOutcome, Error> {
        if call.name != TOOL {
            return Err(Error::Unsupported(format!("no tool `{}`; there is `{TOOL}`", call.name)));
        }
        Ok(match self.answer(&call.arguments) {
            Ok(value) => ToolOutcome::text(call, value),
            Err(problem) => ToolOutcome::error(call, format!("error: {problem}")),
        })
    }
}

impl Calculator {
    fn answer(&self, arguments: &str) -> Result<String, String> {
        #[derive(Deserialize)]
        struct Arguments {
            expression: String,
        }
        let arguments: Arguments = serde_json::from_str(arguments)
            .map_err(|e| format!("arguments must be JSON like {{\"expression\": \"17*23\"}}: {e}"))?;
        Ok(expression::evaluate(&arguments.expression)?.to_decimal(self.decimals))
    }
}

tidegate_plugin_sdk::export!(Calculator: ToolProvider);

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_plugin_sdk::testing::{assert_readme_is_true, assert_tools_are_taken, plugin};

    fn call(config: &str, name: &str, arguments: &str) -> Result<ToolOutcome, Error> {
        let call = ToolCall { id: "c1".into(), name: name.into(), arguments: arguments.into() };
        plugin::<Calculator>(config).call_tool(&Context::default(), &call)
    }

    #[test]
    fn the_readme_names_every_setting() {
        assert_readme_is_true::<Calculator>(include_str!("../README.md"));
    }

    #[test]
    fn a_call_answers_with_the_value() {
        let outcome = call("", TOOL, r#"{"expression":"17*23"}"#).unwrap();
        assert_eq!((outcome.call_id.as_str(), outcome.content.as_str(), outcome.is_error), ("c1", "391", false));
        let outcome = call(r#"{"decimals":2}"#, TOOL, r#"{"expression":"10/3"}"#).unwrap();
        assert_eq!(outcome.content, "3.33");
    }

    #[test]
    fn what_the_model_can_mend_is_an_outcome() {
        let check = |arguments, expected: &str| {
            let outcome = call("", TOOL, arguments).unwrap();
            assert!(outcome.is_error && outcome.content.contains(expected), "{outcome:?}");
        };
        check(r#"{"expression":"1/0"}"#, "error: division by zero");
        check(r#"{"expression":"2+"}"#, "ends where a number should follow");
        check(r#"{"formula":"1"}"#, "must be JSON like");
        check("17*23", "must be JSON like");
        assert!(matches!(call("", "clock", "{}"), Err(Error::Unsupported(_))));
    }

    #[test]
    fn the_tool_is_described_for_the_model() {
        let tools = plugin::<Calculator>("").list_tools(&Context::default()).unwrap();
        assert_tools_are_taken(&tools);
        assert_eq!((tools.len(), tools[0].name.as_str(), tools[0].hints), (1, TOOL, ToolHints::PURE));
        let schema: serde_json::Value = serde_json::from_str(&tools[0].input_schema).unwrap();
        assert_eq!(schema["required"][0], "expression");
    }
}
