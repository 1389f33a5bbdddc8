//! All that is wrong with a config, each of it once. Whoever looks at a part says where that is, and what else it is about: of what
//! could not be read, and of what hangs on it, nothing is said that would only follow from that.

use anyhow::bail;

/// Where something of a config is, as `server`, `pipeline.stage 2` or `tenants.acme.limits`, is said to be wrong with it.
#[derive(Debug, Default)]
pub(crate) struct Wrong {
    found: Vec<anyhow::Error>,
    /// Where that is.
    places: Vec<String>,
    /// How many of these keep others from looking.
    num_settled: usize,
}

impl Wrong {
    /// Looks at what is at `place`, unless something is wrong there already; nor where something that it only names, as a model, is in
    /// what could not be read (`named`). What is found meanwhile keeps nobody from looking until it is settled.
    pub(crate) fn look<T>(
        &mut self,
        place: &str,
        named: &[&str],
        look: impl FnOnce() -> anyhow::Result<T>,
    ) -> Option<T> {
        let is_known = self.is_sound(place) && named.iter().all(|place| self.is_read(place));
        is_known.then(look)?.map_err(|why| self.add(place, why)).ok()
    }

    /// The same of several things that have nothing to do with each other.
    pub(crate) fn look_at_each(&mut self, place: &str, named: &[&str], look: impl FnOnce() -> Vec<anyhow::Result<()>>) {
        let looked = self.look(place, named, || Ok(look()));
        looked.into_iter().flatten().filter_map(Result::err).for_each(|why| self.add(place, why));
    }

    pub(crate) fn add(&mut self, place: &str, why: anyhow::Error) {
        self.tell(why);
        self.shut(place);
    }

    pub(super) fn tell(&mut self, why: anyhow::Error) {
        self.found.push(why);
    }

    /// Nothing is to be said of a place.
    pub(super) fn shut(&mut self, place: &str) {
        self.places.push(place.to_owned());
    }

    /// From here on nobody looks where something is wrong by now.
    pub(crate) fn settle(&mut self) {
        self.num_settled = self.places.len();
    }

    /// Whether nothing is wrong at a place, in it, or in what it is in.
    pub(crate) fn is_sound(&self, place: &str) -> bool {
        !self.settled().any(|wrong| is_within(place, wrong) || is_within(wrong, place))
    }

    /// Whether it is not in what could not be read; in it something may be wrong.
    fn is_read(&self, place: &str) -> bool {
        !self.settled().any(|wrong| is_within(place, wrong))
    }

    fn settled(&self) -> impl Iterator<Item = &String> {
        self.places.iter().take(self.num_settled)
    }

    /// An error that has all that is wrong, where something is.
    pub(crate) fn none(mut self) -> anyhow::Result<()> {
        if self.found.len() < 2 {
            return self.found.pop().map_or(Ok(()), Err);
        }
        let lines: String = self.found.iter().map(|why| format!("\n- {why:#}")).collect();
        bail!("{} things are wrong:{lines}", self.found.len())
    }
}

/// The place of an entry of a list, which people count from 1.
pub(crate) fn entry(list: &str, i: usize) -> String {
    format!("{list} {}", i + 1)
}

fn is_within(place: &str, whole: &str) -> bool {
    place.strip_prefix(whole).is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', ' ']))
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::anyhow;

    /// Whether somebody looks at a place, and at one where that is named only.
    fn looks(wrong: &Wrong, place: &str) -> (bool, bool) {
        (wrong.is_sound(place), wrong.is_read(place))
    }

    #[test]
    fn nobody_looks_at_what_could_not_be_read_or_at_what_is_in_it() {
        let mut wrong = Wrong::default();
        wrong.add("pipeline.stage 2.grants", anyhow!("a"));
        wrong.shut("keys");
        assert_eq!(looks(&wrong, "keys"), (true, true), "it is not settled");
        wrong.settle();
        for (place, expected) in [
            ("keys", (false, false)),
            ("keys 3", (false, false)),
            ("keyring", (true, true)),
            ("pipeline.stage 2.grants.http", (false, false)),
            ("pipeline.stage 2", (false, true)),
            ("pipeline.stage", (false, true)),
            ("pipeline.stage 1", (true, true)),
            ("pipeline.stage 20", (true, true)),
            ("pipeline.default", (true, true)),
        ] {
            assert_eq!(looks(&wrong, place), expected, "{place}");
        }
    }

    #[test]
    fn one_fault_is_told_as_it_is_and_of_several_each_has_a_line() {
        let wrong = |faults: &[&'static str]| {
            let mut wrong = Wrong::default();
            wrong.look_at_each("server", &[], || faults.iter().map(|fault| Err(anyhow!(*fault))).collect());
            wrong.none().map_err(|why| why.to_string())
        };
        assert_eq!(wrong(&[]), Ok(()));
        assert_eq!(wrong(&["a"]), Err("a".into()));
        assert_eq!(wrong(&["a", "b"]), Err("2 things are wrong:\n- a\n- b".into()));
    }
}
