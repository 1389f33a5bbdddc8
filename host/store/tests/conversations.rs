//! Conversations on each database: trees, branches, pages, searches, and that what was deleted is gone.
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests, which clippy does not take for tests")]

mod support;

use support::on_each;
use tidegate_store::conversations::{
    At, Claim, Conversation, Feedback, Made, MessageStatus, NewMessage, NewResponse, Order, Origin, Page, Put,
    StoredMessage, Turn,
};
use tidegate_store::{Conversations, KeptProject, Projects};
use tidegate_types::{About, Citation, GuardAction, Message, Report, Role, TenantId, Usage};

fn tenant(name: &str) -> TenantId {
    TenantId::new(name)
}

fn conversation(id: &str, title: &str, created_ms: i64) -> Conversation {
    Conversation { id: id.into(), title: title.into(), metadata: "{}".into(), leaf: String::new(), created_ms }
}

fn says(id: &str, role: Role, text: &str) -> NewMessage {
    NewMessage {
        id: id.into(),
        client_id: String::new(),
        message: Message::text("", role, text),
        status: MessageStatus::Completed,
        made: Made::default(),
    }
}

fn opinion(message: &str, rating: i64, reason: &str) -> Feedback {
    let (key_name, swipe) = ("k".into(), String::new());
    Feedback { message: message.into(), key_name, rating, reason: reason.into(), swipe, created_ms: 0 }
}

fn user(id: &str) -> NewMessage {
    says(id, Role::User, &format!("text of {id}"))
}

fn page(after: &str, limit: u32, order: Order) -> Page {
    Page { after: after.into(), limit, order }
}

fn all() -> Page {
    page("", 100, Order::Ascending)
}

fn ids(messages: &[StoredMessage]) -> Vec<&str> {
    messages.iter().map(|message| message.id.as_str()).collect()
}

fn turn(conversation: &str, listed: bool, id: &str, previous: &str, at: At) -> Turn {
    let response = NewResponse {
        id: id.into(),
        previous: previous.into(),
        status: "completed".into(),
        body: format!("{{\"id\":\"{id}\"}}"),
        used: None,
    };
    let (input, output) = (vec![user(&format!("{id}-in"))], vec![says(&format!("{id}-out"), Role::Assistant, "yes")]);
    Turn { conversation: conversation.into(), at, response, input, output, listed }
}

#[tokio::test]
async fn edits_make_branches_and_the_leaf_follows_only_its_own() {
    on_each(|fresh| async move {
        let (store, ann) = (Conversations::new(fresh.db.clone()), tenant("ann"));
        store.create(&ann, &conversation("c", "", 1), &[user("a"), user("b")]).await.unwrap();
        store.append(&ann, "c", &At::Leaf, &[user("c1"), user("d1")]).await.unwrap().unwrap();
        // Another tab that still was at `b`: its branch is kept, and does not become the current one.
        store.append(&ann, "c", &At::Behind("b".into()), &[user("c2")]).await.unwrap().unwrap();
        let leaf = store.get(&ann, "c").await.unwrap().unwrap().leaf;
        assert_eq!(leaf, "d1", "{}", fresh.name);
        assert_eq!(ids(&store.branch(&ann, "c", &leaf, &all()).await.unwrap().messages), ["a", "b", "c1", "d1"]);
        // An edit: a sibling of `c1` that becomes the current branch.
        store.append(&ann, "c", &At::Branch("b".into()), &[user("c3")]).await.unwrap().unwrap();
        let leaf = store.get(&ann, "c").await.unwrap().unwrap().leaf;
        let branch = store.branch(&ann, "c", &leaf, &all()).await.unwrap().messages;
        assert_eq!((ids(&branch), branch[2].sibling), (vec!["a", "b", "c3"], 2));
        assert_eq!(ids(&store.tree(&ann, "c", &all()).await.unwrap().messages), ["a", "b", "c1", "d1", "c2", "c3"]);
        let newest = |after: &str| page(after, 2, Order::Descending);
        assert_eq!(ids(&store.tree(&ann, "c", &newest("")).await.unwrap().messages), ["c3", "c2"]);
        assert_eq!(ids(&store.tree(&ann, "c", &newest("c2")).await.unwrap().messages), ["d1", "c1"]);
        assert_eq!(store.append(&ann, "c", &At::Behind("nowhere".into()), &[user("x")]).await.unwrap(), None);
        assert!(store.select(&ann, "c", "d1").await.unwrap());
        assert_eq!(store.get(&ann, "c").await.unwrap().unwrap().leaf, "d1");
        assert!(!store.select(&ann, "c", "nowhere").await.unwrap());
    })
    .await;
}

