//! Keys that are made while the server runs, on each database.

mod support;

use support::{MOST, key, on_each};
use tidegate_store::{Added, Ended, KeptKey, KeptProject, Keys, Projects};

#[tokio::test]
async fn a_name_is_taken_while_its_key_is_valid() {
    on_each(|fresh| async move {
        let keys = Keys::new(fresh.db.clone());
        assert_eq!(keys.add(&key("b", "h1"), MOST).await.unwrap(), Added::Done);
        assert_eq!(keys.add(&KeptKey { expires_ms: Some(9), ..key("a", "h2") }, MOST).await.unwrap(), Added::Done);
        assert_eq!(keys.add(&key("b", "h3"), MOST).await.unwrap(), Added::Refused);
        let all = keys.all().await.unwrap();
        assert_eq!(all, [KeptKey { expires_ms: Some(9), ..key("a", "h2") }, key("b", "h1")], "{}", fresh.name);
        assert_eq!(
            keys.add(&KeptKey { created_ms: 10, ..key("a", "h4") }, MOST).await.unwrap(),
            Added::Done,
            "the other has expired"
        );
        assert_eq!(keys.revoke("b", 6, |_, _| false).await.unwrap(), Ended::Refused);
        assert_eq!(keys.revoke("b", 7, |_, _| true).await.unwrap(), Ended::Done);
        assert_eq!(keys.revoke("b", 8, |_, _| true).await.unwrap(), Ended::Unknown);
        assert_eq!(keys.revoke("nobody", 8, |_, _| true).await.unwrap(), Ended::Unknown);
        assert_eq!(keys.add(&key("b", "h3"), MOST).await.unwrap(), Added::Done, "the other was taken back");
    })
    .await;
}

#[tokio::test]
async fn a_key_takes_anothers_place_and_leaves_it_some_time() {
    on_each(|fresh| async move {
        let keys = Keys::new(fresh.db.clone());
        assert_eq!(
            keys.rotate(&key("a", "h1"), "h0", 50, MOST).await.unwrap(),
            Added::Refused,
            "there is none to take the place of"
        );
        assert_eq!(keys.add(&key("a", "h1"), MOST).await.unwrap(), Added::Done);
        assert_eq!(
            keys.rotate(&KeptKey { created_ms: 10, ..key("a", "h2") }, "h1", 50, MOST).await.unwrap(),
            Added::Done
        );
        assert_eq!(
            keys.rotate(&KeptKey { created_ms: 20, ..key("a", "h3") }, "h2", 70, MOST).await.unwrap(),
            Added::Done
        );
        let ends: Vec<_> = keys.all().await.unwrap().into_iter().map(|key| (key.hash, key.expires_ms)).collect();
        let expected = [("h3", None), ("h2", Some(70)), ("h1", Some(50))];
        assert_eq!(ends, expected.map(|(hash, end)| (hash.to_owned(), end)), "{}", fresh.name);
    })
    .await;
}

#[tokio::test]
async fn a_tenant_has_so_many_keys_and_those_that_ended_last() {
    on_each(|fresh| async move {
        let keys = Keys::new(fresh.db.clone());
        let at = |created_ms, name: &str, hash: &str| KeptKey { created_ms, ..key(name, hash) };
        let add = async |key: KeptKey| keys.add(&key, 2).await.unwrap();
        assert_eq!(add(at(5, "a", "a1")).await, Added::Done);
        assert_eq!(add(at(5, "b", "b1")).await, Added::Done);
        assert_eq!(add(at(5, "c", "c1")).await, Added::TooMany);
        assert_eq!(add(KeptKey { tenant: "other".into(), ..at(5, "d", "d1") }).await, Added::Done);
        // The old one would be there beside it for a while.
        assert_eq!(keys.rotate(&at(10, "a", "a2"), "a1", 50, 2).await.unwrap(), Added::TooMany);
        assert!(keys.all().await.unwrap().iter().all(|key| key.expires_ms.is_none()), "it changed nothing");
        for i in 2..6 {
            let (old, new) = (format!("a{}", i - 1), format!("a{i}"));
            // Also where there are more than one may make now.
            assert_eq!(keys.rotate(&at(10 * i, "a", &new), &old, 10 * i, 2).await.unwrap(), Added::Done);
            assert_eq!(keys.rotate(&at(10 * i, "b", "b2"), "b1", 10 * i + 1, 1).await.unwrap(), Added::TooMany);
        }
        let left: Vec<_> = keys.all().await.unwrap().into_iter().map(|key| key.hash).collect();
        assert_eq!(left, ["a5", "a4", "a3", "b1", "d1"], "{}", fresh.name);
        assert_eq!(keys.revoke("b", 60, |_, _| true).await.unwrap(), Ended::Done);
        assert_eq!(add(at(70, "c", "c1")).await, Added::Done);
        let left: Vec<_> = keys.all().await.unwrap().into_iter().map(|key| key.hash).collect();
        assert_eq!(left, ["a5", "a4", "b1", "c1", "d1"], "{}", fresh.name);
    })
    .await;
}

