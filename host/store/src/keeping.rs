//! What `kv` and `vectors` have in common where the operator keeps them here: why something is not kept, who waits for it, how
//! much all of it may be, and how a change ends.

use crate::conversations::Tx;
use crate::db::Db;
use crate::error::StoreError;
use crate::usage::{signed, unsigned};
use sqlx::Row;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};
use tidegate_fair::places::{Part, missing};
use tidegate_types::clock::unix_ms;

/// Why something is not kept or read.
#[derive(Debug, thiserror::Error)]
pub enum KeepError {
    /// There would be more bytes than the quota.
    #[error("the quota is full")]
    Quota,
    /// All together would have more bytes than they may, and those of one share more than that.
    #[error("all together are full")]
    Cap,
    /// The values are more bytes than were allowed for.
    #[error("more than may be read at once")]
    TooMuch,
    /// What is there cannot be added to.
    #[error("what is there is not a number")]
    NotANumber,
    /// What is there, to which so much cannot be added.
    #[error("adding to {0} overflows")]
    Overflow(i64),
    /// A vector of so many dimensions, where the collection's have others.
    #[error("a vector of {0} dimensions, which are not the collection's")]
    Dimensions(usize),
    /// Whoever wanted it has stopped waiting; nothing was changed.
    #[error("nobody waits for it any more")]
    GivenUp,
    /// The database did not do it.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl From<sqlx::Error> for KeepError {
    fn from(error: sqlx::Error) -> Self {
        Self::Store(error.into())
    }
}

/// The database of one of the two, and what is known of it.
#[derive(Clone, Debug)]
pub(crate) struct Keeper {
    pub(crate) db: Db,
    total: Arc<Total>,
    pub(crate) caller: Caller,
    /// A tenant, where what is kept counts for its share and not for the owner's own.
    share: Option<Arc<str>>,
}

/// What a transaction is to change for good.
pub(crate) struct Done<T> {
    pub(crate) answer: T,
    /// The bytes of the space, or owner, that it holds.
    pub(crate) before: u64,
    pub(crate) after: u64,
    /// Whether what nobody reads any more is left in the database's files until the log is emptied.
    pub(crate) leaves_words: bool,
}

impl Keeper {
    /// With so many bytes, of which `sum` ([`sum!`]) says how many there are.
    pub(crate) fn new(db: &Db, cap: u64, sum: &'static str) -> Self {
        Self { db: db.of_plugins(), total: Arc::new(Total::new(cap, sum)), caller: Caller::default(), share: None }
    }

    /// The same for a call of one who waits for as long as `caller` is there.
    pub(crate) fn of_caller(&self, caller: &Arc<()>) -> Self {
        Self { caller: Caller(Some(Arc::downgrade(caller))), ..self.clone() }
    }

    /// The same for a call of an owner whose bytes count for a tenant's share.
    pub(crate) fn of_share(&self, tenant: &str) -> Self {
        Self { share: Some(tenant.into()), ..self.clone() }
    }

    /// Whose share the bytes of an owner count for.
    pub(crate) fn share<'a>(&'a self, owner: &'a str) -> &'a str {
        self.share.as_deref().unwrap_or(owner)
    }

    /// The same, where somebody has said it.
    pub(crate) fn known_share(&self) -> Option<&str> {
        self.share.as_deref()
    }

    /// Refuses what there is no room for.
    pub(crate) async fn check(&self, tx: &mut Tx, owner: &str, room: Room) -> Result<(), KeepError> {
        self.total.check(tx, self.share(owner), room).await
    }

