//! Ending a key or a project, where what would be left is enough.

use crate::db::Db;
use crate::error::StoreError;
use crate::keys::{self, KeptKey};
use crate::projects::{self, KeptProject};
use crate::usage::signed;

/// What became of the wish to end something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// It is over from now on.
    Done,
    /// There was nothing to end.
    Unknown,
    /// What would be left is not enough.
    Refused,
}

/// What to end.
pub(crate) struct Ending<'a> {
    /// Of $1 as the time and $2 as the name.
    pub statement: &'static str,
    pub name: &'a str,
    pub now_ms: u64,
}

impl Ending<'_> {
    /// Ends what is `known` where `may` agrees. Both are asked about all keys and projects that there are, and of several
    /// who end some of them each sees what the one before has left.
    pub(crate) async fn run(
        self,
        db: &Db,
        known: impl FnOnce(&[KeptKey], &[KeptProject]) -> bool + Send,
        may: impl FnOnce(Vec<KeptKey>, Vec<KeptProject>) -> bool + Send,
    ) -> Result<Ended, StoreError> {
        let mut tx = db.write_keys_alone().await?;
        let (keys, projects) = (keys::read_all(&mut *tx).await?, projects::read_all(&mut *tx).await?);
        if !known(&keys, &projects) {
            return Ok(Ended::Unknown);
        }
        if !may(keys, projects) {
            return Ok(Ended::Refused);
        }
        sqlx::query(self.statement).bind(signed(self.now_ms)).bind(self.name).execute(&mut *tx).await?;
        tx.commit().await?;
        Ok(Ended::Done)
    }
}
