//! Says why a call failed, from what wasmtime reports and what the store's state knows. The state goes first: a guest
//! that was refused memory or time ends in a trap that by itself says nothing.

use crate::bindings::tidegate::plugin::types as wit;
use crate::blueprint::Blueprint;
use crate::engine::TABLE_ELEMENTS;
use crate::meter::CpuSpent;
use crate::stage::CallError;
use crate::state::{Denied, HostState};
use std::time::Duration;
use wasmtime::{Error, Trap};

/// A call that ended in an error of wasmtime; `cpu` is the limit that held.
pub(crate) fn of_call(error: &Error, state: &HostState, cpu: Duration) -> CallError {
    let plugin = state.blueprint.name.to_string();
    if let Some(denied) = state.memory.denied() {
        return of_memory(denied, state);
    }
    if error.downcast_ref::<CpuSpent>().is_some() {
        return CallError::Deadline { plugin, clock: "cpu", limit: cpu };
    }
    match error.downcast_ref::<Trap>() {
        Some(trap) => CallError::Trap { plugin, message: explain(*trap) },
        // What is no trap is a result that cannot be lifted: text that is not UTF-8, a pointer out of memory, ...
        None => bad_result(plugin, error, state.blueprint.limits.output_bytes),
    }
}

/// A refused growth of memory.
pub(crate) fn of_memory(denied: Denied, state: &HostState) -> CallError {
    let plugin = state.blueprint.name.to_string();
    match denied {
        Denied::Instance { asked } => CallError::Memory { plugin, asked, limit: state.blueprint.limits.memory_bytes },
        Denied::Host => {
            let (what, key) = ("bytes of memory", "plugins.memory_mib");
            CallError::Full { plugin, what, key, limit: state.memory.host_limit() }
        }
        Denied::Table { asked } => {
            let message = format!("it asked for a table of {asked} elements; none may have more than {TABLE_ELEMENTS}");
            CallError::Trap { plugin, message }
        }
    }
}

/// An instance that did not come to be.
pub(crate) fn of_start(error: &Error, blueprint: &Blueprint) -> CallError {
    let plugin = blueprint.name.to_string();
    if let Some(known) = error.downcast_ref::<CallError>() {
        return known.clone();
    }
    if error.downcast_ref::<CpuSpent>().is_some() {
        return CallError::Start { plugin, clock: "cpu", limit: blueprint.configure_cpu };
    }
    CallError::Trap { plugin, message: format!("it does not start: {error:#}") }
}

/// An instance that was not made and configured in time.
pub(crate) fn of_slow_start(blueprint: &Blueprint) -> CallError {
    CallError::Start { plugin: blueprint.name.to_string(), clock: "wall", limit: blueprint.configure_wall() }
}

/// A call of `describe` or `configure` that ended in an error of wasmtime.
pub(crate) fn of_trial(error: &Error, state: &HostState) -> CallError {
    match of_call(error, state, state.blueprint.configure_cpu) {
        CallError::Deadline { plugin, clock, limit } => CallError::Start { plugin, clock, limit },
        other => other,
    }
}

/// The failure without the plugin's own words, which may have something of a request of which nothing may be kept.
pub(crate) fn without_words(error: CallError) -> CallError {
    let left_out = || "its words are left out, since nothing of this request may be kept".to_owned();
    match error {
        CallError::Plugin { plugin, case, .. } => CallError::Plugin { plugin, case, message: left_out() },
        CallError::BadResult { plugin, .. } => CallError::BadResult { plugin, message: left_out() },
        other => other,
    }
}

/// What the plugin itself said.
pub(crate) fn of_plugin(plugin: &str, error: wit::Error) -> CallError {
    let (case, message) = match error {
        wit::Error::InvalidConfig(message) => ("invalid-config", message),
        wit::Error::InvalidInput(message) => ("invalid-input", message),
        wit::Error::Denied(message) => ("denied", message),
        wit::Error::Unavailable(message) => ("unavailable", message),
        wit::Error::Timeout(message) => ("timeout", message),
        wit::Error::Unsupported(message) => ("unsupported", message),
        wit::Error::Other(message) => ("other", message),
    };
    CallError::Plugin { plugin: plugin.into(), case, message }
}

fn explain(trap: Trap) -> String {
    let hint = match trap {
        Trap::UnreachableCodeReached => {
            " (a panic, an abort, or what a script answered is not as `wit/` has it; the plugin's log may say why)"
        }
        Trap::MemoryOutOfBounds | Trap::StackOverflow => " (a stray pointer or too deep a recursion)",
        _ => "",
    };
    format!("{trap}{hint}")
}

fn bad_result(plugin: String, error: &Error, output_bytes: usize) -> CallError {
    let message = format!("{error:#}");
    // wasmtime keeps this error's type to itself; a test holds the wording.
    if message.contains("fuel allocated for hostcalls has been exhausted") {
        return CallError::TooLarge { plugin, limit: output_bytes };
    }
    CallError::BadResult { plugin, message }
}
