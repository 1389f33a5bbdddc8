//! `[auth.login]`: how people log in with a browser.

use super::{Config, variable};
use anyhow::{Context, bail};
use serde::Deserialize;
use tidegate_identity::LoginTerms;

/// The issuer that people log in at, and for how long.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[serde(deny_unknown_fields)]
pub struct LoginConfig {
    /// One of `[[auth.issuer]]`, by its name here.
    pub issuer: String,
    /// What it knows this server by.
    pub client_id: String,
    /// Environment variable that holds the client's secret; absent for a public client.
    pub client_secret_env: Option<String>,
    /// That secret itself, from whoever embeds this program; a file names the variable.
    #[serde(skip)]
    pub client_secret: Option<String>,
    /// `https://host[:port]`: where browsers reach this server.
    pub public_url: String,
    /// What is asked for; `openid` must be among it.
    #[serde(default = "openid")]
    pub scopes: Vec<String>,
    /// A login that is not used for this long is over.
    #[serde(default = "an_hour")]
    pub idle_minutes: u64,
    /// Used or not, it is over after this.
    #[serde(default = "half_a_day")]
    pub longest_minutes: u64,
}

fn openid() -> Vec<String> {
    vec!["openid".into()]
}

fn an_hour() -> u64 {
    60
}

fn half_a_day() -> u64 {
    12 * 60
}

impl LoginConfig {
    pub(super) fn check(&self, config: &Config) -> anyhow::Result<()> {
        if !config.auth.issuer.iter().any(|issuer| issuer.name == self.issuer) {
            bail!("there is no [[auth.issuer]] with the name `{}`", self.issuer);
        }
        if config.store.is_none() {
            bail!("nothing keeps who is logged in; add [store] with a `path`");
        }
        let host = self.origin().strip_prefix("https://").unwrap_or_default();
        if host.is_empty() || host.contains(['/', '?', '#', '@', ' ']) {
            bail!(
                "`public_url` is {:?}; it must be https:// and a host, since browsers take these cookies over TLS only",
                self.public_url
            );
        }
        // It is compared with `Origin`, byte for byte.
        let is_as_browsers_write = |c: char| c.is_ascii() && !c.is_ascii_uppercase();
        if !host.chars().all(is_as_browsers_write) || host.ends_with(":443") {
            bail!(
                "`public_url` is {:?}; write it as browsers do in `Origin`: in small letters, other scripts as `xn--...`, and \
                 without the port 443",
                self.public_url
            );
        }
        if !self.scopes.iter().any(|scope| scope == "openid") {
            bail!("`scopes` must have `openid`, or the issuer gives no ID token");
        }
        if self.idle_minutes == 0 || self.longest_minutes < self.idle_minutes {
            bail!("`idle_minutes` must be 1 at least, and `longest_minutes` no less than it");
        }
        Ok(())
    }

    /// As browsers write it in `Origin`.
    pub(crate) fn origin(&self) -> &str {
        self.public_url.trim_end_matches('/')
    }

    /// As the flow takes them.
    pub(crate) fn terms(&self) -> anyhow::Result<LoginTerms> {
        let named = || self.client_secret_env.as_deref().map(variable).transpose();
        let secret = self.client_secret.clone().map_or_else(named, |secret| Ok(Some(secret)));
        Ok(LoginTerms {
            issuer: self.issuer.clone(),
            client_id: self.client_id.clone(),
            client_secret: secret.context("in auth.login.client_secret_env")?,
            redirect_uri: format!("{}/auth/callback", self.origin()),
            scopes: self.scopes.clone(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_login_needs_an_issuer_a_store_and_tls() {
        let issuer = "[store]\npath = \"d\"\n[[auth.issuer]]\nname = \"corp\"\nissuer = \"https://i.example\"\n\
                      audience = [\"us\"]\ntenant = \"t\"\n[auth.login]\nclient_id = \"c\"\n";
        let good = "issuer = \"corp\"\npublic_url = \"https://ai.example\"";
        Config::parse(&format!("{issuer}{good}")).unwrap();
        let why = |text: &str| format!("{:#}", Config::parse(text).unwrap_err());
        for (from, to, word) in [
            ("\"corp\"\npublic", "\"other\"\npublic", "`other`"),
            ("https://ai", "http://ai", "public_url"),
            ("ai.example", "ai.example/path", "public_url"),
            ("ai.example", "AI.example", "small letters"),
            ("ai.example", "k\u{fc}ste.example", "xn--"),
            ("ai.example", "ai.example:443", "port 443"),
            ("public_url", "scopes = [\"email\"]\npublic_url", "openid"),
            ("public_url", "idle_minutes = 0\npublic_url", "idle_minutes"),
            ("public_url", "longest_minutes = 5\npublic_url", "longest_minutes"),
        ] {
            let text = format!("{issuer}{}", good.replace(from, to));
            assert!(why(&text).contains(word), "{to}: {}", why(&text));
        }
        let without = format!("{issuer}{good}").replace("[store]\npath = \"d\"\n", "");
        assert!(why(&without).contains("[store]"));
    }
}
