//! `cargo xtask chaos ledger`: a gateway that is killed again and again while clients stream, leave, and stream again.
//! What an upstream generated, what clients got and what was billed are then compared for each request. Ends with an
//! error at the first request that was billed twice, for more than was generated, or, where nothing was killed, for
//! anything but what was generated.

mod clients;
mod upstream;

use crate::chaos_ledger::clients::{Ended, Heard};
use crate::gateway::free_address;
use crate::load::KEY;
use crate::report::Report;
use crate::{gateway, median};
use anyhow::{Context, bail, ensure};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Kills; `TIDEGATE_CHAOS_KILLS` says otherwise.
const KILLS: usize = 200;
/// How long a gateway lives once it is ready, in milliseconds.
const LIFE_MS: std::ops::Range<u64> = 1_000..10_000;
/// Clients that stream at once.
const CLIENTS: usize = 16;
/// How often a stream's progress is written down: the most that a kill should cost.
const MARK_MS: f64 = 50.0;

pub(crate) async fn run(program: &Path, report: &mut Report) -> anyhow::Result<()> {
    let kills = match std::env::var("TIDEGATE_CHAOS_KILLS") {
        Ok(text) => text.parse().context("TIDEGATE_CHAOS_KILLS is a number of kills")?,
        Err(_) => KILLS,
    };
    let upstream = upstream::start().await?;
    let folder = tempfile::tempdir()?;
    let addr = free_address()?;
    write_config(folder.path(), addr, upstream.addr)?;
    let began = SystemTime::now();
    let clients = clients::start(addr, CLIENTS);
    let (mut random, mut restarts, mut killed) = (gateway::Random(7), Vec::new(), Vec::new());
    for _ in 0..kills {
        let mut child = spawn(program, folder.path())?;
        restarts.push(wait_ready(addr).await?);
        let life = LIFE_MS.start + random.below(LIFE_MS.end - LIFE_MS.start);
        tokio::time::sleep(Duration::from_millis(life)).await;
        killed.push(Instant::now());
        child.kill()?;
        child.wait()?;
    }
    let mut child = spawn(program, folder.path())?;
    wait_ready(addr).await?;
    let heard = clients.stop().await?;
    let billed = billed_of_all(addr, began).await;
    let _ = child.kill();
    let _ = child.wait();
    compare(&cut_by(&killed, heard), &upstream.generated(), &billed?, report)?;
    report.add("times killed", kills as f64, "", None);
    report.add("p50 from start to ready", median(restarts.clone()), "ms", None);
    report.add("longest from start to ready", restarts.iter().copied().fold(0.0, f64::max), "ms", Some(2000.0));
    Ok(())
}

fn write_config(folder: &Path, addr: SocketAddr, upstream: SocketAddr) -> anyhow::Result<()> {
    let config = format!(
        "[server]\nlisten = \"{addr}\"\n[[keys]]\nname = \"bench\"\nhash = \"blake3:{}\"\nadmin = true\n\
         [[models]]\nname = \"m\"\nupstream = \"http://{upstream}/v1\"\nprice = {{ input = 1.0, output = 2.0 }}\n\
         [store]\npath = \"data\"\n[pipeline]\n",
        blake3::hash(KEY.as_bytes()),
    );
    Ok(std::fs::write(folder.join("tidegate.toml"), config)?)
}

fn spawn(program: &Path, folder: &Path) -> anyhow::Result<Child> {
    let mut command = Command::new(program);
    command.args(["serve", "--config"]).arg(folder.join("tidegate.toml")).env("RUST_LOG", "error");
    command.stdout(Stdio::null()).spawn().with_context(|| format!("cannot start {}", program.display()))
}