#[tokio::test]
async fn writers_at_once_lose_nothing() {
    on_each(|fresh| async move {
        let (store, ann) = (Conversations::new(fresh.db.clone()), tenant("ann"));
        store.create(&ann, &conversation("c", "", 1), &[user("root")]).await.unwrap();
        let writing = (0..12).map(|i| {
            let (store, ann) = (store.clone(), ann.clone());
            async move {
                let at = if i % 2 == 0 { At::Leaf } else { At::Behind("root".into()) };
                store.append(&ann, "c", &at, &[user(&format!("m{i}"))]).await.unwrap().unwrap()
            }
        });
        futures_util::future::join_all(writing).await;
        let tree = store.tree(&ann, "c", &all()).await.unwrap().messages;
        assert_eq!(tree.len(), 13, "{}", fresh.name);
        let mut places: Vec<_> = tree.iter().map(|message| (message.parent.clone(), message.sibling)).collect();
        places.sort();
        places.dedup();
        assert_eq!(places.len(), 13);
    })
    .await;
}

#[tokio::test]
async fn a_message_that_its_client_sends_again_is_written_once() {
    on_each(|fresh| async move {
        let (store, ann) = (Conversations::new(fresh.db.clone()), tenant("ann"));
        store.create(&ann, &conversation("c", "", 1), &[]).await.unwrap();
        let named = |id: &str| NewMessage { client_id: "from-phone-1".into(), ..user(id) };
        let first = store.append(&ann, "c", &At::Leaf, &[named("a")]).await.unwrap().unwrap();
        let again = store.append(&ann, "c", &At::Leaf, &[named("b")]).await.unwrap().unwrap();
        assert_eq!((first, again), (vec!["a".to_owned()], vec!["a".to_owned()]));
        let tree = store.tree(&ann, "c", &all()).await.unwrap().messages;
        let kept: Vec<_> = tree.iter().map(|message| (message.id.as_str(), message.client_id.as_str())).collect();
        assert_eq!(kept, [("a", "from-phone-1")], "{}", fresh.name);
    })
    .await;
}

#[tokio::test]
async fn what_was_written_is_read_back_whole() {
    on_each(|fresh| async move {
        let (store, ann) = (Conversations::new(fresh.db.clone()), tenant("ann"));
        let usage = Usage { input_tokens: 12, cached_tokens: 4, output_tokens: 7, reasoning_tokens: Some(3) };
        let mut new = says("a", Role::Assistant, "zero \0, quote ', percent % and \u{1f30a}");
        new.status = MessageStatus::Incomplete;
        let mut report = Report { cost: Some(17), model_version: "m-1".into(), ..Report::default() };
        report.judged("guard", About::Answer, GuardAction::Rewrite, Some("zero \0"), &[]);
        report.cited(Citation { source: "s".into(), file: "a".into(), title: None, bytes: Some((1, 2)) });
        new.made = Made { model: "m".into(), finish: "length".into(), usage, report };
        new.message.name = Some("ann".into());
        store.create(&ann, &conversation("c", "A \0title", 7), std::slice::from_ref(&new)).await.unwrap();
        let stored = store.message(&ann, "c", "a").await.unwrap().unwrap();
        let expected = Message { id: "a".into(), ..new.message.clone() };
        assert_eq!((&stored.message, stored.status, &stored.made), (&expected, new.status, &new.made));
        assert!(stored.created_ms > 1_600_000_000_000 && !stored.pinned && stored.parent.is_empty());
        assert_eq!(store.get(&ann, "c").await.unwrap().unwrap().title, "A title");
        let changed = store.update(&ann, "c", Some("New"), Some("{\"k\":\"v\"}")).await.unwrap().unwrap();
        assert_eq!(
            (changed.title.as_str(), changed.metadata.as_str(), changed.created_ms),
            ("New", "{\"k\":\"v\"}", 7)
        );
    })
    .await;
}

#[tokio::test]
async fn of_changes_at_once_each_is_whole() {
    on_each(|fresh| async move {
        let (store, ann) = (Conversations::new(fresh.db.clone()), tenant("ann"));
        store.create(&ann, &conversation("c", "", 7), &[]).await.unwrap();
        for round in 0..10 {
            let change = |who: usize| {
                let (store, ann, word) = (store.clone(), ann.clone(), format!("{round}-{who}"));
                async move { store.update(&ann, "c", Some(&word), Some(&format!("{{\"k\":\"{word}\"}}"))).await.unwrap() }
            };
            futures_util::future::join_all((0..8).map(change)).await;
            let last = store.get(&ann, "c").await.unwrap().unwrap();
            assert_eq!(last.metadata, format!("{{\"k\":\"{}\"}}", last.title), "{}", fresh.name);
        }
        assert!(store.update(&tenant("eve"), "c", Some("hers"), None).await.unwrap().is_none());
    })
    .await;
}

