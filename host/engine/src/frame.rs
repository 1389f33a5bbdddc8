//! What parent and worker say to each other: frames of a little-endian `u32` length and as many bytes of postcard.
//!
//! Both ends are the same build of the same program, so the format needs no versions.

use crate::config::{EngineConfig, ModelFacts};
use crate::inbox::Command;
use crate::stats::Snapshot;
use crate::step::StepReport;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::io::{self, Read, Write};
use tidegate_types::JobId;

/// Longest frame: the events of a step or a prompt of some million tokens.
const MAX_FRAME_BYTES: usize = 64 << 20;

/// From the parent.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum ToWorker {
    /// Comes first: how to run, and the model that the parent expects.
    Setup { config: EngineConfig, facts: ModelFacts, beginning: Beginning },
    /// For the loop.
    Command(Command),
}

/// Which worker it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Beginning {
    /// Nothing was lost yet.
    First,
    /// It replaces one, and computes a token that is nobody's before it is ready.
    Again,
}

/// From the worker. Any frame says that the worker is alive.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum FromWorker {
    /// The model is loaded, and computes if that was asked.
    Ready,
    /// It could not be loaded; the worker ends.
    NotLoaded(String),
    /// A step with these jobs is being computed. Said of those that may kill the worker: with new jobs or suspects.
    Trying(Vec<JobId>),
    /// A step is done.
    Report(StepReport),
    /// There is no work.
    Resting(Snapshot),
    /// The device was lost while it computed these jobs; the worker ends.
    Lost { cause: String, blamed: Vec<JobId> },
}

/// Writes one frame and flushes.
pub(crate) fn write_frame(output: &mut impl Write, frame: &impl Serialize) -> io::Result<()> {
    let body = postcard::to_allocvec(frame).map_err(io::Error::other)?;
    if body.len() > MAX_FRAME_BYTES {
        return Err(io::Error::other(format!("a frame of {} bytes; {MAX_FRAME_BYTES} are allowed", body.len())));
    }
    output.write_all(&(body.len() as u32).to_le_bytes())?;
    output.write_all(&body)?;
    output.flush()
}

/// Reads one frame; `None` at the end of the stream.
pub(crate) fn read_frame<T: DeserializeOwned>(input: &mut impl Read) -> io::Result<Option<T>> {
    let mut length = [0; 4];
    match input.read_exact(&mut length) {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        other => other?,
    }
    let length = u32::from_le_bytes(length) as usize;
    if length > MAX_FRAME_BYTES {
        return Err(io::Error::other(format!("a frame of {length} bytes; {MAX_FRAME_BYTES} are allowed")));
    }
    let mut body = vec![0; length];
    input.read_exact(&mut body)?;
    postcard::from_bytes(&body).map(Some).map_err(io::Error::other)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sequence::Work;
    use tidegate_types::{
        Class, Fault, FinishReason, Job, JobEvent, Reject, SampledToken, SamplingParams, TenantId, Usage,
    };

    fn survives<T: Serialize + DeserializeOwned + PartialEq + std::fmt::Debug>(frames: &[T]) {
        let mut bytes = Vec::new();
        for frame in frames {
            write_frame(&mut bytes, frame).unwrap();
        }
        let mut input = &bytes[..];
        for frame in frames {
            assert_eq!(read_frame::<T>(&mut input).unwrap().as_ref(), Some(frame));
        }
        assert_eq!(read_frame::<T>(&mut input).unwrap(), None);
    }

    #[test]
    fn every_frame_survives_the_pipe() {
        let job = Job {
            id: JobId(7),
            prompt: vec![1, 2, 70_000],
            sampling: SamplingParams { logit_bias: vec![(3, -1.5)], logprobs: Some(2), ..SamplingParams::default() },
            max_tokens: 9,
            stop_token_ids: vec![2],
            grammar: Some("start: \"a\"".into()),
            tenant: TenantId::new("acme"),
            class: Class::Batch,
            weight: 3,
        };
        let work = Work { job, emitted: vec![4, 5], suspect: true };
        let facts = crate::toy::facts(10, 20);
        survives(&[
            ToWorker::Setup { config: EngineConfig::default(), facts, beginning: Beginning::Again },
            ToWorker::Command(Command::Submit(work)),
            ToWorker::Command(Command::Cancel(JobId(7))),
            ToWorker::Command(Command::Stop),
        ]);
        let token = SampledToken { id: 4, logprob: Some(-0.5), top: vec![(4, -0.5), (5, -1.0)] };
        let reject = Reject::unavailable(Fault::Engine, "full", 3).at("x").because("y");
        let events = vec![
            (JobId(1), JobEvent::Started { cached_tokens: 16 }),
            (JobId(1), JobEvent::Token(token)),
            (JobId(1), JobEvent::Finished { reason: FinishReason::Stop, usage: Usage::default() }),
            (JobId(2), JobEvent::Failed(reject)),
            (JobId(3), JobEvent::Vector(vec![0.5, -1.0e-9])),
        ];
        let report = StepReport { admitted: vec![JobId(1)], events, ..StepReport::default() };
        survives(&[
            FromWorker::Ready,
            FromWorker::NotLoaded("no".into()),
            FromWorker::Trying(vec![JobId(3)]),
            FromWorker::Report(report),
            FromWorker::Resting(Snapshot::default()),
            FromWorker::Lost { cause: "gone".into(), blamed: vec![JobId(1)] },
        ]);
    }

    #[test]
    fn a_cut_frame_is_an_error_and_a_huge_one_is_not_read() {
        let mut bytes = Vec::new();
        write_frame(&mut bytes, &FromWorker::NotLoaded("no".into())).unwrap();
        bytes.pop();
        assert!(read_frame::<FromWorker>(&mut &bytes[..]).is_err());
        assert!(read_frame::<FromWorker>(&mut &u32::MAX.to_le_bytes()[..]).is_err());
    }
}
