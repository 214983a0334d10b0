//! `--so_flags`: settings of the adapter under test, as `key=value,key=value`. See
//! `docs/contributing/packetdrill.md` for the table of keys, and [`Settings::default`] for their defaults.

use core::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    str::FromStr,
};

use host_stack::socket::OffloadPolicy;
use offload_engine::tcp::{CongestionAlgorithm, CongestionOptions, PushPolicy};

use crate::wire::LinuxQuirks;

/// Configuration of the adapter under test.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) policy: OffloadPolicy,
    /// Bytes in one direction after which a connection is offloaded, policy Auto.
    pub(crate) handover_bytes: u64,
    pub(crate) seed: u64,
    /// Maximum payload of a GSO packet, bytes; 0: none.
    pub(crate) gso_payload_max: usize,
    pub(crate) push: PushPolicy,
    pub(crate) quirks: LinuxQuirks,
    pub(crate) congestion: Option<CongestionAlgorithm>,
    pub(crate) congestion_options: CongestionOptions,
    pub(crate) timestamps: bool,
    pub(crate) ecn: bool,
    pub(crate) receive_buffer: usize,
    pub(crate) receive_window_max: usize,
    pub(crate) send_buffer: usize,
    pub(crate) mtu: usize,
    /// Source address of an unbound socket, for its family.
    local: Option<IpAddr>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            policy: OffloadPolicy::Always,
            handover_bytes: 1,
            seed: 1,
            gso_payload_max: 2 * 1460,
            push: PushPolicy::QueueEmpty,
            quirks: LinuxQuirks { options: true, push: true },
            congestion: None,
            congestion_options: CongestionOptions::default(),
            timestamps: true,
            ecn: false,
            receive_buffer: 512 * 1024,
            receive_window_max: 8 << 20,
            send_buffer: 4 << 20,
            mtu: 1500,
            local: None,
        }
    }
}

impl Settings {
    /// Parses `--so_flags`; empty: the defaults.
    ///
    /// # Errors
    /// The flag that is unknown or has an invalid value.
    pub(crate) fn parse(flags: &str) -> Result<Self, String> {
        let mut settings = Self::default();
        for flag in flags.split(',').map(str::trim).filter(|flag| !flag.is_empty()) {
            let (key, value) = flag.split_once('=').unwrap_or((flag, ""));
            settings.set(key, value).ok_or_else(|| format!("so_flags: {flag}: unknown flag"))?;
        }
        Ok(settings)
    }

    fn set(&mut self, key: &str, value: &str) -> Option<()> {
        match key {
            "mode" => self.set_mode(value)?,
            "seed" => self.seed = value.parse().ok()?,
            "tso" => self.gso_payload_max = off_or(value)?,
            "push" => {
                self.quirks.push = value == "linux";
                self.push = match value {
                    "linux" | "queue-empty" => PushPolicy::QueueEmpty,
                    "each-list" => PushPolicy::EachList,
                    _ => return None,
                };
            }
            "options" => self.quirks.options = choice(value, "linux", "as-is")?,
            "congestion" => self.congestion = Some(congestion(value)?),
            "hystart" => self.congestion_options.hystart = choice(value, "on", "off")?,
            "ack-train" => self.congestion_options.ack_train = choice(value, "on", "off")?,
            "idle-restart" => self.congestion_options.idle_restart = choice(value, "on", "off")?,
            "validation" => self.congestion_options.cwnd_validation = choice(value, "on", "off")?,
            "pacing" => self.congestion_options.pacing = choice(value, "on", "off")?,
            "timestamps" => self.timestamps = choice(value, "on", "off")?,
            "ecn" => self.ecn = choice(value, "on", "off")?,
            "receive-buffer" => self.set_receive_buffer(value.parse().ok()?),
            "send-buffer" => self.send_buffer = value.parse().ok()?,
            "mtu" => self.mtu = value.parse().ok()?,
            "local" => self.local = Some(IpAddr::from_str(value).ok()?),
            _ => return None,
        }
        Some(())
    }

    /// Sets the receive buffer and disables its autotuning.
    pub(crate) fn set_receive_buffer(&mut self, bytes: usize) {
        self.receive_buffer = bytes;
        self.receive_window_max = bytes;
    }

    fn set_mode(&mut self, mode: &str) -> Option<()> {
        self.policy = match mode.split_once(':').unwrap_or((mode, "")) {
            ("host", "") => OffloadPolicy::Never,
            ("offload", "") => OffloadPolicy::Always,
            ("handover", "") => OffloadPolicy::Auto,
            ("handover", bytes) => {
                self.handover_bytes = bytes.parse().ok()?;
                OffloadPolicy::Auto
            }
            _ => return None,
        };
        Some(())
    }

    /// Local address of `family`'s family.
    pub(crate) fn local(&self, family: IpAddr) -> IpAddr {
        match (self.local, family) {
            (Some(local), _) if local.is_ipv4() == family.is_ipv4() => local,
            (_, IpAddr::V4(_)) => Ipv4Addr::new(192, 168, 0, 1).into(),
            (_, IpAddr::V6(_)) => Ipv6Addr::new(0xfd3d, 0xa0b, 0x17d6, 0, 0, 0, 0, 1).into(),
        }
    }
}

/// Congestion controller, by the name used by TCP_CONGESTION and the flag.
pub(crate) fn congestion(name: &str) -> Option<CongestionAlgorithm> {
    match name {
        "cubic" => Some(CongestionAlgorithm::Cubic),
        "newreno" | "reno" => Some(CongestionAlgorithm::NewReno),
        "none" => Some(CongestionAlgorithm::Unlimited),
        _ => None,
    }
}

fn choice(value: &str, yes: &str, no: &str) -> Option<bool> {
    (value == yes || value == no).then_some(value == yes)
}

fn off_or(value: &str) -> Option<usize> {
    if value == "off" { Some(0) } else { value.parse().ok() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_are_parsed() {
        let settings =
            Settings::parse("mode=handover:4000, tso=off,push=each-list,seed=7").unwrap();
        assert_eq!(settings.policy, OffloadPolicy::Auto);
        assert_eq!((settings.handover_bytes, settings.gso_payload_max), (4000, 0));
        assert_eq!((settings.push, settings.quirks.push), (PushPolicy::EachList, false));
        assert_eq!(settings.seed, 7);
    }

    #[test]
    fn unknown_flag_is_reported() {
        for flags in ["mode=nowhere", "mode=host:3", "tso=much", "color=red", "seed"] {
            let error = Settings::parse(flags).unwrap_err();
            assert!(error.contains(flags), "{error}");
        }
    }
}
