//! Each test on each database: SQLite in a folder of its own, and Postgres in a database of its own where
//! `TIDEGATE_TEST_POSTGRES` names a server.

// A failure here is the failure of the test that called.
#![allow(clippy::unwrap_used)]

use std::future::Future;
use std::sync::atomic::{AtomicU32, Ordering};
use tidegate_store::{Db, KeptKey, Place};

/// A database for one test.
#[allow(dead_code, reason = "each file of tests takes what it needs of it")]
pub struct Fresh {
    pub name: &'static str,
    pub place: Place,
    pub db: Db,
}

#[allow(dead_code, reason = "as above")]
impl Fresh {
    /// The database as another program has it.
    pub async fn raw(&self) -> sqlx::AnyPool {
        let url = match &self.place {
            Place::Folder(folder) => {
                let path = folder.join("tidegate.db").to_string_lossy().replace('%', "%25").replace('?', "%3F");
                format!("sqlite://{}", path.replace(' ', "%20"))
            }
            Place::Postgres(url) => url.clone(),
        };
        sqlx::AnyPool::connect(&url).await.unwrap()
    }
}

/// Keys of a tenant, where a test is not about that.
#[allow(dead_code, reason = "as above")]
pub const MOST: u32 = 100;

/// A key of tenant `t`.
#[allow(dead_code, reason = "as above")]
pub fn key(name: &str, hash: &str) -> KeptKey {
    KeptKey {
        name: name.into(),
        tenant: "t".into(),
        hash: hash.into(),
        settings: "{}".into(),
        created_ms: 5,
        created_by: "root".into(),
        expires_ms: None,
        revoked_ms: None,
    }
}

/// Runs `test` on every database that is there.
pub async fn on_each<F: Future<Output = ()>>(test: impl Fn(Fresh) -> F) {
    let folder = tempfile::tempdir().unwrap();
    let place = Place::Folder(folder.path().join("a folder? 100%"));
    let db = Db::open(&place).await.unwrap();
    test(Fresh { name: "sqlite", place, db }).await;
    let Ok(server) = std::env::var("TIDEGATE_TEST_POSTGRES") else {
        tidegate_skipped::skipped!("on Postgres: TIDEGATE_TEST_POSTGRES names no server");
        return;
    };
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let name = format!("tidegate_{}_{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
    let admin = Server::connect(&server).await;
    admin.run(format!("CREATE DATABASE {name}")).await;
    let (base, _) = server.rsplit_once('/').unwrap();
    let place = Place::Postgres(format!("{base}/{name}"));
    let db = Db::open(&place).await.unwrap();
    test(Fresh { name: "postgres", place, db: db.clone() }).await;
    db.close().await;
    admin.run(format!("DROP DATABASE {name} WITH (FORCE)")).await;
}

struct Server(sqlx::AnyPool);

impl Server {
    async fn connect(url: &str) -> Self {
        sqlx::any::install_default_drivers();
        Self(sqlx::AnyPool::connect(url).await.unwrap())
    }

    async fn run(&self, statement: String) {
        sqlx::query(sqlx::AssertSqlSafe(statement)).execute(&self.0).await.unwrap();
    }
}
