//! What can go wrong with a database.

use sqlx::migrate::MigrateError;
use std::path::PathBuf;

/// Why something was not stored or read.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The folder cannot be made.
    #[error("the store's folder {path} cannot be made: {cause}")]
    Folder {
        /// The folder.
        path: PathBuf,
        /// The system's reason.
        cause: std::io::Error,
    },
    /// There is no room left to write: on the disk, or what the database was given.
    #[error("the database has no room left: {0}")]
    Full(sqlx::Error),
    /// The database does not answer, or not in time; what was asked may be asked again.
    #[error("the database does not answer: {0}")]
    Unavailable(sqlx::Error),
    /// What was deleted is left in SQLite's log for now.
    #[error("SQLite's log is not emptied while others read or write the database for long; it is tried again")]
    LogInUse,
    /// There is none to be read.
    #[error("there is no database {path} to be read: {cause}")]
    Absent {
        /// Where it would be.
        path: PathBuf,
        /// The system's reason.
        cause: std::io::Error,
    },
    /// Its tables are of another program than this one, which only reads.
    #[error(
        "the tables of the database are of version {found}, and this program reads version {own}: use the program of the \
         server that runs, or start a server with this one first"
    )]
    OtherVersion {
        /// How many steps have made them.
        found: i64,
        /// How many this program knows.
        own: i64,
    },
    /// Its tables are not those of this program.
    #[error("the database cannot be brought to this program's version: {0}")]
    Migration(MigrateError),
    /// A row does not hold what was written.
    #[error("a row of the database cannot be read: {0}")]
    Body(serde_json::Error),
    /// A statement failed, which is a defect here or a change made by others.
    #[error("the database refused a statement: {0}")]
    Statement(sqlx::Error),
}

// Not `#[from]`, which makes it the source too: the message has it, and who prints sources would say it twice.
impl From<MigrateError> for StoreError {
    fn from(error: MigrateError) -> Self {
        Self::Migration(error)
    }
}

impl StoreError {
    /// Whether the database answers, but somebody held what was asked for and did not let go of it in time.
    pub fn is_held(&self) -> bool {
        matches!(self, Self::Unavailable(error) if matches!(what(error), Some(Condition::Held)))
    }
}

impl From<sqlx::Error> for StoreError {
    fn from(error: sqlx::Error) -> Self {
        match what(&error) {
            Some(Condition::Full) => Self::Full(error),
            Some(Condition::Away | Condition::Held) => Self::Unavailable(error),
            _ if is_of_the_connection(&error) => Self::Unavailable(error),
            _ => Self::Statement(error),
        }
    }
}

/// Whether no statement was at fault. A server that is cut off may be heard to break the protocol: what closes a connection
/// before it answers has, to a client that asks for TLS, said a zero.
fn is_of_the_connection(error: &sqlx::Error) -> bool {
    use sqlx::Error::{Io, PoolClosed, PoolTimedOut, Protocol, Tls, WorkerCrashed};
    matches!(error, Io(_) | PoolClosed | PoolTimedOut | Protocol(_) | Tls(_) | WorkerCrashed)
}

enum Condition {
    Full,
    Away,
    /// By others, for too long: a row, a table, SQLite's one lock.
    Held,
    Other,
}

/// What the database says, where it is the database that says it.
fn what(error: &sqlx::Error) -> Option<Condition> {
    error.as_database_error()?.code().map(|code| condition(&code))
}

/// What a database's code means: Postgres' have five characters, SQLite's are numbers whose lowest byte counts
/// (<https://www.sqlite.org/rescode.html>, <https://www.postgresql.org/docs/current/errcodes-appendix.html>).
fn condition(code: &str) -> Condition {
    if code.len() == 5 && !code.starts_with('1') {
        return match code {
            "53100" => Condition::Full,
            // lock_not_available, query_canceled, which is what a statement's timeout says, and whom the database gives up of
            // several that wait for each other: deadlock_detected, serialization_failure.
            "55P03" | "57014" | "40P01" | "40001" => Condition::Held,
            // The session is closed whose transaction was idle for too long.
            "25P03" => Condition::Away,
            _ if ["08", "53", "57P"].iter().any(|class| code.starts_with(class)) => Condition::Away,
            _ => Condition::Other,
        };
    }
    match code.parse::<u32>().map(|number| number & 0xff) {
        // SQLITE_FULL.
        Ok(13) => Condition::Full,
        // Busy, locked.
        Ok(5 | 6) => Condition::Held,
        // Read-only, IO error, cannot open.
        Ok(8 | 10 | 14) => Condition::Away,
        _ => Condition::Other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_that_breaks_is_no_statements_fault() {
        let closed = sqlx::Error::Protocol("unexpected response from SSLRequest: 0x00".into());
        for error in [closed, sqlx::Error::WorkerCrashed, sqlx::Error::PoolTimedOut] {
            assert!(matches!(StoreError::from(error), StoreError::Unavailable(_)));
        }
        assert!(matches!(StoreError::from(sqlx::Error::RowNotFound), StoreError::Statement(_)));
    }

    #[test]
    fn codes_of_both_databases_are_understood() {
        let meant = |code: &str| match condition(code) {
            Condition::Full => "full",
            Condition::Away => "away",
            Condition::Held => "held",
            Condition::Other => "other",
        };
        for (code, meaning) in [
            ("13", "full"),
            ("5", "held"),
            ("517", "held"),
            ("6", "held"),
            ("10", "away"),
            ("2067", "other"),
            ("53100", "full"),
            ("53300", "away"),
            ("57P01", "away"),
            ("08006", "away"),
            ("25P03", "away"),
            ("55P03", "held"),
            ("57014", "held"),
            ("40P01", "held"),
            ("40001", "held"),
            ("23505", "other"),
            ("42601", "other"),
        ] {
            assert_eq!(meant(code), meaning, "{code}");
        }
    }
}
