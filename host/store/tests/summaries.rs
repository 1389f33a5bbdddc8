//! Summaries and titles on each database: what they hold for, and that they go with what they are about.
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests, which clippy does not take for tests")]

mod support;

use support::on_each;
use tidegate_store::Conversations;
use tidegate_store::conversations::{
    At, Conversation, Made, MessageStatus, NewMessage, NewResponse, Order, Page, Put, StoredSummary, Turn,
};
use tidegate_types::{Message, Role, TenantId};

fn tenant(name: &str) -> TenantId {
    TenantId::new(name)
}

fn conversation(id: &str, title: &str) -> Conversation {
    Conversation { id: id.into(), title: title.into(), metadata: "{}".into(), leaf: String::new(), created_ms: 1 }
}

fn user(id: &str) -> NewMessage {
    NewMessage {
        id: id.into(),
        client_id: String::new(),
        message: Message::text("", Role::User, id),
        status: MessageStatus::Completed,
        made: Made::default(),
    }
}

fn summary(message: &str, covers: u64) -> StoredSummary {
    let text = format!("up to \0{message}");
    StoredSummary { message: message.into(), covers, text, model: "m".into(), created_ms: 0 }
}

/// The message at which the summary of a branch stands.
async fn stands_at(store: &Conversations, tenant: &TenantId, leaf: &str) -> Option<String> {
    store.summary(tenant, "c", leaf).await.unwrap().map(|summary| summary.message)
}

#[tokio::test]
async fn a_summary_holds_for_branches_through_its_message_and_the_newest_counts() {
    on_each(|fresh| async move {
        let (store, ann, eve) = (Conversations::new(fresh.db.clone()), tenant("ann"), tenant("eve"));
        let messages = ["a", "b", "c1", "d1"].map(user);
        for tenant in [&ann, &eve] {
            store.create(tenant, &conversation("c", ""), &messages).await.unwrap();
        }
        store.append(&ann, "c", &At::Branch("b".into()), &[user("c2")]).await.unwrap().unwrap();
        assert!(store.put_summary(&ann, "c", &summary("a", 1), "").await.unwrap(), "{}", fresh.name);
        assert!(store.put_summary(&ann, "c", &summary("b", 2), "a").await.unwrap());
        assert!(store.put_summary(&ann, "c", &summary("c1", 3), "b").await.unwrap());
        let at = async |leaf: &str| stands_at(&store, &ann, leaf).await;
        assert_eq!((at("d1").await.as_deref(), at("c2").await.as_deref()), (Some("c1"), Some("b")));
        // Of older ones the last stays, for an edit that goes back.
        assert_eq!((at("a").await, at("nowhere").await), (None, None));
        let kept = store.summary(&ann, "c", "d1").await.unwrap().unwrap();
        assert_eq!((kept.text.as_str(), kept.covers, kept.model.as_str()), ("up to c1", 3, "m"));
        assert!(kept.created_ms > 1_600_000_000_000);
        assert_eq!(store.summaries(&ann, "c").await.unwrap().len(), 2);
        assert_eq!((stands_at(&store, &eve, "d1").await, store.summaries(&eve, "c").await.unwrap()), (None, vec![]));
    })
    .await;
}

#[tokio::test]
async fn a_summary_goes_with_what_it_covers_and_is_not_written_behind_a_deletion() {
    on_each(|fresh| async move {
        let (store, ann) = (Conversations::new(fresh.db.clone()), tenant("ann"));
        store.create(&ann, &conversation("c", ""), &["a", "b", "c1", "d1"].map(user)).await.unwrap();
        store.append(&ann, "c", &At::Branch("a".into()), &[user("b2")]).await.unwrap().unwrap();
        for (message, covers) in [("c1", 3), ("b2", 2)] {
            assert!(store.put_summary(&ann, "c", &summary(message, covers), "").await.unwrap());
        }
        assert!(store.delete_message(&ann, "c", "b", |_| String::new()).await.unwrap().is_some());
        assert_eq!(stands_at(&store, &ann, "d1").await, None, "{}", fresh.name);
        assert_eq!(stands_at(&store, &ann, "b2").await.as_deref(), Some("b2"), "another branch");
        assert!(!store.put_summary(&ann, "c", &summary("c1", 3), "").await.unwrap(), "made of what is gone");
        assert!(store.put_summary(&ann, "c", &summary("c1", 2), "").await.unwrap(), "made of what is left");
        assert_eq!(stands_at(&store, &ann, "d1").await.as_deref(), Some("c1"));
        assert!(!store.put_summary(&ann, "nowhere", &summary("c1", 2), "").await.unwrap());
        assert!(store.delete(&ann, "c").await.unwrap().is_some());
        assert!(!store.put_summary(&ann, "c", &summary("d1", 3), "").await.unwrap(), "deleted");
    })
    .await;
}

