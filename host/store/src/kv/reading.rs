//! Reading what plugins keep: all keys of a call by one statement, which sees them as they were at one moment.

use super::{Kv, Space};
use crate::keeping::{KeepError, now_ms};
use crate::usage::signed;
use sqlx::{AssertSqlSafe, Row};
use std::collections::{BTreeSet, HashMap};

impl Kv {
    /// The values of several keys, in their order; [`KeepError::TooMuch`] where they are more than `most` bytes together. No
    /// more than that comes out of the database, and a key that is named again is copied only then.
    pub async fn get_many(
        &self,
        space: Space<'_>,
        keys: &[String],
        most: u64,
    ) -> Result<Vec<Option<Vec<u8>>>, KeepError> {
        let mut found = self.find(space, keys, most).await?;
        let len = |key: &String| found.get(key.as_bytes()).map_or(0, |value| value.len() as u64);
        if keys.iter().map(len).sum::<u64>() > most {
            return Err(KeepError::TooMuch);
        }
        if let [key] = keys {
            return Ok(vec![found.remove(key.as_bytes())]);
        }
        Ok(keys.iter().map(|key| found.get(key.as_bytes()).cloned()).collect())
    }

    /// What is there, by key.
    async fn find(&self, space: Space<'_>, keys: &[String], most: u64) -> Result<HashMap<Vec<u8>, Vec<u8>>, KeepError> {
        let keys: BTreeSet<&[u8]> = keys.iter().map(|key| key.as_bytes()).collect();
        let Some(last) = keys.last() else { return Ok(HashMap::new()) };
        // As many places as a power of two, so that a connection prepares few statements for all lengths.
        let places = keys.len().next_power_of_two();
        let query = sqlx::query(AssertSqlSafe(statement(places))).bind(space.owner).bind(space.plugin);
        let mut query = query.bind(now_ms()).bind(signed(most));
        for key in keys.iter().chain(std::iter::repeat_n(last, places - keys.len())) {
            query = query.bind(*key);
        }
        let mut found = HashMap::new();
        for row in query.fetch_all(self.keeper.db.pool()).await? {
            let value: Option<Vec<u8>> = row.try_get(1)?;
            found.insert(row.try_get(0)?, value.ok_or(KeepError::TooMuch)?);
        }
        Ok(found)
    }
}

/// No value comes where all together are more than $4 bytes.
fn statement(places: usize) -> String {
    let places: Vec<String> = (5..5 + places).map(|n| format!("${n}")).collect();
    format!(
        "SELECT key, CASE WHEN SUM(LENGTH(value)) OVER () <= $4 THEN value END FROM plugin_values \
         WHERE owner = $1 AND plugin = $2 AND (ends_ms IS NULL OR ends_ms > $3) AND key IN ({})",
        places.join(", ")
    )
}
