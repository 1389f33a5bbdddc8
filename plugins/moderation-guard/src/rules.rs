//! What a score means: a threshold and an action for each category, and what becomes of labels that are none.

use serde::Deserialize;
use std::collections::BTreeMap;
use tidegate_plugin_sdk::Error;
use tidegate_plugin_sdk::host::models::Label;

/// OpenAI's moderation categories.
pub const CATEGORIES: [&str; 13] = [
    "harassment",
    "harassment/threatening",
    "hate",
    "hate/threatening",
    "illicit",
    "illicit/violent",
    "self-harm",
    "self-harm/intent",
    "self-harm/instructions",
    "sexual",
    "sexual/minors",
    "violence",
    "violence/graphic",
];

const IGNORES_ALL: &str = "`action` is \"ignore\" for every category, so that nothing could be reported or refused; set it to \
    \"block\" or \"flag\", or give a category such an action in `categories`";

/// What is done about a text at or over the threshold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Act {
    /// Nothing.
    Ignore,
    /// It is reported.
    Flag,
    /// It is refused.
    Block,
}

/// What the operator says about one category.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Entry {
    threshold: Option<f32>,
    action: Option<Act>,
}

#[derive(Clone, Copy, Debug)]
struct Rule {
    threshold: f32,
    act: Act,
}

/// A category of a text at or over its threshold.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Over {
    /// One of [`CATEGORIES`].
    pub category: &'static str,
    /// The classifier's.
    pub score: f32,
    /// What is to be done.
    pub act: Act,
}

/// The operator's rules, one for each category.
#[derive(Clone, Debug)]
pub struct Rules {
    rules: Vec<(&'static str, Rule)>,
    /// Names that the classifier has for categories.
    labels: BTreeMap<String, &'static str>,
}

impl Rules {
    /// Rules from the config: what an entry leaves open is its parent's (`self-harm` of `self-harm/intent`), then
    /// the general threshold and action.
    ///
    /// # Errors
    /// For names that are no categories, thresholds that are no scores, and rules that ignore every category: each text would
    /// go to the classifier, and nothing would come of it.
    pub fn new(
        threshold: f32,
        act: Act,
        entries: &BTreeMap<String, Entry>,
        labels: &BTreeMap<String, String>,
    ) -> Result<Self, Error> {
        for entry in entries.values() {
            check_threshold(entry.threshold.unwrap_or(threshold))?;
        }
        check_threshold(threshold)?;
        entries.keys().chain(labels.values()).try_for_each(|name| category(name).map(|_| ()))?;
        let rule = |name: &'static str| {
            let own = entries.get(name).copied().unwrap_or_default();
            let parent = name.split('/').next().and_then(|parent| entries.get(parent)).copied().unwrap_or_default();
            let rule = Rule {
                threshold: own.threshold.or(parent.threshold).unwrap_or(threshold),
                act: own.action.or(parent.action).unwrap_or(act),
            };
            (name, rule)
        };
        let rules: Vec<(&'static str, Rule)> = CATEGORIES.into_iter().map(rule).collect();
        if rules.iter().all(|(_, rule)| rule.act == Act::Ignore) {
            return Err(Error::InvalidConfig(IGNORES_ALL.into()));
        }
        let labels = labels.iter().map(|(label, name)| Ok((label.clone(), category(name)?)));
        Ok(Self { rules, labels: labels.collect::<Result<_, Error>>()? })
    }

    /// What one text's labels mean, in the order of the categories; the highest score of each counts.
    ///
    /// # Errors
    /// For scores that are none, and where no label is a category: silence of a classifier that was made for
    /// something else is no consent.
    pub fn judge(&self, labels: &[Label]) -> Result<Vec<Over>, Error> {
        let mut known: BTreeMap<&'static str, f32> = BTreeMap::new();
        for Label { name, score } in labels {
            if !(0.0..=1.0).contains(score) {
                return Err(Error::Other(format!("the classifier's score {score} for `{name}` is not from 0 to 1")));
            }
            if let Some(category) = self.meant(name) {
                let highest = known.entry(category).or_insert(*score);
                *highest = highest.max(*score);
            }
        }
        if known.is_empty() {
            let names: Vec<&str> = labels.iter().take(8).map(|label| label.name.as_str()).collect();
            let names = names.join(", ");
            return Err(Error::Other(format!(
                "no label of the classifier is a category ({names}); map them in `labels`"
            )));
        }
        let over = |(category, rule): &(&'static str, Rule)| {
            let score = *known.get(category)?;
            let is_over = score >= rule.threshold && rule.act != Act::Ignore;
            is_over.then_some(Over { category, score, act: rule.act })
        };
        Ok(self.rules.iter().filter_map(over).collect())
    }

    /// The category that a label stands for.
    fn meant(&self, label: &str) -> Option<&'static str> {
        self.labels.get(label).copied().or_else(|| CATEGORIES.into_iter().find(|category| *category == label))
    }
}

fn category(name: &str) -> Result<&'static str, Error> {
    CATEGORIES.into_iter().find(|category| *category == name).ok_or_else(|| {
        Error::InvalidConfig(format!("there is no category `{name}`; there are: {}", CATEGORIES.join(", ")))
    })
}

fn check_threshold(threshold: f32) -> Result<(), Error> {
    if (0.0..=1.0).contains(&threshold) && threshold > 0.0 {
        return Ok(());
    }
    Err(Error::InvalidConfig(format!("the threshold {threshold} is not above 0 and at most 1")))
}
