//! Instances of plugins, on the path of real requests: `[plugins]` bounds how many live and what they hold, none serves
//! again whose last call ended badly, and one that never ends is ended. The guest `honest` says how many calls its instance
//! has had.

use crate::conversations::send;
use crate::one_read;
use crate::stages::counted;
use crate::talk::until;
use http_body_util::BodyExt;
use hyper::Method;
use serde_json::json;
use std::path::Path;
use std::sync::Arc;
use std::thread::available_parallelism;
use std::time::{Duration, Instant};
use tidegate_tests::stand_in::{StandIn, completion};
use tidegate_tests::{Answer, Gateway, ask, with_model};
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;
use tokio::time::timeout;

/// A guest from `tests/guests` under a name of its own, since counters are of the whole process.
fn stage(name: &str, guest: &str, limits: &str) -> String {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("guests/dist/{guest}.wasm"));
    format!(
        "[[pipeline.stage]]\nplugin = \"{name}\"\nfile = \"{}\"\nstages = [\"prompt-guard\"]\n\
         [pipeline.stage.limits]\n{limits}\n",
        file.display()
    )
}

/// Keys of a tenant each, which may read the metrics.
fn keys(names: &[&str]) -> String {
    let key = |name: &&str| {
        let hash = blake3::hash(name.as_bytes());
        format!("[[keys]]\nname = \"{name}\"\nhash = \"blake3:{hash}\"\nadmin = true\n")
    };
    names.iter().map(key).collect()
}

async fn metrics(gateway: &Gateway, key: &str) -> String {
    let answer = send(gateway, Method::GET, "/metrics", key, None).await;
    assert_eq!(answer.status, 200, "{:?}", answer.body);
    String::from_utf8(answer.body.to_vec()).unwrap()
}

async fn chat(gateway: &Gateway, key: &str, text: &str) -> Answer {
    let body = json!({"model": "tidegate-starter", "max_tokens": 4, "messages": [{"role": "user", "content": text}]});
    send(gateway, Method::POST, "/v1/chat/completions", key, Some(&body)).await
}

/// Which call of its instance this was.
async fn nth_call(gateway: &Gateway, key: &str) -> String {
    chat(gateway, key, "calls").await.text()
}

fn failures(name: &str, case: &str) -> String {
    format!("tidegate_plugin_failures_total{{plugin=\"{name}\",stage=\"prompt-guard\",case=\"{case}\"}}")
}

/// The one instance that there may be: were it kept, it would go on counting.
#[tokio::test(flavor = "multi_thread")]
async fn no_call_meets_an_instance_whose_last_one_ended_badly() {
    let stage = stage("begins-anew", "honest", "instances = 1\nwall_ms = 20000\ncpu_ms = 300\nmemory_mib = 8");
    let gateway = Gateway::start(&stage).await;
    for (word, case) in [("trap", "trap"), ("loop", "deadline"), ("hoard", "memory")] {
        assert_eq!([nth_call(&gateway, "").await, nth_call(&gateway, "").await], ["1", "2"], "before `{word}`");
        let failed = gateway.chat(ask(word)).await;
        assert_eq!((failed.status, failed.error().2.as_str()), (503, Some("plugin_failed")), "{word}");
        counted(&gateway, &failures("begins-anew", case), 1).await;
    }
    assert_eq!(nth_call(&gateway, "").await, "1");
}

