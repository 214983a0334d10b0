//! Table of programs: command lines of both ends, and their expected output.

/// Program, or pair of programs.
pub(crate) struct Row {
    /// Name of the test and of the row.
    pub(crate) name: &'static str,
    /// Options of `flue run`, for both ends.
    pub(crate) options: &'static str,
    /// Debian package.
    pub(crate) package: &'static str,
    /// Command line of the listening end, and its port; none for programs without a peer.
    pub(crate) server: Option<(&'static str, u16)>,
    /// Command line of the connecting end, or of the only one.
    pub(crate) client: &'static str,
    /// Texts required in the client's output.
    pub(crate) client_texts: &'static [&'static str],
    /// Texts required in the server's output.
    pub(crate) server_texts: &'static [&'static str],
    /// True if the server exits on its own, with 0. Otherwise the test ends it.
    pub(crate) server_ends: bool,
    /// Output of a server that may then wait forever, by a fault of its own. Its client has succeeded.
    pub(crate) server_waits_after: Option<&'static str>,
    /// True if the port is a TCP port of the kernel also on nodes: the programs connect their own queue pairs.
    pub(crate) listens_by_tcp: bool,
    /// Transports tested on the RoCE device in CI; `tests/verbs/run` tests all of them. None: not run on that device.
    pub(crate) roce: Option<InCi>,
    /// The same for the iWARP device.
    pub(crate) iwarp: Option<InCi>,
    /// Source of the result in the client's output, for the table of docs/measurements/verbs-programs.md.
    pub(crate) result: Seen,
}

impl Row {
    /// Transports tested on that device in CI.
    pub(crate) fn in_ci(&self, device: Device) -> Option<InCi> {
        match device {
            Device::Iwarp => self.iwarp,
            Device::Roce => self.roce,
        }
    }
}

/// Transports on which a row is fast enough for every run of the tests.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum InCi {
    /// On kernel sockets, and on nodes.
    Both,
    /// On kernel sockets.
    Sockets,
    No,
}

/// Source of a result in the client's output.
#[derive(Clone, Copy)]
pub(crate) enum Seen {
    /// The first of the required texts.
    Text,
    /// All lines that contain this text.
    Lines(&'static str),
    /// Cell of the line after the one with this heading: the index from 0, and the name of the value.
    Cell(&'static str, usize, &'static str),
}

use Seen::{Cell, Lines};

use crate::test_bed::Device;

/// Row of one end without a peer.
const fn alone(
    name: &'static str,
    package: &'static str,
    client: &'static str,
    says: &'static [&'static str],
) -> Row {
    Row {
        name,
        options: "",
        package,
        server: None,
        client,
        client_texts: says,
        server_texts: &[],
        server_ends: true,
        server_waits_after: None,
        listens_by_tcp: false,
        iwarp: Some(InCi::No),
        roce: Some(InCi::Sockets),
        result: Seen::Text,
    }
}

/// Row of both ends, which exit with 0.
const fn pair(
    name: &'static str,
    package: &'static str,
    server: (&'static str, u16),
    client: &'static str,
    says: &'static [&'static str],
) -> Row {
    Row { server: Some(server), ..alone(name, package, client, says) }
}

/// Excludes the row from ordinary test runs: perftest measures the CPU clock for a fifth of a second at each size, and
/// longer in its latency tests.
const fn long(row: Row) -> Row {
    Row { roce: Some(InCi::No), ..row }
}

/// Runs the row on nodes, too, in every run of the tests.
const fn both(row: Row) -> Row {
    Row { roce: Some(InCi::Both), ..row }
}

/// Runs the row on the iWARP device, too, in every run of the tests.
const fn either(row: Row) -> Row {
    Row { iwarp: Some(InCi::Sockets), ..row }
}

/// Row of the iWARP device only.
const fn iwarp(row: Row) -> Row {
    Row { iwarp: Some(InCi::Sockets), roce: None, ..row }
}

/// Row of the RoCE device only: programs that connect their own queue pairs.
const fn roce(row: Row) -> Row {
    Row { iwarp: None, listens_by_tcp: true, ..row }
}

