//! Counts requests by how they ended.

use serde::Deserialize;
use tidegate_plugin_sdk::{Context, Descriptor, Error, Observer, Plugin, Summary, host};

#[derive(Deserialize)]
struct Config {}

struct Counter;

impl Plugin for Counter {
    type Config = Config;

    fn describe() -> Descriptor {
        Descriptor::new("{{name}}", env!("CARGO_PKG_VERSION"), "Counts requests")
            .metric("answered", "Requests that were answered")
            .metric("others", "Requests that ended in another way")
    }

    fn configure(_: Config) -> Result<Self, Error> {
        Ok(Self)
    }
}

impl Observer for Counter {
    fn on_complete(&self, _: &Context, summary: &Summary) -> Result<(), Error> {
        host::metrics::count(if summary.outcome == "answered" { "answered" } else { "others" }, 1);
        Ok(())
    }
}

tidegate_plugin_sdk::export!(Counter: Observer);
