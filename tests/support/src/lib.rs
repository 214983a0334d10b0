//! The bench that the tests stand on: hosts in network namespaces, kernel TCP peers, loss on the
//! wire, and Wireshark as the judge.
//!
//! Everything here is made per test and belongs to nobody else: namespaces are anonymous (they
//! live exactly as long as the descriptor that holds them), ports are chosen by the kernel, files
//! carry the process id. So tests run in parallel, and a killed test run leaves nothing behind.
//!
//! Functions of this crate panic, with the command and what it printed, where a test would have
//! unwrapped. Every wait has a deadline; none is a blind sleep.
//!
//! | module | gives |
//! |---|---|
//! | [`needs`] | skipping by name what a machine cannot run, and refusing to skip in CI |
//! | [`netns`] | a host: one network namespace |
//! | [`switch`] | an Ethernet between hosts, with loss that can be counted |
//! | [`wire`] | hosts at the ends of a `flue wire`: loss with a seed, delay, rate, queue |
//! | [`stream`] | bytes from a seed, and their digest |
//! | [`kernel_peer`] | a kernel TCP socket that sends, receives, stalls, half-closes or resets |
//! | [`process`] | a program under test: its lines, its deadline, its end |
//! | [`seeds`] | a suite of many seeds: ranges, all CPUs, classes of failures, open seeds |
//! | [`mod@bench`] | nodes on a switch, a kernel as their peer, and `flue ss` as the witness of their connections |
//! | [`ping`] | ICMP echo: what comes back late, twice, in another order or not at all |
//! | [`icmp`] | messages of a network that a frame does not fit through |
//! | [`flue`] | the command under test, as root or as an ordinary user, as a pipe |
//! | [`capture`] | frames out of pcap and pcapng files, and the TCP segments in them |
//! | [`tcp_validator`] | whether what a host sends is what one legal TCP stack would send |
//! | [`ranges`] | sets of bytes of a stream |
//! | [`load`] | another run where a busy machine has spoilt a count |
//! | [`mod@tgtadm`] | configuration of a tgtd |
//! | [`tshark`] | what Wireshark says about the same files |
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
