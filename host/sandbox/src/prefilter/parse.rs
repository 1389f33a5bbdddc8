//! Reads a prefilter from a descriptor: classes of characters, and states with the next one for each class.

use super::{NONE, Prefilter, Range, START};
use crate::descriptor::wrong;
use crate::error::LoadCause;
use serde_json::{Map, Value};

/// Which key is wrong, as a path within the prefilter, and why.
type Wrong = (String, String);

const MAX_CLASSES: usize = 32;
const MAX_STATES: usize = 64;
const MAX_RANGES: usize = 1024;
/// Characters of a message.
const MAX_SHOWN: usize = 200;

impl Prefilter {
    pub(crate) const KEYS: [&str; 3] = ["classes", "states", "run-bytes"];

    /// Of the JSON that a descriptor has in `stream.prefilter`.
    ///
    /// # Errors
    /// The path of what is wrong in it, and why.
    pub fn new(said: &Value) -> Result<Self, (String, String)> {
        let object = |key: &str| {
            let value = said.get(key).ok_or_else(|| (key.to_owned(), "it is missing".to_owned()))?;
            value.as_object().ok_or_else(|| (key.to_owned(), "it is not an object".to_owned()))
        };
        let (classes, states) = (object("classes")?, object("states")?);
        let ranges = ranges(classes)?;
        let run_bytes = said.get("run-bytes").and_then(Value::as_u64).and_then(|bytes| u32::try_from(bytes).ok());
        let run_bytes = run_bytes.filter(|bytes| *bytes > 0);
        let run_bytes = run_bytes.ok_or_else(|| {
            ("run-bytes".to_owned(), "it is no whole number of bytes from 1 to 4294967295".to_owned())
        })?;
        // At most MAX_CLASSES.
        let num_classes = classes.len() as u8;
        let mut ascii = [num_classes; 128];
        for range in &ranges {
            for c in (range.from..=range.to).take_while(char::is_ascii) {
                ascii[c as usize] = range.class;
            }
        }
        Ok(Self {
            ascii,
            others: ranges.into_iter().filter(|range| !range.to.is_ascii()).collect(),
            next: transitions(states, classes)?,
            num_classes,
            run_bytes: run_bytes as usize,
            said: said.clone(),
        })
    }

    /// Of a descriptor whose guard withholds at most `holdback_bytes`. `None` where it has keys that this host does not know:
    /// they may take back some of the promise.
    pub(crate) fn parse(said: &Value, holdback_bytes: Option<u32>) -> Result<Option<Self>, LoadCause> {
        let keys = said.as_object().ok_or_else(|| wrong("stream.prefilter", "it is not an object"))?;
        if keys.keys().any(|key| !Self::KEYS.contains(&key.as_str())) {
            return Ok(None);
        }
        let prefilter = Self::new(said)
            .map_err(|(key, problem)| wrong(&format!("stream.prefilter.{}", short(&key)), short(&problem)))?;
        let waits = format!("up to {} bytes wait for what ends them", prefilter.run_bytes);
        match holdback_bytes {
            None => Err(wrong("stream.holdback-bytes", format!("it is missing, and {waits}"))),
            Some(most) if prefilter.run_bytes > most as usize => {
                let problem = format!("{waits}, which is more than `stream.holdback-bytes`, {most}");
                Err(wrong("stream.prefilter.run-bytes", problem))
            }
            Some(_) => Ok(Some(prefilter)),
        }
    }
}

/// What is said of a descriptor's own words, however long those are.
fn short(text: &str) -> String {
    text.chars().take(MAX_SHOWN).collect()
}

