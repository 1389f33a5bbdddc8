//! Requests whose head came before a reload, and whose body comes behind it.

use super::Files;
use crate::conversations::send;
use crate::tool_turns::says;
use hyper::Method;
use serde_json::json;
use std::path::Path;
use tidegate_tests::stand_in::StandIn;
use tidegate_tests::{Answer, Gateway, ask, with_model};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

const CHAT: &str = "/v1/chat/completions";

/// A request by the key `low` that was let in, and of whose body the server has the first half.
struct Arriving {
    stream: TcpStream,
    rest: String,
}

impl Arriving {
    async fn begin(gateway: &Gateway) -> Self {
        let mut body = with_model(ask("When does it open?")).to_string();
        let head = format!(
            "POST {CHAT} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer low\r\ncontent-type: application/json\r\n\
             expect: 100-continue\r\nconnection: close\r\ncontent-length: {}\r\n\r\n",
            body.len()
        );
        let mut stream = TcpStream::connect(gateway.addr).await.unwrap();
        stream.write_all(head.as_bytes()).await.unwrap();
        // It asks for the body once it knows whose that is.
        let (mut told, wanted) = (Vec::new(), "HTTP/1.1 100 Continue\r\n\r\n");
        while told.len() < wanted.len() {
            assert_ne!(stream.read_buf(&mut told).await.unwrap(), 0, "{}", String::from_utf8_lossy(&told));
        }
        assert_eq!(String::from_utf8_lossy(&told), wanted);
        let rest = body.split_off(body.len() / 2);
        stream.write_all(body.as_bytes()).await.unwrap();
        Self { stream, rest }
    }

    /// Sends the other half; gives the answer as it came.
    async fn end(mut self) -> String {
        self.stream.write_all(self.rest.as_bytes()).await.unwrap();
        let mut answer = String::new();
        self.stream.read_to_string(&mut answer).await.unwrap();
        answer
    }
}

fn key(name: &str, more: &str) -> String {
    format!("[[keys]]\nname = \"{name}\"\nhash = \"blake3:{}\"\n{more}", blake3::hash(name.as_bytes()))
}

async fn by(gateway: &Gateway, key: &str) -> Answer {
    send(gateway, Method::POST, CHAT, key, Some(&with_model(ask("When does it open?")))).await
}

/// The new config has passages that are not for this key, and the old one does not know that.
#[tokio::test(flavor = "multi_thread")]
async fn a_request_whose_body_comes_late_has_the_stages_of_the_config_that_let_it_in() {
    let guest = Path::new(env!("CARGO_MANIFEST_DIR")).join("guests/dist/honest.wasm");
    let passages = format!(
        "[[pipeline.stage]]\nplugin = \"hr-docs\"\nfile = {guest:?}\nstages = [\"retriever\"]\n\
         limits = {{ wall_ms = 20000, cpu_ms = 5000 }}\n"
    );
    let upstream = StandIn::start(|_, _| says("At nine.")).await;
    let has_passages = || upstream.asked(CHAT).last().unwrap().to_string().contains("about When does it open?");
    for is_kept in [false, true] {
        let files = Files::new();
        let store = if is_kept { format!("[store]\npath = {:?}\n", files.path("store")) } else { String::new() };
        let common = format!("{store}{}{}", upstream.model("tidegate-starter"), key("root", "admin = true\n"));
        files.write(&format!("{common}{}[pipeline]\n", key("low", "")));
        let gateway = files.start().await;
        let arriving = Arriving::begin(&gateway).await;
        files.write(&format!("{common}{}{passages}", key("low", "plugins = []\n")));
        let taken = send(&gateway, Method::POST, "/admin/reload", "root", Some(&json!({}))).await;
        assert_eq!(taken.status, 200, "{:?}", taken.body);
        let answer = arriving.end().await;
        assert!(answer.starts_with("HTTP/1.1 200") && !has_passages(), "{answer}");
        for (key, expected) in [("low", false), ("root", true)] {
            assert_eq!((by(&gateway, key).await.status, has_passages()), (200, expected), "{key}");
        }
    }
}
