//! `[store]`: what lasts; budgets, which need it.

use super::prices::billionths;
use super::{Config, entry, variable};
use anyhow::{Context, bail};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::time::Duration;
use tidegate_api::{Summaries, Titles};
use tidegate_ledger::Budget;
use tidegate_store::Place;

/// `[store]`
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[serde(deny_unknown_fields)]
pub struct StoreConfig {
    /// A folder: SQLite, and the journal of what is used. One gateway's alone.
    pub path: PathBuf,
    /// Environment variable with the URL of a Postgres database, which gateways may share, in place of SQLite.
    pub postgres_env: Option<String>,
    /// That URL itself, from whoever embeds this program; a file names the variable.
    #[serde(skip)]
    pub postgres: Option<String>,
    /// What prices and budgets are in, as ISO 4217 names it, in lower case.
    #[serde(default = "dollars")]
    pub currency: String,
    /// Events for others.
    pub events: Option<EventsConfig>,
    /// Days after which what was deleted is removed from the files.
    #[serde(default = "a_month")]
    pub purge_after_days: u32,
    /// Who names conversations that nobody has named; absent means nobody.
    pub titles: Option<Titles>,
    /// Who sums up what no longer fits a model; absent means nobody.
    pub summaries: Option<Summaries>,
}

fn a_month() -> u32 {
    30
}

fn dollars() -> String {
    "usd".into()
}

/// `[store.events]`: each entry of usage and each alert of a budget, sent at least once to each receiver that is named.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[serde(deny_unknown_fields)]
pub struct EventsConfig {
    /// Where they are posted.
    pub webhook: Option<String>,
    /// Environment variable with the secret that signs what is posted.
    pub secret_env: Option<String>,
    /// A NATS server, one of whose JetStream streams takes them.
    pub nats: Option<String>,
    /// What they are published to there.
    #[serde(default = "subject")]
    pub subject: String,
    /// Environment variable with the token that the server asks for.
    pub token_env: Option<String>,
    /// A topic of a Kafka cluster.
    pub kafka: Option<KafkaConfig>,
}

/// `[store.events.kafka]`
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[serde(deny_unknown_fields)]
pub struct KafkaConfig {
    /// Some of the cluster's brokers, `host:port`; they name the others.
    pub brokers: Vec<String>,
    /// Made by the operator.
    #[serde(default = "subject")]
    pub topic: String,
    /// Whether the brokers speak TLS.
    #[serde(default)]
    pub tls: bool,
    /// PEM of an authority for their certificates, beside the public ones.
    pub ca: Option<PathBuf>,
    /// Who signs in, where the brokers ask for that.
    pub user: Option<String>,
    /// Environment variable with the password.
    pub password_env: Option<String>,
}

impl KafkaConfig {
    fn check(&self) -> anyhow::Result<()> {
        if self.brokers.is_empty() {
            bail!("store.events.kafka.brokers is empty; name at least one as `host:port`");
        }
        for broker in &self.brokers {
            let port = broker
                .rsplit_once(':')
                .and_then(|(host, port)| Some((!host.is_empty()).then_some(port)?.parse::<u16>()));
            if !matches!(port, Some(Ok(_))) || broker.contains("://") {
                bail!("store.events.kafka.brokers: `{broker}` is not `host:port`");
            }
        }
        if self.ca.is_some() && !self.tls {
            bail!("store.events.kafka has `ca` without `tls = true`");
        }
        if self.user.is_some() != self.password_env.is_some() {
            bail!("store.events.kafka needs both `user` and `password_env` to sign in, or neither");
        }
        Ok(())
    }
}

fn subject() -> String {
    "tidegate.usage".into()
}

impl EventsConfig {
    pub(super) fn check(&self) -> anyhow::Result<()> {
        if self.webhook.is_none() && self.nats.is_none() && self.kafka.is_none() {
            bail!("store.events has no receiver; name `webhook`, `nats`, `kafka` or several");
        }
        if self.secret_env.is_some() && self.webhook.is_none() {
            bail!(
                "store.events has `secret_env`, which signs what is posted, and no `webhook`; name one, or leave it out"
            );
        }
        if self.token_env.is_some() && self.nats.is_none() {
            bail!(
                "store.events has `token_env`, which a NATS server asks for, and no `nats`; name one, or leave it out"
            );
        }
        self.kafka.as_ref().map_or(Ok(()), KafkaConfig::check)
    }
}

/// Turns that are looked for at the end of a conversation.
const MOST_TURNS: usize = 16;

impl StoreConfig {
    pub(super) fn check(&self, models: &[&str]) -> anyhow::Result<()> {
        self.events.as_ref().map_or(Ok(()), EventsConfig::check)?;
        let writers = [
            ("titles", self.titles.as_ref().map(|titles| (&titles.model, titles.max_tokens))),
            ("summaries", self.summaries.as_ref().map(|summaries| (&summaries.model, summaries.max_tokens))),
        ];
        for (section, writer) in writers {
            let Some((model, max_tokens)) = writer else { continue };
            if !models.contains(&model.as_str()) {
                bail!(
                    "store.{section}.model is `{model}`, which is no model of this config; there is: {}",
                    models.join(", ")
                );
            }
            if max_tokens == 0 {
                bail!("store.{section}.max_tokens is 0; the smallest is 1");
            }
        }
        match &self.summaries {
            Some(summaries) if !(1..=MOST_TURNS).contains(&summaries.recent_turns) => {
                bail!("store.summaries.recent_turns is {}; it is from 1 to {MOST_TURNS}", summaries.recent_turns)
            }
            Some(summaries) if !(1..=100).contains(&summaries.from_percent) => {
                bail!("store.summaries.from_percent is {}; it is from 1 to 100", summaries.from_percent)
            }
            _ => Ok(()),
        }
    }

