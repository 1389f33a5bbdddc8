//! Whether a list has an item twice. Each item is written down in a form that equal values share, whatever the order of their
//! members and however their numbers are written, and the forms are sorted: the work grows with the text, where a comparison of
//! each item with all before it, and of each of its keys with all of another, would not end.
//!
//! Invariant: a form says where it ends, so that what is written behind each other is read in one way only.

use crate::json::Json;
use std::ops::Range;

/// Bytes of a text that cost a step more.
const TEXT_BYTES: usize = 64;

/// The first item that one before it is equal to. A step for each value and member, for some bytes of a text, and for each
/// comparison of two items is added to `steps`; beyond `most` nothing is looked for.
pub fn first_repeated(items: &[Json], steps: &mut u32, most: u32) -> Option<usize> {
    let mut forms = Forms { bytes: Vec::new(), steps, most };
    let mut sorted: Vec<(Range<usize>, usize)> = Vec::new();
    for (idx, item) in items.iter().enumerate() {
        let start = forms.bytes.len();
        forms.write(item);
        sorted.push((start..forms.bytes.len(), idx));
        if forms.is_spent() {
            return None;
        }
    }
    let Forms { bytes, steps, .. } = forms;
    sorted.sort_unstable_by(|(a, first), (b, second)| {
        *steps = steps.saturating_add(1);
        bytes[a.clone()].cmp(&bytes[b.clone()]).then(first.cmp(second))
    });
    let twice = sorted.windows(2).filter(|pair| bytes[pair[0].0.clone()] == bytes[pair[1].0.clone()]);
    twice.map(|pair| pair[1].1).min()
}

struct Forms<'a> {
    bytes: Vec<u8>,
    steps: &'a mut u32,
    most: u32,
}

