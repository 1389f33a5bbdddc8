//! Who makes an answer, where one that made nothing goes on from, and that what was acknowledged is there.
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests, which clippy does not take for tests")]

mod support;

use std::time::Duration;
use support::on_each;
use tidegate_store::Conversations;
use tidegate_store::conversations::{
    At, Claim, Conversation, Feedback, Made, Maker, MessageStatus, NewMessage, NewResponse, Order, Origin, Page, Put,
    Turn,
};
use tidegate_types::{Message, Role, TenantId};

fn ann() -> TenantId {
    TenantId::new("ann")
}

fn conversation(id: &str) -> Conversation {
    let (title, leaf) = (String::new(), String::new());
    Conversation { id: id.into(), title, metadata: "{}".into(), leaf, created_ms: 1 }
}

fn says(id: &str, role: Role) -> NewMessage {
    let (message, made) = (Message::text("", role, id), Made::default());
    NewMessage { id: id.into(), client_id: String::new(), message, status: MessageStatus::Completed, made }
}

/// A turn that has begun, in a caller's conversation.
fn begun(conversation: &str, id: &str, at: At) -> Turn {
    let response = NewResponse {
        id: id.into(),
        previous: String::new(),
        status: "in_progress".into(),
        body: "{}".into(),
        used: None,
    };
    Turn { conversation: conversation.into(), at, response, input: Vec::new(), output: Vec::new(), listed: true }
}

/// The same, ended with this answer.
fn ended(turn: &Turn, answer: &str) -> Turn {
    let response = NewResponse { status: "completed".into(), ..turn.response.clone() };
    Turn { response, output: vec![says(answer, Role::Assistant)], ..turn.clone() }
}

#[tokio::test]
async fn a_response_that_said_nothing_goes_on_from_where_it_began() {
    on_each(|fresh| async move {
        let store = Conversations::new(fresh.db.clone());
        store.create(&ann(), &conversation("c"), &[says("a", Role::User), says("b", Role::User)]).await.unwrap();
        let leaf = async |id: &str| store.response(&ann(), id).await.unwrap().unwrap().leaf;
        for (id, at, expected) in [
            ("behind", At::Behind("a".into()), "a"),
            ("branch", At::Branch("a".into()), "a"),
            ("leaf", At::Leaf, "b"),
            ("first", At::Behind(String::new()), ""),
        ] {
            assert_eq!(store.put(&ann(), &begun("c", id, at)).await.unwrap(), Put::Written);
            store.close_response(&ann(), id, "failed", "{}").await.unwrap();
            assert_eq!(leaf(id).await, expected, "{}: {id}", fresh.name);
        }
        assert_eq!(store.begin(&ann(), &begun("c", "begun", At::Behind("a".into()))).await.unwrap(), Maker::This);
        assert_eq!(leaf("begun").await, "a");
    })
    .await;
}

#[tokio::test]
async fn one_gateway_makes_an_answer_and_another_when_that_is_no_more() {
    on_each(|fresh| async move {
        let [one, two] = ["one", "two"].map(|name| Conversations::of_gateway(fresh.db.clone(), name));
        one.create(&ann(), &conversation("c"), &[says("a", Role::User)]).await.unwrap();
        let turn = begun("c", "r", At::Behind("a".into()));
        let begin = async |store: &Conversations| store.begin(&ann(), &turn).await.unwrap();
        for store in [&one, &two] {
            store.stay(Duration::from_secs(60)).await.unwrap();
        }
        let nth = |n: usize| if n.is_multiple_of(2) { &one } else { &two };
        let first = futures_util::future::join_all((0..8).map(|n| begin(nth(n)))).await;
        let (winner, other) = if first[0] == Maker::This { (&one, &two) } else { (&two, &one) };
        for (n, maker) in first.iter().enumerate() {
            let expected = if std::ptr::eq(nth(n), winner) { Maker::This } else { Maker::Other };
            assert_eq!(*maker, expected, "{}: {n} of {first:?}", fresh.name);
        }
        assert_eq!(other.put(&ann(), &ended(&turn, "theirs")).await.unwrap(), Put::Taken);
        // Silent for longer than it said it would be there.
        winner.stay(Duration::ZERO).await.unwrap();
        assert_eq!(begin(other).await, Maker::This, "{}", fresh.name);
        assert_eq!(winner.put(&ann(), &ended(&turn, "late")).await.unwrap(), Put::Taken);
        winner.stay(Duration::from_secs(60)).await.unwrap();
        assert_eq!(begin(winner).await, Maker::Other);
        assert_eq!(other.put(&ann(), &ended(&turn, "answer")).await.unwrap(), Put::Written);
        // What was deleted is so for whoever made it.
        one.delete_response(&ann(), "r").await.unwrap();
        for store in [&one, &two] {
            assert_eq!(store.put(&ann(), &ended(&turn, "late")).await.unwrap(), Put::Deleted, "{}", fresh.name);
        }
        other.stay(Duration::ZERO).await.unwrap();
        assert_eq!((begin(winner).await, begin(other).await), (Maker::Other, Maker::Other), "it was made");
        let made = one.of_response(&ann(), "r", Origin::Output).await.unwrap();
        assert_eq!(made.iter().map(|made| made.id.as_str()).collect::<Vec<_>>(), ["answer"]);
        assert_eq!(one.begin(&ann(), &begun("none", "r2", At::Leaf)).await.unwrap(), Maker::Nobody);
    })
    .await;
}

