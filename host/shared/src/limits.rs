//! Limits that gateways count together: one script lets a request in or refuses it for all its subjects at once, one
//! corrects what it was charged when it has ended. The meters are those of `tidegate-limits`; requests at once are leases,
//! so that those of a gateway that is no more end by themselves.

use crate::link::{Line, Link};
use crate::script::Script;
use metrics::counter;
use parking_lot::Mutex;
use redis::Cmd;
use std::collections::HashMap;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tidegate_limits::shared::{Reserving, Settle, SharedLimits, SharedReservation};
use tidegate_limits::{Claim, Denial, Subject};
use tidegate_types::{Allowance, Allowances, Counted, Quota};
use tokio::sync::mpsc;

const METER: &str = include_str!("limits/meter.lua");

/// Corrections that wait to be sent. One more is lost, and what it would have given back leaks away.
const MAX_SETTLING: usize = 16 << 10;

/// Corrections, and leases, that are sent together.
const BATCH: usize = 256;

/// The limits of all gateways.
pub struct Limits {
    core: Arc<Core>,
}

struct Core {
    link: Arc<Link>,
    reserve: Script,
    raise: Script,
    settle: Script,
    renew: Script,
    /// The leases of requests that run here, by the request's number.
    running: Mutex<HashMap<u64, Vec<String>>>,
    next: AtomicU64,
    settling: mpsc::Sender<Correction>,
    /// Corrections on their way.
    unsent: Arc<AtomicU64>,
}

/// What is said of a request after it was let in.
enum Correction {
    /// It may cost so many tokens more, which are `charged` once the server has taken it.
    Raise { command: Cmd, tokens: u64, charged: Arc<AtomicU64> },
    /// It has ended. The command's last argument is what it was charged, as far as the server has taken it.
    Settle { command: Cmd, charged: Arc<AtomicU64> },
}

/// Whether the server knows of the requests that run here.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Known {
    /// One that it does not know has ended.
    Yes,
    /// It may have forgotten.
    Perhaps,
}

impl Limits {
    /// The limits, and the work that corrects them.
    pub(crate) fn new(link: Arc<Link>) -> (Self, impl Future<Output = ()> + Send + use<>) {
        let (settling, corrections) = mpsc::channel(MAX_SETTLING);
        let unsent = Arc::new(AtomicU64::new(0));
        let of = |body: &str| Script::new([METER, body].concat());
        let core = Core {
            reserve: of(include_str!("limits/reserve.lua")),
            raise: of(include_str!("limits/raise.lua")),
            settle: of(include_str!("limits/settle.lua")),
            renew: Script::new(include_str!("limits/renew.lua").to_owned()),
            link: Arc::clone(&link),
            running: Mutex::default(),
            next: AtomicU64::new(0),
            settling,
            unsent: Arc::clone(&unsent),
        };
        (Self { core: Arc::new(core) }, correct(link, corrections, unsent))
    }

    /// Once no correction waits to be sent.
    pub async fn settled(&self) {
        while self.core.unsent.load(Ordering::Acquire) > 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    pub(crate) fn scripts(&self) -> impl Iterator<Item = &Script> {
        [&self.core.reserve, &self.core.raise, &self.core.settle, &self.core.renew].into_iter()
    }

    /// What runs here goes on.
    pub(crate) async fn renew(&self, known: Known) {
        let core = &*self.core;
        let Some(mut line) = core.link.line() else { return };
        let mut leases: HashMap<String, Vec<String>> = HashMap::new();
        for (number, keys) in &*core.running.lock() {
            keys.iter().for_each(|key| leases.entry(key.clone()).or_default().push(core.name(*number)));
        }
        let mut commands = redis::pipe();
        for (key, names) in leases {
            for names in names.chunks(BATCH) {
                let mut command = core.renew.call(std::slice::from_ref(&key));
                command.arg(core.lease_us()).arg(if known == Known::Yes { "XX" } else { "CH" }).arg(names);
                commands.add_command(command).ignore();
            }
        }
        // Sent even where nothing runs: a server that is away is so found out before a request does.
        commands.add_command(core.link.lease()).ignore();
        let _ = core.link.within(&line.clone(), commands.exec_async(&mut line.connection)).await;
    }
}

impl Core {
    fn name(&self, number: u64) -> String {
        format!("{}-{number}", self.link.gateway)
    }

    fn lease_us(&self) -> u64 {
        u64::try_from(self.link.config.lease.as_micros()).unwrap_or(u64::MAX)
    }

