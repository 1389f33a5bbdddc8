//! Name lookups in the system's way, on threads of their own. `getaddrinfo` blocks for as long as no name server answers,
//! which may be minutes, and cannot be called off: on a runtime's threads for blocking work, lookups of one name could
//! hold up everybody's.
//!
//! Invariant: a lookup has a place, of which there are so many, and equal names have one lookup. Who gives up leaves
//! nothing behind but a lookup that has begun.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::sync::{Arc, LazyLock, Mutex, PoisonError, Weak};
use tokio::sync::{OnceCell, Semaphore, watch};
use tokio::time::{Instant, timeout_at};

/// At once, in the whole process.
const MAX_LOOKUPS: usize = 16;

type Name = (String, u16);
type Look = dyn Fn(&str, u16) -> io::Result<Vec<SocketAddr>> + Send + Sync;
type Answer = Option<Arc<io::Result<Vec<SocketAddr>>>>;
/// A lookup: empty until it has a place and a thread.
type Flight = OnceCell<watch::Receiver<Answer>>;

/// Bounded lookups.
pub(crate) struct Lookups {
    look: Arc<Look>,
    max: usize,
    places: Arc<Semaphore>,
    /// Alive while somebody waits, or the thread runs.
    flights: Mutex<HashMap<Name, Weak<Flight>>>,
}

/// No lookup has ended in time to begin another one.
#[derive(Debug, thiserror::Error)]
#[error("{max} lookups of other names are still without an answer")]
pub(crate) struct Crowded {
    pub(crate) max: usize,
}

static SYSTEM: LazyLock<Lookups> =
    LazyLock::new(|| Lookups::new(MAX_LOOKUPS, Arc::new(|host, port| Ok((host, port).to_socket_addrs()?.collect()))));

/// Those of the process.
pub(crate) fn system() -> &'static Lookups {
    &SYSTEM
}

impl Lookups {
    fn new(max: usize, look: Arc<Look>) -> Self {
        Self { look, max, places: Arc::new(Semaphore::new(max)), flights: Mutex::default() }
    }

    /// The addresses of a host. Fails with [`Crowded`] where it has no place until then; how long the lookup itself takes
    /// is the caller's to bound.
    pub(crate) async fn look_up(&self, host: &str, port: u16, until: Instant) -> io::Result<Vec<SocketAddr>> {
        if let Ok(address) = host.parse::<IpAddr>() {
            return Ok(vec![SocketAddr::new(address, port)]);
        }
        let mut answers = self.begun((host.to_owned(), port), until).await?;
        let answer = answers.wait_for(Option::is_some).await.map_err(io::Error::other)?.clone();
        match answer.as_deref() {
            Some(Ok(addresses)) => Ok(addresses.clone()),
            Some(Err(error)) => Err(io::Error::new(error.kind(), error.to_string())),
            None => Err(io::ErrorKind::NotFound.into()),
        }
    }

    async fn begun(&self, name: Name, until: Instant) -> io::Result<watch::Receiver<Answer>> {
        let flight = self.flight(&name);
        let begun = timeout_at(until, flight.get_or_try_init(|| self.begin(name, &flight))).await;
        begun.unwrap_or_else(|_| Err(io::Error::new(io::ErrorKind::TimedOut, Crowded { max: self.max }))).cloned()
    }

    /// The lookup of this name that has no answer yet, or a new one.
    fn flight(&self, name: &Name) -> Arc<Flight> {
        let is_open = |flight: Arc<Flight>| flight.get().is_none_or(|answer| answer.borrow().is_none());
        let mut flights = self.flights.lock().unwrap_or_else(PoisonError::into_inner);
        flights.retain(|_, flight| flight.upgrade().is_some_and(is_open));
        if let Some(flight) = flights.get(name).and_then(Weak::upgrade) {
            return flight;
        }
        let flight = Arc::new(Flight::new());
        flights.insert(name.clone(), Arc::downgrade(&flight));
        flight
    }

