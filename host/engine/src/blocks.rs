//! The block pool: which cache blocks are in use, free, or free but still findable by their content.
//!
//! A block is one physical object of 16 positions over all layers. It is *used* while its reference count is
//! above 0 and *free* otherwise. A free block that was published under a hash stays findable until it is
//! handed out again: the free list, an intrusive doubly linked list in order of last use, is the LRU cache.
//!
//! A block whose holder is gone while a step that may use it is still running waits behind a *fence*, the number of
//! that step, and counts as used until the step is [passed](BlockPool::pass).
//!
//! Invariant: used + free = all; a hash names at most one block and that block knows the hash.
//! [`BlockPool::check`] proves it. Read next: [`crate::prefix`] for the hashes.

use crate::prefix::BlockHash;
use std::collections::{HashMap, VecDeque};
use tidegate_device::BlockId;

/// A link of the free list: a block, or an end.
type Link = Option<u32>;

#[derive(Clone, Debug, Default)]
struct Block {
    refs: u32,
    hash: Option<BlockHash>,
    prev: Link,
    next: Link,
}

/// Reference-counted blocks with an LRU of findable ones.
#[derive(Clone, Debug)]
pub struct BlockPool {
    blocks: Vec<Block>,
    by_hash: HashMap<BlockHash, BlockId>,
    head: Link,
    tail: Link,
    num_free: usize,
    /// Released behind the step of this number; in the order of the numbers.
    fenced: VecDeque<(u64, BlockId)>,
}

/// The pool's books do not balance: a defect here, never a caller's.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("block pool: {0}")]
pub struct PoolError(String);

impl BlockPool {
    /// A pool of free blocks.
    pub fn new(num_blocks: usize) -> Self {
        let mut pool = Self {
            blocks: vec![Block::default(); num_blocks],
            by_hash: HashMap::new(),
            head: None,
            tail: None,
            num_free: 0,
            fenced: VecDeque::new(),
        };
        for index in 0..num_blocks {
            pool.link_last(index as u32);
        }
        pool
    }

    /// Blocks in the pool.
    pub fn num_blocks(&self) -> usize {
        self.blocks.len()
    }

    /// Blocks that can be handed out, findable ones included.
    pub fn num_free(&self) -> usize {
        self.num_free
    }

    /// Blocks that some sequence holds.
    pub fn num_used(&self) -> usize {
        self.blocks.len() - self.num_free
    }

    /// Takes the block that was unused for longest; what it held is no longer findable.
    pub fn allocate(&mut self) -> Option<BlockId> {
        let index = self.head?;
        self.unlink(index);
        let block = &mut self.blocks[index as usize];
        block.refs = 1;
        if let Some(hash) = block.hash.take() {
            self.by_hash.remove(&hash);
        }
        Some(BlockId(index))
    }

    /// The block with this content, used or free.
    pub fn find(&self, hash: &BlockHash) -> Option<BlockId> {
        self.by_hash.get(hash).copied()
    }

    /// Whether a block is free, so that [`retain`](Self::retain) would take it from the free ones.
    pub fn is_free(&self, id: BlockId) -> bool {
        self.blocks[id.0 as usize].refs == 0
    }

    /// Whether so many are all who hold a block.
    pub(crate) fn is_held_by(&self, id: BlockId, num_holders: u32) -> bool {
        self.blocks[id.0 as usize].refs == num_holders
    }

    /// One more holder of a block that [`find`](Self::find) gave.
    pub fn retain(&mut self, id: BlockId) {
        if self.is_free(id) {
            self.unlink(id.0);
        }
        self.blocks[id.0 as usize].refs += 1;
    }

    /// One holder less. A findable block becomes the last to be reused, any other the first.
    pub fn release(&mut self, id: BlockId) {
        let block = &mut self.blocks[id.0 as usize];
        debug_assert!(block.refs > 0, "block {} released while free", id.0);
        block.refs = block.refs.saturating_sub(1);
        match (block.refs, block.hash.is_some()) {
            (0, true) => self.link_last(id.0),
            (0, false) => self.link_first(id.0),
            _ => {}
        }
    }

