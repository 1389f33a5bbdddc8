//! People who are logged in, on each database.

mod support;

use support::on_each;
use tidegate_store::{KeptSession, Sessions};

fn session(hash: &str, at_ms: u64) -> KeptSession {
    KeptSession {
        hash: hash.into(),
        tenant: "t".into(),
        claims: "{\"user\":\"ann\"}".into(),
        created_ms: at_ms,
        seen_ms: at_ms,
        ends_ms: at_ms + 1000,
    }
}

#[tokio::test]
async fn a_session_is_found_until_it_ends_or_another_takes_its_place() {
    on_each(|fresh| async move {
        let sessions = Sessions::new(fresh.db.clone());
        let found = async |hash: &str| sessions.find(hash).await.unwrap();
        sessions.open(&session("a", 100), None, 0).await.unwrap();
        sessions.open(&session("b", 110), None, 0).await.unwrap();
        assert_eq!(found("a").await, Some(session("a", 100)), "{}", fresh.name);
        sessions.touch("a", 300).await.unwrap();
        sessions.touch("a", 200).await.unwrap();
        assert_eq!(found("a").await.unwrap().seen_ms, 300, "it never goes back");
        sessions.open(&session("c", 400), Some("a"), 110).await.unwrap();
        assert_eq!((found("a").await, found("b").await), (None, None), "replaced, and idle");
        sessions.open(&session("d", 1400), None, 0).await.unwrap();
        assert_eq!(found("c").await, None, "over");
        assert!(sessions.end("d").await.unwrap() && !sessions.end("d").await.unwrap());
        assert_eq!(found("d").await, None);
    })
    .await;
}
