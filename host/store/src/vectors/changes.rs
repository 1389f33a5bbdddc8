//! What has changed since a gateway last looked, in the order of the changes and in pieces.

use super::{KeptVector, Vectors, owner};
use crate::error::StoreError;
use crate::keeping::KeepError;
use crate::usage::unsigned;
use sqlx::Row;
use sqlx::any::AnyRow;

/// Entries of a piece: of the largest that there may be these are some 10 MB, and 50 where payloads are characters that JSON escapes.
const PIECE: i64 = 128;

/// How far a copy of an owner's entries has come.
#[derive(Clone, Debug)]
pub struct Cursor {
    /// The last entry that it has: the number of its change, its collection and its id.
    last: (i64, String, Vec<u8>),
    /// It has nothing that was deleted by a change up to this one.
    whole: i64,
}

/// What a copy lacks.
#[derive(Debug)]
pub enum Changes {
    /// The owner has nothing: nor has the copy from then on.
    None,
    /// What was deleted meanwhile is forgotten: the copy is to be made anew, from the beginning.
    Anew,
    /// These.
    Some {
        /// In their order, each with its collection. Vectors of one collection may have other dimensions until the last change.
        changes: Vec<(String, VectorChange)>,
        /// For the next piece.
        cursor: Cursor,
        /// Whether there is none at present.
        is_last: bool,
    },
}

/// What became of an entry.
#[derive(Clone, Debug, PartialEq)]
pub enum VectorChange {
    /// It was put.
    Put(KeptVector),
    /// It was deleted, by id.
    Deleted(String),
}

impl Vectors {
    /// What has changed of an owner's entries since a copy of them came as far as `since`, or all of them; the first of it. Who asks
    /// until one is the last has all that was changed before that one was asked for.
    pub async fn changes(&self, owner: &str, since: Option<&Cursor>) -> Result<Changes, KeepError> {
        let db = &self.keeper.db;
        let mut cursor = match since {
            Some(cursor) => cursor.clone(),
            None => match owner::read(db, owner).await? {
                // It will have nothing that was deleted until now.
                Some(row) => Cursor { last: Default::default(), whole: row.changed },
                None => return Ok(Changes::None),
            },
        };
        let rows = self.piece(owner, &cursor).await?;
        // After the entries: what was forgotten before these were read is known by now.
        let Some(row) = owner::read(db, owner).await? else { return Ok(Changes::None) };
        if row.forgotten > cursor.whole {
            return Ok(Changes::Anew);
        }
        let is_last = (rows.len() as i64) < PIECE;
        let changes = rows.iter().map(|row| cursor.pass(row)).collect::<Result<_, StoreError>>()?;
        if is_last {
            cursor.whole = cursor.whole.max(cursor.last.0);
        }
        Ok(Changes::Some { changes, cursor, is_last })
    }

    async fn piece(&self, owner: &str, cursor: &Cursor) -> Result<Vec<AnyRow>, StoreError> {
        let (changed, collection, id) = &cursor.last;
        let query = sqlx::query(NEXT).bind(owner).bind(changed).bind(collection).bind(id.as_slice()).bind(PIECE);
        Ok(query.fetch_all(self.keeper.db.pool()).await?)
    }
}

/// The order is that of an index.
const NEXT: &str = "SELECT changed, collection, id, vector, payload, cost FROM plugin_vectors \
     WHERE owner = $1 AND (changed, collection, id) > ($2, $3, $4) ORDER BY changed, collection, id LIMIT $5";

impl Cursor {
    /// Goes on past an entry.
    fn pass(&mut self, row: &AnyRow) -> Result<(String, VectorChange), StoreError> {
        let (changed, collection, id): (i64, String, Vec<u8>) = (row.try_get(0)?, row.try_get(1)?, row.try_get(2)?);
        let change = match row.try_get::<Option<Vec<u8>>, _>(3)? {
            Some(vector) => {
                let (payload, cost): (String, i64) = (row.try_get(4)?, row.try_get(5)?);
                let payload = serde_json::from_str(&payload).map_err(StoreError::Body)?;
                VectorChange::Put(KeptVector {
                    id: text(&id)?,
                    vector: numbers(&vector),
                    payload,
                    cost: unsigned(cost),
                })
            }
            None => VectorChange::Deleted(text(&id)?),
        };
        self.last = (changed, collection.clone(), id);
        Ok((collection, change))
    }
}

fn numbers(bytes: &[u8]) -> Vec<f32> {
    let (numbers, _) = bytes.as_chunks();
    numbers.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
}

fn text(id: &[u8]) -> Result<String, StoreError> {
    String::from_utf8(id.to_vec()).map_err(|error| StoreError::Body(serde::de::Error::custom(error)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Db, Place};

    #[tokio::test]
    async fn what_a_copy_has_is_not_looked_at_to_find_what_it_lacks() {
        let folder = tempfile::tempdir().unwrap();
        let db = Db::open(&Place::Folder(folder.path().to_owned())).await.unwrap();
        let plan = db.plan(NEXT).await;
        let by_change = "plugin_vectors_by_change (owner=? AND (changed,collection,id)>(?,?,?))";
        assert!(plan.len() == 1 && plan[0].contains(by_change), "{plan:?}");
    }
}
