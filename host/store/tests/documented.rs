//! What the documents have an operator run in the database, on each database: it does what they say, and no more.
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests, which clippy does not take for tests")]

mod support;

use sqlx::{AnyConnection, AssertSqlSafe, Row};
use support::on_each;
use tidegate_store::{Changes, Collection, KeptVector, Kv, Space, Vectors};

const CAP: u64 = 1 << 20;

/// Of all documents: lines that are indented and begin as SQL does.
fn documented() -> Vec<String> {
    let is_sql = |line: &&str| {
        let words = ["BEGIN", "COMMIT", "DELETE FROM", "INSERT INTO", "SELECT", "UPDATE"];
        line.strip_prefix("    ").is_some_and(|line| words.iter().any(|word| line.starts_with(word)))
    };
    let mut found = Vec::new();
    for file in std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs")).unwrap() {
        let path = file.unwrap().path();
        if path.extension().is_some_and(|extension| extension == "md") {
            let text = std::fs::read_to_string(path).unwrap();
            let statements = text.lines().filter(is_sql).flat_map(|line| line.split(';')).map(str::trim);
            found.extend(statements.filter(|statement| !statement.is_empty()).map(str::to_owned));
        }
    }
    found
}

/// What is in a column of a table.
async fn column(connection: &mut AnyConnection, table: &str, column: &str) -> Vec<String> {
    let query = sqlx::query(AssertSqlSafe(format!("SELECT {column} FROM {table} ORDER BY 1")));
    let rows = query.fetch_all(connection).await.unwrap();
    rows.iter().map(|row| row.get(0)).collect()
}

fn entry(id: &str) -> KeptVector {
    KeptVector { id: id.into(), vector: vec![1.0], payload: Vec::new(), cost: 200 }
}

#[tokio::test]
async fn what_a_plugin_and_a_tenant_had_is_taken_out_and_nothing_else() {
    on_each(|fresh| async move {
        let (vectors, kv) = (Vectors::new(&fresh.db, CAP), Kv::new(&fresh.db, CAP));
        let [old, other] = ["old-tenant", "ann"].map(|owner| Collection { owner, name: "notes" });
        for of in [old, other] {
            vectors.put(of, vec![entry("a"), entry("b")], CAP).await.unwrap();
            vectors.delete(of, &["b".into()]).await.unwrap();
        }
        for plugin in ["old-name", "p"] {
            kv.set(Space { owner: "ann", plugin }, "k", b"1", None, CAP).await.unwrap();
        }
        let Changes::Some { cursor, .. } = vectors.changes(old.owner, None).await.unwrap() else {
            panic!("it is there")
        };
        let (pool, statements) = (fresh.raw().await, documented());
        assert_eq!(statements.len(), 6, "{statements:?}");
        let mut connection = pool.acquire().await.unwrap();
        for statement in statements {
            let done = sqlx::query(AssertSqlSafe(statement.clone())).execute(&mut *connection).await;
            done.unwrap_or_else(|error| panic!("{}: {statement}: {error}", fresh.name));
        }
        for table in ["plugin_values", "plugin_spaces"] {
            assert_eq!(column(&mut connection, table, "plugin").await, ["p"], "{}: {table}", fresh.name);
        }
        assert_eq!(column(&mut connection, "plugin_vectors", "owner").await, ["ann", "ann"], "{}", fresh.name);
        let owners = column(&mut connection, "plugin_vector_owners WHERE bytes + deleted_bytes > 0", "owner").await;
        assert_eq!(owners, ["ann"], "{}: what counts for it", fresh.name);
        drop(connection);
        pool.close().await;
        // Who has a copy takes it anew, and finds what comes under that name again.
        assert!(matches!(vectors.changes(old.owner, Some(&cursor)).await.unwrap(), Changes::Anew | Changes::None));
        vectors.put(old, vec![entry("c")], 200).await.unwrap();
        assert!(matches!(vectors.changes(old.owner, Some(&cursor)).await.unwrap(), Changes::Anew));
        let found = vectors.changes(old.owner, None).await.unwrap();
        assert!(matches!(&found, Changes::Some { changes, .. } if changes.len() == 1), "{}", fresh.name);
    })
    .await;
}
