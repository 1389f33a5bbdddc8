//! Opening, and coming back.

mod support;

use support::on_each;
use tidegate_store::{Db, Place, StoreError};

#[tokio::test]
async fn a_database_is_made_once_and_opened_again() {
    on_each(|fresh| async move {
        fresh.db.ping().await.unwrap();
        let again = Db::open(&fresh.place).await.unwrap();
        again.ping().await.unwrap();
        again.close().await;
    })
    .await;
}

#[tokio::test]
async fn a_database_that_is_not_there_is_away() {
    let place = Place::Postgres("postgres://nobody@127.0.0.1:1/none".into());
    assert!(matches!(Db::open(&place).await, Err(StoreError::Unavailable(_))));
}

#[tokio::test]
async fn tables_of_a_newer_program_are_left_alone() {
    on_each(|fresh| async move {
        let url = match &fresh.place {
            Place::Postgres(url) => url.clone(),
            Place::Folder(_) => return,
        };
        let pool = sqlx::AnyPool::connect(&url).await.unwrap();
        let newer = "INSERT INTO _sqlx_migrations (version, description, success, checksum, execution_time) \
                     VALUES (999, 'newer', TRUE, ''::bytea, 0)";
        sqlx::query(newer).execute(&pool).await.unwrap();
        let error = Db::open(&fresh.place).await.unwrap_err();
        assert!(matches!(error, StoreError::Migration(_)), "{}: {error}", fresh.name);
        pool.close().await;
    })
    .await;
}

/// A server of another version may be at it.
#[tokio::test]
async fn who_only_reads_changes_no_tables_and_makes_none() {
    on_each(|fresh| async move {
        Db::open_as_it_is(&fresh.place).await.unwrap().close().await;
        let raw = fresh.raw().await;
        sqlx::query("DELETE FROM _sqlx_migrations WHERE version = 22").execute(&raw).await.unwrap();
        let error = Db::open_as_it_is(&fresh.place).await.unwrap_err();
        assert!(matches!(error, StoreError::OtherVersion { found: 21, .. }), "{}: {error}", fresh.name);
        sqlx::query("DROP TABLE _sqlx_migrations").execute(&raw).await.unwrap();
        let error = Db::open_as_it_is(&fresh.place).await.unwrap_err();
        assert!(matches!(error, StoreError::OtherVersion { found: 0, .. }), "{}: {error}", fresh.name);
        raw.close().await;
    })
    .await;
    let folder = tempfile::tempdir().unwrap();
    let nowhere = folder.path().join("nowhere");
    let error = Db::open_as_it_is(&Place::Folder(nowhere.clone())).await.unwrap_err();
    assert!(matches!(error, StoreError::Absent { .. }) && !nowhere.exists(), "{error}");
}

#[tokio::test]
async fn a_lasting_key_is_made_once_whoever_asks() {
    on_each(|fresh| async move {
        let other = Db::open(&fresh.place).await.unwrap();
        let (one, two) = tokio::join!(fresh.db.lasting_key("a", "1"), other.lasting_key("a", "2"));
        let key = one.unwrap();
        assert!(["1", "2"].contains(&key.as_str()), "{}: {key}", fresh.name);
        assert_eq!(two.unwrap(), key, "{}", fresh.name);
        assert_eq!(fresh.db.lasting_key("b", "3").await.unwrap(), "3", "{}", fresh.name);
        other.close().await;
        let again = Db::open(&fresh.place).await.unwrap();
        assert_eq!(again.lasting_key("a", "4").await.unwrap(), key, "{}", fresh.name);
        again.close().await;
    })
    .await;
}
