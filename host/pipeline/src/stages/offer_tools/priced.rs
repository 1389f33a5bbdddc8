//! Prices of tools that are not there. A config names tools before anybody knows which there are, and the price of a misspelt one
//! would bill nothing without a word: it is told once the plugin has listed its tools.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The tools that have a price of their own, by their plugins' names. A price counts for all stages of that name.
#[derive(Clone, Default)]
pub struct PricedTools(Arc<BTreeMap<String, Priced>>);

#[derive(Default)]
struct Priced {
    tools: Vec<String>,
    /// All were listed, or that they are not was told.
    settled: AtomicBool,
}

/// What the stages of a request that have prices have listed, each under its plugin's name; `None` where one could not be asked.
#[derive(Default)]
pub(super) struct Listed<'a>(Vec<(&'a str, Option<Vec<String>>)>);

impl PricedTools {
    /// Of plugins, each with tools that have prices.
    pub fn new(priced: impl IntoIterator<Item = (String, Vec<String>)>) -> Self {
        let mut all: BTreeMap<String, Priced> = BTreeMap::new();
        for (plugin, tools) in priced {
            all.entry(plugin).or_default().tools.extend(tools);
        }
        Self(Arc::new(all))
    }

    /// Notes what a stage has listed, where that is asked about.
    pub(super) fn note<'a, 'n>(
        &self,
        listed: &mut Listed<'a>,
        plugin: &'a str,
        names: Option<impl Iterator<Item = &'n str>>,
    ) {
        if self.0.get(plugin).is_some_and(|priced| !priced.settled.load(Ordering::Relaxed)) {
            listed.0.push((plugin, names.map(|names| names.map(str::to_owned).collect())));
        }
    }

    /// What the log is to be told, once: each plugin that has not listed all its tools with prices, and which are missing.
    pub(super) fn unlisted<'a>(&self, listed: Listed<'a>) -> Vec<(&'a str, String)> {
        let mut by_plugin: BTreeMap<&'a str, Option<Vec<String>>> = BTreeMap::new();
        for (plugin, names) in listed.0 {
            let all = by_plugin.entry(plugin).or_insert_with(|| Some(Vec::new()));
            *all = all.take().zip(names).map(|(all, names)| [all, names].concat());
        }
        let told = |(plugin, names): (&'a str, Option<Vec<String>>)| {
            let missing = self.0.get(plugin)?.missing(&names?)?;
            Some((plugin, missing))
        };
        by_plugin.into_iter().filter_map(told).collect()
    }
}

impl Priced {
    fn missing(&self, names: &[String]) -> Option<String> {
        let missing: Vec<&str> = self.tools.iter().filter(|tool| !names.contains(tool)).map(String::as_str).collect();
        let is_first = !self.settled.swap(true, Ordering::Relaxed);
        let there = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
        (is_first && !missing.is_empty()).then(|| {
            format!(
                "price.tools names {}, which it does not have: nothing is billed by that; it has {there}",
                missing.join(", ")
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is told when the stages list that, each with its plugin's name.
    fn told(priced: &PricedTools, stages: &[(&'static str, Option<&[&str]>)]) -> Vec<(&'static str, String)> {
        let mut listed = Listed::default();
        for (plugin, names) in stages {
            priced.note(&mut listed, plugin, names.map(|names| names.iter().copied()));
        }
        priced.unlisted(listed)
    }

    fn of_web(tools: &[&str]) -> PricedTools {
        PricedTools::new([("web".to_owned(), tools.iter().map(|tool| (*tool).to_owned()).collect())])
    }

    #[test]
    fn a_price_of_what_is_no_tool_is_told_once() {
        let priced = of_web(&["serch", "fetch", "hed"]);
        let has: &[(&str, Option<&[&str]>)] =
            &[("calculator", Some(&["calculator"])), ("web", Some(&["search", "fetch"]))];
        let expected =
            "price.tools names serch, hed, which it does not have: nothing is billed by that; it has search, fetch";
        assert_eq!(told(&priced, has), [("web", expected.to_owned())]);
        assert_eq!(told(&priced, has), []);
        let none = told(&of_web(&["search"]), &[("web", Some(&[]))]);
        assert!(none[0].1.ends_with("; it has none"), "{none:?}");
    }

    #[test]
    fn what_is_listed_or_could_not_be_asked_is_not_told() {
        assert_eq!(told(&of_web(&["search", "fetch"]), &[("web", Some(&["fetch", "search"]))]), []);
        assert_eq!(told(&of_web(&["search"]), &[("other", Some(&["fetch"]))]), [], "it was not asked");
        // A price is of the name, whichever of its stages has the tool.
        let both: &[(&str, Option<&[&str]>)] = &[("web", Some(&["fetch"])), ("web", Some(&["search"]))];
        assert_eq!(told(&of_web(&["search", "fetch"]), both), []);
        let priced = of_web(&["serch"]);
        assert_eq!(told(&priced, &[("web", Some(&["search"])), ("web", None)]), [], "it may be what the other has");
        assert_eq!(told(&priced, &[("web", None)]), []);
        assert_eq!(told(&priced, &[("web", Some(&["search"]))]).len(), 1, "it answers again");
    }
}
