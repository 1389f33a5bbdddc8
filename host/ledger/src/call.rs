//! Calls of tools and retrievers: what each costs, and how many one generation made.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// What is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum CallKind {
    /// A tool of the server, by the model.
    Tool,
    /// A retriever, for the passages of a question.
    Retrieval,
}

impl CallKind {
    /// As databases and events have it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Tool => "tool",
            Self::Retrieval => "retrieval",
        }
    }

    /// The kind of that name.
    pub fn named(name: &str) -> Option<Self> {
        [Self::Tool, Self::Retrieval].into_iter().find(|kind| kind.as_str() == name)
    }
}

/// What a call costs, in billionths of the operator's currency; what is not there costs nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CallPrices {
    /// Of tools: by `PLUGIN` for all of a plugin's, by `PLUGIN/TOOL` for one with a price of its own.
    pub tools: BTreeMap<String, u64>,
    /// Of retrievers, by the plugin's name.
    pub retrieval: BTreeMap<String, u64>,
}

impl CallPrices {
    /// A call of a plugin's tool. What has no price of its own is counted under its plugin: so there are no more names
    /// than the operator wrote, whatever tools a plugin says that it has.
    pub(crate) fn tool(&self, plugin: &str, tool: &str) -> Call {
        let own = format!("{plugin}/{tool}");
        let (name, price) = match self.tools.get(&own) {
            Some(price) => (own, *price),
            None => (plugin.to_owned(), self.tools.get(plugin).copied().unwrap_or_default()),
        };
        Call { kind: CallKind::Tool, name, price }
    }

    /// A call of a retriever.
    pub(crate) fn retrieval(&self, plugin: &str) -> Call {
        let price = self.retrieval.get(plugin).copied().unwrap_or_default();
        Call { kind: CallKind::Retrieval, name: plugin.to_owned(), price }
    }
}

/// One call, as it is billed once it was answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    pub(crate) kind: CallKind,
    pub(crate) name: String,
    pub(crate) price: u64,
}

/// How often something was called, at which price.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Called {
    /// Calls that were answered.
    pub count: u64,
    /// Billionths for each.
    pub price: u64,
}

/// The calls of one generation, by what was called.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Calls(pub BTreeMap<(CallKind, String), Called>);

impl Calls {
    pub(crate) fn add(&mut self, call: Call) {
        let Call { kind, name, price } = call;
        let called = self.0.entry((kind, name)).or_default();
        called.count += 1;
        called.price = price;
    }

    /// Whether there were none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// How many of a kind there were.
    pub fn count(&self, kind: CallKind) -> u64 {
        self.0.iter().filter(|((of, _), _)| *of == kind).map(|(_, called)| called.count).sum()
    }

    /// What they cost together, in billionths.
    pub fn amount(&self) -> u64 {
        let amounts = self.0.values().map(|called| called.count.saturating_mul(called.price));
        amounts.fold(0, u64::saturating_add)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tool_has_its_own_price_or_its_plugins_and_is_counted_there() {
        let prices = CallPrices {
            tools: [("web".to_owned(), 5), ("web/search".to_owned(), 70)].into(),
            retrieval: [("web".to_owned(), 3)].into(),
        };
        let mut calls = Calls::default();
        for tool in ["search", "fetch", "search", "head"] {
            calls.add(prices.tool("web", tool));
        }
        calls.add(prices.tool("free", "add"));
        calls.add(prices.retrieval("web"));
        assert_eq!(calls.amount(), 2 * 70 + 2 * 5 + 3);
        assert_eq!((calls.count(CallKind::Tool), calls.count(CallKind::Retrieval)), (5, 1));
        let names: Vec<&str> = calls.0.keys().map(|(_, name)| name.as_str()).collect();
        assert_eq!(names, ["free", "web", "web/search", "web"]);
    }
}
