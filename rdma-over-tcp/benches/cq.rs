//! Completion queues: 64 completions in, and out again.

#[path = "paths/cq.rs"]
mod paths;

use std::time::{Duration, Instant};

use criterion::{Criterion, Throughput, criterion_group, criterion_main};

use self::paths::Completions;

/// Posting the requests is not timed.
fn timed(completions: &Completions, rounds: u64) -> Duration {
    let round = |_| {
        completions.post();
        let begin = Instant::now();
        completions.push();
        completions.poll();
        begin.elapsed()
    };
    (0..rounds).map(round).sum()
}

fn cq(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("cq");
    group.throughput(Throughput::Elements(Completions::COUNT as u64));
    let completions = Completions::new();
    group.bench_function("push and poll", |bencher| {
        bencher.iter_custom(|rounds| timed(&completions, rounds));
    });
    group.finish();
}

criterion_group!(benches, cq);
criterion_main!(benches);
