//! Command line of `flue perf`, and the server's validation of client parameters.

use clap::Parser;

use super::*;
use crate::failure::Kind as FailureKind;

#[derive(Parser)]
struct Line {
    #[command(flatten)]
    perf: PerfArgs,
}

fn parse(line: &str) -> Result<PerfArgs, String> {
    let words = std::iter::once("perf").chain(line.split_whitespace());
    Line::try_parse_from(words).map(|line| line.perf).map_err(|error| error.to_string())
}

fn plan(line: &str) -> Plan {
    parse(line).unwrap().plan().unwrap()
}

#[test]
fn options_of_perftest_are_accepted() {
    let plan = plan("write-bw -s 1M -n 5000 --qp 4 -t 64 -b -p 7000 10.0.0.1");
    assert_eq!(plan.remote, Some("10.0.0.1:7000".parse().unwrap()));
    assert_eq!(plan.sizes, [1 << 20]);
    assert_eq!(plan.bound, Bound::Iterations(5000));
    let expected = Parameters {
        kind: Kind::WriteBw,
        connections: 4,
        depth: 64,
        post_list: 64,
        bidirectional: true,
        reverse: false,
        size_max_bytes: 1 << 20,
    };
    assert_eq!(plan.parameters, expected);
    assert!(plan.parameters.client_sends() && plan.parameters.server_sends());
}

#[test]
fn defaults_depend_on_the_kind() {
    let bandwidth = plan("send-bw");
    assert_eq!((bandwidth.sizes.as_slice(), bandwidth.parameters.depth), (&[65_536][..], 128));
    assert_eq!((bandwidth.remote, bandwidth.waiting), (None, Waiting::Block));
    assert_eq!(bandwidth.bound, Bound::DurationNs(1_000_000_000));
    let latency = plan("write-lat --progress manual");
    assert_eq!((latency.sizes.as_slice(), latency.parameters.depth), (&[8][..], 1));
    assert_eq!(latency.waiting, Waiting::Spin);
    assert_eq!(plan("tcp-rr --stack kernel --progress manual").waiting, Waiting::Block);
    assert_eq!(plan("tcp-rr --stack kernel --wait spin").waiting, Waiting::Spin);
    let reverse = plan("tcp-bw -R").parameters;
    assert!(!reverse.client_sends() && reverse.server_sends());
    assert_eq!(plan("read-bw -a").parameters.size_max_bytes, ALL_MAX_BYTES);
}

#[test]
fn invalid_options_are_rejected() {
    for (line, word) in [
        ("write-bw -s 0", "64 MiB"),
        ("write-bw -s 1K -a", "cannot be used with"),
        ("write-bw -n 1 -D 1", "cannot be used with"),
        ("write-bw -P 16385", "1..=16384"),
        ("write-bw -t 16385", "1..=16384"),
        ("write-bw --post-list 65", "1..=64"),
        ("tcp-bw -R -b", "cannot be used with"),
        ("write-bw -1 10.0.0.1", "cannot be used with"),
        ("write", "write-bw"),
    ] {
        let text = parse(line).err().unwrap();
        assert!(text.contains(word), "{line}: {word:?} is not in {text}");
    }
    for (line, word) in [
        ("write-lat -b", "-b: not supported by write-lat"),
        ("write-bw -R", "-R: not supported by write-bw"),
        ("tcp-rr -P 2", "--connections above 1"),
        ("atomic-lat -b", "-b: not supported by atomic-lat"),
        ("atomic-bw -s 16", "-s and -a: not supported by atomic-bw"),
        ("write-imm-bw --stack smoltcp", "--stack"),
        ("connect-rate -s 2", "-s"),
        ("write-bw --stack smoltcp", "--stack"),
        ("write-bw -D 0", "-D"),
        ("write-bw 0.0.0.0", "HOST"),
    ] {
        let failure = parse(line).unwrap().plan().unwrap_err();
        assert_eq!(failure.kind, FailureKind::Usage, "{line}");
        assert!(failure.message.contains(word), "{line}: {failure}");
    }
}

#[test]
fn server_validates_client_parameters() {
    let good = plan("write-bw").parameters;
    assert_eq!(good.check(Kind::WriteBw), Ok(()));
    let bad = |change: &dyn Fn(&mut Parameters), word: &str| {
        let mut parameters = good.clone();
        change(&mut parameters);
        let failure = parameters.check(Kind::WriteBw).unwrap_err();
        assert!(failure.message.contains(word), "{word}: {failure}");
    };
    bad(&|parameters| parameters.kind = Kind::ReadBw, "read-bw");
    bad(&|parameters| parameters.connections = 0, "connections 0, expected 1 to 16384");
    bad(&|parameters| parameters.connections = 16385, "connections 16385, expected 1 to 16384");
    bad(&|parameters| parameters.depth = u32::MAX, "expected 1 to 16384");
    bad(&|parameters| parameters.post_list = 65, "expected 1 to 64");
    bad(&|parameters| parameters.size_max_bytes = u64::MAX, "expected 1 to 67108864");
}
