//! Budgets in money: of a tenant, a project or a key, for a day and a month in UTC. A pure state machine: time is passed in.
//!
//! What a generation may cost at most is reserved before it begins and given back when it has ended, so that requests
//! that run beside each other cannot spend the same money twice.

mod calendar;

pub use calendar::day_of;

use crate::entry::Alert;
use calendar::{DAY_S, civil, day, day_end_s, month, month_end_s};
use serde::{Deserialize, Serialize};
use std::collections::HashMap;

/// What may be spent, in billionths of the operator's currency.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Budget {
    /// In a day.
    pub daily: Option<u64>,
    /// In a month.
    pub monthly: Option<u64>,
    /// Percent of either at which somebody is told.
    pub soft_percent: u8,
}

/// Whose budget: `tenant`, `project` or `key`, and its name.
pub(crate) type Holder = (&'static str, String);

/// Who pays for a generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Payer<'a> {
    pub(crate) tenant: &'a str,
    /// Where it is not the tenant's own.
    pub(crate) project: Option<&'a str>,
    pub(crate) key: &'a str,
}

/// What was spent before this process began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Spent {
    /// In the current day.
    pub day: u64,
    /// In the current month.
    pub month: u64,
}

/// All budgets, and what is spent and reserved of each.
#[derive(Debug, Default)]
pub struct Budgets {
    accounts: HashMap<Holder, Account>,
    /// What is set aside for generations that run, also for whom nothing is bounded: that may change while they do.
    reserved: HashMap<Holder, u64>,
    /// What other gateways have set aside, as far as is known.
    elsewhere: HashMap<Holder, u64>,
}

/// What is set aside from one budget.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SetAside {
    /// `tenant`, `project` or `key`.
    pub scope: String,
    /// Whose.
    pub name: String,
    /// Billionths of the currency.
    pub amount: u64,
}

#[derive(Debug)]
struct Account {
    budget: Budget,
    windows: [Window; 2],
}

#[derive(Debug, Default)]
struct Window {
    name: String,
    spent: u64,
    /// The highest bound that was told of.
    told: Option<Bound>,
}

/// What somebody is told of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Bound {
    /// So many percent are spent.
    Soft,
    /// It is used up, or what is left of it does not pay for a request.
    Hard,
}

/// A budget that does not allow what was asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Exceeded {
    pub(crate) scope: &'static str,
    pub(crate) name: String,
    pub(crate) window: &'static str,
    pub(crate) limit: u64,
    pub(crate) spent: u64,
    pub(crate) resets_s: u64,
    /// Where that is told of now.
    pub(crate) alert: Option<Box<Alert>>,
}

impl Budgets {
    /// A tenant's budget, with what it has spent already.
    pub fn of_tenant(&mut self, name: &str, budget: Budget, spent: Spent, now_ms: u64) {
        self.add(("tenant", name.to_owned()), budget, spent, now_ms);
    }

    /// A project's budget, with what it has spent already.
    pub fn of_project(&mut self, id: &str, budget: Budget, spent: Spent, now_ms: u64) {
        self.add(("project", id.to_owned()), budget, spent, now_ms);
    }

    /// A key's budget, with what it has spent already.
    pub fn of_key(&mut self, name: &str, budget: Budget, spent: Spent, now_ms: u64) {
        self.add(("key", name.to_owned()), budget, spent, now_ms);
    }

    fn add(&mut self, holder: Holder, budget: Budget, spent: Spent, now_ms: u64) {
        let window = |name: String, spent| Window { name, spent, told: None };
        let windows = [window(day(now_ms), spent.day), window(month(now_ms), spent.month)];
        self.accounts.insert(holder, Account { budget, windows });
    }

    /// When the current day and month began, in milliseconds since 1970.
    pub fn window_starts_ms(now_ms: u64) -> (u64, u64) {
        let today = now_ms / 1000 / DAY_S;
        let first = today - (civil(today).2 - 1);
        (today * DAY_S * 1000, first * DAY_S * 1000)
    }

