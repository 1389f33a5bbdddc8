//! Opening the database. Next: `db/reading.rs`, for who reads much of it.

mod reading;

use crate::error::StoreError;
use crate::migrations::migrator;
use log::LevelFilter;
use sqlx::any::{AnyConnectOptions, AnyPoolOptions};
use sqlx::{Any, AnyConnection, AnyPool, ConnectOptions, Connection, Executor, Row, Transaction};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tidegate_turns::Turns;

/// Where the database is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// SQLite: `tidegate.db` in this folder, which is made where it is not there.
    Folder(PathBuf),
    /// Postgres, by URL.
    Postgres(String),
}

/// An open database, at this program's version. Clones share its connections.
#[derive(Clone, Debug)]
pub struct Db {
    pool: AnyPool,
    /// What plugins keep is read and written by these: the same ones with SQLite, others with Postgres.
    of_plugins: AnyPool,
    kind: Kind,
    /// Of those who read much.
    readers: Turns,
    /// Whether SQLite's log may have what was deleted: something was since it was last emptied, or may have been before the
    /// start.
    has_deleted: Arc<AtomicBool>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Sqlite,
    Postgres,
}

/// How long a statement waits for a connection, SQLite's writers for each other, and a plugin's statement for those who hold
/// what it is about.
const PATIENCE: Duration = Duration::from_secs(5);

/// How long a connection that is given back may take to answer. What was begun on it is ended first, but one that is dead without
/// a word would be of use to nobody until the system notices, and nothing could be closed.
const ANSWER: Duration = Duration::from_secs(10);

/// Statements that take longer are logged.
const SLOW: Duration = Duration::from_millis(500);

/// For each connection to SQLite. WAL lets readers go on while one writes; FULL keeps what was acknowledged through a
/// loss of power; what is deleted is overwritten.
const PRAGMAS: &str = "PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL; PRAGMA busy_timeout = 5000; \
                       PRAGMA foreign_keys = ON; PRAGMA secure_delete = ON;";

/// Most connections to SQLite: two for calls of plugins and one for a sweep, [`reading::READERS`], and one for all else.
const OF_SQLITE: u32 = 6;

/// Most connections to Postgres: for what plugins keep, and for all else.
const OF_PLUGINS: u32 = 5;
const OF_ALL_ELSE: u32 = 8;

/// For each connection to Postgres that is of all else, whose statements may take long. One that is given up ([`ANSWER`]) may have
/// one there that waits for somebody, and the server would go on with it beside those of the connection that takes its place:
/// so it looks each second whether the connection is still there. Before 14, and on another system than Linux, it may not be able
/// to.
const SETTINGS_OF_ALL_ELSE: &str = "SELECT set_config(name, '1000', false) FROM pg_settings \
                                    WHERE name = 'client_connection_check_interval' AND version() LIKE '%linux%'";

/// For each connection to Postgres that is of plugins. A call that nobody waits for any more has its connection until the server
/// answers, and somebody may hold the row that it waits for as long as they like: so the server ends that wait. Nor does a
/// gateway that stops in the middle of a transaction hold a row against the others.
const SETTINGS_OF_PLUGINS: &str = "SET statement_timeout = 5000; SET idle_in_transaction_session_timeout = 5000;";

impl Db {
    /// Opens it, making it where it is SQLite's, and brings its tables to this program's version.
    pub async fn open(place: &Place) -> Result<Self, StoreError> {
        let db = Self::connect(place).await?;
        migrator().run(&db.pool).await?;
        Ok(db)
    }

    /// Opens one that is there and of this program's version, for who reads beside a server that may be of another.
    pub async fn open_as_it_is(place: &Place) -> Result<Self, StoreError> {
        if let Place::Folder(folder) = place {
            let path = folder.join("tidegate.db");
            std::fs::metadata(&path).map_err(|cause| StoreError::Absent { path, cause })?;
        }
        let db = Self::connect(place).await?;
        let (found, own) = (db.version().await?, migrator().iter().map(|step| step.version).max().unwrap_or(0));
        if found == own { Ok(db) } else { Err(StoreError::OtherVersion { found, own }) }
    }

    /// How many steps have made its tables.
    async fn version(&self) -> Result<i64, StoreError> {
        let asked = "SELECT MAX(version) FROM _sqlx_migrations";
        match sqlx::query(asked).fetch_one(&self.pool).await {
            Ok(row) => Ok(row.try_get::<Option<i64>, _>(0)?.unwrap_or(0)),
            // It has no tables at all. Of SQLite's failures the message alone says so.
            Err(sqlx::Error::Database(error))
                if error.code().as_deref() == Some("42P01") || error.message().starts_with("no such table") =>
            {
                Ok(0)
            }
            Err(error) => Err(error.into()),
        }
    }

