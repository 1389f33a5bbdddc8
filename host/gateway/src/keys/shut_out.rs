//! Keys that were made while the server ran and that its config lets in no more: it has their project no longer, or a key, an
//! issuer or a certificate of their own name, which limits, budgets and usage go by. Whoever changed the config may not have
//! wanted that, so it is said wherever they may look.

use super::Taken;
use super::kept::{has_ended, parsed};
use crate::config::KeyConfig;
use std::collections::BTreeSet;

/// Their names.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct ShutOut {
    /// Of those whose project is gone.
    projects: BTreeSet<String>,
    /// Of those whose name the config has.
    names: BTreeSet<String>,
}

impl ShutOut {
    pub(super) fn warn(&self) {
        for (why, keys) in self.reasons() {
            tracing::warn!("keys that were made here let nobody in, since the config has {why}: {keys}");
        }
    }

    /// A line for each reason, as a reload answers.
    pub(crate) fn facts(&self) -> impl Iterator<Item = String> {
        self.reasons().map(|(why, keys)| format!("keys      that let nobody in, since the config has {why}: {keys}"))
    }

    fn reasons(&self) -> impl Iterator<Item = (&'static str, String)> {
        let all = [("their project no longer", &self.projects), ("their name itself", &self.names)];
        let named = |names: &BTreeSet<String>| names.iter().map(String::as_str).collect::<Vec<_>>().join(", ");
        all.into_iter().filter(|(_, names)| !names.is_empty()).map(move |(why, names)| (why, named(names)))
    }
}

impl Taken {
    /// Whether the config itself has somebody of that name.
    pub(super) fn is_of_config(&self, name: &str) -> bool {
        let Self { config, .. } = self;
        config.keys.iter().map(|key| &key.name).chain(config.auth.names()).any(|known| known == name)
    }

    /// The kept keys that would let somebody in, were it not for the config. Whose project was archived here is none of them:
    /// that is what archiving is for.
    pub(super) fn shut_out(&self) -> ShutOut {
        let whole = self.whole();
        // Those that were made here have no dot; one that was archived may be forgotten.
        let is_of_config = |id: &str| id.contains('.');
        let is_gone = |key: &KeyConfig| {
            let gone = |project: &str| is_of_config(project) && whole.project(key.tenant(), project).is_err();
            key.project.as_deref().is_some_and(gone)
        };
        let valid = self.kept.iter().filter(|key| key.revoked_ms.is_none()).filter_map(|key| parsed(key).ok());
        let mut all = ShutOut::default();
        // One that was rotated is there twice for a while.
        for key in valid.filter(|key| !has_ended(key)) {
            if self.is_of_config(&key.name) {
                all.names.insert(key.name);
            } else if is_gone(&key) {
                all.projects.insert(key.name);
            }
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use serde_json::json;
    use tidegate_store::{KeptKey, KeptProject};

    fn key(name: &str, project: &str) -> KeptKey {
        let settings = json!({"name": name, "tenant": "acme", "project": project}).to_string();
        let hash = format!("blake3:{}", blake3::hash(name.as_bytes()));
        KeptKey {
            name: name.to_owned(),
            tenant: "acme".to_owned(),
            hash,
            settings,
            created_ms: 1,
            created_by: "ann".to_owned(),
            expires_ms: None,
            revoked_ms: None,
        }
    }

    #[test]
    fn keys_whose_project_is_in_the_config_no_more_are_named() {
        let ended = KeptKey { expires_ms: Some(1), ..key("ended", "proj_acme.gone") };
        let revoked = KeptKey { revoked_ms: Some(1), ..key("revoked", "proj_acme.gone") };
        let of = [
            key("web", "proj_acme.web"),
            key("lost", "proj_acme.gone"),
            key("done", "proj_1"),
            key("forgotten", "proj_2"),
        ];
        let archived = KeptProject {
            id: "proj_1".to_owned(),
            tenant: "acme".to_owned(),
            settings: json!({"name": "done"}).to_string(),
            created_ms: 1,
            created_by: "ann".to_owned(),
            archived_ms: Some(2),
        };
        let config = Config::parse("[tenants.acme.projects.web]\n[pipeline]\n").unwrap();
        let kept = of.into_iter().chain([key("lost", "proj_acme.gone"), ended, revoked]).collect();
        let all = Taken { config, kept, projects: vec![archived] }.shut_out();
        assert_eq!(all, ShutOut { projects: BTreeSet::from(["lost".to_owned()]), ..ShutOut::default() });
    }

    #[test]
    fn keys_whose_name_the_config_has_are_named_and_let_nobody_in() {
        let hash = "0".repeat(64);
        let text = format!(
            "[tenants.acme.projects.web]\n[pipeline]\n[[keys]]\nname = \"shop\"\nhash = \"blake3:{hash}\"\n\
             [[auth.certificate]]\nname = \"batch\"\nhost = \"batch.example.com\"\n\
             [server.tls]\ncert = \"c\"\nkey = \"k\"\nclient_ca = \"a\"\n"
        );
        let config = Config::parse(&text).unwrap();
        let kept = ["shop", "batch", "other"].map(|name| key(name, "proj_acme.web")).to_vec();
        let taken = Taken { config, kept, projects: Vec::new() };
        let names: Vec<String> = taken.whole().keys.into_iter().map(|key| key.name).collect();
        assert_eq!(names, ["shop", "other"]);
        let names = ["shop", "batch"].map(str::to_owned).into();
        assert_eq!(taken.shut_out(), ShutOut { names, ..ShutOut::default() });
    }
}
