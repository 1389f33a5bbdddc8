//! A server over a service that does what the model's name says, and clients that do as they please.

// Helpers of tests may fail like tests; not every test file uses all of them.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, dead_code)]

use serde_json::Value;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;
use tidegate_api::{
    Answers, Api, ApiKey, Auth, Behind, BoxFuture, Door, Embedded, Events, Kept, Lanes, Limits, Listener, ModelCard,
    Reply, ReplyEvent, RequestContext, Server, Service, SharedAuth, Tls, serve,
};
use tidegate_store::{Conversations, Db, Place};
use tidegate_types::{
    Allowances, Caller, Chat, Delta, DeltaKind, EmbedRequest, Embeddings, Fault, FinishReason, Reject, RejectKind,
    TextLogprob, ToolCall, TopLogprob, Usage,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::sync::{Notify, mpsc};

/// What the fake service was asked, and what became of it.
#[derive(Debug)]
pub struct Fake {
    pub asked: mpsc::Sender<(Chat, RequestContext)>,
    pub begun: Notify,
    /// Replies (or futures of them) that were dropped.
    pub dropped: Notify,
    pub live: AtomicUsize,
    pub ready: AtomicBool,
    /// Lets the reply of the model `gated` go on.
    pub gate: Mutex<Option<mpsc::Receiver<Delta>>>,
}

pub fn text(text: &str) -> Delta {
    Delta { choice: 0, kind: DeltaKind::Text { text: text.into(), logprobs: Vec::new() } }
}

/// A text with so many bytes of a log-probability.
pub fn scored(text: &str, bytes: usize) -> Delta {
    let chosen = TopLogprob { token: "x".repeat(bytes), logprob: -0.5, bytes: Vec::new() };
    let logprobs = vec![TextLogprob { chosen, top: Vec::new(), end: None }];
    Delta { choice: 0, kind: DeltaKind::Text { text: text.into(), logprobs } }
}

fn call() -> Delta {
    called("{}".into())
}

/// A tool call with these arguments.
pub fn called(arguments: String) -> Delta {
    let call = ToolCall { id: "call_1".into(), name: "look".into(), arguments };
    Delta { choice: 0, kind: DeltaKind::ToolCall { index: 0, call } }
}

pub fn finish(choice: u32) -> Delta {
    Delta { choice, kind: DeltaKind::Finish(FinishReason::Stop) }
}

/// Numbers of a vector.
pub const VECTOR: usize = 1000;

/// Counts a running answer; says when it is dropped.
struct Live(Arc<Fake>);

impl Live {
    fn new(fake: &Arc<Fake>) -> Self {
        fake.live.fetch_add(1, Ordering::SeqCst);
        Self(fake.clone())
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        self.0.live.fetch_sub(1, Ordering::SeqCst);
        self.0.dropped.notify_one();
    }
}

enum Then {
    End,
    Hang,
    Fail,
    Say(&'static str),
    Repeat,
    Gate(mpsc::Receiver<Delta>),
}

struct Script {
    events: std::vec::IntoIter<ReplyEvent>,
    then: Then,
    _live: Live,
}

impl Events for Script {
    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<ReplyEvent, Reject>>> {
        if let Some(event) = self.events.next() {
            return Poll::Ready(Some(Ok(event)));
        }
        match &mut self.then {
            Then::End => Poll::Ready(None),
            Then::Hang => Poll::Pending,
            Then::Fail => Poll::Ready(Some(Err(Reject::new(RejectKind::BadUpstream, Fault::Upstream, "it broke")))),
            Then::Say(code) => {
                let said = Reject::new(RejectKind::Invalid, Fault::Client, "no").code(*code);
                Poll::Ready(Some(Err(said.because("upstream `u`: an error event"))))
            }
            Then::Repeat => Poll::Ready(Some(Ok(ReplyEvent::Delta(text("again and again"))))),
            Then::Gate(gate) => gate.poll_recv(cx).map(|delta| delta.map(|delta| Ok(ReplyEvent::Delta(delta)))),
        }
    }
}

/// The service is shared with the test, so it is implemented for a wrapper.
#[derive(Debug)]
pub struct FakeService(pub Arc<Fake>);

type Answer<'a> = std::pin::Pin<Box<dyn Future<Output = Result<Reply, Reject>> + Send + 'a>>;

impl Answers for FakeService {
    fn chat(&self, chat: Chat, cx: RequestContext) -> Answer<'_> {
        let fake = self.0.clone();
        Box::pin(async move {
            let live = Live::new(&fake);
            let (model, n, aborted) = (chat.model.clone(), chat.n, cx.aborted.clone());
            fake.asked.send((chat, cx)).await.unwrap();
            fake.begun.notify_one();
            if model == "never" {
                std::future::pending::<()>().await;
            }
            if model == "missing" {
                return Err(Reject::new(RejectKind::NotFound, Fault::Client, "no model `missing`").at("model"));
            }
            if model == "says-cancelled" {
                let said =
                    Reject::new(RejectKind::Invalid, Fault::Client, "the stream was cancelled").code("cancelled");
                return Err(said.because("upstream `u`: status 400"));
            }
            if model == "full" {
                return Err(Reject::unavailable(Fault::Engine, "the queue is full", 3));
            }
            let hello = [ReplyEvent::Delta(text("hel")), ReplyEvent::Delta(text("lo"))];
            let usage =
                ReplyEvent::Usage(Usage { input_tokens: 1, cached_tokens: 0, output_tokens: 2, ..Default::default() });
            let whole: Vec<ReplyEvent> =
                hello.iter().cloned().chain((0..n).map(|i| ReplyEvent::Delta(finish(i)))).collect();
            let (events, then) = match model.as_str() {
                "hang" => (hello.to_vec(), Then::Hang),
                "silent" => (Vec::new(), Then::Hang),
                "fails-first" => (Vec::new(), Then::Fail),
                "fails" => (hello.to_vec(), Then::Fail),
                "breaks-cancelled" => (hello.to_vec(), Then::Say("cancelled")),
                "breaks-cut" => (hello.to_vec(), Then::Say("stream_cut")),
                "flood" => (Vec::new(), Then::Repeat),
                "long" => {
                    let said = [text(&"x".repeat(4000)), call(), finish(0)];
                    (said.map(ReplyEvent::Delta).to_vec(), Then::End)
                }
                "gated" => (Vec::new(), Then::Gate(fake.gate.lock().unwrap().take().unwrap())),
                _ => (whole.into_iter().chain([usage]).collect(), Then::End),
            };
            let headers = vec![("x-tidegate-model", model.clone())];
            Ok(Reply {
                model,
                headers,
                allowances: Allowances::default(),
                citations: Vec::new(),
                aborted,
                events: Box::new(Script { events: events.into_iter(), then, _live: live }),
            })
        })
    }

    /// As many vectors as texts, of [`VECTOR`] numbers each.
    fn embed(&self, asked: EmbedRequest, _: usize, _: RequestContext) -> BoxFuture<'_, Result<Embedded, Reject>> {
        let vectors = vec![vec![0.5; VECTOR]; asked.inputs.len()];
        let (made, held) = (Embeddings { vectors, usage: Usage::default() }, Box::new(Live::new(&self.0)));
        let embedded = Embedded { model: asked.model, made, allowances: Allowances::default(), held };
        Box::pin(std::future::ready(Ok(embedded)))
    }
}