#[tokio::test]
async fn lists_go_on_where_a_page_ended_and_find_words() {
    on_each(|fresh| async move {
        let (store, ann) = (Conversations::new(fresh.db.clone()), tenant("ann"));
        for i in 0..5 {
            let title = if i == 2 { "Über 100% of_it" } else { "other" };
            let text = format!("the QUICK fox number {i}");
            let made = conversation(&format!("c{i}"), title, i / 2);
            store.create(&ann, &made, &[says("m", Role::User, &text)]).await.unwrap();
        }
        let list = async |after: &str, limit, order, words: &str| {
            let found = store.list(&ann, &page(after, limit, order), words).await.unwrap();
            found.into_iter().map(|found| found.id).collect::<Vec<_>>()
        };
        assert_eq!(list("", 2, Order::Descending, "").await, ["c4", "c3"], "{}", fresh.name);
        assert_eq!(list("c3", 9, Order::Descending, "").await, ["c2", "c1", "c0"]);
        assert_eq!(list("c3", 9, Order::Ascending, "").await, ["c4"]);
        assert_eq!(list("", 9, Order::Ascending, "quick FOX number 3").await, ["c3"]);
        assert_eq!(list("", 9, Order::Ascending, "über 100% of_").await, ["c2"]);
        for none in ["number%3", "quick_fox", "!"] {
            assert!(list("", 9, Order::Ascending, none).await.is_empty(), "{none}");
        }
        store.append(&ann, "c0", &At::Leaf, &[user("x"), user("y"), user("z")]).await.unwrap();
        let branch = async |after: &str, order| {
            let page = page(after, 2, order);
            ids(&store.branch(&ann, "c0", "z", &page).await.unwrap().messages).join(" ")
        };
        assert_eq!(branch("", Order::Descending).await, "z y");
        assert_eq!(branch("y", Order::Descending).await, "x m");
        assert_eq!(branch("m", Order::Ascending).await, "x y");
    })
    .await;
}

#[tokio::test]
async fn a_page_ends_with_so_many_bytes_however_many_messages_are_asked_for() {
    on_each(|fresh| async move {
        let (store, ann) = (Conversations::new(fresh.db.clone()), tenant("ann"));
        let long = |(id, mib): (&str, usize)| says(id, Role::User, &"x".repeat(mib << 20));
        let messages = Vec::from([("a", 1), ("b", 2), ("c", 2), ("d", 5), ("e", 0)].map(long));
        store.create(&ann, &conversation("c", "", 1), &messages).await.unwrap();
        store.create(&ann, &conversation("c2", "", 1), &[]).await.unwrap();
        store.put(&ann, &Turn { input: messages, ..turn("c2", true, "r", "", At::Leaf) }).await.unwrap();
        for (after, limit, order, expected, has_more) in [
            ("", 9, Order::Ascending, vec!["a", "b"], true),
            ("b", 9, Order::Ascending, vec!["c"], true),
            ("c", 9, Order::Ascending, vec!["d"], true),
            ("d", 9, Order::Ascending, vec!["e"], false),
            ("", 9, Order::Descending, vec!["e"], true),
            ("d", 2, Order::Descending, vec!["c"], true),
            ("c", 2, Order::Descending, vec!["b", "a"], false),
            ("", 1, Order::Ascending, vec!["a"], true),
        ] {
            let page = page(after, limit, order);
            for found in [
                store.branch(&ann, "c", "e", &page).await.unwrap(),
                store.tree(&ann, "c", &page).await.unwrap(),
                store.input(&ann, "r", &page).await.unwrap(),
            ] {
                assert_eq!(
                    (ids(&found.messages), found.has_more),
                    (expected.clone(), has_more),
                    "{}: {page:?}",
                    fresh.name
                );
            }
        }
    })
    .await;
}

#[tokio::test]
async fn what_is_known_of_an_answer_counts_for_its_page() {
    on_each(|fresh| async move {
        let (store, ann) = (Conversations::new(fresh.db.clone()), tenant("ann"));
        let known = |id| {
            let citation = Citation { source: "s".into(), file: "x".repeat(3 << 20), title: None, bytes: None };
            let report = Report { citations: vec![citation], ..Report::default() };
            NewMessage { made: Made { report, ..Made::default() }, ..user(id) }
        };
        store.create(&ann, &conversation("c", "", 1), &["a", "b"].map(known)).await.unwrap();
        let found = store.tree(&ann, "c", &all()).await.unwrap();
        assert_eq!((ids(&found.messages), found.has_more), (vec!["a"], true), "{}", fresh.name);
    })
    .await;
}

