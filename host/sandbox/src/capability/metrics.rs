//! `metrics`: a guest's counters and observations, as `tidegate_plugin_events_total` and `tidegate_plugin_values` with
//! the labels plugin, tenant and name. Names are those that the descriptor declares, so their number is bounded; the
//! guest sets no labels. An observation is kept until the recorder adds it to its buckets, so a call has a number of them.

use crate::bindings::tidegate::plugin::metrics::Host;
use crate::state::HostState;
use metrics::{Counter, Histogram};
use parking_lot::Mutex;
use std::collections::{BTreeSet, HashMap};
use tidegate_types::TenantId;

/// What is counted at once: a sum that is full would never move again.
const MAX_DELTA: u64 = u32::MAX as u64;
/// Observations of one call.
const MAX_OBSERVATIONS: u32 = 256;
/// Tenants whose handles an instance keeps while it serves another; those of more are made again.
const MAX_TENANTS: usize = 64;
/// Names that are not declared of which an instance has a line in the log, one for each, and a test is told.
const MAX_UNDECLARED: usize = 16;

/// What one instance counts by.
#[derive(Default)]
pub(crate) struct Meters {
    handles: Handles,
    /// Of tenants that share the instance and do not call now.
    others: HashMap<TenantId, Handles>,
    /// In the call that is under way, also those past the bound.
    observed: u32,
    /// Names that are not declared, of which the log has a line.
    undeclared: Vec<String>,
}

/// The handles of one tenant, made at first use; at most one of each per declared name.
#[derive(Default)]
struct Handles {
    counters: HashMap<String, Counter>,
    histograms: HashMap<String, Histogram>,
}

impl Meters {
    /// After calls of `last` come those of `next`.
    pub(crate) fn change(&mut self, last: TenantId, next: &TenantId) {
        let theirs = self.others.remove(next).unwrap_or_default();
        let left = std::mem::replace(&mut self.handles, theirs);
        if left.counters.is_empty() && left.histograms.is_empty() {
            return;
        }
        if self.others.len() >= MAX_TENANTS {
            self.others.clear();
        }
        self.others.insert(last, left);
    }

    /// Whether the log is to have a line of a name that is not declared. A guard may count with each word of an answer.
    fn is_news(&mut self, name: &str) -> bool {
        let is_news = self.undeclared.len() < MAX_UNDECLARED && !self.undeclared.iter().any(|known| known == name);
        if is_news {
            self.undeclared.push(name.to_owned());
        }
        is_news
    }
}

/// What a plugin under test counts by names that it does not declare: its author is told of each case in which it does, and not
/// only of the first, as a log is.
#[derive(Default)]
pub(crate) struct Undeclared(Mutex<BTreeSet<String>>);

impl Undeclared {
    fn note(&self, name: &str) {
        let mut names = self.0.lock();
        if names.len() < MAX_UNDECLARED {
            names.insert(name.to_owned());
        }
    }

    /// The names since this was asked last.
    pub(crate) fn take(&self) -> BTreeSet<String> {
        std::mem::take(&mut *self.0.lock())
    }
}

impl Host for HostState {
    fn count(&mut self, name: String, delta: u64) -> wasmtime::Result<()> {
        self.meter.act()?;
        self.use_capability("metrics.count");
        if delta > MAX_DELTA {
            self.complain(&format!("{delta} is counted at once, which is more than {MAX_DELTA}"));
            return Ok(());
        }
        if let Some(counter) = self.meters.handles.counters.get(&name) {
            counter.increment(delta);
        } else if self.may_meter(&name) {
            let counter = metrics::counter!("tidegate_plugin_events_total", &self.labels(&name));
            counter.increment(delta);
            self.meters.handles.counters.insert(name, counter);
        }
        Ok(())
    }

    fn observe(&mut self, name: String, value: f64) -> wasmtime::Result<()> {
        self.meter.act()?;
        self.use_capability("metrics.observe");
        if !value.is_finite() {
            self.complain(&format!("an observation is {value}, which no histogram has a place for"));
            return Ok(());
        }
        self.meters.observed = self.meters.observed.saturating_add(1);
        if self.meters.observed > MAX_OBSERVATIONS {
            return Ok(());
        }
        if let Some(histogram) = self.meters.handles.histograms.get(&name) {
            histogram.record(value);
        } else if self.may_meter(&name) {
            let histogram = metrics::histogram!("tidegate_plugin_values", &self.labels(&name));
            histogram.record(value);
            self.meters.handles.histograms.insert(name, histogram);
        }
        Ok(())
    }
}

impl HostState {
    fn may_meter(&mut self, name: &str) -> bool {
        if self.is_describing() {
            return false;
        }
        let declared = self.blueprint.metrics.iter().any(|m| m == name);
        if !declared {
            self.leave_out(&name.chars().take(64).collect::<String>());
        }
        declared
    }

    /// Says that a name is not declared.
    fn leave_out(&mut self, name: &str) {
        if let Some(undeclared) = &self.blueprint.undeclared {
            undeclared.note(name);
        }
        if self.meters.is_news(name) {
            self.complain(&format!("metric `{}` is not declared in the descriptor", name.escape_debug()));
        }
    }

    /// Ends a call: says how many observations were too many.
    pub(crate) fn settle_meters(&mut self) {
        let observed = std::mem::take(&mut self.meters.observed);
        if let Some(dropped @ 1..) = observed.checked_sub(MAX_OBSERVATIONS) {
            self.complain(&format!("{dropped} observations are over the {MAX_OBSERVATIONS} of one call"));
        }
    }

    fn labels(&self, name: &str) -> [(&'static str, String); 3] {
        [
            ("plugin", self.blueprint.name.to_string()),
            // Who calls, as in a line of the log, also where tenants share the instance. Projects come and go without a bound, and
            // series stay: those of a tenant are counted together.
            ("tenant", self.tenant.as_str().to_owned()),
            ("name", name.to_owned()),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_instance_says_once_of_a_name_that_it_is_not_declared() {
        let mut meters = Meters::default();
        assert_eq!(["a", "b", "a", "b"].map(|name| meters.is_news(name)), [true, true, false, false]);
        let more = (0..100).filter(|n| meters.is_news(&n.to_string())).count();
        assert_eq!(more, MAX_UNDECLARED - 2);
    }

    #[test]
    fn more_than_a_counter_has_room_for_is_not_counted() {
        let plugin = crate::plugin::tests::load(1, crate::sandbox::Snapshot::Never).unwrap();
        let mut state = crate::plugin::tests::state_of(&plugin);
        let names = |state: &HostState| state.meters.undeclared.clone();
        state.count("a".into(), MAX_DELTA + 1).unwrap();
        assert!(names(&state).is_empty(), "it is not even looked up");
        state.count("a".into(), MAX_DELTA).unwrap();
        assert_eq!(names(&state), ["a"]);
    }

    #[test]
    fn handles_are_kept_for_so_many_tenants_that_share_an_instance() {
        let of = |n: usize| TenantId::new(n.to_string());
        let mut meters = Meters::default();
        for n in 0..200 {
            meters.handles.counters.insert("told".into(), Counter::noop());
            meters.change(of(n), &of(n + 1));
            assert!(meters.handles.counters.is_empty() && meters.others.len() <= MAX_TENANTS);
        }
        meters.change(of(200), &of(199));
        assert_eq!(meters.handles.counters.len(), 1, "those of the last one are there");
        assert!(!meters.others.contains_key(&of(200)), "it has none");
    }
}