/// perftest: both ends with the same options, the client with the address.
macro_rules! perftest {
    ($name:literal, $line:literal, $header:literal, $cell:literal, $unit:literal) => {
        Row {
            result: Cell($header, $cell, $unit),
            ..pair(
                $name,
                "perftest",
                (concat!($line, " -R"), 18515),
                concat!($line, " -R 127.0.0.1"),
                &[$header],
            )
        }
    };
}

/// perftest without `-R`, which connects its own queue pairs.
macro_rules! connected {
    ($name:literal, $line:literal, $header:literal, $cell:literal, $unit:literal) => {
        roce(Row {
            result: Cell($header, $cell, $unit),
            ..pair($name, "perftest", ($line, 18515), concat!($line, " 127.0.0.1"), &[$header])
        })
    };
}

/// Ping-pong of ibverbs-utils, with options of both.
macro_rules! pingpong {
    ($name:literal, $line:literal) => {
        roce(Row {
            server_texts: &["usec/iter"],
            result: Lines("usec/iter"),
            ..pair(
                $name,
                "ibverbs-utils",
                ($line, 18515),
                concat!($line, " 127.0.0.1"),
                &["usec/iter"],
            )
        })
    };
}

/// fio whose server receives messages.
///
/// fio's server waits without end if a flushed completion ends a batch, because it then forgets the receives of the
/// batch. The flush follows the last message when the client disconnects.
const fn fio_send(row: Row) -> Row {
    Row { server_waits_after: Some("cq completion status 5(Work Request Flushed Error)"), ..row }
}

/// fio: the client's `verb`, and options of both.
macro_rules! fio {
    ($name:literal, $verb:literal, $options:literal) => {
        Row {
            result: Lines("WRITE: bw="),
            ..pair(
                $name,
                "fio",
                (concat!("fio --name=to --ioengine=rdma --port=4444 --rw=read", FIO!(), $options), 4444),
                concat!(
                    "fio --name=from --ioengine=rdma --hostname=127.0.0.1 --port=4444 --rw=write --verb=",
                    $verb,
                    FIO!(),
                    $options
                ),
                &["err= 0", "WRITE: bw="],
            )
        }
    };
}

macro_rules! FIO {
    () => {
        " --bs=64k --size=64m --iodepth=16 --verify=crc32c --verify_state_save=0"
    };
}

