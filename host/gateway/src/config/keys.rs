//! `[[keys]]`: who may ask, for what, how much, and until when.

use super::{BudgetConfig, Config, PipelineConfig, StageConfig, Wrong, entry, quota};
use anyhow::{Context, bail, ensure};
use serde::{Deserialize, Deserializer};
use std::time::{Duration, SystemTime};
use tidegate_api::Group;
use tidegate_types::{CallerRole, Class, Quota, ROUTED_MODEL, Reach};

/// One API key. `tidegate key NAME` makes one and prints this entry.
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct KeyConfig {
    /// For logs and metrics.
    pub name: String,
    /// `blake3:` and 64 hex digits: the hash of the key.
    pub hash: String,
    /// Whose data and share; default: the key's name.
    pub tenant: Option<String>,
    /// The tenant's project that it is of; default: the tenant's own.
    pub project: Option<String>,
    /// `interactive`, `standard` or `batch`.
    #[serde(default)]
    pub class: Class,
    /// Share of the engine relative to other tenants of the class.
    #[serde(default = "one")]
    pub weight: u32,
    /// It may administer the server: `POST /admin/reload`, and the keys of all tenants.
    #[serde(default)]
    pub admin: bool,
    /// What it may do within its tenant; default: `service`, and `owner` for an administrator's.
    pub role: Option<CallerRole>,
    /// In place of `role`: what it may do in its project, and nowhere else.
    pub project_role: Option<CallerRole>,
    /// The models that it may name; default: all.
    pub models: Option<Vec<String>>,
    /// The plugins whose tools, passages and memories it has; default: all. Guards see its requests in any case.
    pub plugins: Option<Vec<String>>,
    /// The endpoints that it may use; default: all but the administrator's and the metrics.
    pub endpoints: Option<Vec<String>>,
    /// From then on it is refused.
    pub expires: Option<Expiry>,
    /// How much it may ask for.
    #[serde(default)]
    pub limits: Quota,
    /// What it may spend.
    pub budget: Option<BudgetConfig>,
}

pub(super) fn one() -> u32 {
    1
}

impl KeyConfig {
    pub(crate) fn check(&self, config: &Config) -> Vec<anyhow::Result<()>> {
        let project = self.project.as_ref().map(|project| config.project(self.tenant(), project));
        let checked = [
            self.check_hash(),
            self.check_weight(),
            quota::check(&self.limits, &config.limits).context("limits"),
            self.groups().map(drop),
            project.transpose().map(drop),
            self.check_reach(),
            check_plugins(self.plugins.as_deref(), config),
            check_models(self.models.as_deref(), config),
        ];
        checked.into_iter().map(|checked| checked.with_context(|| format!("key `{}`", self.name))).collect()
    }

    fn check_hash(&self) -> anyhow::Result<()> {
        let digits = self.hash.strip_prefix("blake3:").unwrap_or_default();
        ensure!(
            digits.len() == 64 && digits.bytes().all(|byte| byte.is_ascii_hexdigit()),
            "`hash` must be `blake3:` and 64 hex digits; `tidegate key {}` prints a new one",
            self.name
        );
        Ok(())
    }

    fn check_weight(&self) -> anyhow::Result<()> {
        ensure!(self.weight > 0, "`weight` is 0; the smallest is 1");
        Ok(())
    }

    fn check_reach(&self) -> anyhow::Result<()> {
        if self.admin && self.project_role.is_some() {
            bail!("who administers the server is not bound to a project; leave `project_role` out");
        }
        check_roles(self.role, self.project_role, self.project.as_deref())
    }

    /// Whose data and share.
    pub(crate) fn tenant(&self) -> &str {
        self.tenant.as_deref().unwrap_or(&self.name)
    }

    /// What it may do, and how far that goes.
    pub(crate) fn role(&self) -> (CallerRole, Reach) {
        let default = if self.admin { CallerRole::Owner } else { CallerRole::Service };
        role(self.role, self.project_role, default)
    }

    /// `endpoints`, as the HTTP side takes it.
    pub(crate) fn groups(&self) -> anyhow::Result<Option<Vec<Group>>> {
        groups(self.endpoints.as_deref())
    }
}

/// What a credential's role is, and how far it goes.
pub(super) fn role(
    of_tenant: Option<CallerRole>,
    of_project: Option<CallerRole>,
    default: CallerRole,
) -> (CallerRole, Reach) {
    match of_project {
        Some(role) => (role, Reach::Project),
        None => (of_tenant.unwrap_or(default), Reach::Tenant),
    }
}