    async fn connect(place: &Place) -> Result<Self, StoreError> {
        sqlx::any::install_default_drivers();
        let (kind, url) = match place {
            Place::Folder(folder) => (Kind::Sqlite, sqlite_url(folder)?),
            Place::Postgres(url) => (Kind::Postgres, url.clone()),
        };
        let options = AnyConnectOptions::from_str(&url)?
            .log_statements(LevelFilter::Trace)
            .log_slow_statements(LevelFilter::Warn, SLOW);
        let (pool, of_plugins) = match kind {
            Kind::Sqlite => {
                let pool = bounded(OF_SQLITE, PRAGMAS).connect_with(options).await?;
                (pool.clone(), pool)
            }
            Kind::Postgres => {
                let of_plugins = bounded(OF_PLUGINS, SETTINGS_OF_PLUGINS).connect_lazy_with(options.clone());
                (bounded(OF_ALL_ELSE, SETTINGS_OF_ALL_ELSE).connect_with(options).await?, of_plugins)
            }
        };
        Ok(Self {
            pool,
            of_plugins,
            kind,
            readers: Turns::new(reading::READERS),
            has_deleted: Arc::new(AtomicBool::new(true)),
        })
    }

    /// The same database for what plugins keep. With Postgres it has connections of its own, whose statements the server ends
    /// when somebody holds what they wait for: whatever plugins do, all else finds a connection.
    pub(crate) fn of_plugins(&self) -> Self {
        Self { pool: self.of_plugins.clone(), ..self.clone() }
    }

    /// For reading.
    pub(crate) fn pool(&self) -> &AnyPool {
        &self.pool
    }

    /// Whether who writes holds all there is, and not only the rows it is about.
    pub(crate) fn is_held_as_a_whole(&self) -> bool {
        self.kind == Kind::Sqlite
    }

    /// Of two statements the one that is this database's.
    pub(crate) fn either(&self, sqlite: &'static str, postgres: &'static str) -> &'static str {
        match self.kind {
            Kind::Sqlite => sqlite,
            Kind::Postgres => postgres,
        }
    }

    /// Begins a transaction that writes. SQLite's takes the one write lock at once: a transaction that had read
    /// before could not have it later.
    pub(crate) async fn write(&self) -> Result<Transaction<'static, Any>, StoreError> {
        Ok(match self.kind {
            Kind::Sqlite => self.pool.begin_with("BEGIN IMMEDIATE").await?,
            Kind::Postgres => {
                // Who does not wait any more is in nobody's way to a connection.
                let connection = self.pool.acquire().await?;
                // To its end, also where nobody waits for it any more: of a BEGIN that is dropped before it is answered the
                // driver does not know, and what others write by that connection later would be in its transaction.
                let begun = tokio::spawn(Transaction::begin(connection, None));
                begun.await.map_err(|_| sqlx::Error::WorkerCrashed)??
            }
        })
    }

    /// As [`Self::write`], with nothing else that writes keys or projects beside it: what is read of them stays so until it
    /// ends.
    pub(crate) async fn write_keys_alone(&self) -> Result<Transaction<'static, Any>, StoreError> {
        let mut tx = self.write().await?;
        if self.kind == Kind::Postgres {
            sqlx::query("LOCK TABLE api_keys, projects IN SHARE ROW EXCLUSIVE MODE").execute(&mut *tx).await?;
        }
        Ok(tx)
    }

    /// To be said before something that is deleted or replaced is so for good: nobody empties the log before that, since it is
    /// not emptied while somebody writes.
    pub(crate) fn will_have_deleted(&self) {
        self.has_deleted.store(true, Ordering::Relaxed);
    }

    /// Moves what was written into the database's own file and empties SQLite's log, where that has something that was deleted:
    /// then nothing of it is left in the files. [`StoreError::LogInUse`] where it has to be tried again.
    pub(crate) async fn wipe(&self) -> Result<(), StoreError> {
        if self.kind != Kind::Sqlite || !self.has_deleted.swap(false, Ordering::Relaxed) {
            return Ok(());
        }
        // To its end, also where nobody waits for it any more: the connection is less patient meanwhile, and that the log has
        // something would be forgotten.
        let db = self.clone();
        let emptying = async move { db.empty_log().await.inspect_err(|_| db.will_have_deleted()) };
        tokio::spawn(emptying).await.map_err(|_| sqlx::Error::WorkerCrashed)?
    }

    async fn empty_log(&self) -> Result<(), StoreError> {
        let mut connection = self.pool.acquire().await?;
        // Nobody writes while it waits for those who read, which may be for long.
        connection.execute("PRAGMA busy_timeout = 500").await?;
        let done = sqlx::query("PRAGMA wal_checkpoint(TRUNCATE)").fetch_one(&mut *connection).await;
        connection.execute("PRAGMA busy_timeout = 5000").await?;
        // That it could not is no error to SQLite: it is the first column of what it answers.
        if done?.try_get::<i64, _>(0)? == 0 { Ok(()) } else { Err(StoreError::LogInUse) }
    }

    /// How many calls of plugins that read may be at the database at once, and as many that write. With them a sweep has its connection,
    /// and so has with SQLite, where they are not of plugins alone, all else.
    pub fn at_once_for_plugins(&self) -> usize {
        match self.kind {
            Kind::Sqlite => 1,
            Kind::Postgres => (OF_PLUGINS as usize - 1) / 2,
        }
    }

    /// Asks for an answer.
    pub async fn ping(&self) -> Result<(), StoreError> {
        sqlx::query("SELECT 1").execute(&self.pool).await?;
        Ok(())
    }

    /// How SQLite would go about a statement, step by step.
    #[cfg(test)]
    pub(crate) async fn plan(&self, statement: &str) -> Vec<String> {
        let explain = sqlx::query(sqlx::AssertSqlSafe(format!("EXPLAIN QUERY PLAN {statement}")));
        explain.fetch_all(&self.pool).await.unwrap().iter().map(|row| row.get(3)).collect()
    }

    /// That SQLite would find the rows of a statement by what it asks for, and looks through nobody else's: each step has an
    /// index of the tenant's, and more than the tenant bound, or is one of those `besides`.
    #[cfg(test)]
    pub(crate) async fn assert_finds_own(&self, statement: &str, besides: &[&str]) {
        let plan = self.plan(statement).await;
        let reads = plan.iter().filter(|step| step.starts_with("SEARCH ") || step.starts_with("SCAN "));
        let is_fine =
            |step: &&String| step.contains(" (tenant=? AND ") || besides.iter().any(|rest| step.contains(rest));
        let others: Vec<&String> = reads.filter(|step| !is_fine(step)).collect();
        assert!(!plan.is_empty() && others.is_empty(), "{others:?} of {plan:#?}\n{statement}");
    }

    /// Closes its connections, once their statements have ended.
    pub async fn close(&self) {
        tokio::join!(self.of_plugins.close(), self.pool.close());
    }
}