#[tokio::test]
async fn an_answer_is_not_made_any_further_without_what_it_answers() {
    on_each(|fresh| async move {
        let store = Conversations::new(fresh.db.clone());
        store.create(&ann(), &conversation("c"), &[says("a", Role::User), says("b", Role::User)]).await.unwrap();
        let [answer, again, other] = [
            begun("c", "answer", At::Behind("a".into())),
            begun("c", "again", At::Branch("a".into())),
            begun("c", "other", At::Behind("b".into())),
        ];
        for turn in [&answer, &again, &other] {
            assert_eq!(store.begin(&ann(), turn).await.unwrap(), Maker::This);
        }
        assert_eq!(store.put(&ann(), &ended(&again, "kept")).await.unwrap(), Put::Written);
        // In the background, with a question of its own that goes on from there.
        let question = begun("c", "question", At::Behind("a".into()));
        assert_eq!(store.put(&ann(), &question).await.unwrap(), Put::Written);
        let gone = store.delete_message(&ann(), "c", "a", str::to_owned).await.unwrap().unwrap();
        let gone: Vec<_> = gone.iter().map(|gone| (gone.id.as_str(), gone.is_running)).collect();
        assert_eq!(gone, [("answer", true)], "{}", fresh.name);
        assert!(store.response(&ann(), "answer").await.unwrap().is_none());
        assert_eq!(store.put(&ann(), &ended(&answer, "late")).await.unwrap(), Put::Deleted);
        for (turn, answer) in [(&question, "to it"), (&other, "to the other")] {
            assert_eq!(store.put(&ann(), &ended(turn, answer)).await.unwrap(), Put::Written);
        }
        assert!(store.message(&ann(), "c", "kept").await.unwrap().is_some(), "what follows it stays");
        assert_eq!(store.begin(&ann(), &begun("c", "late", At::Branch("a".into()))).await.unwrap(), Maker::Nobody);
    })
    .await;
}

/// Whichever of the two was first.
#[tokio::test]
async fn a_response_is_not_kept_without_the_one_that_it_goes_on_from() {
    on_each(|fresh| async move {
        let store = Conversations::new(fresh.db.clone());
        let turn = |id: &str, previous: &str, at| {
            let begun = Turn { listed: false, ..begun("t", id, at) };
            let response = NewResponse { previous: previous.into(), ..begun.response.clone() };
            ended(&Turn { response, ..begun }, &format!("{id}-out"))
        };
        assert_eq!(store.put(&ann(), &turn("kept", "", At::Leaf)).await.unwrap(), Put::Written);
        let first = turn("first", "kept", At::Behind("kept-out".into()));
        let [before, after] = ["before", "after"].map(|id| turn(id, "first", At::Behind("first-out".into())));
        assert_eq!(store.put(&ann(), &first).await.unwrap(), Put::Written);
        assert_eq!(store.put(&ann(), &before).await.unwrap(), Put::Written);
        let mut gone: Vec<String> =
            store.delete_response(&ann(), "first").await.unwrap().into_iter().map(|d| d.id).collect();
        gone.sort_unstable();
        assert_eq!(gone, ["before", "first"], "{}", fresh.name);
        assert_eq!(store.put(&ann(), &after).await.unwrap(), Put::Deleted, "{}", fresh.name);
        assert!(store.response(&ann(), "after").await.unwrap().is_none());
        assert!(store.message(&ann(), "t", "after-out").await.unwrap().is_none());
        assert_eq!(store.put(&ann(), &turn("never", "nothing", At::Leaf)).await.unwrap(), Put::Deleted);
    })
    .await;
}

