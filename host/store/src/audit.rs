//! What is billed, row by row, for whoever checks it.

use crate::db::Db;
use crate::error::StoreError;
use crate::usage::{UsageSink, unsigned};
use sqlx::Row;
use sqlx::any::AnyRow;
use std::collections::HashMap;
use tidegate_ledger::{CallKind, Called, Calls, Position, Price, Sink, Tokens};

/// One row of what is billed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Billed {
    /// Names the generation.
    pub generation: String,
    /// What was used.
    pub tokens: Tokens,
    /// What it cost at its time.
    pub price: Price,
    /// What is billed for it.
    pub amount: u64,
    /// Calls of tools, of retrievers, and what is billed for both: as the row has them.
    pub counted: Counted,
    /// The calls one by one, with what each cost at its time.
    pub calls: Calls,
}

/// Calls in sum.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counted {
    /// Of tools.
    pub tools: u64,
    /// Of retrievers.
    pub retrievals: u64,
    /// Billionths for all of them.
    pub amount: u64,
}

impl Counted {
    /// The sums of `calls`.
    pub fn of(calls: &Calls) -> Self {
        let [tools, retrievals] = [CallKind::Tool, CallKind::Retrieval].map(|kind| calls.count(kind));
        Self { tools, retrievals, amount: calls.amount() }
    }
}

/// An answer that is kept, beside the row that bills it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeptAnswer {
    /// Names the generation.
    pub generation: String,
    /// When it was begun, in milliseconds since 1970.
    pub created_ms: u64,
    /// The input and output tokens that it was answered with.
    pub said: [u64; 2],
    /// Those that are billed; absent where no row does.
    pub billed: Option<[u64; 2]>,
}

/// The rows of what is billed.
#[derive(Clone, Debug)]
pub struct Books(Db);

impl Books {
    /// Of `db`.
    pub fn new(db: Db) -> Self {
        Self(db)
    }

    /// The rows behind `after`, in the order of their names; none at the end.
    pub async fn page(&self, after: &str, most: u32) -> Result<Vec<Billed>, StoreError> {
        let rows = sqlx::query(
            "SELECT generation, input_tokens, cached_tokens, output_tokens, input_price, cached_price, output_price, \
             amount, tool_calls, retrieval_calls, calls_amount FROM usage_entries \
             WHERE generation > $1 ORDER BY generation LIMIT $2",
        )
        .bind(after)
        .bind(i64::from(most))
        .fetch_all(self.0.pool())
        .await?;
        let mut page: Vec<Billed> = rows.iter().map(billed).collect::<Result<_, _>>()?;
        let Some(last) = page.last() else { return Ok(page) };
        let mut calls = self.calls(after, &last.generation).await?;
        for row in &mut page {
            row.calls = calls.remove(&row.generation).unwrap_or_default();
        }
        Ok(page)
    }

    /// The row of one generation.
    pub async fn of(&self, generation: &str) -> Result<Option<Billed>, StoreError> {
        let row = sqlx::query(
            "SELECT generation, input_tokens, cached_tokens, output_tokens, input_price, cached_price, output_price, \
             amount, tool_calls, retrieval_calls, calls_amount FROM usage_entries WHERE generation = $1",
        )
        .bind(generation)
        .fetch_optional(self.0.pool())
        .await?;
        let Some(row) = row else { return Ok(None) };
        let of = "SELECT generation, kind, name, calls, price FROM usage_calls WHERE generation = $1";
        let calls = sqlx::query(of).bind(generation).fetch_all(self.0.pool()).await?;
        let calls = by_generation(&calls)?.remove(generation).unwrap_or_default();
        Ok(Some(Billed { calls, ..billed(&row)? }))
    }

    /// The calls of the generations behind `after`, up to `last`.
    async fn calls(&self, after: &str, last: &str) -> Result<HashMap<String, Calls>, StoreError> {
        let rows = sqlx::query(
            "SELECT generation, kind, name, calls, price FROM usage_calls WHERE generation > $1 AND generation <= $2",
        )
        .bind(after)
        .bind(last)
        .fetch_all(self.0.pool())
        .await?;
        Ok(by_generation(&rows)?)
    }

    /// The kept answers whose generations are behind `after`, in the order of their names; none at the end.
    pub async fn answers(&self, after: &str, most: u32) -> Result<Vec<KeptAnswer>, StoreError> {
        const ANSWERS: &str = "SELECT r.generation, r.created_ms, r.input_tokens, r.output_tokens, \
             u.input_tokens AS billed_input, u.output_tokens AS billed_output \
             FROM responses r LEFT JOIN usage_entries u ON u.generation = r.generation \
             WHERE r.generation > $1 AND r.generation <> '' ORDER BY r.generation LIMIT $2";
        let rows = sqlx::query(ANSWERS).bind(after).bind(i64::from(most)).fetch_all(self.0.pool()).await?;
        rows.iter().map(|row| Ok(kept_answer(row)?)).collect()
    }

    /// Calls that no row bills.
    pub async fn num_stray_calls(&self) -> Result<u64, StoreError> {
        let row = sqlx::query(
            "SELECT COUNT(*) FROM usage_calls WHERE NOT EXISTS \
             (SELECT 1 FROM usage_entries WHERE usage_entries.generation = usage_calls.generation)",
        )
        .fetch_one(self.0.pool())
        .await?;
        Ok(unsigned(row.try_get(0)?))
    }

    /// Up to where a journal was taken.
    pub async fn position(&self, journal: &str) -> Result<Position, StoreError> {
        UsageSink::new(self.0.clone(), false).position(journal).await
    }
}

fn billed(row: &AnyRow) -> Result<Billed, sqlx::Error> {
    let number = |i: usize| row.try_get::<i64, _>(i).map(unsigned);
    Ok(Billed {
        generation: row.try_get(0)?,
        tokens: Tokens { input: number(1)?, cached: number(2)?, output: number(3)? },
        price: Price { input: number(4)?, cached: number(5)?, output: number(6)? },
        amount: number(7)?,
        counted: Counted { tools: number(8)?, retrievals: number(9)?, amount: number(10)? },
        calls: Calls::default(),
    })
}

fn kept_answer(row: &AnyRow) -> Result<KeptAnswer, sqlx::Error> {
    let count = |name: &str| row.try_get::<i64, _>(name).map(unsigned);
    let billed = |name: &str| row.try_get::<Option<i64>, _>(name).map(|count| count.map(unsigned));
    Ok(KeptAnswer {
        generation: row.try_get("generation")?,
        created_ms: count("created_ms")?,
        said: [count("input_tokens")?, count("output_tokens")?],
        billed: billed("billed_input")?.zip(billed("billed_output")?).map(<[u64; 2]>::from),
    })
}

fn by_generation(rows: &[AnyRow]) -> Result<HashMap<String, Calls>, sqlx::Error> {
    let mut all: HashMap<String, Calls> = HashMap::new();
    for row in rows {
        // A kind that this program does not know is billed by a newer one; the sums will not match, and say so.
        let Some(kind) = CallKind::named(&row.try_get::<String, _>(1)?) else { continue };
        let called = Called { count: unsigned(row.try_get(3)?), price: unsigned(row.try_get(4)?) };
        all.entry(row.try_get(0)?).or_default().0.insert((kind, row.try_get(2)?), called);
    }
    Ok(all)
}
