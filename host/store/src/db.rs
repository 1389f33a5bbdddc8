//! Opening the database.

use crate::error::StoreError;
use crate::migrations::migrator;
use log::LevelFilter;
use sqlx::any::{AnyConnectOptions, AnyPoolOptions};
use sqlx::{Any, AnyPool, ConnectOptions, Connection, Executor, Transaction};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

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
    kind: Kind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Sqlite,
    Postgres,
}

/// How long a statement waits for a connection, and SQLite's writers for each other.
const PATIENCE: Duration = Duration::from_secs(5);

/// Statements that take longer are logged.
const SLOW: Duration = Duration::from_millis(500);

/// For each connection to SQLite. WAL lets readers go on while one writes; FULL keeps what was acknowledged through a
/// loss of power; what is deleted is overwritten.
const PRAGMAS: &str = "PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL; PRAGMA busy_timeout = 5000; \
                       PRAGMA foreign_keys = ON; PRAGMA secure_delete = ON;";

impl Db {
    /// Opens it, making it where it is SQLite's, and brings its tables to this program's version.
    pub async fn open(place: &Place) -> Result<Self, StoreError> {
        sqlx::any::install_default_drivers();
        let (kind, url, connections) = match place {
            Place::Folder(folder) => (Kind::Sqlite, sqlite_url(folder)?, 4),
            Place::Postgres(url) => (Kind::Postgres, url.clone(), 8),
        };
        let options = AnyConnectOptions::from_str(&url)?
            .log_statements(LevelFilter::Trace)
            .log_slow_statements(LevelFilter::Warn, SLOW);
        let pool = AnyPoolOptions::new()
            .max_connections(connections)
            .acquire_timeout(PATIENCE)
            .after_connect(move |connection, _| {
                let pragmas = if kind == Kind::Sqlite { PRAGMAS } else { "SELECT 1" };
                Box::pin(async move { connection.execute(pragmas).await.map(drop) })
            })
            .before_acquire(|connection, _| Box::pin(std::future::ready(Ok(is_idle(connection)))))
            .connect_with(options)
            .await?;
        migrator().run(&pool).await?;
        Ok(Self { pool, kind })
    }

    /// For reading.
    pub(crate) fn pool(&self) -> &AnyPool {
        &self.pool
    }

    /// How many connections it has at most.
    pub(crate) fn connections(&self) -> u32 {
        self.pool.options().get_max_connections()
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
            Kind::Postgres => self.pool.begin().await?,
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

    /// Moves what was written into the database's own file, and empties SQLite's log.
    pub(crate) async fn checkpoint(&self) -> Result<(), StoreError> {
        if self.kind == Kind::Sqlite {
            sqlx::query("PRAGMA wal_checkpoint(TRUNCATE)").execute(&self.pool).await?;
        }
        Ok(())
    }

    /// Asks for an answer.
    pub async fn ping(&self) -> Result<(), StoreError> {
        sqlx::query("SELECT 1").execute(&self.pool).await?;
        Ok(())
    }

    /// Closes its connections, once their statements have ended.
    pub async fn close(&self) {
        self.pool.close().await;
    }
}

/// Whether a connection is in no transaction. SQLite ends one by itself when its disk is full, which the driver does not
/// notice: it would refuse to begin another on that connection for ever. The pool closes what is not idle.
fn is_idle(connection: &sqlx::AnyConnection) -> bool {
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
