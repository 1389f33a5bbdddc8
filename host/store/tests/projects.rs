//! Projects that are made while the server runs, on each database.

mod support;

use support::on_each;
use tidegate_store::conversations::Conversation;
use tidegate_store::{Conversations, Ended, KeptProject, Kv, Projects, Space};
use tidegate_types::TenantId;

fn project(id: &str, created_ms: u64) -> KeptProject {
    KeptProject {
        id: id.into(),
        tenant: "t".into(),
        settings: "{}".into(),
        created_ms,
        created_by: "root".into(),
        archived_ms: None,
    }
}

#[tokio::test]
async fn projects_are_kept_changed_and_archived_once() {
    on_each(|fresh| async move {
        let projects = Projects::new(fresh.db.clone());
        assert!(projects.add(&project("proj_b", 5), 2).await.unwrap());
        assert!(projects.add(&project("proj_a", 6), 2).await.unwrap());
        assert!(!projects.add(&project("proj_c", 7), 2).await.unwrap(), "the tenant has as many as it may");
        assert!(projects.update("proj_a", "{}", "{\"name\":\"A\"}").await.unwrap());
        assert!(!projects.update("proj_a", "{}", "{}").await.unwrap(), "somebody was faster");
        assert!(!projects.update("proj_x", "{}", "{}").await.unwrap());
        assert_eq!(projects.archive("proj_b", 9, |_, _| true).await.unwrap(), Ended::Done);
        assert_eq!(projects.archive("proj_b", 10, |_, _| true).await.unwrap(), Ended::Unknown);
        assert!(!projects.update("proj_b", "{}", "{\"name\":\"B\"}").await.unwrap(), "it is archived");
        assert!(projects.add(&project("proj_c", 7), 2).await.unwrap(), "there is room again");
        let expected = [
            KeptProject { archived_ms: Some(9), ..project("proj_b", 5) },
            KeptProject { settings: "{\"name\":\"A\"}".into(), ..project("proj_a", 6) },
            project("proj_c", 7),
        ];
        assert_eq!(projects.all().await.unwrap(), expected, "{}", fresh.name);
    })
    .await;
}

/// All gateways read all of them again and again.
#[tokio::test]
async fn of_archived_projects_the_last_are_kept_and_those_that_something_is_kept_for() {
    const DAY: u64 = 24 * 3600 * 1000;
    on_each(|fresh| async move {
        let (projects, kv) = (Projects::new(fresh.db.clone()), Kv::new(&fresh.db, 1 << 20));
        let add = async |id: &str, at| projects.add(&project(id, at), 2).await.unwrap();
        let ids = async || projects.all().await.unwrap().into_iter().map(|project| project.id).collect::<Vec<_>>();
        for i in 0..6 {
            let id = format!("proj_{i}");
            assert!(add(&id, i).await);
            assert_eq!(projects.archive(&id, i + 1, |_, _| true).await.unwrap(), Ended::Done);
        }
        kv.set(Space { owner: "proj_0", plugin: "p" }, "k", b"1", None, 1 << 20).await.unwrap();
        let (conversations, owner) = (Conversations::new(fresh.db.clone()), TenantId::new("proj_1"));
        let (title, metadata, leaf) = (String::new(), "{}".into(), String::new());
        let made = Conversation { id: "c".into(), title, metadata, leaf, created_ms: 1 };
        conversations.create(&owner, &made, &[]).await.unwrap();
        assert!(!add("proj_6", 10).await, "{}: there are three times as many, of a day", fresh.name);
        assert!(add("proj_6", DAY + 10).await);
        assert_eq!(ids().await, ["proj_0", "proj_1", "proj_4", "proj_5", "proj_6"], "{}", fresh.name);
        kv.sweep().await.unwrap();
        assert_eq!(conversations.delete_archived().await.unwrap(), 1);
        assert!(add("proj_7", DAY + 11).await);
        assert_eq!(ids().await, ["proj_4", "proj_5", "proj_6", "proj_7"], "{}", fresh.name);
    })
    .await;
}
