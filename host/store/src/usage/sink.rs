//! Takes a journal's events into the database: many rows with one statement, so that what waited through an outage is
//! soon there.

use super::spent::ByDay;
use super::{signed, unsigned};
use crate::conversations::clean;
use crate::db::Db;
use crate::error::StoreError;
use sqlx::any::AnyArguments;
use sqlx::query::Query;
use sqlx::{Any, AssertSqlSafe, Row, Transaction};
use std::collections::HashSet;
use tidegate_ledger::{Alert, Batch, BoxFuture, CallKind, Called, Entry, Event, Position, Sink};

/// Takes a journal's events into the database.
#[derive(Clone, Debug)]
pub struct UsageSink {
    db: Db,
    /// Whether somebody fetches the outbox: without, it would grow for ever.
    outbox: bool,
}

pub(super) type Tx = Transaction<'static, Any>;

/// Rows of one statement; databases bound its values, SQLite to 32766.
pub(super) const ROWS: usize = 200;

impl UsageSink {
    /// Into `db`; with `outbox`, each event also waits there for [`crate::Outbox`].
    pub fn new(db: Db, outbox: bool) -> Self {
        Self { db, outbox }
    }

    async fn keep(&self, journal: &str, batch: Batch) -> Result<(), StoreError> {
        let (mut tx, mut spent) = (self.db.write().await?, ByDay::default());
        for events in batch.events.chunks(ROWS) {
            let news = insert(&mut tx, events).await?;
            news.iter().filter_map(|event| event.used()).for_each(|entry| spent.add(entry));
            if self.outbox && !news.is_empty() {
                insert_news(&mut tx, &news).await?;
            }
        }
        sqlx::query(
            "INSERT INTO journal_positions (journal, segment, position) VALUES ($1, $2, $3) \
             ON CONFLICT (journal) DO UPDATE SET segment = excluded.segment, position = excluded.position",
        )
        .bind(journal)
        .bind(signed(batch.behind.segment))
        .bind(signed(batch.behind.offset))
        .execute(&mut *tx)
        .await?;
        spent.keep(&mut tx).await?;
        Ok(tx.commit().await?)
    }
}

impl Sink for UsageSink {
    type Error = StoreError;

    fn position(&self, journal: &str) -> BoxFuture<'_, Result<Position, StoreError>> {
        let journal = journal.to_owned();
        Box::pin(async move {
            let row = sqlx::query("SELECT segment, position FROM journal_positions WHERE journal = $1")
                .bind(journal)
                .fetch_optional(self.db.pool())
                .await?;
            let Some(row) = row else { return Ok(Position::default()) };
            Ok(Position { segment: unsigned(row.try_get(0)?), offset: unsigned(row.try_get(1)?) })
        })
    }

    fn commit(&self, journal: &str, batch: Batch) -> BoxFuture<'_, Result<(), StoreError>> {
        let journal = journal.to_owned();
        Box::pin(async move { self.keep(&journal, batch).await })
    }
}

/// Keeps what is not there already, and gives that.
async fn insert<'a>(tx: &mut Tx, events: &'a [Event]) -> Result<Vec<&'a Event>, StoreError> {
    let mut new_entries = insert_entries(tx, events).await?;
    let mut news = Vec::new();
    for event in events {
        let is_new = match event {
            Event::Used(entry) if new_entries.remove(&entry.opening.generation) => {
                insert_calls(tx, entry).await?;
                true
            }
            Event::Used(_) => false,
            Event::Alert(alert) => insert_alert(tx, alert).await?,
        };
        if is_new {
            news.push(event);
        }
    }
    Ok(news)
}

const ENTRY_COLUMNS: [&str; 21] = [
    "generation",
    "kind",
    "tenant",
    "key_name",
    "end_user",
    "model",
    "request_id",
    "begun_ms",
    "ended_ms",
    "outcome",
    "input_tokens",
    "cached_tokens",
    "output_tokens",
    "input_price",
    "cached_price",
    "output_price",
    "amount",
    "project",
    "tool_calls",
    "retrieval_calls",
    "calls_amount",
];

/// The generations that were not there before.
async fn insert_entries(tx: &mut Tx, events: &[Event]) -> Result<HashSet<String>, StoreError> {
    let entries: Vec<&Entry> = events.iter().filter_map(Event::used).collect();
    if entries.is_empty() {
        return Ok(HashSet::new());
    }
    let statement = insert_into("usage_entries", &ENTRY_COLUMNS, entries.len()) + KEPT + " RETURNING generation";
    // There are as many of these statements as there are numbers of rows: no database shall remember them.
    let mut query = sqlx::query(AssertSqlSafe(statement)).persistent(false);
    for entry in entries {
        query = bind_entry(query, entry);
    }
    let rows = query.fetch_all(&mut **tx).await?;
    rows.iter().map(|row| Ok(row.try_get(0)?)).collect()
}

type Bound<'q> = Query<'q, Any, AnyArguments>;

