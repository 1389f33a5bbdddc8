//! Behaviour of the whole guard, with a scripted service.

use super::*;
use tidegate_plugin_sdk::host::fake;
use tidegate_plugin_sdk::host::http::Response;
use tidegate_plugin_sdk::plugin::configure;
use tidegate_plugin_sdk::testing::{assert_readme_is_true, plugin};
use tidegate_plugin_sdk::{Action, Edit, Part, Role, Severity, Span};

const CONFIG: &str = r#"{"url":"https://guard.example/check"}"#;

#[test]
fn the_readme_names_every_setting() {
    assert_readme_is_true::<WebhookGuard>(include_str!("../README.md"));
}

#[test]
fn a_config_that_cannot_work_is_refused() {
    for json in ["{}", r#"{"url":"ftp://x"}"#, r#"{"url":"https://x","roles":3}"#, r#"{"url":"https://x","roles":[]}"#]
    {
        assert!(matches!(configure::<WebhookGuard>(json), Err(Error::InvalidConfig(_))), "{json}");
    }
}

#[test]
fn a_url_that_no_request_can_go_to_is_refused_by_name() {
    let configured =
        |url: &str| configure::<WebhookGuard>(&format!("{{\"url\":{}}}", tidegate_plugin_sdk::json::quote(url)));
    for url in [
        "https://guard.example",
        "http://localhost:8080/check?key=1",
        "https://h?x=1",
        "https://h/a@b:c",
        "https://[::1]/check",
        "https://[::1]:8443",
        "https://wächter.example/prüfen",
    ] {
        assert!(configured(url).is_ok(), "{url}");
    }
    for url in [
        "",
        "guard.example",
        "https://",
        "https:///check",
        "https://?x",
        "https://:443/",
        "https://me:word@guard.example/",
        "https://guard.example/#top",
        "https://guard.example/a b",
        "https://guard.example\n",
        "https://guard.example:/",
        "https://guard.example:+80/",
        "https://guard.example:70000/",
        "https://guard.example:80:80/",
        "https://::1/",
    ] {
        let Err(Error::InvalidConfig(problem)) = configured(url) else { panic!("{url} was accepted") };
        assert!(problem.contains(&format!("`url` is `{url}`")), "{problem}");
    }
}

#[test]
fn a_prefix_that_the_host_would_refuse_is_refused() {
    let configured =
        |prefix: &str| configure::<WebhookGuard>(&format!("{{\"url\":\"https://x\",\"secret_prefix\":\"{prefix}\"}}"));
    for prefix in ["", &"x".repeat(64), &"é".repeat(32)] {
        assert!(configured(prefix).is_ok(), "{prefix}");
    }
    for prefix in ["x".repeat(65), "é".repeat(33)] {
        let Err(Error::InvalidConfig(problem)) = configured(&prefix) else { panic!("{prefix} was accepted") };
        assert!(problem.contains("at most 64"), "{problem}");
    }
}

fn prompt() -> Prompt {
    let messages =
        vec![Message::text("m0", Role::System, "Be kind."), Message::text("m1", Role::User, "I am Jo. Jo is \"me\".")];
    Prompt { messages, ..Prompt::default() }
}

/// The guard's verdict where the service answers so.
fn answered(config: &str, status: u16, body: &'static str) -> Result<Verdict, Error> {
    fake::on_http(move |_| Ok(Response { status, body: body.into(), ..Response::default() }));
    fake::take_requests();
    let ctx = Context { request_id: "r-1".into(), caller: "p-7".into(), ..Context::default() };
    plugin::<WebhookGuard>(config).inspect_prompt(&ctx, &prompt())
}

#[test]
fn the_service_is_asked_about_the_chosen_roles() {
    assert_eq!(answered(CONFIG, 200, r#"{"verdict":"allow"}"#).unwrap().action, Action::Allow);
    let request = fake::take_requests().remove(0);
    assert_eq!((request.method.as_str(), request.timeout_ms), ("POST", 1_000));
    let expected = concat!(
        r#"{"stage":"prompt","request":"r-1","caller":"p-7","messages":[{"id":"m1","role":"user","#,
        r#""texts":[{"part":0,"text":"I am Jo. Jo is \"me\"."}]}]}"#
    );
    assert_eq!(String::from_utf8(request.body).unwrap(), expected);
    assert!(request.secret_headers.is_empty());
    let with_secret = r#"{"url":"https://guard.example/","secret":"token","timeout_ms":50}"#;
    fake::grant_secrets(&["token"]);
    answered(with_secret, 200, r#"{"verdict":"allow"}"#).unwrap();
    let request = fake::take_requests().remove(0);
    let secret = &request.secret_headers[0];
    assert_eq!(
        (secret.name.as_str(), secret.prefix.as_str(), secret.secret.as_str()),
        ("authorization", "Bearer ", "token")
    );
    assert_eq!(request.timeout_ms, 50);
}

#[test]
fn text_from_outside_is_asked_about_with_its_source() {
    fake::on_http(|_| Ok(Response { status: 200, body: br#"{"verdict":"allow"}"#.to_vec(), ..Response::default() }));
    let mut message = Message::text("folder/1", Role::Other("note".into()), "A passage.");
    message.attrs.push(("source".into(), "\"folder\"".into()));
    let prompt = Prompt { messages: vec![message], ..Prompt::default() };
    plugin::<WebhookGuard>(CONFIG).inspect_prompt(&Context::default(), &prompt).unwrap();
    let body = String::from_utf8(fake::take_requests().remove(0).body).unwrap();
    assert!(body.contains(r#""source":"folder""#), "{body}");
}

#[test]
fn a_refusal_says_what_the_service_says() {
    let said = r#"{"verdict":"refuse","message":"Not here.","reason":"policy 7","findings":[
        {"category":"violence","severity":"high","score":0.9},{"category":"x","score":7}]}"#;
    let verdict = answered(CONFIG, 200, said).unwrap();
    let Action::Refuse(refusal) = &verdict.action else { panic!("{verdict:?}") };
    assert_eq!((refusal.public_message.as_str(), refusal.private_reason.as_deref()), ("Not here.", Some("policy 7")));
    let seen: Vec<_> = verdict.findings.iter().map(|f| (f.category.as_str(), f.severity, f.score)).collect();
    assert_eq!(
        seen,
        [("webhook-guard:violence", Severity::High, Some(0.9)), ("webhook-guard:x", Severity::Medium, None),]
    );
    let verdict = answered(CONFIG, 200, r#"{"verdict":"refuse"}"#).unwrap();
    assert!(matches!(verdict.action, Action::Refuse(refusal) if refusal.public_message == MESSAGE));
}

#[test]
fn redactions_take_every_place_and_the_longest_first() {
    let said = r#"{"verdict":"redact","redactions":[{"find":"Jo"},{"find":"Jo is","with":"-"}]}"#;
    let verdict = answered(CONFIG, 200, said).unwrap();
    let edit = |start, end, text: &str| Edit::ReplaceText {
        message_id: "m1".into(),
        part: 0,
        span: Span { start, end },
        text: text.into(),
    };
    assert_eq!(verdict.action, Action::Rewrite(vec![edit(5, 7, "[redacted]"), edit(9, 14, "-")]));
    // Of two that overlap, nothing stays of either.
    let said = r#"{"verdict":"redact","redactions":[{"find":"Jo is"},{"find":"is \"me\""}]}"#;
    assert_eq!(answered(CONFIG, 200, said).unwrap().action, Action::Rewrite(vec![edit(9, 19, "[redacted]")]));
    // Nor of one that overlaps itself.
    fake::on_http(|_| {
        let body = br#"{"verdict":"redact","redactions":[{"find":"aXa"}]}"#.to_vec();
        Ok(Response { status: 200, body, ..Response::default() })
    });
    let messages = vec![Message::text("m1", Role::User, "secret aXaXa end")];
    let verdict =
        plugin::<WebhookGuard>(CONFIG).inspect_prompt(&Context::default(), &Prompt { messages, ..Prompt::default() });
    assert_eq!(verdict.unwrap().action, Action::Rewrite(vec![edit(7, 12, "[redacted]")]));
}

#[test]
fn what_is_split_over_the_parts_of_a_message_is_redacted_in_each() {
    let redacted = |parts: Vec<Part>, body: &'static str| {
        fake::on_http(move |_| Ok(Response { status: 200, body: body.into(), ..Response::default() }));
        let message = Message { parts, ..Message::text("m1", Role::User, "") };
        let prompt = Prompt { messages: vec![message], ..Prompt::default() };
        plugin::<WebhookGuard>(CONFIG).inspect_prompt(&Context::default(), &prompt).map(|verdict| {
            match verdict.action {
                Action::Rewrite(edits) => edits,
                other => panic!("{other:?}"),
            }
        })
    };
    let texts = |texts: &[&str]| texts.iter().map(|text| Part::Text((*text).into())).collect::<Vec<_>>();
    let edit = |part, start, end, text: &str| Edit::ReplaceText {
        message_id: "m1".into(),
        part,
        span: Span { start, end },
        text: text.into(),
    };
    let jane = r#"{"verdict":"redact","redactions":[{"find":"Jane Doe"}]}"#;
    assert_eq!(
        redacted(texts(&["I am Jane", " Doe, not Jane Doe."]), jane),
        Ok(vec![edit(0, 5, 9, "[redacted]"), edit(1, 0, 4, ""), edit(1, 10, 18, "[redacted]")])
    );
    assert_eq!(
        redacted(texts(&["J", "", "ane ", "Doe"]), jane),
        Ok(vec![edit(0, 0, 1, "[redacted]"), edit(2, 0, 4, ""), edit(3, 0, 3, "")])
    );
    // What the model thought is no part of what it said.
    let apart = vec![Part::Reasoning("Jane".into()), Part::Text(" Doe".into())];
    assert!(redacted(apart, jane).unwrap_err().to_string().contains("not in the text"));
    let between = vec![Part::Text("Jane".into()), Part::Reasoning("Jane Doe".into()), Part::Text(" Doe".into())];
    let mut edits = redacted(between, jane).unwrap();
    edits.sort_by_key(|edit| if let Edit::ReplaceText { part, .. } = edit { *part } else { 0 });
    assert_eq!(edits, [edit(0, 0, 4, "[redacted]"), edit(1, 0, 8, "[redacted]"), edit(2, 0, 4, "")]);
}

#[test]
fn a_category_that_the_host_would_not_take_loses_no_refusal() {
    let body = format!(r#"{{"verdict":"refuse","findings":[{{"category":"a\n{}"}}]}}"#, "é".repeat(100));
    fake::on_http(move |_| Ok(Response { status: 200, body: body.clone().into(), ..Response::default() }));
    let verdict = plugin::<WebhookGuard>(CONFIG).inspect_prompt(&Context::default(), &prompt()).unwrap();
    assert!(matches!(verdict.action, Action::Refuse(_)));
    let category = &verdict.findings[0].category;
    assert!(category.starts_with("webhook-guard:a é") && category.len() <= 128, "{category:?}");
}

#[test]
fn no_refusal_is_lost_for_what_stands_beside_it() {
    let check = |beside: &str, expected: &[(&str, Severity)]| {
        let body = format!("{{\"verdict\":\"refuse\",{beside}}}");
        fake::on_http(move |_| Ok(Response { status: 200, body: body.clone().into(), ..Response::default() }));
        let verdict = plugin::<WebhookGuard>(CONFIG).inspect_prompt(&Context::default(), &prompt()).unwrap();
        assert!(matches!(verdict.action, Action::Refuse(_)), "{beside}");
        let seen: Vec<_> = verdict.findings.iter().map(|f| (f.category.as_str(), f.severity)).collect();
        assert_eq!(seen, expected, "{beside}");
    };
    // As Go writes slices and pointers that are nil.
    check(r#""message":null,"reason":null,"redactions":null,"findings":null"#, &[]);
    let odd = r#""findings":[{"category":"a","severity":3,"score":"9"},{"category":"b","severity":"h\u0069gh"}]"#;
    check(odd, &[("webhook-guard:a", Severity::Medium), ("webhook-guard:b", Severity::High)]);
    fake::take_log();
    check(r#""findings":[{"name":"a"},"b",null,{"category":"c"}]"#, &[("webhook-guard:c", Severity::Medium)]);
    assert_eq!(fake::take_log()[0].1, "3 of the service's findings are not understood");
    check(r#""findings":"none","message":7,"redactions":{}"#, &[]);
}

#[test]
fn what_is_no_answer_is_a_failure_and_never_an_allow() {
    let check = |status, body, expected: &str| {
        let problem = answered(CONFIG, status, body).unwrap_err().to_string();
        assert!(problem.contains(expected), "{problem}");
    };
    check(500, r#"{"verdict":"allow"}"#, "status 500");
    check(302, "", "status 302");
    check(200, "", "not understood");
    check(200, r#"{"verdict":"maybe"}"#, "not understood");
    check(200, r#"{"verdict":"redact"}"#, "not what");
    check(200, r#"{"verdict":"redact","redactions":null}"#, "not what");
    check(200, r#"{"verdict":"redact","redactions":[{"find":""}]}"#, "not what");
    check(200, r#"{"verdict":"redact","redactions":[{"find":"Jo"},{"find":""}]}"#, "not what");
    check(200, r#"{"verdict":"redact","redactions":[{"find":3}]}"#, "not understood");
    check(200, r#"{"verdict":"redact","redactions":[{"find":"Bob"}]}"#, "not in the text");
    // One of two was seen in another form: it would stay.
    check(200, r#"{"verdict":"redact","redactions":[{"find":"Jo"},{"find":"I  am"}]}"#, "not in the text");
    fake::on_http(|_| Err(Error::Timeout("1000 ms".into())));
    let late = plugin::<WebhookGuard>(CONFIG).inspect_prompt(&Context::default(), &prompt());
    assert_eq!(late, Err(Error::Timeout("1000 ms".into())));
}

#[test]
fn questions_that_get_no_answer_are_counted_too() {
    let asked = || ["asked", "ask_ms"].map(fake::counted);
    fake::on_http(|_| Err(Error::Timeout("1000 ms".into())));
    let guard: WebhookGuard = plugin(CONFIG);
    let before = asked();
    guard.inspect_prompt(&Context::default(), &prompt()).unwrap_err();
    assert_eq!(asked(), before.map(|n| n + 1));
}

#[test]
fn an_answer_is_asked_about_and_nothing_is_asked_about_nothing() {
    let guard: WebhookGuard = plugin(CONFIG);
    fake::take_requests();
    assert_eq!(guard.inspect_prompt(&Context::default(), &Prompt::default()).unwrap().action, Action::Allow);
    assert!(fake::take_requests().is_empty());
    fake::on_http(|_| Ok(Response { status: 200, body: br#"{"verdict":"refuse"}"#.to_vec(), ..Response::default() }));
    let choices = vec![Message::text("choice-0", Role::Assistant, "An answer.")];
    let verdict = guard.inspect_output(&Context::default(), &Output { choices, ..Output::default() }).unwrap();
    assert!(matches!(verdict.action, Action::Refuse(_)));
    assert!(String::from_utf8(fake::take_requests().remove(0).body).unwrap().contains(r#""stage":"answer""#));
}
