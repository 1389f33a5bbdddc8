//! A gateway in front of a gateway, and in front of servers that misbehave.

use serde_json::json;
use std::net::SocketAddr;
use tidegate_tests::stand_in::{Said, StandIn};
use tidegate_tests::{BARE, Gateway, ask, events, finish_reason, joined};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket, TcpStream};

fn in_front_of(addr: SocketAddr) -> String {
    format!(
        "[[models]]\nname = \"remote\"\nupstream = \"http://{addr}/v1\"\nupstream_model = \"tidegate-starter\"\n\
         [[pipeline.stage]]\nplugin = \"pii-guard\"\n"
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn a_model_elsewhere_answers_as_it_does_there() {
    let engine = Gateway::start(BARE).await;
    let front = Gateway::start(&in_front_of(engine.addr)).await;
    let direct = engine.chat(ask("What is Tidegate?")).await;
    let mut request = ask("What is Tidegate?");
    request["model"] = "remote".into();
    let through = front.chat(request.clone()).await;
    assert_eq!(through.text(), direct.text());
    assert_eq!(through.json()["model"], "remote");
    assert_eq!(through.json()["usage"]["completion_tokens"], direct.json()["usage"]["completion_tokens"]);
    request["stream_options"] = json!({"include_usage": true});
    let events = front.stream(request).await;
    assert_eq!(joined(&events, 0), direct.text());
    assert_eq!(finish_reason(&events, 0), "stop");
    assert_eq!(events.last().unwrap()["usage"]["prompt_tokens"], direct.json()["usage"]["prompt_tokens"]);
}

/// Both offer the calculator; the one in front runs it.
#[tokio::test(flavor = "multi_thread")]
async fn two_gateways_with_the_bundled_pipeline_serve_as_one() {
    let behind = Gateway::start("").await;
    let models = in_front_of(behind.addr);
    let front = Gateway::start(models.split("[[pipeline").next().unwrap()).await;
    let mut request = ask("What is 17*23?");
    request["model"] = "remote".into();
    assert!(front.chat(request).await.text().contains("391"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gateway_that_is_its_own_upstream_is_told_apart() {
    // It is asked at a port that is known before its own.
    let before = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let looping = Gateway::start(&in_front_of(before.local_addr().unwrap())).await;
    let itself = looping.addr;
    tokio::spawn(async move {
        while let Ok((mut near, _)) = before.accept().await {
            tokio::spawn(async move {
                let mut far = TcpStream::connect(itself).await.unwrap();
                tokio::io::copy_bidirectional(&mut near, &mut far).await
            });
        }
    });
    let mut request = ask("Hello!");
    request["model"] = "remote".into();
    let answer = looping.chat(request).await;
    assert_eq!(answer.status, 502, "{:?}", answer.body);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_error_of_the_upstream_is_passed_on() {
    let engine = Gateway::start(BARE).await;
    let front = Gateway::start(&in_front_of(engine.addr)).await;
    let mut request = ask(&"word ".repeat(5000));
    request["model"] = "remote".into();
    let answer = front.chat(request).await;
    assert_eq!(answer.status, 400, "{:?}", answer.body);
    assert_eq!(answer.error().2, "context_length_exceeded");
}

/// A server that sends `answer` to each request and closes the connection.
pub(crate) async fn misbehaving(answer: &'static str) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut socket, _)) = listener.accept().await {
            let mut request = vec![0; 65536];
            let _ = socket.read(&mut request).await;
            let _ = socket.write_all(answer.as_bytes()).await;
        }
    });
    addr
}

const CUT: &str = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n\
    data: {\"id\":\"1\",\"object\":\"chat.completion.chunk\",\"created\":1,\"model\":\"m\",\"choices\":[{\"index\":0,\
\"delta\":{\"role\":\"assistant\",\"content\":\"Half an \"},\"finish_reason\":null}]}\n\n";

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_that_is_cut_ends_in_an_error_event() {
    let front = Gateway::start(&in_front_of(misbehaving(CUT).await)).await;
    let mut request = ask("Hello!");
    request["model"] = "remote".into();
    request["stream"] = true.into();
    let answer = front.post("/v1/chat/completions", &request).await;
    let text = String::from_utf8(answer.body.to_vec()).unwrap();
    assert!(text.contains("Half an "), "{text}");
    let last = text.trim_end().rsplit("\n\n").find(|event| *event != "data: [DONE]").unwrap();
    assert!(last.contains("\"error\""), "{text}");
}

/// Some servers quote what their model has said, such as a call that they could not read.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_refusal_quotes_of_an_answer_passes_its_guards_too() {
    const SAID: &str = "no call in 'Mail jane@example.com'";
    let body = json!({"error": {"message": SAID, "param": "tools", "code": "no_call"}}).to_string();
    let refusing = StandIn::start(move |_, _| Said::raw(400, body.clone())).await;
    let json_guard = "[[pipeline.stage]]\nplugin = \"json-guard\"\nconfig = { schema = { type = \"object\" } }\n";
    let withheld = "the model's server refuses the request; what it says of that is withheld by a guard of this server";
    for (stages, expected) in [
        (BARE, SAID),
        ("[[pipeline.stage]]\nplugin = \"pii-guard\"\n", "no call in 'Mail [email]'"),
        (json_guard, withheld),
    ] {
        let front = Gateway::start(&format!("{}{stages}", refusing.model("remote"))).await;
        for stream in [false, true] {
            let mut request = ask("Hello!");
            (request["model"], request["stream"]) = ("remote".into(), stream.into());
            let answer = front.post("/v1/chat/completions", &request).await;
            assert_eq!(answer.status, 400, "{stages} {stream}: {:?}", answer.body);
            assert_eq!(answer.error(), (expected.to_owned(), json!("tools"), json!("no_call")), "{stages} {stream}");
        }
    }
}

/// A caller of `/v1/responses` has sent no `max_tokens`.
#[tokio::test(flavor = "multi_thread")]
async fn what_an_upstream_refuses_is_named_as_the_caller_sent_it() {
    let body = json!({"error": {"message": "too many", "param": "max_tokens", "code": "no"}}).to_string();
    let refusing = StandIn::start(move |_, _| Said::raw(400, body.clone())).await;
    let front = Gateway::start(&format!("{}{BARE}", refusing.model("remote"))).await;
    let request = json!({"model": "remote", "input": "Hello!", "max_output_tokens": 50});
    let (message, param, _) = front.post("/v1/responses", &request).await.error();
    assert_eq!((message.as_str(), param), ("too many", json!("max_output_tokens")));
}

pub(crate) const QUOTES: &str = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n\
    data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"Half an \"},\"finish_reason\":null}]}\n\n\
    data: {\"error\":{\"message\":\"no call in 'Mail jane@example.com'\",\"code\":400}}\n\n";

#[tokio::test(flavor = "multi_thread")]
async fn what_the_end_of_a_stream_quotes_of_an_answer_passes_its_guards_too() {
    let front = Gateway::start(&in_front_of(misbehaving(QUOTES).await)).await;
    for stream in [false, true] {
        let mut request = ask("Hello!");
        (request["model"], request["stream"]) = ("remote".into(), stream.into());
        let answer = front.post("/v1/chat/completions", &request).await;
        let text = String::from_utf8(answer.body.to_vec()).unwrap();
        assert!(text.contains("no call in 'Mail [email]'") && !text.contains("jane@"), "{text}");
    }
}

/// A server that says "Hi." to everybody, and no more.
async fn greeting() -> SocketAddr {
    const BODY: &str = "{\"id\":\"1\",\"object\":\"chat.completion\",\"created\":1,\"model\":\"m\",\"choices\":[{\"index\":0,\
        \"message\":{\"role\":\"assistant\",\"content\":\"Hi.\"},\"finish_reason\":\"stop\"}]}";
    let answer = format!(
        "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{BODY}",
        BODY.len()
    );
    misbehaving(answer.leak()).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_text_for_a_template_does_not_pass_guards_of_prompts() {
    let guarded = in_front_of(greeting().await);
    let bare = format!("{}{BARE}", guarded.split("[[pipeline").next().unwrap());
    let ask = |args: serde_json::Value| {
        let mut request = ask("Hello!");
        (request["model"], request["chat_template_kwargs"]) = ("remote".into(), args);
        request
    };
    let (guarded, bare) = (Gateway::start(&guarded).await, Gateway::start(&bare).await);
    for args in [json!({"thinking": true}), json!({"budget": 9, "x": null})] {
        assert_eq!(guarded.chat(ask(args.clone())).await.status, 200, "{args}");
    }
    for args in [json!({"system": "Mail me@example.com."}), json!({"x": ["a"]}), json!({"x": {"a": 1}})] {
        let (message, param, code) = guarded.chat(ask(args.clone())).await.error();
        assert_eq!((&param, &code), (&json!("chat_template_kwargs"), &json!("invalid_type")), "{message}");
        assert_eq!(bare.chat(ask(args)).await.status, 200, "nobody judges prompts here");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upstream_that_counts_nothing_gets_no_invented_usage() {
    let front = Gateway::start(&in_front_of(greeting().await)).await;
    let mut request = ask("Hello!");
    request["model"] = "remote".into();
    let answer = front.chat(request).await;
    assert_eq!(answer.text(), "Hi.");
    assert!(answer.json()["usage"].is_null(), "{:?}", answer.body);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upstream_that_is_down_or_talks_nonsense_is_a_bad_gateway() {
    let nonsense = misbehaving("HTTP/1.1 200 OK\r\ncontent-length: 5\r\nconnection: close\r\n\r\nhello").await;
    let broken = misbehaving("HTTP/1.1 500 Oops\r\ncontent-length: 0\r\nconnection: close\r\n\r\n").await;
    // Taken, so that nobody else listens there, and closed, since it does not either.
    let closed = TcpSocket::new_v4().unwrap();
    closed.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    for addr in [nonsense, broken, closed.local_addr().unwrap()] {
        let front = Gateway::start(&in_front_of(addr)).await;
        let mut request = ask("Hello!");
        request["model"] = "remote".into();
        let answer = front.chat(request).await;
        assert!(matches!(answer.status, 502 | 503), "{}: {:?}", answer.status, answer.body);
        answer.error();
    }
}

#[test]
fn the_cut_stream_of_this_test_is_one_event() {
    let body = CUT.split("\r\n\r\n").nth(1).unwrap();
    let whole = format!("{body}data: [DONE]\n\n");
    assert_eq!(events(whole.as_bytes()).len(), 1);
}
