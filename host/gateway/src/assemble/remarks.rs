//! What an operator should know of a stage that has loaded: where content may go, what it will be halted for, what it cannot have,
//! and what it was granted for nothing. The start says it, and `tidegate check`.

use super::stages::holdback;
use crate::config::{Config, GrantsConfig, ModelConfig, PluginsConfig, StageConfig};
use std::collections::BTreeSet;
use tidegate_sandbox::Plugin;
use tidegate_sandbox::stage::StageKind;

/// The remarks on one stage. `shares_kv`: another stage is of the same plugin, and has the same `kv`.
pub(super) fn of(
    stage: &StageConfig,
    plugin: &Plugin,
    kinds: &[StageKind],
    config: &Config,
    shares_kv: bool,
) -> impl Iterator<Item = String> {
    let used = plugin.capabilities();
    let sees = kinds.iter().any(|kind| kind.sees_content());
    let leaves = leaving(&stage.grants, used, &config.models, sees, shares_kv);

    let (promised, most) = (plugin.descriptor().holdback_bytes.unwrap_or(0) as usize, holdback(stage));
    let withholds = (kinds.contains(&StageKind::StreamGuard) && promised > most).then(|| {
        format!(
            "MAY WITHHOLD {promised} BYTES OF A STREAM, which ends a closed stage's answer at more than \
             limits.holdback_bytes = {most}"
        )
    });

    // Without an import of `secrets`, as for those that are filled into requests, the descriptor may lack it.
    let sends_secrets = plugin.descriptor().capabilities.contains_key("secrets");
    let undeclared = (!stage.grants.secrets.is_empty() && used.contains("http") && !sends_secrets).then(|| {
        "is denied each secret: its descriptor does not name `secrets` among its `capabilities`, which is its author's to \
         mend"
            .to_owned()
    });

    let beyond = beyond(stage, plugin, &config.plugins);
    let idle = unused(&stage.grants, used, sends_secrets, sees).join(", ");
    let idle = (!idle.is_empty()).then(|| format!("uses nothing of these grants, which can go: {idle}"));
    leaves.into_iter().chain(withholds).chain(undeclared).chain(beyond).chain(idle)
}

/// Of more instances than there may be of all plugins that wait, or do not, as this one. What it keeps in the store it waits for,
/// which `check` has not, and so neither has a plugin that it loads.
fn beyond(stage: &StageConfig, plugin: &Plugin, plugins: &PluginsConfig) -> Option<String> {
    let asked = stage.limits.instances?;
    let waits = plugin.waits() || plugins.is_in_store(plugin.capabilities());
    let (key, most) =
        if waits { ("waiting_instances", plugins.waiting_instances) } else { ("instances", plugins.instances) };
    (asked > most as usize).then(|| {
        format!(
            "NEVER HAS limits.instances = {asked} INSTANCES: plugins.{key} allows {most} of all plugins together; raise it"
        )
    })
}

/// A line for each way on which what callers write may leave the machine.
fn leaving(
    grants: &GrantsConfig,
    used: &BTreeSet<&'static str>,
    models: &[ModelConfig],
    sees: bool,
    shares_kv: bool,
) -> Vec<String> {
    let what = if sees { "WHAT IT SEES".to_owned() } else { by_others(grants, used, shares_kv) };
    let http = grants.http.as_ref().filter(|_| used.contains("http") && (grants.content || !sees));
    let by_models = used.contains("models").then(|| asked_upstreams(grants, models));
    let all = http.map(|http| http.origins.join(", ")).into_iter().chain(by_models.into_iter().flatten());
    all.map(|to| format!("MAY SEND {what} TO {to}")).collect()
}

/// Of an observer, which sees no content itself: guards choose the words for what they find, others may have put content into its
/// collections, and itself into `kv` in another stage.
fn by_others(grants: &GrantsConfig, used: &BTreeSet<&'static str>, shares_kv: bool) -> String {
    let kv = Some("`kv`").filter(|_| shares_kv && grants.kv_kib.is_some() && used.contains("kv"));
    let vectors = grants.vectors.keys().map(String::as_str).filter(|_| used.contains("vectors"));
    let names: Vec<&str> = kv.into_iter().chain(vectors).collect();
    let kept = (!names.is_empty()).then(|| format!(" AND WHAT OTHERS KEEP IN {}", names.join(", ")));
    format!("WHAT GUARDS SAY THAT THEY FIND{}", kept.unwrap_or_default())
}