    /// Asks the server, in a task of its own: whoever waits for it may go away, and then what was charged is given back.
    async fn reserve(self: Arc<Self>, mut line: Line, asked: Asked) -> Option<Result<SharedReservation, Box<Denial>>> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let mut command = self.reserve.call(&asked.keys);
        command.arg(asked.tokens).arg(self.name(number)).arg(self.lease_us());
        for (_, quota) in &asked.claims {
            let [requests, tokens] = rates(quota);
            command.arg(requests).arg(tokens).arg(quota.concurrency.unwrap_or(0));
        }
        let reply: Vec<i64> = self.link.within(&line.clone(), command.query_async(&mut line.connection)).await?;
        let counts: Vec<Count> = reply.get(1..)?.chunks_exact(8).map(Count::of).collect();
        let allowances = allowances(&asked.claims, &counts);
        if reply.first() != Some(&1) {
            return denial(&asked, &counts, allowances).map(|denial| Err(Box::new(denial)));
        }
        let charged = Charged::new(self, number, asked, &counts);
        Some(Ok(SharedReservation { allowances, charged: Box::new(charged) }))
    }

    fn subject(&self, what: &str, subject: &Subject) -> String {
        let name = match subject {
            Subject::Key(name) | Subject::Model(name) => format!("{}:{name}", subject.kind()),
            Subject::Project(project) => format!("project:{project}"),
            Subject::Tenant(tenant) => format!("tenant:{tenant}"),
            Subject::User(tenant, user) => format!("user:{user:032x}:{tenant}"),
            Subject::OtherUsers(tenant) => format!("users:{tenant}"),
        };
        self.link.key(what, &name)
    }
}

impl SharedLimits for Limits {
    fn reserve<'a>(&'a self, claims: &'a [Claim<'a>], tokens: u64) -> Reserving<'a> {
        Box::pin(async move {
            let line = self.core.link.line()?;
            let keys = claims
                .iter()
                .flat_map(|claim| ["meter", "running"].map(|what| self.core.subject(what, &claim.subject)));
            let owned = claims.iter().map(|claim| (claim.subject.clone(), claim.quota.clone())).collect();
            let asked = Asked { keys: keys.collect(), claims: owned, tokens };
            tokio::spawn(Arc::clone(&self.core).reserve(line, asked)).await.ok()?
        })
    }

    fn gateways(&self) -> u32 {
        self.core.link.config.gateways
    }
}

/// What is asked for one request.
struct Asked {
    /// Meters and leases of each subject.
    keys: Vec<String>,
    claims: Vec<(Subject, Quota)>,
    tokens: u64,
}

fn rates(quota: &Quota) -> [u64; 2] {
    [quota.requests_per_minute, quota.tokens_per_minute].map(|rate| rate.unwrap_or(0))
}

/// What the server says of one subject.
struct Count {
    requests: Level,
    tokens: Level,
    running: u64,
    /// Names the charge of the tokens.
    change: i64,
}

struct Level {
    used: u64,
    /// Microseconds until there is room; negative for never.
    wait: i64,
    reset: Duration,
}

impl Count {
    fn of(numbers: &[i64]) -> Self {
        let level = |at: usize| Level {
            used: numbers[at].unsigned_abs(),
            wait: numbers[at + 1],
            reset: Duration::from_micros(numbers[at + 2].unsigned_abs()),
        };
        Self { requests: level(0), tokens: level(3), running: numbers[6].unsigned_abs(), change: numbers[7] }
    }
}

fn allowances(claims: &[(Subject, Quota)], counts: &[Count]) -> Allowances {
    let of = |limit: Option<u64>, level: &Level| {
        limit.map(|limit| Allowance { limit, remaining: limit.saturating_sub(level.used), reset: level.reset })
    };
    let each = claims.iter().zip(counts).map(|((_, quota), count)| Allowances {
        requests: of(quota.requests_per_minute, &count.requests),
        tokens: of(quota.tokens_per_minute, &count.tokens),
    });
    each.fold(Allowances::default(), Allowances::tighter)
}

