//! A database that is away, or says nothing: a plugin hears of it soon, and its request goes on as the stage says.

use super::guest;
use std::net::SocketAddr;
use std::time::{Duration, Instant};
use tidegate::outside::kv::StoreKv;
use tidegate_sandbox::capability::{CapabilityError, KvStore, Namespace};
use tidegate_store::{Db, Place};
use tidegate_tests::postgres::Database;
use tidegate_tests::{Gateway, ask};
use tidegate_types::TenantId;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

/// Passes everything on while it is open; what comes meanwhile is late and not lost, as in a network.
async fn pass(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, mut open: watch::Receiver<bool>) {
    let mut piece = [0; 4096];
    while let Ok(read) = from.read(&mut piece).await {
        if read == 0 || open.wait_for(|open| *open).await.is_err() || to.write_all(&piece[..read]).await.is_err() {
            return;
        }
    }
}

/// Passes everything on to a server, until it keeps everything to itself.
struct Valve {
    address: SocketAddr,
    open: watch::Sender<bool>,
}

impl Valve {
    async fn to(server: String) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (open, state) = watch::channel(true);
        tokio::spawn(async move {
            while let Ok((near, _)) = listener.accept().await {
                let (near_reads, near_writes) = near.into_split();
                let (far_reads, far_writes) = TcpStream::connect(&server).await.unwrap().into_split();
                tokio::spawn(pass(near_reads, far_writes, state.clone()));
                tokio::spawn(pass(far_reads, near_writes, state.clone()));
            }
        });
        Self { address, open }
    }

    /// Before a database's server: it, and the URL by which the database is reached through it.
    async fn before(database: &Database) -> (Self, String) {
        let valve = Self::to(database.address()).await;
        let url = database.url_by(valve.address);
        (valve, url)
    }
}

fn ann() -> Namespace {
    Namespace::of_tenant("p", TenantId::new("ann"))
}

async fn each_fails(kv: &StoreKv, with: impl Fn(&CapabilityError) -> bool) {
    let (ann, began) = (ann(), Instant::now());
    let keys = ["k".to_owned()];
    let errors = [
        kv.get_many(&ann, &keys, 9).await.map(drop).unwrap_err(),
        kv.set(&ann, "k".into(), vec![1], None, 1000).await.unwrap_err(),
        kv.increment(&ann, "n".into(), 1, None, 1000).await.map(drop).unwrap_err(),
        kv.delete(&ann, "k").await.unwrap_err(),
    ];
    assert!(errors.iter().all(with), "{errors:?}");
    // Each waits for a part of a second; the rest is for a machine that is busy.
    assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
}

#[tokio::test]
async fn a_store_that_is_gone_is_unavailable_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let db = Db::open(&Place::Folder(folder.path().into())).await.unwrap();
    let patient = StoreKv::with_patience(&db, 1000, Duration::from_secs(60));
    patient.set(&ann(), "k".into(), vec![1], None, 1000).await.unwrap();
    let kv = StoreKv::new(&db, 1000);
    db.close().await;
    each_fails(&kv, |error| matches!(error, CapabilityError::Unavailable(why) if why.contains("the server's store")))
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_says_nothing_is_waited_for_no_longer_than_a_moment_and_found_again() {
    let Some(database) = Database::new("kv_valve") else { return };
    let (valve, url) = Valve::before(&database).await;
    let kv = StoreKv::with_patience(&Db::open(&Place::Postgres(url)).await.unwrap(), 1000, Duration::from_millis(300));
    valve.open.send_replace(false);
    each_fails(&kv, |error| match error {
        CapabilityError::Timeout(why) => why.contains("300 ms"),
        // Who asks a moment later waits no more.
        CapabilityError::Unavailable(why) => why.contains("the server's store"),
        _ => false,
    })
    .await;
    valve.open.send_replace(true);
    let began = Instant::now();
    while let Err(error) = kv.set(&ann(), "k".into(), vec![1], None, 1000).await {
        assert!(began.elapsed() < Duration::from_secs(60), "{error}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_whose_plugin_cannot_reach_the_store_is_answered() {
    let Some(database) = Database::new("kv_request") else { return };
    let (valve, url) = Valve::before(&database).await;
    let folder = tempfile::tempdir().unwrap();
    let config = format!(
        "[plugins]\nkv = \"store\"\n[store]\npath = {:?}\n[[pipeline.stage]]\nplugin = \"away-remembers\"\nfile = {:?}\n\
         stages = [\"memory\"]\n[pipeline.stage.grants]\nkv_kib = 64\n[pipeline.stage.limits]\nwall_ms = 20000\n",
        folder.path(),
        guest("remembers").display().to_string()
    );
    let mut config = tidegate::config::Config::parse(&config).unwrap();
    config.store.as_mut().unwrap().postgres = Some(url);
    let gateway = Gateway::start_with(config).await;
    valve.open.send_replace(false);
    let began = Instant::now();
    let mut question = ask("Hello!");
    question["max_tokens"] = 2.into();
    assert_eq!(gateway.chat(question).await.status, 200, "the memory is open: the answer is made without it");
    assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
    let metrics = String::from_utf8(gateway.get("/metrics").await.body.to_vec()).unwrap();
    assert!(metrics.contains("\ntidegate_plugin_kv_failures_total "), "{metrics}");
    valve.open.send_replace(true);
    gateway.running.stop(Duration::from_secs(5)).await;
}