/// Who replaces a key has read it before: another of its name may have come meanwhile.
#[tokio::test]
async fn what_was_taken_back_is_not_brought_back_in_anothers_place() {
    on_each(|fresh| async move {
        let keys = Keys::new(fresh.db.clone());
        assert_eq!(keys.add(&key("a", "h1"), MOST).await.unwrap(), Added::Done);
        assert_eq!(keys.revoke("a", 6, |_, _| true).await.unwrap(), Ended::Done);
        assert_eq!(
            keys.add(&KeptKey { created_ms: 7, settings: "less".into(), ..key("a", "h2") }, MOST).await.unwrap(),
            Added::Done
        );
        assert_eq!(
            keys.rotate(&KeptKey { created_ms: 8, ..key("a", "h3") }, "h1", 50, MOST).await.unwrap(),
            Added::Refused
        );
        let valid = keys.all().await.unwrap().into_iter().filter(|key| key.revoked_ms.is_none());
        let valid: Vec<_> = valid.map(|key| (key.settings, key.expires_ms)).collect();
        assert_eq!(valid, [("less".to_owned(), None)], "{}", fresh.name);
    })
    .await;
}

/// Of what several end at once, however many do, the last is still there: a key of its own, or one of a project.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn who_ends_keys_and_projects_at_once_leaves_what_has_to_be_left() {
    on_each(|fresh| async move {
        let (keys, projects) = (Keys::new(fresh.db.clone()), Projects::new(fresh.db.clone()));
        for round in 0..8 {
            let (tenant, own, id) = (format!("t{round}"), format!("own{round}"), format!("proj_{round}"));
            let project = KeptProject {
                id: id.clone(),
                tenant: tenant.clone(),
                settings: "{}".into(),
                created_ms: 5,
                created_by: "root".into(),
                archived_ms: None,
            };
            assert!(projects.add(&project, 10).await.unwrap());
            let of = |name: &str, settings: &str| KeptKey {
                tenant: tenant.clone(),
                settings: settings.into(),
                ..key(name, &format!("{name}-{tenant}"))
            };
            assert_eq!(keys.add(&of(&own, "own"), MOST).await.unwrap(), Added::Done);
            assert_eq!(keys.add(&of(&format!("in{round}"), &id), MOST).await.unwrap(), Added::Done);
            // Whether somebody is left who is neither of the name nor in the project that is to end.
            let left = |ends: String, tenant: String| {
                move |keys: Vec<KeptKey>, projects: Vec<KeptProject>| {
                    let over = |key: &KeptKey| {
                        let archived = |p: &KeptProject| p.id == key.settings && p.archived_ms.is_some();
                        key.revoked_ms.is_some()
                            || key.name == ends
                            || key.settings == ends
                            || projects.iter().any(archived)
                    };
                    keys.iter().any(|key| key.tenant == tenant && !over(key))
                }
            };
            let (one, other) = tokio::join!(
                keys.revoke(&own, 7, left(own.clone(), tenant.clone())),
                projects.archive(&id, 7, left(id.clone(), tenant.clone())),
            );
            let ended = [one.unwrap(), other.unwrap()];
            assert_eq!(ended.iter().filter(|ended| **ended == Ended::Done).count(), 1, "{}: {ended:?}", fresh.name);
            assert!(ended.contains(&Ended::Refused), "{}: {ended:?}", fresh.name);
        }
    })
    .await;
}
