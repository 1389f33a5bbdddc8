//! A prompt guard's first look, compared with what the guard says when it is asked.

use super::Said;
use anyhow::bail;
use tidegate_sandbox::stage::{Action, CallError, Verdict};

/// Whether a guard that allows a prompt at a glance has said so of it.
///
/// # Errors
/// What it has said in place of that.
pub(super) fn check(said: &Result<Said<'_>, CallError>) -> anyhow::Result<()> {
    let what = match said {
        Ok(Said::Verdict(verdict, _)) => match more(verdict) {
            Some(what) => what.to_owned(),
            None => return Ok(()),
        },
        Ok(_) => return Ok(()),
        Err(error) => format!("fails: {error}"),
    };
    bail!("at a glance it allows the prompt and finds nothing; asked about it, it {what}")
}

/// What a verdict says beside that a prompt is allowed.
fn more(verdict: &Verdict) -> Option<&'static str> {
    match &verdict.action {
        Action::Rewrite(_) => Some("rewrites some of it"),
        Action::Respond(_) => Some("answers in the model's place"),
        Action::Refuse(_) => Some("refuses it"),
        Action::Allow if !verdict.findings.is_empty() => Some("has findings"),
        Action::Allow if !verdict.notes.is_empty() => Some("has attributes"),
        Action::Allow => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_types::{Finding, Severity};

    #[test]
    fn a_glance_is_held_to_all_that_a_verdict_says() {
        let allowed = || Verdict { action: Action::Allow, findings: Vec::new(), notes: Vec::new() };
        let told = |verdict| check(&Ok(Said::Verdict(verdict, &[]))).map_err(|error| error.to_string());
        assert_eq!(told(allowed()), Ok(()));
        let finding =
            Finding { category: "g:x".into(), severity: Severity::Low, score: None, message_id: None, span: None };
        for (verdict, why) in [
            (Verdict { findings: vec![finding], ..allowed() }, "it has findings"),
            (Verdict { notes: vec![("g/a".into(), "1".into())], ..allowed() }, "it has attributes"),
            (Verdict { action: Action::Respond(Vec::new()), ..allowed() }, "it answers in the model's place"),
            (Verdict { action: Action::Rewrite(Vec::new()), ..allowed() }, "it rewrites some of it"),
        ] {
            assert!(told(verdict).unwrap_err().ends_with(why), "{why}");
        }
        let failed = CallError::BadResult { plugin: "g".into(), message: "no".into() };
        assert!(check(&Err(failed)).unwrap_err().to_string().contains("it fails: "));
    }
}
