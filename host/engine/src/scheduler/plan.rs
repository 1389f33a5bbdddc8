//! Planning: running sequences first, then waiting ones in the queue's order, under the budget of tokens.
//!
//! A waiting sequence is admitted whole: blocks for all its tokens, or it goes on waiting and nobody behind it
//! overtakes. Only a prompt that begins like one that is being computed lets others pass: as soon as the blocks are
//! there it finds them in the cache (the `n` answers to one prompt compute it once). A prompt may be computed in pieces; while others wait for tokens, one takes at most half of what is
//! left of the budget, so that a long prompt delays short ones little and itself at most by half.

use super::Scheduler;
use crate::config::BLOCK_TOKENS;
use crate::prefix::BlockHash;
use crate::sequence::{Sequence, State};
use std::collections::{HashMap, HashSet};
use tidegate_device::BlockId;
use tidegate_types::JobId;

/// Work for one sequence in one step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Item {
    /// The sequence.
    pub id: JobId,
    /// Position of the first.
    pub start: usize,
    /// How many of its next tokens are computed.
    pub num_tokens: usize,
    /// They are the last ones: a token is drawn, or the vector made.
    pub samples: bool,
}

/// One step.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// At most one for a sequence; decodes before prompts.
    pub items: Vec<Item>,
    /// Jobs that left the queue for the first time.
    pub admitted: Vec<JobId>,
}

impl Scheduler {
    /// Decides the next step, all before it being applied. Changes who runs and holds blocks; what is computed changes
    /// in `apply`.
    pub fn plan(&mut self) -> Plan {
        debug_assert_eq!(self.num_planned, self.num_applied, "a step is not applied");
        let plan = self.plan_suspect().unwrap_or_else(|| {
            if let Some(victim) = self.who_yields() {
                self.preempt(victim);
            }
            let everybody_fits = self.grow_running();
            self.plan_all(everybody_fits)
        });
        self.take_off(&plan);
        plan
    }

    /// Decides the step after one that is being computed. `None` where there is nothing to do without its outcome,
    /// or where only that can tell what to do: somebody would have to give back blocks, or is to be tried alone.
    pub fn plan_ahead(&mut self) -> Option<Plan> {
        if !self.suspects.is_empty() || !self.everybody_fits() || self.who_yields().is_some() {
            return None;
        }
        let everybody_fits = self.grow_running();
        let plan = self.plan_all(everybody_fits);
        if plan.items.is_empty() {
            return None;
        }
        self.take_off(&plan);
        Some(plan)
    }

    /// From here on the plan's work counts as coming.
    fn take_off(&mut self, plan: &Plan) {
        self.num_planned += 1;
        for item in &plan.items {
            let Some(sequence) = self.sequences.get_mut(&item.id) else { continue };
            let flight = &mut sequence.flight;
            flight.steps += 1;
            flight.computes += item.num_tokens;
            flight.draws += usize::from(item.samples);
        }
    }

    fn plan_all(&mut self, everybody_fits: bool) -> Plan {
        let mut plan = Plan::default();
        let mut budget = self.rules.limits.max_batch_tokens;
        self.plan_decodes(&mut plan, &mut budget);
        let first_prompt = plan.items.len();
        self.plan_prompts(&mut plan, &mut budget);
        if everybody_fits {
            self.admit_waiting(&mut plan, &mut budget);
        }
        self.spend_rest(&mut plan.items[first_prompt..], budget);
        self.mark_samples(&mut plan);
        plan
    }

    /// While there are suspects, whoever is admitted next is computed alone: a suspect to its last token, since nobody
    /// knows over which piece of it a device was lost.
    fn plan_suspect(&mut self) -> Option<Plan> {
        if self.suspects.is_empty() {
            return None;
        }
        let mut plan = Plan::default();
        let id = match self.running.iter().find(|id| self.suspects.contains(id)) {
            Some(id) => *id,
            None => self.admit_alone(&mut plan)?,
        };
        self.plan_piece(id, false, &mut plan, &mut self.rules.limits.max_batch_tokens.clone());
        self.mark_samples(&mut plan);
        Some(plan)
    }

