//! Atomics and immediate data (RFC 7306) among the operations of half of the seeds.
//!
//! Each side has its own words, used by its peer over one connection: every outcome is known in the plan. A node has
//! two more words, used by all queue pairs of its peer. The originals returned by atomics on them depend on the
//! network; the test checks at the end that they are serializable.

use std::collections::{BTreeMap, BTreeSet};

use oorandom::Rand64;
use rdma_over_tcp::ndk::{Adapter, AtomicOperation, Mr, MrFlags, OpFlags, Pd, RegisteredBuffer};

use crate::{
    plan::{Action, Conversation, Operation, Plan, Receive, Span, draw, once_in},
    side::Side,
};

/// Words per side.
const WORDS: usize = 3;
/// Maximum atomics and immediate data per side.
const OPERATIONS_MAX: usize = 16;

/// Target of an atomic.
#[derive(Clone, Debug)]
pub(crate) enum Target {
    /// Word of the peer's buffer.
    Own(Span),
    /// Word of the peer for FetchAdds of all queue pairs.
    SharedSum,
    /// Word of the peer for CmpSwaps of all queue pairs.
    SharedChain,
}

impl Conversation {
    /// Inserts atomics and immediate data between the operations.
    pub(crate) fn extend(&mut self, plan: &Plan) {
        if !plan.adapters[0].rfc7306 {
            return;
        }
        // A separate generator: the other operations of a seed are the same without extensions.
        let own = self.sides[0].initial.first_chunk().copied().unwrap_or_default();
        let mut rng = Rand64::new(plan.adapters[0].seed ^ u128::from(u64::from_le_bytes(own)));
        for side in &mut self.sides {
            let span = side.allot(&mut rng, WORDS * 8 + 7);
            let start = span.start.next_multiple_of(8);
            side.words = start..start + WORDS * 8;
        }
        for from in 0..2 {
            for _ in 0..draw(&mut rng, OPERATIONS_MAX + 1) {
                // Not before the first message, and not after the last.
                let at = 1 + draw(&mut rng, self.sides[from].operations.len() - 1);
                match once_in(&mut rng, 3) {
                    true => self.immediate(&mut rng, from, at),
                    false => self.atomic(&mut rng, from, at),
                }
            }
            self.apply_own_words(from);
        }
    }

    fn immediate(&mut self, rng: &mut Rand64, from: usize, at: usize) {
        let data = rng.rand_u64().to_le_bytes();
        let is_solicited = once_in(rng, 3);
        let mut flags = Self::flags(rng);
        if is_solicited {
            flags |= OpFlags::SEND_AND_SOLICIT_EVENT;
        }
        let operations = &mut self.sides[from].operations;
        let before = operations[..at].iter().filter(|it| it.action.takes_receive()).count();
        operations.insert(at, Operation { action: Action::Immediate { data }, flags });
        let peer = &mut self.sides[1 - from];
        // Of any length: no data is placed in them.
        let spans = match once_in(rng, 2) {
            true => Vec::new(),
            false => Vec::from([peer.allot(rng, 20)]),
        };
        let immediate = Some(data);
        let receive = Receive { spans, bytes: 0, invalidates: None, immediate, is_solicited };
        peer.receives.insert(peer.rtr_receives + before, receive);
    }

    fn atomic(&mut self, rng: &mut Rand64, from: usize, at: usize) {
        let words = self.sides[1 - from].words.clone();
        let value = |rng: &mut Rand64| match once_in(rng, 2) {
            true => rng.rand_u64(),
            false => rng.rand_range(0..4),
        };
        let (target, operation) = match draw(rng, 6) {
            0 => {
                let add = 1 + rng.rand_range(0..1 << 32);
                (Target::SharedSum, AtomicOperation::FetchAdd { add, mask: 0 })
            }
            1 => {
                // One bit is compared; the new value is unique among all requests.
                let (compare, compare_mask) = (rng.rand_u64(), 1);
                let (swap, swap_mask) = (rng.rand_u64(), u64::MAX);
                let swap = AtomicOperation::CompareSwap { compare, compare_mask, swap, swap_mask };
                (Target::SharedChain, swap)
            }
            other => {
                let start = words.start + 8 * draw(rng, WORDS);
                let operands = [value(rng), value(rng), value(rng), value(rng)];
                let [a, b, c, d] = operands;
                let operation = match other {
                    2 | 3 => AtomicOperation::FetchAdd { add: a, mask: if b < 4 { 0 } else { b } },
                    _ => AtomicOperation::CompareSwap {
                        compare: a,
                        compare_mask: b,
                        swap: c,
                        swap_mask: d,
                    },
                };
                (Target::Own(start..start + 8), operation)
            }
        };
        let sink = self.sides[from].allot(rng, 8);
        let flags = Self::flags(rng);
        let action = Action::Atomic { sink, target, operation };
        self.sides[from].operations.insert(at, Operation { action, flags });
    }

