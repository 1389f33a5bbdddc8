//! Counts requests and tokens of callers and models while they run, by the rules of `tidegate-limits`. What was counted
//! for a request is held in a [`Hold`]; dropping that corrects it to what the request cost, whatever way it ended.

use crate::estimate::estimated_input;
use crate::models::Model;
use crate::stages::end_user;
use metrics::counter;
use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tidegate_ledger::{Tally, Tokens};
use tidegate_limits::{Bounds, Claim, Denial, Limiter, Reservation, Subject};
use tidegate_types::{Allowances, Caller, Chat, Counted, Exceeded, Fault, Limited, Reject, RejectKind};

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
}

impl Gate {
    /// Nothing is counted yet.
    pub fn new(config: GateConfig) -> Self {
        let limiter = Limiter::new(Bounds { users_per_tenant: config.users_per_tenant });
        Self(Arc::new(Counters { limiter: Mutex::new(limiter), begun: Instant::now(), config }))
    }

    /// Counts a request for its caller's key, tenant and user.
    pub(crate) fn admit(&self, caller: &Caller, chat: &Chat, tally: &Arc<Tally>) -> Result<Hold, Reject> {
        let scope = &*caller.scope;
        let mut claims = Vec::new();
        if scope.key.counts() {
            claims.push(Claim { subject: Subject::Key(Arc::clone(&caller.key_name)), quota: &scope.key });
        }
        if scope.tenant.counts() {
            claims.push(Claim { subject: Subject::Tenant(caller.tenant.clone()), quota: &scope.tenant });
        }
        if scope.user.counts()
            && let Some(user) = user(chat)
        {
            claims.push(Claim { subject: Subject::User(caller.tenant.clone(), user), quota: &scope.user });
        }
        let bound = [&scope.key, &scope.tenant, &scope.user].into_iter().filter_map(|quota| quota.max_output_tokens);
        self.hold(&claims, chat, bound.min(), tally)
    }

    /// Counts a request for the model that it goes to.
    pub(crate) fn enter(&self, model: &Model, chat: &Chat, tally: &Arc<Tally>) -> Result<Hold, Reject> {
        let quota = model.quota.load();
        if !quota.counts() {
            return Ok(Hold::default());
        }
        let claim = Claim { subject: Subject::Model(model.name.as_str().into()), quota: &quota };
        self.hold(&[claim], chat, quota.max_output_tokens, tally)
    }

    fn hold(
        &self,
        claims: &[Claim<'_>],
        chat: &Chat,
        max_output: Option<u32>,
        tally: &Arc<Tally>,
    ) -> Result<Hold, Reject> {
        if claims.is_empty() {
            return Ok(Hold::default());
        }
        let output = chat.max_tokens.unwrap_or(self.0.config.reserve_output_tokens);
        let output = u64::from(max_output.map_or(output, |bound| output.min(bound))) * u64::from(chat.n);
        let reserved = self.0.lock().reserve(claims, estimated_input(chat) + output, self.0.now());
        let reservation = reserved.map_err(|denial| refusal(&denial))?;
        let allowances = reservation.allowances();
        let held = Held { gate: self.clone(), reservation, tally: Arc::clone(tally) };
        Ok(Hold { allowances, held: Some(Box::new(held)) })
    }
}

impl Counters {
    fn now(&self) -> Duration {
        self.begun.elapsed()
    }

    fn lock(&self) -> MutexGuard<'_, Limiter> {
        self.limiter.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What is counted for one request. Dropping it corrects that to what the request cost.
#[derive(Default)]
pub(crate) struct Hold {
    /// What was left after it.
    pub(crate) allowances: Allowances,
    /// `None` where nothing is limited.
    held: Option<Box<Held>>,
}

struct Held {
    gate: Gate,
    reservation: Reservation,
    tally: Arc<Tally>,
}

impl Drop for Hold {
    fn drop(&mut self) {
        let Some(held) = self.held.take() else { return };
        let Held { gate, reservation, tally } = *held;
        let Tokens { input, output, .. } = tally.tokens();
        gate.0.lock().settle(reservation, input.saturating_add(output), gate.0.now());
    }
}

/// A pseudonym of the person on whose behalf the caller asks, where it names one.
fn user(chat: &Chat) -> Option<u128> {
    let name = end_user(chat).filter(|name| !name.is_empty())?;
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
    reject.retry_after_s = retry_after.map(|time| time.as_millis().div_ceil(1000) as u32);
    let exceeded = Some(Exceeded { counted: denial.counted, retry_after });
    reject.limited = Some(Box::new(Limited { exceeded, allowances: denial.allowances }));
    reject
}

fn message(denial: &Denial) -> String {
    let of = match &denial.subject {
        Subject::Key(name) => format!("key `{name}`"),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_is_refused_comes_back_neither_early_nor_together() {
        let time = Duration::from_secs(8);
        let times: Vec<Duration> = (0..100).map(|_| jittered(time)).collect();
        assert!(times.iter().all(|at| (time..=time + time / 4).contains(at)));
        let spread = *times.iter().max().unwrap() - *times.iter().min().unwrap();
        assert!(spread > Duration::from_millis(500), "{spread:?}");
        assert!((0..100).any(|_| jittered(Duration::ZERO) > Duration::from_millis(50)));
    }
}
