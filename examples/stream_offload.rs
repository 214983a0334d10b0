//! A byte stream that moves between the two TCP stacks of a node while it carries data: `cargo run --example
//! stream_offload`.
//!
//! ```text
//! 0 bytes received: Offloaded
//! 300000 bytes received: InHost
//! 600000 bytes received: Offloaded
//! 900000 bytes received: equal
//! ```
//!
//! Two nodes are on the ends of a wire in memory that drops one percent of the frames. Time is virtual: the run takes
//! milliseconds, and is a function of the seeds.

use std::error::Error;

use bytes::Bytes;
use host_stack::{
    simulation::{Pair, impaired_wire},
    stream::OffloadState,
};
use offload_engine::{
    link::{Impairments, MemoryLinkOptions},
    time::{Duration, Instant},
};

/// Limit of the run, in virtual time.
const LIMIT: Instant = Instant::from_millis(600_000);
const BYTES: usize = 900_000;

fn main() -> Result<(), Box<dyn Error>> {
    let lossy = |seed| {
        let delay = Duration::from_millis(1);
        Impairments { seed, drop_pct: 1.0, delay, ..Impairments::default() }
    };
    let [left, right] = impaired_wire(MemoryLinkOptions::default(), [lossy(1), lossy(2)])?;
    let mut pair = Pair::stations((left, right));
    // The host stack connects, and then hands the connection to the offload target.
    let [near, far] = pair.connect(LIMIT);
    pair.until_offloaded(LIMIT, [near, far]);
    println!("0 bytes received: {}", pair.status(0, near).state);

    let data: Vec<u8> = (0..BYTES).map(|index| (index % 251) as u8).collect();
    pair.send(0, near, Bytes::from(data.clone()));
    let mut received = Vec::new();
    for (bytes, state) in [(300_000, OffloadState::InHost), (600_000, OffloadState::Offloaded)] {
        // `run` calls the closure after each step of both nodes, until it returns a result.
        let receive = |pair: &mut Pair<_>| {
            received.extend(std::iter::from_fn(|| pair.receive(1, far)).flatten());
            (received.len() >= bytes).then_some(())
        };
        pair.run(LIMIT, receive).expect("data arrives");
        // Node 0 migrates its end. Segments are in flight; node 1 observes one connection.
        match state {
            OffloadState::InHost => pair.parts(0).0.upload(near),
            _ => pair.parts(0).0.offload(near),
        }
        let is_there = |pair: &mut Pair<_>| (pair.status(0, near).state == state).then_some(());
        pair.run(LIMIT, is_there).expect("a migration");
        println!("{bytes} bytes received: {state}");
    }
    let receive = |pair: &mut Pair<_>| {
        received.extend(std::iter::from_fn(|| pair.receive(1, far)).flatten());
        (received.len() == BYTES).then_some(())
    };
    pair.run(LIMIT, receive).expect("data arrives");
    assert_eq!(received, data);
    println!("{BYTES} bytes received: equal");
    Ok(())
}

#[test]
fn runs() {
    main().unwrap();
}
