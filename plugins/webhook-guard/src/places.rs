//! Where texts stand in another one, those places too that overlap: of `aXaXa` nothing is left where `aXa` is to go. It is the
//! search of Aho and Corasick for all texts at once: its time grows with the sum of all lengths, whatever the texts are, where
//! one search for each would take their product. Of the texts that end at one place the longest is all that is looked at, for
//! it covers the others.

use std::num::NonZeroU32;
use std::ops::Range;

/// Looks for texts, and remembers which of them it has met.
#[derive(Debug)]
pub struct Finder {
    /// What texts begin with, each beginning once. The first is the empty one.
    nodes: Vec<Node>,
    /// Of the empty beginning, by byte: most of a text begins none.
    firsts: [Option<NonZeroU32>; 256],
    /// All nodes, shorter beginnings first.
    order: Vec<u32>,
    /// The node of each text, and its bytes.
    texts: Vec<(u32, usize)>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Node {
    byte: u8,
    was_met: bool,
    /// One that is longer by a byte; the others of its length follow it as `next`.
    child: Option<NonZeroU32>,
    next: Option<NonZeroU32>,
    /// The longest other beginning that this one ends with.
    shorter: u32,
    /// The longest text that it ends with.
    text: Option<u32>,
}

/// A place in a text, and which of the texts that are looked for is there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// Bytes.
    pub range: Range<usize>,
    /// Of texts that overlap, the first; of those that begin at one place, the longest.
    pub idx: usize,
}

impl Finder {
    /// Looks for these texts; none is empty.
    pub fn new(texts: &[&str]) -> Self {
        let most = texts.iter().map(|text| text.len()).sum::<usize>() + 1;
        let mut nodes = Vec::with_capacity(most);
        nodes.push(Node::default());
        let mut finder = Self { nodes, firsts: [None; 256], order: Vec::new(), texts: Vec::new() };
        for (text, idx) in texts.iter().zip(0..) {
            let end =
                text.bytes().fold(0, |at, byte| finder.child(at, byte).unwrap_or_else(|| finder.add(at, byte)).get());
            finder.nodes[end as usize].text = Some(idx);
            finder.texts.push((end, text.len()));
        }
        finder.link();
        finder
    }

    /// The places of all texts in `text`, in their order; those that overlap are one.
    pub fn places(&mut self, text: &str) -> Vec<Found> {
        let (mut at, mut places) = (0, Vec::new());
        for (byte, end) in text.bytes().zip(1..) {
            at = self.step(at, byte);
            let node = &mut self.nodes[at as usize];
            node.was_met = true;
            if let Some(idx) = node.text.map(|idx| idx as usize) {
                add(&mut places, Found { range: end - self.texts[idx].1..end, idx });
            }
        }
        places
    }

    /// Whether each of the texts was somewhere.
    pub fn has_met_all(&mut self) -> bool {
        for at in self.order.iter().rev().map(|at| *at as usize) {
            let shorter = self.nodes[at].shorter as usize;
            self.nodes[shorter].was_met |= self.nodes[at].was_met;
        }
        self.texts.iter().all(|(end, _)| self.nodes[*end as usize].was_met)
    }

    fn child(&self, at: u32, byte: u8) -> Option<NonZeroU32> {
        if at == 0 {
            return self.firsts[usize::from(byte)];
        }
        let mut child = self.nodes[at as usize].child;
        while let Some(node) = child.map(|child| &self.nodes[child.get() as usize]).filter(|node| node.byte != byte) {
            child = node.next;
        }
        child
    }

    fn add(&mut self, at: u32, byte: u8) -> NonZeroU32 {
        // A body has fewer bytes, by far.
        let new = u32::try_from(self.nodes.len()).ok().and_then(NonZeroU32::new).unwrap_or(NonZeroU32::MAX);
        let parent = &mut self.nodes[at as usize];
        let next = parent.child.replace(new);
        if at == 0 {
            self.firsts[usize::from(byte)] = Some(new);
        }
        self.nodes.push(Node { byte, next, ..Node::default() });
        new
    }

    /// Says of each beginning what it ends with, shorter ones first.
    fn link(&mut self) {
        self.order = Vec::with_capacity(self.nodes.len());
        self.order.push(0);
        let mut done = 0;
        while let Some(parent) = self.order.get(done).copied() {
            done += 1;
            let mut child = self.nodes[parent as usize].child;
            while let Some(at) = child.map(NonZeroU32::get) {
                let Node { byte, next, text, .. } = self.nodes[at as usize];
                let shorter = if parent == 0 { 0 } else { self.step(self.nodes[parent as usize].shorter, byte) };
                self.nodes[at as usize].shorter = shorter;
                self.nodes[at as usize].text = text.or(self.nodes[shorter as usize].text);
                self.order.push(at);
                child = next;
            }
        }
    }

    /// The longest beginning that a text ends with that ended with the one at `at`, and has got one byte more.
    fn step(&self, mut at: u32, byte: u8) -> u32 {
        loop {
            #[cfg(test)]
            tests::STEPS.set(tests::STEPS.get() + 1);
            match self.child(at, byte) {
                Some(child) => return child.get(),
                None if at == 0 => return 0,
                None => at = self.nodes[at as usize].shorter,
            }
        }
    }
}

