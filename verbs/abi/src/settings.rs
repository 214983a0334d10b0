//! Settings of the library in the environment of a program. Those of its adapter override the options that `flue run`
//! passes in one variable; absent ones have the defaults of the adapter.

/// Names that programs load the library under: those of the originals, and of their development packages, which some
/// programs pass to dlopen(3).
pub const LIBRARY_NAMES: [&str; 4] =
    ["libibverbs.so.1", "librdmacm.so.1", "libibverbs.so", "librdmacm.so"];

/// Name of the library's file where cargo builds it and where packages install it.
pub const LIBRARY_FILE: &str = "libflue_verbs.so";

/// Path of the library's file for `flue run`, unless `--library` gives one.
pub const LIBRARY: &str = "FLUE_VERBS_LIBRARY";

/// A file to which the library appends its log; without it, it logs nothing.
pub const LOG: &str = "FLUE_VERBS_LOG";

/// A file for a capture of the connections' bytes. `%p` in it stands for the process id.
pub const PCAP: &str = "FLUE_VERBS_PCAP";

/// `on` or `off`: ask for CRCs of FPDUs.
pub const MPA_CRC: &str = "FLUE_VERBS_MPA_CRC";

/// `on` or `off`: ask the peer for markers.
pub const MPA_MARKERS: &str = "FLUE_VERBS_MPA_MARKERS";

/// `1`, `2` or `auto`: revision of the MPA Request.
pub const MPA_REVISION: &str = "FLUE_VERBS_MPA_REVISION";

/// `send`, `write` or `read`: the only ready-to-receive message that is offered or understood.
pub const RTR: &str = "FLUE_VERBS_RTR";

/// `on` or `off`: atomics and immediate data (RFC 7306). MPA does not negotiate them, so every peer must have them.
pub const RFC7306: &str = "FLUE_VERBS_RFC7306";

/// Seconds, with or without a fraction, that a message waits for a receive; 0: it ends the connection at once.
pub const RECEIVE_WAIT: &str = "FLUE_VERBS_RECEIVE_WAIT";

/// A node on a TAP that a launcher has made ready, in JSON, instead of the transport in the launcher's options. Its
/// capture is in it.
pub const TAP: &str = "FLUE_VERBS_TAP";

/// `HOST=NODE,...`: addresses of the kernel that stand for addresses of nodes.
pub const MAP: &str = "FLUE_VERBS_MAP";

/// `[HOST:]PORT=PORT,...`: ports of the program that stand for other RDMA ports.
pub const PORT_MAP: &str = "FLUE_VERBS_PORT_MAP";

/// A file of the launcher, in which processes of the program record their use of the device.
pub const USAGE: &str = "FLUE_VERBS_USAGE";

/// Path of the control socket, or `none`.
pub const CONTROL: &str = "FLUE_VERBS_CONTROL";