    /// Computes the outcomes on words that one connection uses.
    fn apply_own_words(&mut self, from: usize) {
        let [a, b] = &mut self.sides;
        let (side, peer) = if from == 0 { (a, b) } else { (b, a) };
        for Operation { action, .. } in &side.operations {
            let Action::Atomic { sink, target: Target::Own(word), operation } = action else {
                continue;
            };
            let original = peer.image[word.clone()].first_chunk().copied().unwrap_or_default();
            side.image[sink.clone()].copy_from_slice(&original);
            let value = operation.apply(u64::from_ne_bytes(original));
            peer.image[word.clone()].copy_from_slice(&value.to_ne_bytes());
        }
    }
}

/// Words of a node for all queue pairs of its peer.
pub(crate) struct Shared {
    buffer: RegisteredBuffer,
    pub(crate) mr: Mr,
}

impl Shared {
    pub(crate) fn new(adapter: &Adapter, pd: &Pd) -> Self {
        let buffer = adapter.allocate(16).unwrap();
        let mr = pd.create_mr(false).unwrap();
        mr.register(&buffer, 0, 16, MrFlags::ALLOW_REMOTE_ATOMIC).unwrap();
        Self { buffer, mr }
    }

    /// Address and token of the words.
    pub(crate) fn grant(&self) -> (u64, u32) {
        (self.buffer.address(), self.mr.remote_token())
    }

    fn value(&self, offset: usize) -> u64 {
        self.buffer.word(offset).unwrap().load(std::sync::atomic::Ordering::Acquire)
    }

    /// Asserts that all atomics of `sides` on these words are serializable, and copies their outcomes to the images.
    pub(crate) fn settle<'a>(&self, sides: impl Iterator<Item = &'a mut Side>) {
        let (mut sums, mut chain) = (Vec::new(), Vec::new());
        for side in sides {
            for Operation { action, .. } in &side.plan.operations {
                let Action::Atomic { sink, target, operation } = action else { continue };
                let octets = side.content(sink.clone());
                let original = u64::from_ne_bytes(octets[..].try_into().unwrap());
                match target {
                    Target::Own(_) => continue,
                    Target::SharedSum => sums.push((original, *operation)),
                    Target::SharedChain => chain.push((original, *operation)),
                }
                side.plan.image[sink.clone()].copy_from_slice(&octets);
            }
        }
        assert_eq!(sum_of(sums), Some(self.value(0)), "FetchAdds not serializable");
        assert_eq!(end_of(chain), Some(self.value(8)), "CmpSwaps not serializable");
    }
}

/// Returns the sum of FetchAdds if each returned the sum of those before it.
fn sum_of(mut seen: Vec<(u64, AtomicOperation)>) -> Option<u64> {
    seen.sort_unstable_by_key(|(original, _)| *original);
    seen.into_iter().try_fold(0, |sum, (original, operation)| {
        (original == sum).then(|| operation.apply(original))
    })
}

/// Returns the last value of CmpSwaps with unique values, if the successful ones form a chain, and the others returned
/// values of it.
fn end_of(seen: Vec<(u64, AtomicOperation)>) -> Option<u64> {
    let is_swap =
        |(original, operation): &(u64, AtomicOperation)| operation.apply(*original) != *original;
    let swaps = seen.iter().filter(|it| is_swap(it)).copied().collect::<BTreeMap<_, _>>();
    let count = seen.iter().filter(|it| is_swap(it)).count();
    let (mut value, mut values) = (0, BTreeSet::from([0]));
    while let Some(operation) = swaps.get(&value) {
        value = operation.apply(value);
        if !values.insert(value) {
            return None;
        }
    }
    let is_whole = values.len() == count + 1;
    (is_whole && seen.iter().all(|(original, _)| values.contains(original))).then_some(value)
}

// Negative cases of the check: a lost addition, a duplicate outcome, an unknown value.
#[test]
fn unserializable_outcomes_are_detected() {
    let add = |original, add| (original, AtomicOperation::FetchAdd { add, mask: 0 });
    assert_eq!(sum_of(vec![add(5, 2), add(0, 5)]), Some(7));
    assert_eq!(sum_of(vec![add(0, 5), add(0, 2)]), None);
    assert_eq!(sum_of(vec![add(0, 5), add(7, 2)]), None);
    let swap = |original, compare, swap| {
        let (compare_mask, swap_mask) = (u64::MAX, u64::MAX);
        (original, AtomicOperation::CompareSwap { compare, compare_mask, swap, swap_mask })
    };
    assert_eq!(end_of(vec![swap(5, 5, 9), swap(0, 0, 5), swap(9, 4, 1)]), Some(9));
    assert_eq!(end_of(vec![swap(0, 0, 5), swap(0, 0, 9)]), None, "swapped twice");
    assert_eq!(end_of(vec![swap(0, 0, 5), swap(6, 6, 9)]), None, "value not in the chain");
    assert_eq!(end_of(vec![swap(0, 0, 5), swap(6, 1, 9)]), None, "original not in the chain");
}