/// A role goes as far as the tenant or as the project.
pub(super) fn check_roles(
    of_tenant: Option<CallerRole>,
    of_project: Option<CallerRole>,
    project: Option<&str>,
) -> anyhow::Result<()> {
    match (of_tenant, of_project) {
        (Some(_), Some(_)) => bail!("it has both `role`, in the whole tenant, and `project_role`; keep one"),
        (None, Some(_)) if project.is_none() => {
            bail!("`project_role` is a role in its project; name that in `project`")
        }
        _ => Ok(()),
    }
}

/// A name that is misspelt would allow nothing, and nobody would know why.
pub(super) fn check_models(models: Option<&[String]>, config: &Config) -> anyhow::Result<()> {
    let Some(models) = models else { return Ok(()) };
    let known = config.model_names();
    let unknown = models.iter().find(|name| *name != ROUTED_MODEL && !known.contains(&name.as_str()));
    if let Some(unknown) = unknown {
        bail!("there is no model `{unknown}`; there are: {}", known.join(", "));
    }
    if !models.iter().any(|name| known.contains(&name.as_str())) {
        bail!("`models` has none that a router could choose; name at least one, or leave it out for all");
    }
    Ok(())
}

/// As with models. What runs as a guard, a router or an observer alone is refused too: who names it, or leaves it out, would
/// think that it hangs on that.
pub(super) fn check_plugins(plugins: Option<&[String]>, config: &Config) -> anyhow::Result<()> {
    let Some(plugins) = plugins else { return Ok(()) };
    let pipeline = config.pipeline()?;
    let stages = &pipeline.stage;
    for name in plugins {
        let mut named = stages.iter().filter(|stage| stage.plugin == *name).peekable();
        if named.peek().is_none() {
            let known: Vec<&str> =
                stages.iter().filter(|stage| stage.may_bring()).map(|stage| &*stage.plugin).collect();
            let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
            bail!("there is no plugin `{name}` in [pipeline]; there are: {known}");
        }
        ensure!(named.any(StageConfig::may_bring), "{}", brings_nothing(name));
    }
    Ok(())
}

/// The same of all lists, now that it is known of each stage of `loaded` what it is, be it that the config does not say so.
pub(crate) fn look_at_loaded_plugins(config: &Config, loaded: &PipelineConfig, wrong: &mut Wrong) {
    let keys = config.keys.iter().enumerate();
    let keys = keys.map(|(i, key)| (entry("keys", i), format!("key `{}`", key.name), &key.plugins));
    let issuers = config.auth.issuer.iter().enumerate();
    let issuers =
        issuers.map(|(i, one)| (entry("auth.issuer", i), format!("auth.issuer `{}`", one.name), &one.plugins));
    let known = config.auth.certificate.iter().enumerate();
    let known =
        known.map(|(i, one)| (entry("auth.certificate", i), format!("auth.certificate `{}`", one.name), &one.plugins));
    let projects = config.tenants.iter().flat_map(|(tenant, of)| {
        let place = move |name: &String| format!("tenants.{tenant}.projects.{name}");
        of.projects.iter().map(move |(name, one)| (place(name), place(name), &one.plugins))
    });
    let brings = |plugin: &str| loaded.stage.iter().any(|stage| stage.plugin == plugin && stage.may_bring());
    for (place, whose, plugins) in keys.chain(issuers).chain(known).chain(projects) {
        wrong.look(&place, &["pipeline.stage"], || match plugins.iter().flatten().find(|name| !brings(name)) {
            Some(name) => bail!("{whose}: {}", brings_nothing(name)),
            None => Ok(()),
        });
    }
}

fn brings_nothing(name: &str) -> String {
    format!("`plugins` is about tools, retrievers and memories; `{name}` is none, and runs for all callers")
}

pub(super) fn groups(names: Option<&[String]>) -> anyhow::Result<Option<Vec<Group>>> {
    let group = |name: &String| {
        Group::ALL.into_iter().find(|group| group.as_str() == name).with_context(|| {
            let known: Vec<&str> = Group::ALL.iter().map(|group| group.as_str()).collect();
            format!("there are no endpoints `{name}`; there are: {}", known.join(", "))
        })
    };
    names.map(|names| names.iter().map(group).collect()).transpose()
}

/// A moment: a date and time with an offset (RFC 3339), or a date alone for its start in UTC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Expiry(pub SystemTime);

impl Expiry {
    /// As in the config.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        parse(text).map(Self)
    }
}

