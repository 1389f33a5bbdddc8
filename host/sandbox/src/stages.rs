//! How a stage is called: one file per stage of the contract. A [`StageCall`] lowers its input into the guest, and
//! turns what comes back into the host's types or says how it breaks the contract. `plugin/call.rs` does the rest (lease,
//! limits, failures) once for all of them.

mod memory;
mod observer;
mod output_guard;
mod prompt_guard;
mod retriever;
mod router;
mod stream_guard;
mod tool_provider;

pub(crate) use memory::{Forget, Recall, Remember};
pub(crate) use observer::OnComplete;
pub(crate) use output_guard::InspectOutput;
pub(crate) use prompt_guard::{InspectOutside, InspectPrompt};
pub(crate) use retriever::Retrieve;
pub(crate) use router::Route;
pub(crate) use stream_guard::InspectWindow;
pub(crate) use tool_provider::{CallTool, ListTools};

use crate::bindings::tidegate::plugin::types as wit;
use crate::instance::Guests;
use crate::stage::{Descriptor, StageKind};
use crate::state::HostState;
use std::future::Future;
use wasmtime::Store;

/// What wasmtime, the guest and its result say, in this order.
pub(crate) type Answer<T> = wasmtime::Result<Result<T, wit::Error>>;

/// How a guest is entered without a future.
pub(crate) type Direct<C> =
    fn(&C, &mut Store<HostState>, &mut Guests, wit::Context<'_>) -> Answer<<C as StageCall>::Raw>;

/// One function of a stage, with its input.
pub(crate) trait StageCall: Sized + Send + Sync {
    /// The interface that must be exported.
    const STAGE: StageKind;
    /// Enters the guest on the caller's own stack: of stages that each message or each event has a call of.
    const DIRECT: Option<Direct<Self>> = None;
    /// The guest's result as the bindings have it.
    type Raw: Send;
    /// The result in the host's types.
    type Out;

    /// Enters the guest.
    fn enter(
        &self,
        store: &mut Store<HostState>,
        guests: &mut Guests,
        context: wit::Context<'_>,
    ) -> impl Future<Output = Answer<Self::Raw>> + Send;

    /// Checks a result against the input and the contract.
    fn check(&self, raw: Self::Raw, descriptor: &Descriptor) -> Result<Self::Out, String>;
}
