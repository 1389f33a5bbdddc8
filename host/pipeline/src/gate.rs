//! Counts requests and tokens of callers and models while they run, by the rules of `tidegate-limits`. What was counted
//! for a request is held in a [`Hold`]; dropping that corrects it to what the request cost, whatever way it ended.
//!
//! Where several gateways count together ([`SharedLimits`]), they are asked first. Without an answer this one counts by
//! itself, for its part of the limits. Where nothing is shared nothing is awaited.

use crate::estimate::estimated_input;
use crate::models::Model;
use crate::stages::end_user;
use metrics::counter;
use std::any::Any;
use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tidegate_ledger::{Tally, Tokens};
use tidegate_limits::shared::{Settle, SharedLimits};
use tidegate_limits::{Bounds, Claim, Denial, Limiter, Reservation, Subject};
use tidegate_types::{Allowances, Caller, Chat, Counted, Exceeded, Fault, Limited, Quota, Reject, RejectKind, ToolDef};

/// What a request holds while it runs, and until long work for it has ended.
pub(crate) type Kept = Vec<Keeps>;

/// One part of that: a place, or what is counted for a limit.
pub(crate) type Keeps = Arc<dyn Any + Send + Sync>;

/// What holds for all limits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GateConfig {
    /// Tokens that an answer is taken for until it has ended, where the request gives no bound.
    pub reserve_output_tokens: u32,
    /// Users of one tenant that are told apart.
    pub users_per_tenant: usize,
}

impl Default for GateConfig {
    fn default() -> Self {
        Self { reserve_output_tokens: 1024, users_per_tenant: 10_000 }
    }
}

/// The counters of all limits. Clones count together.
#[derive(Clone)]
pub struct Gate(Arc<Counters>);

struct Counters {
    limiter: Mutex<Limiter>,
    begun: Instant,
    config: GateConfig,
    shared: Option<Arc<dyn SharedLimits>>,
}

impl Gate {
    /// Nothing is counted yet, but for what others have counted in `shared`.
    pub fn new(config: GateConfig, shared: Option<Arc<dyn SharedLimits>>) -> Self {
        let limiter = Limiter::new(Bounds { users_per_tenant: config.users_per_tenant });
        Self(Arc::new(Counters { limiter: Mutex::new(limiter), begun: Instant::now(), config, shared }))
    }

    /// Counts a request for its caller's key, project, tenant and user: as one, of however many prompts, or of none.
    pub(crate) async fn admit(&self, caller: &Caller, prompts: &[Metered<'_>]) -> Result<Hold, Reject> {
        let scope = &*caller.scope;
        let mut claims = Vec::new();
        if scope.key.counts() {
            claims.push(Claim { subject: Subject::Key(Arc::clone(&caller.key_name)), quota: &scope.key });
        }
        if let Some(project) = caller.project.as_ref().filter(|_| scope.project.counts()) {
            claims.push(Claim { subject: Subject::Project(project.clone()), quota: &scope.project });
        }
        if scope.tenant.counts() {
            claims.push(Claim { subject: Subject::Tenant(caller.tenant.clone()), quota: &scope.tenant });
        }
        if scope.user.counts()
            && let Some(user) = user(caller, prompts.first().map(|prompt| prompt.chat))
        {
            claims.push(Claim { subject: Subject::User(caller.tenant.clone(), user), quota: &scope.user });
        }
        let quotas = [&scope.key, &scope.project, &scope.tenant, &scope.user];
        let bound = quotas.into_iter().filter_map(|quota| quota.max_output_tokens).min();
        let input = || prompts.iter().map(|prompt| estimated_input(prompt.chat, [])).sum();
        self.hold(&claims, prompts, input, bound).await
    }

    /// Counts a request for the model that it goes to, with the `server`'s tools beside its own.
    pub(crate) async fn enter<'a>(
        &self,
        model: &Model,
        chat: &'a Chat,
        server: impl IntoIterator<Item = &'a ToolDef>,
        tally: &Arc<Tally>,
    ) -> Result<Hold, Reject> {
        if !model.quota.load().counts() {
            return Ok(Hold::default());
        }
        let quota = model.quota.load_full();
        let claim = Claim { subject: Subject::Model(model.name.as_str().into()), quota: &quota };
        let input = || estimated_input(chat, server);
        self.hold(&[claim], &[Metered { chat, tally }], input, quota.max_output_tokens).await
    }