/// It is deleted while its reader is at it, or never was: nothing comes a second time.
#[tokio::test]
async fn an_input_goes_on_where_a_page_ended_though_its_last_item_is_gone() {
    on_each(|fresh| async move {
        let (store, ann) = (Conversations::new(fresh.db.clone()), tenant("ann"));
        store.create(&ann, &conversation("c", "", 1), &[]).await.unwrap();
        let input = Vec::from(["i1", "i2", "i3"].map(user));
        store.put(&ann, &Turn { input, ..turn("c", true, "r", "", At::Leaf) }).await.unwrap();
        store.delete_message(&ann, "c", "i2", |body| body.to_owned()).await.unwrap().unwrap();
        for (after, limit, order, expected) in [
            ("", 9, Order::Ascending, vec!["i1", "i3"]),
            ("", 1, Order::Descending, vec!["i3"]),
            ("i2", 9, Order::Ascending, vec!["i3"]),
            ("i2", 9, Order::Descending, vec!["i1"]),
            ("i3", 9, Order::Ascending, vec![]),
            ("other", 9, Order::Ascending, vec![]),
        ] {
            let read = store.input(&ann, "r", &page(after, limit, order)).await.unwrap().messages;
            assert_eq!(ids(&read), expected, "{}: {after} {order:?}", fresh.name);
        }
    })
    .await;
}

#[tokio::test]
async fn a_history_is_the_recent_messages_and_the_pinned() {
    on_each(|fresh| async move {
        let (store, ann) = (Conversations::new(fresh.db.clone()), tenant("ann"));
        let messages: Vec<NewMessage> = (0..9).map(|i| user(&format!("m{i}"))).collect();
        store.create(&ann, &conversation("c", "", 1), &messages).await.unwrap();
        assert!(store.pin(&ann, "c", "m1", true).await.unwrap());
        assert!(store.pin(&ann, "c", "m8", true).await.unwrap());
        assert!(store.delete_message(&ann, "c", "m2", |_| String::new()).await.unwrap().is_some());
        let (history, left_out) = store.history(&ann, "c", "m8", 3, 1 << 20).await.unwrap();
        assert_eq!((ids(&history), left_out), (vec!["m1", "m6", "m7", "m8"], 4), "{}", fresh.name);
        let (whole, left_out) = store.history(&ann, "c", "m8", 100, 1 << 20).await.unwrap();
        assert_eq!((whole.len(), left_out), (8, 0));
        let each =
            serde_json::json!({"role": "user", "name": null, "parts": [{"Text": "text of m1"}]}).to_string().len();
        let (bounded, left_out) = store.history(&ann, "c", "m8", 100, 2 * each as u64).await.unwrap();
        assert_eq!((ids(&bounded), left_out), (vec!["m1", "m7", "m8"], 5), "{}", fresh.name);
        let (last, _) = store.history(&ann, "c", "m8", 100, 1).await.unwrap();
        assert_eq!(ids(&last), ["m8"]);
    })
    .await;
}

#[tokio::test]
async fn a_history_is_bounded_by_bytes_and_not_by_characters() {
    on_each(|fresh| async move {
        let (store, ann) = (Conversations::new(fresh.db.clone()), tenant("ann"));
        let messages = ["a", "b"].map(|id| says(id, Role::User, &"é".repeat(1000)));
        store.create(&ann, &conversation("c", "", 1), &messages).await.unwrap();
        for (max_bytes, expected) in [(5000, vec!["a", "b"]), (3000, vec!["b"])] {
            let (history, _) = store.history(&ann, "c", "b", 9, max_bytes).await.unwrap();
            assert_eq!(ids(&history), expected, "{}: {max_bytes}", fresh.name);
        }
    })
    .await;
}

#[tokio::test]
async fn what_is_tried_is_known_to_be_taken_and_is_never_found() {
    on_each(|fresh| async move {
        let (store, ann) = (Conversations::new(fresh.db.clone()), tenant("ann"));
        store.create(&ann, &conversation("c", "", 1), &[user("a")]).await.unwrap();
        for (tried, put) in [
            (turn("t", false, "r1", "", At::Leaf), Put::Written),
            (turn("c", true, "r1", "", At::Behind("a".into())), Put::Written),
            (turn("nowhere", true, "r1", "", At::Leaf), Put::Deleted),
            (turn("t", false, "r1", "r0", At::Leaf), Put::Deleted),
        ] {
            assert_eq!(store.try_put(&ann, &tried).await.unwrap(), put, "{} {tried:?}", fresh.name);
            assert_eq!(store.response(&ann, "r1").await.unwrap(), None);
            assert_eq!(store.get(&ann, "c").await.unwrap().unwrap().leaf, "a");
            assert_eq!(ids(&store.tree(&ann, "c", &all()).await.unwrap().messages), ["a"]);
            // The thread that it would have begun is not there either.
            assert_eq!(store.put(&ann, &turn("t", true, "r2", "", At::Leaf)).await.unwrap(), Put::Deleted);
        }
    })
    .await;
}