/// Milliseconds until it says that it is ready.
async fn wait_ready(addr: SocketAddr) -> anyhow::Result<f64> {
    let began = Instant::now();
    while began.elapsed() < Duration::from_secs(60) {
        if clients::get(addr, "/readyz").await.is_ok_and(|(status, _)| status == 200) {
            return Ok(began.elapsed().as_secs_f64() * 1e3);
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    bail!("the gateway was not ready within a minute")
}

/// Requests and output tokens billed, by the end user that each request named.
type Billed = BTreeMap<String, (u64, u64)>;

/// All that was billed since `began`, once nothing more is added.
async fn billed_of_all(addr: SocketAddr, began: SystemTime) -> anyhow::Result<Billed> {
    let mut last = Billed::new();
    for _ in 0..50 {
        tokio::time::sleep(Duration::from_millis(400)).await;
        let now = billed(addr, began).await?;
        if now == last && !now.is_empty() {
            return Ok(now);
        }
        last = now;
    }
    bail!("what is billed does not come to rest")
}

async fn billed(addr: SocketAddr, began: SystemTime) -> anyhow::Result<Billed> {
    let seconds = |time: SystemTime| time.duration_since(UNIX_EPOCH).map(|since| since.as_secs());
    let (mut page, end) = (seconds(began)? - 60, seconds(SystemTime::now())? + 60);
    let mut billed = Billed::new();
    while page < end {
        // Minute by minute: an answer holds a bounded number of sums.
        let path = format!("/v1/usage?bucket_width=1m&limit=1&group_by=user_id&start_time={page}&end_time={end}");
        let (status, body) = clients::get(addr, &path).await?;
        ensure!(status == 200, "{path} answered {status}: {body}");
        let body: serde_json::Value = serde_json::from_str(&body)?;
        for result in body["data"][0]["results"].as_array().context("no results")? {
            let user = result["user_id"].as_str().context("a use without its user")?.to_owned();
            let number = |field: &str| result[field].as_u64().with_context(|| format!("no {field}"));
            let of_user = billed.entry(user).or_default();
            of_user.0 += number("num_model_requests")?;
            of_user.1 += number("output_tokens")?;
        }
        let Some(next) = body["next_page"].as_str() else { break };
        page = next.parse()?;
    }
    Ok(billed)
}

/// Who left within a mark of a kill may have left a gateway that was no more, with what it had sent still to be read.
fn cut_by(killed: &[Instant], mut heard: BTreeMap<String, Heard>) -> BTreeMap<String, Heard> {
    let apart = |one: Instant, other: Instant| one.max(other).duration_since(one.min(other)).as_secs_f64() * 1e3;
    for heard in heard.values_mut().filter(|heard| heard.ended == Ended::Left) {
        if killed.iter().any(|kill| apart(*kill, heard.at) < MARK_MS) {
            heard.ended = Ended::Cut;
        }
    }
    heard
}

fn compare(
    heard: &BTreeMap<String, Heard>,
    generated: &BTreeMap<String, u64>,
    billed: &Billed,
    report: &mut Report,
) -> anyhow::Result<()> {
    let (mut count, mut tokens) = (BTreeMap::<Ended, usize>::new(), [0; 3]);
    let (mut unpaid_ms, mut unpaid): (f64, u64) = (0.0, 0);
    for (name, heard) in heard {
        let made = generated.get(name).copied().unwrap_or(0);
        let (times, paid) = billed.get(name).copied().unwrap_or_default();
        let what = format!("{name} ({:?}): generated {made}, delivered {}, billed {paid}", heard.ended, heard.tokens);
        ensure!(times <= 1, "billed {times} times: {what}");
        ensure!(paid <= made, "billed for more than was generated: {what}");
        ensure!(heard.tokens <= made, "delivered more than was generated: {what}");
        match heard.ended {
            Ended::Whole => ensure!(paid == made, "a whole answer is not billed as it was generated: {what}"),
            Ended::Left => ensure!(heard.tokens <= paid, "who left did not pay for what came: {what}"),
            Ended::Cut => {
                let missing = heard.tokens.saturating_sub(paid);
                unpaid += missing;
                unpaid_ms = unpaid_ms.max(missing as f64 * upstream::TOKEN_MS);
            }
            Ended::Refused => {}
        }
        *count.entry(heard.ended).or_default() += 1;
        tokens = [tokens[0] + made, tokens[1] + heard.tokens, tokens[2] + paid];
    }
    ensure!(billed.keys().all(|name| heard.contains_key(name)), "something was billed that nobody asked for");
    let of = |ended| count.get(&ended).copied().unwrap_or(0) as f64;
    report.add("requests answered whole, billed exactly as generated", of(Ended::Whole), "", None);
    report.add("requests whose client left, billed between delivered and generated", of(Ended::Left), "", None);
    report.add("requests cut by a kill, billed at most as generated", of(Ended::Cut), "", None);
    report.add("tokens generated", tokens[0] as f64, "", None);
    report.add("tokens delivered", tokens[1] as f64, "", None);
    report.add("tokens billed", tokens[2] as f64, "", None);
    report.add("tokens delivered and not billed, over all kills", unpaid as f64, "", None);
    report.add("most of one request, as time of its stream", unpaid_ms, "ms", Some(MARK_MS));
    Ok(())
}
