//! Remembers what its callers say their name is.

use serde::Deserialize;
use tidegate_plugin_sdk::{
    Capability, Context, Descriptor, Error, Exchange, Item, Memory, Message, Plugin, Question, Role, host,
};

#[derive(Deserialize)]
struct Config {}

struct Names;

impl Plugin for Names {
    type Config = Config;

    fn describe() -> Descriptor {
        Descriptor::new("{{name}}", env!("CARGO_PKG_VERSION"), "Remembers what callers say their name is")
            .needs(Capability::Kv, "The names are kept there")
    }

    fn configure(_: Config) -> Result<Self, Error> {
        Ok(Self)
    }
}

/// The word behind "my name is".
fn name_in(message: &Message) -> Option<String> {
    message.texts().find_map(|(_, text)| {
        let behind = text.split_once("my name is ").or_else(|| text.split_once("My name is "))?.1;
        let name: String = behind.chars().take_while(|c| c.is_alphanumeric()).collect();
        (!name.is_empty()).then_some(name)
    })
}

/// Storage is the tenant's, or its project's; its callers are kept apart here.
fn key(ctx: &Context) -> String {
    format!("name/{}", ctx.caller)
}

fn item(name: &str) -> Item {
    Item { id: "name".into(), text: format!("The user's name is {name}."), ..Item::default() }
}

impl Memory for Names {
    fn recall(&self, ctx: &Context, _: &Question) -> Result<Vec<Item>, Error> {
        let known = host::kv::get(&key(ctx))?;
        Ok(known.iter().map(|name| item(&String::from_utf8_lossy(name))).collect())
    }

    fn remember(&self, ctx: &Context, exchange: &Exchange) -> Result<Vec<Item>, Error> {
        let mut said = exchange.messages.iter().filter(|message| message.role == Role::User);
        let Some(name) = said.find_map(name_in) else { return Ok(Vec::new()) };
        host::kv::set(&key(ctx), name.as_bytes(), None)?;
        Ok(vec![item(&name)])
    }

    fn forget(&self, ctx: &Context, ids: &[String]) -> Result<u32, Error> {
        if !ids.iter().any(|id| id == "name") || host::kv::get(&key(ctx))?.is_none() {
            return Ok(0);
        }
        host::kv::delete(&key(ctx))?;
        Ok(1)
    }
}

tidegate_plugin_sdk::export!(Names: Memory);
