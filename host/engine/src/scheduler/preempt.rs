//! Preemption: who must give back its blocks, and when.
//!
//! A preempted sequence keeps its tokens and goes to the front of its class; its full blocks stay findable, so
//! coming back usually costs only the tail. Each job is preempted at most `max_preemptions` times while another can
//! be. Every step that preempts for want of blocks also draws a token, so sequences cannot push each other out
//! for ever.

use super::{Event, Scheduler};
use crate::blocks::BlockPool;
use crate::sequence::{Flight, Sequence, State};
use tidegate_fair::Ticket;
use tidegate_types::{Class, Fault, JobId, Reject};

/// Order of victims, the greatest first: may be preempted, lowest class, most over-served tenant, latest arrival.
type Victim = (bool, Class, u128, Ticket);

impl Scheduler {
    /// Gives each running sequence room for its tokens, at the cost of others where blocks ran out. Says whether
    /// nobody was preempted.
    pub(super) fn grow_running(&mut self) -> bool {
        let mut everybody_fits = true;
        for id in self.running.clone() {
            while self.is_running(id) && !self.grow(id) {
                everybody_fits = false;
                match self.victim() {
                    Some(victim) => self.preempt(victim),
                    None => break,
                }
            }
        }
        everybody_fits
    }

    /// Whether the running sequences' next tokens fit without anybody's blocks.
    pub(super) fn everybody_fits(&self) -> bool {
        let running = self.running.iter().filter_map(|id| self.sequences.get(id));
        let missing = |s: &Sequence| s.blocks_needed(self.rules.context).saturating_sub(s.blocks.len());
        running.map(missing).sum::<usize>() <= self.pool.num_free()
    }

    /// The job of class `Batch` that makes room for a waiting one of a better class that cannot be admitted. One in a
    /// step is enough: the next step comes soon. Nobody yields to one that would have to wait all the same: for blocks of
    /// others, or for a prompt like its own.
    pub(super) fn who_yields(&mut self) -> Option<JobId> {
        let yields = |sequence: &&Sequence| {
            sequence.owner.class == Class::Batch && sequence.num_preemptions < self.rules.max_preemptions
        };
        let batch = self.running.iter().filter_map(|id| self.sequences.get(id)).filter(yields);
        let mut batch: Vec<_> = batch.map(|sequence| (self.rank(sequence), sequence.id)).collect();
        batch.sort_unstable();
        let (_, victim) = batch.last().copied()?;
        let head = self.who_may_come()?;
        let waits_for_nobody = self.sequences.get(&head).is_none_or(|head| head.owner.class == Class::Batch);
        let slot_free = self.running.len() < self.rules.limits.max_seqs;
        if waits_for_nobody || (slot_free && self.can_admit(head)) {
            return None;
        }
        let batch: Vec<_> = batch.into_iter().map(|(_, id)| id).collect();
        self.can_admit_without(head, &batch).then_some(victim)
    }

    /// After the device was lost while it computed the `blamed`: everything that ran waits again, computed from
    /// nothing, and the blamed will be tried one by one. Returns the end of those that were blamed too often.
    pub fn recover(&mut self, blamed: &[JobId]) -> Vec<Event> {
        self.pool = BlockPool::new(self.rules.limits.num_blocks);
        self.num_applied = self.num_planned;
        for id in std::mem::take(&mut self.running) {
            let Some(sequence) = self.sequences.get_mut(&id) else { continue };
            sequence.blocks.clear();
            (sequence.computed, sequence.published, sequence.state) = (0, 0, State::Waiting);
            sequence.flight = Flight::default();
            self.queue.put_back(&sequence.owner, sequence.ticket, id);
        }
        let mut ended = Vec::new();
        for id in blamed {
            self.blame(*id, &mut ended);
        }
        ended
    }

    fn blame(&mut self, id: JobId, ended: &mut Vec<Event>) {
        let Some(sequence) = self.sequences.get_mut(&id) else { return };
        if sequence.restarts.allow(sequence.output().len(), self.rules.max_restarts) {
            self.suspects.insert(id);
        } else {
            self.fail(id, lost_too_often(), ended);
        }
    }

    fn is_running(&self, id: JobId) -> bool {
        self.sequences.get(&id).is_some_and(|sequence| sequence.state == State::Running)
    }

    /// Adds blocks until the sequence's tokens fit.
    fn grow(&mut self, id: JobId) -> bool {
        let Some(sequence) = self.sequences.get_mut(&id) else { return true };
        while sequence.blocks.len() < sequence.blocks_needed(self.rules.context) {
            let Some(block) = self.pool.allocate() else { return false };
            sequence.blocks.push(block);
        }
        true
    }

    fn rank(&self, sequence: &Sequence) -> Victim {
        let may_be = sequence.num_preemptions < self.rules.max_preemptions;
        (may_be, sequence.owner.class, self.queue.served(&sequence.owner), sequence.ticket)
    }

    fn victim(&self) -> Option<JobId> {
        let running = self.running.iter().filter_map(|id| self.sequences.get(id));
        running.max_by_key(|sequence| self.rank(sequence)).map(|sequence| sequence.id)
    }

    pub(super) fn preempt(&mut self, id: JobId) {
        let Some(mut sequence) = self.sequences.remove(&id) else { return };
        self.running.retain(|running| *running != id);
        self.drop_blocks(&mut sequence);
        sequence.state = State::Waiting;
        sequence.num_preemptions += 1;
        self.counters.preemptions += 1;
        self.queue.put_back(&sequence.owner, sequence.ticket, id);
        self.sequences.insert(id, sequence);
    }
}

/// The end of a job that was running each time the device was lost.
pub(crate) fn lost_too_often() -> Reject {
    Reject::unavailable(Fault::Engine, "the engine failed repeatedly while it worked on this request", 5)
        .code("engine_failed")
}
