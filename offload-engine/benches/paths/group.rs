//! A group of benches over the sizes of segments.

use std::time::Duration;

use criterion::{Criterion, Throughput};

use super::paths::{BATCH, Ends, SEGMENT_BYTES, SUPER_SEGMENT_BYTES};

/// One bench for each size; `timed` does so many segments and says what they took.
pub(crate) fn sizes(criterion: &mut Criterion, name: &str, timed: fn(&mut Ends, u64) -> Duration) {
    let mut group = criterion.benchmark_group(name);
    for bytes in [SEGMENT_BYTES, SUPER_SEGMENT_BYTES] {
        group.throughput(Throughput::Bytes(bytes as u64));
        let mut ends = Ends::new(bytes);
        group.bench_function(bytes.to_string(), |bencher| {
            bencher.iter_custom(|segments| timed(&mut ends, segments));
        });
    }
    group.finish();
}

/// So many segments, a batch at a time.
pub(crate) fn batches(segments: u64, batch: impl FnMut(u64) -> Duration) -> Duration {
    let full = segments / BATCH;
    (0..full)
        .map(|_| BATCH)
        .chain((!segments.is_multiple_of(BATCH)).then_some(segments % BATCH))
        .map(batch)
        .sum()
}
