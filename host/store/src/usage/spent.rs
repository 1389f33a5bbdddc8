//! What is spent of budgets: a sum for each tenant, project and key and each day (UTC), which grows as entries come. Gateways of
//! one database ask every few seconds, for every budget: that costs a row for each day, however many requests a month has.

use super::sink::{ROWS, Tx, insert_into};
use super::{Usage, signed, unsigned};
use crate::conversations::clean;
use crate::error::StoreError;
use sqlx::{AssertSqlSafe, Row};
use std::collections::BTreeMap;
use tidegate_ledger::{Entry, Spent};

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

impl<'a> Holder<'a> {
    /// As in the table: what, and its name.
    fn columns(self) -> (&'static str, &'a str) {
        match self {
            Self::Tenant(name) => ("tenant", name),
            Self::Project(id) => ("project", id),
            Self::Key(name) => ("key", name),
        }
    }
}

const SPENT: &str = "SELECT CAST(COALESCE(SUM(CASE WHEN day_ms >= $1 THEN amount ELSE 0 END), 0) AS BIGINT), \
     CAST(COALESCE(SUM(amount), 0) AS BIGINT) FROM spent_by_day \
     WHERE holder = $3 AND name = $4 AND day_ms >= $2 AND day_ms < $5";

/// A day's sum does not go past it, so that no sum of a month's days leaves a `BIGINT`: 144 million, where amounts are in
/// billionths.
const MOST: u64 = i64::MAX as u64 / 64;
const DAY_MS: u64 = 86_400_000;

impl Usage {
    /// What a tenant, a project or a key has spent since the beginnings (UTC) of a day and a month. What a clock that was far ahead
    /// has written is of no day of now; a gateway's may be a little ahead of another's.
    pub async fn spent(&self, holder: Holder<'_>, day_ms: u64, month_ms: u64) -> Result<Spent, StoreError> {
        let (holder, name) = holder.columns();
        let query = sqlx::query(SPENT).bind(signed(day_ms)).bind(signed(month_ms)).bind(holder).bind(clean(name));
        let query = query.bind(signed(day_ms.saturating_add(2 * DAY_MS)));
        let row = query.fetch_one(self.0.pool()).await?;
        Ok(Spent { day: unsigned(row.try_get(0)?), month: unsigned(row.try_get(1)?) })
    }
}

/// What new entries add. In the order of its keys, for all gateways: two that add to the same days wait for each other, and
/// neither for both.
#[derive(Default)]
pub(super) struct ByDay(BTreeMap<(&'static str, String, u64), u64>);

impl ByDay {
    pub(super) fn add(&mut self, entry: &Entry) {
        let (opening, amount) = (&entry.opening, entry.amount());
        if amount == 0 {
            return;
        }
        let project = opening.project.as_deref().map(Holder::Project);
        for holder in [Some(Holder::Tenant(&opening.tenant)), project, Some(Holder::Key(&opening.key_name))] {
            let Some((holder, name)) = holder.map(Holder::columns) else { continue };
            let day = entry.ended_ms - entry.ended_ms % DAY_MS;
            let sum = self.0.entry((holder, clean(name), day)).or_default();
            *sum = sum.saturating_add(amount).min(MOST);
        }
    }

    /// Comes last in its transaction: others wait for it.
    pub(super) async fn keep(self, tx: &mut Tx) -> Result<(), StoreError> {
        let sums: Vec<_> = self.0.into_iter().collect();
        for sums in sums.chunks(ROWS) {
            let added = format!(
                " ON CONFLICT (holder, name, day_ms) DO UPDATE SET amount = CASE \
                 WHEN spent_by_day.amount > {MOST} - excluded.amount THEN {MOST} \
                 ELSE spent_by_day.amount + excluded.amount END"
            );
            let statement = insert_into("spent_by_day", &["holder", "name", "day_ms", "amount"], sums.len()) + &added;
            let mut query = sqlx::query(AssertSqlSafe(statement)).persistent(false);
            for ((holder, name, day_ms), amount) in sums {
                query = query.bind(*holder).bind(name.as_str()).bind(signed(*day_ms)).bind(signed(*amount));
            }
            query.execute(&mut **tx).await?;
        }
        Ok(())
    }
}
