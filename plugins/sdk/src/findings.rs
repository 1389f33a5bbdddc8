//! What a guard reports of one call, within the host's cap: what does not fit is counted, not dropped.

use crate::types::Finding;

/// The host takes this many findings of one call.
pub const MAX_FINDINGS: usize = 256;

/// Findings of one call.
#[derive(Debug, Default)]
pub struct Findings {
    list: Vec<Finding>,
    more: usize,
}

impl Findings {
    /// Adds a finding; behind the cap it is counted only.
    pub fn push(&mut self, finding: Finding) {
        if self.list.len() < MAX_FINDINGS {
            self.list.push(finding);
        } else {
            self.more += 1;
        }
    }

    /// How many there were, those that were only counted included.
    pub fn count(&self) -> usize {
        self.list.len() + self.more
    }

    /// The list. Where some did not fit, the last one says how many in its attribute `more`.
    pub fn into_list(mut self) -> Vec<Finding> {
        if let Some(last) = self.list.last_mut().filter(|_| self.more > 0) {
            last.attrs.push(("more".into(), self.more.to_string()));
        }
        self.list
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::Severity;

    #[test]
    fn what_is_above_the_cap_is_counted() {
        let mut findings = Findings::default();
        (0..300).for_each(|_| findings.push(Finding::new("pii:email", Severity::Medium)));
        assert_eq!(findings.count(), 300);
        let list = findings.into_list();
        assert_eq!(list.len(), MAX_FINDINGS);
        assert_eq!(list[MAX_FINDINGS - 1].attrs, [("more".to_owned(), "44".to_owned())]);
    }
}