    /// Sets `amount` aside for a caller, or says which budget is in the way; then nothing was set aside.
    pub(crate) fn reserve(&mut self, payer: &Payer<'_>, amount: u64, now_ms: u64) -> Result<(), Exceeded> {
        // Where nothing costs or is bounded, names are not even copied.
        if amount == 0 && self.accounts.is_empty() {
            return Ok(());
        }
        let holders: Vec<Holder> = payer.holders().collect();
        for holder in &holders {
            if let Some(account) = self.accounts.get_mut(holder) {
                let of = |reserved: &HashMap<Holder, u64>| reserved.get(holder).copied().unwrap_or(0);
                let reserved = of(&self.reserved).saturating_add(of(&self.elsewhere));
                account.allows(holder, reserved, amount, now_ms)?;
            }
        }
        for holder in holders {
            let reserved = self.reserved.entry(holder).or_default();
            *reserved = reserved.saturating_add(amount);
        }
        Ok(())
    }

    /// Goes on where `before` was: what runs keeps what was set aside for it, and no window has spent less than it had.
    /// What these budgets were read from may not know of the last generations yet. Gives the bounds that are reached and
    /// were not told of: others may have spent what is missing, or the limit may have come down.
    pub(crate) fn go_on_from(&mut self, before: Self, now_ms: u64) -> Vec<Alert> {
        let (mut accounts, mut alerts) = (before.accounts, Vec::new());
        (self.reserved, self.elsewhere) = (before.reserved, before.elsewhere);
        for (holder, account) in &mut self.accounts {
            if let Some(old) = accounts.remove(holder) {
                account.go_on_from(old, now_ms);
            }
            account.tell(holder, now_ms, &mut alerts);
        }
        alerts
    }

    /// What is set aside here.
    pub(crate) fn set_aside(&self) -> Vec<SetAside> {
        let of = |((scope, name), amount): (&Holder, &u64)| SetAside {
            scope: (*scope).to_owned(),
            name: name.clone(),
            amount: *amount,
        };
        self.reserved.iter().filter(|(holder, _)| self.accounts.contains_key(*holder)).map(of).collect()
    }

    /// What is set aside by others now.
    pub(crate) fn set_aside_elsewhere(&mut self, all: &[SetAside]) {
        self.elsewhere.clear();
        for SetAside { scope, name, amount } in all {
            let Some(scope) = ["tenant", "project", "key"].into_iter().find(|known| known == scope) else { continue };
            let sum = self.elsewhere.entry((scope, name.clone())).or_default();
            *sum = sum.saturating_add(*amount);
        }
    }

    /// Gives back `reserved` and spends `amount`; gives the bounds that this reached.
    pub(crate) fn settle(&mut self, payer: &Payer<'_>, reserved: u64, amount: u64, now_ms: u64) -> Vec<Alert> {
        let mut alerts = Vec::new();
        if self.accounts.is_empty() && self.reserved.is_empty() {
            return alerts;
        }
        for holder in payer.holders() {
            if let Some(account) = self.accounts.get_mut(&holder) {
                account.spend(&holder, amount, now_ms, &mut alerts);
            }
            if let Some(left) = self.reserved.get_mut(&holder) {
                *left = left.saturating_sub(reserved);
                if *left == 0 {
                    self.reserved.remove(&holder);
                }
            }
        }
        alerts
    }
}

impl Payer<'_> {
    fn holders(&self) -> impl Iterator<Item = Holder> {
        let all = [("tenant", Some(self.tenant)), ("project", self.project), ("key", Some(self.key))];
        all.into_iter().filter_map(|(scope, name)| Some((scope, name?.to_owned())))
    }
}

impl Budget {
    fn limits(&self) -> [Option<u64>; 2] {
        [self.daily, self.monthly]
    }

    /// The bound that is reached.
    fn bound(&self, spent: u64, limit: u64) -> Option<Bound> {
        let soft = u128::from(limit) * u128::from(self.soft_percent) / 100;
        if spent >= limit {
            Some(Bound::Hard)
        } else if self.soft_percent > 0 && u128::from(spent) >= soft {
            Some(Bound::Soft)
        } else {
            None
        }
    }
}

