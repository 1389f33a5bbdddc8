//! What was used: kept once for each generation, summed for bills and budgets.

use crate::db::Db;
use crate::error::StoreError;
use sqlx::{Any, Row, Transaction};
use tidegate_ledger::{Alert, Batch, BoxFuture, CallKind, Called, Entry, Event, Position, Sink, Spent};

/// Takes a journal's events into the database.
#[derive(Clone, Debug)]
pub struct UsageSink {
    db: Db,
    /// Whether somebody fetches the outbox: without, it would grow for ever.
    outbox: bool,
}

impl UsageSink {
    /// Into `db`; with `outbox`, each event also waits there for [`crate::Outbox`].
    pub fn new(db: Db, outbox: bool) -> Self {
        Self { db, outbox }
    }

    async fn keep(&self, journal: &str, batch: Batch) -> Result<(), StoreError> {
        let mut tx = self.db.write().await?;
        for event in &batch.events {
            let (is_new, id, payload) = match event {
                Event::Used(entry) => (insert(&mut tx, entry).await?, &entry.opening.generation, usage_event(entry)),
                Event::Alert(alert) => (true, &alert.id, alert_event(alert)),
            };
            if self.outbox && is_new {
                sqlx::query("INSERT INTO outbox (id, created_ms, payload) VALUES ($1, $2, $3) ON CONFLICT DO NOTHING")
                    .bind(id.as_str())
                    .bind(created_ms(event))
                    .bind(payload)
                    .execute(&mut *tx)
                    .await?;
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

/// Whether it was not there before.
async fn insert(tx: &mut Transaction<'static, Any>, entry: &Entry) -> Result<bool, StoreError> {
    let is_new = insert_entry(tx, entry).await?;
    if is_new {
        insert_calls(tx, entry).await?;
    }
    Ok(is_new)
}

async fn insert_calls(tx: &mut Transaction<'static, Any>, entry: &Entry) -> Result<(), StoreError> {
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

async fn insert_entry(tx: &mut Transaction<'static, Any>, entry: &Entry) -> Result<bool, StoreError> {
    let (opening, tokens) = (&entry.opening, entry.tokens);
    let done = sqlx::query(
        "INSERT INTO usage_entries (generation, kind, tenant, key_name, end_user, model, request_id, begun_ms, \
         ended_ms, outcome, input_tokens, cached_tokens, output_tokens, input_price, cached_price, output_price, amount, \
         project, tool_calls, retrieval_calls, calls_amount) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, \
         $12, $13, $14, $15, $16, $17, $18, $19, $20, $21) \
         ON CONFLICT DO NOTHING",
    )
    .bind(opening.generation.as_str())
    .bind(opening.kind())
    .bind(opening.tenant.as_str())
    .bind(opening.key_name.as_str())
    .bind(opening.end_user.clone())
    .bind(opening.model.as_str())
    .bind(opening.request_id.as_str())
    .bind(signed(opening.begun_ms))
    .bind(signed(entry.ended_ms))
    .bind(entry.outcome.as_str())
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
    .execute(&mut **tx)
    .await?;
    Ok(done.rows_affected() > 0)
}

fn created_ms(event: &Event) -> i64 {
    signed(match event {
        Event::Used(entry) => entry.ended_ms,
        Event::Alert(alert) => alert.at_ms,
    })
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

/// What to sum, over which time, by what.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UsageQuery {
    /// Of one tenant; `None` is all, for administrators.
    pub tenant: Option<String>,
    /// Of these projects; all where it is empty. A tenant's own has the tenant's name.
    pub projects: Vec<String>,
    /// Of these keys, users and models.
    pub only: Only,
    /// Milliseconds since 1970, inclusive.
    pub start_ms: u64,
    /// Milliseconds since 1970, exclusive.
    pub end_ms: u64,
    /// One sum for each so many milliseconds from the start.
    pub width_ms: u64,
    /// One sum for each of these as well.
    pub by: GroupBy,
    /// Sums at most, the earliest first.
    pub limit: u32,
}

/// What is summed of what there is; all where a list is empty.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Only {
    /// Of these keys.
    pub keys: Vec<String>,
    /// Of these end users.
    pub users: Vec<String>,
    /// Of these models.
    pub models: Vec<String>,
}

/// What else a sum is of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GroupBy {
    /// Each project; a tenant's own has the tenant's name.
    pub project: bool,
    /// Each key.
    pub key: bool,
    /// Each end user.
    pub user: bool,
    /// Each model.
    pub model: bool,
    /// Each kind of use.
    pub kind: bool,
}

/// A sum.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UsageSum {
    /// Which span of time, counted from the start.
    pub bucket: u64,
    /// Where it is of one.
    pub project: Option<String>,
    /// Where it is of one.
    pub key: Option<String>,
    /// Where it is of one.
    pub user: Option<String>,
    /// Where it is of one.
    pub model: Option<String>,
    /// Where it is of one: `generation`, `summary` or `title`.
    pub kind: Option<String>,
    /// Generations.
    pub requests: u64,
    /// Prompt tokens, cached ones included.
    pub input_tokens: u64,
    /// Of those, cached.
    pub cached_tokens: u64,
    /// Generated tokens.
    pub output_tokens: u64,
    /// Calls of tools.
    pub tool_calls: u64,
    /// Calls of retrievers.
    pub retrieval_calls: u64,
    /// Billionths of the operator's currency.
    pub amount: u64,
    /// Of those, for calls.
    pub calls_amount: u64,
}

/// Sums from the usage table.
#[derive(Clone, Debug)]
pub struct Usage(Db);

impl Usage {
    /// Of `db`.
    pub fn new(db: Db) -> Self {
        Self(db)
    }

    /// The sums of a query.
    pub async fn sums(&self, query: &UsageQuery) -> Result<Vec<UsageSum>, StoreError> {
        let rows = sqlx::query(
            "SELECT (ended_ms - $1) / $2, \
             CASE WHEN $3 = 1 THEN CASE WHEN project = '' THEN tenant ELSE project END ELSE '' END, \
             CASE WHEN $4 = 1 THEN key_name ELSE '' END, CASE WHEN $5 = 1 THEN COALESCE(end_user, '') ELSE '' END, \
             CASE WHEN $6 = 1 THEN model ELSE '' END, CASE WHEN $12 = 1 THEN kind ELSE '' END, COUNT(*), \
             CAST(SUM(input_tokens) AS BIGINT), \
             CAST(SUM(cached_tokens) AS BIGINT), CAST(SUM(output_tokens) AS BIGINT), CAST(SUM(amount) AS BIGINT), \
             CAST(SUM(tool_calls) AS BIGINT), CAST(SUM(retrieval_calls) AS BIGINT), CAST(SUM(calls_amount) AS BIGINT) \
             FROM usage_entries WHERE ($7 = '' OR tenant = $7) AND ended_ms >= $1 AND ended_ms < $8 \
             AND ($9 = '' OR REPLACE($9, $10 || CASE WHEN project = '' THEN tenant ELSE project END || $10, '') <> $9) \
             AND ($13 = '' OR REPLACE($13, $10 || key_name || $10, '') <> $13) \
             AND ($14 = '' OR REPLACE($14, $10 || COALESCE(end_user, '') || $10, '') <> $14) \
             AND ($15 = '' OR REPLACE($15, $10 || model || $10, '') <> $15) \
             GROUP BY 1, 2, 3, 4, 5, 6 ORDER BY 1, 2, 3, 4, 5, 6 LIMIT $11",
        )
        .bind(signed(query.start_ms))
        .bind(signed(query.width_ms.max(1)))
        .bind(i64::from(query.by.project))
        .bind(i64::from(query.by.key))
        .bind(i64::from(query.by.user))
        .bind(i64::from(query.by.model))
        .bind(query.tenant.clone().unwrap_or_default())
        .bind(signed(query.end_ms))
        .bind(list(&query.projects))
        .bind(AROUND)
        .bind(i64::from(query.limit))
        .bind(i64::from(query.by.kind))
        .bind(list(&query.only.keys))
        .bind(list(&query.only.users))
        .bind(list(&query.only.models))
        .fetch_all(self.0.pool())
        .await?;
        rows.iter().map(|row| Ok(sum(row, query.by)?)).collect()
    }

    /// What a tenant, a project or a key has spent since the beginnings of a day and a month.
    pub async fn spent(&self, holder: Holder<'_>, day_ms: u64, month_ms: u64) -> Result<Spent, StoreError> {
        let (tenant, project, key) = match holder {
            Holder::Tenant(name) => (name, "", ""),
            Holder::Project(id) => ("", id, ""),
            Holder::Key(name) => ("", "", name),
        };
        let row = sqlx::query(
            "SELECT CAST(COALESCE(SUM(CASE WHEN ended_ms >= $1 THEN amount ELSE 0 END), 0) AS BIGINT), \
             CAST(COALESCE(SUM(amount), 0) AS BIGINT) FROM usage_entries \
             WHERE ended_ms >= $2 AND ($3 = '' OR tenant = $3) AND ($4 = '' OR key_name = $4) \
             AND ($5 = '' OR project = $5)",
        )
        .bind(signed(day_ms))
        .bind(signed(month_ms))
        .bind(tenant)
        .bind(key)
        .bind(project)
        .fetch_one(self.0.pool())
        .await?;
        Ok(Spent { day: unsigned(row.try_get(0)?), month: unsigned(row.try_get(1)?) })
    }
}

/// Whose money.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Holder<'a> {
    /// A tenant's.
    Tenant(&'a str),
    /// A project's, by its id.
    Project(&'a str),
    /// A key's.
    Key(&'a str),
}

/// What stands before and behind each name of a [`list`]; no name has it.
const AROUND: &str = "\u{1f}";

/// Names as one text, in which each is found with what stands around it: SQL has no lists that both databases know. Between
/// two names it stands once: twice it would be around an empty name, which is what a row without one has.
fn list(names: &[String]) -> String {
    let behind = names.iter().flat_map(|name| [name, AROUND]);
    if names.is_empty() { String::new() } else { std::iter::once(AROUND).chain(behind).collect() }
}

fn sum(row: &sqlx::any::AnyRow, by: GroupBy) -> Result<UsageSum, sqlx::Error> {
    let number = |i: usize| row.try_get::<i64, _>(i).map(unsigned);
    let name = |i: usize, wanted: bool| if wanted { row.try_get::<String, _>(i).map(Some) } else { Ok(None) };
    Ok(UsageSum {
        bucket: number(0)?,
        project: name(1, by.project)?,
        key: name(2, by.key)?,
        user: name(3, by.user)?.filter(|user| !user.is_empty()),
        model: name(4, by.model)?,
        kind: name(5, by.kind)?,
        requests: number(6)?,
        input_tokens: number(7)?,
        cached_tokens: number(8)?,
        output_tokens: number(9)?,
        amount: number(10)?,
        tool_calls: number(11)?,
        retrieval_calls: number(12)?,
        calls_amount: number(13)?,
    })
}

/// Databases have no unsigned numbers; none of ours comes near the bound.
pub(crate) fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

pub(crate) fn unsigned(number: i64) -> u64 {
    u64::try_from(number).unwrap_or(0)
}
