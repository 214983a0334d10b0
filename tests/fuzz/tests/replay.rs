//! Seeds of the fuzzer as ordinary tests, and its findings as regression tests.

use std::{fs, path::Path};

use flue_fuzz::{Summary, capture, frames, iwarp, run, script};

fn captured(name: &str) -> Vec<capture::Frame> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../data").join(name);
    capture::read(&path).expect("a capture of the repository")
}

// Connections of two kernels, replayed against either end: real segments violate no rule, and close normally.
#[test]
fn captures_replay_without_violation() {
    for (name, connections) in [("siw-rping.pcap", 1), ("siw-crc.pcap", 3), ("siw-errors.pcap", 21)]
    {
        let scripts = capture::scripts(&captured(name));
        assert_eq!(scripts.len(), 2 * connections, "{name}");
        let mut sum = Summary::default();
        for (setup, ops) in &scripts {
            assert_eq!(
                script::read(&script::write(setup, ops)).as_ref(),
                Some(&(*setup, ops.clone()))
            );
            sum.add(&run(setup, ops));
        }
        // Only segments after a reset had to be dropped.
        assert!(sum.delivered > 100 * connections as u64, "{name}: {sum:?}");
        assert!(sum.dropped * 20 <= sum.segments, "{name}: {sum:?}");
        assert_eq!(sum.uploads, 0, "{name}: {sum:?}");
    }
}

#[test]
fn captured_frames_are_parsed_alike() {
    let frames = captured("siw-errors.pcap");
    let tcp = frames.iter().filter(|frame| frames::check(&frame.bytes)).count();
    assert!(tcp * 10 > frames.len() * 9, "{tcp} of {}", frames.len());
}

/// Frames of all captures that seeds are generated from.
fn all_captured() -> Vec<capture::Frame> {
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("../data");
    let files = fs::read_dir(data).expect("readable").map(|file| file.expect("readable").path());
    let captures = files.filter(|path| path.extension().is_some_and(|it| it == "pcap"));
    captures.flat_map(|path| capture::read(&path).expect("a capture")).collect()
}

// Seeds of iWARP's targets, unmodified and with each of their first octets changed.
#[test]
fn seeds_of_iwarp_pass() {
    let frames = all_captured();
    for (target, check) in iwarp::TARGETS {
        let seeds = iwarp::seeds(target, &frames);
        assert!(seeds.len() > 10, "{target}: {} seeds", seeds.len());
        for seed in &seeds {
            check(seed);
        }
        for (seed, at) in seeds
            .iter()
            .step_by(40)
            .flat_map(|seed| (0..seed.len().min(24)).map(move |at| (seed, at)))
        {
            let mut changed = seed.clone();
            changed[at] ^= 1 << (at % 8);
            check(&changed);
        }
    }
}

// Inputs that once failed; the directory of a file names its target.
#[test]
fn earlier_findings_pass() {
    let found = Path::new(env!("CARGO_MANIFEST_DIR")).join("found");
    for kind in ["segments", "frames"] {
        let Ok(files) = fs::read_dir(found.join(kind)) else { continue };
        for file in files {
            let bytes = fs::read(file.expect("readable").path()).expect("readable");
            if kind == "frames" {
                frames::check(&bytes);
            } else if let Some((setup, ops)) = script::read(&bytes) {
                run(&setup, &ops);
            }
        }
    }
    iwarp::replay(&found);
}
