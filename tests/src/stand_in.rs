//! A server of this process that stands in for what a gateway asks: a webhook, a classifier, a model. It answers each
//! request by a closure, and keeps what it was asked.

use serde_json::{Value, json};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;

/// What is answered.
#[derive(Clone, Debug)]
pub struct Said {
    pub status: u16,
    pub body: Vec<u8>,
    /// Before the answer leaves.
    pub pause: Duration,
    /// Of which it takes a permit before it leaves (or a minute is over).
    pub gate: Option<Arc<Semaphore>>,
}

impl Said {
    pub fn json(body: &Value) -> Self {
        Self::raw(200, body.to_string())
    }

    pub fn raw(status: u16, body: impl Into<Vec<u8>>) -> Self {
        Self { status, body: body.into(), pause: Duration::ZERO, gate: None }
    }

    pub fn after(self, pause: Duration) -> Self {
        Self { pause, ..self }
    }

    pub fn held(self, gate: &Arc<Semaphore>) -> Self {
        Self { gate: Some(Arc::clone(gate)), ..self }
    }
}

/// A request: its path, its body, its `authorization`.
type Seen = (String, Value, Value);
type Script = Arc<dyn Fn(&str, &Value) -> Said + Send + Sync>;

/// The server; gone with the test's runtime.
pub struct StandIn {
    pub address: SocketAddr,
    seen: Arc<Mutex<Vec<Seen>>>,
    most: Arc<AtomicUsize>,
}

struct Serving {
    script: Script,
    seen: Arc<Mutex<Vec<Seen>>>,
    most: Arc<AtomicUsize>,
    running: AtomicUsize,
    hold_for: usize,
}

impl StandIn {
    /// Answers by `script`, which is given the path and the JSON of each request; what is no JSON is `form`, with
    /// `authorization` beside it.
    pub async fn start(script: impl Fn(&str, &Value) -> Said + Send + Sync + 'static) -> Self {
        Self::holding(1, script).await
    }

    /// The same, but nothing is answered before `together` requests wait at once (or half a minute is over).
    pub async fn holding(together: usize, script: impl Fn(&str, &Value) -> Said + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (seen, most) = (Arc::<Mutex<Vec<_>>>::default(), Arc::new(AtomicUsize::new(0)));
        let serving = Arc::new(Serving {
            script: Arc::new(script),
            seen: Arc::clone(&seen),
            most: Arc::clone(&most),
            running: AtomicUsize::new(0),
            hold_for: together,
        });
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(Arc::clone(&serving).serve(stream));
            }
        });
        Self { address, seen, most }
    }

    /// Its origin.
    pub fn origin(&self) -> String {
        format!("http://{}", self.address)
    }

    /// The bodies that came to `path`, in order.
    pub fn asked(&self, path: &str) -> Vec<Value> {
        let seen = self.seen.lock().unwrap();
        seen.iter().filter(|(at, ..)| at == path).map(|(_, body, _)| body.clone()).collect()
    }

    /// The `authorization` of each request that came to `path`; `null` where there was none.
    pub fn authorizations(&self, path: &str) -> Vec<Value> {
        let seen = self.seen.lock().unwrap();
        seen.iter().filter(|(at, ..)| at == path).map(|(.., authorization)| authorization.clone()).collect()
    }

    /// The most requests that waited at once.
    pub fn most_at_once(&self) -> usize {
        self.most.load(Ordering::SeqCst)
    }

    /// `[[models]]` of a model that is answered by this server.
    pub fn model(&self, name: &str) -> String {
        format!("[[models]]\nname = \"{name}\"\nupstream = \"{}/v1\"\n", self.origin())
    }

    /// What lets a plugin's `http` reach it.
    pub fn http_grant(&self) -> String {
        let origin = self.origin();
        format!(
            "http = {{ origins = [\"{origin}\"], networks = [\"127.0.0.1/32\"], timeout_ms = 60000 }}\ncontent = true"
        )
    }
}