impl Service for FakeService {
    fn models(&self, caller: &Caller) -> Vec<ModelCard> {
        let card = |id: &str| ModelCard {
            id: id.into(),
            created: 5,
            owned_by: "tidegate".into(),
            context_tokens: None,
            capabilities: Vec::new(),
            pricing: None,
        };
        vec![card("org/one"), card(caller.tenant.as_str())]
    }

    fn ready(&self) -> Result<(), String> {
        if self.0.ready.load(Ordering::SeqCst) { Ok(()) } else { Err("secret reason".into()) }
    }

    fn metrics(&self) -> String {
        "a_metric 1\n".into()
    }
}

pub struct Running {
    pub address: SocketAddr,
    pub fake: Arc<Fake>,
    pub asked: mpsc::Receiver<(Chat, RequestContext)>,
    pub gate: mpsc::Sender<Delta>,
    pub server: Server,
}

/// Limits that do not get into a test's way.
pub fn limits() -> Limits {
    Limits { max_body_bytes: 1 << 20, ..Limits::default() }
}

pub fn start(limits: Limits, keys: Vec<ApiKey>, tls: Option<Tls>) -> Running {
    start_with(limits, keys, tls, None)
}

/// A server that keeps conversations in `folder`.
pub async fn start_keeping(limits: Limits, folder: &std::path::Path) -> Running {
    start_gateway(limits, folder, "one").await
}

/// One of several with the same store.
pub async fn start_gateway(limits: Limits, folder: &std::path::Path, name: &str) -> Running {
    let db = Db::open(&Place::Folder(folder.to_owned())).await.unwrap();
    let conversations = Conversations::of_gateway(db, name);
    conversations.stay(Duration::from_secs(3600)).await.unwrap();
    start_with(limits, Vec::new(), None, Some(Kept { conversations, behind: Behind::default() }))
}

fn start_with(limits: Limits, keys: Vec<ApiKey>, tls: Option<Tls>, kept: Option<Kept>) -> Running {
    let (asked_tx, asked) = mpsc::channel(10_000);
    let (gate, gate_rx) = mpsc::channel(100);
    let fake = Arc::new(Fake {
        asked: asked_tx,
        begun: Notify::new(),
        dropped: Notify::new(),
        live: AtomicUsize::new(0),
        ready: AtomicBool::new(true),
        gate: Mutex::new(Some(gate_rx)),
    });
    let listener = Listener::bind("127.0.0.1:0".parse().unwrap(), tls, Door::Every).unwrap();
    let address = listener.address();
    let (service, lanes) = (Arc::new(FakeService(fake.clone())), Arc::new(Lanes::start(2).unwrap()));
    let auth = SharedAuth::from(Auth::new(keys, Caller::local()).unwrap());
    auth.answer_by(service.clone());
    let api = Api::new(service, auth, limits, lanes).with_kept(kept);
    Running { address, fake, asked, gate, server: serve(vec![listener], api).unwrap() }
}