#[tokio::test]
async fn responses_that_name_each_other_are_one_tree() {
    on_each(|fresh| async move {
        let (store, ann) = (Conversations::new(fresh.db.clone()), tenant("ann"));
        assert_eq!(store.put(&ann, &turn("t", false, "r1", "", At::Leaf)).await.unwrap(), Put::Written);
        for (id, previous) in [("r2", "r1"), ("r3", "r2"), ("other", "r1")] {
            let at = At::Behind(store.response(&ann, previous).await.unwrap().unwrap().leaf);
            assert_eq!(store.put(&ann, &turn("t", false, id, previous, at)).await.unwrap(), Put::Written);
        }
        let leaf = |id: &'static str| {
            let (store, ann) = (store.clone(), ann.clone());
            async move { store.response(&ann, id).await.unwrap().unwrap().leaf }
        };
        let branch = store.branch(&ann, "t", &leaf("other").await, &all()).await.unwrap().messages;
        assert_eq!(ids(&branch), ["r1-in", "r1-out", "other-in", "other-out"], "{}", fresh.name);
        let input = store.of_response(&ann, "r2", Origin::Input).await.unwrap();
        let output = store.of_response(&ann, "r2", Origin::Output).await.unwrap();
        assert_eq!((ids(&input), ids(&output)), (vec!["r2-in"], vec!["r2-out"]));
        assert!(store.get(&ann, "t").await.unwrap().is_none(), "a thread of responses is no conversation");
        // Deleting one takes those that go on from it along, and no others.
        let gone = store.delete_response(&ann, "r2").await.unwrap();
        let mut names: Vec<&str> = gone.iter().map(|gone| gone.id.as_str()).collect();
        names.sort_unstable();
        assert_eq!(names, ["r2", "r3"]);
        assert!(store.delete_response(&ann, "r2").await.unwrap().is_empty());
        assert!(store.response(&ann, "r3").await.unwrap().is_none());
        assert!(store.of_response(&ann, "r3", Origin::Output).await.unwrap().is_empty());
        assert!(store.response(&ann, "other").await.unwrap().is_some());
        assert_eq!(store.put(&ann, &turn("t", false, "r2", "r1", At::Leaf)).await.unwrap(), Put::Deleted);
    })
    .await;
}

#[tokio::test]
async fn a_response_is_begun_and_ended_and_what_never_ends_is_found() {
    on_each(|fresh| async move {
        let ann = tenant("ann");
        let [own, next] = ["own", "next"].map(|name| Conversations::of_gateway(fresh.db.clone(), name));
        let mut begun = turn("t", false, "r", "", At::Leaf);
        begun.response.status = "in_progress".into();
        let (input, output) = (std::mem::take(&mut begun.input), std::mem::take(&mut begun.output));
        assert_eq!(own.put(&ann, &begun).await.unwrap(), Put::Written);
        for (gateway, expected) in [(&own, 0), (&next, 1)] {
            assert_eq!(gateway.abandoned().await.unwrap().len(), expected, "{}", fresh.name);
        }
        own.stay(std::time::Duration::from_secs(60)).await.unwrap();
        assert!(next.abandoned().await.unwrap().is_empty(), "its gateway is there");
        // What another gateway makes nobody else abandons; its own it may, and close.
        let mut lost = turn("t", false, "lost", "", At::Leaf);
        lost.response.status = "in_progress".into();
        assert_eq!(own.put(&ann, &lost).await.unwrap(), Put::Written);
        next.abandon(&ann, "lost").await.unwrap();
        assert!(own.abandoned().await.unwrap().is_empty());
        own.abandon(&ann, "lost").await.unwrap();
        assert_eq!(own.abandoned().await.unwrap().len(), 1, "{}", fresh.name);
        assert!(own.close_response(&ann, "lost", "failed", "{}").await.unwrap());
        own.abandon(&ann, "lost").await.unwrap();
        assert!(own.abandoned().await.unwrap().is_empty(), "it has ended");
        assert!(!next.close_response(&ann, "r", "failed", "{}").await.unwrap());
        own.stay(std::time::Duration::ZERO).await.unwrap();
        let abandoned = next.abandoned().await.unwrap();
        assert_eq!(abandoned, [(ann.clone(), "r".to_owned(), "{\"id\":\"r\"}".to_owned())], "{}", fresh.name);
        let response = NewResponse { status: "completed".into(), ..begun.response.clone() };
        assert_eq!(own.put(&ann, &Turn { input, output, response, ..begun }).await.unwrap(), Put::Written);
        assert!(!next.close_response(&ann, "r", "failed", "{}").await.unwrap(), "it has ended");
        let stored = own.response(&ann, "r").await.unwrap().unwrap();
        assert_eq!((stored.status.as_str(), stored.leaf.as_str()), ("completed", "r-out"));
        assert!(next.abandoned().await.unwrap().is_empty());
    })
    .await;
}

