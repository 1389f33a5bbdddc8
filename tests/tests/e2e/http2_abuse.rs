//! HTTP/2 by hand: what a client library would never send. One connection that misbehaves ends; the others go on.

use std::time::Duration;
use tidegate_tests::{BARE, Gateway, ask};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const GOAWAY: u8 = 7;
const CONTINUATION: u8 = 9;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;
const CANCEL: [u8; 4] = [0, 0, 0, 8];

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let mut frame = (payload.len() as u32).to_be_bytes()[1..].to_vec();
    frame.extend([kind, flags]);
    frame.extend(stream.to_be_bytes());
    frame.extend(payload);
    frame
}

/// `GET http://x/livez`, of the static table and literals.
fn head() -> Vec<u8> {
    let mut block = vec![0x82, 0x86];
    for (name_index, value) in [(4_u8, "/livez"), (1, "x")] {
        block.extend([name_index, value.len() as u8]);
        block.extend(value.as_bytes());
    }
    block
}

async fn connect(gateway: &Gateway) -> TcpStream {
    let mut socket = TcpStream::connect(gateway.addr).await.unwrap();
    socket.write_all(PREFACE).await.unwrap();
    socket.write_all(&frame(SETTINGS, 0, 0, &[])).await.unwrap();
    socket
}

/// Sends until the server ends the connection; the error code of its GOAWAY, if it said one.
async fn attack(gateway: &Gateway, frames: impl Iterator<Item = Vec<u8>> + Send + 'static) -> Option<u32> {
    let (mut reading, mut writing) = connect(gateway).await.into_split();
    let sender = tokio::spawn(async move {
        for frame in frames {
            if writing.write_all(&frame).await.is_err() {
                return;
            }
        }
        // All were taken: the server has to say something now, or it bears everything.
        std::future::pending::<()>().await;
    });
    let mut said = Vec::new();
    let ended = tokio::time::timeout(Duration::from_secs(120), async {
        let mut piece = vec![0; 16 << 10];
        while let Ok(read @ 1..) = reading.read(&mut piece).await {
            said.extend_from_slice(&piece[..read]);
        }
    });
    assert!(ended.await.is_ok(), "the server bears it");
    sender.abort();
    goaway(&said)
}

fn goaway(mut said: &[u8]) -> Option<u32> {
    while let [a, b, c, kind, _, _, _, _, _, rest @ ..] = said {
        let len = u32::from_be_bytes([0, *a, *b, *c]) as usize;
        if *kind == GOAWAY {
            return Some(u32::from_be_bytes(rest.get(4..8)?.try_into().ok()?));
        }
        said = rest.get(len..)?;
    }
    None
}

async fn serves_others(gateway: &Gateway) {
    assert_eq!(gateway.get("/livez").await.status, 200);
    assert_eq!(gateway.chat(ask("Hello!")).await.status, 200);
}

/// Requests that are reset at once cost the client nothing and the server all the work (CVE-2023-44487).
#[tokio::test(flavor = "multi_thread")]
async fn a_flood_of_resets_ends_the_connection() {
    const ENHANCE_YOUR_CALM: u32 = 11;
    let gateway = Gateway::start(BARE).await;
    let requests = (0..20_000_u32).map(|i| {
        let stream = 2 * i + 1;
        let mut request = frame(HEADERS, END_STREAM | END_HEADERS, stream, &head());
        request.extend(frame(RST_STREAM, 0, stream, &CANCEL));
        request
    });
    let code = attack(&gateway, requests).await;
    assert!(code.is_none_or(|code| code == ENHANCE_YOUR_CALM), "{code:?}");
    serves_others(&gateway).await;
}

/// A head that never ends fills memory (CVE-2024-27316).
#[tokio::test(flavor = "multi_thread")]
async fn an_endless_head_ends_the_connection() {
    let gateway = Gateway::start(BARE).await;
    let first = std::iter::once(frame(HEADERS, END_STREAM, 1, &head()));
    let field = [&[0x00, 0x01, b'a', 0x7f, 0x81, 0x1f][..], &[b'x'; 4096]].concat();
    let frames = first.chain((0..20_000).map(move |_| frame(CONTINUATION, 0, 1, &field)));
    attack(&gateway, frames).await;
    serves_others(&gateway).await;
}

/// Every ping and every change of settings asks for an answer; one who does not read them must not fill memory.
#[tokio::test(flavor = "multi_thread")]
async fn answers_that_nobody_reads_are_bounded() {
    let gateway = Gateway::start(BARE).await;
    let mut socket = connect(&gateway).await;
    let burst = [frame(PING, 0, 0, &[7; 8]), frame(SETTINGS, 0, 0, &[])].concat().repeat(1 << 15);
    let mut sent = 0;
    // Either the server ends the connection, or it stops reading: both bound what it holds.
    while sent < 256 << 20 {
        match tokio::time::timeout(Duration::from_secs(2), socket.write_all(&burst)).await {
            Ok(Ok(())) => sent += burst.len(),
            Ok(Err(_)) | Err(_) => break,
        }
    }
    assert!(sent < 64 << 20, "the server took {sent} bytes whose answers nobody reads");
    serves_others(&gateway).await;
}