/// Adds a place that ends behind all others, and takes those in that it overlaps.
fn add(places: &mut Vec<Found>, mut new: Found) {
    while let Some(last) = places.pop_if(|last| last.range.end > new.range.start) {
        if last.range.start < new.range.start {
            new = Found { range: last.range.start..new.range.end, idx: last.idx };
        }
    }
    places.push(new);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    thread_local! {
        /// Beginnings that a search of this thread went to.
        pub(super) static STEPS: Cell<usize> = const { Cell::new(0) };
    }

    /// Places and the text that each stands for, and whether all texts were met.
    fn found(texts: &[&str], text: &str) -> (Vec<(usize, usize, usize)>, bool) {
        let mut finder = Finder::new(texts);
        let places = finder.places(text);
        let places = places.into_iter().map(|found| (found.range.start, found.range.end, found.idx)).collect();
        (places, finder.has_met_all())
    }

    #[test]
    fn places_that_overlap_are_one() {
        let check = |texts: &[&str], text: &str, expected: &[(usize, usize, usize)]| {
            assert_eq!(found(texts, text), (expected.to_vec(), true), "{texts:?} in {text}");
        };
        check(&["aXa"], "secret aXaXa end", &[(7, 12, 0)]);
        check(&["aXa"], "aXa aXaaXa", &[(0, 3, 0), (4, 7, 0), (7, 10, 0)]);
        check(&["aa"], "aaa baa a", &[(0, 3, 0), (5, 7, 0)]);
        check(&["aabaa"], "aabaabaa aabaaabaa", &[(0, 8, 0), (9, 18, 0)]);
        check(&["ab"], "abab", &[(0, 2, 0), (2, 4, 0)]);
        check(&["éé"], "ééé", &[(0, 6, 0)]);
        check(&["b", "cd", "abcde"], "b abcdef", &[(0, 1, 0), (2, 7, 2)]);
        check(&["bc", "b", "ab"], "bcab", &[(0, 2, 0), (2, 4, 2)]);
        check(&["xy", "yz"], "xyz", &[(0, 3, 0)]);
        assert_eq!(found(&["abc"], "ab"), (vec![], false));
        assert_eq!(found(&["ab", "bc"], "ab"), (vec![(0, 2, 0)], false), "one of two");
        assert_eq!(found(&[], "ab"), (vec![], true));
    }

    /// Every text of a few letters, against a search that begins again behind each start.
    #[test]
    fn no_place_is_missed() {
        let texts: Vec<String> = (0..1 << 8).map(|n| format!("{n:08b}")).collect();
        let finds: Vec<String> = (1..=4).flat_map(|len| (0..1 << len).map(move |n| format!("{n:0len$b}"))).collect();
        for pair in finds.iter().flat_map(|a| finds.iter().map(move |b| [a.as_str(), b])).filter(|[a, b]| a != b) {
            for text in &texts {
                let starts =
                    |find: &str| (0..text.len()).filter(|at| text[*at..].starts_with(find)).collect::<Vec<_>>();
                let all = pair.map(starts);
                let mut expected = vec![false; text.len()];
                for (find, starts) in pair.iter().zip(&all) {
                    starts.iter().for_each(|at| expected[*at..*at + find.len()].fill(true));
                }
                let (places, met_all) = found(&pair, text);
                let mut covered = vec![false; text.len()];
                for (start, end, idx) in places {
                    covered[start..end].fill(true);
                    let begins = |find: &&&str| text[start..].starts_with(**find);
                    let longest = pair.iter().filter(begins).max_by_key(|find| find.len());
                    assert_eq!(longest, Some(&pair[idx]), "{pair:?} in {text}");
                }
                assert_eq!(
                    (covered, met_all),
                    (expected, all.iter().all(|starts| !starts.is_empty())),
                    "{pair:?} in {text}"
                );
            }
        }
    }

    /// As a text is that is meant to be slow: beginning again, hundreds of billions of letters would be compared.
    #[test]
    fn a_text_of_one_letter_is_searched_once() {
        let (find, text) = ("a".repeat(500_000), "a".repeat(1_000_000));
        assert_eq!(found(&[&find], &text), (vec![(0, 1_000_000, 0)], true));
        assert_eq!(found(&[&format!("{find}ba")], &text), (vec![], false));
    }

    #[test]
    fn many_texts_take_time_that_grows_with_the_sum_of_all_lengths() {
        let names: Vec<String> = (0..20_000).map(|n| format!("name {n:05}")).collect();
        let nested: Vec<String> = (1..1_000).map(|len| "a".repeat(len)).collect();
        for (finds, text) in [(&names, names.join(", ")), (&nested, "a".repeat(200_000))] {
            let finds: Vec<&str> = finds.iter().map(String::as_str).collect();
            STEPS.set(0);
            assert!(found(&finds, &text).1);
            let sum = text.len() + finds.iter().map(|find| find.len()).sum::<usize>();
            assert!(STEPS.get() <= 2 * sum, "{} steps for {sum} bytes", STEPS.get());
        }
    }
}
