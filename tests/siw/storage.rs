//! Disk over iSER: the guest's kernel (ib_iser on siw) as the initiator, tgtd on flue as the target.

use std::fs::File;
use std::process::Command;
use std::time::Instant;

use flue_test_support::flue::Scratch;
use flue_test_support::tgtadm::{SOCKET, tgtadm};

use crate::bench::{Bench, Carrier, Setup};
use crate::guest::Siw;
use crate::{KERNEL, LIMIT, Row, TAP};

const TARGET: &str = "iqn.2026-01.org.flue:disk";
const INITIATOR: &str = "iqn.2026-01.org.flue:guest";
const DISK_MIB: usize = 16;
/// RDMA port of tgtd on kernel sockets, where its iSCSI uses port 3260.
const MAPPED_PORT: u16 = 3261;
const PORT: u16 = 3260;

pub(crate) fn rows(siw: Siw, rows: &mut Vec<Row>) {
    for setup in [TAP, KERNEL] {
        rows.push(Row {
            siw,
            setup,
            what: "tgtd on flue, ib_iser in the guest".into(),
            run: Box::new(move |bench| disk(bench, &setup)),
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