/// Where the models of the grants are that are an upstream's: what the plugin asks them leaves the machine.
fn asked_upstreams(grants: &GrantsConfig, models: &[ModelConfig]) -> Vec<String> {
    let place = |(alias, name): (&String, &String)| {
        let model = models.iter().find(|model| model.name == *name)?;
        let origins: Vec<&str> = model.urls().into_iter().map(origin).collect();
        let origins = Some(origins.join(", ")).filter(|origins| !origins.is_empty())?;
        Some(format!("{origins} by its model `{alias}`"))
    };
    grants.models.iter().filter_map(place).collect()
}

/// `scheme://host[:port]` of a URL.
fn origin(url: &str) -> &str {
    url.match_indices('/').nth(2).map_or(url, |(path, _)| url.split_at(path).0)
}

/// Grants that change nothing, since the component does not import what they are for.
fn unused(grants: &GrantsConfig, used: &BTreeSet<&'static str>, sends_secrets: bool, sees: bool) -> Vec<&'static str> {
    let http = used.contains("http");
    let granted = [
        ("kv_kib", grants.kv_kib.is_some(), used.contains("kv")),
        ("documents", !grants.documents.is_empty(), used.contains("documents")),
        ("http", grants.http.is_some(), http),
        // By itself, or where others keep it in a collection.
        ("content", grants.content, (http || used.contains("models")) && sees || http && used.contains("vectors")),
        // They are filled into requests, whether or not their names are asked for. Whose descriptor lacks them is told to mend
        // that, and not that they can go.
        ("secrets", !grants.secrets.is_empty(), http || sends_secrets && used.contains("secrets")),
        ("models", !grants.models.is_empty(), used.contains("models")),
        ("vectors", !grants.vectors.is_empty(), used.contains("vectors")),
        ("random", grants.random, used.contains("random")),
    ];
    granted.into_iter().filter(|(_, is_granted, counts)| *is_granted && !counts).map(|(name, ..)| name).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn grants(text: &str) -> GrantsConfig {
        toml::from_str(text).unwrap()
    }

    #[test]
    fn what_others_say_and_keep_may_leave_by_an_observer_that_asks_others() {
        let far = ModelConfig { upstream: Some("https://b.example/v1".into()), ..ModelConfig::folder("far", "") };
        let models = [far, ModelConfig::folder("near", "folder")];
        let http = "http = { origins = [\"https://a.example\"] }\n";
        let [notes, kv] = ["vectors = { notes = \"read\" }\n", "kv_kib = 4\n"];
        let asks = "models = { j = \"far\", n = \"near\" }\n";
        let (by_http, by_model) = ("TO https://a.example", "TO https://b.example by its model `j`");
        for (granted, used, shares_kv, told) in [
            (
                [http, notes].concat(),
                &["http", "vectors"][..],
                false,
                Some(format!(" AND WHAT OTHERS KEEP IN notes {by_http}")),
            ),
            ([http, notes].concat(), &["vectors"], false, None),
            (http.into(), &["http", "vectors"], false, Some(format!(" {by_http}"))),
            (notes.into(), &["http", "vectors"], false, None),
            (
                [asks, notes].concat(),
                &["models", "vectors"],
                false,
                Some(format!(" AND WHAT OTHERS KEEP IN notes {by_model}")),
            ),
            ([asks, notes].concat(), &["vectors"], false, None),
            // What the same plugin keeps where it sees content.
            ([http, kv].concat(), &["http", "kv"], true, Some(format!(" AND WHAT OTHERS KEEP IN `kv` {by_http}"))),
            ([http, kv].concat(), &["http", "kv"], false, Some(format!(" {by_http}"))),
        ] {
            let used: BTreeSet<&'static str> = used.iter().copied().collect();
            let told: Vec<String> =
                told.iter().map(|what| format!("MAY SEND WHAT GUARDS SAY THAT THEY FIND{what}")).collect();
            assert_eq!(leaving(&grants(&granted), &used, &models, false, shares_kv), told, "{granted}");
        }
    }

    #[test]
    fn the_grant_of_content_counts_for_an_observer_that_reads_a_collection_and_reaches_out() {
        let granted =
            grants("content = true\nhttp = { origins = [\"https://a.example\"] }\nvectors = { notes = \"read\" }\n");
        let unused = |used: &[&'static str]| super::unused(&granted, &used.iter().copied().collect(), false, false);
        assert!(unused(&["http", "vectors"]).is_empty());
        assert_eq!(unused(&["http"]), ["content", "vectors"]);
    }
}
