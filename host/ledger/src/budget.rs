//! Budgets in money: of a tenant, a project or a key, for a day and a month in UTC. A pure state machine: time is passed in.
//!
//! What a generation may cost at most is reserved before it begins and given back when it has ended, so that requests
//! that run beside each other cannot spend the same money twice.

use crate::entry::Alert;
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
    /// The highest bound that was told of: 1 is soft, 2 is hard.
    told: u8,
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
        let window = |name: String, spent| Window { name, spent, told: 0 };
        let mut windows = [window(day(now_ms), spent.day), window(month(now_ms), spent.month)];
        // What had been reached before was told of before.
        for (window, limit) in windows.iter_mut().zip(budget.limits()) {
            window.told = limit.map_or(0, |limit| budget.bound(window.spent, limit));
        }
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
    /// What these budgets were read from may not know of the last generations yet.
    pub(crate) fn go_on_from(&mut self, before: Self) {
        (self.reserved, self.elsewhere) = (before.reserved, before.elsewhere);
        for (holder, old) in before.accounts {
            let Some(account) = self.accounts.get_mut(&holder) else { continue };
            let limits = account.budget.limits();
            for ((window, old), limit) in account.windows.iter_mut().zip(old.windows).zip(limits) {
                if window.name <= old.name {
                    window.spent = if window.name == old.name { window.spent.max(old.spent) } else { old.spent };
                    window.name = old.name;
                    window.told = limit.map_or(0, |limit| account.budget.bound(window.spent, limit));
                }
            }
        }
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

    /// 0, or 1 for the soft bound, or 2 for the hard one.
    fn bound(&self, spent: u64, limit: u64) -> u8 {
        let soft = u128::from(limit) * u128::from(self.soft_percent) / 100;
        if spent >= limit {
            2
        } else if self.soft_percent > 0 && u128::from(spent) >= soft {
            1
        } else {
            0
        }
    }
}

impl Account {
    fn allows(&mut self, holder: &Holder, reserved: u64, amount: u64, now_ms: u64) -> Result<(), Exceeded> {
        self.roll(now_ms);
        let ends = [("day", day_end_s(now_ms)), ("month", month_end_s(now_ms))];
        for ((window, limit), (name, resets_s)) in self.windows.iter().zip(self.budget.limits()).zip(ends) {
            let Some(limit) = limit else { continue };
            let spent = window.spent.saturating_add(reserved);
            if spent.saturating_add(amount) > limit {
                let (scope, holder) = (holder.0, holder.1.clone());
                return Err(Exceeded { scope, name: holder, window: name, limit, spent, resets_s });
            }
        }
        Ok(())
    }

    fn spend(&mut self, holder: &Holder, amount: u64, now_ms: u64, alerts: &mut Vec<Alert>) {
        self.roll(now_ms);
        for (window, limit) in self.windows.iter_mut().zip(self.budget.limits()) {
            window.spent = window.spent.saturating_add(amount);
            let Some(limit) = limit else { continue };
            let bound = self.budget.bound(window.spent, limit);
            if bound > window.told {
                window.told = bound;
                let word = if bound == 2 { "hard" } else { "soft" };
                alerts.push(Alert {
                    id: format!("{}:{}:{}:{word}", holder.0, holder.1, window.name),
                    scope: holder.0.into(),
                    name: holder.1.clone(),
                    window: window.name.clone(),
                    bound: word.into(),
                    spent: window.spent,
                    limit,
                    at_ms: now_ms,
                });
            }
        }
    }

    /// Begins new windows where the old ones are over. A clock that goes back begins none: a window that had ended
    /// would give its money twice.
    fn roll(&mut self, now_ms: u64) {
        for (window, name) in self.windows.iter_mut().zip([day(now_ms), month(now_ms)]) {
            if name > window.name {
                *window = Window { name, ..Window::default() };
            }
        }
    }
}

const DAY_S: u64 = 86_400;

/// The day of a moment, in UTC: `2026-11-21`.
pub fn day_of(unix_s: u64) -> String {
    day(unix_s.saturating_mul(1000))
}

