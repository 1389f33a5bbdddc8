//! A worker process on the toy model, which can be told to die. The tests of process isolation run it; it is also
//! the shortest example of what a program does in its `engine-worker` subcommand.
//!
//! Arguments: `poison=TOKEN` dies whenever a step holds that token; `die=N` dies at the Nth forward, `hang=N` hangs there,
//! `lose=N` loses its device there, each only if the file of `once=FILE` can be created; `vocab=N`; `vectors=mean` makes
//! vectors; `slow=MS` takes so long to read its tokens, `pace=MS` for each forward. Its tokens are the printable characters of
//! ASCII, from 1 on.

#![allow(clippy::unwrap_used)] // A test program.

use std::sync::Arc;
use std::time::Duration;
use tidegate_device::{Batch, DeviceError, Drawn, Executor, SampleRow};
use tidegate_engine::toy::{self, Faults, ToyExecutor};
use tidegate_engine::{ModelFacts, worker};
use tidegate_grammar::{Grammars, Token};
use tidegate_types::Pooling;

/// Tokens of prompt and answer of the toy model.
const MAX_POSITIONS: usize = 256;

fn main() -> Result<(), tidegate_engine::EngineError> {
    let vocab = number("vocab").unwrap_or(50) as usize;
    let pooling = text("vectors").map(|_| Pooling::Mean);
    let factory = move |limits| {
        let toy = ToyExecutor::new(vocab, limits, Faults::default());
        let toy = if let Some(pooling) = pooling { toy.with_vectors(pooling) } else { toy };
        Ok(Box::new(Mortal { toy, num_forwards: 0 }) as Box<dyn Executor>)
    };
    let facts = ModelFacts { pooling, ..toy::facts(vocab, MAX_POSITIONS) };
    let grammars = Grammars::new(|| {
        std::thread::sleep(Duration::from_millis(number("slow").unwrap_or(0)));
        let characters = (b' '..=b'~').map(|byte| Token::Text(vec![byte]));
        Ok([Token::Mark("end".into())].into_iter().chain(characters).collect())
    });
    worker::run(std::io::stdin(), std::io::stdout(), &facts, Some(Arc::new(grammars)), Box::new(factory))
}

fn text(name: &str) -> Option<String> {
    std::env::args().find_map(|arg| arg.strip_prefix(name)?.strip_prefix('=').map(str::to_owned))
}

fn number(name: &str) -> Option<u64> {
    text(name).map(|text| text.parse().unwrap())
}

/// The toy, until it is told to die.
struct Mortal {
    toy: ToyExecutor,
    num_forwards: u64,
}

impl Mortal {
    /// Whether it is time for this fault; once in the life of all workers.
    fn is_time(&self, fault: &str) -> bool {
        number(fault) == Some(self.num_forwards)
            && text("once").is_none_or(|path| std::fs::File::create_new(path).is_ok())
    }
}

impl Executor for Mortal {
    fn forward(&mut self, batch: &Batch<'_>) -> Result<(), DeviceError> {
        self.num_forwards += 1;
        std::thread::sleep(Duration::from_millis(number("pace").unwrap_or(0)));
        let poison = number("poison").map(|token| token as u32);
        if self.is_time("die") || batch.segments.iter().any(|s| s.tokens.iter().any(|token| Some(*token) == poison)) {
            // Without a word, as by a signal.
            std::process::exit(9);
        }
        if self.is_time("lose") {
            return Err(DeviceError::Lost("told to".into()));
        }
        if self.is_time("hang") {
            loop {
                std::thread::park();
            }
        }
        self.toy.forward(batch)
    }

    fn sample(&mut self, rows: &[SampleRow<'_>]) -> Result<(), DeviceError> {
        self.toy.sample(rows)
    }

    fn collect(&mut self) -> Result<Vec<Drawn>, DeviceError> {
        self.toy.collect()
    }

    fn logits(&self, segment: usize) -> Option<&[f32]> {
        self.toy.logits(segment)
    }

    fn vector(&self, segment: usize, row: usize) -> Option<&[f32]> {
        self.toy.vector(segment, row)
    }
}
