//! Applying a computed step: blocks become findable, tokens go to their sequences, ended ones free their blocks.

use super::{Event, Item, Plan, Scheduler};
use crate::config::BLOCK_TOKENS;
use tidegate_types::{Fault, FinishReason, JobEvent, JobId, Pooling, Reject, SampledToken};

/// Cost of a drawn token relative to a computed prompt token, in a tenant's counter (as in the VTC paper).
const OUTPUT_COST: u64 = 2;

/// What became of one item of a plan.
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    /// Computed; with the drawn token where the item samples.
    Computed(Option<SampledToken>),
    /// Computed, by a model that makes vectors; with the rows that were kept.
    Rows(Vec<Vec<f32>>),
    /// Computed, but what may be drawn was not known in time: its last token is computed again, and drawn behind then.
    PutOff,
    /// This item failed; the others did not.
    Failed(Reject),
}

impl Scheduler {
    /// Takes the outcome of the oldest plan that was not applied, item by item in its order. A job that has ended since
    /// it was planned is passed over.
    pub fn apply(&mut self, plan: &Plan, outcomes: Vec<Outcome>) -> Vec<Event> {
        debug_assert_eq!(plan.items.len(), outcomes.len());
        self.num_applied += 1;
        self.pool.pass(self.num_applied);
        let mut events = Vec::with_capacity(outcomes.len());
        for (item, outcome) in plan.items.iter().zip(outcomes) {
            self.land(item);
            if item.samples {
                self.suspects.remove(&item.id);
            }
            match outcome {
                Outcome::Computed(token) => {
                    self.advance(item.id, item.num_tokens);
                    if let Some(token) = token {
                        self.take_token(item.id, token, &mut events);
                    }
                }
                Outcome::Rows(rows) => {
                    self.advance(item.id, item.num_tokens);
                    self.take_rows(item, &rows, &mut events);
                }
                Outcome::PutOff => self.advance(item.id, item.num_tokens.saturating_sub(1)),
                Outcome::Failed(reject) => self.fail(item.id, reject, &mut events),
            }
        }
        self.counters.steps += 1;
        events
    }

    /// The step of this item is done.
    fn land(&mut self, item: &Item) {
        let Some(sequence) = self.sequences.get_mut(&item.id) else { return };
        let flight = &mut sequence.flight;
        debug_assert!(flight.steps > 0 && flight.computes >= item.num_tokens, "{} was not planned", item.id);
        flight.steps = flight.steps.saturating_sub(1);
        flight.computes = flight.computes.saturating_sub(item.num_tokens);
        flight.draws = flight.draws.saturating_sub(usize::from(item.samples));
    }

    /// Ends a job with an error.
    pub fn fail(&mut self, id: JobId, reject: Reject, events: &mut Vec<Event>) {
        if self.sequences.contains_key(&id) {
            self.remove(id);
            self.counters.failed += 1;
            events.push((id, JobEvent::Failed(reject)));
        }
    }

    /// Counts computed tokens and offers blocks that became full to the prefix cache.
    fn advance(&mut self, id: JobId, num_tokens: usize) {
        self.counters.computed_tokens += num_tokens as u64;
        let Some(sequence) = self.sequences.get_mut(&id) else { return };
        sequence.computed += num_tokens;
        let full = sequence.computed / BLOCK_TOKENS;
        if !self.rules.prefix_cache || full == sequence.published {
            return;
        }
        sequence.extend_hashes(&self.hasher);
        for index in sequence.published..full {
            self.pool.publish(sequence.blocks[index], sequence.hashes[index]);
        }
        sequence.published = full;
    }

    /// Adds rows to a vector, and ends the job with it once the last of them is there.
    fn take_rows(&mut self, item: &Item, rows: &[Vec<f32>], events: &mut Vec<Event>) {
        let pooling = self.rules.pooling.unwrap_or(Pooling::LastToken);
        let Some(sequence) = self.sequences.get_mut(&item.id) else { return };
        sequence.pooled.add(pooling, (item.start, item.num_tokens), rows);
        if !item.samples {
            return;
        }
        let (vector, usage) = (sequence.pooled.vector(pooling), sequence.usage());
        if vector.iter().any(|x| !x.is_finite()) {
            let why = format!("the vector of {} has a number that is not finite", item.id);
            return self.fail(item.id, Reject::internal(Fault::Engine, why), events);
        }
        events.extend(sequence.start().map(|event| (item.id, event)));
        events.push((item.id, JobEvent::Vector(vector)));
        self.remove(item.id);
        self.counters.finished += 1;
        events.push((item.id, JobEvent::Finished { reason: FinishReason::Stop, usage }));
    }

    fn take_token(&mut self, id: JobId, token: SampledToken, events: &mut Vec<Event>) {
        let Some(sequence) = self.sequences.get_mut(&id) else { return };
        events.extend(sequence.start().map(|event| (id, event)));
        let accepted = sequence.accept(&token, self.rules.context);
        let usage = sequence.usage();
        self.queue.charge(&sequence.owner, OUTPUT_COST);
        if accepted.is_part() {
            self.counters.generation_tokens += 1;
            events.push((id, JobEvent::Token(token)));
        }
        if let Some(reason) = accepted.finish() {
            self.remove(id);
            self.counters.finished += 1;
            events.push((id, JobEvent::Finished { reason, usage }));
        }
    }
}
