//! Who administers the server by a key.
//!
//! Invariant: no server is locked for good. Who has the last key that administers and does not end by itself cannot end it,
//! and the first that is made on a server without keys is such a one. What the config's keys say is the operator's, who can
//! change it.

use super::kept::has_ended;
use super::{Taken, invalid};
use crate::config::KeyConfig;
use tidegate_store::{KeptKey, KeptProject};
use tidegate_types::{Fault, Reject, RejectKind};

/// A valid key that administers.
struct Administrator {
    key: KeyConfig,
    /// It was made while the server ran.
    is_kept: bool,
}

impl Administrator {
    fn lasts(&self) -> bool {
        !self.is_kept || self.key.expires.is_none()
    }
}

impl Taken {
    /// Says of the keys and projects that the store has then whether enough administrators are left without those keys for
    /// which `ends` says so: one that lasts, or where none does, one at all. A server that has none to lose loses none.
    pub(super) fn keeps_an_administrator<F: Fn(&KeyConfig) -> bool + Send>(
        &self,
        ends: F,
    ) -> impl FnOnce(Vec<KeptKey>, Vec<KeptProject>) -> bool + Send + use<F> {
        let config = self.config.clone();
        move |kept, projects| {
            let all = Self { config, kept, projects }.administrators();
            let is_left = |known: &Administrator| !(known.is_kept && ends(&known.key));
            match all.iter().any(Administrator::lasts) {
                true => all.iter().any(|known| known.lasts() && is_left(known)),
                false => all.is_empty() || all.iter().any(is_left),
            }
        }
    }

    /// Refuses a first key with which the server would ask everybody for one, and nobody could make another that lasts.
    pub(super) fn check_administrated(&self, key: &KeyConfig) -> Result<(), Reject> {
        if key.admin && key.expires.is_none() || !self.administrators().is_empty() {
            return Ok(());
        }
        let message = "with its first key this server asks everybody for one, and nobody could administer it, or not for \
                       long; make an administrator's key first (`admin`: true, without `expires`)";
        Err(invalid(message.into()).at("admin"))
    }

    fn administrators(&self) -> Vec<Administrator> {
        let num_own = self.config.keys.len();
        let all = self.whole().keys.into_iter().enumerate();
        let all = all.map(|(i, key)| Administrator { key, is_kept: i >= num_own });
        all.filter(|known| known.key.admin && !has_ended(&known.key)).collect()
    }
}

pub(super) fn last_administrator(what: &str) -> Reject {
    let message =
        format!("`{what}` has the last administrator's key that does not expire; make another before you end it");
    Reject::new(RejectKind::Conflict, Fault::Client, message).code("last_administrator")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use serde_json::json;
    use tidegate_types::clock::unix_ms;

    fn kept(name: &str, expires_ms: Option<u64>) -> KeptKey {
        KeptKey {
            name: name.into(),
            tenant: name.into(),
            hash: format!("blake3:{}", blake3::hash(name.as_bytes())),
            settings: json!({"name": name, "admin": true}).to_string(),
            created_ms: 1,
            created_by: "root".into(),
            expires_ms,
            revoked_ms: None,
        }
    }

    /// A config with an administrator's key of that `expires`, where there is one.
    fn config(expires: Option<&str>) -> Config {
        let entry = |line: &str| {
            format!("[[keys]]\nname = \"own\"\nhash = \"blake3:{}\"\nadmin = true\n{line}\n", "0".repeat(64))
        };
        Config::parse(&format!("{}[pipeline]\n", expires.map(entry).unwrap_or_default())).unwrap()
    }

    #[test]
    fn the_last_key_that_administers_for_good_stays() {
        let soon = Some(unix_ms() + 60_000);
        for (own, all, ends, may) in [
            (None, vec![kept("a", None)], "a", false),
            (None, vec![kept("a", None), kept("b", None)], "a", true),
            (None, vec![kept("a", None), kept("b", soon)], "a", false),
            (None, vec![kept("a", None), kept("b", soon)], "b", true),
            (None, vec![kept("a", None), kept("b", Some(2))], "a", false),
            // As an older program has let it come to.
            (None, vec![kept("a", soon)], "a", false),
            (None, vec![kept("a", soon), kept("b", soon)], "a", true),
            (None, vec![kept("a", Some(2))], "a", true),
            (Some(""), vec![kept("a", None)], "a", true),
            (Some("expires = 2020-01-01"), vec![kept("a", None)], "a", false),
        ] {
            let names = format!("{own:?}: {all:?} without {ends}");
            let taken = Taken { config: config(own), kept: Vec::new(), projects: Vec::new() };
            assert_eq!(taken.keeps_an_administrator(|key| key.name == ends)(all, Vec::new()), may, "{names}");
        }
    }
}
