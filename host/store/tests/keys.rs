//! Keys that are made while the server runs, on each database.

mod support;

use support::on_each;
use tidegate_store::{KeptKey, Keys};

fn key(name: &str, hash: &str) -> KeptKey {
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

#[tokio::test]
async fn a_name_is_taken_while_its_key_is_valid() {
    on_each(|fresh| async move {
        let keys = Keys::new(fresh.db.clone());
        assert!(keys.add(&key("b", "h1")).await.unwrap());
        assert!(keys.add(&KeptKey { expires_ms: Some(9), ..key("a", "h2") }).await.unwrap());
        assert!(!keys.add(&key("b", "h3")).await.unwrap());
        let all = keys.all().await.unwrap();
        assert_eq!(all, [KeptKey { expires_ms: Some(9), ..key("a", "h2") }, key("b", "h1")], "{}", fresh.name);
        assert!(keys.add(&KeptKey { created_ms: 10, ..key("a", "h4") }).await.unwrap(), "the other has expired");
        assert!(keys.revoke("b", 7).await.unwrap());
        assert!(!keys.revoke("b", 8).await.unwrap());
        assert!(!keys.revoke("nobody", 8).await.unwrap());
        assert!(keys.add(&key("b", "h3")).await.unwrap(), "the other was taken back");
    })
    .await;
}

#[tokio::test]
async fn a_key_takes_anothers_place_and_leaves_it_some_time() {
    on_each(|fresh| async move {
        let keys = Keys::new(fresh.db.clone());
        assert!(!keys.rotate(&key("a", "h1"), 50).await.unwrap(), "there is none to take the place of");
        assert!(keys.add(&key("a", "h1")).await.unwrap());
        assert!(keys.rotate(&KeptKey { created_ms: 10, ..key("a", "h2") }, 50).await.unwrap());
        assert!(keys.rotate(&KeptKey { created_ms: 20, ..key("a", "h3") }, 70).await.unwrap());
        let ends: Vec<_> = keys.all().await.unwrap().into_iter().map(|key| (key.hash, key.expires_ms)).collect();
        let expected = [("h3", None), ("h2", Some(70)), ("h1", Some(50))];
        assert_eq!(ends, expected.map(|(hash, end)| (hash.to_owned(), end)), "{}", fresh.name);
    })
    .await;
}
