//! A memory that keeps what was said, in `kv`, apart for each caller. A question recalls what shares a word with it.

wit_bindgen::generate!({
    path: "../../../wit",
    inline: "
        package guests:remembers;
        world remembers {
            include tidegate:plugin/memory-plugin@0.1.0;
            import tidegate:plugin/kv@0.1.0;
        }
    ",
    world: "guests:remembers/remembers",
    generate_all,
});

use exports::tidegate::plugin::memory::{Exchange, Item, Question};
use exports::tidegate::plugin::{memory, meta};
use tidegate::plugin::kv;
use tidegate::plugin::types::{Context, Error, Part};

struct Component;

impl meta::Guest for Component {
    fn describe() -> String {
        kit::descriptor_with("remembers", false, ",\"capabilities\":[{\"name\":\"kv\",\"reason\":\"to keep\"}]")
    }

    fn configure(_: String) -> Result<(), Error> {
        Ok(())
    }
}

impl memory::Guest for Component {
    fn recall(ctx: Context, question: Question) -> Result<Vec<Item>, Error> {
        let asked: Vec<&str> = question.text.split_whitespace().collect();
        let shares = |line: &&String| line.split_whitespace().any(|word| word.len() > 3 && asked.contains(&word));
        let lines = kept(&ctx)?;
        let found = lines.iter().filter(shares).take(question.limit as usize).enumerate();
        Ok(found.map(|(at, line)| item(at, line)).collect())
    }

    fn remember(ctx: Context, exchange: Exchange) -> Result<Vec<Item>, Error> {
        let mut lines = kept(&ctx)?;
        let before = lines.len();
        for part in exchange.messages.iter().flat_map(|message| &message.parts) {
            if let Part::Text(text) = part {
                lines.push(text.replace('\n', " "));
            }
        }
        kv::set(&ctx.caller, lines.join("\n").as_bytes(), None)?;
        Ok(lines[before..].iter().enumerate().map(|(at, line)| item(before + at, line)).collect())
    }

    fn forget(ctx: Context, _: Vec<String>) -> Result<u32, Error> {
        let lines = kept(&ctx)?.len();
        kv::delete(&ctx.caller)?;
        Ok(lines.min(1) as u32)
    }
}

fn kept(ctx: &Context) -> Result<Vec<String>, Error> {
    let bytes = kv::get(&ctx.caller)?.unwrap_or_default();
    Ok(String::from_utf8_lossy(&bytes).lines().map(str::to_owned).collect())
}

fn item(at: usize, line: &str) -> Item {
    Item { id: format!("line-{at}"), text: line.into(), score: None, attrs: Vec::new() }
}

export!(Component);
