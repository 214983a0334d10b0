use std::{vec, vec::Vec};

use bytes::Bytes;
use offload_engine::memory::{Span, to_vec};
use proptest::prelude::*;

use super::*;

const MEMORY: usize = 512;

fn pattern() -> Vec<u8> {
    (0..MEMORY).map(|at| (at * 7 + at / 256) as u8).collect()
}

/// Content of a range, read as slices and as spans.
fn shown(spans: &Spans, offset: usize, length: usize) -> Vec<u8> {
    let (mut copied, mut kept) = (vec![], vec![]);
    spans.each_slice(offset, length, |slice| slice.append_to(&mut copied));
    spans.each_span(offset, length, |span| kept.push(Span::from(span)));
    assert_eq!(copied, to_vec(kept.iter().map(Span::piece)));
    copied
}

proptest! {
    // Spans form one sequence of bytes: all ways to read, write and slice it agree with an array. A write changes no
    // other bytes.
    #[test]
    fn spans_are_one_sequence(
        cuts in prop::collection::vec((0..MEMORY, 0_usize..70), 1..12),
        (from, to) in (0.0..1.0, 0.0..1.0),
        data in prop::collection::vec(any::<u8>(), 0..200),
    ) {
        let memory = SharedSpan::allocate(MEMORY, 64).unwrap();
        memory.write(0, &pattern());
        let ranges = cuts.iter().map(|(start, length)| *start..(start + length).min(MEMORY));
        // Offset in memory of each byte of the sequence.
        let places: Vec<usize> = ranges.clone().flatten().collect();
        let Some(spans) = Spans::new(ranges.map(|range| memory.slice(range))) else {
            prop_assert!(places.is_empty());
            return Ok(());
        };
        prop_assert_eq!(spans.len(), places.len());
        let at = |part: f64| (part * (places.len() + 1) as f64) as usize;
        let (offset, end) = (at(from).min(at(to)), at(from).max(at(to)));
        let model: Vec<u8> = places.iter().map(|place| pattern()[*place]).collect();
        prop_assert_eq!(shown(&spans, offset, end - offset), &model[offset..end]);
        match spans.slice(offset..end) {
            Some(slice) => prop_assert_eq!(shown(&slice, 0, slice.len()), &model[offset..end]),
            None => prop_assert_eq!(offset, end),
        }
        let word = spans.word(offset).map(|word| core::ptr::from_ref(word).addr());
        let in_one = places.get(offset..offset + 8).filter(|eight| {
            eight[0] % 8 == 0 && eight.windows(2).all(|pair| pair[1] == pair[0] + 1)
        });
        // Two spans that overlap in memory may have consecutive bytes without forming a word.
        if let Some(word) = word {
            prop_assert_eq!(Some(word - memory.as_ptr().addr()), in_one.map(|eight| eight[0]));
        }
        let data = &data[..data.len().min(places.len() - offset)];
        let mut changed = pattern();
        for (place, byte) in places[offset..].iter().zip(data) {
            changed[*place] = *byte;
        }
        spans.under(()).write_in_order(offset, data);
        let mut content = vec![0; MEMORY];
        memory.read(0, &mut content);
        prop_assert_eq!(content, changed);
    }
}

// Adjacent spans are joined: consecutive pages of one buffer are one span, and words may cross the joint.
#[test]
fn neighboring_spans_are_joined() {
    let memory = SharedSpan::allocate(64, 64).unwrap();
    let part = |range| memory.slice(range);
    assert!(matches!(Spans::new([part(3..10), part(10..10), part(10..30)]), Some(Spans::One(_))));
    let apart = Spans::new([part(8..20), part(24..40)]).unwrap();
    assert!(matches!(apart, Spans::List(_)));
    assert!(apart.word(0).is_some() && apart.word(12).is_some());
    assert!(apart.word(8).is_none(), "its bytes are not adjacent");
    assert!(apart.word(28).is_none(), "half of it exceeds the memory");
    assert!(Spans::new([part(7..7)]).is_none());
}

// Read-only memory in any span makes the whole read-only, and a withdrawal includes every span.
#[test]
fn spans_share_rights_and_owner() {
    let memory = SharedSpan::allocate(64, 64).unwrap();
    let text = SharedSpan::from(Bytes::from_static(b"text"));
    assert!(!Spans::new([memory.clone(), text]).unwrap().is_writable());
    let apart = Spans::new([memory.slice(0..8), memory.slice(16..24)]).unwrap();
    assert!(apart.is_writable());
    let (alive, lent) = (Arc::new(()), apart.under(()));
    let owned = apart.under(alive.clone());
    let mut spans = vec![];
    owned.each_span(0, 16, |span| spans.push(span));
    owned.withdraw();
    assert!(spans.len() == 2 && spans.iter().all(SharedSpan::is_withdrawn));
    lent.each_span(0, 16, |span| assert!(!span.is_withdrawn()));
    drop(owned);
    spans.pop();
    assert_eq!(Arc::strong_count(&alive), 2, "owned until the last span is dropped");
    spans.pop();
    assert_eq!(Arc::strong_count(&alive), 1);
}

// NDK-MEM-1: a chain has at least the requested length, with consecutive addresses up to it.
#[test]
fn chains() {
    let buffer = |address, length| RegisteredBuffer::allocate(length).unwrap().at_address(address);
    let chain = [buffer(100, 10), buffer(110, 20), buffer(131, 5)];
    let length =
        |chain: &[RegisteredBuffer], length| Spans::chain(chain, length).map(|it| it.len());
    for (asked, found) in [(0, None), (1, Some(1)), (10, Some(10)), (30, Some(30)), (31, None)] {
        assert_eq!(length(&chain, asked), found, "{asked}");
    }
    assert_eq!(length(&chain[..2], 31), None, "longer than the chain");
    assert_eq!(length(&[], 1), None);
    let at_the_end = [buffer(u64::MAX - 9, 10), buffer(0, 1)];
    assert_eq!(length(&at_the_end, 9), Some(9));
    assert_eq!(length(&at_the_end, 11), None, "its addresses wrap");
    for (at, byte) in [(0, 1), (9, 2), (10, 3), (29, 4)] {
        let spans = Spans::chain(&chain, 30).unwrap();
        spans.write_in_order(at, &[byte]);
    }
    assert_eq!([chain[0].load_last(0), chain[0].load_last(9)], [1, 2]);
    assert_eq!([chain[1].load_last(0), chain[1].load_last(19)], [3, 4]);
}
