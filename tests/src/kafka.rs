//! A Kafka cluster of a test's own, as far as a producer sees one: brokers on free ports that a test may kill and bring back,
//! and partitions whose leaders it moves. Messages are read and written by `kafka-protocol`, from Kafka's own schemas.

mod requests;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::task::JoinHandle;
use tokio_rustls::TlsAcceptor;

/// A record that a partition has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    pub partition: i32,
    pub key: String,
    pub headers: BTreeMap<String, String>,
    pub value: String,
}

/// How a client has to come.
#[derive(Clone, Default)]
pub struct Entrance {
    pub tls: Option<Arc<rustls::ServerConfig>>,
    /// User and password, by SASL PLAIN.
    pub sign_in: Option<(&'static str, &'static str)>,
}

/// What all brokers know.
#[derive(Default)]
struct State {
    addresses: Vec<SocketAddr>,
    /// The one topic, once it is made.
    topic: Option<String>,
    /// The leader of each partition: the number of a broker, from 0.
    leaders: Vec<i32>,
    records: Vec<Record>,
    /// Produce requests after whose records the broker dies, without an answer.
    deaths: usize,
}

/// The cluster.
pub struct Cluster {
    state: Arc<Mutex<State>>,
    entrance: Entrance,
    brokers: Vec<JoinHandle<()>>,
    /// Nobody else gets the port of a broker that is dead, and who asks there is refused.
    ports: Vec<TcpSocket>,
}

/// Bound with others of this user that ask for the same, and not listening yet.
fn bound(address: SocketAddr) -> TcpSocket {
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_reuseport(true).unwrap();
    socket.bind(address).unwrap();
    socket
}

impl Cluster {
    /// Without a topic.
    pub async fn start(num_brokers: usize, entrance: Entrance) -> Self {
        let state = Arc::new(Mutex::new(State::default()));
        let mut cluster = Self { state, entrance, brokers: Vec::new(), ports: Vec::new() };
        for number in 0..num_brokers {
            let port = bound(([127, 0, 0, 1], 0).into());
            cluster.state().addresses.push(port.local_addr().unwrap());
            cluster.ports.push(port);
            cluster.brokers.push(cluster.run(number));
        }
        cluster
    }

    /// As a config has them.
    pub fn addresses(&self) -> Vec<String> {
        self.state().addresses.iter().map(ToString::to_string).collect()
    }

    pub fn make_topic(&self, name: &str, partitions: usize) {
        let mut state = self.state();
        let num_brokers = state.addresses.len();
        state.topic = Some(name.to_owned());
        state.leaders = (0..partitions).map(|partition| (partition % num_brokers) as i32).collect();
    }

    /// Gives every partition to one broker.
    pub fn lead(&self, broker: usize) {
        self.state().leaders.fill(broker as i32);
    }

    /// With all its connections.
    pub fn kill(&mut self, broker: usize) {
        self.brokers[broker].abort();
    }

    /// At the same port, with what it had.
    pub async fn revive(&mut self, broker: usize) {
        // Until the one that was killed is gone.
        assert!((&mut self.brokers[broker]).await.unwrap_err().is_cancelled());
        self.brokers[broker] = self.run(broker);
    }

    /// The next produce requests are taken, and their connections cut before the answer.
    pub fn cut_answers(&self, count: usize) {
        self.state().deaths = count;
    }

    pub fn records(&self) -> Vec<Record> {
        self.state().records.clone()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    fn run(&self, number: usize) -> JoinHandle<()> {
        let listener = bound(self.ports[number].local_addr().unwrap()).listen(1024).unwrap();
        let broker = Broker { number: number as i32, state: Arc::clone(&self.state), entrance: self.entrance.clone() };
        tokio::spawn(async move {
            let mut connections = tokio::task::JoinSet::new();
            loop {
                let (socket, _) = listener.accept().await.unwrap();
                let broker = broker.clone();
                // It ends when the client goes, and with the broker.
                connections.spawn(async move { drop(broker.enter(socket).await) });
            }
        })
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.brokers.iter().for_each(JoinHandle::abort);
    }
}

#[derive(Clone)]
struct Broker {
    number: i32,
    state: Arc<Mutex<State>>,
    entrance: Entrance,
}

impl Broker {
    async fn enter(&self, socket: TcpStream) -> anyhow::Result<()> {
        match &self.entrance.tls {
            Some(tls) => self.serve(TlsAcceptor::from(Arc::clone(tls)).accept(socket).await?).await,
            None => self.serve(socket).await,
        }
    }

    async fn serve(&self, mut socket: impl AsyncRead + AsyncWrite + Unpin) -> anyhow::Result<()> {
        let mut signed_in = self.entrance.sign_in.is_none();
        loop {
            let mut request = vec![0; socket.read_u32().await? as usize];
            socket.read_exact(&mut request).await?;
            let answer = self.answer(request.into(), &mut signed_in)?;
            socket.write_u32(answer.len() as u32).await?;
            socket.write_all(&answer).await?;
            socket.flush().await?;
        }
    }
}
