//! Projects that are made while the server runs, on each database.

mod support;

use support::on_each;
use tidegate_store::{Ended, KeptProject, Projects};

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