impl Running {
    pub async fn connect(&self) -> Client {
        Client { stream: TcpStream::connect(self.address).await.unwrap(), read: Vec::new() }
    }

    /// A client with no room for what it does not read.
    pub async fn connect_narrowly(&self) -> Client {
        let socket = TcpSocket::new_v4().unwrap();
        socket.set_recv_buffer_size(8 << 10).unwrap();
        Client { stream: socket.connect(self.address).await.unwrap(), read: Vec::new() }
    }

    /// One request on a connection of its own.
    pub async fn ask(&self, request: impl AsRef<[u8]>) -> Answered {
        let mut client = self.connect().await;
        client.send(request).await;
        client.answer().await
    }

    /// Waits until no answer is being made.
    pub async fn all_dropped(&self) {
        let dropped = async {
            while self.fake.live.load(Ordering::SeqCst) > 0 {
                self.fake.dropped.notified().await;
            }
        };
        tokio::time::timeout(Duration::from_secs(20), dropped).await.expect("the work goes on without its client");
    }
}

/// A client that writes what it is told.
pub struct Client {
    pub stream: TcpStream,
    read: Vec<u8>,
}

/// One response.
#[derive(Debug)]
pub struct Answered {
    pub status: u16,
    /// In lower case.
    pub head: String,
    pub body: String,
}

impl Answered {
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// The data of the events of a stream.
    pub fn events(&self) -> Vec<&str> {
        self.body.split("\n\n").filter_map(|event| event.strip_prefix("data: ")).collect()
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        self.head.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
    }
}

impl Client {
    pub async fn send(&mut self, request: impl AsRef<[u8]>) {
        self.stream.write_all(request.as_ref()).await.unwrap();
    }

    /// Reads until `end` has come; gives everything up to and with it.
    pub async fn read_to(&mut self, end: &str) -> String {
        let reading = async {
            loop {
                if let Some(at) = self.read.windows(end.len()).position(|window| window == end.as_bytes()) {
                    let rest = self.read.split_off(at + end.len());
                    return String::from_utf8(std::mem::replace(&mut self.read, rest)).unwrap();
                }
                let read = String::from_utf8_lossy(&self.read).into_owned();
                assert_ne!(self.stream.read_buf(&mut self.read).await.unwrap(), 0, "closed before {end:?}: {read}");
            }
        };
        tokio::time::timeout(Duration::from_secs(20), reading).await.expect("it does not come")
    }

    async fn read_exactly(&mut self, len: usize) -> String {
        while self.read.len() < len {
            assert_ne!(self.stream.read_buf(&mut self.read).await.unwrap(), 0, "closed within a body");
        }
        let rest = self.read.split_off(len);
        String::from_utf8(std::mem::replace(&mut self.read, rest)).unwrap()
    }

    /// One whole response.
    pub async fn answer(&mut self) -> Answered {
        let head = self.read_to("\r\n\r\n").await.to_lowercase();
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        let mut answered = Answered { status, head, body: String::new() };
        if answered.header("transfer-encoding").is_some() {
            loop {
                let size = usize::from_str_radix(self.read_to("\r\n").await.trim(), 16).unwrap();
                let chunk = self.read_exactly(size + 2).await;
                if size == 0 {
                    return answered;
                }
                answered.body.push_str(&chunk[..size]);
            }
        }
        let length = answered.header("content-length").map_or(0, |length| length.parse().unwrap());
        answered.body = self.read_exactly(length).await;
        answered
    }

    /// Whether the server closes without another byte.
    pub async fn is_closed(&mut self) -> bool {
        let mut byte = [0; 1];
        let read = tokio::time::timeout(Duration::from_secs(20), self.stream.read(&mut byte)).await;
        matches!(read.expect("it stays open"), Ok(0) | Err(_))
    }
}

/// A request of our endpoint.
pub fn post(path: &str, body: impl AsRef<[u8]>) -> Vec<u8> {
    let body = body.as_ref();
    let mut request = format!(
        "POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
        body.len()
    )
    .into_bytes();
    request.extend_from_slice(body);
    request
}

pub fn chat(model: &str, more: &str) -> Vec<u8> {
    post("/v1/chat/completions", chat_body(model, more))
}

pub fn chat_body(model: &str, more: &str) -> String {
    format!(r#"{{"model":"{model}","messages":[{{"role":"user","content":"hi"}}]{more}}}"#)
}

pub fn get(path: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nhost: localhost\r\n\r\n")
}
