//! Capture as the source of frames.

use super::*;

// Frames are parsed independent of the boundaries of the writes.
#[test]
fn capture_is_parsed_at_any_write_size() {
    use std::io::Write as _;
    use std::sync::{Arc, Mutex};

    let mut trace = Trace::open(PLAIN);
    let frames = [
        (Way::Received, trace.frame(Way::Received, theirs("", 1, 1, b"abc"))),
        (Way::Sent, trace.frame(Way::Sent, ours("", 1, 4, &[]))),
        (Way::Sent, trace.frame(Way::Sent, ours("", 1, 3, &[]))),
    ];
    let mut file = block(0x0a0d_0d0a, &[0x4d, 0x3c, 0x2b, 0x1a, 1, 0, 0, 0]);
    for (way, frame) in &frames {
        trace.now_ms += 1;
        file.extend(packet_block(trace.now_ms * MS, *way, frame));
    }
    let monitor = Arc::new(Mutex::new(trace.monitor));
    let mut feed = Feed::new(monitor.clone());
    for piece in file.chunks(7) {
        feed.write_all(piece).unwrap();
    }
    let monitor = monitor.lock().unwrap();
    let violations = monitor.violations();
    assert_eq!(violations.len(), 1, "{violations:?}");
    assert_eq!(violations[0].clause, Clause::Acknowledgment);
    assert_eq!(violations[0].time_ns, trace.now_ms * MS);
}

fn block(kind: u32, body: &[u8]) -> Vec<u8> {
    let length = (body.len() + 12) as u32;
    [&kind.to_le_bytes(), &length.to_le_bytes(), body, &length.to_le_bytes()].concat()
}

fn packet_block(time_ns: u64, way: Way, frame: &[u8]) -> Vec<u8> {
    let words = [0, (time_ns >> 32) as u32, time_ns as u32, frame.len() as u32, frame.len() as u32];
    let mut body: Vec<u8> = words.into_iter().flat_map(u32::to_le_bytes).collect();
    body.extend_from_slice(frame);
    body.resize(body.len().next_multiple_of(4), 0);
    // A comment, the direction, the end of options.
    body.extend_from_slice(&[1, 0, 5, 0, b'h', b'e', b'l', b'l', b'o', 0, 0, 0]);
    let direction = if way == Way::Received { 1 } else { 2 };
    body.extend_from_slice(&[2, 0, 4, 0, direction, 0, 0, 0, 0, 0, 0, 0]);
    block(6, &body)
}