#[tokio::test(flavor = "multi_thread")]
async fn where_so_many_instances_may_live_idle_ones_of_other_tenants_and_plugins_give_way() {
    for (instances, tenants, plugins) in [(1, ["1", "2", "1", "1"], ["1", "1"]), (2, ["1", "2", "1", "3"], ["1", "2"])]
    {
        let bound = format!("[plugins]\ninstances = {instances}\n");
        let honest = stage("gives-way", "honest", "wall_ms = 20000");
        let gateway = Gateway::start(&format!("{bound}{}{honest}", keys(&["ann", "bob"]))).await;
        let mut seen = Vec::new();
        for key in ["ann", "ann", "bob", "ann"] {
            seen.push(nth_call(&gateway, key).await);
        }
        assert_eq!(seen, tenants, "{instances}, two tenants");
        let other = stage("gives-way-too", "loops", "wall_ms = 20000");
        let gateway = Gateway::start(&format!("{bound}{other}{honest}")).await;
        let seen = [nth_call(&gateway, "").await, nth_call(&gateway, "").await];
        assert_eq!(seen, plugins, "{instances}, two plugins");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn of_idle_instances_the_one_that_was_used_longest_ago_gives_way() {
    let honest = stage("used-longest-ago", "honest", "wall_ms = 20000");
    let keys = keys(&["ann", "bob", "cora"]);
    let gateway = Gateway::start(&format!("[plugins]\ninstances = 2\n{keys}{honest}")).await;
    let mut seen = Vec::new();
    for key in ["ann", "bob", "ann", "cora", "ann", "bob"] {
        seen.push(nth_call(&gateway, key).await);
    }
    assert_eq!(seen, ["1", "1", "2", "1", "3", "1"], "bob's was the one to go");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_instance_has_a_thousand_calls_and_the_next_one_is_anothers_first() {
    let gateway = Gateway::start(&stage("is-recycled", "honest", "wall_ms = 20000")).await;
    for nth in 1..=1000 {
        assert_eq!(nth_call(&gateway, "").await, nth.to_string());
    }
    assert_eq!(nth_call(&gateway, "").await, "1");
}

/// The others hoard more than has room beside each other, and are answered.
#[tokio::test(flavor = "multi_thread")]
async fn for_memory_of_all_instances_idle_ones_give_way_and_requests_are_answered() {
    for (memory_mib, again) in [(24, "1"), (256, "2")] {
        let (counts, hoards) = (format!("counts-{memory_mib}"), format!("hoards-{memory_mib}"));
        let config = format!(
            "[plugins]\nmemory_mib = {memory_mib}\ninstance_memory_mib = 16\n{}{}{}",
            keys(&["ann", "bob", "cora", "dan"]),
            stage(&counts, "honest", "wall_ms = 20000"),
            stage(&hoards, "hoards", "wall_ms = 20000\ncpu_ms = 5000")
        );
        let gateway = Gateway::start(&config).await;
        assert_eq!(nth_call(&gateway, "ann").await, "1");
        for key in ["bob", "cora", "dan"] {
            assert_eq!(chat(&gateway, key, "8").await.status, 200, "{key} of {memory_mib} MiB");
        }
        assert_eq!(nth_call(&gateway, "ann").await, again, "of {memory_mib} MiB");
        let peak = format!("tidegate_plugin_memory_peak_bytes{{plugin=\"{hoards}\"}} ");
        let metrics = metrics(&gateway, "ann").await;
        let peak = metrics.lines().find_map(|line| line.strip_prefix(&peak)?.parse::<usize>().ok()).unwrap();
        assert!((8 << 20..=16 << 20).contains(&peak), "{peak}");
    }
}

/// A request in which a guest loops, for as long as this is not aborted: how it was answered, and when.
fn looping(gateway: &Arc<Gateway>, key: &'static str) -> JoinHandle<(u16, Duration)> {
    let (gateway, begun) = (Arc::clone(gateway), Instant::now());
    tokio::spawn(async move { (chat(&gateway, key, "loop").await.status, begun.elapsed()) })
}

/// Of instances at work none gives way. The metrics say which limit it was; another tenant has its share past that.
#[tokio::test(flavor = "multi_thread")]
async fn who_is_past_a_limit_of_all_instances_is_refused_and_counted_until_its_calls_end() {
    for (name, bound, loops) in
        [("instances", "instances = 1", 1), ("memory", "memory_mib = 3\ninstance_memory_mib = 3", 2)]
    {
        let (first, second) = (format!("first-of-{name}"), format!("second-of-{name}"));
        let config = format!(
            "[plugins]\n{bound}\n{}{}{}",
            keys(&["ann", "bob"]),
            stage(&first, "tarries", "wall_ms = 2000"),
            stage(&second, "loops", "wall_ms = 600000\ncpu_ms = 600000")
        );
        let gateway = Arc::new(Gateway::start(&config).await);
        let mut running: Vec<_> = (0..loops).map(|_| looping(&gateway, "ann")).collect();
        until(&format!("she is refused for {name}"), async || {
            // One may have been refused for another's sake.
            let ended = running.iter_mut().filter(|running| running.is_finished());
            ended.for_each(|ended| *ended = looping(&gateway, "ann"));
            // Who was past the first stage before the loop began waits for the second.
            let refused = timeout(Duration::from_secs(10), chat(&gateway, "ann", "Hello!")).await.ok()?;
            let full = metrics(&gateway, "ann").await.contains(&failures(&first, "full"));
            let all_go_on = running.iter().all(|running| !running.is_finished());
            (refused.status == 503 && full && all_go_on).then_some(())
        })
        .await;
        let answered = async |key: &str| (chat(&gateway, key, "Hello!").await.status == 200).then_some(());
        until("another is answered", async || answered("bob").await).await;
        assert!(running.iter().all(|running| !running.is_finished()), "{name}: her calls ended meanwhile");
        running.iter().for_each(JoinHandle::abort);
        until("she is answered again", async || answered("ann").await).await;
    }
}

/// Loops, as many as connections have threads, so that one is on each.
fn looping_everywhere(gateway: &Arc<Gateway>) -> Vec<JoinHandle<(u16, Duration)>> {
    (0..available_parallelism().unwrap().get().min(64)).map(|_| looping(gateway, "")).collect()
}

/// The guest that loops, never left out for it.
fn loops(name: &str, limits: &str) -> String {
    stage(name, "loops", &format!("{limits}\ninstances = 64\n[pipeline.stage.breaker]\nfailures = 0"))
}

/// What passes until a client has its answer is counted with it, and a busy machine's may be seconds: the least of all is what
/// the program takes. `an_endless_loop_ends_within_10_ms_of_its_wall_limit_at_best` is without a server.
#[tokio::test(flavor = "multi_thread")]
async fn endless_loops_end_within_a_moment_of_their_deadline_at_best_and_a_stream_goes_on_meanwhile() {
    const DEADLINE: Duration = Duration::from_secs(1);
    const MOMENT: Duration = Duration::from_millis(25);
    let let_go = Arc::new(Semaphore::new(0));
    let reads = (0..20_000).map(|n| vec![format!("{n} ")]).collect();
    let model = one_read::model("tidegate-starter", reads, &let_go).await;
    let limits = format!("wall_ms = {}\ncpu_ms = 20000", DEADLINE.as_millis());
    let gateway = Arc::new(Gateway::start(&(model + &loops("loops-beside", &limits))).await);
    let mut request = with_model(ask("Hello!"));
    request["stream"] = true.into();
    let mut stream = gateway.send(gateway.json_request("/v1/chat/completions", &request)).await.into_body();
    let (mut over, mut seen) = (Vec::new(), 0);
    for _ in 0..20 {
        let begun = Instant::now();
        let running = looping_everywhere(&gateway);
        while running.iter().any(|running| !running.is_finished()) {
            stream.frame().await.unwrap().unwrap();
            // By then all of them loop.
            seen += usize::from(begun.elapsed() > DEADLINE / 2);
            let_go.add_permits(1);
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        for running in running {
            let (status, took) = running.await.unwrap();
            assert_eq!(status, 503);
            over.push(took.checked_sub(DEADLINE).unwrap_or_else(|| panic!("it ended after {took:?}")));
        }
        if over.iter().any(|over| *over < MOMENT) {
            break;
        }
    }
    println!("past {DEADLINE:?}, beside a stream: {over:?}");
    assert!(over.iter().any(|over| *over < MOMENT), "past {DEADLINE:?}: {over:?}");
    assert!(over.iter().all(|over| *over < Duration::from_secs(5)), "past {DEADLINE:?}: {over:?}");
    assert!(seen >= 5, "{seen} events came while the guests looped");
    assert!(metrics(&gateway, "").await.contains(&failures("loops-beside", "deadline")));
}

/// How long that takes is for the machine to say, since all that run have its processors together.
#[tokio::test(flavor = "multi_thread")]
async fn endless_loops_end_when_their_cpu_time_is_over_and_others_are_answered_meanwhile() {
    const CPU: Duration = Duration::from_secs(2);
    let upstream = StandIn::start(|_, _| completion("Hello.")).await;
    let limits = format!("wall_ms = 600000\ncpu_ms = {}", CPU.as_millis());
    let stage = loops("loops-for-long", &limits);
    let gateway = Arc::new(Gateway::start(&(upstream.model("tidegate-starter") + &stage)).await);
    let (begun, mut answered) = (Instant::now(), 0);
    let running = looping_everywhere(&gateway);
    while running.iter().any(|running| !running.is_finished()) {
        let loop_by_now = begun.elapsed() > CPU / 2;
        assert_eq!(chat(&gateway, "", "Hello!").await.text(), "Hello.");
        answered += usize::from(loop_by_now && running.iter().all(|running| !running.is_finished()));
    }
    for running in running {
        let (status, took) = running.await.unwrap();
        assert_eq!(status, 503);
        assert!((CPU..Duration::from_secs(120)).contains(&took), "it ended after {took:?}");
    }
    assert!(answered >= 2, "{answered} were answered while the guests looped");
    assert!(metrics(&gateway, "").await.contains(&failures("loops-for-long", "deadline")));
}