/// 10.77.0.1 is the address of an interface; libfabric ignores loopback. An fio client writes, whatever its verb.
pub(crate) const ROWS: &[Row] = &[
    alone("ibv_devices", "ibverbs-utils", "ibv_devices", &["flue0"]),
    iwarp(alone(
        "ibv_devinfo",
        "ibverbs-utils",
        "ibv_devinfo -v",
        &[
            "hca_id:\tflue0",
            "transport:\t\t\tiWARP (1)",
            "PORT_ACTIVE (4)",
            "link_layer:\t\tEthernet",
        ],
    )),
    either(both(Row {
        server_texts: &["server ping data: rdma-ping-99:"],
        ..pair(
            "rping",
            "rdmacm-utils",
            ("rping -s -a 127.0.0.1 -C 100 -V -v", 7174),
            "rping -c -a 127.0.0.1 -C 100 -V -v",
            &["ping data: rdma-ping-99:"],
        )
    })),
    pair(
        "rping_of_1500_bytes",
        "rdmacm-utils",
        ("rping -s -a 127.0.0.1 -S 1500 -C 100 -V", 7174),
        "rping -c -a 127.0.0.1 -S 1500 -C 100 -V -v",
        &["ping data: rdma-ping-99:"],
    ),
    both(pair(
        "rping_of_64_kib",
        "rdmacm-utils",
        ("rping -s -a 10.77.0.1 -S 65535 -C 100 -V", 7174),
        "rping -c -a 10.77.0.1 -S 65535 -C 100 -V",
        &[],
    )),
    both(pair(
        "rping_over_ipv6",
        "rdmacm-utils",
        ("rping -s -a ::1 -C 100 -V", 7174),
        "rping -c -a ::1 -C 100 -V -v",
        &["ping data: rdma-ping-99:"],
    )),
    pair(
        "rping_of_all_addresses",
        "rdmacm-utils",
        ("rping -s -S 100 -C 100 -V", 7174),
        "rping -c -a 10.77.0.1 -S 100 -C 100 -V -v",
        &["ping data: rdma-ping-99:"],
    ),
    pair(
        "rping_with_queue_pairs_of_its_own",
        "rdmacm-utils",
        ("rping -s -q -a 127.0.0.1 -C 100 -V", 7174),
        "rping -c -q -a 127.0.0.1 -C 100 -V -v",
        &["ping data: rdma-ping-99:"],
    ),
    Row {
        server_ends: false,
        ..pair(
            "rping_persistent_server",
            "rdmacm-utils",
            ("rping -s -P -a 127.0.0.1 -V", 7174),
            "rping -c -a 127.0.0.1 -C 100 -V -v",
            &["ping data: rdma-ping-99:"],
        )
    },
    Row {
        server_texts: &["rdma_server: end 0"],
        ..pair(
            "rdma_server_and_client",
            "rdmacm-utils",
            ("rdma_server", 7471),
            "rdma_client -s 127.0.0.1",
            &["rdma_client: end 0"],
        )
    },
    Row {
        server_texts: &["rdma_xserver: end 0"],
        ..pair(
            "rdma_xserver_and_xclient",
            "rdmacm-utils",
            ("rdma_xserver -c r", 7471),
            "rdma_xclient -s 127.0.0.1 -c r",
            &["rdma_xclient: end 0"],
        )
    },
    Row {
        server_texts: &["return status 0"],
        ..pair(
            "ucmatose",
            "rdmacm-utils",
            ("ucmatose -b 127.0.0.1 -c 20 -C 10 -S 1000", 7471),
            "ucmatose -s 127.0.0.1 -c 20 -C 10 -S 1000",
            &["data transfers complete", "return status 0"],
        )
    },
    Row {
        server_texts: &["return status 0"],
        ..pair(
            "ucmatose_with_migration",
            "rdmacm-utils",
            ("ucmatose -b 127.0.0.1 -c 100 -m", 7471),
            "ucmatose -s 127.0.0.1 -c 100 -m",
            &["data transfers complete", "return status 0"],
        )
    },
    Row {
        server_ends: false,
        result: Lines("connect "),
        ..pair(
            "cmtime",
            "rdmacm-utils",
            ("cmtime -b 127.0.0.1 -c 200", 7471),
            "cmtime -s 127.0.0.1 -c 200",
            &["create id", "disconnect"],
        )
    },
    long(Row {
        server_ends: false,
        result: Lines("connect "),
        ..pair(
            "cmtime_of_1000",
            "rdmacm-utils",
            ("cmtime -b 127.0.0.1 -c 1000", 7471),
            "cmtime -s 127.0.0.1 -c 1000",
            &["create id", "disconnect"],
        )
    }),
    Row {
        result: Cell("usec/xfer", 7, "us a transfer"),
        ..pair(
            "rstream",
            "rdmacm-utils",
            ("rstream -S 64 -I 2000 -C 1", 7471),
            "rstream -s 127.0.0.1 -S 64 -I 2000 -C 1",
            &["custom"],
        )
    },
    Row {
        result: Cell("usec/xfer", 6, "Gb/s"),
        ..pair(
            "rstream_bandwidth",
            "rdmacm-utils",
            ("rstream -S 65536 -I 1 -C 1000", 7471),
            "rstream -s 10.77.0.1 -S 65536 -I 1 -C 1000",
            &["custom"],
        )
    },
    Row {
        result: Cell("usec/xfer", 6, "Gb/s"),
        ..pair(
            "rstream_that_waits_for_all",
            "rdmacm-utils",
            ("rstream -S 1048576 -I 10 -C 2 -T b -T v", 7471),
            "rstream -s 127.0.0.1 -S 1048576 -I 10 -C 2 -T b -T v",
            &["custom"],
        )
    },
    Row {
        result: Cell("usec/xfer", 6, "Gb/s"),
        ..pair(
            "rstream_that_polls",
            "rdmacm-utils",
            ("rstream -S 65536 -I 20 -C 10 -T a -T n", 7471),
            "rstream -s 127.0.0.1 -S 65536 -I 20 -C 10 -T a -T n",
            &["custom"],
        )
    },
    Row {
        result: Cell("usec/xfer", 6, "Gb/s"),
        ..pair(
            "riostream",
            "rdmacm-utils",
            ("riostream -S 65536 -I 20 -C 10 -T v", 7471),
            "riostream -s 127.0.0.1 -S 65536 -I 20 -C 10 -T v",
            &["custom"],
        )
    },
    both(perftest!(
        "ib_write_bw",
        "ib_write_bw -n 2000 -s 65536",
        "BW average",
        3,
        "MB/s on average"
    )),
    both(perftest!(
        "ib_read_bw",
        "ib_read_bw -n 2000 -s 65536",
        "BW average",
        3,
        "MB/s on average"
    )),
    either(perftest!(
        "ib_send_bw",
        "ib_send_bw -n 2000 -s 65536",
        "BW average",
        3,
        "MB/s on average"
    )),
    perftest!("ib_write_lat", "ib_write_lat -n 1000 -s 64", "t_avg", 4, "us typically"),
    perftest!("ib_read_lat", "ib_read_lat -n 1000 -s 64", "t_avg", 4, "us typically"),
    both(perftest!("ib_send_lat", "ib_send_lat -n 1000 -s 64", "t_avg", 4, "us typically")),
    perftest!("ib_send_lat_by_events", "ib_send_lat -e -n 1000 -s 64", "t_avg", 4, "us typically"),
    perftest!(
        "ib_write_bw_both_ways",
        "ib_write_bw -b -q 8 -n 300 -s 65536",
        "BW average",
        3,
        "MB/s on average"
    ),
    long(perftest!(
        "ib_write_bw_of_all_sizes",
        "ib_write_bw -a -n 5",
        "4194304",
        3,
        "MB/s on average"
    )),
    long(perftest!(
        "ib_read_bw_of_all_sizes",
        "ib_read_bw -a -n 5",
        "4194304",
        3,
        "MB/s on average"
    )),
    long(perftest!(
        "ib_send_bw_of_all_sizes",
        "ib_send_bw -a -n 5",
        "4194304",
        3,
        "MB/s on average"
    )),
    long(perftest!(
        "ib_write_lat_of_all_sizes",
        "ib_write_lat -a -n 5",
        "4194304",
        4,
        "us typically"
    )),
    long(perftest!(
        "ib_read_lat_of_all_sizes",
        "ib_read_lat -a -n 5",
        "4194304",
        4,
        "us typically"
    )),
    long(perftest!(
        "ib_send_lat_of_all_sizes",
        "ib_send_lat -a -n 5",
        "4194304",
        4,
        "us typically"
    )),
    perftest!(
        "ib_send_bw_both_ways",
        "ib_send_bw -b -q 8 -n 300",
        "BW average",
        3,
        "MB/s on average"
    ),
    perftest!(
        "ib_read_bw_both_ways",
        "ib_read_bw -b -q 8 -n 300",
        "BW average",
        3,
        "MB/s on average"
    ),
    perftest!("ib_read_bw_by_events", "ib_read_bw -e -n 500", "BW average", 3, "MB/s on average"),
    // perftest limits a Send test to its receive depth, here the number of messages, until the server writes credits
    // into the client's memory. A client without credits before its last message, with all completions polled, sleeps
    // for an event that cannot occur. Here the server writes credits early enough: few messages fit between the two.
    perftest!(
        "ib_send_bw_by_events",
        "ib_send_bw -e -n 200 -s 1048576 -t 16",
        "BW average",
        3,
        "MB/s on average"
    ),
    perftest!(
        "ib_send_bw_with_srq",
        "ib_send_bw --use-srq -n 500",
        "BW average",
        3,
        "MB/s on average"
    ),
    Row {
        options: "--rfc7306 on",
        ..perftest!(
            "ib_atomic_fetch_add_bw",
            "ib_atomic_bw -A FETCH_AND_ADD -n 1000",
            "BW average",
            3,
            "MB/s on average"
        )
    },
    Row {
        options: "--rfc7306 on",
        ..perftest!(
            "ib_atomic_compare_swap_lat",
            "ib_atomic_lat -A CMP_AND_SWAP -n 500",
            "t_avg",
            4,
            "us typically"
        )
    },
    both(Row {
        server_ends: false,
        result: Lines(" = "),
        ..pair(
            "qperf",
            "qperf",
            ("qperf", 19765),
            "qperf -cm1 -t 1 127.0.0.1 rc_lat rc_bw rc_rdma_read_bw rc_rdma_write_poll_lat",
            &["rc_lat", "rc_bw", "rc_rdma_read_bw", "rc_rdma_write_poll_lat", "bw ", "latency "],
        )
    }),
    Row {
        options: "--rfc7306 on",
        server_ends: false,
        roce: Some(InCi::No),
        result: Lines(" = "),
        ..pair(
            "qperf_with_immediate_data_and_atomics",
            "qperf",
            ("qperf", 19765),
            "qperf -cm1 -t 1 127.0.0.1 rc_bi_bw rc_rdma_read_lat rc_rdma_write_lat rc_rdma_write_bw rc_compare_swap_mr \
             rc_fetch_add_mr ver_rc_compare_swap ver_rc_fetch_add",
            &["latency ", "bw ", "msg_rate "],
        )
    },
    both(fio!("fio_write", "write", "")),
    fio!("fio_read", "read", ""),
    either(both(fio_send(fio!("fio_send", "send", "")))),
    fio!("fio_write_in_threads", "write", " --thread"),
    fio!("fio_read_in_threads", "read", " --thread"),
    fio_send(fio!("fio_send_in_threads", "send", " --thread")),
    iwarp(alone(
        "fi_info",
        "libfabric-bin",
        "fi_info -p verbs",
        &["provider: verbs", "FI_PROTO_IWARP"],
    )),
    either(both(Row {
        result: Cell("usec/xfer", 6, "us a transfer"),
        ..pair(
            "fi_pingpong",
            "libfabric-bin",
            ("fi_pingpong -p verbs -e msg -I 500 -S 64", 47592),
            "fi_pingpong -p verbs -e msg -I 500 -S 64 10.77.0.1",
            &["usec/xfer"],
        )
    })),
    Row {
        result: Cell("usec/xfer", 6, "us a transfer"),
        ..pair(
            "fi_pingpong_of_datagrams",
            "libfabric-bin",
            ("fi_pingpong -p verbs;ofi_rxm -e rdm -I 500 -S 64", 47592),
            "fi_pingpong -p verbs;ofi_rxm -e rdm -I 500 -S 64 10.77.0.1",
            &["usec/xfer"],
        )
    },
    roce(alone(
        "ibv_devinfo_roce",
        "ibverbs-utils",
        "ibv_devinfo -v",
        &[
            "hca_id:\tflue0",
            "transport:\t\t\tInfiniBand (0)",
            "PORT_ACTIVE (4)",
            "link_layer:\t\tEthernet",
            "RoCE v2",
        ],
    )),
    roce(alone(
        "fi_info_roce",
        "libfabric-bin",
        "fi_info -p verbs",
        &["provider: verbs", "FI_PROTO_RDMA_CM_IB_RC"],
    )),
    both(pingpong!("ibv_rc_pingpong", "ibv_rc_pingpong -g 0")),
    pingpong!("ibv_rc_pingpong_by_events", "ibv_rc_pingpong -g 0 -e"),
    pingpong!("ibv_rc_pingpong_many", "ibv_rc_pingpong -g 0 -n 10000"),
    pingpong!("ibv_rc_pingpong_large", "ibv_rc_pingpong -g 0 -s 1048576"),
    pingpong!("ibv_rc_pingpong_compared", "ibv_rc_pingpong -g 0 -c"),
    both(pingpong!("ibv_srq_pingpong", "ibv_srq_pingpong -g 0")),
    pingpong!("ibv_srq_pingpong_by_events", "ibv_srq_pingpong -g 0 -e"),
    both(pingpong!("ibv_ud_pingpong", "ibv_ud_pingpong -g 0 -s 1024 -c")),
    pingpong!("ibv_ud_pingpong_by_events", "ibv_ud_pingpong -g 0 -s 1024 -e"),
    pingpong!("ibv_uc_pingpong", "ibv_uc_pingpong -g 0 -c"),
    pingpong!("ibv_uc_pingpong_by_events", "ibv_uc_pingpong -g 0 -e"),
    both(connected!(
        "ib_write_bw_connected",
        "ib_write_bw -n 2000 -s 65536",
        "BW average",
        3,
        "MB/s on average"
    )),
    connected!(
        "ib_read_bw_connected",
        "ib_read_bw -n 2000 -s 65536",
        "BW average",
        3,
        "MB/s on average"
    ),
    connected!(
        "ib_send_bw_connected",
        "ib_send_bw -n 2000 -s 65536",
        "BW average",
        3,
        "MB/s on average"
    ),
    connected!("ib_write_lat_connected", "ib_write_lat -n 1000 -s 64", "t_avg", 4, "us typically"),
    connected!("ib_read_lat_connected", "ib_read_lat -n 1000 -s 64", "t_avg", 4, "us typically"),
    both(connected!(
        "ib_send_lat_connected",
        "ib_send_lat -n 1000 -s 64",
        "t_avg",
        4,
        "us typically"
    )),
    connected!(
        "ib_send_bw_of_datagrams",
        "ib_send_bw -c UD -n 1000",
        "BW average",
        3,
        "MB/s on average"
    ),
    connected!(
        "ib_send_lat_of_datagrams",
        "ib_send_lat -c UD -n 1000 -s 64",
        "t_avg",
        4,
        "us typically"
    ),
    connected!(
        "ib_write_bw_unreliable",
        "ib_write_bw -c UC -n 2000 -s 65536",
        "BW average",
        3,
        "MB/s on average"
    ),
    connected!(
        "ib_write_lat_unreliable",
        "ib_write_lat -c UC -n 1000 -s 64",
        "t_avg",
        4,
        "us typically"
    ),
    connected!(
        "ib_atomic_bw_connected",
        "ib_atomic_bw -A FETCH_AND_ADD -n 1000",
        "BW average",
        3,
        "MB/s on average"
    ),
    connected!(
        "ib_atomic_lat_connected",
        "ib_atomic_lat -A CMP_AND_SWAP -n 500",
        "t_avg",
        4,
        "us typically"
    ),
    long(connected!(
        "ib_write_bw_connected_of_all_sizes",
        "ib_write_bw -a -n 5",
        "4194304",
        3,
        "MB/s on average"
    )),
    long(connected!(
        "ib_read_bw_connected_of_all_sizes",
        "ib_read_bw -a -n 5",
        "4194304",
        3,
        "MB/s on average"
    )),
    long(connected!(
        "ib_send_bw_connected_of_all_sizes",
        "ib_send_bw -a -n 5",
        "4194304",
        3,
        "MB/s on average"
    )),
    long(connected!(
        "ib_write_lat_connected_of_all_sizes",
        "ib_write_lat -a -n 5",
        "4194304",
        4,
        "us typically"
    )),
    long(connected!(
        "ib_read_lat_connected_of_all_sizes",
        "ib_read_lat -a -n 5",
        "4194304",
        4,
        "us typically"
    )),
    long(connected!(
        "ib_send_lat_connected_of_all_sizes",
        "ib_send_lat -a -n 5",
        "4194304",
        4,
        "us typically"
    )),
    connected!(
        "ib_write_bw_connected_both_ways",
        "ib_write_bw -b -q 8 -n 300 -s 65536",
        "BW average",
        3,
        "MB/s on average"
    ),
    connected!(
        "ib_send_bw_connected_both_ways",
        "ib_send_bw -b -q 8 -n 300",
        "BW average",
        3,
        "MB/s on average"
    ),
    connected!(
        "ib_read_bw_connected_both_ways",
        "ib_read_bw -b -q 8 -n 300",
        "BW average",
        3,
        "MB/s on average"
    ),
    connected!(
        "ib_write_bw_of_gid_index",
        "ib_write_bw -x 0 -n 500",
        "BW average",
        3,
        "MB/s on average"
    ),
    connected!(
        "ib_send_bw_connected_by_events",
        "ib_send_bw -e -n 500",
        "BW average",
        3,
        "MB/s on average"
    ),
    connected!(
        "ib_send_bw_connected_with_srq",
        "ib_send_bw --use-srq -q 4 -n 500",
        "BW average",
        3,
        "MB/s on average"
    ),
    connected!(
        "ib_write_bw_with_immediate_data",
        "ib_write_bw --write_with_imm -n 500",
        "BW average",
        3,
        "MB/s on average"
    ),
    connected!(
        "ib_write_lat_with_immediate_data",
        "ib_write_lat --write_with_imm -n 500 -s 64",
        "t_avg",
        4,
        "us typically"
    ),
];
