//! `GET /v1/usage` and `GET /v1/usage/costs`, in the shapes of OpenAI's usage and costs; and as CSV.

use bytes::Bytes;
use serde_json::{Value, json};
use std::fmt::Write;
use tidegate_types::UsageTotals;

/// A span of time, with its sums.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UsageBucket {
    /// Unix seconds, inclusive.
    pub start_s: u64,
    /// Unix seconds, exclusive.
    pub end_s: u64,
    /// One for each group; none where nothing was used.
    pub results: Vec<UsageTotals>,
}

/// A page of usage; `next` is where the following one begins.
pub fn usage_page(buckets: &[UsageBucket], next: Option<u64>) -> Bytes {
    page(buckets, next, |result| {
        json!({
            "object": "organization.usage.completions.result",
            "input_tokens": result.input_tokens,
            "input_cached_tokens": result.cached_tokens,
            "output_tokens": result.output_tokens,
            "num_model_requests": result.requests,
            "num_tool_calls": result.tool_calls,
            "num_retrieval_calls": result.retrieval_calls,
            "project_id": result.project,
            "api_key_id": result.key,
            "user_id": result.user,
            "model": result.model,
            "kind": result.kind,
        })
    })
}

/// A page of costs, in `currency`.
pub fn costs_page(buckets: &[UsageBucket], next: Option<u64>, currency: &str) -> Bytes {
    page(buckets, next, |result| {
        json!({
            "object": "organization.costs.result",
            "amount": { "value": units(result.amount), "currency": currency },
            "calls_amount": { "value": units(result.calls_amount), "currency": currency },
            "line_item": result.model,
            "project_id": result.project,
            "api_key_id": result.key,
            "user_id": result.user,
            "kind": result.kind,
        })
    })
}

fn page(buckets: &[UsageBucket], next: Option<u64>, result: impl Fn(&UsageTotals) -> Value) -> Bytes {
    let bucket = |bucket: &UsageBucket| {
        let results: Vec<Value> = bucket.results.iter().map(&result).collect();
        json!({"object": "bucket", "start_time": bucket.start_s, "end_time": bucket.end_s, "results": results})
    };
    let data: Vec<Value> = buckets.iter().map(bucket).collect();
    let next = next.map(|start| start.to_string());
    json!({"object": "page", "data": data, "has_more": next.is_some(), "next_page": next}).to_string().into()
}

/// One line for each sum.
pub fn usage_csv(buckets: &[UsageBucket]) -> Bytes {
    let mut out = String::from(
        "start_time,end_time,project_id,api_key_id,user_id,model,num_model_requests,input_tokens,\
         input_cached_tokens,output_tokens,amount,kind,num_tool_calls,num_retrieval_calls,calls_amount\r\n",
    );
    for bucket in buckets {
        for result in &bucket.results {
            for number in [bucket.start_s, bucket.end_s] {
                let _ = write!(out, "{number},");
            }
            for name in [&result.project, &result.key, &result.user, &result.model] {
                field(&mut out, name.as_deref().unwrap_or_default());
                out.push(',');
            }
            for number in [result.requests, result.input_tokens, result.cached_tokens, result.output_tokens] {
                let _ = write!(out, "{number},");
            }
            let _ = write!(out, "{},", exact(result.amount));
            field(&mut out, result.kind.as_deref().unwrap_or_default());
            let (tools, retrievals) = (result.tool_calls, result.retrieval_calls);
            let _ = write!(out, ",{tools},{retrievals},{}\r\n", exact(result.calls_amount));
        }
    }
    out.into()
}

const BILLION: u64 = 1_000_000_000;

/// In whole units, to the last digit.
fn exact(billionths: u64) -> String {
    format!("{}.{:09}", billionths / BILLION, billionths % BILLION)
}

/// As RFC 4180 has it. A spreadsheet takes what begins like a formula for one; callers choose some of these names.
fn field(out: &mut String, text: &str) {
    let formula = text.starts_with(['=', '+', '-', '@', '\t', '\r']);
    if !formula && !text.contains([',', '"', '\n', '\r']) {
        return out.push_str(text);
    }
    out.push('"');
    out.push_str(if formula { "'" } else { "" });
    out.push_str(&text.replace('"', "\"\""));
    out.push('"');
}

/// A number of JSON, in whole units.
fn units(billionths: u64) -> f64 {
    billionths as f64 / BILLION as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bucket() -> UsageBucket {
        let result = UsageTotals {
            project: Some("a,b".into()),
            user: Some("=1+1".into()),
            kind: Some("generation".into()),
            requests: 2,
            input_tokens: 30,
            cached_tokens: 10,
            output_tokens: 7,
            tool_calls: 3,
            amount: 1_500_000_001,
            calls_amount: 500_000_000,
            ..UsageTotals::default()
        };
        UsageBucket { start_s: 60, end_s: 120, results: vec![result] }
    }

    #[test]
    fn pages_have_openais_shape() {
        let usage: Value = serde_json::from_slice(&usage_page(&[bucket()], Some(120))).unwrap();
        assert_eq!(
            (&usage["object"], &usage["has_more"], &usage["next_page"]),
            (&json!("page"), &json!(true), &json!("120"))
        );
        let result = &usage["data"][0]["results"][0];
        assert_eq!((&result["num_model_requests"], &result["input_cached_tokens"]), (&json!(2), &json!(10)));
        assert_eq!((&result["project_id"], &result["model"]), (&json!("a,b"), &Value::Null));
        let costs: Value = serde_json::from_slice(&costs_page(&[bucket()], None, "usd")).unwrap();
        assert_eq!(costs["data"][0]["results"][0]["amount"], json!({"value": 1.500_000_001, "currency": "usd"}));
        assert_eq!(costs["data"][0]["results"][0]["calls_amount"]["value"], json!(0.5));
        assert_eq!(costs["next_page"], Value::Null);
        let sum = &costs["data"][0]["results"][0];
        assert_eq!((&sum["user_id"], &sum["kind"]), (&json!("=1+1"), &json!("generation")));
    }

    #[test]
    fn csv_quotes_what_would_break_it_and_has_no_formulas() {
        let csv = String::from_utf8(usage_csv(&[bucket()]).to_vec()).unwrap();
        assert_eq!(
            csv.lines().nth(1).unwrap(),
            "60,120,\"a,b\",,\"'=1+1\",,2,30,10,7,1.500000001,generation,3,0,0.500000000"
        );
    }
}
