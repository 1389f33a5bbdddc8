//! A tool that tells the host's time.

use serde::Deserialize;
use tidegate_plugin_sdk::{
    Context, Descriptor, Error, Plugin, ToolCall, ToolDef, ToolHints, ToolOutcome, ToolProvider, host,
};

#[derive(Deserialize)]
struct Config {}

struct Clock;

impl Plugin for Clock {
    type Config = Config;

    fn describe() -> Descriptor {
        Descriptor::new("{{name}}", env!("CARGO_PKG_VERSION"), "A tool that tells the time")
    }

    fn configure(_: Config) -> Result<Self, Error> {
        Ok(Self)
    }
}

impl ToolProvider for Clock {
    fn list_tools(&self, _: &Context) -> Result<Vec<ToolDef>, Error> {
        Ok(vec![ToolDef {
            name: "now".into(),
            description: "The time now, in milliseconds since 1970.".into(),
            input_schema: r#"{"type":"object"}"#.into(),
            hints: ToolHints::PURE,
            attrs: Vec::new(),
        }])
    }

    fn call_tool(&self, _: &Context, call: &ToolCall) -> Result<ToolOutcome, Error> {
        match call.name.as_str() {
            "now" => Ok(ToolOutcome::text(call, host::clock::now_unix_ms().to_string())),
            other => Err(Error::Unsupported(format!("no tool `{other}`"))),
        }
    }
}

tidegate_plugin_sdk::export!(Clock: ToolProvider);