    pub(super) fn resolve_paths(&mut self, folder: &Path) {
        self.path = folder.join(&self.path);
        if let Some(kafka) = self.events.as_mut().and_then(|events| events.kafka.as_mut()) {
            kafka.ca = kafka.ca.take().map(|file| folder.join(file));
        }
    }

    /// Where the database is.
    pub fn place(&self) -> anyhow::Result<Place> {
        Ok(match (&self.postgres, &self.postgres_env) {
            (Some(url), _) => Place::Postgres(url.clone()),
            (None, Some(name)) => Place::Postgres(variable(name).context("in store.postgres_env")?),
            (None, None) => Place::Folder(self.path.clone()),
        })
    }

    /// Whether other gateways may use the same database.
    pub fn is_shared(&self) -> bool {
        self.postgres.is_some() || self.postgres_env.is_some()
    }

    /// How long what was deleted stays in the files.
    pub fn purge_after(&self) -> Duration {
        Duration::from_secs(u64::from(self.purge_after_days) * 24 * 3600)
    }

    /// Where the journal is.
    pub fn journal(&self) -> PathBuf {
        self.path.join("journal")
    }
}

/// `budget` of a tenant, a project or a key, in the operator's currency.
#[derive(Clone, Copy, Debug, Deserialize, Serialize, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct BudgetConfig {
    /// For a day, in UTC.
    pub daily: Option<f64>,
    /// For a month, in UTC.
    pub monthly: Option<f64>,
    /// Percent of either at which an alert is sent; 0 for none.
    #[serde(default = "most_of_it")]
    pub soft_percent: u8,
}

fn most_of_it() -> u8 {
    80
}

impl BudgetConfig {
    /// As the ledger takes it.
    pub fn to_budget(self, whose: &str) -> anyhow::Result<Budget> {
        let of = |name, value: Option<f64>| {
            value.map(|value| billionths(value).with_context(|| format!("{whose}: budget.{name}"))).transpose()
        };
        if self.soft_percent > 100 {
            bail!("{whose}: budget.soft_percent is {}; the most is 100", self.soft_percent);
        }
        if self.daily.is_none() && self.monthly.is_none() {
            bail!("{whose}: `budget` bounds nothing; give it `daily` or `monthly`");
        }
        let (daily, monthly) = (of("daily", self.daily)?, of("monthly", self.monthly)?);
        Ok(Budget { daily, monthly, soft_percent: self.soft_percent })
    }
}

impl Config {
    /// All budgets: their place in the config, whose they are, and what they are.
    pub(super) fn budgets(&self) -> impl Iterator<Item = (String, String, BudgetConfig)> {
        let of_tenants = self
            .tenants
            .iter()
            .filter_map(|(name, tenant)| Some((format!("tenants.{name}"), format!("tenant `{name}`"), tenant.budget?)));
        let of_keys = self.keys.iter().enumerate();
        let of_keys =
            of_keys.filter_map(|(i, key)| Some((entry("keys", i), format!("key `{}`", key.name), key.budget?)));
        let projects =
            self.tenants.iter().flat_map(|(tenant, of)| of.projects.iter().map(move |project| (tenant, project)));
        let of_projects = projects.filter_map(|(tenant, (name, of))| {
            let whose = format!("tenant `{tenant}`: project `{name}`");
            Some((format!("tenants.{tenant}.projects.{name}"), whose, of.budget?))
        });
        of_tenants.chain(of_projects).chain(of_keys)
    }

    /// Money needs a memory.
    pub(super) fn check_budget(&self, budget: BudgetConfig, whose: &str) -> anyhow::Result<()> {
        budget.to_budget(whose)?;
        if self.store.is_none() {
            bail!("{whose} has a budget, but nothing keeps what is spent; add [store] with a `path`");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_goes_with_a_receiver_that_is_not_there_is_refused() {
        let parse = |more: &str| {
            let events = "[store]\npath = \"data\"\n[store.events]\n";
            Config::parse(&format!("{events}{more}")).map_err(|why| format!("{why:#}"))
        };
        let (webhook, nats) = ("webhook = \"https://b.example/\"\n", "nats = \"nats://127.0.0.1\"\n");
        let (secret, token) = ("secret_env = \"S\"\n", "token_env = \"T\"\n");
        assert!(parse(&format!("{nats}{secret}")).unwrap_err().contains("`secret_env`"));
        assert!(parse(&format!("{webhook}{token}")).unwrap_err().contains("`token_env`"));
        parse(&format!("{webhook}{secret}{nats}{token}")).unwrap();
    }

    #[test]
    fn a_budget_needs_a_store_and_a_bound() {
        let why = |text: &str| format!("{:#}", Config::parse(text).unwrap_err());
        let tenant = "[tenants.a.budget]\ndaily = 10\n";
        assert!(why(tenant).contains("add [store]"), "{}", why(tenant));
        let store = "[store]\npath = \"data\"\n";
        Config::parse(&format!("{store}{tenant}")).unwrap();
        assert!(why(&format!("{store}[tenants.a.budget]\nsoft_percent = 5\n")).contains("bounds nothing"));
        assert!(why(&format!("{store}[tenants.a.budget]\ndaily = -1\n")).contains("no amount of money"));
    }
}
