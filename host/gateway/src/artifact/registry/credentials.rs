//! Who asks a registry: from the environment for the one host that it names, else from docker's own file, which
//! `docker login`, `oras login` and others write.

use crate::config::variable;
use anyhow::{Context, bail};
use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::PathBuf;

/// A name and a password or token.
#[derive(Clone)]
pub(super) struct Credentials {
    user: String,
    password: String,
}

impl Credentials {
    /// Those for a host, where there are some.
    pub(super) fn of(host: &str) -> anyhow::Result<Option<Self>> {
        if variable("TIDEGATE_REGISTRY_HOST").is_ok_and(|named| named == host) {
            let (user, password) = (variable("TIDEGATE_REGISTRY_USER")?, variable("TIDEGATE_REGISTRY_PASSWORD")?);
            return Ok(Some(Self { user, password }));
        }
        let Some(file) = docker_config() else { return Ok(None) };
        let Ok(text) = std::fs::read_to_string(&file) else { return Ok(None) };
        from_docker(&text, host).with_context(|| format!("in {}", file.display()))
    }

    /// The value of an `Authorization` header.
    pub(super) fn basic(&self) -> String {
        format!("Basic {}", BASE64.encode(format!("{}:{}", self.user, self.password)))
    }
}

#[derive(Deserialize)]
struct DockerConfig {
    #[serde(default)]
    auths: BTreeMap<String, DockerAuth>,
}

#[derive(Deserialize)]
struct DockerAuth {
    #[serde(default)]
    auth: String,
    /// In the place of a password, which then is empty.
    #[serde(default, rename = "identitytoken")]
    identity_token: String,
}

fn docker_config() -> Option<PathBuf> {
    let folder = std::env::var_os("DOCKER_CONFIG").map(PathBuf::from);
    folder.or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".docker"))).map(|f| f.join("config.json"))
}

fn from_docker(text: &str, host: &str) -> anyhow::Result<Option<Credentials>> {
    let config: DockerConfig = serde_json::from_str(text).context("it is no docker config")?;
    let name = if host == "docker.io" { "https://index.docker.io/v1/" } else { host };
    let Some(found) = config.auths.get(name) else { return Ok(None) };
    if !found.identity_token.is_empty() {
        bail!(
            "the entry of {host} is an identity token, which is not read; set TIDEGATE_REGISTRY_HOST, TIDEGATE_REGISTRY_USER \
             and TIDEGATE_REGISTRY_PASSWORD, or log in there with a name and a password or access token"
        );
    }
    if found.auth.is_empty() {
        return Ok(None);
    }
    let both = BASE64.decode(&found.auth).ok().and_then(|bytes| String::from_utf8(bytes).ok());
    let both = both.as_deref().and_then(|both| both.split_once(':'));
    let (user, password) = both.with_context(|| format!("the entry of {host} is not base64 of `user:password`"))?;
    Ok(Some(Credentials { user: user.to_owned(), password: password.trim_end_matches('\0').to_owned() }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dockers_file_gives_a_hosts_own_credentials_only() {
        let text = r#"{"auths": {"a:5000": {"auth": "dTpwOnE="}, "b": {}, "c": {"auth": "?"}}, "credsStore": "x"}"#;
        let found = from_docker(text, "a:5000").unwrap().unwrap();
        assert_eq!(
            (found.user.as_str(), found.password.as_str(), found.basic().as_str()),
            ("u", "p:q", "Basic dTpwOnE=")
        );
        assert!(from_docker(text, "a").unwrap().is_none() && from_docker(text, "b").unwrap().is_none());
        assert!(from_docker(text, "c").is_err() && from_docker("[", "a").is_err());
    }

    /// As Azure's: the password is empty.
    #[test]
    fn an_identity_token_is_refused_by_its_name() {
        let text = r#"{"auths": {"a": {"auth": "MDAwMDo=", "identitytoken": "t0k"}}}"#;
        let why = from_docker(text, "a").err().unwrap().to_string();
        assert!(why.contains("the entry of a is an identity token") && !why.contains("t0k"), "{why}");
        assert!(why.contains("TIDEGATE_REGISTRY_PASSWORD"), "{why}");
    }
}
