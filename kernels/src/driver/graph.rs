//! A recorded piece of a stream, played again by one call.

use super::{Context, Stream, call};
use crate::error::CudaError;
use cudarc::driver::sys;
use std::sync::Arc;

/// What was queued while it was recorded. Addresses and sizes are those of the recording; what varies from one
/// play to the next must lie in device memory.
#[derive(Debug)]
pub struct Graph {
    handle: sys::CUgraphExec,
    context: Arc<Context>,
}

// SAFETY: only the thread that owns the executor uses it; the driver asks for no more.
unsafe impl Send for Graph {}

impl Graph {
    /// Records what `queue` queues on `stream`. If it fails, nothing was queued and the stream is as before.
    pub fn record<E: From<CudaError>>(
        context: &Arc<Context>,
        stream: &Stream,
        queue: impl FnOnce() -> Result<(), E>,
    ) -> Result<Self, E> {
        let mode = sys::CUstreamCaptureMode_enum::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        // SAFETY: a stream of ours.
        unsafe { call!(cuStreamBeginCapture_v2(stream.handle, mode))? };
        let queued = queue();
        let mut graph = std::ptr::null_mut();
        // SAFETY: ends the capture that was begun, also after a failure; `graph` is written.
        let ended = unsafe { call!(cuStreamEndCapture(stream.handle, &mut graph)) };
        let mut handle = std::ptr::null_mut();
        // SAFETY: a graph that was just recorded.
        let made = ended.and_then(|()| unsafe { call!(cuGraphInstantiateWithFlags(&mut handle, graph, 0)) });
        if !graph.is_null() {
            // SAFETY: recorded above and not used again.
            let _ = unsafe { call!(cuGraphDestroy(graph)) };
        }
        let recorded = made.map(|()| Self { handle, context: Arc::clone(context) });
        queued?;
        Ok(recorded?)
    }

    /// Queues all of it.
    pub fn launch(&self, stream: &Stream) -> Result<(), CudaError> {
        // SAFETY: both are ours, of one context.
        unsafe { call!(cuGraphLaunch(self.handle, stream.handle)) }
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        // SAFETY: made in `record`. A failure has no remedy here.
        let _ = self.context.bind().and(unsafe { call!(cuGraphExecDestroy(self.handle)) });
    }
}
