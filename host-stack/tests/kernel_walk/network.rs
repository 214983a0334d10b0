//! Network of a scenario: one namespace with the kernel's TCP and the node's TAP or, with loss, a lossy switch between
//! the two.
//!
//! Loss requires the switch: TCP detects frames dropped in its own output path, and keeps them as unsent.

use flue_test_support::netns::Namespace;
use flue_test_support::switch::{Direction, Switch};
use offload_engine::link::{Link, TapOptions, VnetMode, open_tap_queues};

use crate::bench::Scenario;

pub(crate) const TAP: &str = "walk0";
/// Kernel port of the switch.
const PORT: &str = "port0";

pub(crate) struct Network {
    pub(crate) kernel: Namespace,
    switch: Option<Switch>,
}

/// TCP segments dropped by the switch, by direction.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Drops {
    pub(crate) to_node: u64,
    pub(crate) to_kernel: u64,
}

impl Network {
    pub(crate) fn new(scenario: &Scenario) -> Self {
        if scenario.loss == 0 {
            return Self { kernel: Namespace::new(), switch: None };
        }
        let switch = Switch::new(u32::try_from(scenario.mtu).expect("an MTU fits"));
        let kernel = switch.host(&address(scenario));
        if !scenario.vnet {
            // A dropped frame would often be a GSO packet, and loss would occur in bursts.
            kernel.ip("link set eth0 gso_max_segs 1");
        }
        for from in [PORT, TAP] {
            switch.lose(scenario.loss * 100, Direction::From(from));
        }
        Self { kernel, switch: Some(switch) }
    }

    /// Opens the queues of the TAP, up and attached.
    pub(crate) fn open_tap(&self, scenario: &Scenario) -> Vec<Box<dyn Link>> {
        let place = self.switch.as_ref().map_or(&self.kernel, Switch::namespace);
        let vnet = if scenario.vnet { VnetMode::On } else { VnetMode::Off };
        let options = TapOptions::new(TAP, scenario.mtu, vnet);
        let taps =
            place.run(|| open_tap_queues(&options, scenario.queues)).expect("TAP can be opened");
        let nodad = if scenario.v6 { " nodad" } else { "" };
        match self.switch {
            Some(_) => place.ip(&format!("link set {TAP} master {}", Switch::BRIDGE)),
            // A tentative address is not used, and the kernel would connect from its link-local one.
            None => place.ip(&format!("addr add {} dev {TAP}{nodad}", address(scenario))),
        };
        place.ip(&format!("link set {TAP} mtu {} up", scenario.mtu));
        place.ip(&format!("link set {TAP} txqueuelen 10000"));
        taps.into_iter().map(|tap| tap.link).collect()
    }

    pub(crate) fn lost(&self) -> Drops {
        self.switch.as_ref().map_or_else(Drops::default, |switch| Drops {
            to_node: switch.lost_frames_from(PORT),
            to_kernel: switch.lost_frames_from(TAP),
        })
    }
}

/// Address of the kernel with its prefix length.
fn address(scenario: &Scenario) -> String {
    format!("{}/{}", scenario.address(1), scenario.prefix())
}