/// As when the database was lost before it could say that it had it.
#[tokio::test]
async fn what_is_written_again_is_there_once() {
    on_each(|fresh| async move {
        let [one, two] = ["one", "two"].map(|name| Conversations::of_gateway(fresh.db.clone(), name));
        one.create(&ann(), &conversation("c"), &[says("a", Role::User)]).await.unwrap();
        let begun = begun("c", "r", At::Behind("a".into()));
        let ended = ended(&Turn { input: vec![says("asked", Role::User)], ..begun.clone() }, "answer");
        for turn in [&begun, &begun, &ended, &ended] {
            assert_eq!(one.put(&ann(), turn).await.unwrap(), Put::Written, "{}", fresh.name);
        }
        assert_eq!(two.put(&ann(), &ended).await.unwrap(), Put::Taken);
        let page = Page { after: String::new(), limit: 9, order: Order::Ascending };
        let branch = one.branch(&ann(), "c", "answer", &page).await.unwrap().messages;
        assert_eq!(branch.iter().map(|message| message.id.as_str()).collect::<Vec<_>>(), ["a", "asked", "answer"]);
        one.delete_response(&ann(), "r").await.unwrap();
        assert_eq!(one.put(&ann(), &ended).await.unwrap(), Put::Deleted);
    })
    .await;
}

/// Until it was done, or the gateway that took it is no more.
#[tokio::test]
async fn what_another_gateway_does_for_a_key_is_told_from_what_was_done() {
    on_each(|fresh| async move {
        let [one, two] = ["one", "two"].map(|name| Conversations::of_gateway(fresh.db.clone(), name));
        one.stay(Duration::from_secs(60)).await.unwrap();
        let claim = async |key: &str| two.claim(&ann(), "responses", key, "r", "theirs").await.unwrap();
        let same = |is_running| Claim::Same { object: "made".into(), is_running };
        for key in ["done", "gone"] {
            assert_eq!(one.claim(&ann(), "responses", key, "r", "made").await.unwrap(), Claim::New);
            assert_eq!(claim(key).await, same(true), "{}", fresh.name);
        }
        // Nobody says that of another's.
        two.done(&ann(), "responses", "done").await.unwrap();
        assert_eq!(claim("done").await, same(true));
        one.done(&ann(), "responses", "done").await.unwrap();
        assert_eq!((claim("done").await, claim("gone").await), (same(false), same(true)));
        // Who asks here is at nothing: it would know.
        let again = one.claim(&ann(), "responses", "gone", "r", "another").await.unwrap();
        assert_eq!(again, same(false), "{}", fresh.name);
        one.stay(Duration::ZERO).await.unwrap();
        assert_eq!(claim("gone").await, same(false));
    })
    .await;
}

/// In the moment between a claim that finds it taken and the look at whose it is, which a trigger makes here.
#[tokio::test]
async fn a_key_that_is_released_while_it_is_claimed_is_new() {
    on_each(|fresh| async move {
        if fresh.name != "postgres" {
            return;
        }
        let (store, pool) = (Conversations::new(fresh.db.clone()), fresh.raw().await);
        let claim = async |request: &str| store.claim(&ann(), "responses", "k", request, request).await.unwrap();
        assert_eq!(claim("theirs").await, Claim::New);
        for statement in [
            "CREATE FUNCTION release() RETURNS trigger LANGUAGE plpgsql AS \
             'BEGIN DELETE FROM idempotency WHERE object = ''theirs''; RETURN NULL; END'",
            "CREATE TRIGGER releases AFTER INSERT ON idempotency FOR EACH STATEMENT EXECUTE FUNCTION release()",
        ] {
            sqlx::query(statement).execute(&pool).await.unwrap();
        }
        assert_eq!(claim("mine").await, Claim::New);
        assert_eq!(claim("mine").await, Claim::Same { object: "mine".into(), is_running: false });
        pool.close().await;
    })
    .await;
}