#[tokio::test]
async fn a_key_stands_for_one_request() {
    on_each(|fresh| async move {
        let (store, ann, eve) = (Conversations::new(fresh.db.clone()), tenant("ann"), tenant("eve"));
        let claim = async |tenant: &TenantId, key: &str, request: &str, object: &str| {
            store.claim(tenant, "responses", key, request, object).await.unwrap()
        };
        let first = (0..8).map(|i| {
            let object = format!("o{i}");
            let claim = &claim;
            let ann = &ann;
            async move { claim(ann, "k", "r", &object).await }
        });
        let first = futures_util::future::join_all(first).await;
        assert_eq!(first.iter().filter(|claim| **claim == Claim::New).count(), 1, "{}", fresh.name);
        let Some(same @ Claim::Same { is_running: false, .. }) = first.iter().find(|claim| **claim != Claim::New)
        else {
            panic!("{first:?}")
        };
        assert!(first.iter().all(|claim| matches!(claim, Claim::New) || claim == same));
        assert_eq!(claim(&ann, "k", "another", "x").await, Claim::Other);
        assert_eq!(claim(&eve, "k", "another", "x").await, Claim::New);
        store.release(&ann, "responses", "k", "never claimed").await.unwrap();
        assert_eq!(claim(&ann, "k", "another", "x").await, Claim::Other, "{}", fresh.name);
        let Claim::Same { object, .. } = same else { panic!("{same:?}") };
        store.release(&ann, "responses", "k", object).await.unwrap();
        assert_eq!(claim(&ann, "k", "another", "x").await, Claim::New);
    })
    .await;
}

/// Every reading and every change, of one tenant's rows by another.
#[tokio::test]
async fn nothing_of_a_tenant_is_there_for_another() {
    on_each(|fresh| async move {
        let (store, ann, eve) = (Conversations::new(fresh.db.clone()), tenant("ann"), tenant("eve"));
        store.create(&ann, &conversation("c", "title", 1), &[user("m")]).await.unwrap();
        assert_eq!(store.put(&ann, &turn("c", true, "r", "", At::Leaf)).await.unwrap(), Put::Written);
        let given = opinion("m", 1, "");
        store.rate(&ann, "c", &given).await.unwrap();
        assert!(store.get(&eve, "c").await.unwrap().is_none());
        assert!(store.update(&eve, "c", Some("mine"), Some("{}")).await.unwrap().is_none());
        assert!(store.delete(&eve, "c").await.unwrap().is_none());
        assert!(store.list(&eve, &all(), "").await.unwrap().is_empty());
        assert!(store.append(&eve, "c", &At::Leaf, &[user("x")]).await.unwrap().is_none());
        assert!(store.message(&eve, "c", "m").await.unwrap().is_none());
        assert!(store.branch(&eve, "c", "m", &all()).await.unwrap().messages.is_empty());
        assert!(store.tree(&eve, "c", &all()).await.unwrap().messages.is_empty());
        assert_eq!(store.history(&eve, "c", "m", 9, 1 << 20).await.unwrap(), (vec![], 0));
        assert!(store.of_response(&eve, "r", Origin::Input).await.unwrap().is_empty());
        assert!(store.delete_message(&eve, "c", "m", |_| String::new()).await.unwrap().is_none());
        assert!(!store.pin(&eve, "c", "m", true).await.unwrap());
        assert!(!store.select(&eve, "c", "m").await.unwrap());
        assert_eq!(store.put(&eve, &turn("c", true, "r2", "", At::Leaf)).await.unwrap(), Put::Deleted);
        assert!(store.response(&eve, "r").await.unwrap().is_none());
        assert!(store.delete_response(&eve, "r").await.unwrap().is_empty());
        assert!(store.feedback(&eve, "c").await.unwrap().is_empty());
        let kept = store.get(&ann, "c").await.unwrap().unwrap();
        assert_eq!((kept.title.as_str(), kept.leaf.as_str()), ("title", "r-out"), "{}", fresh.name);
        assert!(!store.message(&ann, "c", "m").await.unwrap().unwrap().pinned);
    })
    .await;
}

