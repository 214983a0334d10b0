//! Ethernet between hosts: a bridge in a separate namespace, one veth per host, and packet loss.
//!
//! The kernel drops the frames, by an `nft` rule in the bridge's forward path, independent of flue. Loss is
//! random without a seed: a test can require "some", never a certain frame. Only TCP is affected, since a lost
//! ARP request costs a second and tests nothing. CE marks (RFC 3168) are set in the same way.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::netns::Namespace;

/// Frames that a loss rule applies to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction<'a> {
    /// All frames that cross the switch.
    Both,
    /// Frames that enter through the port with this name.
    From(&'a str),
}

/// Bridge named [`Switch::BRIDGE`] in its own namespace.
#[derive(Debug)]
pub struct Switch {
    namespace: Namespace,
    mtu: u32,
    ports: AtomicU32,
}

impl Switch {
    /// The bridge's name, for `flue --bridge`.
    pub const BRIDGE: &'static str = "br0";

    /// Creates a switch whose ports carry IP packets of up to `mtu` bytes (576..=65535).
    pub fn new(mtu: u32) -> Self {
        let namespace = Namespace::new();
        namespace.ip(&format!("link add {} mtu {mtu} type bridge", Self::BRIDGE));
        namespace.ip(&format!("link set {} up", Self::BRIDGE));
        namespace.nft("add table bridge bench");
        namespace.nft("add chain bridge bench crossing { type filter hook forward priority 0; }");
        namespace.nft("add counter bridge bench lost");
        namespace.nft("add counter bridge bench marked");
        Self { namespace, mtu, ports: AtomicU32::new(0) }
    }

    /// Namespace of the bridge, to which TAPs are attached.
    pub fn namespace(&self) -> &Namespace {
        &self.namespace
    }

    /// Creates a host with `eth0` at `address` (such as `10.0.0.1/24`), attached to the switch. Its port on the
    /// switch is named `port0`, `port1`, … in the order of the calls.
    pub fn host(&self, address: &str) -> Namespace {
        let host = Namespace::new();
        let port = format!("port{}", self.ports.fetch_add(1, Ordering::Relaxed));
        let mtu = self.mtu;
        self.namespace.ip(&format!(
            "link add {port} mtu {mtu} type veth peer name eth0 mtu {mtu} netns {}",
            text(host.path())
        ));
        self.namespace.ip(&format!("link set {port} master {} up", Self::BRIDGE));
        // A tentative address is not used, and the host would connect from its link-local address.
        let nodad = if address.contains(':') { " nodad" } else { "" };
        host.ip(&format!("addr add {address} dev eth0{nodad}"));
        host.ip("link set eth0 up");
        host
    }

    /// Runs `open`, which opens the TAP `name` in the switch's namespace, attaches the TAP and sets it up.
    /// Returns the result of `open`.
    pub fn attach<T: Send>(&self, name: &str, open: impl FnOnce() -> T + Send) -> T {
        let opened = self.namespace.run(open);
        self.namespace.ip(&format!("link set {name} master {} up", Self::BRIDGE));
        opened
    }

    /// Starts dropping `hundredths` of a percent (0..=10000) of the TCP segments in `direction`.
    pub fn lose(&self, hundredths: u32, direction: Direction<'_>) {
        assert!(hundredths <= 10_000, "{hundredths} hundredths of a percent exceed 100 %");
        let (from, own) = match direction {
            Direction::Both => (String::new(), String::new()),
            Direction::From(port) => {
                self.namespace.nft(&format!("add counter bridge bench lost-{port}"));
                (format!("iifname {port} "), format!("counter name lost-{port} "))
            }
        };
        // nft rejects a comparison that is always true.
        let chance = match hundredths {
            10_000 => String::new(),
            fewer => format!("numgen random mod 10000 < {fewer} "),
        };
        self.namespace.nft(&format!(
            "add rule bridge bench crossing {from}meta l4proto tcp {chance}{own}counter name lost drop"
        ));
    }

    /// Frames from `port` dropped so far. A rule of [`lose`](Self::lose) for that port must exist.
    pub fn lost_frames_from(&self, port: &str) -> u64 {
        self.counter(&format!("lost-{port}"))
    }

    /// Starts setting CE on `hundredths` of a percent (1..=9999) of the ECN-capable IPv4 packets that cross the
    /// switch.
    pub fn mark(&self, hundredths: u32) {
        assert!((1..10_000).contains(&hundredths), "{hundredths} hundredths of a percent");
        self.namespace.nft(&format!(
            "add rule bridge bench crossing ip ecn ect0 numgen random mod 10000 < {hundredths} \
             counter name marked ip ecn set ce"
        ));
    }

    /// Frames marked so far by the rules of [`mark`](Self::mark); a GSO packet counts as one.
    pub fn marked_frames(&self) -> u64 {
        self.counter("marked")
    }

    /// Frames dropped so far by the rules of [`lose`](Self::lose).
    pub fn lost_frames(&self) -> u64 {
        self.counter("lost")
    }

    fn counter(&self, name: &str) -> u64 {
        let listing = self.namespace.nft(&format!("list counter bridge bench {name}"));
        let listing: serde_json::Value = serde_json::from_str(&listing).expect("nft prints JSON");
        let objects = listing["nftables"].as_array().expect("nft lists objects");
        let counter = objects.iter().find_map(|object| object.get("counter"));
        counter.and_then(|counter| counter["packets"].as_u64()).expect("the counter exists")
    }
}

fn text(path: PathBuf) -> String {
    path.into_os_string().into_string().expect("the path is UTF-8")
}