    fn admit_alone(&mut self, plan: &mut Plan) -> Option<JobId> {
        if self.running.len() >= self.rules.limits.max_seqs {
            return None;
        }
        let id = self.queue.peek().copied().filter(|id| self.can_admit(*id))?;
        self.queue.pop();
        self.note_admission(id, plan);
        Some(id)
    }

    fn mark_samples(&self, plan: &mut Plan) {
        for item in &mut plan.items {
            item.samples = self.remaining(item.id) == item.num_tokens;
        }
    }

    /// One token for each sequence that needs just one. `max_seqs <= max_batch_tokens`, so all fit.
    fn plan_decodes(&self, plan: &mut Plan, budget: &mut usize) {
        for id in self.running.iter().filter(|id| self.remaining(**id) == 1) {
            plan.items.push(Item { id: *id, start: self.planned(*id), num_tokens: 1, samples: true });
            *budget = budget.saturating_sub(1);
        }
    }

    /// Pieces for running sequences whose prompt is not computed yet, in order of admission.
    fn plan_prompts(&self, plan: &mut Plan, budget: &mut usize) {
        let prompts: Vec<_> = self.running.iter().copied().filter(|id| self.remaining(*id) > 1).collect();
        for (index, id) in prompts.iter().enumerate() {
            let others_wait = index + 1 < prompts.len() || !self.queue.is_empty();
            self.plan_piece(*id, others_wait, plan, budget);
        }
    }

    /// Takes jobs from the queue while slots, blocks and budget last.
    fn admit_waiting(&mut self, plan: &mut Plan, budget: &mut usize) {
        // Made once: of thousands of long prompts it takes longer than all else here.
        let mut coming = if self.queue.is_empty() { HashSet::new() } else { self.coming_blocks() };
        while *budget > 0 && self.running.len() < self.rules.limits.max_seqs && !self.queue.is_empty() {
            let may = |id: &JobId| !self.begins_like(*id, &coming);
            let Some(id) = self.queue.peek_where(may).copied() else { return };
            if !self.can_admit(id) {
                return;
            }
            self.queue.pop_where(|next| *next == id);
            self.note_admission(id, plan);
            coming.extend(self.sequences.get(&id).into_iter().flat_map(coming_of));
            self.plan_piece(id, !self.queue.is_empty(), plan, budget);
        }
    }

    /// The first in the queue that waits for no prompt like its own.
    pub(super) fn who_may_come(&self) -> Option<JobId> {
        let coming = self.coming_blocks();
        self.queue.peek_where(|id| !self.begins_like(*id, &coming)).copied()
    }

    /// Names of the full blocks that running sequences are about to compute.
    fn coming_blocks(&self) -> HashSet<BlockHash> {
        self.running.iter().filter_map(|id| self.sequences.get(id)).flat_map(coming_of).collect()
    }

    /// Whether the first block that a waiting sequence does not find is one of these.
    fn begins_like(&self, id: JobId, coming: &HashSet<BlockHash>) -> bool {
        let Some(sequence) = self.sequences.get(&id).filter(|_| !coming.is_empty()) else { return false };
        let mut usable = sequence.hashes.iter().take(sequence.max_cached_blocks());
        usable.find(|hash| self.pool.find(hash).is_none()).is_some_and(|missing| coming.contains(missing))
    }

    fn plan_piece(&self, id: JobId, others_wait: bool, plan: &mut Plan, budget: &mut usize) {
        let share = if others_wait { (*budget / 2).max(BLOCK_TOKENS) } else { *budget };
        let num_tokens = self.remaining(id).min(share).min(*budget);
        if num_tokens > 0 {
            plan.items.push(Item { id, start: self.planned(id), num_tokens, samples: false });
            *budget -= num_tokens;
        }
    }

    /// What nobody else wanted goes to the prompts in order.
    fn spend_rest(&self, prompts: &mut [Item], mut budget: usize) {
        for item in prompts {
            let more = (self.remaining(item.id) - item.num_tokens).min(budget);
            item.num_tokens += more;
            budget -= more;
        }
    }

    fn remaining(&self, id: JobId) -> usize {
        self.sequences.get(&id).map_or(0, |sequence| sequence.remaining(self.rules.context))
    }

