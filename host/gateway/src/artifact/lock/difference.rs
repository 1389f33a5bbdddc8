//! What an upgrade shows of a plugin: how what it is and asks for differs from what was locked.

use super::Entry;
use crate::artifact::manifest::Claims;
use semver::Version;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use tidegate_sandbox::stage::StageKind;

/// Where a config names no stages, one that is gone would be missed by nobody but whom it has guarded.
const GUARDS: [StageKind; 3] = [StageKind::PromptGuard, StageKind::StreamGuard, StageKind::OutputGuard];

/// What an upgrade must not widen unseen.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Asks {
    /// Where on the path it runs.
    pub stages: BTreeSet<String>,
    /// What it needs granted.
    pub capabilities: BTreeSet<String>,
    /// Whether it may change what it sees.
    pub mutates: bool,
    /// Whether it says that it is deterministic, which lets it begin configured and be shared by tenants; none in locks of
    /// before this was written down.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deterministic: Option<bool>,
    /// Text that it may withhold.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub holdback_bytes: Option<u32>,
}

impl Asks {
    /// What a plugin asks for.
    pub fn of(claims: &Claims) -> Self {
        Self {
            stages: claims.stages.iter().cloned().collect(),
            capabilities: claims.capabilities.keys().cloned().collect(),
            mutates: claims.mutates,
            deterministic: Some(claims.deterministic),
            holdback_bytes: claims.holdback_bytes,
        }
    }

    /// A stream guard that says nothing may withhold what the operator's limit allows.
    fn withheld(&self) -> u32 {
        let streams = self.stages.contains(StageKind::StreamGuard.as_str());
        if streams { self.holdback_bytes.unwrap_or(u32::MAX) } else { 0 }
    }
}

/// How one plugin differs from its entry.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Difference {
    /// A line for each difference, with `+` where it is one that widens.
    pub lines: Vec<String>,
    /// Whether it asks for more, guards less, or is vouched for by fewer.
    pub widens: bool,
}

impl Entry {
    /// All that it asks for, as of one that nobody has looked at before.
    pub fn from_nothing(&self) -> Difference {
        let asks = Asks { deterministic: Some(false), ..Asks::default() };
        let nothing = Self { asks, signed_by: Vec::new(), ..self.clone() };
        nothing.difference(self)
    }

    /// From this entry to a newer one.
    pub fn difference(&self, new: &Self) -> Difference {
        let mut found = Difference::default();
        if self.source == new.source {
            found.turned_back(self, new);
        }
        let (old, asks) = (&self.asks, &new.asks);
        found.stages(&old.stages, &asks.stages);
        found.grants(&old.capabilities, &asks.capabilities);
        if old.mutates != asks.mutates {
            found.say(asks.mutates, &format!("may change what it sees: {} -> {}", old.mutates, asks.mutates));
        }
        let is = asks.deterministic.unwrap_or_default();
        // Where an old lock does not say it, there is nothing new while the component is the same.
        let was = old.deterministic.unwrap_or(is && self.component == new.component);
        if was != is {
            found.say(is, &format!("says that it is deterministic: {was} -> {is}"));
        }
        if old.withheld() != asks.withheld() {
            let shown =
                |bytes: u32| if bytes == u32::MAX { "it does not say how many".into() } else { bytes.to_string() };
            let line = format!("bytes withheld: {} -> {}", shown(old.withheld()), shown(asks.withheld()));
            found.say(asks.withheld() > old.withheld(), &line);
        }
        for gone in self.signed_by.iter().filter(|key| !new.signed_by.contains(key)) {
            found.say(true, &format!("no longer signed by {gone}"));
        }
        for added in new.signed_by.iter().filter(|key| !self.signed_by.contains(key)) {
            found.say(false, &format!("signed by {added}"));
        }
        found
    }
}

impl Difference {
    /// What leads to another plugin, or to one that was there before, is not what the source was locked for: signed once, it may be
    /// known for a fault by now. Who wants it says so in the config.
    fn turned_back(&mut self, old: &Entry, new: &Entry) {
        if old.name != new.name {
            self.say(true, &format!("another plugin: {} -> {}", old.name, new.name));
        }
        let what = match (Version::parse(&old.version), Version::parse(&new.version)) {
            (Ok(was), Ok(is)) => is.cmp_precedence(&was).is_lt().then_some("an older version"),
            // Three numbers of which one begins with a zero, say: which is the older one is not known.
            _ => (new.version != old.version).then_some("another version"),
        };
        if let Some(what) = what {
            self.say(true, &format!("{what}: {} -> {}", old.version, new.version));
        }
    }

