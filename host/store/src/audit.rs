//! What is billed, row by row, for whoever checks it.

use crate::db::Db;
use crate::error::StoreError;
use crate::usage::{UsageSink, unsigned};
use sqlx::Row;
use tidegate_ledger::{Position, Price, Sink, Tokens};

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
             amount FROM usage_entries WHERE generation > $1 ORDER BY generation LIMIT $2",
        )
        .bind(after)
        .bind(i64::from(most))
        .fetch_all(self.0.pool())
        .await?;
        rows.iter().map(|row| Ok(billed(row)?)).collect()
    }

    /// The row of one generation.
    pub async fn of(&self, generation: &str) -> Result<Option<Billed>, StoreError> {
        let row = sqlx::query(
            "SELECT generation, input_tokens, cached_tokens, output_tokens, input_price, cached_price, output_price, \
             amount FROM usage_entries WHERE generation = $1",
        )
        .bind(generation)
        .fetch_optional(self.0.pool())
        .await?;
        Ok(row.as_ref().map(billed).transpose()?)
    }

    /// Up to where a journal was taken.
    pub async fn position(&self, journal: &str) -> Result<Position, StoreError> {
        UsageSink::new(self.0.clone(), false).position(journal).await
    }
}

fn billed(row: &sqlx::any::AnyRow) -> Result<Billed, sqlx::Error> {
    let number = |i: usize| row.try_get::<i64, _>(i).map(unsigned);
    Ok(Billed {
        generation: row.try_get(0)?,
        tokens: Tokens { input: number(1)?, cached: number(2)?, output: number(3)? },
        price: Price { input: number(4)?, cached: number(5)?, output: number(6)? },
        amount: number(7)?,
    })
}
