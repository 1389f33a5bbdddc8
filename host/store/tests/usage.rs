//! What is kept of usage, on each database.

// Helpers fail as the tests that call them do.
#![allow(clippy::unwrap_used)]

mod support;

use support::on_each;
use tidegate_ledger::{
    Alert, Batch, CallKind, Called, Calls, Entry, Event, Opening, Position, Price, Sink, Spent, Tokens,
};
use tidegate_store::{Books, Counted, Db, GroupBy, Holder, Only, Outbox, Usage, UsageQuery, UsageSink};

fn entry(generation: &str, tenant: &str, model: &str, ended_ms: u64, output: u64) -> Event {
    let price = Price { input: 1_000_000, cached: 500_000, output: 2_000_000 };
    let opening = Opening {
        generation: generation.into(),
        request_id: "r".into(),
        tenant: tenant.into(),
        project: None,
        key_name: format!("{tenant}-key"),
        end_user: None,
        model: model.into(),
        price,
        begun_ms: ended_ms - 5,
    };
    Event::Used(Entry {
        opening,
        tokens: Tokens { input: 10, cached: 4, output },
        calls: Calls::default(),
        outcome: "answered".into(),
        ended_ms,
    })
}

fn batch(events: Vec<Event>, offset: u64) -> Batch {
    Batch { events, behind: Position { segment: 3, offset } }
}

#[tokio::test]
async fn an_event_that_comes_twice_is_kept_once_and_the_place_goes_with_it() {
    on_each(|fresh| async move {
        let sink = UsageSink::new(fresh.db.clone(), true);
        assert_eq!(sink.position("j").await.unwrap(), Position::default());
        sink.commit("j", batch(vec![entry("g1", "t", "m", 1000, 5)], 10)).await.unwrap();
        sink.commit("j", batch(vec![entry("g1", "t", "m", 9000, 7), entry("g2", "t", "m", 1000, 1)], 20))
            .await
            .unwrap();
        assert_eq!(sink.position("j").await.unwrap(), Position { segment: 3, offset: 20 });
        assert_eq!(sink.position("another").await.unwrap(), Position::default());
        let waiting = Outbox::new(fresh.db.clone()).oldest(10).await.unwrap();
        assert_eq!(waiting.iter().map(|event| &*event.id).collect::<Vec<_>>(), ["g1", "g2"]);
        assert!(waiting[0].payload.contains("\"output_tokens\":5"), "{}", waiting[0].payload);
        let outbox = Outbox::new(fresh.db.clone());
        outbox.taken("g1").await.unwrap();
        assert_eq!(outbox.oldest(10).await.unwrap().len(), 1);
    })
    .await;
}

#[tokio::test]
async fn what_waited_long_is_kept_whole_and_no_text_of_a_caller_stops_it() {
    on_each(|fresh| async move {
        let sink = UsageSink::new(fresh.db.clone(), true);
        let mut events: Vec<Event> = (0..450).map(|i| entry(&format!("g{i:03}"), "t", "m", 1000, i)).collect();
        let Event::Used(hostile) = &mut events[3] else { panic!() };
        hostile.opening.end_user = Some("a\0b".into());
        // One that comes twice at once.
        events.push(entry("g003", "t", "m", 1000, 9999));
        sink.commit("j", batch(events, 10)).await.unwrap();
        assert_eq!(sink.position("j").await.unwrap(), Position { segment: 3, offset: 10 }, "{}", fresh.name);
        let page = Books::new(fresh.db.clone()).page("", 1000).await.unwrap();
        let outputs: Vec<u64> = page.iter().map(|row| row.tokens.output).collect();
        assert_eq!(outputs, (0..450).collect::<Vec<_>>(), "{}", fresh.name);
        let waiting = Outbox::new(fresh.db.clone()).oldest(1000).await.unwrap();
        assert_eq!(waiting.len(), 450);
    })
    .await;
}