/// The characters of all classes, in order.
fn ranges(classes: &Map<String, Value>) -> Result<Vec<Range>, Wrong> {
    count("classes", classes.len(), MAX_CLASSES, "classes")?;
    let mut ranges = Vec::new();
    for ((name, entries), class) in classes.iter().zip(0_u8..) {
        let at = |problem: String| (format!("classes.{}", name.escape_debug()), problem);
        let entries = entries.as_array().filter(|entries| !entries.is_empty());
        let entries = entries.ok_or_else(|| at("it is not an array of characters".into()))?;
        count("classes", ranges.len() + entries.len(), MAX_RANGES, "texts in all of them")?;
        for entry in entries {
            let (from, to) = range(entry).map_err(at)?;
            ranges.push(Range { from, to, class });
        }
    }
    ranges.sort_by_key(|range| range.from);
    match ranges.windows(2).find_map(|two| matches!(two, [one, next] if next.from <= one.to).then(|| two.to_vec())) {
        Some(two) => {
            let name =
                |range: &Range| classes.keys().nth(usize::from(range.class)).map_or("", String::as_str).escape_debug();
            let problem = format!("{:?} is in `{}` too; a character is listed once", two[1].from, name(&two[0]));
            Err((format!("classes.{}", name(&two[1])), problem))
        }
        None => Ok(ranges),
    }
}

/// One character, or two for all from the first to the second.
fn range(entry: &Value) -> Result<(char, char), String> {
    let mut characters = entry.as_str().unwrap_or_default().chars();
    match (characters.next(), characters.next(), characters.next()) {
        (Some(one), None, _) => Ok((one, one)),
        // A letter with a mark of its own behind it is two characters, and no range.
        (Some(from), Some(to), None) if from <= to && from.is_ascii() == to.is_ascii() => Ok((from, to)),
        _ => Err(format!("{entry} is neither a character nor two, the first and the last of several")),
    }
}

/// For each state the next one by class, and behind them `NONE` for characters without a class.
fn transitions(states: &Map<String, Value>, classes: &Map<String, Value>) -> Result<Vec<u8>, Wrong> {
    count("states", states.len(), MAX_STATES, "states")?;
    if !states.contains_key("start") {
        return Err(("states".into(), "it has no `start`".into()));
    }
    // `start` first, so that it is 0.
    let names: Vec<&str> =
        ["start"].into_iter().chain(states.keys().map(String::as_str).filter(|name| *name != "start")).collect();
    let mut table = vec![NONE; names.len() * (classes.len() + 1)];
    for (name, row) in names.iter().zip(table.chunks_mut(classes.len() + 1)) {
        let at = |key: &str| format!("states.{}{key}", name.escape_debug());
        let nexts = states.get(*name).and_then(Value::as_object);
        let nexts = nexts.ok_or_else(|| (at(""), "it is not an object".to_owned()))?;
        for (class, next) in nexts {
            let at = || at(&format!(".{}", class.escape_debug()));
            let place = classes.keys().position(|known| known == class).and_then(|class| row.get_mut(class));
            let place = place.ok_or_else(|| (at(), "there is no such class".to_owned()))?;
            let next_index = next.as_str().and_then(|next| (START..).zip(&names).find(|(_, known)| **known == next));
            *place = next_index.ok_or_else(|| (at(), format!("{next} is no state")))?.0;
        }
    }
    Ok(table)
}

