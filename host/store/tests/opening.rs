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
