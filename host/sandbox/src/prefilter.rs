//! What a stream guard lets through whatever its config: the host then decides such text in its place and spares the call.

use crate::descriptor::wrong;
use crate::error::LoadCause;
use serde_json::Value;

/// Text that is nothing but short runs of some characters, each ended by one of others. A stream guard that declares it
/// promises that it would let such text through up to and with the last end, without findings, and remember nothing.
#[derive(Clone, PartialEq)]
pub struct Prefilter {
    classes: [Class; 128],
    run_bytes: usize,
}

#[derive(Clone, Copy, PartialEq)]
enum Class {
    /// Part of a run.
    Within,
    /// Ends a run.
    Ends,
    /// The guard looks.
    Other,
}

impl Prefilter {
    /// Bytes of `text` that may leave, where it is of this kind; `None` where the guard has to look.
    pub fn through(&self, text: &str) -> Option<usize> {
        let (mut through, mut run) = (0, 0);
        for (at, byte) in text.bytes().enumerate() {
            match self.classes.get(usize::from(byte)) {
                Some(Class::Within) if run < self.run_bytes => run += 1,
                Some(Class::Ends) => (through, run) = (at + 1, 0),
                _ => return None,
            }
        }
        Some(through)
    }

    /// What runs are made of, in the order of ASCII.
    pub fn within(&self) -> String {
        self.of(Class::Within)
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

    /// Of `stream.prefilter` in a descriptor whose guard withholds at most `holdback_bytes`.
    pub(crate) fn parse(said: &Value, holdback_bytes: Option<u32>) -> Result<Self, LoadCause> {
        let said = said.as_object().ok_or_else(|| wrong("stream.prefilter", "it is not an object"))?;
        let mut classes = [Class::Other; 128];
        for (key, class) in [("within", Class::Within), ("ends", Class::Ends)] {
            let name = format!("stream.prefilter.{key}");
            let characters = said.get(key).and_then(Value::as_str).unwrap_or_default();
            if characters.is_empty() {
                return Err(wrong(&name, "it is not a text of one character or more"));
            }
            for character in characters.chars() {
                match classes.get_mut(character as usize) {
                    Some(place @ Class::Other) => *place = class,
                    Some(_) => return Err(wrong(&name, format!("{character:?} is in it, or in the other, already"))),
                    None => return Err(wrong(&name, format!("{character:?} is not ASCII"))),
                }
            }
        }
        let most = holdback_bytes.ok_or_else(|| {
            wrong("stream.prefilter", "a run waits for its end: say in `holdback-bytes` how much may wait")
        })?;
        let run_bytes =
            said.get("run-bytes").and_then(Value::as_u64).filter(|bytes| (1..=u64::from(most)).contains(bytes));
        let problem = || wrong("stream.prefilter.run-bytes", format!("it is not from 1 to `holdback-bytes`, {most}"));
        Ok(Self { classes, run_bytes: run_bytes.ok_or_else(problem)? as usize })
    }
}

impl std::fmt::Debug for Prefilter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Prefilter")
            .field("within", &self.within())
            .field("ends", &self.ends())
            .field("run_bytes", &self.run_bytes)
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn parsed(said: &Value) -> Result<Prefilter, String> {
        Prefilter::parse(said, Some(64)).map_err(|error| error.to_string())
    }

    #[test]
    fn short_runs_leave_up_to_the_last_end() {
        let prefilter = parsed(&json!({"within": "abc", "ends": " ,", "run-bytes": 3})).unwrap();
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
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (said, named) in [
            (json!(true), "`stream.prefilter`"),
            (json!({"ends": " ", "run-bytes": 1}), "`stream.prefilter.within`"),
            (json!({"within": "", "ends": " ", "run-bytes": 1}), "`stream.prefilter.within`"),
            (json!({"within": "aba", "ends": " ", "run-bytes": 1}), "`stream.prefilter.within`"),
            (json!({"within": "aé", "ends": " ", "run-bytes": 1}), "`stream.prefilter.within`"),
            (json!({"within": "a", "ends": [" "], "run-bytes": 1}), "`stream.prefilter.ends`"),
            (json!({"within": "a", "ends": " a", "run-bytes": 1}), "`stream.prefilter.ends`"),
            (json!({"within": "a", "ends": " "}), "`stream.prefilter.run-bytes`"),
            (json!({"within": "a", "ends": " ", "run-bytes": 0}), "`stream.prefilter.run-bytes`"),
            (json!({"within": "a", "ends": " ", "run-bytes": 65}), "`stream.prefilter.run-bytes`"),
        ] {
            let error = parsed(&said).unwrap_err();
            assert!(error.contains(named), "{said}: {error}");
        }
        let good = json!({"within": "a", "ends": " ", "run-bytes": 64});
        assert!(parsed(&good).is_ok());
        assert!(Prefilter::parse(&good, None).unwrap_err().to_string().contains("holdback-bytes"));
    }
}