/// `2026-11-21`.
fn day(now_ms: u64) -> String {
    let (year, month, day) = civil(now_ms / 1000 / DAY_S);
    format!("{year:04}-{month:02}-{day:02}")
}

/// `2026-11`.
fn month(now_ms: u64) -> String {
    let (year, month, _) = civil(now_ms / 1000 / DAY_S);
    format!("{year:04}-{month:02}")
}

fn day_end_s(now_ms: u64) -> u64 {
    DAY_S - now_ms / 1000 % DAY_S
}

fn month_end_s(now_ms: u64) -> u64 {
    let today = now_ms / 1000 / DAY_S;
    let this = civil(today).1;
    let days = (1..=31).find(|ahead| civil(today + ahead).1 != this).unwrap_or(31);
    (days - 1) * DAY_S + day_end_s(now_ms)
}

/// Year, month and day of the day that is so many days after 1970-01-01
/// (<https://howardhinnant.github.io/date_algorithms.html#civil_from_days>).
fn civil(days: u64) -> (u64, u64, u64) {
    let shifted = days + 719_468;
    let (era, of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
    (year_of_era + era * 400 + u64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 2026-11-21 12:00:00 UTC.
    const NOON: u64 = 1_795_262_400_000;

    fn payer<'a>(tenant: &'a str, key: &'a str) -> Payer<'a> {
        Payer { tenant, project: None, key }
    }

    fn budgets(daily: u64, monthly: u64) -> Budgets {
        let mut budgets = Budgets::default();
        let budget = Budget { daily: Some(daily), monthly: Some(monthly), soft_percent: 80 };
        budgets.of_tenant("t", budget, Spent::default(), NOON);
        budgets
    }

    #[test]
    fn days_and_months_are_those_of_the_calendar() {
        assert_eq!((day(NOON), month(NOON)), ("2026-11-21".into(), "2026-11".into()));
        assert_eq!(day(0), "1970-01-01");
        assert_eq!(day(951_782_400_000), "2000-02-29");
        assert_eq!(day_end_s(NOON), DAY_S / 2);
        let (today, first) = Budgets::window_starts_ms(NOON);
        assert_eq!((day(today), day(first), NOON - today), ("2026-11-21".into(), "2026-11-01".into(), DAY_S * 500));
        assert_eq!(month_end_s(NOON), 9 * DAY_S + DAY_S / 2);
    }

    #[test]
    fn what_runs_beside_each_other_cannot_spend_the_same_money() {
        let mut budgets = budgets(100, 1000);
        budgets.reserve(&payer("t", "k"), 60, NOON).unwrap();
        let refused = budgets.reserve(&payer("t", "k"), 60, NOON).unwrap_err();
        assert_eq!((refused.window, refused.limit, refused.spent, refused.resets_s), ("day", 100, 60, DAY_S / 2));
        assert!(budgets.settle(&payer("t", "k"), 60, 10, NOON).is_empty());
        budgets.reserve(&payer("t", "k"), 90, NOON).unwrap();
        assert!(budgets.reserve(&payer("other", "k"), u64::MAX, NOON).is_ok(), "who has no budget has no bound");
    }

    #[test]
    fn a_projects_budget_is_beside_its_tenants() {
        let mut budgets = budgets(100, 1000);
        let budget = Budget { daily: Some(30), monthly: None, soft_percent: 0 };
        budgets.of_project("proj_p", budget, Spent::default(), NOON);
        let of = |project| Payer { tenant: "t", project, key: "k" };
        budgets.reserve(&of(Some("proj_p")), 30, NOON).unwrap();
        let refused = budgets.reserve(&of(Some("proj_p")), 1, NOON).unwrap_err();
        assert_eq!((refused.scope, &*refused.name, refused.spent), ("project", "proj_p", 30));
        budgets.reserve(&of(Some("proj_other")), 70, NOON).unwrap();
        assert_eq!(budgets.reserve(&of(None), 1, NOON).unwrap_err().scope, "tenant");
        let alerts = budgets.settle(&of(Some("proj_p")), 30, 30, NOON);
        assert_eq!(alerts.iter().map(|alert| &*alert.id).collect::<Vec<_>>(), ["project:proj_p:2026-11-21:hard"]);
    }

    #[test]
    fn a_bound_is_told_of_once_in_its_window_and_a_new_day_begins_at_zero() {
        let mut budgets = budgets(100, 1000);
        let bounds = |alerts: Vec<Alert>| alerts.into_iter().map(|alert| alert.id).collect::<Vec<_>>();
        assert_eq!(bounds(budgets.settle(&payer("t", "k"), 0, 80, NOON)), ["tenant:t:2026-11-21:soft"]);
        assert!(bounds(budgets.settle(&payer("t", "k"), 0, 10, NOON)).is_empty());
        assert_eq!(bounds(budgets.settle(&payer("t", "k"), 0, 10, NOON)), ["tenant:t:2026-11-21:hard"]);
        assert!(budgets.reserve(&payer("t", "k"), 1, NOON).is_err());
        let tomorrow = NOON + DAY_S * 1000;
        budgets.reserve(&payer("t", "k"), 100, tomorrow).unwrap();
        budgets.settle(&payer("t", "k"), 100, 0, tomorrow);
        assert!(budgets.reserve(&payer("t", "k"), 1, NOON).is_ok(), "yesterday's clock counts as today's");
        assert!(budgets.reserve(&payer("t", "k"), 100, NOON).is_err(), "and does not begin a day anew");
    }

    #[test]
    fn other_budgets_go_on_with_what_runs_and_what_was_spent() {
        let mut before = budgets(100, 1000);
        before.reserve(&payer("t", "k"), 60, NOON).unwrap();
        before.settle(&payer("t", "k"), 0, 30, NOON);
        let mut after = Budgets::default();
        let budget = Budget { daily: Some(100), monthly: None, soft_percent: 80 };
        // The database knows of less for the tenant than was spent, and the key had no budget until now.
        after.of_tenant("t", budget, Spent { day: 10, month: 10 }, NOON);
        after.of_key("k", budget, Spent::default(), NOON);
        after.go_on_from(before);
        assert_eq!(after.reserve(&payer("t", "k"), 11, NOON).unwrap_err().spent, 90);
        after.reserve(&payer("t", "k"), 10, NOON).unwrap();
        assert_eq!(after.reserve(&payer("other", "k"), 31, NOON).unwrap_err().spent, 70);
        assert_eq!(after.settle(&payer("t", "k"), 60, 50, NOON).len(), 1, "80 of 100 is the soft bound");
        after.settle(&payer("t", "k"), 10, 0, NOON);
        assert!(after.reserved.is_empty());
        // What others have spent is only in the database.
        let mut later = Budgets::default();
        later.of_tenant("t", budget, Spent { day: 95, month: 95 }, NOON);
        later.go_on_from(after);
        assert!(later.reserve(&payer("t", "k"), 6, NOON).is_err());
    }

    #[test]
    fn what_others_have_set_aside_is_set_aside() {
        let (mut here, mut there) = (budgets(100, 1000), budgets(100, 1000));
        here.reserve(&payer("t", "k"), 70, NOON).unwrap();
        there.set_aside_elsewhere(&here.set_aside());
        assert_eq!(there.reserve(&payer("t", "k"), 31, NOON).unwrap_err().spent, 70);
        assert_eq!(here.set_aside().len(), 1, "only what is bounded");
        here.settle(&payer("t", "k"), 70, 0, NOON);
        there.set_aside_elsewhere(&here.set_aside());
        there.reserve(&payer("t", "k"), 100, NOON).unwrap();
    }

    #[test]
    fn what_was_spent_before_counts_and_is_not_told_of_again() {
        let mut budgets = Budgets::default();
        let budget = Budget { daily: None, monthly: Some(100), soft_percent: 80 };
        budgets.of_key("k", budget, Spent { day: 0, month: 95 }, NOON);
        assert_eq!(budgets.reserve(&payer("t", "k"), 6, NOON).unwrap_err().window, "month");
        assert!(budgets.settle(&payer("t", "k"), 0, 1, NOON).is_empty());
    }
}
