//! What was used: kept once for each generation (`usage/sink.rs`), summed for bills, and by days for budgets (`usage/spent.rs`).

mod sink;
mod spent;

pub use sink::UsageSink;
pub use spent::Holder;

use crate::db::Db;
use crate::error::StoreError;
use sqlx::Row;
use tidegate_types::UsageTotals;

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
    /// Where the first span of time begins; not after the start.
    pub origin_ms: u64,
    /// Milliseconds since 1970, exclusive.
    pub end_ms: u64,
    /// One sum for each so many milliseconds from the origin.
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
    /// Which span of time, counted from the origin.
    pub bucket: u64,
    /// What was used in it, of what the query groups by.
    pub totals: UsageTotals,
}

/// Makes a statement of the sums over the entries that `$of` says. One for a tenant's own, so that it has an index: whatever
/// else lies in the table, a tenant's question costs what its own entries do.
macro_rules! sums_of {
    ($of:literal) => {
        concat!(
            "SELECT (ended_ms - $1) / $2, \
             CASE WHEN $3 = 1 THEN CASE WHEN project = '' THEN tenant ELSE project END ELSE '' END, \
             CASE WHEN $4 = 1 THEN key_name ELSE '' END, CASE WHEN $5 = 1 THEN COALESCE(end_user, '') ELSE '' END, \
             CASE WHEN $6 = 1 THEN model ELSE '' END, CASE WHEN $12 = 1 THEN kind ELSE '' END, COUNT(*), \
             CAST(SUM(input_tokens) AS BIGINT), \
             CAST(SUM(cached_tokens) AS BIGINT), CAST(SUM(output_tokens) AS BIGINT), CAST(SUM(amount) AS BIGINT), \
             CAST(SUM(tool_calls) AS BIGINT), CAST(SUM(retrieval_calls) AS BIGINT), CAST(SUM(calls_amount) AS BIGINT) \
             FROM usage_entries WHERE ",
            $of,
            " AND ended_ms >= $16 AND ended_ms < $8 \
             AND ($9 = '' OR REPLACE($9, $10 || CASE WHEN project = '' THEN tenant ELSE project END || $10, '') <> $9) \
             AND ($13 = '' OR REPLACE($13, $10 || key_name || $10, '') <> $13) \
             AND ($14 = '' OR REPLACE($14, $10 || COALESCE(end_user, '') || $10, '') <> $14) \
             AND ($15 = '' OR REPLACE($15, $10 || model || $10, '') <> $15) \
             GROUP BY 1, 2, 3, 4, 5, 6 ORDER BY 1, 2, 3, 4, 5, 6 LIMIT $11"
        )
    };
}

impl UsageQuery {
    fn statement(&self) -> &'static str {
        if self.tenant.is_some() { sums_of!("tenant = $7") } else { sums_of!("$7 = ''") }
    }
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
        let rows = sqlx::query(query.statement())
            .bind(signed(query.origin_ms))
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
            .bind(signed(query.start_ms))
            .fetch_all(self.0.pool())
            .await?;
        rows.iter().map(|row| Ok(sum(row, query.by)?)).collect()
    }
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
    let totals = UsageTotals {
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
    };
    Ok(UsageSum { bucket: number(0)?, totals })
}

/// Databases have no unsigned numbers; none of ours comes near the bound.
pub(crate) fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

pub(crate) fn unsigned(number: i64) -> u64 {
    u64::try_from(number).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Place;

    #[tokio::test]
    async fn a_tenants_sums_are_found_without_a_look_at_what_others_have() {
        let folder = tempfile::tempdir().unwrap();
        let db = Db::open(&Place::Folder(folder.path().to_owned())).await.unwrap();
        let plan = db.plan(sums_of!("tenant = $7")).await;
        assert!(plan.iter().any(|step| step.contains("usage_by_tenant (tenant=? AND ended_ms>")), "{plan:?}");
    }
}
