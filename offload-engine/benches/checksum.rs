//! Internet checksum over aligned and unaligned payloads.

use std::hint::black_box;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use offload_engine::checksum;

fn sum(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("checksum");
    let data = vec![0x5a; 64 * 1024 + 1];
    for bytes in [64, 1448, 64 * 1024] {
        group.throughput(Throughput::Bytes(bytes as u64));
        for (name, offset) in [("aligned", 0), ("unaligned", 1)] {
            let data = &data[offset..offset + bytes];
            group.bench_function(format!("{bytes} {name}"), |bencher| {
                bencher.iter(|| checksum::finish(checksum::add(0, black_box(data))));
            });
        }
    }
    group.finish();
}

criterion_group!(benches, sum);
criterion_main!(benches);