    /// Once there is a place. Nothing is waited for after that: whoever is called off has begun a lookup and noted it, or
    /// neither.
    async fn begin(&self, name: Name, flight: &Arc<Flight>) -> io::Result<watch::Receiver<Answer>> {
        let place = Arc::clone(&self.places).acquire_owned().await.map_err(io::Error::other)?;
        let (done, answers) = watch::channel(None);
        let (look, flight) = (Arc::clone(&self.look), Arc::clone(flight));
        let work = move || {
            // The flight, so that others join it even where nobody waits any more.
            let _held = (place, flight);
            done.send_replace(Some(Arc::new(look(&name.0, name.1))));
        };
        std::thread::Builder::new().name("lookup".into()).spawn(work)?;
        Ok(answers)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::{SyncSender, sync_channel};
    use std::time::Duration;
    use tokio::task::JoinHandle;

    /// A name server that answers once for each time that it is let go.
    struct Slow {
        lookups: Arc<Lookups>,
        asked: Arc<Mutex<Vec<String>>>,
        let_go: SyncSender<()>,
    }

    impl Slow {
        fn new(max: usize) -> Self {
            let (let_go, gate) = sync_channel(100);
            let (gate, asked) = (Mutex::new(gate), Arc::new(Mutex::new(Vec::new())));
            let seen = Arc::clone(&asked);
            let look = move |host: &str, port| {
                seen.lock().unwrap().push(host.to_owned());
                gate.lock().unwrap().recv().unwrap();
                if host == "nobody" { Err(io::ErrorKind::NotFound.into()) } else { Ok(vec![at(port)]) }
            };
            Self { lookups: Arc::new(Lookups::new(max, Arc::new(look))), asked, let_go }
        }

        fn ask(&self, host: &'static str, within: Duration) -> JoinHandle<io::Result<Vec<SocketAddr>>> {
            let lookups = Arc::clone(&self.lookups);
            tokio::spawn(async move { lookups.look_up(host, 80, Instant::now() + within).await })
        }

        fn answer(&self, times: usize) {
            (0..times).for_each(|_| self.let_go.send(()).unwrap());
        }

        /// Waits until so many were asked for, and a little longer for more.
        async fn asked(&self, count: usize) -> Vec<String> {
            while self.asked.lock().unwrap().len() < count {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            tokio::time::sleep(Duration::from_millis(30)).await;
            self.asked.lock().unwrap().clone()
        }
    }

    const LONG: Duration = Duration::from_secs(60);

    fn at(port: u16) -> SocketAddr {
        SocketAddr::from(([192, 0, 2, 1], port))
    }

    #[tokio::test]
    async fn equal_names_share_a_lookup() {
        let slow = Slow::new(4);
        let callers = ["a", "a", "a", "nobody", "nobody"].map(|name| slow.ask(name, LONG));
        assert_eq!(slow.asked(2).await.len(), 2);
        slow.answer(2);
        let [a, b, c, d, e] = callers;
        for caller in [a, b, c] {
            assert_eq!(caller.await.unwrap().unwrap(), [at(80)]);
        }
        for caller in [d, e] {
            assert_eq!(caller.await.unwrap().unwrap_err().kind(), io::ErrorKind::NotFound);
        }
        slow.answer(1);
        slow.ask("a", LONG).await.unwrap().unwrap();
        assert_eq!(slow.asked(3).await[2], "a", "an answer is nobody's who asks later");
    }

    #[tokio::test]
    async fn lookups_beyond_the_bound_wait_or_are_refused() {
        let slow = Slow::new(2);
        let callers = ["a", "b", "c", "d"].map(|name| slow.ask(name, LONG));
        assert_eq!(slow.asked(2).await.len(), 2);
        let refused = slow.ask("e", Duration::from_millis(20)).await.unwrap().unwrap_err();
        assert!(refused.get_ref().unwrap().is::<Crowded>(), "{refused}");
        slow.answer(1);
        assert_eq!(slow.asked(3).await.len(), 3);
        slow.answer(3);
        for caller in callers {
            caller.await.unwrap().unwrap();
        }
        assert_eq!(slow.asked(4).await.len(), 4);
    }

    #[tokio::test]
    async fn a_caller_that_goes_away_leaves_one_lookup_at_most() {
        let slow = Slow::new(1);
        let running = slow.ask("a", LONG);
        slow.asked(1).await;
        let waiting = slow.ask("b", LONG);
        slow.asked(1).await;
        running.abort();
        waiting.abort();
        let callers = [slow.ask("a", LONG), slow.ask("c", LONG)];
        assert_eq!(slow.asked(1).await, ["a"], "who asks again joins the lookup that was left behind");
        slow.answer(2);
        for caller in callers {
            caller.await.unwrap().unwrap();
        }
        assert_eq!(slow.asked(2).await, ["a", "c"]);
    }

    #[tokio::test]
    async fn a_caller_that_goes_away_lets_the_next_one_of_its_name_begin() {
        let slow = Slow::new(1);
        let running = slow.ask("a", LONG);
        slow.asked(1).await;
        let first = slow.ask("b", LONG);
        slow.asked(1).await;
        let second = slow.ask("b", LONG);
        slow.asked(1).await;
        first.abort();
        slow.answer(2);
        running.await.unwrap().unwrap();
        second.await.unwrap().unwrap();
    }

    #[tokio::test]
    async fn an_address_and_a_name_of_the_system_are_found() {
        let until = Instant::now() + LONG;
        assert_eq!(system().look_up("::1", 7, until).await.unwrap(), ["[::1]:7".parse().unwrap()]);
        let local = system().look_up("localhost", 7, until).await.unwrap();
        assert!(local.iter().any(|address| address.ip().is_loopback() && address.port() == 7), "{local:?}");
    }
}