#[tokio::test]
async fn an_opinion_takes_the_place_of_the_one_before() {
    on_each(|fresh| async move {
        let (store, ann) = (Conversations::new(fresh.db.clone()), tenant("ann"));
        store.create(&ann, &conversation("c", "", 1), &[user("m")]).await.unwrap();
        store.rate(&ann, "c", &opinion("m", 1, "good")).await.unwrap();
        let swiped = Feedback { swipe: "other".into(), ..opinion("m", -1, "wrong after all") };
        store.rate(&ann, "c", &swiped).await.unwrap();
        let all = store.feedback(&ann, "c").await.unwrap();
        assert_eq!(all, [Feedback { created_ms: all[0].created_ms, ..swiped }], "{}", fresh.name);
        // An opinion of what is gone is gone with it.
        store.delete_message(&ann, "c", "m", |_| String::new()).await.unwrap();
        assert!(store.feedback(&ann, "c").await.unwrap().is_empty());
    })
    .await;
}

#[tokio::test]
async fn what_an_archived_project_had_is_deleted_and_no_other_projects() {
    on_each(|fresh| async move {
        let (store, projects) = (Conversations::new(fresh.db.clone()), Projects::new(fresh.db.clone()));
        let owners = ["proj_a", "proj_b", "t"].map(tenant);
        for owner in &owners {
            for n in 0..300 {
                store.create(owner, &conversation(&format!("c{n}"), "", n), &[]).await.unwrap();
            }
            assert_eq!(store.put(owner, &turn("c0", true, "r0", "", At::Leaf)).await.unwrap(), Put::Written);
            assert_eq!(store.put(owner, &turn("h", false, "r1", "", At::Leaf)).await.unwrap(), Put::Written);
        }
        for id in ["proj_a", "proj_b"] {
            let (id, tenant, settings) = (id.into(), "t".into(), "{}".into());
            let project =
                KeptProject { id, tenant, settings, created_ms: 1, created_by: "root".into(), archived_ms: None };
            assert!(projects.add(&project, 10).await.unwrap());
        }
        assert_eq!(store.delete_archived().await.unwrap(), 0);
        projects.archive("proj_a", 2, |_, _| true).await.unwrap();
        assert_eq!(store.delete_archived().await.unwrap(), 301, "{}", fresh.name);
        assert!(store.list(&owners[0], &all(), "").await.unwrap().is_empty());
        assert!(store.response(&owners[0], "r0").await.unwrap().is_none());
        assert!(store.response(&owners[0], "r1").await.unwrap().is_none());
        // What ran meanwhile is written nowhere, and what it had begun goes with the next.
        assert_eq!(store.put(&owners[0], &turn("c1", true, "r2", "", At::Leaf)).await.unwrap(), Put::Deleted);
        assert_eq!(store.put(&owners[0], &turn("late", false, "r3", "", At::Leaf)).await.unwrap(), Put::Written);
        assert_eq!(store.delete_archived().await.unwrap(), 1);
        let purged = store.purge(i64::MAX).await.unwrap();
        assert_eq!((purged.conversations, purged.responses), (302, 3), "{}", fresh.name);
        for owner in &owners[1..] {
            assert_eq!(store.list(owner, &all(), "").await.unwrap().len(), 100, "{}", fresh.name);
            assert!(store.response(owner, "r1").await.unwrap().is_some());
        }
    })
    .await;
}

const CANARY: &str = "canary-7d1f0b3e";

/// SQLite's files are scanned; Postgres' are the server's, so there every row is asked for.
#[tokio::test]
async fn what_was_purged_is_gone_from_the_files() {
    on_each(|fresh| async move {
        let (store, ann) = (Conversations::new(fresh.db.clone()), tenant("ann"));
        let secret = |id: &str| says(id, Role::User, &format!("{CANARY} {} {CANARY}", "filler ".repeat(900)));
        for i in 0..20 {
            let id = format!("c{i}");
            store.create(&ann, &conversation(&id, CANARY, 1), &[secret("a"), user("b"), secret("c")]).await.unwrap();
            let mut turn = turn(&id, true, &format!("r{i}"), "", At::Leaf);
            turn.response.body = format!("{{\"output\":\"{CANARY}\"}}");
            turn.output.push(secret(&format!("o{i}")));
            assert_eq!(store.put(&ann, &turn).await.unwrap(), Put::Written);
            store.rate(&ann, &id, &opinion("a", 1, CANARY)).await.unwrap();
        }
        let mut alone = turn("t", false, "alone", "", At::Leaf);
        alone.response.body = CANARY.into();
        alone.input.push(secret("s"));
        assert_eq!(store.put(&ann, &alone).await.unwrap(), Put::Written);
        store.create(&ann, &conversation("kept", "", 1), &[secret("a"), user("b")]).await.unwrap();
        for i in 0..20 {
            assert_eq!(store.delete(&ann, &format!("c{i}")).await.unwrap().unwrap()[0].id, format!("r{i}"));
        }
        assert_eq!(store.delete_response(&ann, "alone").await.unwrap().len(), 1);
        assert!(store.delete_message(&ann, "kept", "a", |_| String::new()).await.unwrap().is_some());
        assert!(store.list(&ann, &all(), CANARY).await.unwrap().is_empty());
        assert!(
            store.message(&ann, "c1", "a").await.unwrap().is_none()
                && store.response(&ann, "r1").await.unwrap().is_none()
        );
        let (purged, none) = (store.purge(i64::MAX).await.unwrap(), store.purge(i64::MAX).await.unwrap());
        assert_eq!((purged.conversations, purged.responses, purged.messages), (21, 21, 1), "{}", fresh.name);
        assert_eq!(none, Default::default());
        store.wipe().await.unwrap();
        assert_eq!(
            ids(&store.branch(&ann, "kept", "b", &all()).await.unwrap().messages),
            ["b"],
            "what follows it stays"
        );
        assert_eq!(canaries(&fresh).await, 0, "{}", fresh.name);
    })
    .await;
}

