//! An upstream that says one word and then nothing.

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;

const ANSWER: &str = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n\
    data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"word\"}}]}\n\n";

pub struct Stalling {
    /// It as the model `slow` of a config.
    pub model: String,
    /// Tells of each client that has gone.
    pub gone: mpsc::Receiver<()>,
}

impl Stalling {
    pub async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (leave, gone) = mpsc::channel(8);
        tokio::spawn(async move {
            while let Ok((socket, _)) = listener.accept().await {
                let leave = leave.clone();
                tokio::spawn(async move {
                    say_one_word(socket).await;
                    let _ = leave.send(()).await;
                });
            }
        });
        Self { model: format!("[[models]]\nname = \"slow\"\nupstream = \"http://{address}/v1\"\n"), gone }
    }
}

/// Ends when the client is gone. Its request may come in pieces.
async fn say_one_word(mut socket: TcpStream) {
    let mut request = vec![0; 16 << 10];
    let _ = socket.read(&mut request).await;
    let _ = socket.write_all(ANSWER.as_bytes()).await;
    while socket.read(&mut request).await.is_ok_and(|read| read > 0) {}
}
