//! Notes for whoever keeps the answer: what guards decided about it, and what else is known. Without somebody who keeps it
//! nothing is noted.

use crate::context::RequestContext;
use crate::stage::Stage;
use tidegate_sandbox::stage::{Action, Inspection, Verdict, WindowAction};
use tidegate_types::{About, GuardAction, Report};

impl RequestContext {
    /// Writes something down about the answer.
    pub(crate) fn note(&self, write: impl FnOnce(&mut Report)) {
        if let Some(notebook) = &self.notebook {
            notebook.note(write);
        }
    }

    /// Notes what a guard of prompts or answers decided; `None` where it failed and the request goes on.
    pub(crate) fn judged(&self, stage: &Stage, about: About, verdict: Option<&Verdict>) {
        self.note(|report| {
            let Some(verdict) = verdict else {
                return report.judged(&stage.name, about, GuardAction::Failed, None, &[]);
            };
            let (action, code) = match &verdict.action {
                Action::Allow => (GuardAction::Allow, None),
                Action::Rewrite(_) => (GuardAction::Rewrite, None),
                Action::Respond(_) => (GuardAction::Respond, None),
                Action::Refuse(refusal) => (GuardAction::Refuse, Some(refusal.code.as_str())),
            };
            report.judged(&stage.name, about, action, code, &verdict.findings);
        });
    }

    /// Notes what a stream guard decided about a window; `None` where it failed and the answer goes on.
    pub(crate) fn inspected(&self, stage: &Stage, inspection: Option<&Inspection>) {
        self.note(|report| {
            let Some(inspection) = inspection else {
                return report.judged(&stage.name, About::Answer, GuardAction::Failed, None, &[]);
            };
            let (action, code) = match &inspection.action {
                WindowAction::Pass => (GuardAction::Allow, None),
                WindowAction::Redact(_) => (GuardAction::Rewrite, None),
                WindowAction::Halt { refusal, .. } => (GuardAction::Refuse, Some(refusal.code.as_str())),
            };
            report.judged(&stage.name, About::Answer, action, code, &inspection.findings);
        });
    }
}
