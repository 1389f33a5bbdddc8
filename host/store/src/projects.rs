//! Projects that are made while the server runs.

use crate::db::Db;
use crate::ended::{Ended, Ending};
use crate::error::StoreError;
use crate::keys::KeptKey;
use crate::usage::{signed, unsigned};
use sqlx::any::AnyRow;
use sqlx::{Any, Executor, Row, Transaction};

/// A project as it is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeptProject {
    /// No other project of any tenant has it.
    pub id: String,
    /// Whose.
    pub tenant: String,
    /// What else there is to say of it, as JSON; the store does not look into it.
    pub settings: String,
    /// Milliseconds since 1970.
    pub created_ms: u64,
    /// The key that made it.
    pub created_by: String,
    /// Since when nobody may use it.
    pub archived_ms: Option<u64>,
}

/// Archived projects for each that is not.
const ARCHIVED: u64 = 3;
const DAY_MS: u64 = 24 * 3600 * 1000;

/// The projects that are kept.
#[derive(Clone, Debug)]
pub struct Projects(Db);

impl Projects {
    /// Of `db`.
    pub fn new(db: Db) -> Self {
        Self(db)
    }

    /// Keeps a new project, where its tenant has fewer than `most` that are not archived, and not three times as many
    /// that are; says whether it did. Of those that were archived longer than a day ago the last `most` are kept.
    pub async fn add(&self, project: &KeptProject, most: u32) -> Result<bool, StoreError> {
        let mut tx = self.0.write().await?;
        forget(&mut tx, project, most).await?;
        let row = sqlx::query("SELECT COUNT(*), COUNT(archived_ms) FROM projects WHERE tenant = $1")
            .bind(project.tenant.as_str())
            .fetch_one(&mut *tx)
            .await?;
        let (all, archived) = (unsigned(row.try_get::<i64, _>(0)?), unsigned(row.try_get::<i64, _>(1)?));
        let most = u64::from(most);
        let fits = all.saturating_sub(archived) < most && archived < most.saturating_mul(ARCHIVED);
        if fits {
            sqlx::query(
                "INSERT INTO projects (id, tenant, settings, created_ms, created_by) VALUES ($1, $2, $3, $4, $5)",
            )
            .bind(project.id.as_str())
            .bind(project.tenant.as_str())
            .bind(project.settings.as_str())
            .bind(signed(project.created_ms))
            .bind(project.created_by.as_str())
            .execute(&mut *tx)
            .await?;
        }
        tx.commit().await?;
        Ok(fits)
    }

    /// Other settings from now on, where nobody has changed them since they were `before`; says whether it did.
    pub async fn update(&self, id: &str, before: &str, settings: &str) -> Result<bool, StoreError> {
        let done =
            sqlx::query("UPDATE projects SET settings = $1 WHERE id = $2 AND settings = $3 AND archived_ms IS NULL")
                .bind(settings)
                .bind(id)
                .bind(before)
                .execute(self.0.pool())
                .await?;
        Ok(done.rows_affected() > 0)
    }

    /// Nobody may use it from now on, where `may` agrees; that is asked as by [`crate::Keys::revoke`].
    pub async fn archive(
        &self,
        id: &str,
        now_ms: u64,
        may: impl FnOnce(Vec<KeptKey>, Vec<KeptProject>) -> bool + Send,
    ) -> Result<Ended, StoreError> {
        let statement = "UPDATE projects SET archived_ms = $1 WHERE id = $2 AND archived_ms IS NULL";
        let is_it = |project: &KeptProject| project.id == id && project.archived_ms.is_none();
        let known = |_: &[_], projects: &[KeptProject]| projects.iter().any(is_it);
        Ending { statement, name: id, now_ms }.run(&self.0, known, may).await
    }

    /// All projects, the archived ones included, the oldest first.
    pub async fn all(&self) -> Result<Vec<KeptProject>, StoreError> {
        read_all(self.0.pool()).await
    }
}

/// Forgets what the tenant archived, but for the last. What plugins kept for a project is removed for its being archived, and its
/// conversations are deleted, also what a request wrote that ran meanwhile: it stays until there is nothing.
async fn forget(tx: &mut Transaction<'static, Any>, project: &KeptProject, most: u32) -> Result<(), StoreError> {
    sqlx::query(
        "DELETE FROM projects WHERE id IN ( \
             SELECT id FROM projects WHERE tenant = $1 AND archived_ms <= $2 \
             ORDER BY archived_ms DESC, id LIMIT $3 OFFSET $4) \
         AND NOT EXISTS (SELECT 1 FROM plugin_spaces WHERE owner = projects.id) \
         AND NOT EXISTS (SELECT 1 FROM plugin_vector_owners WHERE owner = projects.id) \
         AND NOT EXISTS (SELECT 1 FROM conversations WHERE tenant = projects.id AND deleted_ms = 0)",
    )
    .bind(project.tenant.as_str())
    .bind(signed(project.created_ms.saturating_sub(DAY_MS)))
    .bind(i64::MAX)
    .bind(i64::from(most))
    .execute(&mut **tx)
    .await?;
    Ok(())
}

pub(crate) async fn read_all<'c>(from: impl Executor<'c, Database = Any>) -> Result<Vec<KeptProject>, StoreError> {
    let rows = sqlx::query(
        "SELECT id, tenant, settings, created_ms, created_by, archived_ms FROM projects ORDER BY created_ms, id",
    )
    .fetch_all(from)
    .await?;
    rows.iter().map(|row| Ok(project(row)?)).collect()
}

fn project(row: &AnyRow) -> Result<KeptProject, sqlx::Error> {
    Ok(KeptProject {
        id: row.try_get(0)?,
        tenant: row.try_get(1)?,
        settings: row.try_get(2)?,
        created_ms: unsigned(row.try_get(3)?),
        created_by: row.try_get(4)?,
        archived_ms: row.try_get::<Option<i64>, _>(5)?.map(unsigned),
    })
}
