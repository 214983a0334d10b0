//! FPDUs: made of payload that no other owner can write, and of registered memory; found in a segment. CRCs both ways.

#[path = "paths/fpdu.rs"]
mod paths;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use offload_engine::memory::SharedSpan;

use self::paths::{Decoding, Encoding};

fn fpdu(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("fpdu");
    for octets in [64, 1408, 64_000] {
        group.throughput(Throughput::Bytes(octets as u64));
        let mut encoding = Encoding::new(octets);
        group.bench_function(format!("encode {octets}"), |bencher| {
            bencher.iter(|| encoding.encode().data_length());
        });
        let memory = SharedSpan::allocate(octets, 64).expect("memory");
        let mut encoding = Encoding::lending(memory.into());
        group.bench_function(format!("encode {octets}, registered"), |bencher| {
            bencher.iter(|| encoding.encode().data_length());
        });
        let mut decoding = Decoding::new(octets);
        group.bench_function(format!("decode {octets}"), |bencher| {
            bencher.iter(|| decoding.decode());
        });
    }
    group.finish();
}

criterion_group!(benches, fpdu);
criterion_main!(benches);
