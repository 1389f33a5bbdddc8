//! `observer`: is told how a request ended. It says nothing that could be checked.

use super::{Answer, StageCall};
use crate::bindings::exports::tidegate::plugin::observer as guest;
use crate::bindings::tidegate::plugin::types as wit;
use crate::convert;
use crate::instance::Guests;
use crate::stage::{Descriptor, StageKind, Summary};
use crate::state::HostState;
use std::time::Duration;
use wasmtime::Store;

pub(crate) struct OnComplete<'a>(pub(crate) Summary<'a>);

impl StageCall for OnComplete<'_> {
    const STAGE: StageKind = StageKind::Observer;
    type Raw = ();
    type Out = ();

    async fn enter(&self, store: &mut Store<HostState>, guests: &mut Guests, context: wit::Context<'_>) -> Answer<()> {
        let Summary { outcome, detail, model, usage, first, total, findings, attrs } = self.0;
        let summary = guest::Summary {
            outcome,
            detail,
            model,
            usage: convert::usage_param(&usage),
            first_ms: first.map(millis),
            total_ms: millis(total),
            findings: &convert::findings(findings),
            attrs: &convert::attrs(attrs),
        };
        guests.observer(store)?.call_on_complete(store, context, summary).await
    }

    fn check(&self, (): (), _: &Descriptor) -> Result<(), String> {
        Ok(())
    }
}

fn millis(time: Duration) -> u32 {
    u32::try_from(time.as_millis()).unwrap_or(u32::MAX)
}