impl Forms<'_> {
    fn is_spent(&self) -> bool {
        *self.steps > self.most
    }

    /// Not all of it once the steps are spent. The reader bounds how deep it goes.
    fn write(&mut self, value: &Json) {
        *self.steps = self.steps.saturating_add(1);
        match value {
            Json::Null => self.bytes.push(b'n'),
            Json::Bool(is_true) => self.bytes.push(if *is_true { b't' } else { b'f' }),
            Json::Number(number) => self.bytes.extend(number.form()),
            Json::Text(text) => self.text(text),
            Json::List(items) => {
                self.bytes.push(b'[');
                for item in items {
                    if self.is_spent() {
                        return;
                    }
                    self.write(item);
                }
                self.bytes.push(b']');
            }
            Json::Object(members) => self.object(members),
        }
    }

    fn object(&mut self, members: &[(String, Json)]) {
        let mut sorted: Vec<&(String, Json)> = members.iter().collect();
        sorted.sort_unstable_by(|(a, _), (b, _)| a.cmp(b));
        self.bytes.push(b'{');
        for (key, value) in sorted {
            if self.is_spent() {
                return;
            }
            self.text(key);
            self.write(value);
        }
        self.bytes.push(b'}');
    }

    fn text(&mut self, text: &str) {
        let num_steps = u32::try_from(text.len() / TEXT_BYTES).unwrap_or(u32::MAX);
        *self.steps = self.steps.saturating_add(num_steps);
        self.bytes.push(b'"');
        self.bytes.extend((text.len() as u64).to_be_bytes());
        self.bytes.extend(text.as_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::json::parse;
    use proptest::prelude::*;

    /// The item that comes twice, and the steps that it took to see.
    fn of(text: &str) -> (Option<usize>, u32) {
        let Ok(Json::List(items)) = parse(text) else { panic!("{text}") };
        let mut steps = 0;
        (first_repeated(&items, &mut steps, u32::MAX), steps)
    }

    #[test]
    fn equal_values_are_found_however_they_are_written() {
        let check = |text: &str, expected| assert_eq!(of(text).0, expected, "{text}");
        for same in [
            r#"[{"a":1,"b":{"c":2,"d":3}},{"b":{"d":3,"c":2},"a":1}]"#,
            "[1,1.0]",
            "[100,1e2]",
            "[0,-0.0]",
            "[0.5,5e-1]",
            r#"["a","\u0061"]"#,
            "[[],[]]",
            "[{},{}]",
            "[null,null]",
        ] {
            check(same, Some(1));
        }
        check("[3,1,2,1,3]", Some(3));
        check("[[1,2],[2,1],[1,2],[1,2]]", Some(2));
        for different in [
            r#"[1,"1",true,[1],{"1":1},null,"",[],{},false,0,"null"]"#,
            "[[1,2],[[1],2],[1,[2]],[[1,2]],[[1],[2]],[1,2,[]]]",
            r#"[{"a":"b"},{"a":"bc"},{"ab":"c"},{"b":"a"},["a","b"],{"a":{"b":0}},{"a":0,"b":0}]"#,
            r#"["a","ab",["a","b"],["ab"],["","ab"],"[","]","n","t"]"#,
            "[9007199254740992,9007199254740993]",
            "[]",
        ] {
            check(different, None);
        }
    }

    #[test]
    fn work_grows_with_the_text() {
        let ends_within = |items: &[String], most: u32| {
            let (twice, steps) = of(&format!("[{}]", items.join(",")));
            assert!(twice.is_none() && steps <= most, "{twice:?}, {steps} steps of {most}");
            assert!(steps as usize >= items.len());
        };
        let mixed = |n: u32| n.wrapping_mul(2_654_435_761);
        let numbers: Vec<String> = (0..10_000).map(|n| mixed(n).to_string()).collect();
        ends_within(&numbers[..5_000], 5_000 * 20);
        ends_within(&numbers, 10_000 * 20);
        let object = |last: u32| {
            let members: Vec<String> = (0..269).map(|key| format!("\"k{key}\":0")).collect();
            format!("{{{},\"z\":{last}}}", members.join(","))
        };
        let objects: Vec<String> = (0..632).map(|n| object(mixed(n))).collect();
        ends_within(&objects, 632 * 271 + 632 * 15);
        let texts: Vec<String> = (0..100).map(|n| format!("\"{}{n}\"", "x".repeat(6_400))).collect();
        ends_within(&texts, 100 * 101 + 100 * 10);
    }

    #[test]
    fn nothing_is_looked_for_once_the_steps_are_spent() {
        let Ok(Json::List(items)) = parse("[[1,2,3,4],[5],[5]]") else { panic!() };
        for most in [2, 6, 8] {
            let mut steps = 0;
            assert_eq!((first_repeated(&items, &mut steps, most), steps), (None, most + 1));
        }
        let mut steps = 0;
        assert_eq!(first_repeated(&items, &mut steps, 20), Some(2));
        assert!((11..=12).contains(&steps), "9 values, of which 3 are compared: {steps}");
    }

    fn items() -> impl Strategy<Value = String> {
        let scalar =
            proptest::sample::select(vec!["null", "true", "0", "-0.0", "1", "1.0", "10e-1", "0.5", "\"\"", "\"a\""]);
        let value = scalar.prop_map(str::to_owned).prop_recursive(3, 12, 3, |inner| {
            let lists =
                proptest::collection::vec(inner.clone(), 0..3).prop_map(|items| format!("[{}]", items.join(",")));
            let objects = proptest::collection::vec(inner, 0..3).prop_map(|values| {
                let members = ["a", "b", "c"].iter().zip(values).map(|(key, value)| format!("\"{key}\":{value}"));
                let mut members: Vec<String> = members.collect();
                members.reverse();
                format!("{{{}}}", members.join(","))
            });
            prop_oneof![lists, objects]
        });
        proptest::collection::vec(value, 0..8).prop_map(|items| format!("[{}]", items.join(",")))
    }

    proptest! {
        #[test]
        fn items_are_equal_as_values_are(text in items()) {
            let Ok(Json::List(items)) = parse(&text) else { panic!("{text}") };
            let before = |idx: &usize| items[..*idx].iter().any(|before| before.is_same(&items[*idx]));
            prop_assert_eq!(of(&text).0, (0..items.len()).find(before), "{}", text);
        }
    }
}