    fn planned(&self, id: JobId) -> usize {
        self.sequences.get(&id).map_or(0, |sequence| sequence.planned())
    }

    /// Whether there are blocks for all tokens of a waiting sequence, and a few to spare for those that run.
    pub(super) fn can_admit(&mut self, id: JobId) -> bool {
        self.can_admit_without(id, &[])
    }

    /// The same as if some of the running ones had given back what they hold.
    pub(super) fn can_admit_without(&mut self, id: JobId, gone: &[JobId]) -> bool {
        let hits = self.cached_blocks(id);
        let Some(sequence) = self.sequences.get(&id) else { return false };
        let spare = if self.running.len() == gone.len() { 0 } else { (self.pool.num_blocks() / 100).max(1) };
        let free = self.pool.num_free() - hits.iter().filter(|block| self.pool.is_free(**block)).count();
        let given_back = self.held_alone(gone, &hits);
        sequence.blocks_needed(self.rules.context) - hits.len() + spare <= free + given_back
    }

    /// How many blocks nobody but these sequences holds, other than some.
    fn held_alone(&self, ids: &[JobId], other_than: &[BlockId]) -> usize {
        let mut holders = HashMap::<BlockId, u32>::new();
        let sequences = ids.iter().filter_map(|id| self.sequences.get(id));
        sequences.flat_map(|sequence| &sequence.blocks).for_each(|block| *holders.entry(*block).or_default() += 1);
        for block in other_than {
            holders.remove(block);
        }
        holders.into_iter().filter(|(block, num_holders)| self.pool.is_held_by(*block, *num_holders)).count()
    }

    fn note_admission(&mut self, id: JobId, plan: &mut Plan) {
        if self.admit(id) {
            plan.admitted.push(id);
        }
    }

    /// Gives a sequence its blocks; says whether it is the first time.
    fn admit(&mut self, id: JobId) -> bool {
        let hits = self.cached_blocks(id);
        let Some(sequence) = self.sequences.get_mut(&id) else { return false };
        for block in &hits {
            self.pool.retain(*block);
        }
        (sequence.computed, sequence.published) = (hits.len() * BLOCK_TOKENS, hits.len());
        sequence.blocks = hits;
        let missing = sequence.blocks_needed(self.rules.context) - sequence.blocks.len();
        sequence.blocks.extend((0..missing).map_while(|_| self.pool.allocate()));
        sequence.state = State::Running;
        self.running.push(id);
        let first = sequence.cached_tokens.is_none();
        if first {
            self.count_first_admission(id);
        }
        first
    }

    fn count_first_admission(&mut self, id: JobId) {
        let Some(sequence) = self.sequences.get_mut(&id) else { return };
        let num_prompt = sequence.prompt().len();
        let num_cached = sequence.computed.min(num_prompt);
        sequence.cached_tokens = Some(num_cached);
        self.counters.prompt_tokens += num_prompt as u64;
        self.counters.prefix_hits += num_cached as u64;
        self.counters.prefix_queries += if self.rules.prefix_cache { num_prompt as u64 } else { 0 };
        self.queue.charge(&sequence.owner, (num_prompt - num_cached) as u64);
    }

    /// The longest run of findable blocks at the start of a sequence, short of its last token.
    fn cached_blocks(&mut self, id: JobId) -> Vec<BlockId> {
        let Some(sequence) = self.sequences.get_mut(&id).filter(|_| self.rules.prefix_cache) else {
            return Vec::new();
        };
        sequence.extend_hashes(&self.hasher);
        sequence.hashes.iter().take(sequence.max_cached_blocks()).map_while(|hash| self.pool.find(hash)).collect()
    }
}

/// Names of the full blocks that a running sequence is about to compute.
fn coming_of(sequence: &Sequence) -> impl Iterator<Item = BlockHash> {
    let is_prompt = sequence.unconfirmed() > 1;
    let num_hashes = if is_prompt { sequence.hashes.len() } else { 0 };
    sequence.hashes[..num_hashes].iter().skip(sequence.computed / BLOCK_TOKENS).copied()
}
