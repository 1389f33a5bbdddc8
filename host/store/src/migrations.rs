//! The tables, as steps that are never changed once released: a new one is a new file and one line.
//!
//! Numbers are `BIGINT`, text is `TEXT` and bytes are `BYTEA` in both databases; times are milliseconds since 1970.

use sqlx::SqlSafeStr;
use sqlx::migrate::{Migration, MigrationType, Migrator};

const STEPS: &[(&str, &str)] = &[
    ("usage", include_str!("migrations/0001_usage.sql")),
    ("conversations", include_str!("migrations/0002_conversations.sql")),
    ("keys", include_str!("migrations/0003_keys.sql")),
    ("sessions", include_str!("migrations/0004_sessions.sql")),
    ("summaries", include_str!("migrations/0005_summaries.sql")),
    ("projects", include_str!("migrations/0006_projects.sql")),
    ("calls", include_str!("migrations/0007_calls.sql")),
    ("alerts", include_str!("migrations/0008_alerts.sql")),
    ("makers", include_str!("migrations/0009_makers.sql")),
    ("swipes", include_str!("migrations/0010_swipes.sql")),
    ("reasoning", include_str!("migrations/0011_reasoning.sql")),
    ("answers", include_str!("migrations/0012_answers.sql")),
    ("claims", include_str!("migrations/0013_claims.sql")),
    ("answers_billed", include_str!("migrations/0014_answers_billed.sql")),
    ("lasting_keys", include_str!("migrations/0015_lasting_keys.sql")),
    ("plugin_values", include_str!("migrations/0016_plugin_values.sql")),
    ("spent", include_str!("migrations/0017_spent.sql")),
    ("plugin_vectors", include_str!("migrations/0018_plugin_vectors.sql")),
    ("plugin_shares", include_str!("migrations/0019_plugin_shares.sql")),
    ("purging", include_str!("migrations/0020_purging.sql")),
    ("referring", include_str!("migrations/0021_referring.sql")),
    ("spent_by_day", include_str!("migrations/0022_spent_by_day.sql")),
];

/// All steps, in order.
pub(crate) fn migrator() -> Migrator {
    let migration = |(i, (name, sql)): (usize, &(&'static str, &'static str))| {
        let (number, kind) = (i as i64 + 1, MigrationType::Simple);
        Migration::new(number, (*name).into(), kind, (*sql).into_sql_str(), false)
    };
    Migrator::with_migrations(STEPS.iter().enumerate().map(migration).collect())
}
