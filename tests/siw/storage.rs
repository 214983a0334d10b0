//! Disk over iSER: the guest's kernel as the initiator (ib_iser on siw) of tgtd on flue, and as the target (ib_isert on
//! siw) of QEMU's block driver on flue.

use std::fmt::Write as _;
use std::fs::{self, File};
use std::process::Command;
use std::time::Instant;

use flue_test_support::flue::Scratch;
use flue_test_support::tgtadm::{SOCKET, tgtadm};

use crate::bench::{Bench, Carrier, Setup};
use crate::guest::{ADDRESS, Siw};
use crate::{KERNEL, LIMIT, Row, TAP};

const TARGET: &str = "iqn.2026-01.org.flue:disk";
const INITIATOR: &str = "iqn.2026-01.org.flue:guest";
const DISK_MIB: usize = 16;
/// RDMA port of tgtd on kernel sockets, where its iSCSI uses port 3260.
const MAPPED_PORT: u16 = 3261;
const PORT: u16 = 3260;
/// Largest request of libiscsi's iSER.
const REQUEST_BYTES: usize = 256 << 10;
/// Environment without which libiscsi 1.19 reads uninitialized fields of an iSER connection.
const LIBISCSI: &str = "MALLOC_PERTURB_=255 LIBISCSI_CACHE_ALLOCATIONS=0";

/// Configures the target of the guest's kernel: a file as the disk, for any initiator.
///
/// A portal of the kernel listens by TCP before it listens by iSER. On siw both would use the same port of TCP, so the
/// socket of TCP is in another network namespace.
const CONFIGURE_TARGET: &str = "\
    set -e; [ -d /sys/kernel/config/target ] || mount -t configfs none /sys/kernel/config; \
    cd /sys/kernel/config/target; \
    truncate -s $BYTES /tmp/disk; mkdir -p core/fileio_0/disk; \
    echo fd_dev_name=/tmp/disk,fd_dev_size=$BYTES >core/fileio_0/disk/control; \
    echo 1 >core/fileio_0/disk/enable; \
    mkdir -p iscsi; mkdir iscsi/$TARGET; mkdir iscsi/$TARGET/tpgt_1; cd iscsi/$TARGET/tpgt_1; \
    echo 0 >attrib/authentication; echo 1 >attrib/generate_node_acls; echo 1 >attrib/cache_dynamic_acls; \
    echo 0 >attrib/demo_mode_write_protect; echo No >param/ImmediateData; \
    mkdir lun/lun_0; ln -s /sys/kernel/config/target/core/fileio_0/disk lun/lun_0/disk; \
    unshare -n sh -c \"ip link set lo up; ip addr add $ADDRESS/32 dev lo; mkdir np/$ADDRESS:$PORT\"; \
    echo 1 >np/$ADDRESS:$PORT/iser; echo 1 >enable";
/// Removes it.
const REMOVE_TARGET: &str = "\
    set -e; cd /sys/kernel/config/target/iscsi/$TARGET/tpgt_1; echo 0 >enable; \
    rmdir np/$ADDRESS:$PORT; rm lun/lun_0/disk; rmdir lun/lun_0; cd ..; rmdir tpgt_1; cd ..; rmdir $TARGET; \
    rmdir ../core/fileio_0/disk; rm /tmp/disk";

pub(crate) fn rows(siw: Siw, rows: &mut Vec<Row>) {
    for setup in [TAP, KERNEL] {
        rows.push(Row {
            siw,
            setup,
            what: "tgtd on flue, ib_iser in the guest".into(),
            run: Box::new(move |bench| disk(bench, &setup)),
        });
        rows.push(Row {
            siw,
            setup,
            what: "qemu-io on flue, ib_isert in the guest".into(),
            run: Box::new(move |bench| disk_of_guest(bench, &setup)),
        });
    }
}

