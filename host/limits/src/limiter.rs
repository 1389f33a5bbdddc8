//! Lets a request in where every limit on it has room: all of its claims are charged, or none.

use crate::meter::{Charge, Meter, Refused};
use crate::table::{Bounds, Entry, Subject, Table};
use std::time::Duration;
use tidegate_types::{Allowance, Allowances, Counted, Quota};

/// One subject that a request counts for.
#[derive(Clone, Debug)]
pub struct Claim<'a> {
    /// Who.
    pub subject: Subject,
    /// Its limits.
    pub quota: &'a Quota,
}

/// What was charged for a request that was let in. To be given to [`Limiter::settle`] once, when the request has ended.
#[derive(Debug)]
#[must_use = "a reservation that is not settled is never given back"]
pub struct Reservation {
    parts: Vec<Part>,
    allowances: Allowances,
}

#[derive(Debug)]
struct Part {
    subject: Subject,
    tokens: Option<Charge>,
}

impl Reservation {
    /// What was left after it.
    pub fn allowances(&self) -> Allowances {
        self.allowances
    }
}

/// The limit that refused a request. Where several did, the one that takes longest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Denial {
    /// Whose limit.
    pub subject: Subject,
    /// What it counts.
    pub counted: Counted,
    /// The most at once.
    pub limit: u64,
    /// Of that, in use.
    pub used: u64,
    /// What was asked for.
    pub requested: u64,
    /// When the same request would be let in; `None` where it never will. For concurrency nobody knows: it is zero.
    pub retry_after: Option<Duration>,
    /// What is left.
    pub allowances: Allowances,
}

/// All limits, and what is counted for them. Times are since any one moment, and the same for all calls.
#[derive(Debug)]
pub struct Limiter {
    table: Table,
}

impl Limiter {
    /// Nothing is counted yet.
    pub fn new(bounds: Bounds) -> Self {
        Self { table: Table::new(bounds) }
    }

    /// Lets a request in that may cost up to `tokens`.
    pub fn reserve(&mut self, claims: &[Claim<'_>], tokens: u64, now: Duration) -> Result<Reservation, Box<Denial>> {
        // Making room for one may sweep away what is idle, which another of the same request is until it is charged: so
        // there is room for all of them before any is counted.
        for claim in claims {
            self.table.enter(&claim.subject, now);
        }
        let mut subjects = Vec::with_capacity(claims.len());
        let mut denial: Option<Denial> = None;
        for claim in claims {
            let (subject, entry) = self.table.enter(&claim.subject, now);
            entry.adopt(claim.quota, now);
            let found = entry.denials(&subject, claim.quota, tokens, now);
            denial = denial.into_iter().chain(found.into_iter().flatten()).max_by_key(Denial::patience);
            subjects.push(subject);
        }
        if let Some(mut denial) = denial {
            denial.allowances = self.allowances(&subjects, claims, now);
            return Err(Box::new(denial));
        }
        let parts = subjects.iter().zip(claims).map(|(subject, claim)| self.charge(subject, claim.quota, tokens, now));
        let parts = parts.collect();
        Ok(Reservation { parts, allowances: self.allowances(&subjects, claims, now) })
    }

    /// The request may cost so many `tokens` more than it was let in with. They are charged whether there is room or not.
    pub fn raise(&mut self, reservation: &mut Reservation, tokens: u64, now: Duration) {
        for Part { subject, tokens: charge } in &mut reservation.parts {
            let meter = self.table.get(subject).and_then(|entry| entry.tokens.as_mut());
            if let (Some(charge), Some(meter)) = (charge, meter) {
                meter.raise(charge, tokens, now);
            }
        }
    }

    /// The request has ended, whatever way, and has cost `used` tokens.
    pub fn settle(&mut self, reservation: Reservation, used: u64, now: Duration) {
        for Part { subject, tokens } in reservation.parts {
            let Some(entry) = self.table.get(&subject) else { continue };
            entry.running -= 1;
            if let (Some(charge), Some(meter)) = (tokens, &mut entry.tokens) {
                meter.correct(charge, used, now);
            }
        }
    }

    /// Subjects that are remembered.
    pub fn num_subjects(&self) -> usize {
        self.table.len()
    }

    /// What is not limited is not charged: its meter may be there still, and has another rate.
    fn charge(&mut self, subject: &Subject, quota: &Quota, tokens: u64, now: Duration) -> Part {
        let (subject, entry) = self.table.enter(subject, now);
        entry.running += 1;
        if let Some(meter) = entry.requests.as_mut().filter(|_| quota.requests_per_minute.is_some()) {
            meter.charge(1, now);
        }
        let limited = entry.tokens.as_mut().filter(|_| quota.tokens_per_minute.is_some());
        Part { subject, tokens: limited.map(|meter| meter.reserve(tokens, now)) }
    }

    fn allowances(&mut self, subjects: &[Subject], claims: &[Claim<'_>], now: Duration) -> Allowances {
        let each = subjects.iter().zip(claims).filter_map(|(subject, claim)| {
            let entry = self.table.get(subject)?;
            let of = |meter: &mut Option<Meter>, limited| meter.as_mut().filter(|_| limited).map(|m| allowance(m, now));
            Some(Allowances {
                requests: of(&mut entry.requests, claim.quota.requests_per_minute.is_some()),
                tokens: of(&mut entry.tokens, claim.quota.tokens_per_minute.is_some()),
            })
        });
        each.fold(Allowances::default(), Allowances::tighter)
    }
}

fn allowance(meter: &mut Meter, now: Duration) -> Allowance {
    Allowance { limit: meter.limit(), remaining: meter.remaining(now), reset: meter.reset(now) }
}

impl Entry {
    /// The limits of `quota` that have no room for one more request.
    fn denials(&mut self, subject: &Subject, quota: &Quota, tokens: u64, now: Duration) -> [Option<Denial>; 3] {
        let rates = [
            (Counted::Requests, quota.requests_per_minute, &mut self.requests, 1),
            (Counted::Tokens, quota.tokens_per_minute, &mut self.tokens, tokens),
        ];
        let [requests, tokens] = rates.map(|(counted, limit, meter, requested)| {
            let meter = meter.as_mut().filter(|_| limit.is_some())?;
            let retry_after = match meter.check(requested, now).err()? {
                Refused::For(time) => Some(time),
                Refused::Forever => None,
            };
            let (limit, used) = (meter.limit(), meter.used(now));
            Some(denial(subject, counted, [limit, used, requested], retry_after))
        });
        let full = quota.concurrency.filter(|limit| self.running >= *limit);
        let concurrency = full.map(|limit| {
            let numbers = [u64::from(limit), u64::from(self.running), 1];
            denial(subject, Counted::Concurrency, numbers, Some(Duration::ZERO))
        });
        [requests, tokens, concurrency]
    }
}

fn denial(subject: &Subject, counted: Counted, numbers: [u64; 3], retry_after: Option<Duration>) -> Denial {
    let [limit, used, requested] = numbers;
    let allowances = Allowances::default();
    Denial { subject: subject.clone(), counted, limit, used, requested, retry_after, allowances }
}

impl Denial {
    /// How long it takes.
    pub fn patience(&self) -> Duration {
        self.retry_after.unwrap_or(Duration::MAX)
    }
}
