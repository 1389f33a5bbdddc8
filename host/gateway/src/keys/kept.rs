//! A key as the store keeps it: what it says, and which of several of one name is the one that counts.

use crate::config::{Expiry, KeyConfig};
use serde_json::{Map, Value, json};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tidegate_store::KeptKey;

/// Of the keys of that name which nobody has taken back, the one that the others gave way to: it ends last, if at all. The
/// time when it was made does not say so, since several gateways made them, each by its own clock; it decides between those
/// that end together.
pub(super) fn newest(all: Vec<KeptKey>, name: &str) -> Option<KeptKey> {
    let valid = all.into_iter().filter(|key| key.name == name && key.revoked_ms.is_none());
    valid.max_by_key(|key| (key.expires_ms.unwrap_or(u64::MAX), key.created_ms))
}

pub(super) fn has_ended(key: &KeyConfig) -> bool {
    key.expires.is_some_and(|end| end.0 <= SystemTime::now())
}

pub(super) fn parsed(key: &KeptKey) -> anyhow::Result<KeyConfig> {
    let mut parsed = entry(&serde_json::from_str(&key.settings)?, &key.hash)?;
    parsed.expires = key.expires_ms.map(|ms| Expiry(UNIX_EPOCH + Duration::from_millis(ms)));
    // A newer program may know of more. What callers and budgets are made of must not fail for all because of one.
    parsed.groups()?;
    parsed.budget.map(|budget| budget.to_budget(&parsed.name)).transpose()?;
    Ok(parsed)
}

pub(super) fn entry(settings: &Map<String, Value>, hash: &str) -> anyhow::Result<KeyConfig> {
    let mut settings = settings.clone();
    settings.insert("hash".into(), hash.into());
    Ok(serde_json::from_value(Value::Object(settings))?)
}

pub(super) fn shown(key: &KeptKey) -> Value {
    let mut shown = json!({
        "object": "api_key", "name": key.name, "tenant": key.tenant, "created_at": key.created_ms / 1000,
        "created_by": key.created_by, "expires_at": key.expires_ms.map(|ms| ms / 1000),
        "revoked_at": key.revoked_ms.map(|ms| ms / 1000),
    });
    let settings: Value = serde_json::from_str(&key.settings).unwrap_or_default();
    for field in [
        "project",
        "class",
        "weight",
        "admin",
        "role",
        "project_role",
        "models",
        "plugins",
        "endpoints",
        "limits",
        "budget",
    ] {
        if !settings[field].is_null() {
            shown[field] = settings[field].clone();
        }
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_key_is_the_one_that_ends_last_whatever_clocks_said() {
        let key = |hash: &str, created_ms, expires_ms| KeptKey {
            name: "a".into(),
            tenant: "t".into(),
            hash: hash.into(),
            settings: "{}".into(),
            created_ms,
            created_by: "root".into(),
            expires_ms,
            revoked_ms: None,
        };
        let revoked = KeptKey { revoked_ms: Some(9), ..key("revoked", 9, None) };
        let other = KeptKey { name: "b".into(), ..key("other", 9, None) };
        for (all, expected) in [
            // A gateway whose clock is ahead made the first.
            (vec![key("old", 8, Some(20)), key("new", 5, None)], Some("new")),
            (vec![key("old", 8, Some(20)), key("new", 5, Some(30))], Some("new")),
            (vec![key("new", 8, Some(30)), key("old", 5, Some(30))], Some("new")),
            (vec![key("ended", 1, Some(2))], Some("ended")),
            (vec![], None),
        ] {
            let all = all.into_iter().chain([revoked.clone(), other.clone()]).collect();
            assert_eq!(newest(all, "a").map(|key| key.hash).as_deref(), expected);
        }
    }
}