    /// One holder less, once step `fence` is passed; fences do not go back.
    pub fn release_behind(&mut self, fence: u64, id: BlockId) {
        debug_assert!(self.fenced.back().is_none_or(|(last, _)| *last <= fence), "fence {fence} goes back");
        self.fenced.push_back((fence, id));
    }

    /// Step `number` and all before it are done.
    pub fn pass(&mut self, number: u64) {
        while let Some((_, id)) = self.fenced.pop_front_if(|(fence, _)| *fence <= number) {
            self.release(id);
        }
    }

    /// Makes a full, computed block findable. Where another block has the same content already, that one stays.
    pub fn publish(&mut self, id: BlockId, hash: BlockHash) {
        debug_assert!(!self.is_free(id), "block {} published while free", id.0);
        if self.blocks[id.0 as usize].hash.is_none() && !self.by_hash.contains_key(&hash) {
            self.blocks[id.0 as usize].hash = Some(hash);
            self.by_hash.insert(hash, id);
        }
    }

    /// Proves the invariant. `num_held` is how many references the sequences hold together.
    pub fn check(&self, num_held: usize) -> Result<(), PoolError> {
        let refs: usize = self.blocks.iter().map(|block| block.refs as usize).sum();
        let num_fenced = self.fenced.len();
        if refs != num_held + num_fenced {
            let held = format!("sequences hold {num_held}, {num_fenced} wait for a step");
            return Err(PoolError(format!("{refs} references are counted, {held}")));
        }
        self.check_free_list()?;
        self.check_hashes()
    }

    fn check_free_list(&self) -> Result<(), PoolError> {
        let unreferenced = self.blocks.iter().filter(|block| block.refs == 0).count();
        let (mut listed, mut link, mut prev) = (0, self.head, None);
        while let Some(index) = link {
            let block = &self.blocks[index as usize];
            if block.refs > 0 || block.prev != prev || listed > self.blocks.len() {
                return Err(PoolError(format!(
                    "free list entry {listed} is block {index}: {} references, previous {:?}, expected {prev:?}",
                    block.refs, block.prev
                )));
            }
            (prev, link, listed) = (link, block.next, listed + 1);
        }
        if listed != unreferenced || listed != self.num_free || prev != self.tail {
            return Err(PoolError(format!(
                "{listed} blocks in the free list, {} counted free, {unreferenced} of {} without references",
                self.num_free,
                self.blocks.len()
            )));
        }
        Ok(())
    }

    fn check_hashes(&self) -> Result<(), PoolError> {
        let hashed = self.blocks.iter().filter(|block| block.hash.is_some()).count();
        let wrong = self.by_hash.iter().find(|(hash, id)| self.blocks[id.0 as usize].hash != Some(**hash));
        match wrong {
            Some((_, id)) => Err(PoolError(format!("the index leads to block {}, which has another hash", id.0))),
            None if hashed != self.by_hash.len() => {
                Err(PoolError(format!("{hashed} blocks have hashes, the index has {}", self.by_hash.len())))
            }
            None => Ok(()),
        }
    }

    fn link_last(&mut self, index: u32) {
        let last = self.tail.replace(index);
        match last {
            Some(last) => self.blocks[last as usize].next = Some(index),
            None => self.head = Some(index),
        }
        let block = &mut self.blocks[index as usize];
        (block.prev, block.next) = (last, None);
        self.num_free += 1;
    }

    fn link_first(&mut self, index: u32) {
        let first = self.head.replace(index);
        match first {
            Some(first) => self.blocks[first as usize].prev = Some(index),
            None => self.tail = Some(index),
        }
        let block = &mut self.blocks[index as usize];
        (block.prev, block.next) = (None, first);
        self.num_free += 1;
    }