#[tokio::test]
async fn a_purge_removes_the_summaries_of_what_was_deleted() {
    on_each(|fresh| async move {
        let (store, ann) = (Conversations::new(fresh.db.clone()), tenant("ann"));
        for id in ["gone", "c"] {
            store
                .create(&ann, &conversation(id, ""), &[user(&format!("{id}1")), user(&format!("{id}2"))])
                .await
                .unwrap();
            store.put_summary(&ann, id, &summary(&format!("{id}1"), 1), "").await.unwrap();
        }
        let response = NewResponse {
            id: "r".into(),
            previous: String::new(),
            status: "completed".into(),
            body: "{}".into(),
            used: None,
        };
        let (input, output) = (vec![user("in")], vec![user("out")]);
        let turn = Turn { conversation: "hidden".into(), at: At::Leaf, response, input, output, listed: false };
        assert_eq!(store.put(&ann, &turn).await.unwrap(), Put::Written);
        store.put_summary(&ann, "hidden", &summary("out", 2), "").await.unwrap();
        store.delete(&ann, "gone").await.unwrap();
        store.delete_message(&ann, "c", "c1", |_| String::new()).await.unwrap();
        store.delete_response(&ann, "r").await.unwrap();
        assert!(store.summary(&ann, "hidden", "out").await.unwrap().is_none(), "{}", fresh.name);
        let purged = store.purge(i64::MAX).await.unwrap();
        assert_eq!((purged.summaries, purged.conversations), (3, 2));
        assert_eq!(store.purge(i64::MAX).await.unwrap().summaries, 0);
        assert!(store.put_summary(&ann, "c", &summary("c2", 1), "").await.unwrap());
    })
    .await;
}

#[tokio::test]
async fn a_caller_has_the_last_word_on_a_title() {
    on_each(|fresh| async move {
        let (store, ann) = (Conversations::new(fresh.db.clone()), tenant("ann"));
        for (id, title) in [("new", ""), ("named", "Mine"), ("cleared", "")] {
            store.create(&ann, &conversation(id, title), &[]).await.unwrap();
        }
        store.update(&ann, "cleared", Some(""), None).await.unwrap();
        let unnamed = async |id: &str| store.is_unnamed(&ann, id).await.unwrap();
        assert_eq!((unnamed("new").await, unnamed("named").await, unnamed("cleared").await), (true, false, false));
        assert!(!store.name(&tenant("eve"), "new", "Hers", &[]).await.unwrap());
        assert!(store.name(&ann, "new", "Harbour \0Tides", &[]).await.unwrap());
        for id in ["new", "named", "cleared"] {
            assert!(!store.name(&ann, id, "Another", &[]).await.unwrap(), "{}: {id}", fresh.name);
        }
        let page = Page { after: String::new(), limit: 9, order: Order::Descending };
        let found = store.list(&ann, &page, "harbour TIDES").await.unwrap();
        assert_eq!((found.len(), found[0].title.as_str()), (1, "Harbour Tides"));
        store.update(&ann, "new", Some("By hand"), None).await.unwrap();
        assert!(!store.name(&ann, "new", "Another", &[]).await.unwrap());
        assert_eq!(store.get(&ann, "new").await.unwrap().unwrap().title, "By hand");
    })
    .await;
}