/// A name that a model finds while what it was found in is deleted says nothing of it.
#[tokio::test]
async fn a_title_goes_with_what_it_was_found_in() {
    on_each(|fresh| async move {
        let store = Conversations::new(fresh.db.clone());
        store.create(&ann(), &conversation("c"), &[says("a", Role::User), says("b", Role::User)]).await.unwrap();
        let found_in = ["a".to_owned(), "b".to_owned()];
        let title = async || store.get(&ann(), "c").await.unwrap().unwrap().title;
        assert!(store.name(&ann(), "c", "Of both", &found_in).await.unwrap());
        assert!(store.delete_message(&ann(), "c", "a", str::to_owned).await.unwrap().is_some());
        assert_eq!(title().await, "", "{}", fresh.name);
        assert!(!store.name(&ann(), "c", "Of both", &found_in).await.unwrap());
        assert!(store.is_unnamed(&ann(), "c").await.unwrap());
        store.update(&ann(), "c", Some("By hand"), None).await.unwrap();
        assert!(store.delete_message(&ann(), "c", "b", str::to_owned).await.unwrap().is_some());
        assert_eq!(title().await, "By hand", "a caller's word stays");
    })
    .await;
}

/// Whatever connection of the pool it is read over, and whoever else writes meanwhile.
#[tokio::test(flavor = "multi_thread")]
async fn what_was_acknowledged_is_read_at_once() {
    on_each(|fresh| async move {
        let writers = (0..8).map(|writer| {
            let store = Conversations::new(fresh.db.clone());
            tokio::spawn(async move {
                for round in 0..12 {
                    reads_what_it_wrote(&store, &format!("c{writer}-{round}")).await;
                }
            })
        });
        for writer in futures_util::future::join_all(writers).await {
            writer.unwrap_or_else(|error| panic!("{}: {error}", fresh.name));
        }
    })
    .await;
}

async fn reads_what_it_wrote(store: &Conversations, id: &str) {
    let (ann, page) = (ann(), Page { after: String::new(), limit: 100, order: Order::Ascending });
    store.create(&ann, &conversation(id), &[says("a", Role::User)]).await.unwrap();
    assert_eq!(store.get(&ann, id).await.unwrap().unwrap().leaf, "a");
    store.append(&ann, id, &At::Leaf, &[says("b", Role::User)]).await.unwrap().unwrap();
    let branch = store.branch(&ann, id, "b", &page).await.unwrap().messages;
    assert_eq!(branch.iter().map(|message| message.id.as_str()).collect::<Vec<_>>(), ["a", "b"]);
    store.update(&ann, id, Some(id), None).await.unwrap();
    assert_eq!(store.get(&ann, id).await.unwrap().unwrap().title, id);
    store.pin(&ann, id, "a", true).await.unwrap();
    assert!(store.message(&ann, id, "a").await.unwrap().unwrap().pinned);
    let (key_name, reason) = ("k".into(), id.to_owned());
    let given = Feedback { message: "a".into(), key_name, rating: 1, reason, swipe: "b".into(), created_ms: 0 };
    store.rate(&ann, id, &given).await.unwrap();
    assert_eq!(store.feedback(&ann, id).await.unwrap()[0].reason, id);
    let turn = begun(id, &format!("r-{id}"), At::Behind("b".into()));
    store.begin(&ann, &turn).await.unwrap();
    assert_eq!(store.response(&ann, &turn.response.id).await.unwrap().unwrap().status, "in_progress");
    assert_eq!(store.put(&ann, &ended(&turn, "answer")).await.unwrap(), Put::Written);
    assert_eq!(store.response(&ann, &turn.response.id).await.unwrap().unwrap().leaf, "answer");
    assert_eq!(store.history(&ann, id, "answer", 9, 1 << 20).await.unwrap().0.len(), 3);
    store.delete_message(&ann, id, "a", str::to_owned).await.unwrap();
    assert!(store.message(&ann, id, "a").await.unwrap().is_none());
    store.delete(&ann, id).await.unwrap().unwrap();
    assert!(store.get(&ann, id).await.unwrap().is_none());
    assert!(store.response(&ann, &turn.response.id).await.unwrap().is_none());
}
