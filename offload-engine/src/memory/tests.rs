use alloc::{sync::Arc, vec, vec::Vec};
use std::thread;

use bytes::{Bytes, BytesMut};
use proptest::prelude::*;

use super::*;

/// Creates a span of `data` with more bytes around it in memory.
fn span(data: &[u8]) -> SharedSpan {
    let span = SharedSpan::allocate(data.len() + 64, 64).unwrap().slice(13..13 + data.len());
    span.write(0, data);
    span
}

fn content(span: &SharedSpan) -> Vec<u8> {
    let mut content = vec![0xee; span.len()];
    span.read(0, &mut content);
    content
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 7 + at / 251 + 1) as u8).collect()
}

// Each length at each alignment of both sides: exactly the range is copied, and the bytes around it are unchanged.
#[test]
fn copies_write_exact_range() {
    const MOST: usize = 8192;
    let source = pattern(MOST + 50);
    let memory = SharedSpan::allocate(MOST + 100, 64).unwrap();
    for len in (0..200).chain(240..300).chain([448, 640, 1023, 1024, 1025, 1100, MOST]) {
        for (from, to) in [(0, 0), (0, 1), (1, 0), (3, 15), (15, 9), (8, 8), (16, 17)] {
            memory.write(0, &[0xaa; MOST + 100]);
            memory.write(20 + to, &source[from..from + len]);
            let all = content(&memory);
            assert_eq!(all[20 + to..][..len], source[from..][..len], "{len} {from} {to}");
            let around = all[..20 + to].iter().chain(&all[20 + to + len..]);
            assert!(around.copied().all(|byte| byte == 0xaa), "{len} {from} {to}");

            let mut target = vec![0xbb; MOST + 100];
            memory.read(20 + to, &mut target[from..from + len]);
            assert_eq!(target[from..][..len], source[from..][..len], "{len} {from} {to}");
            let around = target[..from].iter().chain(&target[from + len..]);
            assert!(around.copied().all(|byte| byte == 0xbb), "{len} {from} {to}");
        }
    }
}

#[test]
fn allocated_memory_is_aligned_and_zeroed() {
    let memory = SharedSpan::allocate(5000, 4096).unwrap();
    assert_eq!(memory.as_ptr().addr() % 4096, 0);
    assert!(content(&memory).iter().all(|byte| *byte == 0));
    memory.clone().slice(4990..5000).write(8, b"ab");
    assert_eq!((memory.load(4998), memory.load(4999)), (b'a', b'b'));
    assert!(SharedSpan::allocate(0, 1).is_none());
    assert!(SharedSpan::allocate(1, 3).is_none());
    assert!(SharedSpan::allocate(usize::MAX, 1).is_none());
}

#[test]
fn access_out_of_bounds_panics() {
    let memory = SharedSpan::allocate(8, 8).unwrap();
    let panics = |work: &dyn Fn(&SharedSpan)| {
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| work(&memory))).is_err()
    };
    assert!(!panics(&|memory| memory.write(6, b"xy")));
    assert!(panics(&|memory| memory.write(7, b"xy")));
    assert!(panics(&|memory| memory.write_in_order(7, b"xy")));
    assert!(panics(&|memory| memory.read(usize::MAX, &mut [0; 2])));
    assert!(panics(&|memory| drop(memory.slice(3..9))));
    assert!(panics(&|memory| drop(memory.slice(9..9))));
    assert!(panics(&|memory| assert!(memory.load(8) == 0)));
    assert!(panics(&|memory| memory.view().read(&mut [0; 7])));
}

// Adjacent spans are joined. Spans with a gap or an overlap are not, and neither are spans of other memory.
#[test]
fn adjacent_spans_are_joined() {
    let memory = span(&pattern(100));
    let part = |range| memory.slice(range);
    let joined = part(10..30).joined(&part(30..70)).unwrap();
    assert_eq!(content(&joined), pattern(100)[10..70]);
    for (one, other) in [(10..30, 31..70), (10..30, 29..70), (30..70, 10..30)] {
        assert!(part(one).joined(&part(other)).is_none());
    }
    let foreign = part(30..70).under(());
    assert!(part(10..30).joined(&foreign).is_none(), "another owner");
}

