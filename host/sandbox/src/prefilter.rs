//! What a stream guard lets through whatever its config: the host then decides such text in its place and spares the call.

use crate::descriptor::wrong;
use crate::error::LoadCause;
use serde_json::Value;

/// Text that is nothing but short runs of some characters, each ended by one of others; the last run may be open. Some more
/// characters may stand in a run where one of the former follows at once. A stream guard that declares it promises that it
/// would let such text through up to and with the last end, without findings, and remember nothing.
#[derive(Clone, PartialEq)]
pub struct Prefilter {
    classes: [Class; 128],
    run_bytes: usize,
}

#[derive(Clone, Copy, PartialEq)]
enum Class {
    /// Part of a run.
    Within,
    /// The same where [`Self::Within`] follows.
    Joins,
    /// Ends a run.
    Ends,
    /// The guard looks.
    Other,
}

impl Prefilter {
    /// Bytes of `text` that may leave, where it is of this kind; `None` where the guard has to look.
    pub fn through(&self, text: &str) -> Option<usize> {
        let (mut through, mut run, mut joins) = (0, 0, false);
        for (at, byte) in text.bytes().enumerate() {
            match self.classes.get(usize::from(byte)) {
                Some(Class::Within) if run < self.run_bytes => (run, joins) = (run + 1, false),
                Some(Class::Joins) if run < self.run_bytes && !joins => (run, joins) = (run + 1, true),
                Some(Class::Ends) if !joins => (through, run) = (at + 1, 0),
                _ => return None,
            }
        }
        Some(through)
    }

    /// What runs are made of, in the order of ASCII.
    pub fn within(&self) -> String {
        self.of(Class::Within)
    }

    /// What may stand in them before one of those, in the order of ASCII. Often nothing.
    pub fn joins(&self) -> String {
        self.of(Class::Joins)
    }

    /// What ends them, in the order of ASCII.
    pub fn ends(&self) -> String {
        self.of(Class::Ends)
    }

    /// Bytes of the longest run, which waits for its end.
    pub fn run_bytes(&self) -> usize {
        self.run_bytes
    }

    fn of(&self, class: Class) -> String {
        self.classes.iter().zip('\0'..).filter(|(of, _)| **of == class).map(|(_, character)| character).collect()
    }

    /// Runs of at most `run_bytes` of the characters `within`, and of `joins` before one of those, each ended by one of `ends`.
    ///
    /// # Errors
    /// Which of the four is wrong, by its key in a descriptor, and why.
    pub fn new(
        within: &str,
        joins: Option<&str>,
        ends: &str,
        run_bytes: usize,
    ) -> Result<Self, (&'static str, String)> {
        let mut classes = [Class::Other; 128];
        let lists = [
            ("within", Some(within), Class::Within),
            ("joins", joins, Class::Joins),
            ("ends", Some(ends), Class::Ends),
        ];
        for (key, characters, class) in lists {
            if characters == Some("") {
                return Err((key, "it has no character".into()));
            }
            for character in characters.unwrap_or_default().chars() {
                let place = classes.get_mut(character as usize);
                let place = place.ok_or_else(|| (key, format!("{character:?} is not ASCII")))?;
                match lists.iter().find(|(.., taken)| taken == place) {
                    None => *place = class,
                    Some((other, ..)) if *other == key => {
                        return Err((key, format!("{character:?} is twice in it; each character is listed once")));
                    }
                    Some((other, ..)) => return Err((key, format!("{character:?} is in `{other}` too"))),
                }
            }
        }
        if run_bytes == 0 {
            return Err(("run-bytes", "it is 0".into()));
        }
        Ok(Self { classes, run_bytes })
    }

    pub(crate) const KEYS: [&str; 4] = ["within", "joins", "ends", "run-bytes"];

    /// Of `stream.prefilter` in a descriptor whose guard withholds at most `holdback_bytes`. `None` where it has keys that
    /// this host does not know: they may take back some of the promise.
    pub(crate) fn parse(said: &Value, holdback_bytes: Option<u32>) -> Result<Option<Self>, LoadCause> {
        let at = |key: &str, problem: String| wrong(&format!("stream.prefilter.{key}"), problem);
        let said = said.as_object().ok_or_else(|| wrong("stream.prefilter", "it is not an object"))?;
        let get = |key: &str| said.get(key).ok_or_else(|| at(key, "it is missing".into()));
        let text = |key: &str| get(key)?.as_str().ok_or_else(|| at(key, "it is not a string".into()));
        let joins = said.get("joins").map(|_| text("joins")).transpose()?;
        let run_bytes = get("run-bytes")?.as_u64().and_then(|bytes| u32::try_from(bytes).ok());
        let run_bytes = run_bytes.ok_or_else(|| at("run-bytes", "it is not a number of bytes".into()))?;
        let prefilter = Self::new(text("within")?, joins, text("ends")?, run_bytes as usize);
        let prefilter = prefilter.map_err(|(key, problem)| at(key, problem))?;
        let waits = format!("a run of {run_bytes} bytes waits for its end");
        match holdback_bytes {
            None => Err(wrong("stream.holdback-bytes", format!("it is missing, and {waits}"))),
            Some(most) if run_bytes > most => {
                Err(at("run-bytes", format!("{waits}, which is more than `stream.holdback-bytes`, {most}")))
            }
            Some(_) if said.keys().any(|key| !Self::KEYS.contains(&key.as_str())) => Ok(None),
            Some(_) => Ok(Some(prefilter)),
        }
    }
}

