//! Test bench: hosts in network namespaces, kernel TCP peers, packet loss, and Wireshark as the reference.
//!
//! Each test creates its own resources. Namespaces are anonymous and exist as long as the descriptor that holds
//! them. The kernel chooses ports, and file names carry the process id. Tests can therefore run in parallel,
//! and a killed test run leaves nothing behind.
//!
//! Functions of this crate panic, with the command and its output, where a test would have unwrapped. Every
//! wait has a deadline; none is a blind sleep.
//!
//! | module | provides |
//! |---|---|
//! | [`needs`] | prerequisites of a test: skipped by name if missing, an error in CI |
//! | [`netns`] | a host: one network namespace |
//! | [`switch`] | an Ethernet between hosts, with counted loss |
//! | [`wire`] | hosts at the ends of a `flue wire`: seeded loss, delay, rate, queue |
//! | [`stream`] | bytes from a seed, and their digest |
//! | [`kernel_peer`] | a kernel TCP socket that sends, receives, stalls, half-closes or resets |
//! | [`process`] | a program under test: its lines, deadlines and termination |
//! | [`seeds`] | a suite of many seeds: ranges, all CPUs, failure classes, open seeds |
//! | [`mod@bench`] | nodes on a switch, a kernel as their peer, and `flue ss` to observe their connections |
//! | [`ping`] | ICMP echo: late, duplicate, reordered and missing replies |
//! | [`icmp`] | ICMP errors of a network with a smaller MTU |
//! | [`flue`] | the command under test, as root or as an ordinary user, as a pipe |
//! | [`capture`] | frames of pcap and pcapng files, and their TCP segments |
//! | [`tcp_validator`] | validator of a host's frames: those of one legal TCP stack |
//! | [`ranges`] | sets of bytes of a stream |
//! | [`load`] | repeated runs for counts that a busy machine distorts |
//! | [`mod@tgtadm`] | configuration of a tgtd |
//! | [`tshark`] | Wireshark's dissection of the same files |
#![forbid(unsafe_code)]

pub mod bench;
pub mod capture;
pub mod flue;
pub mod icmp;
pub mod kernel_peer;
pub mod load;
pub mod needs;
pub mod netns;
pub mod ping;
pub mod process;
pub mod ranges;
pub mod seeds;
pub mod stream;
pub mod switch;
pub mod tcp_validator;
pub mod tgtadm;
pub mod tshark;
pub mod wire;
