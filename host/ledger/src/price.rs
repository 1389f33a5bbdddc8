//! What things cost. Amounts are whole billionths of the operator's currency, so that sums are exact.

use crate::call::CallPrices;
use crate::tally::Tokens;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Billionths of the operator's currency for a million tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Price {
    /// Of prompts.
    pub input: u64,
    /// Of prompts, where the prefix cache had them.
    pub cached: u64,
    /// Generated.
    pub output: u64,
}

const MILLION: u128 = 1_000_000;

impl Price {
    /// What `tokens` cost, rounded to the nearest billionth, once.
    pub fn of(&self, tokens: Tokens) -> u64 {
        let product = |tokens: u64, price: u64| u128::from(tokens) * u128::from(price);
        let uncached = tokens.input.saturating_sub(tokens.cached);
        let cached = tokens.cached.min(tokens.input);
        let sum = product(uncached, self.input) + product(cached, self.cached) + product(tokens.output, self.output);
        u64::try_from((sum + MILLION / 2) / MILLION).unwrap_or(u64::MAX)
    }
}

/// What everything costs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Prices {
    /// The prices of models by name; a model that is not there costs nothing.
    pub models: BTreeMap<String, Price>,
    /// Of calls of tools and retrievers.
    pub calls: CallPrices,
}

impl Prices {
    /// The price of a model.
    pub fn of(&self, model: &str) -> Price {
        self.models.get(model).copied().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_price_is_for_a_million_tokens_and_cached_ones_have_their_own() {
        // 0.15, 0.075 and 0.60 for a million.
        let price = Price { input: 150_000_000, cached: 75_000_000, output: 600_000_000 };
        assert_eq!(price.of(Tokens { input: 1000, cached: 400, output: 10 }), 600 * 150 + 400 * 75 + 10 * 600);
        assert_eq!(price.of(Tokens::default()), 0);
        assert_eq!(Price { input: 1, ..Price::default() }.of(Tokens { input: 499_999, cached: 0, output: 0 }), 0);
        assert_eq!(Price { input: 1, ..Price::default() }.of(Tokens { input: 500_000, cached: 0, output: 0 }), 1);
        assert_eq!(Price { output: u64::MAX, ..price }.of(Tokens { output: u64::MAX, ..Tokens::default() }), u64::MAX);
    }
}