    /// The tokens that a request counts with by a model's `quota` when it is let in.
    pub(crate) fn cost<'a>(&self, quota: &Quota, chat: &'a Chat, server: impl IntoIterator<Item = &'a ToolDef>) -> u64 {
        estimated_input(chat, server) + self.longest(chat, quota.max_output_tokens)
    }

    /// Tokens that the answers to a request have at most, as far as it is bounded.
    fn longest(&self, chat: &Chat, max_output: Option<u32>) -> u64 {
        let output = chat.max_tokens.unwrap_or(self.0.config.reserve_output_tokens);
        u64::from(max_output.map_or(output, |bound| output.min(bound))) * u64::from(chat.n)
    }

    /// `input` is about how many tokens the prompts have, asked only where something is counted.
    async fn hold(
        &self,
        claims: &[Claim<'_>],
        prompts: &[Metered<'_>],
        input: impl FnOnce() -> u64,
        max_output: Option<u32>,
    ) -> Result<Hold, Reject> {
        if claims.is_empty() {
            return Ok(Hold::default());
        }
        let output = prompts.iter().map(|prompt| self.longest(prompt.chat, max_output)).sum();
        let tokens = input() + output;
        let (allowances, charged) = match &self.0.shared {
            None => self.0.reserve(claims, tokens),
            Some(shared) => match shared.reserve(claims, tokens).await {
                Some(reserved) => reserved.map(|shared| (shared.allowances, Reserved::Shared(shared.charged))),
                None => self.0.reserve_alone(claims, tokens, shared.gateways()),
            },
        }
        .map_err(|denial| refusal(&denial))?;
        let charged = Mutex::new(Charged { by: Some(charged), tokens });
        let tallies = prompts.iter().map(|prompt| Arc::clone(prompt.tally)).collect();
        let held = Held { gate: self.clone(), charged, tallies, output };
        Ok(Hold { allowances, held: Some(Arc::new(held)) })
    }
}

impl Counters {
    fn reserve(&self, claims: &[Claim<'_>], tokens: u64) -> Result<(Allowances, Reserved), Box<Denial>> {
        let reservation = self.lock().reserve(claims, tokens, self.now())?;
        Ok((reservation.allowances(), Reserved::Here(reservation)))
    }

    /// For one of several gateways that cannot ask the others.
    fn reserve_alone(
        &self,
        claims: &[Claim<'_>],
        tokens: u64,
        gateways: u32,
    ) -> Result<(Allowances, Reserved), Box<Denial>> {
        counter!("tidegate_limits_alone_total").increment(1);
        let parts: Vec<Quota> = claims.iter().map(|claim| part(claim.quota, gateways)).collect();
        let alone: Vec<Claim<'_>> =
            claims.iter().zip(&parts).map(|(claim, quota)| Claim { subject: claim.subject.clone(), quota }).collect();
        self.reserve(&alone, tokens).map_err(|mut denial| {
            // Too large for the part is not too large for the whole, once that can be asked again.
            if denial.retry_after.is_none() && denial.requested <= denial.limit.saturating_mul(u64::from(gateways)) {
                denial.retry_after = Some(ALONE);
            }
            denial
        })
    }

    fn now(&self) -> Duration {
        self.begun.elapsed()
    }

    fn lock(&self) -> MutexGuard<'_, Limiter> {
        self.limiter.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// When a request comes back that one gateway alone has too little for.
const ALONE: Duration = Duration::from_secs(5);

/// What one of so many gateways may let through by itself.
fn part(quota: &Quota, gateways: u32) -> Quota {
    let rate = |rate: Option<u64>| rate.map(|rate| (rate / u64::from(gateways.max(1))).max(1));
    Quota {
        requests_per_minute: rate(quota.requests_per_minute),
        tokens_per_minute: rate(quota.tokens_per_minute),
        concurrency: quota.concurrency.map(|most| (most / gateways.max(1)).max(1)),
        ..quota.clone()
    }
}

/// One prompt of a request, and where its tokens are counted.
#[derive(Clone, Copy)]
pub(crate) struct Metered<'a> {
    pub(crate) chat: &'a Chat,
    pub(crate) tally: &'a Arc<Tally>,
}

/// What is counted for one request. Dropping it, and its clones, corrects that to what the request cost.
#[derive(Clone, Default)]
pub(crate) struct Hold {
    /// What was left after it.
    pub(crate) allowances: Allowances,
    /// `None` where nothing is limited.
    held: Option<Arc<Held>>,
}

struct Held {
    gate: Gate,
    charged: Mutex<Charged>,
    /// Of its prompts.
    tallies: Vec<Arc<Tally>>,
    /// Of the answers, as it was let in.
    output: u64,
}

struct Charged {
    /// Taken when it is settled.
    by: Option<Reserved>,
    tokens: u64,
}

/// Who has counted it.
enum Reserved {
    Here(Reservation),
    Shared(Box<dyn Settle>),
}

impl Hold {
    /// A further turn begins, with a prompt of about `input` tokens: what it may cost beyond what is charged is charged
    /// now, so that others are let in by what is left. It is not refused: tools have run for it already.
    pub(crate) fn go_on(&mut self, input: u64) {
        let Some(held) = self.held.as_deref() else { return };
        let mut charged = held.charged.lock().unwrap_or_else(PoisonError::into_inner);
        let used = held.used();
        let most = used.input.saturating_add(input).saturating_add(used.output.max(held.output));
        let more = most.saturating_sub(charged.tokens);
        charged.tokens += more;
        match &mut charged.by {
            Some(Reserved::Here(reservation)) if more > 0 => {
                held.gate.0.lock().raise(reservation, more, held.gate.0.now());
            }
            Some(Reserved::Shared(charged)) if more > 0 => charged.raise(more),
            _ => {}
        }
    }

    /// For work that may outlive the request: what is counted is settled when that has ended, too.
    pub(crate) fn kept(&self) -> Kept {
        let keeps = |held: &Arc<Held>| -> Keeps { Arc::<Held>::clone(held) };
        self.held.iter().map(keeps).collect()
    }
}

impl Held {
    fn used(&self) -> Tokens {
        self.tallies.iter().map(|tally| tally.tokens()).fold(Tokens::default(), |sum, one| Tokens {
            input: sum.input.saturating_add(one.input),
            cached: sum.cached.saturating_add(one.cached),
            output: sum.output.saturating_add(one.output),
        })
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let Tokens { input, output, .. } = self.used();
        let used = input.saturating_add(output);
        let charged = self.charged.get_mut().unwrap_or_else(PoisonError::into_inner);
        match charged.by.take() {
            Some(Reserved::Here(reservation)) => self.gate.0.lock().settle(reservation, used, self.gate.0.now()),
            Some(Reserved::Shared(charged)) => charged.settle(used),
            None => {}
        }
    }
}

/// A pseudonym of the person who asks, where that is known.
fn user(caller: &Caller, chat: Option<&Chat>) -> Option<u128> {
    let name = chat.map_or(caller.user.as_deref(), |chat| end_user(caller, chat));
    let name = name.filter(|name| !name.is_empty())?;
    let mut bytes = [0; 16];
    bytes.copy_from_slice(&blake3::hash(name.as_bytes()).as_bytes()[..16]);
    Some(u128::from_le_bytes(bytes))
}

fn refusal(denial: &Denial) -> Reject {
    let reason = match denial.counted {
        Counted::Requests => "requests",
        Counted::Tokens => "tokens",
        Counted::Concurrency => "concurrency",
    };
    counter!("tidegate_limit_denials_total", "reason" => reason, "limit" => denial.subject.kind()).increment(1);
    let retry_after = denial.retry_after.map(jittered);
    let mut reject = Reject::new(RejectKind::RateLimited, Fault::Client, message(denial));
    reject.code = Some("rate_limit_exceeded".into());
    reject.retry_after_s = retry_after.map(whole_seconds);
    let exceeded = Some(Exceeded { counted: denial.counted, retry_after });
    reject.limited = Some(Box::new(Limited { exceeded, allowances: denial.allowances }));
    reject
}

fn message(denial: &Denial) -> String {
    let of = match &denial.subject {
        Subject::Key(name) => format!("key `{name}`"),
        Subject::Project(name) => format!("project `{name}`"),
        Subject::Tenant(name) => format!("tenant `{name}`"),
        Subject::User(..) | Subject::OtherUsers(_) => "this user".to_owned(),
        Subject::Model(name) => format!("model `{name}`"),
    };
    let Denial { limit, used, requested, .. } = denial;
    let what = match denial.counted {
        Counted::Requests => "requests per minute (RPM)",
        Counted::Tokens => "tokens per minute (TPM)",
        Counted::Concurrency => {
            return format!("Too many requests of {of} at once: limit {limit}, running {used}. Wait for one to end");
        }
    };
    match denial.retry_after {
        Some(time) => format!(
            "Rate limit reached for {of} on {what}: limit {limit}, used {used}, requested {requested}. \
             Try again in {:.1}s",
            time.as_secs_f64() + 0.05
        ),
        None => format!(
            "Request too large for {of} on {what}: limit {limit}, requested {requested} (the prompt and the longest \
             answer). Send a shorter prompt or a smaller `max_tokens`"
        ),
    }
}

/// At least this much is added at random, so that those who were refused together do not come back together.
const LEAST_JITTER: Duration = Duration::from_millis(250);

fn jittered(time: Duration) -> Duration {
    // The standard library's hasher is keyed anew each time, from numbers that each thread drew once.
    let share = (RandomState::new().hash_one(0_u8) >> 32) as f64 / f64::from(u32::MAX);
    time + (time / 4).max(LEAST_JITTER).mul_f64(share)
}

/// Rounded up from what is left of a second, however little: nobody comes back early, nor at once.
fn whole_seconds(time: Duration) -> u32 {
    let seconds = time.as_secs().saturating_add(u64::from(time.subsec_nanos() > 0));
    u32::try_from(seconds).unwrap_or(u32::MAX).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_of_a_limit_lets_something_in_and_all_parts_no_more_than_the_whole() {
        let whole = Quota {
            requests_per_minute: Some(10),
            tokens_per_minute: Some(2),
            concurrency: Some(7),
            ..Quota::default()
        };
        let parted = part(&whole, 3);
        assert_eq!((parted.requests_per_minute, parted.concurrency), (Some(3), Some(2)));
        assert_eq!((parted.tokens_per_minute, parted.max_output_tokens), (Some(1), None));
        assert_eq!(part(&whole, 0), whole);
    }

    #[test]
    fn whoever_is_refused_comes_back_neither_early_nor_together() {
        let time = Duration::from_secs(8);
        let times: Vec<Duration> = (0..100).map(|_| jittered(time)).collect();
        assert!(times.iter().all(|at| (time..=time + time / 4).contains(at)));
        let spread = *times.iter().max().unwrap() - *times.iter().min().unwrap();
        assert!(spread > Duration::from_millis(500), "{spread:?}");
        assert!((0..100).any(|_| jittered(Duration::ZERO) > Duration::from_millis(50)));
    }

    #[test]
    fn no_time_is_told_as_less_than_it_is() {
        for (nanos, seconds) in [(0, 1), (1, 1), (1_000_000_000, 1), (1_000_000_001, 2)] {
            assert_eq!(whole_seconds(Duration::from_nanos(nanos)), seconds, "{nanos}");
        }
        assert_eq!(whole_seconds(Duration::MAX), u32::MAX);
    }
}