#[tokio::test]
async fn an_alert_is_told_once_though_several_gateways_find_it() {
    on_each(|fresh| async move {
        let alert = |id: &str, at_ms: u64| {
            let [scope, name, window, bound] = ["tenant", "t", "2026-11-21", "soft"].map(str::to_owned);
            Event::Alert(Alert { id: id.into(), scope, name, window, bound, spent: 80, limit: 100, at_ms })
        };
        let (sink, outbox) = (UsageSink::new(fresh.db.clone(), true), Outbox::new(fresh.db.clone()));
        sink.commit("j", batch(vec![alert("a", 1000), alert("b", 1000)], 1)).await.unwrap();
        let waiting = outbox.oldest(10).await.unwrap();
        assert_eq!(waiting.iter().map(|event| &*event.id).collect::<Vec<_>>(), ["a", "b"], "{}", fresh.name);
        for event in waiting {
            outbox.taken(&event.id).await.unwrap();
        }
        sink.commit("another", batch(vec![alert("a", 2000)], 1)).await.unwrap();
        assert_eq!(outbox.oldest(10).await.unwrap(), [], "{}", fresh.name);
        // Names of windows that are long over are forgotten.
        sink.commit("j", batch(vec![alert("c", 90 * 86_400_000), alert("a", 90 * 86_400_000)], 2)).await.unwrap();
        assert_eq!(outbox.oldest(10).await.unwrap().len(), 2, "{}", fresh.name);
    })
    .await;
}

#[tokio::test]
async fn sums_are_a_tenants_own_by_time_and_what_is_asked_for() {
    on_each(|fresh| async move {
        let sink = UsageSink::new(fresh.db.clone(), false);
        let events = vec![
            entry("a", "t", "m1", 1_000, 1),
            entry("b", "t", "m2", 1_500, 2),
            entry("c", "t", "m1", 2_000, 4),
            entry("d", "other", "m1", 1_000, 100),
            entry("e", "t", "m1", 3_000, 1000),
        ];
        sink.commit("j", batch(events, 1)).await.unwrap();
        let usage = Usage::new(fresh.db.clone());
        let query = |tenant: Option<&str>, by| UsageQuery {
            tenant: tenant.map(Into::into),
            projects: Vec::new(),
            only: Only::default(),
            start_ms: 1_000,
            origin_ms: 1_000,
            end_ms: 3_000,
            width_ms: 1_000,
            by,
            limit: 100,
        };
        let by_model = GroupBy { model: true, ..GroupBy::default() };
        let sums = usage.sums(&query(Some("t"), by_model)).await.unwrap();
        let seen: Vec<_> = sums
            .iter()
            .map(|sum| {
                (sum.bucket, sum.totals.model.as_deref().unwrap(), sum.totals.requests, sum.totals.output_tokens)
            })
            .collect();
        assert_eq!(seen, [(0, "m1", 1, 1), (0, "m2", 1, 2), (1, "m1", 1, 4)], "{}", fresh.name);
        assert_eq!(sums[0].totals.amount, 6 + 2 + 2);
        // A span that began before the start has what came from the start on.
        let late = UsageQuery { start_ms: 1_200, ..query(Some("t"), by_model) };
        let late = usage.sums(&late).await.unwrap();
        let seen: Vec<_> = late.iter().map(|sum| (sum.bucket, sum.totals.model.as_deref().unwrap())).collect();
        assert_eq!(seen, [(0, "m2"), (1, "m1")], "{}", fresh.name);
        let by_tenant = GroupBy { project: true, key: true, ..GroupBy::default() };
        let all = usage.sums(&query(None, by_tenant)).await.unwrap();
        let seen: Vec<_> =
            all.iter().map(|sum| (sum.bucket, sum.totals.key.as_deref().unwrap(), sum.totals.output_tokens)).collect();
        assert_eq!(seen, [(0, "other-key", 100), (0, "t-key", 3), (1, "t-key", 4)]);
        assert!(usage.sums(&query(Some("nobody"), by_model)).await.unwrap().is_empty());
        let outputs = async |only: Only| {
            let sums = usage.sums(&UsageQuery { only, ..query(None, GroupBy::default()) }).await.unwrap();
            sums.iter().map(|sum| sum.totals.output_tokens).sum::<u64>()
        };
        let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        let of = |keys: &[&str], models: &[&str]| Only { keys: names(keys), users: Vec::new(), models: names(models) };
        assert_eq!(outputs(of(&["t-key"], &[])).await, 7, "{}", fresh.name);
        assert_eq!(outputs(of(&["t-key", "other-key"], &["m1"])).await, 105);
        assert_eq!(outputs(of(&["t-ke", "key"], &[])).await, 0);
        let of_users = |users: &[&str]| Only { users: names(users), ..Only::default() };
        assert_eq!(outputs(of_users(&["nobody"])).await, 0);
        // What is of no end user is of none of several.
        assert_eq!(outputs(of_users(&["nobody", "somebody"])).await, 0, "{}", fresh.name);
        let Event::Used(mut anns) = entry("f", "t", "m1", 1_000, 16) else { panic!() };
        anns.opening.end_user = Some("ann".into());
        sink.commit("j", batch(vec![Event::Used(anns)], 2)).await.unwrap();
        assert_eq!(outputs(of_users(&["ann", "bob"])).await, 16);
        assert_eq!(outputs(of_users(&["bob", "ann", "eve"])).await, 16);
        assert_eq!(outputs(of_users(&["an", "nn"])).await, 0);
    })
    .await;
}