// A word is eight bytes aligned to eight in memory, wherever the span starts. Read-only memory has no words.
#[test]
fn words_are_aligned_and_within_bounds() {
    let memory = SharedSpan::allocate(64, 64).unwrap();
    let odd = memory.slice(3..40);
    for offset in 0..40 {
        let is_aligned = (3 + offset) % 8 == 0;
        let fits = offset + 8 <= odd.len();
        assert_eq!(odd.word(offset).is_some(), is_aligned && fits, "{offset}");
    }
    assert!(memory.word(usize::MAX - 7).is_none() && memory.word(64).is_none());
    assert!(SharedSpan::from(Bytes::from_static(&[0; 64])).word(0).is_none());
    let word = odd.word(5).unwrap();
    memory.write(8, &7_u64.to_ne_bytes());
    assert_eq!(word.fetch_add(u64::MAX, Ordering::Relaxed), 7);
    assert_eq!(content(&memory.slice(8..16)), 6_u64.to_ne_bytes());
}

// Atomics of several threads on one word: no update is lost, whatever is written next to it.
#[test]
fn concurrent_word_updates_are_atomic() {
    let memory = SharedSpan::allocate(24, 8).unwrap();
    let turns = if cfg!(miri) { 20 } else { 20_000 };
    thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                let word = memory.word(8).unwrap();
                for _ in 0..turns {
                    word.fetch_add(3, Ordering::Relaxed);
                }
            });
        }
        scope.spawn(|| (0..turns).for_each(|turn| memory.write(0, &(turn as u64).to_ne_bytes())));
    });
    assert_eq!(memory.word(8).unwrap().load(Ordering::Relaxed), 9 * turns as u64);
}

// Read-only mappings are never written.
#[test]
fn read_only_memory_is_not_written() {
    let text = Bytes::copy_from_slice(&[1, 2, 3]);
    let memory = SharedSpan::from(text.clone());
    assert_eq!(memory.as_ptr().cast_const(), text.as_ptr());
    drop(text);
    assert!(!memory.is_writable() && !memory.under(()).slice(1..2).is_writable());
    assert_eq!(content(&memory), [1, 2, 3]);
    for write in [SharedSpan::write, SharedSpan::write_in_order] {
        let work = std::panic::AssertUnwindSafe(|| write(&memory.under(()), 0, &[9]));
        assert!(std::panic::catch_unwind(work).is_err());
    }
    assert_eq!(content(&memory), [1, 2, 3]);
}

// The owner is dropped with the last span, whichever that is. An additional owner is dropped first, and withdraws only
// its own spans.
#[test]
fn owner_is_dropped_with_last_span() {
    let memory = Arc::new([const { AtomicU8::new(5) }; 10]);
    let start = NonNull::from(&*memory).cast();
    let (all, some) = (Arc::new(()), Arc::new(()));
    // SAFETY: the owner keeps it alive, and it is accessed by atomics of one byte.
    let span = unsafe { SharedSpan::from_raw(start, 10, true, (memory.clone(), all.clone())) };
    let registered = span.under(some.clone());
    let part = registered.slice(2..4);
    let piece = Span::from(part.clone());
    registered.withdraw();
    assert!(part.is_withdrawn() && piece.is_withdrawn() && !span.is_withdrawn());
    drop((registered, part));
    assert_eq!((Arc::strong_count(&all), Arc::strong_count(&some)), (2, 2));
    drop(span);
    drop(piece.slice(0..1));
    assert_eq!((Arc::strong_count(&all), Arc::strong_count(&some)), (2, 2));
    drop(piece);
    assert_eq!((Arc::strong_count(&all), Arc::strong_count(&some)), (1, 1));
    assert_eq!(Arc::strong_count(&memory), 1);
}