/// The limit that takes longest of those that have no room.
fn denial(asked: &Asked, counts: &[Count], allowances: Allowances) -> Option<Denial> {
    let of = |subject: &Subject, counted, [limit, used, requested]: [u64; 3], wait: i64| Denial {
        subject: subject.clone(),
        counted,
        limit,
        used,
        requested,
        retry_after: u64::try_from(wait).ok().map(Duration::from_micros),
        allowances,
    };
    let denials = asked.claims.iter().zip(counts).flat_map(|((subject, quota), count)| {
        let [requests, tokens] = rates(quota);
        let levels =
            [(Counted::Requests, requests, &count.requests, 1), (Counted::Tokens, tokens, &count.tokens, asked.tokens)];
        let rates = levels
            .into_iter()
            .filter(|(_, _, level, _)| level.wait != 0)
            .map(|(counted, limit, level, requested)| of(subject, counted, [limit, level.used, requested], level.wait));
        let full = quota.concurrency.map(u64::from).filter(|most| count.running >= *most);
        let at_once = full.map(|most| of(subject, Counted::Concurrency, [most, count.running, 1], 0));
        rates.chain(at_once).collect::<Vec<_>>()
    });
    denials.max_by_key(Denial::patience)
}

/// What was charged for one request. Its end is told when this is dropped.
struct Charged {
    core: Arc<Core>,
    number: u64,
    asked: Asked,
    /// Tokens that the server has counted for it.
    charged: Arc<AtomicU64>,
    changes: Vec<i64>,
    used: u64,
}

impl Charged {
    fn new(core: Arc<Core>, number: u64, asked: Asked, counts: &[Count]) -> Self {
        let limited = asked.claims.iter().zip(asked.keys.chunks_exact(2));
        let leases: Vec<String> =
            limited.filter(|((_, quota), _)| quota.concurrency.is_some()).map(|(_, keys)| keys[1].clone()).collect();
        if !leases.is_empty() {
            core.running.lock().insert(number, leases);
        }
        let charged = Arc::new(AtomicU64::new(asked.tokens));
        let changes = counts.iter().map(|count| count.change).collect();
        Self { core, number, asked, charged, changes, used: 0 }
    }

    fn correction(&self) -> Correction {
        let mut command = self.core.settle.call(&self.asked.keys);
        command.arg(self.core.name(self.number)).arg(self.used);
        for ((_, quota), change) in self.asked.claims.iter().zip(&self.changes) {
            let [requests, tokens] = rates(quota);
            command.arg(requests).arg(tokens).arg(*change);
        }
        Correction::Settle { command, charged: Arc::clone(&self.charged) }
    }

    /// Has a correction sent behind those that wait, where there is room.
    fn send(&self, correction: Correction) {
        self.core.unsent.fetch_add(1, Ordering::AcqRel);
        if self.core.settling.try_send(correction).is_err() {
            self.core.unsent.fetch_sub(1, Ordering::AcqRel);
            counter!("tidegate_shared_corrections_lost_total").increment(1);
        }
    }
}

impl Settle for Charged {
    /// One that is lost is charged at the end, as what was used beyond what was let in.
    fn raise(&mut self, tokens: u64) {
        let mut command = self.core.raise.call(&self.asked.keys);
        command.arg(tokens);
        for (_, quota) in &self.asked.claims {
            let [requests, tokens] = rates(quota);
            command.arg(requests).arg(tokens);
        }
        self.send(Correction::Raise { command, tokens, charged: Arc::clone(&self.charged) });
    }

    fn settle(mut self: Box<Self>, used: u64) {
        self.used = used;
    }
}

impl Drop for Charged {
    fn drop(&mut self) {
        self.core.running.lock().remove(&self.number);
        self.send(self.correction());
    }
}

/// Sends corrections, those that wait together. One that the server does not take is lost: what it would have given back
/// leaks away, and its leases end.
async fn correct(link: Arc<Link>, mut corrections: mpsc::Receiver<Correction>, unsent: Arc<AtomicU64>) {
    let mut waiting = Vec::with_capacity(BATCH);
    while corrections.recv_many(&mut waiting, BATCH).await > 0 {
        let num = waiting.len() as u64;
        let (mut commands, mut raised) = (redis::pipe(), Vec::new());
        for correction in waiting.drain(..) {
            let command = match correction {
                Correction::Raise { command, tokens, charged } => {
                    // An end that goes together with it is taken with it, or lost with it.
                    charged.fetch_add(tokens, Ordering::AcqRel);
                    raised.push((charged, tokens));
                    command
                }
                Correction::Settle { mut command, charged } => {
                    command.arg(charged.load(Ordering::Acquire));
                    command
                }
            };
            commands.add_command(command).ignore();
        }
        let sent = match link.line() {
            Some(mut line) => link.within(&line.clone(), commands.exec_async(&mut line.connection)).await,
            None => None,
        };
        if sent.is_none() {
            for (charged, tokens) in &raised {
                charged.fetch_sub(*tokens, Ordering::AcqRel);
            }
            counter!("tidegate_shared_corrections_lost_total").increment(num);
        }
        unsent.fetch_sub(num, Ordering::AcqRel);
    }
}