const DAY_MS: u64 = 86_400_000;

/// What `entry` with so much output costs.
fn cost(output: u64) -> u64 {
    6 + 2 + 2 * output
}

/// Entries of tenant `t` on its days 0, 1 and 2, two on the last, and one of another.
fn of_three_days() -> Vec<Event> {
    vec![
        entry("a", "t", "m", 1_000, 1),
        entry("b", "t", "m", DAY_MS, 10),
        entry("c", "t", "m", 2 * DAY_MS, 100),
        entry("d", "t", "m", 3 * DAY_MS - 1, 1_000),
        entry("e", "other", "m", 2 * DAY_MS, 5),
        // By a clock that was years ahead.
        entry("f", "t", "m", 2_000 * DAY_MS, 7),
    ]
}

async fn assert_three_days(usage: &Usage, name: &str) {
    let (day, month) = (cost(100) + cost(1_000), cost(10) + cost(100) + cost(1_000));
    for holder in [Holder::Tenant("t"), Holder::Key("t-key")] {
        let spent = usage.spent(holder, 2 * DAY_MS, DAY_MS).await.unwrap();
        assert_eq!(spent, Spent { day, month }, "{name}: {holder:?}");
    }
    assert_eq!(usage.spent(Holder::Key("t"), 0, 0).await.unwrap(), Spent::default(), "{name}");
    assert_eq!(usage.spent(Holder::Project("t"), 0, 0).await.unwrap(), Spent::default(), "{name}");
}

#[tokio::test]
async fn what_is_spent_is_summed_by_days_each_entry_once() {
    on_each(|fresh| async move {
        let (sink, usage) = (UsageSink::new(fresh.db.clone(), false), Usage::new(fresh.db.clone()));
        let events = of_three_days();
        // In parts, of which one comes again, by journals of two gateways.
        sink.commit("j", batch(events[..3].to_vec(), 1)).await.unwrap();
        sink.commit("k", batch(events[2..].to_vec(), 1)).await.unwrap();
        sink.commit("j", batch(events[1..].to_vec(), 2)).await.unwrap();
        assert_three_days(&usage, fresh.name).await;
        // No sum leaves what a database can hold, and the journal goes on.
        for generation in ["x", "y"] {
            let most = batch(vec![entry(generation, "rich", "m", DAY_MS, u64::MAX / 4)], 3);
            sink.commit("j", most).await.unwrap();
        }
        let spent = usage.spent(Holder::Tenant("rich"), DAY_MS, 0).await.unwrap();
        assert_eq!(spent, Spent { day: i64::MAX as u64 / 64, month: i64::MAX as u64 / 64 }, "{}", fresh.name);
    })
    .await;
}