// A reader that loads the last byte reads the bytes before it.
#[test]
fn ordered_write_stores_last_byte_last() {
    let memory = SharedSpan::allocate(100, 64).unwrap();
    let writer = {
        let memory = memory.clone();
        thread::spawn(move || {
            for round in 1..=200 {
                // The other side signals that it has read the bytes.
                while memory.load(99) != round {
                    thread::yield_now();
                }
                memory.write_in_order(3, &[round; 70]);
            }
        })
    };
    for round in 1..=200 {
        memory.write_in_order(99, &[round]);
        while memory.load(72) != round {
            thread::yield_now();
        }
        let mut placed = [0; 70];
        memory.read(3, &mut placed);
        assert_eq!(placed, [round; 70]);
    }
    writer.join().unwrap();
}

// A racing copy returns for each byte a value that was written.
#[test]
fn racing_copies_yield_written_bytes() {
    let memory = SharedSpan::allocate(1000, 64).unwrap();
    let writers = [b'a', b'b'].map(|letter| {
        let memory = memory.clone();
        thread::spawn(move || (0..300).for_each(|_| memory.write(0, &[letter; 1000])))
    });
    while !writers.iter().all(thread::JoinHandle::is_finished) {
        assert!(content(&memory).iter().all(|byte| [0, b'a', b'b'].contains(byte)));
        memory.view().chunks(|chunk| assert_eq!(chunk.len(), 1000));
    }
    writers.into_iter().for_each(|writer| writer.join().unwrap());
}

proptest! {
    // All operations on a piece or span give the same result for private and for shared memory.
    #[test]
    fn private_and_shared_memory_behave_alike(
        len in 0_usize..20_000,
        cuts in prop::array::uniform2(any::<prop::sample::Index>()),
    ) {
        let data = pattern(len.max(1));
        let [start, end] = { let mut cuts = cuts.map(|cut| cut.index(data.len() + 1)); cuts.sort(); cuts };
        let part = &data[start..end];
        for span in [Span::from(data.clone()), Span::from(span(&data))] {
            let mut rest = span.clone();
            prop_assert_eq!(to_vec([rest.split_to(start).piece()]), &data[..start]);
            prop_assert_eq!(to_vec([rest.split_to(end - start).piece()]), part);
            prop_assert_eq!(to_vec([rest.piece()]), &data[end..]);
            prop_assert_eq!(span.slice(start..end).as_ptr().addr(), span.as_ptr().addr() + start);

            let piece = span.piece().split_at(start).1.truncated(end - start);
            prop_assert_eq!(piece.as_ptr(), span.piece().part(start, end - start).as_ptr());
            prop_assert_eq!((piece.len(), piece.is_empty()), (part.len(), part.is_empty()));
            let rest = span.piece().part(end, data.len() - end);
            prop_assert_eq!(to_vec([piece, Piece::EMPTY, rest]), &data[start..]);
            let mut copy = vec![0; part.len()];
            piece.read(&mut copy);
            prop_assert_eq!(&copy, part);
            let mut appended = BytesMut::from(&b"front"[..]);
            piece.append_to(&mut appended);
            prop_assert_eq!(&appended[5..], part);
            let mut seen = Vec::new();
            piece.chunks(|chunk| seen.extend_from_slice(chunk));
            prop_assert_eq!(&seen, part);
            prop_assert_eq!(piece.byte(0), part.first().copied());
            prop_assert_eq!(piece.byte(part.len().max(1) - 1), part.last().copied());
            prop_assert_eq!(piece.byte(part.len()), None);
            let entry = piece.io_slice();
            prop_assert_eq!((entry.as_ptr(), entry.len()), (piece.as_ptr(), piece.len()));
            let copied = span.copied();
            prop_assert_eq!(copied.is_some(), matches!(span, Span::Shared(_)));
            prop_assert!(copied.is_none_or(|copied| copied == data));
        }
    }
}

#[test]
fn empty_spans_have_no_length() {
    assert!(Span::default().is_empty() && Piece::EMPTY.is_empty());
    assert!(Span::from(Bytes::new()).copied().is_none());
    assert!(size_of::<Span>() <= size_of::<Bytes>());
}
