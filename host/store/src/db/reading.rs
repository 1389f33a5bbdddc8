//! Reading much, as searches, pages and sums do: in turns, by tenant.

use super::{ANSWER, Db};
use crate::error::StoreError;
use std::pin::pin;
use std::time::Duration;
use tidegate_turns::{Owner, Turn};
use tokio::sync::oneshot;

/// How many of those who read much, as searches and pages are, are at the database at once: however many one tenant asks for,
/// others find a connection, and those who read much a turn.
pub(super) const READERS: usize = 2;

/// What is read in a turn ([`Db::in_turn`]) may take so long: others wait for it.
const LONGEST_READ: Duration = Duration::from_secs(60);

impl Db {
    /// Reads much once it is the owner's turn, for [`LONGEST_READ`] at most. The turn is not another's before the database has
    /// answered, be who asked gone before; but for [`ANSWER`] at most: it may have gone without a word.
    pub async fn in_turn<T: Send + 'static>(
        &self,
        owner: &Owner,
        read: impl Future<Output = Result<T, StoreError>> + Send + 'static,
    ) -> Result<T, StoreError> {
        let turn = self.readers.take(owner, 1).await;
        read_in(turn, ANSWER, read).await
    }
}

/// Reads, and gives back the turn behind it; of a read that nobody waits for any more, after `patience` in any case.
async fn read_in<T: Send + 'static>(
    turn: Turn,
    patience: Duration,
    read: impl Future<Output = Result<T, StoreError>> + Send + 'static,
) -> Result<T, StoreError> {
    let (mut told, found) = oneshot::channel();
    tokio::spawn(async move {
        let mut read = pin!(tokio::time::timeout(LONGEST_READ, read));
        tokio::select! {
            found = &mut read => drop(told.send(found)),
            () = told.closed() => drop(tokio::time::timeout(patience, read).await),
        }
        drop(turn);
    });
    let found = found.await.map_err(|_| sqlx::Error::WorkerCrashed)?;
    found.map_err(|_| sqlx::Error::Io(std::io::ErrorKind::TimedOut.into()))?
}

#[cfg(test)]
mod tests {
    use super::super::{PATIENCE, Place};
    use super::*;
    use std::sync::{Arc, Mutex};
    use tidegate_turns::Turns;
    use tidegate_types::{Class, TenantId};

    /// As of a database whose machine is lost.
    #[tokio::test]
    async fn a_read_that_nobody_waits_for_and_that_does_not_end_gives_its_turn_back() {
        let (turns, owner) =
            (Turns::new(1), Owner { tenant: TenantId::new("ann"), class: Class::default(), weight: 1 });
        let turn = turns.take(&owner, 1).await;
        let asked = read_in(turn, Duration::from_millis(20), std::future::pending::<Result<(), StoreError>>());
        assert!(tokio::time::timeout(Duration::from_millis(1), asked).await.is_err());
        let next = tokio::time::timeout(PATIENCE, turns.take(&owner, 1)).await;
        assert!(next.is_ok(), "nobody else reads until the gateway starts again");
    }

    #[tokio::test]
    async fn who_reads_much_leaves_others_a_connection_and_the_next_turn() {
        let folder = tempfile::tempdir().unwrap();
        let db = Db::open(&Place::Folder(folder.path().to_owned())).await.unwrap();
        let (go, may_go) = tokio::sync::watch::channel(false);
        let begun = Arc::new(Mutex::new(Vec::new()));
        let reads = |name: &'static str| {
            let (db, of_read, mut may_go, begun) = (db.clone(), db.clone(), may_go.clone(), Arc::clone(&begun));
            tokio::spawn(async move {
                let owner = Owner { tenant: TenantId::new(name), class: Class::default(), weight: 1 };
                let read = async move {
                    begun.lock().unwrap().push(name);
                    let _connection = of_read.pool().acquire().await?;
                    may_go.wait_for(|go| *go).await.unwrap();
                    Ok(())
                };
                db.in_turn(&owner, read).await
            })
        };
        let gone: Vec<_> = (0..READERS).map(|_| reads("ann")).collect();
        tokio::task::yield_now().await;
        // Who asked is gone, and the database is not done with it.
        gone.iter().for_each(|gone| gone.abort());
        let mut waiting: Vec<_> = (0..20).map(|_| reads("ann")).collect();
        tokio::task::yield_now().await;
        waiting.push(reads("bob"));
        tokio::task::yield_now().await;
        tokio::time::timeout(PATIENCE / 2, db.ping()).await.expect("a connection is left").unwrap();
        go.send(true).unwrap();
        for reading in waiting {
            reading.await.unwrap().unwrap();
        }
        let begun = begun.lock().unwrap();
        assert_eq!(begun.len(), READERS + 21);
        let bob = begun.iter().position(|name| *name == "bob").unwrap();
        assert!(bob <= READERS + 1, "{begun:?}");
    }
}