/// One goes through the tenants from the first and the other from the last, until somebody lets go of the one in the middle.
#[tokio::test]
async fn gateways_that_add_to_the_same_days_do_not_lock_each_other_out() {
    on_each(|fresh| async move {
        let tenants: Vec<String> = (0..20).map(|i| format!("t{i:02}")).collect();
        let of_all = |journal: &str| -> Vec<Event> {
            tenants.iter().map(|tenant| entry(&format!("{journal}/{tenant}"), tenant, "m", DAY_MS, 1)).collect()
        };
        let commit = async |journal: &str, events: Vec<Event>| {
            UsageSink::new(fresh.db.clone(), false).commit(journal, batch(events, 1)).await.unwrap();
        };
        commit("before", of_all("before")).await;
        let raw = fresh.raw().await;
        let mut holder = raw.begin().await.unwrap();
        let held = "UPDATE spent_by_day SET amount = amount WHERE holder = 'tenant' AND name = 't10'";
        sqlx::query(held).execute(&mut *holder).await.unwrap();
        let letting_go = async {
            tokio::time::sleep(std::time::Duration::from_millis(500)).await;
            holder.commit().await.unwrap();
        };
        let backwards: Vec<Event> = of_all("b").into_iter().rev().collect();
        tokio::join!(commit("a", of_all("a")), commit("b", backwards), letting_go);
        raw.close().await;
        let spent = Usage::new(fresh.db.clone()).spent(Holder::Tenant("t07"), DAY_MS, 0).await.unwrap();
        assert_eq!(spent.day, 3 * cost(1), "{}", fresh.name);
    })
    .await;
}

#[tokio::test]
async fn what_was_spent_before_sums_were_kept_is_in_them() {
    on_each(|fresh| async move {
        let sink = UsageSink::new(fresh.db.clone(), false);
        let mut events = of_three_days();
        let Event::Used(of_project) = &mut events[4] else { panic!() };
        of_project.opening.project = Some("proj_p".into());
        sink.commit("j", batch(events, 1)).await.unwrap();
        let raw = fresh.raw().await;
        for statement in [
            "DROP TABLE spent_by_day",
            "CREATE INDEX usage_by_project ON usage_entries (project, ended_ms)",
            "CREATE INDEX usage_by_key ON usage_entries (key_name, ended_ms)",
            "DELETE FROM _sqlx_migrations WHERE version = 22",
        ] {
            sqlx::query(statement).execute(&raw).await.unwrap();
        }
        raw.close().await;
        let again = Db::open(&fresh.place).await.unwrap();
        let usage = Usage::new(again.clone());
        assert_three_days(&usage, fresh.name).await;
        let spent = usage.spent(Holder::Project("proj_p"), DAY_MS, 0).await.unwrap();
        assert_eq!(spent, Spent { day: cost(5), month: cost(5) }, "{}", fresh.name);
        again.close().await;
    })
    .await;
}

#[tokio::test]
async fn sums_are_of_projects_where_that_is_asked_for() {
    on_each(|fresh| async move {
        let of = |generation: &str, tenant: &str, project: Option<&str>, output: u64| {
            let Event::Used(mut entry) = entry(generation, tenant, "m", 1_000, output) else { panic!() };
            entry.opening.project = project.map(Into::into);
            Event::Used(entry)
        };
        let events = vec![
            of("a", "t", None, 1),
            of("b", "t", Some("proj_x"), 2),
            of("c", "t", Some("proj_y"), 4),
            of("d", "other", None, 8),
        ];
        let sink = UsageSink::new(fresh.db.clone(), true);
        sink.commit("j", batch(events, 1)).await.unwrap();
        let usage = Usage::new(fresh.db.clone());
        let sums = async |tenant: Option<&str>, projects: &[&str]| {
            let query = UsageQuery {
                tenant: tenant.map(Into::into),
                projects: projects.iter().map(|id| (*id).to_owned()).collect(),
                only: Only::default(),
                start_ms: 0,
                origin_ms: 0,
                end_ms: 2_000,
                width_ms: 2_000,
                by: GroupBy { project: true, ..GroupBy::default() },
                limit: 100,
            };
            let sums = usage.sums(&query).await.unwrap();
            sums.into_iter().map(|sum| (sum.totals.project.unwrap(), sum.totals.output_tokens)).collect::<Vec<_>>()
        };
        let named = |sums: &[(&str, u64)]| sums.iter().map(|(id, n)| ((*id).to_owned(), *n)).collect::<Vec<_>>();
        let all = named(&[("other", 8), ("proj_x", 2), ("proj_y", 4), ("t", 1)]);
        assert_eq!(sums(None, &[]).await, all, "{}", fresh.name);
        assert_eq!(sums(Some("t"), &[]).await, all[1..]);
        assert_eq!(sums(Some("t"), &["t", "proj_y"]).await, all[2..]);
        assert_eq!(sums(Some("t"), &["other", "proj_", "roj_x"]).await, []);
        let spent = usage.spent(Holder::Project("proj_y"), 0, 0).await.unwrap();
        assert_eq!(spent, Spent { day: cost(4), month: cost(4) });
        let waiting = Outbox::new(fresh.db.clone()).oldest(10).await.unwrap();
        let said = waiting.iter().map(|event| event.payload.as_str()).collect::<String>();
        assert!(said.contains("\"project\":\"proj_x\"") && said.contains("\"project\":\"t\""), "{said}");
    })
    .await;
}

