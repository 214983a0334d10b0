//! Tests that the codec sends and receives by itself, and does not depend on other crates of flue.

use std::{collections::BTreeSet, env, process::Command};

use flue_codec::{List, Piece, Sink, send};
use rdma_over_tcp::{
    ddp::{Stag, TaggedReceiver},
    error::WireError,
    mpa::{Decoder, Encoder, Slab},
};

const STAG: Stag = Stag(0x1234_5600);

fn sink(octets: usize, markers: bool) -> Sink {
    let decoder = Decoder::new(true, markers);
    Sink { stag: STAG, memory: vec![0; octets], decoder, receiver: TaggedReceiver::new() }
}

fn stream(list: &List<'_>) -> Vec<u8> {
    list.0.iter().flat_map(Piece::octets).copied().collect()
}

#[test]
fn message_is_sent_without_a_copy_and_placed() {
    let message: Vec<u8> = (0..10_000u32).map(|at| (at % 251) as u8).collect();
    for markers in [false, true] {
        let (mut encoder, mut slab) = (Encoder::new(true, markers), Slab::new());
        let list = send(&mut encoder, &mut slab, STAG, &message, 1442);
        assert_eq!(encoder.fpdus(), 10_000u64.div_ceil(1442 - 14));
        let lent = list.0.iter().filter(|piece| matches!(piece, Piece::Lent(_)));
        let inside = message.as_ptr_range();
        let lent: usize = lent
            .inspect(|piece| assert!(inside.contains(&piece.octets().as_ptr())))
            .map(|piece| piece.octets().len())
            .sum();
        assert_eq!(lent, message.len());
        let mut sink = sink(message.len(), markers);
        let received: Result<usize, _> =
            stream(&list).chunks(999).map(|octets| sink.receive(octets)).sum();
        assert_eq!(received, Ok(1));
        assert!(sink.memory == message);
        assert_eq!(sink.decoder.counters().octets, encoder.octets());
    }
}

#[test]
fn wire_errors_are_returned() {
    let list = send(&mut Encoder::new(true, false), &mut Slab::new(), STAG, &[7; 100], 1442);
    let mut octets = stream(&list);
    assert_eq!(sink(99, false).receive(&octets), Err(WireError::TaggedBounds));
    octets[50] ^= 1;
    assert_eq!(sink(100, false).receive(&octets), Err(WireError::MpaCrc));
}

/// Returns the crates that `cargo tree` lists for these arguments.
fn tree(arguments: &[&str]) -> BTreeSet<String> {
    let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo)
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .args(["tree", "--locked", "--offline", "-e", "normal", "--prefix", "none"])
        .args(arguments)
        .output()
        .expect("cargo tree runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).expect("crate names are UTF-8");
    text.lines().filter_map(|line| Some(line.split_once(' ')?.0.to_owned())).collect()
}

#[test]
fn codec_does_not_depend_on_the_stack() {
    const STACK: [&str; 3] = ["smoltcp", "host-stack", "offload-engine"];
    let codec: &[&[&str]] = &[
        &["-p", "flue-codec"],
        &["-p", "rdma-over-tcp", "--no-default-features"],
        &["-p", "rdma-over-tcp", "--no-default-features", "--features", "std"],
    ];
    for arguments in codec {
        let crates = tree(arguments);
        assert!(crates.contains("rdma-over-tcp") && crates.contains("bytes"), "{crates:?}");
        let found: Vec<_> = STACK.iter().filter(|name| crates.contains(**name)).collect();
        assert!(found.is_empty(), "{arguments:?} depends on {found:?}");
    }
    // With default features the crate has queue pairs, which depend on the stack.
    let crates = tree(&["-p", "rdma-over-tcp"]);
    assert!(STACK.iter().all(|name| crates.contains(*name)), "{crates:?}");
}
