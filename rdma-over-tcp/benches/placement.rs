//! From the frame to registered memory: the largest FPDUs are found, their CRC is checked, and their payload is placed;
//! compared with a copy of the same size.

use std::hint::black_box;

use bytes::Bytes;
use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use rdma_over_tcp::{
    ddp::{Stag, TaggedOffset},
    mpa::{Decoder, Encoder, MULPDU_MAX, Slab},
    ndk::RegisteredBuffer,
    rdmap::{Inbound, parse, write_header},
};

/// An FPDU of a Write, and its payload.
fn frame() -> (Vec<u8>, usize) {
    let header = write_header(true, Stag(7), TaggedOffset(0));
    let payload = Bytes::from(vec![0x5a; usize::from(MULPDU_MAX) - header.len()]);
    let octets = payload.len();
    let mut pieces: Vec<Bytes> = Vec::new();
    Encoder::new(true, false).encode(&header, &[payload], &mut Slab::new(), &mut pieces);
    (pieces.concat(), octets)
}

fn placement(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("placement");
    let (frame, octets) = frame();
    group.throughput(Throughput::Bytes(octets as u64));
    let source = &frame[frame.len() - octets..];
    let mut sink = vec![0; octets];
    group.bench_function("memcpy", |bencher| {
        bencher.iter(|| black_box(&mut sink[..]).copy_from_slice(black_box(source)));
    });
    let memory = RegisteredBuffer::allocate(octets).expect("memory");
    let mut decoder = Decoder::new(true, false);
    group.bench_function("frame to memory", |bencher| {
        bencher.iter(|| {
            let mut input = black_box(&frame[..]);
            let ulpdu = decoder.next(&mut input).expect("a good CRC").expect("a whole FPDU");
            match parse(ulpdu) {
                Ok(Inbound::Write { payload, .. }) => memory.write_at(0, payload),
                other => panic!("{other:?}"),
            }
        });
    });
    group.finish();
}

criterion_group!(benches, placement);
criterion_main!(benches);
