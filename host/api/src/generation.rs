//! A generation that outlives its connection (`x-tidegate-resumable`): a task reads the reply and writes a log, and
//! connections read the log. Invariant: the log's last event is `[DONE]` or an error, whatever happens here, or its outcome is.

use crate::backend::Reply;
use crate::error;
use crate::events::{BUFFER_BYTES, Encoding, First, Written};
use crate::server::Api;
use bytes::{Bytes, BytesMut};
use std::future::poll_fn;
use std::sync::Arc;
use tidegate_streams::{TooLarge, Writer};
use tidegate_types::{Fault, Reject, RejectKind};
use tidegate_wire::StreamEncoder;

/// Writes `reply` to the log until it ends, somebody stops it, or the server stops. Dropping the reply frees what it
/// holds.
pub(crate) async fn run(api: Arc<Api>, mut writer: Writer, encoder: StreamEncoder, mut reply: Reply, mut first: First) {
    let mut encoding = Encoding::new(encoder);
    let mut buffer = BytesMut::with_capacity(BUFFER_BYTES);
    loop {
        let event = match first.take() {
            Some(event) => event,
            None => tokio::select! {
                event = reply.next() => event,
                () = poll_fn(|cx| writer.poll_stopped(cx)) => Some(Err(cancelled())),
                () = api.phase.cutting.cancelled() => Some(Err(error::stopping())),
            },
        };
        let written = encoding.write(event, &mut buffer);
        let outcome = match (append(&mut writer, buffer.split().freeze()), written) {
            (Err(too_large), _) => Err(too_large.into()),
            (Ok(()), Written::End(outcome)) => outcome,
            (Ok(()), Written::Later | Written::Part) => continue,
        };
        drop(reply);
        return writer.end(outcome);
    }
}

/// An event ends with an empty line, and has none inside: JSON escapes them. Of an event that the log does not take its
/// readers are told, and there is no more to be said.
pub(crate) fn append(writer: &mut Writer, mut events: Bytes) -> Result<(), TooLarge> {
    while let Some(at) = events.windows(2).position(|pair| pair == b"\n\n") {
        writer.append(events.split_to(at + 2))?;
    }
    Ok(())
}

pub(crate) fn cancelled() -> Reject {
    Reject::new(RejectKind::Invalid, Fault::Client, "the stream was cancelled").code("cancelled")
}
