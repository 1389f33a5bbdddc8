//! What is known of an answer besides what it says, as JSON. Citations have OpenAI's shape of annotations; the rest is not
//! in its API.

use serde_json::{Map, Value, json};
use tidegate_types::{Citation, Flag, GuardOutcome, Report, ToolRun};

const BILLION: f64 = 1e9;

/// An amount, as OpenAI's costs have it.
pub fn cost(billionths: u64, currency: &str) -> Value {
    json!({"value": billionths as f64 / BILLION, "currency": currency})
}

/// The annotations of a text that was made from these passages. `index` counts the documents.
pub fn annotations(citations: &[Citation]) -> Vec<Value> {
    let mut files: Vec<&str> = Vec::new();
    let mut notes = Vec::with_capacity(citations.len());
    for Citation { source, file, title, bytes } in citations {
        let index = files.iter().position(|known| known == file).unwrap_or_else(|| {
            files.push(file);
            files.len() - 1
        });
        let filename = file.rsplit('/').next().unwrap_or_default();
        let mut note = json!({"type": "file_citation", "index": index, "file_id": file, "filename": filename,
            "source": source});
        if let Some(title) = title {
            note["title"] = title.as_str().into();
        }
        if let Some((start, end)) = bytes {
            (note["start_byte"], note["end_byte"]) = ((*start).into(), (*end).into());
        }
        notes.push(note);
    }
    notes
}

/// Puts annotations to the first text of an item; says whether it has one.
pub(crate) fn annotate(item: &mut Value, citations: &[Citation]) -> bool {
    let parts = item.get_mut("content").and_then(Value::as_array_mut);
    let text = parts.and_then(|parts| parts.iter_mut().find(|part| part["type"] == "output_text"));
    match text {
        Some(text) => {
            text["annotations"] = annotations(citations).into();
            true
        }
        None => false,
    }
}

/// The members that tell a report, but for citations, which are where the text is. Reading an item skips them. None has a
/// name of OpenAI's with another shape, such as `moderation`, which clients read by theirs.
pub(crate) const MEMBERS: [&str; 5] = ["cost", "model_version", "guards", "tool_calls", "omitted"];

/// Those of [`MEMBERS`] that there is something to tell under.
pub(crate) fn members(report: &Report, currency: &str) -> Map<String, Value> {
    let list = |values: Vec<Value>| (!values.is_empty()).then(|| Value::from(values));
    let values = [
        report.cost.map(|billionths| cost(billionths, currency)),
        (!report.model_version.is_empty()).then(|| report.model_version.as_str().into()),
        list(report.guards.iter().map(outcome).collect()),
        list(report.tool_runs.iter().map(tool_run).collect()),
        (report.omitted > 0).then(|| report.omitted.into()),
    ];
    MEMBERS.into_iter().zip(values).filter_map(|(name, value)| Some((name.to_owned(), value?))).collect()
}

fn outcome(outcome: &GuardOutcome) -> Value {
    let flag = |Flag { category, severity, score }: &Flag| {
        let mut flag = json!({"category": category, "severity": severity});
        if let Some(score) = score {
            flag["score"] = (*score).into();
        }
        flag
    };
    let mut shown = json!({"stage": outcome.stage, "about": outcome.about.as_str(), "action": outcome.action.as_str(),
        "categories": outcome.flags.iter().map(flag).collect::<Vec<_>>()});
    if let Some(code) = &outcome.code {
        shown["code"] = code.as_str().into();
    }
    shown
}

fn tool_run(run: &ToolRun) -> Value {
    let ToolRun { call_id, name, arguments, source, is_error } = run;
    let mut shown = json!({"call_id": call_id, "name": name, "source": source, "is_error": is_error});
    if let Some(arguments) = arguments {
        shown["arguments"] = arguments.as_str().into();
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_types::{About, GuardAction, Severity};

    #[test]
    fn citations_are_annotations_and_count_their_documents() {
        let cited = |file: &str, bytes| Citation { source: "folder".into(), file: file.into(), title: None, bytes };
        let notes =
            annotations(&[cited("docs/a.md", Some((4, 9))), cited("b", None), cited("docs/a.md", Some((20, 25)))]);
        assert_eq!(
            notes[0],
            json!({"type": "file_citation", "index": 0, "file_id": "docs/a.md", "filename": "a.md", "source": "folder",
                "start_byte": 4, "end_byte": 9})
        );
        assert_eq!(
            (&notes[1]["index"], &notes[2]["index"], &notes[2]["start_byte"]),
            (&json!(1), &json!(0), &json!(20))
        );
    }

    #[test]
    fn a_report_tells_what_is_known_and_nothing_else() {
        assert!(members(&Report::default(), "usd").is_empty());
        let mut report = Report { cost: Some(1_500_000_000), model_version: "m-1".into(), ..Report::default() };
        report.judged("g", About::Answer, GuardAction::Refuse, Some("c"), &[]);
        report.guards[0].flags.push(Flag { category: "pii:email".into(), severity: Severity::High, score: None });
        assert_eq!(
            Value::Object(members(&report, "eur")),
            json!({"cost": {"value": 1.5, "currency": "eur"}, "model_version": "m-1", "guards": [{"stage": "g",
                "about": "answer", "action": "refuse", "code": "c",
                "categories": [{"category": "pii:email", "severity": "high"}]}]})
        );
    }
}
