//! A disk without room: nothing new begins, what ran is not lost, and all goes on when there is room again.

use serde_json::json;
use std::fs::OpenOptions;
use std::io::Write;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};
use tidegate::config::Config;
use tidegate_tests::issuer::now_s;
use tidegate_tests::{Answer, Gateway, ask, with_model};

/// A disk of its own, where this user may make one.
struct Disk<'a>(&'a Path);

impl<'a> Disk<'a> {
    fn mount(at: &'a Path, size: &str) -> Option<Self> {
        let options = format!("size={size}");
        let mounted = Command::new("mount").args(["-t", "tmpfs", "-o", &options, "tmpfs"]).arg(at).output();
        mounted.is_ok_and(|output| output.status.success()).then_some(Self(at))
    }

    /// To the last byte, whatever was given back since it was last full.
    fn fill(&self) {
        let mut filler = OpenOptions::new().create(true).append(true).open(self.0.join("filler")).unwrap();
        while filler.write(&[0; 4096]).is_ok_and(|len| len > 0) {}
    }

    fn empty(&self) {
        std::fs::remove_file(self.0.join("filler")).unwrap();
    }
}

impl Drop for Disk<'_> {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("--lazy").arg(self.0).status();
    }
}

async fn chat(gateway: &Gateway) -> Answer {
    let mut body = with_model(ask("What is Tidegate?"));
    body["max_tokens"] = 5.into();
    gateway.post("/v1/chat/completions", &body).await
}

/// Asks until the answer has this status.
async fn until(gateway: &Gateway, status: u16, answered: &mut u64) -> Answer {
    let began = Instant::now();
    loop {
        let answer = chat(gateway).await;
        *answered += u64::from(answer.status == 200);
        if answer.status == status {
            return answer;
        }
        assert!(began.elapsed() < Duration::from_secs(30), "never {status}, but {}: {:?}", answer.status, answer.body);
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Requests that the store knows of.
async fn billed(gateway: &Gateway, since: u64) -> u64 {
    let page = gateway.get(&format!("/v1/usage?start_time={since}")).await.json();
    let buckets = page["data"].as_array().into_iter().flatten();
    let results = buckets.flat_map(|bucket| bucket["results"].as_array().unwrap());
    results.map(|result| result["num_model_requests"].as_u64().unwrap()).sum()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_disk_refuses_what_is_new_and_loses_nothing_old() {
    let folder = tempfile::tempdir().unwrap();
    let Some(disk) = Disk::mount(folder.path(), "8m") else {
        tidegate_skipped::skipped!("a full disk, since this user cannot mount one");
        return;
    };
    let text = format!("[store]\npath = {:?}\n[pipeline]\n", folder.path().display().to_string());
    let gateway = Gateway::start(&text).await;
    let since = now_s() - 3600;
    let mut answered = 0;
    until(&gateway, 200, &mut answered).await;
    let began = Instant::now();
    loop {
        disk.fill();
        let refused = until(&gateway, 503, &mut answered).await;
        assert_eq!(refused.error().2, json!("storage_full"));
        assert!(refused.headers.contains_key("retry-after"));
        let probe = gateway.get("/readyz").await;
        if probe.status == 503 {
            break;
        }
        // What was in the journal has gone to the store meanwhile, and left room.
        assert!(began.elapsed() < Duration::from_secs(30), "{:?}", probe.body);
    }
    disk.empty();
    until(&gateway, 200, &mut answered).await;
    assert_eq!(gateway.get("/readyz").await.status, 200);
    // The last entries have two seconds to be written when it stops.
    crate::talk::until("all is in the store", async || (billed(&gateway, since).await == answered).then_some(())).await;
    gateway.running.stop(Duration::from_secs(5)).await;
    let audit = tidegate::audit::audit(&Config::parse(&text).unwrap()).await.unwrap();
    assert_eq!(audit.drift, Vec::<String>::new());
    assert_eq!((audit.num_rows, audit.num_waiting, audit.num_open), (answered, 0, 0), "{audit}");
}
