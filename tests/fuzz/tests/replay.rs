//! The fuzzer's seeds as ordinary tests, and what it has found, so that it stays found.

use std::{fs, path::Path};

use flue_fuzz::{Summary, capture, frames, run, script};

fn captured(name: &str) -> Vec<capture::Frame> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../data").join(name);
    capture::read(&path).expect("a capture of the repository")
}

// Two kernels' connections, replayed against either end: real segments break no rule, and end in order.
#[test]
fn captures_replay() {
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
        // Nothing of theirs had to be dropped but what follows a reset.
        assert!(sum.delivered > 100 * connections as u64, "{name}: {sum:?}");
        assert!(sum.dropped * 20 <= sum.segments, "{name}: {sum:?}");
        assert_eq!(sum.uploads, 0, "{name}: {sum:?}");
    }
}

#[test]
fn captured_frames_are_read_alike() {
    let frames = captured("siw-errors.pcap");
    let tcp = frames.iter().filter(|frame| frames::check(&frame.bytes)).count();
    assert!(tcp * 10 > frames.len() * 9, "{tcp} of {}", frames.len());
}

// Inputs that once broke something; a file is an input of the target its directory names.
#[test]
fn what_was_found_stays_found() {
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
}