impl Serving {
    async fn serve(self: Arc<Self>, stream: TcpStream) {
        let mut stream = BufReader::new(stream);
        while let Some((path, body, authorization)) = read(&mut stream).await {
            self.most.fetch_max(self.running.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            let said = (self.script)(&path, &body);
            self.seen.lock().unwrap().push((path, body, authorization));
            for _ in 0..3_000 {
                if self.most.load(Ordering::SeqCst) >= self.hold_for {
                    break;
                }
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            tokio::time::sleep(said.pause).await;
            if let Some(gate) = &said.gate
                && let Ok(permit) = tokio::time::timeout(Duration::from_secs(60), gate.acquire()).await
            {
                permit.unwrap().forget();
            }
            self.running.fetch_sub(1, Ordering::SeqCst);
            let (status, len) = (said.status, said.body.len());
            let head =
                format!("HTTP/1.1 {status} Said\r\ncontent-type: application/json\r\ncontent-length: {len}\r\n\r\n");
            let whole = [head.into_bytes(), said.body].concat();
            if stream.write_all(&whole).await.is_err() {
                return;
            }
        }
    }
}

/// One request; `None` at the connection's end.
async fn read(stream: &mut BufReader<TcpStream>) -> Option<Seen> {
    let (mut path, mut len, mut authorization) = (None, 0, Value::Null);
    loop {
        let mut line = String::new();
        if stream.read_line(&mut line).await.ok()? == 0 {
            return None;
        }
        let line = line.trim_end();
        match line.split_once(':').map(|(name, value)| (name.to_ascii_lowercase(), value.trim())) {
            Some((name, bytes)) if name == "content-length" => len = bytes.parse().ok()?,
            Some((name, value)) if name == "authorization" => authorization = value.into(),
            _ if line.is_empty() => break,
            _ => path = path.or(line.split(' ').nth(1).map(str::to_owned)),
        }
    }
    let mut body = vec![0; len];
    stream.read_exact(&mut body).await.ok()?;
    let form = || json!({"form": String::from_utf8_lossy(&body), "authorization": authorization});
    let read = serde_json::from_slice(&body).unwrap_or_else(|_| if len > 0 { form() } else { Value::Null });
    Some((path?, read, authorization))
}

/// The text of the last message of a chat request.
pub fn last_text(body: &Value) -> String {
    let last = body["messages"].as_array().and_then(|messages| messages.last()).cloned().unwrap_or_default();
    last["content"].as_str().unwrap_or_default().to_owned()
}

/// A chat completion with this text, of 7 and 5 tokens.
pub fn completion(text: &str) -> Said {
    let message = json!({"role": "assistant", "content": text});
    Said::json(&json!({
        "id": "x", "object": "chat.completion", "created": 1, "model": "m",
        "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 7, "completion_tokens": 5, "total_tokens": 12},
    }))
}

/// OpenAI's answer about vectors, made of the words of each text: texts that share words are near.
pub fn embeddings(body: &Value) -> Said {
    let texts = body["input"].as_array().cloned().unwrap_or_default();
    let data: Vec<Value> = (0..)
        .zip(&texts)
        .map(
            |(index, text): (usize, _)| json!({"index": index, "embedding": vector(text.as_str().unwrap_or_default())}),
        )
        .collect();
    Said::json(&json!({"object": "list", "data": data, "model": body["model"]}))
}

/// Words that say nothing about what a text is about.
const EMPTY: &str = " a an and are at be by can did do does for from had has have how i in is it me my no not of on or our \
    that the their there they this to up was we were what when where which who why will with would you your ";

/// Counts beginnings of words in 1,024 buckets; the last number keeps a text without words from being no direction.
fn vector(text: &str) -> Vec<f32> {
    let mut counts = vec![0.0; 1025];
    counts[1024] = 0.01;
    let text = text.to_lowercase();
    let words = text.split(|c: char| !c.is_alphanumeric()).filter(|word| !EMPTY.contains(&format!(" {word} ")));
    for word in words.filter(|word| !word.is_empty()) {
        let hash = word.bytes().take(5).fold(7_u32, |hash, byte| hash.wrapping_mul(31).wrapping_add(u32::from(byte)));
        counts[(hash.wrapping_mul(0x9e37_79b1) >> 22) as usize] += 1.0;
    }
    counts
}