    /// Ends a transaction: for good, or as if it had never been.
    pub(crate) async fn end<T>(&self, tx: Tx, done: Result<Done<T>, KeepError>) -> Result<T, KeepError> {
        match done {
            Ok(Done { answer, before, after, leaves_words }) => {
                if leaves_words {
                    // Not afterwards: nobody may wait for that, and it is done nevertheless.
                    self.db.will_have_deleted();
                }
                tx.commit().await?;
                self.total.changed(before, after);
                Ok(answer)
            }
            Err(error) => {
                // Now, not when the connection is next used: whoever makes room waits for what it holds. Where this fails, so did
                // the connection, which the pool closes; what came first is the reason.
                let _ = tx.rollback().await;
                Err(error)
            }
        }
    }
}

/// Whoever waits for a call, where that may end before the call does.
#[derive(Clone, Debug, Default)]
pub(crate) struct Caller(Option<Weak<()>>);

impl Caller {
    /// Refuses one who does not wait any more: it would undo what came after it.
    pub(crate) fn check(&self) -> Result<(), KeepError> {
        match &self.0 {
            Some(caller) if caller.strong_count() == 0 => Err(KeepError::GivenUp),
            _ => Ok(()),
        }
    }
}

/// For how long a sum over all is good enough: there may be one row for each plugin and project.
const FRESH: Duration = Duration::from_secs(1);

/// The bytes of a table, those of one share of them, and how many other shares have some.
macro_rules! sum {
    ($table:literal) => {
        concat!(
            "SELECT CAST(COALESCE(SUM(bytes), 0) AS BIGINT), \
             CAST(COALESCE(SUM(CASE WHEN share = $1 THEN bytes END), 0) AS BIGINT), \
             COUNT(DISTINCT CASE WHEN share <> $1 AND bytes > 0 THEN share END) FROM ",
            $table
        )
    };
}
pub(crate) use sum;

/// The bytes of all together, and how many there may be.
#[derive(Debug)]
struct Total {
    cap: u64,
    /// Says how many there are.
    sum: &'static str,
    known: Mutex<Option<Known>>,
}

/// What was summed, and what this gateway has changed since.
#[derive(Clone, Copy, Debug)]
struct Known {
    bytes: u64,
    at: Instant,
}

/// What one of them is to have.
pub(crate) struct Room {
    pub(crate) before: u64,
    pub(crate) after: u64,
    pub(crate) quota: u64,
    /// Whether it may be past what all may have, within its share.
    pub(crate) past_cap: bool,
}

impl Total {
    fn new(cap: u64, sum: &'static str) -> Self {
        Self { cap, sum, known: Mutex::default() }
    }

    /// Refuses what there is no room for: past the cap only who has its share of it ([`missing`]). What several gateways add within a second may pass the cap; whatever comes after is
    /// refused. Nobody is refused by what is not known for sure.
    async fn check(&self, tx: &mut Tx, share: &str, room: Room) -> Result<(), KeepError> {
        if room.after > room.quota {
            return Err(KeepError::Quota);
        }
        let grown = room.after.saturating_sub(room.before);
        let fits = |known: Known| known.at.elapsed() < FRESH && known.bytes.saturating_add(grown) <= self.cap;
        let known = *self.lock();
        if grown == 0 || known.is_some_and(fits) {
            return Ok(());
        }
        let row = sqlx::query(self.sum).bind(share).fetch_one(&mut **tx).await?;
        let [bytes, own, others] = [row.try_get(0)?, row.try_get(1)?, row.try_get(2)?].map(unsigned);
        *self.lock() = Some(Known { bytes, at: Instant::now() });
        let own = Part { held: own as usize, share: u128::from(self.cap) / (u128::from(others) + 1) };
        let has_share = room.past_cap && missing(self.cap as usize, bytes as usize, own, grown as usize) == 0;
        if has_share || bytes.saturating_add(grown) <= self.cap { Ok(()) } else { Err(KeepError::Cap) }
    }

    /// One of them has changed, for good.
    fn changed(&self, before: u64, after: u64) {
        if let Some(known) = self.lock().as_mut() {
            known.bytes = (known.bytes + after).saturating_sub(before);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Option<Known>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

pub(crate) fn now_ms() -> i64 {
    signed(unix_ms())
}
