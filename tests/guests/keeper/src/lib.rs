//! Uses every capability as it is told: a tool per function of the host. Arguments are words with a space between
//! them; the answer is the result, printed.

wit_bindgen::generate!({
    path: "../../../wit",
    inline: "
        package guests:keeper;
        world keeper {
            include tidegate:plugin/tool-plugin@0.1.0;
            import tidegate:plugin/kv@0.1.0;
            import tidegate:plugin/documents@0.1.0;
        }
    ",
    world: "guests:keeper/keeper",
    generate_all,
});

use exports::tidegate::plugin::{meta, tool_provider};
use tidegate::plugin::types::{Context, Error, ToolCall, ToolDef, ToolOutcome};
use tidegate::plugin::{clock, documents, kv, log, metrics};

struct Component;

impl meta::Guest for Component {
    fn describe() -> String {
        kit::descriptor_with(
            "keeper",
            false,
            ",\"capabilities\":[{\"name\":\"kv\",\"reason\":\"to keep\"},{\"name\":\"documents\",\"reason\":\"to read\"}],\
             \"metrics\":[{\"name\":\"kept\",\"summary\":\"what it kept\"}]",
        )
    }

    /// Leaves a mark, so that a test sees where the trial at load wrote to.
    fn configure(_: String) -> Result<(), Error> {
        kv::set("configured", b"yes", None)
    }
}

impl tool_provider::Guest for Component {
    fn list_tools(_: Context) -> Result<Vec<ToolDef>, Error> {
        Ok(Vec::new())
    }

    fn call_tool(_: Context, call: ToolCall) -> Result<ToolOutcome, Error> {
        let words: Vec<&str> = call.arguments.split(' ').collect();
        let content = run(&call.name, &words)?;
        Ok(ToolOutcome { call_id: call.id, content, structured: None, is_error: false })
    }
}

fn run(function: &str, words: &[&str]) -> Result<String, Error> {
    let word = |index: usize| words.get(index).copied().unwrap_or_default();
    let number = |index: usize| word(index).parse::<u64>().ok();
    match function {
        "get" => kv::get(word(0)).map(show),
        "get-many" => {
            let keys: Vec<String> = words.iter().map(|word| word.to_string()).collect();
            kv::get_many(&keys).map(|values| values.into_iter().map(show).collect::<Vec<_>>().join(","))
        }
        "set" => kv::set(word(0), word(1).as_bytes(), number(2)).map(|()| "set".into()),
        "fill" => kv::set(word(0), &vec![b'x'; number(1).unwrap_or(0) as usize], None).map(|()| "set".into()),
        "add" => kv::increment(word(0), word(1).parse().unwrap_or(0), None).map(|sum| sum.to_string()),
        "delete" => kv::delete(word(0)).map(|()| "deleted".into()),
        "list" => {
            let after = (!word(0).is_empty()).then(|| word(0));
            let page = documents::list(after, number(1).unwrap_or(1000) as u32)?;
            Ok(page.iter().map(|entry| format!("{}:{}", entry.path, entry.size_bytes)).collect::<Vec<_>>().join(","))
        }
        "read" => {
            let bytes =
                documents::read(word(0), number(1).unwrap_or(0), number(2).unwrap_or(u64::from(u32::MAX)) as u32)?;
            Ok(String::from_utf8_lossy(&bytes).into_owned())
        }
        "log" => {
            log::write(log::Level::Warn, &words.join(" "), &[("key".into(), "\"value\"".into())]);
            Ok("logged".into())
        }
        "count" => {
            metrics::count(word(0), number(1).unwrap_or(1));
            metrics::observe(word(0), 2.5);
            Ok("counted".into())
        }
        "observe" => {
            (0..number(1).unwrap_or(1)).for_each(|_| metrics::observe(word(0), word(2).parse().unwrap_or(2.5)));
            Ok("observed".into())
        }
        "clock" => Ok(format!("{} {}", clock::now_unix_ms(), clock::monotonic_ms())),
        _ => Err(Error::Unsupported(function.into())),
    }
}

fn show(value: Option<Vec<u8>>) -> String {
    value.map_or("none".into(), |bytes| String::from_utf8_lossy(&bytes).into_owned())
}

export!(Component);
