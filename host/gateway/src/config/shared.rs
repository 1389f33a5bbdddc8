//! `[shared]`: what several gateways share, and through which server.

use super::{at_start, variable};
use crate::artifact::registry::certificates;
use anyhow::{Context, bail};
use serde::Deserialize;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// `[shared]`
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[serde(deny_unknown_fields)]
pub struct SharedConfig {
    /// A Valkey or Redis server: `redis://host:6379/0`, or `rediss://` for TLS; a user may be named, a password not.
    pub url: String,
    /// Environment variable with the password.
    pub password_env: Option<String>,
    /// PEM of who signs the server's certificate, in place of the public authorities.
    pub ca: Option<PathBuf>,
    /// What was in that file when the config was read, or why nobody knows. Who shares nothing needs none.
    #[serde(skip)]
    pub(crate) authority: Option<Result<Vec<u8>, String>>,
    /// What the names of all keys there begin with, so that others may use the server too.
    #[serde(default = "our_name")]
    pub prefix: String,
    /// Gateways that share. While the server is away, each goes on with this part of the limits.
    #[serde(default = "a_pair")]
    pub gateways: u32,
    /// How long a request waits for the server before it counts as away.
    #[serde(default = "a_moment")]
    pub deadline_ms: u64,
    /// How long a gateway may be silent before what it holds is taken for ended.
    #[serde(default = "a_while")]
    pub lease_ms: u64,
}

fn our_name() -> String {
    "tidegate".into()
}

fn a_pair() -> u32 {
    2
}

fn a_moment() -> u64 {
    50
}

fn a_while() -> u64 {
    10_000
}

/// Renewed three times while it lasts, each time over a network.
const SHORTEST_LEASE_MS: u64 = 500;

impl SharedConfig {
    pub(super) fn check(&self) -> anyhow::Result<()> {
        let authority = self.url.split_once("://").map_or("", |(_, rest)| rest.split('/').next().unwrap_or(rest));
        if authority.rsplit_once('@').is_some_and(|(user, _)| user.contains(':')) {
            bail!("shared.url holds a password; put that into an environment variable and name it in `password_env`");
        }
        let is_secured = ["rediss://", "valkeys://"].iter().any(|scheme| self.url.starts_with(scheme));
        if self.ca.is_some() && !is_secured {
            bail!(
                "shared has `ca`, and no certificate is asked for at {}; write rediss:// where there is one",
                self.url
            );
        }
        if self.gateways == 0 {
            bail!("shared.gateways is 0; write how many gateways share, this one included");
        }
        if self.prefix.is_empty() || self.prefix.contains(['{', '}']) {
            bail!("shared.prefix is {:?}; it must be a word without braces", self.prefix);
        }
        if self.deadline_ms == 0 {
            bail!("shared.deadline_ms is 0, so that no answer would come in time; the default is {}", a_moment());
        }
        if self.lease_ms < SHORTEST_LEASE_MS.max(self.deadline_ms.saturating_mul(4)) {
            bail!(
                "shared.lease_ms is {}; it must be at least {SHORTEST_LEASE_MS}, and four times `deadline_ms`, or a slow \
                 answer would end what a gateway holds",
                self.lease_ms
            );
        }
        Ok(())
    }

    pub(super) fn resolve_paths(&mut self, folder: &Path) {
        self.ca = self.ca.take().map(|file| folder.join(file));
    }

    /// Reads the file of `ca`.
    pub(super) fn read(&mut self, running: Option<&Self>) {
        let Some(file) = &self.ca else { return };
        let held = running
            .filter(|running| running.ca == self.ca)
            .and_then(|running| running.authority.as_ref()?.as_ref().ok());
        let pem = |file: &Path| certificates(file).and_then(|_| Ok(std::fs::read(file)?));
        let read = at_start::read("shared.ca", file, held, pem);
        self.authority = Some(read.map_err(|why| format!("{why:#}")));
    }

    /// The PEM of `ca`, where there is one.
    pub(crate) fn authority(&self) -> anyhow::Result<Option<&[u8]>> {
        match &self.authority {
            Some(Ok(pem)) => Ok(Some(pem)),
            Some(Err(why)) => bail!("{why}"),
            None if self.ca.is_some() => {
                bail!("shared.ca was not read: take the config from its file (`Config::load`)")
            }
            None => Ok(None),
        }
    }

