//! A generation that outlives its connection (`x-tidegate-resumable`): a task reads the reply and writes a log, and
//! connections read the log. Invariant: the log's last event is `[DONE]` or an error, whatever happens here.

use crate::backend::Reply;
use crate::error;
use crate::events::{BUFFER_BYTES, Encoding, First, Written};
use crate::server::Api;
use bytes::{Bytes, BytesMut};
use std::future::poll_fn;
use std::sync::Arc;
use tidegate_streams::Writer;
use tidegate_types::Reject;
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
                () = poll_fn(|cx| writer.poll_stopped(cx)) => Some(Err(Reject::cancelled())),
                () = api.phase.cutting.cancelled() => Some(Err(error::stopping())),
            },
        };
        let written = encoding.write(event, &mut buffer);
        append(&mut writer, buffer.split().freeze());
        let cut = writer.cut().map(|reject| Written::End(Err(reject)));
        // Nobody could read the rest.
        if let Written::End(outcome) = cut.unwrap_or(written) {
            if let Err(reject) = &outcome {
                reply.fail(reject);
            }
            return writer.end(outcome);
        }
    }
}

/// Appends whole events, which stay together.
pub(crate) fn append(writer: &mut Writer, mut events: Bytes) {
    let mut whole = Vec::new();
    while let Some(end) = end_of_event(&events) {
        whole.push(events.split_to(end));
    }
    if !whole.is_empty() {
        writer.append_together(whole);
    }
}

/// Events of a stream that comes in pieces, which may end within an event.
#[derive(Default)]
pub(crate) struct Pieces {
    /// What has come of an event.
    begun: BytesMut,
    /// Of that, what is known to have no end of an event.
    searched: usize,
}

impl Pieces {
    /// Adds a piece; gives the events that are whole with it.
    pub(crate) fn add(&mut self, piece: &[u8]) -> Vec<Bytes> {
        self.begun.extend_from_slice(piece);
        let mut whole = Vec::new();
        while let Some(at) = end_of_event(&self.begun[self.searched..]) {
            whole.push(self.begun.split_to(self.searched + at).freeze());
            self.searched = 0;
        }
        // The end may be half there.
        self.searched = self.begun.len().saturating_sub(1);
        whole
    }
}

/// An event ends with an empty line, and has none inside: JSON escapes them.
fn end_of_event(bytes: &[u8]) -> Option<usize> {
    bytes.windows(2).position(|pair| pair == b"\n\n").map(|at| at + 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_whole_wherever_their_stream_was_broken() {
        let events = ["id: 1\ndata: {}\n\n", ": \n\n", "\n\n", "event: x\ndata: [\"\\n\\n\"]\n\n", "data: [DONE]\n\n"];
        let stream = events.concat();
        for size in 1..=stream.len() {
            let mut pieces = Pieces::default();
            let whole: Vec<Bytes> = stream.as_bytes().chunks(size).flat_map(|piece| pieces.add(piece)).collect();
            assert_eq!(whole, events, "in pieces of {size}");
        }
    }
}