impl std::fmt::Debug for Prefilter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Prefilter")
            .field("within", &self.within())
            .field("joins", &self.joins())
            .field("ends", &self.ends())
            .field("run_bytes", &self.run_bytes)
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn short_runs_leave_up_to_the_last_end() {
        let prefilter = Prefilter::new("abc", None, " ,", 3).unwrap();
        for (text, through) in [
            ("", Some(0)),
            ("abc", Some(0)),
            ("ab ", Some(3)),
            ("ab ,, ca", Some(6)),
            (" abc abc abc", Some(9)),
            ("abca", None),
            ("ab abca ", None),
            ("ab 1", None),
            ("ab d ", None),
            ("ab é ", None),
            ("ab \u{0} ", None),
        ] {
            assert_eq!(prefilter.through(text), through, "{text:?}");
        }
        assert_eq!((prefilter.within(), prefilter.ends(), prefilter.run_bytes()), ("abc".into(), " ,".into(), 3));
        assert_eq!(prefilter.joins(), "");
    }

    #[test]
    fn what_joins_stands_before_what_runs_are_made_of() {
        let prefilter = Prefilter::new("abc", Some("-("), " ,", 4).unwrap();
        for (text, through) in [
            ("a-b ", Some(4)),
            ("a, (b ", Some(6)),
            ("a -b-c ", Some(7)),
            ("c a-", Some(2)),
            ("c -", Some(2)),
            ("a- ", None),
            ("a--b ", None),
            ("a(-b ", None),
            ("c (, ", None),
            ("a-1", None),
            ("ab-c ", Some(5)),
            ("ab-cc ", None),
            ("abcc-", None),
        ] {
            assert_eq!(prefilter.through(text), through, "{text:?}");
        }
        assert_eq!((prefilter.joins(), prefilter.within()), ("(-".into(), "abc".into()));
    }

    #[test]
    fn what_is_wrong_is_named() {
        let parsed = |said: &Value, most| Prefilter::parse(said, most).map_err(|error| error.to_string());
        for (said, named) in [
            (json!(true), "`stream.prefilter`"),
            (json!({"ends": " ", "run-bytes": 1}), "`stream.prefilter.within`: it is missing"),
            (json!({"within": "", "ends": " ", "run-bytes": 1}), "`stream.prefilter.within`"),
            (json!({"within": "a-zA-Z", "ends": " ", "run-bytes": 1}), "`stream.prefilter.within`: '-' is twice in it"),
            (json!({"within": "aé", "ends": " ", "run-bytes": 1}), "`stream.prefilter.within`"),
            (json!({"within": "a", "ends": [" "], "run-bytes": 1}), "`stream.prefilter.ends`"),
            (json!({"within": "a", "ends": " a", "run-bytes": 1}), "`stream.prefilter.ends`: 'a' is in `within` too"),
            (json!({"within": "a", "joins": 3, "ends": " ", "run-bytes": 1}), "`stream.prefilter.joins`"),
            (json!({"within": "a", "joins": "", "ends": " ", "run-bytes": 1}), "`stream.prefilter.joins`"),
            (
                json!({"within": "a", "joins": "--", "ends": " ", "run-bytes": 1}),
                "`stream.prefilter.joins`: '-' is twice",
            ),
            (json!({"within": "a", "joins": "-a", "ends": " ", "run-bytes": 1}), "'a' is in `within` too"),
            (
                json!({"within": "a", "joins": "-", "ends": "-", "run-bytes": 1}),
                "`stream.prefilter.ends`: '-' is in `joins`",
            ),
            (json!({"within": "a", "ends": " "}), "`stream.prefilter.run-bytes`"),
            (json!({"within": "a", "ends": " ", "run-bytes": 0}), "`stream.prefilter.run-bytes`"),
            (json!({"within": "a", "ends": " ", "run-bytes": 65}), "`stream.prefilter.run-bytes`"),
        ] {
            let error = parsed(&said, Some(64)).unwrap_err();
            assert!(error.contains(named), "{said}: {error}");
        }
        for good in [
            json!({"within": "a", "ends": " ", "run-bytes": 64}),
            json!({"within": "a", "joins": "-", "ends": " ", "run-bytes": 64}),
        ] {
            assert!(parsed(&good, Some(64)).unwrap().is_some());
            assert!(parsed(&good, None).unwrap_err().contains("`stream.holdback-bytes`"));
        }
    }
}
