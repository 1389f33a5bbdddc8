//! What things cost: `price` of a model and of a stage.

use super::{Config, StageConfig};
use anyhow::{Context, bail};
use serde::Deserialize;
use std::collections::BTreeMap;
use tidegate_ledger::{CallPrices, Price, Prices};

/// `price` of a model, in the operator's currency for a million tokens.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct PriceConfig {
    /// Of prompts.
    pub input: f64,
    /// Of prompts that the prefix cache had; default: as `input`.
    pub cached_input: Option<f64>,
    /// Of answers.
    pub output: f64,
}

impl PriceConfig {
    pub(super) fn to_price(self, model: &str) -> anyhow::Result<Price> {
        let of = |name, value| billionths(value).with_context(|| format!("model `{model}`: price.{name}"));
        Ok(Price {
            input: of("input", self.input)?,
            cached: of("cached_input", self.cached_input.unwrap_or(self.input))?,
            output: of("output", self.output)?,
        })
    }
}

/// `price` of a stage, in the operator's currency for one call.
#[derive(Clone, Debug, Default, Deserialize, PartialEq)]
#[serde(default, deny_unknown_fields)]
pub struct CallPriceConfig {
    /// Of each of its tools that has no price of its own.
    pub tool_call: Option<f64>,
    /// Of some of its tools, by their names.
    pub tools: BTreeMap<String, f64>,
    /// Of looking for passages for one question.
    pub retrieval: Option<f64>,
}

/// Prices of calls in one config, and bytes of a name: all of them fit into a record of the journal.
const MOST_CALL_PRICES: usize = 256;
const MOST_NAME_BYTES: usize = 128;

impl CallPriceConfig {
    /// Whether it says what tools cost.
    pub fn is_of_tools(&self) -> bool {
        self.tool_call.is_some() || !self.tools.is_empty()
    }

    fn add_to(&self, plugin: &str, prices: &mut CallPrices) -> anyhow::Result<()> {
        if let Some(price) = self.tool_call {
            add(&mut prices.tools, plugin.to_owned(), price).context("price.tool_call")?;
        }
        for (tool, price) in &self.tools {
            add(&mut prices.tools, format!("{plugin}/{tool}"), *price)
                .with_context(|| format!("price.tools.{tool}"))?;
        }
        if let Some(price) = self.retrieval {
            add(&mut prices.retrieval, plugin.to_owned(), price).context("price.retrieval")?;
        }
        Ok(())
    }
}

fn add(prices: &mut BTreeMap<String, u64>, name: String, price: f64) -> anyhow::Result<()> {
    let price = billionths(price)?;
    if name.len() > MOST_NAME_BYTES {
        bail!("the name `{name}` has {} bytes; what has a price has at most {MOST_NAME_BYTES}", name.len());
    }
    if prices.insert(name.clone(), price).is_some() {
        bail!("`{name}` has a price already; keep one");
    }
    Ok(())
}

/// Beyond it, sums of a month could leave the numbers of databases.
const MOST: f64 = 1e9;

pub(super) fn billionths(units: f64) -> anyhow::Result<u64> {
    if !(0.0..=MOST).contains(&units) {
        bail!("{units} is no amount of money; it must be between 0 and {MOST:e}");
    }
    // Below 2^60, where rounding to a whole number is exact enough by far.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "checked above")]
    Ok((units * 1e9).round() as u64)
}

impl Config {
    /// What everything costs.
    pub fn prices(&self) -> anyhow::Result<Prices> {
        let priced = self.models.iter().filter_map(|model| Some((&model.name, model.price?)));
        let models = priced.map(|(name, price)| Ok((name.clone(), price.to_price(name)?)));
        Ok(Prices { calls: self.call_prices()?, models: models.collect::<anyhow::Result<_>>()? })
    }

    pub(super) fn call_prices(&self) -> anyhow::Result<CallPrices> {
        let mut calls = CallPrices::default();
        for StageConfig { plugin, price, .. } in self.pipeline.iter().flat_map(|pipeline| &pipeline.stage) {
            let Some(price) = price else { continue };
            price.add_to(plugin, &mut calls).with_context(|| format!("stage `{plugin}`"))?;
        }
        let num_calls = calls.tools.len() + calls.retrieval.len();
        if num_calls > MOST_CALL_PRICES {
            bail!("the stages have {num_calls} prices of calls; the most is {MOST_CALL_PRICES}");
        }
        Ok(calls)
    }

    /// A line about prices that nobody pays. No error: callers are shown them all the same.
    pub(crate) fn unbilled(&self) -> Option<String> {
        if self.store.is_some() {
            return None;
        }
        let mut stages = self.pipeline.iter().flat_map(|pipeline| &pipeline.stage);
        let of_models = self.models.iter().find(|model| model.price.is_some());
        let of_models = of_models.map(|model| format!("model `{}`", model.name));
        let of_stages = || stages.find(|stage| stage.price.is_some()).map(|stage| format!("stage `{}`", stage.plugin));
        let priced = of_models.or_else(of_stages)?;
        Some(format!(
            "prices    BILL NOTHING: there is one, of {priced}, and no [store] that keeps what is used; it needs a `path`"
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn money_is_exact_and_nonsense_is_refused() {
        assert_eq!(billionths(0.15).unwrap(), 150_000_000);
        assert_eq!(billionths(0.075).unwrap(), 75_000_000);
        assert_eq!(billionths(1e9).unwrap(), 1_000_000_000_000_000_000);
        for bad in [-1.0, f64::NAN, f64::INFINITY, 1e10] {
            assert!(billionths(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn prices_that_nobody_pays_are_told() {
        let model = "[[models]]\nname = \"m\"\npath = \"bundled\"\nprice = { input = 1, output = 2 }\n";
        let stage = "[[pipeline.stage]]\nplugin = \"web\"\nprice = { tool_call = 0.001 }\n";
        let said = |text: &str| Config::parse(text).unwrap().unbilled();
        assert!(said(&format!("{model}{stage}")).unwrap().contains("BILL NOTHING: there is one, of model `m`,"));
        assert!(said(stage).unwrap().contains("of stage `web`"));
        assert_eq!(said(&format!("{model}{stage}[store]\npath = \"data\"\n")), None);
        assert_eq!(said(&model.replace("price = { input = 1, output = 2 }", "")), None);
    }

    #[test]
    fn a_stage_says_what_its_calls_cost_once() {
        let stage = |price: &str| format!("[[pipeline.stage]]\nplugin = \"web\"\nprice = {price}\n");
        let config = Config::parse(&stage("{ tool_call = 0.001, tools = { search = 0.01 }, retrieval = 0.0005 }"));
        let calls = config.unwrap().prices().unwrap().calls;
        let tools = [("web".to_owned(), 1_000_000), ("web/search".to_owned(), 10_000_000)];
        assert_eq!((calls.tools, calls.retrieval), (tools.into(), [("web".to_owned(), 500_000)].into()));
        let why = |text: &str| format!("{:#}", Config::parse(text).unwrap_err());
        assert!(why(&stage("{ retrieval = -1 }")).contains("stage `web`: price.retrieval"));
        assert!(why(&stage("{ tols = {} }")).contains("did you mean `tools`?"));
        let twice = stage("{ tool_call = 1 }").repeat(2);
        assert!(why(&twice).contains("`web` has a price already"), "{}", why(&twice));
        let long = format!("{{ tools = {{ {} = 1 }} }}", "x".repeat(200));
        assert!(why(&stage(&long)).contains("204 bytes"));
    }
}