    fn unlink(&mut self, index: u32) {
        let block = &mut self.blocks[index as usize];
        let (prev, next) = (block.prev.take(), block.next.take());
        match prev {
            Some(prev) => self.blocks[prev as usize].next = next,
            None => self.head = next,
        }
        match next {
            Some(next) => self.blocks[next as usize].prev = prev,
            None => self.tail = prev,
        }
        self.num_free -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn hash(n: u8) -> BlockHash {
        BlockHash::from([n; 32])
    }

    #[test]
    fn a_released_block_is_found_again_until_it_is_handed_out() {
        let mut pool = BlockPool::new(2);
        let id = pool.allocate().unwrap();
        pool.publish(id, hash(1));
        pool.release(id);
        assert_eq!(pool.find(&hash(1)), Some(id));
        let other = pool.allocate().unwrap();
        assert_ne!(other, id, "the unpublished block goes first");
        assert_eq!(pool.allocate(), Some(id));
        assert_eq!((pool.find(&hash(1)), pool.allocate()), (None, None));
        pool.check(2).unwrap();
    }

    #[test]
    fn the_block_unused_for_longest_is_reused_first() {
        let mut pool = BlockPool::new(3);
        let ids: Vec<_> = (0..3).map(|_| pool.allocate().unwrap()).collect();
        for (n, id) in ids.iter().enumerate() {
            pool.publish(*id, hash(n as u8));
            pool.release(*id);
        }
        pool.retain(ids[0]);
        pool.release(ids[0]);
        assert_eq!(pool.allocate(), Some(ids[1]));
    }

    #[test]
    fn of_two_blocks_with_the_same_content_the_first_stays_findable() {
        let mut pool = BlockPool::new(2);
        let (a, b) = (pool.allocate().unwrap(), pool.allocate().unwrap());
        pool.publish(a, hash(1));
        pool.publish(b, hash(1));
        assert_eq!(pool.find(&hash(1)), Some(a));
        pool.check(2).unwrap();
    }

    #[test]
    fn the_check_names_the_numbers_of_a_leak() {
        let mut pool = BlockPool::new(2);
        pool.allocate().unwrap();
        let message = pool.check(0).unwrap_err().to_string();
        assert_eq!(message, "block pool: 1 references are counted, sequences hold 0, 0 wait for a step");
    }

    #[test]
    fn a_block_behind_a_fence_is_used_until_its_step_is_passed() {
        let mut pool = BlockPool::new(2);
        let (a, b) = (pool.allocate().unwrap(), pool.allocate().unwrap());
        pool.release_behind(3, a);
        pool.release_behind(4, b);
        pool.pass(2);
        assert_eq!((pool.allocate(), pool.num_free()), (None, 0));
        pool.check(0).unwrap();
        pool.pass(3);
        assert_eq!((pool.allocate(), pool.num_free()), (Some(a), 0));
        pool.check(1).unwrap();
    }

    proptest! {
        #[test]
        fn the_books_balance_after_any_calls(calls in prop::collection::vec((0u8..6, 0u8..6), 0..200)) {
            let mut pool = BlockPool::new(5);
            let mut held: Vec<BlockId> = Vec::new();
            for (step, (call, n)) in (0u64..).zip(calls) {
                match call {
                    0 => held.extend(pool.allocate()),
                    1 if !held.is_empty() => pool.release(held.swap_remove(n as usize % held.len())),
                    2 if !held.is_empty() => pool.publish(held[n as usize % held.len()], hash(n)),
                    3 if !held.is_empty() => {
                        let id = held.swap_remove(n as usize % held.len());
                        pool.release_behind(step, id);
                    }
                    4 => pool.pass(step.saturating_sub(u64::from(n))),
                    _ => if let Some(id) = pool.find(&hash(n)) {
                        pool.retain(id);
                        held.push(id);
                    },
                }
                prop_assert_eq!(pool.check(held.len()), Ok(()));
            }
        }
    }
}