fn disk(bench: &mut Bench, setup: &Setup) -> String {
    let scratch = Scratch::new();
    let end = bench.set_up(setup);
    let (options, port) = match setup.carrier {
        Carrier::Tap => (String::new(), PORT),
        Carrier::Kernel => (format!("--port-map {PORT}={MAPPED_PORT}"), MAPPED_PORT),
    };
    let socket = scratch.file("tgtd");
    let mut tgtd =
        bench.flue_run(&end, &options, &format!("env {SOCKET}={} tgtd -f", socket.display()));
    let deadline = Instant::now() + LIMIT;
    while let Err(wrong) = tgtadm(&socket, "--op show --mode sys") {
        assert!(
            tgtd.is_running() && Instant::now() < deadline,
            "{wrong}\n{}",
            tgtd.log().join("\n")
        );
    }
    let path = scratch.file("disk");
    let file = File::create(&path).expect("a file of this test");
    file.set_len((DISK_MIB << 20) as u64).expect("a sparse file");
    let target = "--lld iser --mode target --tid 1";
    for words in [
        format!("{target} --op new -T {TARGET}"),
        format!("{target} --op bind -I ALL"),
        format!("{target} --op bind -Q {INITIATOR}"),
        format!("--lld iser --mode logicalunit --tid 1 --op new --lun 1 -b {}", path.display()),
    ] {
        tgtadm(&socket, &words).unwrap_or_else(|wrong| panic!("{wrong}"));
    }

    let login = format!(
        "iscsistart -i {INITIATOR} -t {TARGET} -g 1 -a {} -p {port} --param iface.transport_name=iser",
        end.address
    );
    bench.guest.run(&login);
    bench.guest.run("until [ -b /dev/sda ]; do sleep 0.02; done");
    bench.guest.run(&format!(
        "dd if=/dev/urandom of=/tmp/data bs=1M count={DISK_MIB} && \
         dd if=/tmp/data of=/dev/sda bs=1M conv=fsync && echo 3 >/proc/sys/vm/drop_caches && \
         dd if=/dev/sda bs=1M | cmp - /tmp/data"
    ));
    let sum = bench.guest.run("sha256sum /tmp/data");
    // The disk is removed before its target.
    bench.guest.run("rm /tmp/data && echo 1 >/sys/block/sda/device/delete");
    let stored = Command::new("sha256sum").arg(&path).output().expect("sha256sum starts");
    let stored = String::from_utf8_lossy(&stored.stdout).into_owned();
    let first = |text: &str| text.split(' ').next().map(str::to_owned);
    assert_eq!(first(&sum), first(&stored), "SHA-256 in the guest and of tgtd's file");
    format!("{DISK_MIB} MiB written, read and compared")
}

fn disk_of_guest(bench: &mut Bench, setup: &Setup) -> String {
    let scratch = Scratch::new();
    let end = bench.set_up(setup);
    let disk_bytes = DISK_MIB << 20;
    let variables =
        format!("BYTES={disk_bytes}; TARGET={TARGET}; ADDRESS={ADDRESS}; PORT={PORT}; ");
    bench.guest.run(&(variables.clone() + CONFIGURE_TARGET));

    // All pieces are written before the first is read.
    let (mut writes, mut reads) = (String::new(), String::new());
    let mut expected = Vec::with_capacity(disk_bytes);
    for piece in 0..disk_bytes / REQUEST_BYTES {
        let (pattern, offset) = (piece % 251 + 1, piece * REQUEST_BYTES);
        for (commands, verb) in [(&mut writes, "write"), (&mut reads, "read")] {
            writeln!(commands, "{verb} -P {pattern} {offset} {REQUEST_BYTES}").expect("a String");
        }
        expected.resize(expected.len() + REQUEST_BYTES, pattern as u8);
    }
    let script = scratch.file("commands");
    fs::write(&script, writes + &reads).expect("a file of this test");
    let url = format!("iser://{ADDRESS}:{PORT}/{TARGET}/0");
    let command = scratch.file("command");
    let text = format!("exec env {LIBISCSI} qemu-io -f raw {url} <{}", script.display());
    fs::write(&command, text).expect("a file of this test");
    let mut initiator = bench.flue_run(&end, "", &format!("sh {}", command.display()));
    // The output is used instead of the exit status: at its end libiscsi frees a connection that its thread still uses.
    let log = initiator.all_lines(LIMIT);
    for verb in ["wrote", "read"] {
        let whole = format!("{verb} {REQUEST_BYTES}/{REQUEST_BYTES} bytes");
        assert_eq!(log.matches(&whole).count(), disk_bytes / REQUEST_BYTES, "{whole}: {log}");
    }
    assert!(!log.contains("Pattern verification failed"), "{log}");

    fs::write(scratch.file("expected"), expected).expect("a file of this test");
    let digest = Command::new("sha256sum").arg(scratch.file("expected")).output();
    let digest = String::from_utf8_lossy(&digest.expect("sha256sum starts").stdout).into_owned();
    let stored = bench.guest.run("sha256sum /tmp/disk");
    let first = |text: &str| text.split(' ').next().map(str::to_owned);
    assert_eq!(first(&stored), first(&digest), "SHA-256 of the guest's disk and of the data");
    bench.guest.run(&(variables + REMOVE_TARGET));
    format!("{DISK_MIB} MiB written, read and compared")
}