    /// With the password from the environment.
    pub fn to_shared(&self) -> anyhow::Result<tidegate_shared::Config> {
        let password = self.password_env.as_deref().map(variable).transpose().context("in shared.password_env")?;
        Ok(tidegate_shared::Config {
            url: self.url.clone(),
            password,
            authority: self.authority()?.map(<[u8]>::to_vec),
            prefix: self.prefix.clone(),
            gateways: self.gateways,
            deadline: Duration::from_millis(self.deadline_ms),
            lease: Duration::from_millis(self.lease_ms),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::Config;
    use base64::Engine;
    use base64::engine::general_purpose::STANDARD;

    #[test]
    fn what_cannot_be_shared_is_refused_with_a_remedy() {
        let why = |more: &str| format!("{:#}", Config::parse(&format!("[shared]\n{more}\n")).unwrap_err());
        Config::parse("[shared]\nurl = \"rediss://gate@valkey.internal:6380/1\"\n").unwrap();
        assert!(why("url = \"redis://:secret@h\"").contains("password_env"));
        assert!(!why("url = \"redis://:secret@h\"").contains("secret@"));
        assert!(why("url = \"redis://h\"\ngateways = 0").contains("this one included"));
        assert!(why("url = \"redis://h\"\nprefix = \"a{b}\"").contains("without braces"));
        assert!(why("url = \"redis://h\"\nlease_ms = 100").contains("at least 500"));
        assert!(why("url = \"redis://h\"\ndeadline_ms = 5000").contains("four times"));
        assert!(why("url = \"redis://h\"\nca = \"ca.pem\"").contains("write rediss://"));
        Config::parse("[shared]\nurl = \"rediss://h\"\nca = \"ca.pem\"\n").unwrap();
    }

    /// As with `egress.ca`: what is shared with is not asked anew at a reload.
    #[test]
    fn a_reload_goes_on_with_the_authority_of_the_start() {
        let folder = tempfile::tempdir().unwrap();
        let (file, ca) = (folder.path().join("tidegate.toml"), folder.path().join("ca.pem"));
        std::fs::write(&file, "[shared]\nurl = \"rediss://h\"\nca = \"ca.pem\"\n").unwrap();
        let make = || rcgen::generate_simple_self_signed(vec!["one.example".into()]).unwrap().cert.der().to_vec();
        let put = |der: &[u8]| {
            let text = STANDARD.encode(der);
            std::fs::write(&ca, format!("-----BEGIN CERTIFICATE-----\n{text}\n-----END CERTIFICATE-----\n")).unwrap();
        };
        put(&make());
        let running = Config::load(&file).unwrap();
        let held = running.shared.as_ref().unwrap().to_shared().unwrap().authority;
        assert_eq!(held, Some(std::fs::read(&ca).unwrap()));
        put(&make());
        for _ in 0..2 {
            assert_eq!(Config::load_again(&file, &running).unwrap().shared, running.shared);
            std::fs::write(&ca, "no PEM").unwrap();
        }
        // A pipe would keep whoever reads it for ever.
        std::fs::remove_file(&ca).unwrap();
        assert!(std::process::Command::new("mkfifo").arg(&ca).status().unwrap().success());
        assert_eq!(Config::load_again(&file, &running).unwrap().shared, running.shared);
    }

    #[test]
    fn who_shares_needs_the_authority_and_nobody_else_does() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("tidegate.toml");
        let text = "[shared]\nurl = \"rediss://h\"\nca = \"ca.pem\"\n";
        std::fs::write(&file, text).unwrap();
        let why = |config: &Config| format!("{:#}", config.shared.as_ref().unwrap().to_shared().unwrap_err());
        assert!(why(&Config::load(&file).unwrap()).contains("cannot read"));
        std::fs::write(folder.path().join("ca.pem"), "no PEM").unwrap();
        let config = Config::load(&file).unwrap();
        assert!(
            why(&config).contains("shared.ca") && why(&config).contains("holds no certificate"),
            "{}",
            why(&config)
        );
        let checked = format!("{:#}", crate::check(&config).unwrap_err());
        assert!(checked.contains("holds no certificate"), "{checked}");
        // Of a text that is of no file nobody knows; the public authorities are no substitute.
        assert!(why(&Config::parse(text).unwrap()).contains("was not read"));
    }
}