/// In the order of [`ENTRY_COLUMNS`]. Journals of older programs have texts that Postgres does not take.
fn bind_entry<'q>(query: Bound<'q>, entry: &Entry) -> Bound<'q> {
    let (opening, tokens) = (&entry.opening, entry.tokens);
    query
        .bind(opening.generation.clone())
        .bind(opening.kind())
        .bind(clean(&opening.tenant))
        .bind(clean(&opening.key_name))
        .bind(opening.end_user.as_deref().map(clean))
        .bind(clean(&opening.model))
        .bind(clean(&opening.request_id))
        .bind(signed(opening.begun_ms))
        .bind(signed(entry.ended_ms))
        .bind(clean(&entry.outcome))
        .bind(signed(tokens.input))
        .bind(signed(tokens.cached))
        .bind(signed(tokens.output))
        .bind(signed(opening.price.input))
        .bind(signed(opening.price.cached))
        .bind(signed(opening.price.output))
        .bind(signed(entry.amount()))
        .bind(opening.project.clone().unwrap_or_default())
        .bind(signed(entry.calls.count(CallKind::Tool)))
        .bind(signed(entry.calls.count(CallKind::Retrieval)))
        .bind(signed(entry.calls.amount()))
}

async fn insert_calls(tx: &mut Tx, entry: &Entry) -> Result<(), StoreError> {
    for ((kind, name), called) in &entry.calls.0 {
        sqlx::query("INSERT INTO usage_calls (generation, kind, name, calls, price) VALUES ($1, $2, $3, $4, $5)")
            .bind(entry.opening.generation.as_str())
            .bind(kind.as_str())
            .bind(name.as_str())
            .bind(signed(called.count))
            .bind(signed(called.price))
            .execute(&mut **tx)
            .await?;
    }
    Ok(())
}

/// Longer than any window of a budget.
const ALERTS_MS: u64 = 63 * 86_400_000;

/// Whether nobody was told of it: each gateway finds a bound reached by itself, and again when it starts.
async fn insert_alert(tx: &mut Tx, alert: &Alert) -> Result<bool, StoreError> {
    let insert = "INSERT INTO budget_alerts (id, created_ms) VALUES ($1, $2) ON CONFLICT DO NOTHING";
    let query = sqlx::query(insert).bind(alert.id.as_str()).bind(signed(alert.at_ms));
    let is_new = query.execute(&mut **tx).await?.rows_affected() > 0;
    if is_new {
        let old = signed(alert.at_ms.saturating_sub(ALERTS_MS));
        sqlx::query("DELETE FROM budget_alerts WHERE created_ms < $1").bind(old).execute(&mut **tx).await?;
    }
    Ok(is_new)
}

/// For others.
async fn insert_news(tx: &mut Tx, news: &[&Event]) -> Result<(), StoreError> {
    let statement = insert_into("outbox", &["id", "created_ms", "payload"], news.len()) + KEPT;
    let mut query = sqlx::query(AssertSqlSafe(statement)).persistent(false);
    for event in news {
        let (id, created_ms, payload) = match event {
            Event::Used(entry) => (&entry.opening.generation, entry.ended_ms, usage_event(entry)),
            Event::Alert(alert) => (&alert.id, alert.at_ms, alert_event(alert)),
        };
        query = query.bind(id.clone()).bind(signed(created_ms)).bind(payload);
    }
    query.execute(&mut **tx).await?;
    Ok(())
}

/// What is there stays as it is.
const KEPT: &str = " ON CONFLICT DO NOTHING";

/// The statement that inserts so many rows: `... VALUES ($1, $2), ($3, $4)`.
pub(super) fn insert_into(table: &str, columns: &[&str], rows: usize) -> String {
    let row = |row: usize| {
        let places: Vec<String> = (1..=columns.len()).map(|i| format!("${}", row * columns.len() + i)).collect();
        format!("({})", places.join(", "))
    };
    let rows: Vec<String> = (0..rows).map(row).collect();
    format!("INSERT INTO {table} ({}) VALUES {}", columns.join(", "), rows.join(", "))
}

fn usage_event(entry: &Entry) -> String {
    let (opening, tokens) = (&entry.opening, entry.tokens);
    let call = |((kind, name), called): (&(CallKind, String), &Called)| {
        let (kind, count, price) = (kind.as_str(), called.count, called.price);
        serde_json::json!({"kind": kind, "name": name, "calls": count, "price_nano": price})
    };
    let calls: Vec<serde_json::Value> = entry.calls.0.iter().map(call).collect();
    serde_json::json!({
        "id": opening.generation, "type": "usage.recorded", "created_at": entry.ended_ms / 1000,
        "data": {
            "kind": opening.kind(), "tenant": opening.tenant, "project": opening.project.as_ref().unwrap_or(&opening.tenant),
            "key": opening.key_name, "user": opening.end_user, "model": opening.model,
            "request_id": opening.request_id, "outcome": entry.outcome, "input_tokens": tokens.input,
            "input_cached_tokens": tokens.cached, "output_tokens": tokens.output, "calls": calls,
            "amount_nano": entry.amount(),
        },
    })
    .to_string()
}

fn alert_event(alert: &Alert) -> String {
    serde_json::json!({
        "id": alert.id, "type": "budget.reached", "created_at": alert.at_ms / 1000,
        "data": {
            "scope": alert.scope, "name": alert.name, "window": alert.window, "bound": alert.bound,
            "spent_nano": alert.spent, "limit_nano": alert.limit,
        },
    })
    .to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_have_their_own_places() {
        let one = "INSERT INTO t (a) VALUES ($1)";
        assert_eq!(insert_into("t", &["a"], 1), one);
        let two = "INSERT INTO t (a, b) VALUES ($1, $2), ($3, $4)";
        assert_eq!(insert_into("t", &["a", "b"], 2), two);
    }
}