impl<'de> Deserialize<'de> for Expiry {
    /// As a TOML date or as text.
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = match toml::Value::deserialize(deserializer)? {
            toml::Value::String(text) => text,
            toml::Value::Datetime(time) => time.to_string(),
            other => other.to_string(),
        };
        let wrong = || format!("`{text}` is no moment; write it as \"2027-01-31\" or \"2027-01-31T18:00:00Z\"");
        parse(&text).map(Self).ok_or_else(|| serde::de::Error::custom(wrong()))
    }
}

fn parse(text: &str) -> Option<SystemTime> {
    let time: toml::value::Datetime = text.parse().ok()?;
    let date = time.date?;
    let seconds = match (time.time, time.offset) {
        (None, None) => 0,
        (Some(time), Some(offset)) => {
            let minutes = match offset {
                toml::value::Offset::Z => 0,
                toml::value::Offset::Custom { minutes } => i64::from(minutes),
            };
            let [hour, minute, second] =
                [Some(time.hour), Some(time.minute), time.second].map(|part| i64::from(part.unwrap_or(0)));
            hour * 3600 + minute * 60 + second - minutes * 60
        }
        // Whose midnight?
        _ => return None,
    };
    let since = days(i64::from(date.year), i64::from(date.month), i64::from(date.day)) * 86_400 + seconds;
    let since = Duration::from_secs(u64::try_from(since).ok()?);
    SystemTime::UNIX_EPOCH.checked_add(since)
}

/// Days since 1970-01-01 in the Gregorian calendar, with years that begin in March, so that a leap day is the last
/// of its year.
fn days(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let day_of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    year * 365 + year / 4 - year / 100 + year / 400 + day_of_year - 719_468
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds(text: &str) -> Option<u64> {
        parse(text).map(|time| time.duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs())
    }

    #[test]
    fn moments_are_dates_or_times_with_an_offset() {
        for (text, since) in [
            ("1970-01-01", 0),
            ("2000-02-29", 951_782_400),
            ("2026-11-21", 1_795_219_200),
            ("2026-11-21T14:00:00Z", 1_795_269_600),
            ("2026-11-21T14:00:00+02:00", 1_795_262_400),
            ("2100-03-01T00:00:00.5Z", 4_107_542_400),
        ] {
            assert_eq!(seconds(text), Some(since), "{text}");
        }
        for wrong in ["2026-11-21T14:00:00", "14:00:00", "2026-02-30", "soon", "1969-12-31", ""] {
            assert_eq!(seconds(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn a_key_is_checked_against_what_there_is() {
        let with = |more: &str| {
            let hash = "0".repeat(64);
            Config::parse(&format!("[[keys]]\nname = \"k\"\nhash = \"blake3:{hash}\"\n{more}"))
        };
        let key = with(
            "expires = 2027-01-31\nmodels = [\"tidegate-starter\", \"auto\"]\nendpoints = [\"chat\"]\nplugins = []",
        )
        .unwrap();
        assert_eq!(key.keys[0].expires, with("expires = \"2027-01-31\"").unwrap().keys[0].expires);
        assert_eq!(key.keys[0].groups().unwrap(), Some(vec![Group::Chat]));
        for (more, why) in [
            ("project_role = \"admin\"", "`project`"),
            ("project_role = \"admin\"\nproject = \"x\"\nadmin = true\n[tenants.k.projects.x]", "bound to a project"),
            ("project_role = \"admin\"\nrole = \"admin\"", "keep one"),
            ("models = [\"no-such\"]", "there are: tidegate-starter"),
            ("models = [\"auto\"]", "could choose"),
            ("plugins = [\"no-such\"]", "there are: calculator"),
            (
                "plugins = [\"g\"]\n[[pipeline.stage]]\nplugin = \"g\"\nstages = [\"prompt-guard\"]",
                "runs for all callers",
            ),
            ("plugins = [\"pii-guard\"]", "runs for all callers"),
            ("endpoints = [\"chats\"]", "there are: chat, completions"),
            ("expires = \"tomorrow\"", "`tomorrow` is no moment"),
            ("expires = 5", "`5` is no moment"),
            ("limits = { requests_per_minute = 0 }", "`requests_per_minute` is 0"),
            ("limits = { tokens_per_minute = 1000 }", "is taken for 1024"),
            ("limits = { request_per_minute = 1 }", "did you mean `requests_per_minute`"),
        ] {
            let error = format!("{:#}", with(more).unwrap_err());
            assert!(error.contains(why), "{more}: {error}");
        }
    }
}