/// That the scan would find something: before the purge it does.
#[tokio::test]
async fn what_was_only_deleted_is_still_in_the_files() {
    on_each(|fresh| async move {
        let (store, ann) = (Conversations::new(fresh.db.clone()), tenant("ann"));
        store.create(&ann, &conversation("c", CANARY, 1), &[says("a", Role::User, CANARY)]).await.unwrap();
        assert!(store.delete(&ann, "c").await.unwrap().unwrap().is_empty());
        assert_eq!(store.purge(1).await.unwrap(), Default::default(), "not yet");
        assert!(canaries(&fresh).await > 0, "{}", fresh.name);
    })
    .await;
}

/// How often the canary is in what the database holds.
async fn canaries(fresh: &support::Fresh) -> usize {
    let folder = match &fresh.place {
        tidegate_store::Place::Folder(folder) => folder,
        tidegate_store::Place::Postgres(url) => return rows_with_canary(url).await,
    };
    let files = std::fs::read_dir(folder).unwrap().map(|file| std::fs::read(file.unwrap().path()).unwrap());
    files.map(|bytes| bytes.windows(CANARY.len()).filter(|found| *found == CANARY.as_bytes()).count()).sum()
}

async fn rows_with_canary(url: &str) -> usize {
    let pool = sqlx::AnyPool::connect(url).await.unwrap();
    let mut found = 0;
    for table in ["conversations", "messages", "responses", "feedback"] {
        let count =
            format!("SELECT CAST(COUNT(*) AS BIGINT) FROM {table} AS t WHERE CAST(t.* AS TEXT) LIKE '%{CANARY}%'");
        let count: i64 = sqlx::query_scalar(sqlx::AssertSqlSafe(count)).fetch_one(&pool).await.unwrap();
        found += count as usize;
    }
    pool.close().await;
    found
}

#[tokio::test]
async fn messages_are_found_by_their_ids_while_they_are_there_and_by_their_tenant_alone() {
    on_each(|fresh| async move {
        let (store, ann, eve) = (Conversations::new(fresh.db.clone()), tenant("ann"), tenant("eve"));
        store.create(&ann, &conversation("c", "", 1), &[user("a"), user("b")]).await.unwrap();
        store.create(&ann, &conversation("d", "", 1), &[user("gone")]).await.unwrap();
        assert_eq!(store.put(&ann, &turn("h", false, "r", "", At::Leaf)).await.unwrap(), Put::Written);
        let asked = ["r-out", "a", "gone", "a", "b", "r-in", "never", "it's \"odd\""];
        let found = async |tenant: &TenantId| {
            let found = store.referred(tenant, asked, 1 << 20).await.unwrap().unwrap();
            let mut ids: Vec<String> = found.into_keys().collect();
            ids.sort();
            ids
        };
        assert_eq!(found(&ann).await, ["a", "b", "gone", "r-in", "r-out"], "{}", fresh.name);
        assert_eq!(found(&eve).await, [""; 0]);
        let one = store.referred(&ann, ["r-out"], 1 << 20).await.unwrap().unwrap();
        assert_eq!(one["r-out"], Message::text("r-out", Role::Assistant, "yes"));

        let body = r#"{"role":"user","name":null,"parts":[{"Text":"text of a"}]}"#.len() as u64;
        assert!(store.referred(&ann, ["a", "b"], 2 * body + 64).await.unwrap().is_some());
        assert_eq!(store.referred(&ann, ["a", "b"], body).await.unwrap(), None, "{}", fresh.name);

        store.delete_message(&ann, "c", "b", str::to_owned).await.unwrap().unwrap();
        store.delete(&ann, "d").await.unwrap().unwrap();
        store.delete_response(&ann, "r").await.unwrap();
        assert_eq!(found(&ann).await, ["a"], "{}", fresh.name);
    })
    .await;
}