    fn stages(&mut self, old: &BTreeSet<String>, new: &BTreeSet<String>) {
        new.difference(old).for_each(|added| self.say(true, &format!("stage {added}")));
        for gone in old.difference(new) {
            if GUARDS.iter().any(|guard| guard.as_str() == gone) {
                self.say(true, &format!("no longer guards as {gone}"));
            } else {
                self.say(false, &format!("without the stage {gone}"));
            }
        }
    }

    fn grants(&mut self, old: &BTreeSet<String>, new: &BTreeSet<String>) {
        new.difference(old).for_each(|added| self.say(true, &format!("grant {added}")));
        old.difference(new).for_each(|gone| self.say(false, &format!("without the grant {gone}")));
    }

    fn say(&mut self, more: bool, what: &str) {
        self.lines.push(format!("{} {what}", if more { '+' } else { ' ' }));
        self.widens |= more;
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::entry;
    use super::*;
    use crate::artifact::digest::Digest;
    use crate::artifact::lock::Lock;

    #[test]
    fn what_asks_for_more_is_told_from_what_asks_for_less() {
        let widens = |change: &dyn Fn(&mut Entry)| {
            let mut new = entry();
            change(&mut new);
            let (there, back) = (entry().difference(&new), new.difference(&entry()));
            assert_eq!((there.lines.len(), back.lines.len()), (1, 1), "{there:?} {back:?}");
            (there.widens, back.widens)
        };
        assert_eq!(entry().difference(&entry()), Difference::default());
        assert_eq!(widens(&|e| e.asks.capabilities.extend(["http".to_owned()])), (true, false));
        assert_eq!(widens(&|e| e.asks.stages.extend(["observer".to_owned()])), (true, false));
        assert_eq!(widens(&|e| e.asks.stages.extend(["prompt-guard".to_owned()])), (true, true), "it guards less then");
        assert_eq!(widens(&|e| e.asks.mutates = false), (false, true));
        assert_eq!(widens(&|e| e.asks.deterministic = Some(true)), (true, false));
        assert_eq!(widens(&|e| e.asks.holdback_bytes = Some(128)), (true, false));
        assert_eq!(widens(&|e| e.asks.holdback_bytes = None), (true, false));
        assert_eq!(widens(&|e| e.signed_by.clear()), (true, false));
        assert_eq!(widens(&|e| e.name = "loud".into()), (true, true));
    }

    #[test]
    fn an_older_version_in_the_same_place_widens_and_one_that_the_config_asks_for_does_not() {
        let of = |version: &str| Entry { version: version.into(), ..entry() };
        for (old, new, what) in [
            ("0.2.0", "0.10.0", None),
            ("0.10.0", "0.2.0", Some("an older version")),
            ("1.0.0", "1.0.0-rc.1", Some("an older version")),
            ("1.0.0", "1.0.0", None),
            ("1.0.0+b", "1.0.0+a", None),
            ("1.0.0", "1.01.0", Some("another version")),
        ] {
            let found = of(old).difference(&of(new));
            let expected = Vec::from_iter(what.map(|what| format!("+ {what}: {old} -> {new}")));
            assert_eq!((found.lines, found.widens), (expected, what.is_some()), "{old} {new}");
            let asked_for = Entry { source: "dist/hush-old.wasm".into(), ..of(new) };
            assert_eq!(of(old).difference(&asked_for), Difference::default(), "{old} {new}");
        }
    }

    #[test]
    fn a_lock_that_does_not_say_whether_a_plugin_is_deterministic_is_read_and_only_another_component_widens_it() {
        let folder = tempfile::tempdir().unwrap();
        let config = folder.path().join("tidegate.toml");
        let file = Lock::new(vec![entry()]).save(&config).unwrap();
        let text = std::fs::read_to_string(&file).unwrap();
        let older = text.replace("deterministic = false\n", "");
        assert_ne!(text, older);
        std::fs::write(&file, older).unwrap();
        let old = Lock::load(&config).unwrap().unwrap().plugins.remove(0);
        let mut new = entry();
        new.asks.deterministic = Some(true);
        assert_eq!(old.difference(&new), Difference::default());
        new.component = Digest::of(b"another");
        assert!(old.difference(&new).widens);
    }

    #[test]
    fn one_that_is_new_shows_all_that_it_asks_for() {
        let shown = entry().from_nothing().lines;
        let parts = ["+ stage stream-guard", "+ grant kv", "+ may change what it sees", "+ bytes withheld: 0 -> 64"];
        for part in parts {
            assert!(shown.iter().any(|line| line.starts_with(part)), "{part} in {shown:?}");
        }
    }
}
