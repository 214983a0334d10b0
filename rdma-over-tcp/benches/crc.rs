//! CRC32C over the contents of FPDUs.

use std::hint::black_box;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use rdma_over_tcp::mpa::crc::crc32c;

fn crc(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("crc32c");
    let data = vec![0x5a; 1024 * 1024];
    for octets in [64, 1448, 64 * 1024, 1024 * 1024] {
        group.throughput(Throughput::Bytes(octets as u64));
        group.bench_function(octets.to_string(), |bencher| {
            bencher.iter(|| crc32c(black_box(&data[..octets])));
        });
    }
    group.finish();
}

criterion_group!(benches, crc);
criterion_main!(benches);
