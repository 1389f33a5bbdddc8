//! What the guard makes of `labelled.jsonl`, whose author had not seen the detectors; the lines with `held` are not tuned on.
//! A piece of personal data is caught where what is found covers all of it.

use super::*;
use serde_json::Value;
use std::collections::BTreeMap;
use std::ops::Range;
use tidegate_plugin_sdk::scan::find_all;

type Piece = (String, Range<usize>);

#[derive(Default)]
struct Tally {
    caught: u32,
    missed: u32,
    false_alarms: u32,
}

impl Tally {
    fn precision(&self) -> f64 {
        f64::from(self.caught) / f64::from((self.caught + self.false_alarms).max(1))
    }

    fn recall(&self) -> f64 {
        f64::from(self.caught) / f64::from((self.caught + self.missed).max(1))
    }
}

/// The pieces that a line says are there, in the order of its text.
fn labelled(line: &Value) -> Vec<Piece> {
    let (text, mut from) = (line["text"].as_str().unwrap(), 0);
    let piece = |find: &Value| {
        let [kind, exact] = [0, 1].map(|at| find[at].as_str().unwrap());
        let start = from + text[from..].find(exact).unwrap_or_else(|| panic!("{exact:?} is not in {text:?}"));
        from = start + exact.len();
        (kind.to_owned(), start..from)
    };
    line["find"].as_array().unwrap().iter().map(piece).collect()
}

fn found(text: &str) -> Vec<Piece> {
    let mut found: Vec<Piece> = Vec::new();
    for hit in find_all(&Detector::new(Kind::ALL.to_vec()), text) {
        match found.last_mut() {
            Some((_, range)) if hit.continues => range.end = hit.range.end,
            _ => found.push((Detector::kind(hit.rule).as_str().to_owned(), hit.range)),
        }
    }
    found
}

fn tell(what: &str, held: bool, (kind, range): &Piece, text: &str) {
    println!("{what} (held: {held}): {kind} {:?} in {text:?}", &text[range.clone()]);
}

#[test]
fn precision_and_recall_on_the_labelled_set_do_not_fall_and_are_what_the_readme_says() {
    let mut tallies: BTreeMap<(bool, String), Tally> = BTreeMap::new();
    for line in include_str!("../labelled.jsonl").lines() {
        let line: Value = serde_json::from_str(line).unwrap();
        let (text, held) = (line["text"].as_str().unwrap(), line["held"].as_bool().unwrap());
        let (labelled, found) = (labelled(&line), found(text));
        let mut add = |kind: &str, count: fn(&mut Tally)| {
            for group in [kind, "all"] {
                count(tallies.entry((held, group.to_owned())).or_default());
            }
        };
        for (kind, range) in &labelled {
            let covers = |(_, hit): &Piece| hit.start <= range.start && range.end <= hit.end;
            if found.iter().any(covers) {
                add(kind, |tally| tally.caught += 1);
            } else {
                tell("missed", held, &(kind.clone(), range.clone()), text);
                add(kind, |tally| tally.missed += 1);
            }
        }
        let is_labelled =
            |(_, hit): &&Piece| labelled.iter().any(|(_, own)| own.start < hit.end && hit.start < own.end);
        for alarm in found.iter().filter(|hit| !is_labelled(hit)) {
            tell("false alarm", held, alarm, text);
            add(&alarm.0, |tally| tally.false_alarms += 1);
        }
    }
    let readme = include_str!("../README.md").split_whitespace().collect::<Vec<_>>().join(" ");
    let mut unsaid = Vec::new();
    for kind in Kind::ALL.map(Kind::as_str).into_iter().chain(["all"]) {
        let [seen, held] = [false, true].map(|held| &tallies[&(held, kind.to_owned())]);
        let figures = [seen, held].map(|of| format!("{:.2} / {:.2}", of.precision(), of.recall()));
        let row = format!("| {kind} | {} |", figures.join(" | "));
        println!("{row} of {} and {}", seen.caught + seen.missed, held.caught + held.missed);
        unsaid.extend((!readme.contains(&row)).then_some(row));
    }
    assert!(unsaid.is_empty(), "the README does not say: {unsaid:#?}");
}