/// Of so many connections, each of which begins with `settings`.
fn bounded(connections: u32, settings: &'static str) -> AnyPoolOptions {
    AnyPoolOptions::new()
        .max_connections(connections)
        .acquire_timeout(PATIENCE)
        .after_connect(move |connection, _| Box::pin(async move { connection.execute(settings).await.map(drop) }))
        .after_release(|connection, _| Box::pin(answers(connection, ANSWER)))
        .before_acquire(|connection, _| Box::pin(std::future::ready(Ok(is_idle(connection)))))
}

/// Whether it does. One that does not is let go of without a word: the pool would say goodbye, which over TLS is no sooner done than
/// the other end says something.
async fn answers(connection: &mut AnyConnection, within: Duration) -> Result<bool, sqlx::Error> {
    if let Ok(answered) = tokio::time::timeout(within, connection.ping()).await {
        return answered.map(|()| true);
    }
    log::warn!("a connection to the database has not answered in {} s and is given up", within.as_secs());
    // For the pool to close in its place.
    let of_nobody = AnyConnection::connect("sqlite::memory:").await?;
    drop(std::mem::replace(connection, of_nobody));
    Ok(false)
}

/// Whether a connection is in no transaction. SQLite ends one by itself when its disk is full, which the driver does not
/// notice: it would refuse to begin another on that connection for ever. The pool closes what is not idle.
fn is_idle(connection: &AnyConnection) -> bool {
    !connection.is_in_transaction()
}

fn sqlite_url(folder: &Path) -> Result<String, StoreError> {
    std::fs::create_dir_all(folder).map_err(|cause| StoreError::Folder { path: folder.to_owned(), cause })?;
    let path = folder.join("tidegate.db");
    let mut url = String::from("sqlite://");
    for byte in path.to_string_lossy().bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'/' | b'.' | b'-' | b'_' => url.push(char::from(byte)),
            _ => url.push_str(&format!("%{byte:02X}")),
        }
    }
    Ok(url + "?mode=rwc")
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    /// As a Postgres whose machine is lost: it lets one in, and is not heard of again.
    #[tokio::test]
    async fn a_connection_that_says_nothing_is_not_waited_for_without_end() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("postgres://root@{}/test?sslmode=disable", listener.local_addr().unwrap());
        let lost = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            assert_ne!(stream.read(&mut [0; 4096]).await.unwrap(), 0);
            // AuthenticationOk, ReadyForQuery.
            stream.write_all(b"R\0\0\0\x08\0\0\0\0Z\0\0\0\x05I").await.unwrap();
            let mut said = Vec::new();
            stream.read_to_end(&mut said).await
        });
        sqlx::any::install_default_drivers();
        let mut connection = AnyConnection::connect(&url).await.unwrap();
        assert!(!answers(&mut connection, Duration::from_millis(50)).await.unwrap());
        lost.await.unwrap().expect("its connection ends");
    }
}
