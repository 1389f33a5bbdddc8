//! `tidegate usage`.

use super::{Remote, answer, encoded, or_dash, table, when};
use crate::cli::UsageArgs;
use crate::config::Expiry;
use anyhow::{Context, bail};
use serde_json::{Value, json};
use std::io::Write;
use std::time::{SystemTime, UNIX_EPOCH};
use tidegate_egress::Method;

const DAY_S: u64 = 86_400;
/// Days of one answer.
const MOST_DAYS: u64 = 31;

/// Prints what was used: as a table, as JSON or as CSV.
pub async fn usage(args: UsageArgs, out: &mut dyn Write) -> anyhow::Result<()> {
    let (remote, now) = (Remote::to(&args.at)?, seconds(SystemTime::now())?);
    let until = args.until.as_deref().map(moment).transpose()?.unwrap_or(now + 1);
    let since = match &args.since {
        Some(since) => moment(since)?,
        None => {
            let today = until.saturating_sub(1) / DAY_S * DAY_S;
            today.saturating_sub(args.days.saturating_sub(1).saturating_mul(DAY_S))
        }
    };
    if since >= until {
        bail!("--since must be before --until");
    }
    let mut terms = format!("bucket_width=1d&limit={MOST_DAYS}&group_by={}", encoded_list(&args.group_by));
    if !args.projects.is_empty() {
        terms.push_str(&format!("&project_ids={}", encoded_list(&args.projects)));
    }
    let (mut start, mut buckets) = (since, Vec::new());
    while start < until {
        let end = until.min((start / DAY_S + MOST_DAYS) * DAY_S);
        let format = if args.csv { "csv" } else { "json" };
        let path = format!("/v1/usage?{terms}&format={format}&start_time={start}&end_time={end}");
        let page = remote.call(Method::GET, path, None).await?;
        if args.csv {
            write_csv(out, &page, start == since)?;
        } else {
            let mut page: Value = serde_json::from_slice(&page)?;
            buckets.append(page["data"].as_array_mut().context("the server's answer has no data")?);
        }
        start = end;
    }
    match (args.csv, args.at.json) {
        (true, _) => Ok(()),
        (_, true) => answer(out, json!({"object": "page", "data": buckets}).to_string().as_bytes()),
        _ => show(out, &buckets),
    }
}

/// The heads once.
fn write_csv(out: &mut dyn Write, page: &[u8], first: bool) -> std::io::Result<()> {
    let heads = page.iter().position(|byte| *byte == b'\n').map_or(page.len(), |at| at + 1);
    out.write_all(if first { page } else { &page[heads..] })
}

fn show(out: &mut dyn Write, buckets: &[Value]) -> anyhow::Result<()> {
    let names = ["project_id", "api_key_id", "user_id", "model", "kind"];
    let counts = [
        "num_model_requests",
        "input_tokens",
        "input_cached_tokens",
        "output_tokens",
        "num_tool_calls",
        "num_retrieval_calls",
    ];
    let row = |day: &Value, result: &Value| {
        let names = names.map(|name| or_dash(&result[name]));
        [when(day)].into_iter().chain(names).chain(counts.map(|count| result[count].to_string())).collect()
    };
    let results = |bucket: &Value| bucket["results"].as_array().cloned().unwrap_or_default();
    let rows: Vec<Vec<String>> = buckets
        .iter()
        .flat_map(|bucket| results(bucket).into_iter().map(|result| row(&bucket["start_time"], &result)))
        .collect();
    let heads = [
        "DAY",
        "PROJECT",
        "KEY",
        "USER",
        "MODEL",
        "KIND",
        "REQUESTS",
        "INPUT",
        "CACHED",
        "OUTPUT",
        "TOOLS",
        "RETRIEVALS",
    ];
    Ok(table::write(out, &heads, &rows)?)
}

fn encoded_list(names: &[String]) -> String {
    names.iter().map(|name| encoded(name)).collect::<Vec<_>>().join(",")
}

fn moment(text: &str) -> anyhow::Result<u64> {
    let wrong = || format!("`{text}` is no moment; write it as 2026-11-01 or 2026-11-01T18:00:00Z");
    seconds(Expiry::parse(text).with_context(wrong)?.0)
}

fn seconds(time: SystemTime) -> anyhow::Result<u64> {
    Ok(time.duration_since(UNIX_EPOCH)?.as_secs())
}