#[tokio::test]
async fn calls_are_kept_with_their_prices_and_summed_beside_tokens() {
    on_each(|fresh| async move {
        let called = |kind, name: &str, count, price| ((kind, name.to_owned()), Called { count, price });
        let with = |generation: &str, calls: Vec<_>| {
            let Event::Used(mut entry) = entry(generation, "t", "m", 1_000, 1) else { panic!() };
            entry.calls = Calls(calls.into_iter().collect());
            Event::Used(entry)
        };
        let (tool, retrieval) = (CallKind::Tool, CallKind::Retrieval);
        let events = vec![
            with(
                "a",
                vec![called(tool, "web/search", 2, 50), called(tool, "web", 1, 0), called(retrieval, "web", 1, 30)],
            ),
            with("b", vec![called(retrieval, "web", 3, 10)]),
            with("c", vec![]),
        ];
        let sink = UsageSink::new(fresh.db.clone(), true);
        sink.commit("j", batch(events.clone(), 1)).await.unwrap();
        sink.commit("j", batch(events.clone(), 1)).await.unwrap();
        let books = Books::new(fresh.db.clone());
        let page = books.page("", 10).await.unwrap();
        for (row, event) in page.iter().zip(&events) {
            let Event::Used(entry) = event else { panic!() };
            assert_eq!((&row.calls, row.amount), (&entry.calls, entry.amount()), "{}", fresh.name);
            assert_eq!(row.counted, Counted::of(&entry.calls));
            assert_eq!(books.of(&row.generation).await.unwrap().as_ref(), Some(row));
        }
        assert_eq!((page.len(), page[0].counted), (3, Counted { tools: 3, retrievals: 1, amount: 130 }));
        assert_eq!(books.page("a", 1).await.unwrap()[0], page[1]);
        assert_eq!(books.num_stray_calls().await.unwrap(), 0);
        let query = UsageQuery {
            tenant: Some("t".into()),
            projects: Vec::new(),
            only: Only::default(),
            start_ms: 0,
            origin_ms: 0,
            end_ms: 2_000,
            width_ms: 2_000,
            by: GroupBy::default(),
            limit: 10,
        };
        let sums = Usage::new(fresh.db.clone()).sums(&query).await.unwrap();
        let of_tokens = 3 * (6 + 2 + 2);
        assert_eq!((sums[0].totals.tool_calls, sums[0].totals.retrieval_calls), (3, 4));
        assert_eq!((sums[0].totals.calls_amount, sums[0].totals.amount), (160, 160 + of_tokens));
        let waiting = Outbox::new(fresh.db.clone()).oldest(1).await.unwrap();
        let event: serde_json::Value = serde_json::from_str(&waiting[0].payload).unwrap();
        let said = serde_json::json!([{"kind": "tool", "name": "web", "calls": 1, "price_nano": 0},
            {"kind": "tool", "name": "web/search", "calls": 2, "price_nano": 50},
            {"kind": "retrieval", "name": "web", "calls": 1, "price_nano": 30}]);
        assert_eq!((&event["data"]["calls"], &event["data"]["amount_nano"]), (&said, &serde_json::json!(140)));
    })
    .await;
}