fn count(key: &str, found: usize, most: usize, what: &str) -> Result<(), Wrong> {
    match found {
        0 => Err((key.into(), "it is empty".into())),
        found if found > most => Err((key.into(), format!("it has {found} {what}, of {most} at most"))),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn good() -> Value {
        json!({
            "classes": {"letters": ["az", "_"], "ends": [" "]},
            "states": {"start": {"letters": "word", "ends": "start"}, "word": {"letters": "word", "ends": "start"}},
            "run-bytes": 64,
        })
    }

    fn parsed(said: &Value, most: Option<u32>) -> Result<Option<Prefilter>, String> {
        Prefilter::parse(said, most).map_err(|error| error.to_string())
    }

    #[test]
    fn what_is_wrong_is_named() {
        let many = |count: usize| (0..count).map(|n| (n.to_string(), json!({}))).collect::<Map<_, _>>();
        for (pointer, value, named) in [
            ("", json!(true), "`stream.prefilter`: it is not an object"),
            ("/classes", json!([]), "`stream.prefilter.classes`: it is not an object"),
            ("/classes", json!({}), "`stream.prefilter.classes`: it is empty"),
            ("/classes", json!(many(33)), "`stream.prefilter.classes`: it has 33 classes, of 32"),
            ("/classes/ends", json!(" "), "`stream.prefilter.classes.ends`: it is not an array"),
            ("/classes/ends", json!([]), "`stream.prefilter.classes.ends`: it is not an array"),
            ("/classes/ends", json!([3]), "`stream.prefilter.classes.ends`: 3 is neither"),
            ("/classes/ends", json!([""]), "`stream.prefilter.classes.ends`: \"\" is neither"),
            ("/classes/ends", json!(["a-z"]), "`stream.prefilter.classes.ends`: \"a-z\" is neither"),
            ("/classes/ends", json!(["e\u{301}"]), "`stream.prefilter.classes.ends`: \"e\u{301}\" is neither"),
            ("/classes/ends", json!(["za"]), "`stream.prefilter.classes.ends`: \"za\" is neither"),
            ("/classes/ends", json!(["b"]), "`stream.prefilter.classes.ends`: 'b' is in `letters` too"),
            ("/classes/ends", json!(["Ba"]), "`stream.prefilter.classes.letters`: '_' is in `ends` too"),
            ("/classes/ends", json!([" ", " "]), "`stream.prefilter.classes.ends`: ' ' is in `ends` too"),
            ("/classes/ends", json!(vec!["x"; 1025]), "`stream.prefilter.classes`: it has 1027 texts"),
            ("/states", json!({}), "`stream.prefilter.states`: it is empty"),
            ("/states", json!(many(65)), "`stream.prefilter.states`: it has 65 states, of 64"),
            ("/states", json!({"word": {}}), "`stream.prefilter.states`: it has no `start`"),
            ("/states/word", json!("start"), "`stream.prefilter.states.word`: it is not an object"),
            ("/states/word/digits", json!("start"), "`stream.prefilter.states.word.digits`: there is no such class"),
            ("/states/word/ends", json!("end"), "`stream.prefilter.states.word.ends`: \"end\" is no state"),
            ("/states/word/ends", json!(0), "`stream.prefilter.states.word.ends`: 0 is no state"),
            ("/run-bytes", json!(0), "`stream.prefilter.run-bytes`: it is no whole number of bytes"),
            ("/run-bytes", json!("8"), "`stream.prefilter.run-bytes`: it is no whole number of bytes"),
            ("/run-bytes", json!(65), "`stream.prefilter.run-bytes`: up to 65 bytes wait"),
        ] {
            let mut said = good();
            match pointer.rsplit_once('/') {
                Some((parent, key)) => said.pointer_mut(parent).unwrap()[key] = value,
                None => said = value,
            }
            let error = parsed(&said, Some(64)).unwrap_err();
            assert!(error.contains(named), "{said}: {error}");
        }
        for key in Prefilter::KEYS {
            let mut said = good();
            said.as_object_mut().unwrap().remove(key);
            assert!(parsed(&said, Some(64)).unwrap_err().contains(&format!("`stream.prefilter.{key}`")));
        }
        let mut strange = good();
        strange["classes"] = json!({ "\n".repeat(1000): 3 });
        let error = parsed(&strange, Some(64)).unwrap_err();
        assert!(error.contains("\\n\\n") && !error.contains('\n') && error.len() < 400, "{error}");
        assert!(parsed(&good(), None).unwrap_err().contains("`stream.holdback-bytes`"));
        assert_eq!(parsed(&good(), Some(64)).unwrap().unwrap().said(), &good());
    }

    #[test]
    fn one_of_another_version_is_left_aside() {
        let mut newer = good();
        newer["not-behind"] = json!("0123456789");
        for said in [newer, json!({"within": "ab", "ends": " ", "run-bytes": 8})] {
            assert_eq!(parsed(&said, Some(64)), Ok(None));
        }
    }
}