impl Window {
    /// Tells of `reached`, where that is more than was told of.
    fn tell(&mut self, holder: &Holder, reached: Option<Bound>, limit: u64, now_ms: u64) -> Option<Alert> {
        if reached <= self.told {
            return None;
        }
        self.told = reached;
        let word = if reached == Some(Bound::Hard) { "hard" } else { "soft" };
        Some(Alert {
            // Every gateway tells it by this name, and by another where the limit is another.
            id: format!("{}:{}:{}:{word}:{limit}", holder.0, holder.1, self.name),
            scope: holder.0.into(),
            name: holder.1.clone(),
            window: self.name.clone(),
            bound: word.into(),
            spent: self.spent,
            limit,
            at_ms: now_ms,
        })
    }
}

impl Account {
    fn allows(&mut self, holder: &Holder, reserved: u64, amount: u64, now_ms: u64) -> Result<(), Exceeded> {
        self.roll(now_ms);
        // What needs nothing is in no budget's way, not even in that of one that is overdrawn.
        if amount == 0 {
            return Ok(());
        }
        let ends = [("day", day_end_s(now_ms)), ("month", month_end_s(now_ms))];
        for ((window, limit), (name, resets_s)) in self.windows.iter_mut().zip(self.budget.limits()).zip(ends) {
            let Some(limit) = limit else { continue };
            let spent = window.spent.saturating_add(reserved);
            if spent.saturating_add(amount) > limit {
                // What is only set aside comes back in part, and what the whole budget could not pay says nothing of it.
                let is_used_up = amount <= limit && window.spent.saturating_add(amount) > limit;
                let reached = is_used_up.then_some(Bound::Hard);
                let alert = window.tell(holder, reached, limit, now_ms).map(Box::new);
                let (scope, holder) = (holder.0, holder.1.clone());
                return Err(Exceeded { scope, name: holder, window: name, limit, spent, resets_s, alert });
            }
        }
        Ok(())
    }

    fn spend(&mut self, holder: &Holder, amount: u64, now_ms: u64, alerts: &mut Vec<Alert>) {
        self.roll(now_ms);
        for window in &mut self.windows {
            window.spent = window.spent.saturating_add(amount);
        }
        self.tell(holder, now_ms, alerts);
    }

    /// Tells of the bounds that are reached and were not told of.
    fn tell(&mut self, holder: &Holder, now_ms: u64, alerts: &mut Vec<Alert>) {
        let budget = self.budget;
        for (window, limit) in self.windows.iter_mut().zip(budget.limits()) {
            let Some(limit) = limit else { continue };
            alerts.extend(window.tell(holder, budget.bound(window.spent, limit), limit, now_ms));
        }
    }

    /// As [`Budgets::go_on_from`].
    fn go_on_from(&mut self, old: Self, now_ms: u64) {
        let limits = self.budget.limits().into_iter().zip(old.budget.limits());
        for ((window, before), (limit, limit_before)) in self.windows.iter_mut().zip(old.windows).zip(limits) {
            if window.name > before.name || before.is_far_ahead(now_ms) {
                continue;
            }
            let same = window.name == before.name;
            window.spent = if same { window.spent.max(before.spent) } else { before.spent };
            window.name = before.name;
            // What was told of another limit says nothing of this one.
            window.told = before.told.filter(|_| limit == limit_before);
        }
    }

    /// Begins new windows where the old ones are over. A clock that goes back begins none: a window that had ended
    /// would give its money twice. Where it had gone far ahead, what was spent then is of now: those windows would never end.
    fn roll(&mut self, now_ms: u64) {
        for (window, name) in self.windows.iter_mut().zip([day(now_ms), month(now_ms)]) {
            if name > window.name {
                *window = Window { name, ..Window::default() };
            } else if window.is_far_ahead(now_ms) {
                window.name = name;
            }
        }
    }
}

impl Window {
    /// Whether it begins more than a window after this moment, as no step of a clock that is set right does.
    fn is_far_ahead(&self, now_ms: u64) -> bool {
        let ahead = |days: u64| now_ms.saturating_add(days * DAY_S * 1000);
        // Names of days are longer.
        let next = if self.name.len() > "2026-11".len() { day(ahead(1)) } else { month(ahead(31)) };
        self.name > next
    }
}

#[cfg(test)]
mod tests;
