//! What is written, and of which requests.

use super::*;
use serde_json::{Value, json};
use tidegate_plugin_sdk::host::fake;
use tidegate_plugin_sdk::plugin::configure;
use tidegate_plugin_sdk::testing::{assert_readme_is_true, plugin};
use tidegate_plugin_sdk::{Finding, Span, Usage};

#[test]
fn the_readme_names_every_setting() {
    assert_readme_is_true::<AuditObserver>(include_str!("../README.md"));
}

fn summary() -> Summary {
    let mut email = Finding::new("pii:email", Severity::Medium).in_message("m0").at(Span { start: 3, end: 9 });
    email.attrs.push(("pii-guard/text".into(), "\"jo@example.com\"".into()));
    email.score = Some(0.5);
    let other = Finding::new("pii:email", Severity::High);
    let usage = Usage { input: 12, input_cached: 8, output: 5, ..Usage::default() };
    Summary {
        outcome: "answered".into(),
        detail: "stop".into(),
        model: "starter".into(),
        usage,
        first_ms: Some(40),
        total_ms: 90,
        findings: vec![email, other, Finding::new("x:note", Severity::Info)],
        ..Summary::default()
    }
}

/// The line that is written, as JSON.
fn written(config: &str, summary: &Summary) -> Option<Value> {
    fake::take_log_fields();
    let ctx = Context { request_id: "r-1".into(), caller: "p-7".into(), streaming: true, ..Context::default() };
    plugin::<AuditObserver>(config).on_complete(&ctx, summary).unwrap();
    let fields = fake::take_log_fields().pop()?;
    Some(fields.into_iter().map(|(key, json)| (key, serde_json::from_str::<Value>(&json).unwrap())).collect())
}

#[test]
fn a_request_is_one_line_of_figures() {
    fake::advance_ms(1_700);
    let expected = json!({
        "request": "r-1", "caller": "p-7", "ended_unix_ms": 1700, "outcome": "answered", "detail": "stop",
        "model": "starter", "stream": true, "input_tokens": 12, "cached_tokens": 8, "output_tokens": 5,
        "first_ms": 40, "total_ms": 90,
        "findings": [{"category": "pii:email", "count": 2, "severity": "high"},
            {"category": "x:note", "count": 1, "severity": "info"}],
    });
    assert_eq!(written("", &summary()), Some(expected));
    assert_eq!(fake::counted("requests_recorded"), 1);
}

#[test]
fn findings_are_written_one_by_one_without_what_they_quote() {
    let line = written(r#"{"findings":"each","min_severity":"medium"}"#, &summary()).unwrap();
    let first = json!({"category": "pii:email", "severity": "medium", "score": 0.5, "message": "m0", "span": [3, 9]});
    assert_eq!(line["findings"], json!([first, {"category": "pii:email", "severity": "high"}]));
    assert_eq!(line["findings_count"], 2);
    assert!(!line.to_string().contains("jo@example.com"));
    assert!(written(r#"{"findings":"none"}"#, &summary()).unwrap()["findings"].is_null());
}

#[test]
fn many_findings_leave_a_line_that_the_log_takes() {
    // A call may log 16 KiB by default, and of a longer line nothing is there.
    let most = 16 << 10;
    for long in ["x".repeat(104), "\"".repeat(125), "\u{200b}".repeat(41)] {
        let severity = |n| if n == 159 { Severity::High } else { Severity::Low };
        let finding = |n| Finding::new(format!("{n:03}{long}"), severity(n)).in_message("m0");
        let many = Summary { findings: (0..160).map(finding).collect(), ..summary() };
        let [counts, each] = ["", r#"{"findings":"each"}"#].map(|config| written(config, &many).unwrap());
        for line in [&counts, &each] {
            let values = line.as_object().unwrap().values();
            let logged: usize = values.map(|json| format!("{:?}", json.to_string()).len()).sum();
            assert!(logged < most - 1024, "{logged} bytes of {line}");
        }
        assert_eq!(counts["findings"][0]["severity"], "high", "the worst are there");
        let listed = counts["findings"].as_array().unwrap().len() as u64;
        assert!(listed >= 12 && listed + counts["findings_more"].as_u64().unwrap() == 160, "{counts}");
        assert!(each["findings"].as_array().unwrap().len() >= 12 && each["findings_count"] == 160, "{each}");
    }
}

#[test]
fn what_nobody_asked_for_is_not_written() {
    let refused = Summary { outcome: "refused".into(), ..Summary::default() };
    let only = r#"{"outcomes":["refused","failed"]}"#;
    assert_eq!(written(only, &summary()), None);
    assert!(written(only, &refused).is_some());
    assert_eq!(written(r#"{"only_findings":true}"#, &refused), None);
    assert_eq!(written(r#"{"only_findings":true,"min_severity":"critical"}"#, &summary()), None);
    assert!(written(r#"{"only_findings":true}"#, &summary()).is_some());
}

/// A word that is misspelt would match no request, and nobody would miss the lines.
#[test]
fn an_outcome_that_is_none_is_refused_by_name() {
    let Err(Error::InvalidConfig(why)) = configure::<AuditObserver>(r#"{"outcomes":["refused","client_gone"]}"#) else {
        panic!("it was taken")
    };
    assert!(why.contains("`client_gone`") && why.contains("client-gone"), "{why}");
}

#[test]
fn what_the_host_did_not_tell_is_left_out() {
    let line = written("", &Summary { outcome: "client-gone".into(), ..Summary::default() }).unwrap();
    for key in ["detail", "model", "first_ms", "findings"] {
        assert!(line[key].is_null(), "{line}");
    }
}

#[test]
fn lines_have_the_level_of_the_config() {
    fake::take_log();
    written(r#"{"level":"warn"}"#, &summary());
    assert_eq!(fake::take_log(), [(log::Level::Warn, "request".to_owned())]);
}
