//! Requests for vectors over an engine without a model, which computes a step when the test lets it.

use super::*;
use crate::embed::{Reading, Wanted};
use crate::models::{Makes, ModelBackend};
use arc_swap::ArcSwap;
use std::path::Path;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, OnceLock};
use tidegate_device::{Batch, DeviceError, Drawn, Executor, Limits, SampleRow};
use tidegate_engine::toy::{self, Faults, ToyExecutor};
use tidegate_engine::{EngineConfig, EngineHandle};
use tidegate_types::{EmbedRequest, Pooling, Quota, Sampling};

const VOCAB: usize = 50;
const CONTEXT: usize = 64;

struct Gated(ToyExecutor, Receiver<()>);

impl Executor for Gated {
    fn forward(&mut self, batch: &Batch<'_>) -> Result<(), DeviceError> {
        // An error means that all steps may be computed.
        let _ = self.1.recv();
        self.0.forward(batch)
    }
    fn sample(&mut self, rows: &[SampleRow<'_>]) -> Result<(), DeviceError> {
        self.0.sample(rows)
    }
    fn collect(&mut self) -> Result<Vec<Drawn>, DeviceError> {
        self.0.collect()
    }
    fn logits(&self, _segment: usize) -> Option<&[f32]> {
        None
    }
    fn vector(&self, segment: usize, row: usize) -> Option<&[f32]> {
        self.0.vector(segment, row)
    }
}

/// One job runs at once and one waits; each step takes a permit.
fn model() -> (Model, SyncSender<()>) {
    let (permit, permits) = sync_channel(100);
    let mut permits = Some(permits);
    let load = move |limits: Limits| {
        let toy = ToyExecutor::new(VOCAB, limits, Faults::default()).with_vectors(Pooling::LastToken);
        Ok(Box::new(Gated(toy, permits.take().expect("loaded once"))) as Box<dyn Executor>)
    };
    let config = EngineConfig { kv_cache_mib: Some(1), max_seqs: 1, max_queued_jobs: 1, ..EngineConfig::default() };
    let facts = toy::vector_facts(VOCAB, CONTEXT, Pooling::LastToken);
    let engine = EngineModel {
        fingerprint: String::new(),
        handle: EngineHandle::start(config, facts, Box::new(load)).expect("it starts"),
        text: starter(),
        grammars: None,
        stop_token_ids: Vec::new(),
        defaults: Sampling::default(),
        makes: Makes::Vectors { dimensions: 3 },
    };
    let model = Model {
        name: "m".into(),
        created: 0,
        context_tokens: CONTEXT as u32,
        quota: ArcSwap::from_pointee(Quota::default()),
        fallbacks: Vec::new(),
        backend: ModelBackend::Engine(Box::new(engine)),
    };
    (model, permit)
}

fn starter() -> Arc<TextModel> {
    static MODEL: OnceLock<Arc<TextModel>> = OnceLock::new();
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../gateway/assets/starter");
    Arc::clone(MODEL.get_or_init(|| Arc::new(TextModel::open(&dir).expect("the starter model opens"))))
}

fn engine(model: &Model) -> &EngineModel {
    match &model.backend {
        ModelBackend::Engine(engine) => engine,
        ModelBackend::Upstream(_) => panic!("it is the own engine's"),
    }
}

/// Those before it would be computed and billed for nothing.
#[tokio::test]
async fn a_prompt_that_the_model_cannot_read_is_refused_before_any_is_computed() {
    let (model, _permit) = model();
    let well = || EmbedInput::Tokens(vec![1, 2]);
    for (sick, message) in [
        (vec![1; CONTEXT + 1], "prompt has 65 tokens; model `toy` allows 64"),
        (vec![1, VOCAB as u32], "token 50 is not of model `toy`, which has 50"),
    ] {
        let inputs = vec![well(), well(), EmbedInput::Tokens(sick), well()];
        let asked = EmbedRequest { model: "m".into(), inputs, dimensions: None, user: None };
        let (bounds, holds) = (LengthBounds::default(), (0, Vec::new()));
        let reading = Reading::of(&model, &asked, Wanted::Vectors, &bounds, &Caller::local(), holds).await;
        let refused = reading.err().expect("it is refused");
        assert_eq!((refused.param.as_deref(), refused.message.as_str()), (Some("input[2]"), message));
    }
    assert_eq!(engine(&model).handle.stats().live_jobs, 0);
}

#[tokio::test]
async fn a_queue_that_others_fill_meanwhile_costs_no_vector_that_was_made() {
    let (model, permit) = model();
    let (engine, caller, tally) = (engine(&model), Caller::local(), Tally::default());
    let others = Mutex::new(None);
    let of_each = |vector| {
        // The first is made, and the second not yet in the queue, which had a place for the first alone.
        let mut others = others.lock().expect("not poisoned");
        others.get_or_insert_with(|| {
            let job = || Job::of(&caller, engine.handle.next_job_id(), vec![9]);
            engine.handle.submit(job()).expect("there is a place")
        });
        vector
    };
    let made = by_engine(engine, &caller, vec![vec![1], vec![2]], of_each, &tally);
    let compute = async {
        permit.send(()).expect("the engine runs");
        while others.lock().expect("not poisoned").is_none() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        // It is refused at least once, and then finds a place.
        tokio::time::sleep(2 * PAUSE).await;
        drop(permit);
    };
    let (made, ()) = tokio::join!(made, compute);
    let expected = [vec![1], vec![2]].map(|prompt| toy::vector(Pooling::LastToken, &prompt));
    assert_eq!(made.expect("it waited").vectors, expected);
}

#[test]
fn a_shortened_vector_has_length_1_too() {
    assert_eq!(shortened(vec![3.0, 0.0, 4.0], None), [0.6, 0.0, 0.8]);
    assert_eq!(shortened(vec![0.0; 3], None), [0.0; 3]);
    let short = shortened(vec![3.0, 0.0, 4.0], Some(2));
    assert_eq!((&short[..], short.capacity()), (&[1.0, 0.0][..], 2));
    assert_eq!(shortened(vec![0.0; 3], Some(2)), [0.0; 2]);
}
