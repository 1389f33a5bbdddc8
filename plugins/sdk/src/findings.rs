//! What a guard reports of one call, within the host's cap. Of what does not fit, the worst and what is new of its kind takes the
//! place of what is there more than once; of the rest the log has the number.

use crate::host::log;
use crate::types::Finding;

/// The host takes this many findings of one call.
pub const MAX_FINDINGS: usize = 256;

/// Findings of one call.
#[derive(Debug, Default)]
pub struct Findings {
    list: Vec<Finding>,
    more: usize,
    /// No category is there more than once, and none ever will be again: for a new one none is given up.
    all_differ: bool,
}

impl Findings {
    /// Adds a finding. Behind the cap it takes another one's place, if its category is new or it is worse than all of its
    /// category; else it is counted only.
    pub fn push(&mut self, finding: Finding) {
        if self.list.len() < MAX_FINDINGS {
            return self.list.push(finding);
        }
        self.more += 1;
        if let Some(place) = self.place_for(&finding) {
            self.list[place] = finding;
        }
    }

    /// How many there were, those that were only counted included.
    pub fn count(&self) -> usize {
        self.list.len() + self.more
    }

    /// The list. How many did not fit is a line of the log: the host keeps no attributes of findings.
    pub fn into_list(self) -> Vec<Finding> {
        if self.more > 0 {
            log::warn(&format!("{} findings of this call are not reported: {MAX_FINDINGS} are the most", self.more));
        }
        self.list
    }

    fn place_for(&mut self, new: &Finding) -> Option<usize> {
        let is_like = |finding: &Finding| finding.category == new.category;
        if let Some(last) = self.list.iter().rposition(is_like) {
            let is_told = self.list.iter().any(|finding| is_like(finding) && finding.severity >= new.severity);
            return (!is_told).then_some(last);
        }
        self.spare().or_else(|| self.mildest().filter(|place| self.list[*place].severity < new.severity))
    }

    /// The last one beside which there is another of its category, no less severe.
    fn spare(&mut self) -> Option<usize> {
        if self.all_differ {
            return None;
        }
        let says_the_same = |at: usize, other: &Finding| {
            other.category == self.list[at].category && other.severity >= self.list[at].severity
        };
        let is_spare = |at: &usize| (0..self.list.len()).any(|o| o != *at && says_the_same(*at, &self.list[o]));
        let spare = (0..self.list.len()).rev().find(is_spare);
        self.all_differ = spare.is_none();
        spare
    }

    fn mildest(&self) -> Option<usize> {
        (0..self.list.len()).rev().min_by_key(|at| self.list[*at].severity)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::fake;
    use crate::types::Severity::{self, Critical, High, Info, Low, Medium};

    /// What is left of findings, each category and severity with how often it is there.
    fn left(all: impl IntoIterator<Item = (String, Severity)>) -> Vec<(String, Severity, usize)> {
        let mut findings = Findings::default();
        all.into_iter().for_each(|(category, severity)| findings.push(Finding::new(category, severity)));
        let mut left: Vec<(String, Severity, usize)> = Vec::new();
        for finding in findings.into_list() {
            match left
                .iter_mut()
                .find(|(category, severity, _)| (&finding.category, finding.severity) == (category, *severity))
            {
                Some((_, _, count)) => *count += 1,
                None => left.push((finding.category, finding.severity, 1)),
            }
        }
        left
    }

    fn many(category: &str, severity: Severity, count: usize) -> impl Iterator<Item = (String, Severity)> {
        std::iter::repeat_n((category.to_owned(), severity), count)
    }

    #[test]
    fn what_is_above_the_cap_is_counted_and_logged() {
        fake::take_log();
        let mut findings = Findings::default();
        (0..300).for_each(|_| findings.push(Finding::new("pii:email", Medium)));
        assert_eq!(findings.count(), 300);
        assert_eq!(findings.into_list().len(), MAX_FINDINGS);
        let lines: Vec<String> = fake::take_log().into_iter().map(|(_, line)| line).collect();
        assert_eq!(lines, ["44 findings of this call are not reported: 256 are the most"]);
        assert_eq!(left(many("a", Low, MAX_FINDINGS)), [("a".into(), Low, 256)]);
        assert!(fake::take_log().is_empty(), "all fit");
    }

    #[test]
    fn what_is_new_or_worse_is_told_though_it_comes_late() {
        let all =
            many("a", Low, 300).chain(many("b", Info, 300)).chain(many("a", High, 2)).chain(many("c", Critical, 1));
        let expected = [("a", Low, 253), ("c", Critical, 1), ("a", High, 1), ("b", Info, 1)];
        assert_eq!(left(all), expected.map(|(category, severity, count)| (category.to_owned(), severity, count)));
    }

    #[test]
    fn of_findings_that_all_differ_the_mildest_goes_for_a_worse_one() {
        let differ = || (0..300).map(|n| (format!("c{n}"), if n == 7 { Info } else { Low }));
        let all = left(differ().chain(many("d", Low, 1)).chain(many("e", Medium, 1)));
        let has = |category: &str| all.iter().any(|(c, _, _)| c == category);
        assert_eq!(all.len(), MAX_FINDINGS);
        assert!(has("c0") && has("e") && !has("d") && !has("c7"), "{all:?}");
    }
}
