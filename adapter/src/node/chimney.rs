//! Options of the chimney: rules for offloads and uploads, and limits of the target.

use std::{fmt, str::FromStr, time::Duration};

use host_stack::{
    offload_policy::{OffloadRules, UploadReasons},
    socket::AUTO_OFFLOAD_BYTES,
};
use offload_engine::{
    chimney::{client::UploadReason, provider::OffloadCapabilities},
    tcp::UploadThresholds,
};
use serde::{Deserialize, Serialize};

use crate::{
    error::Error,
    format::{joined, word},
};

/// Seconds that a connection stays in the host after an upload by the target, or a refusal.
pub const OFFLOAD_HOLDDOWN_DEFAULT_SECONDS: u32 = 10;
/// Maximum number of ports of `--offload-ports`.
pub const PORTS_MAX: usize = 64;
/// Maximum age and rest: one day.
const SECONDS_MAX: i64 = 86_400;

/// Limits of the target. An offload that exceeds a limit is refused with the status of that limit.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Capacity {
    /// Connections; above it OFFLOAD_TCP_ENTRIES.
    pub tcp: Option<u32>,
    /// Paths; above it OFFLOAD_PATH_ENTRIES.
    pub path: Option<u32>,
    /// Neighbors; above it OFFLOAD_NEIGHBOR_ENTRIES.
    pub neighbor: Option<u32>,
    /// Source addresses; above it OFFLOAD_IP_ADDRESS_ENTRIES.
    pub ip: Option<u32>,
    /// Bytes of send data that offloaded connections carry over; above it OFFLOAD_TCP_XMIT_BUFFER.
    pub send: Option<u32>,
    /// Bytes of received data that they carry over; above it OFFLOAD_TCP_RCV_BUFFER.
    pub receive: Option<u32>,
    /// Bytes of InitialRcvWnd; above it OFFLOAD_TCP_RCV_WINDOW.
    pub window: Option<u32>,
}

impl Capacity {
    /// Sets the limits that are given.
    pub(crate) fn limit(self, capabilities: &mut OffloadCapabilities) {
        let Self { tcp, path, neighbor, ip, send, receive, window } = self;
        let set = |limit: &mut usize, given: Option<u32>| {
            if let Some(given) = given {
                *limit = given as usize;
            }
        };
        set(&mut capabilities.connections_max, tcp);
        set(&mut capabilities.paths_max, path);
        set(&mut capabilities.neighbors_max, neighbor);
        set(&mut capabilities.ip_addresses_max, ip);
        set(&mut capabilities.transmit_buffer_max, send);
        set(&mut capabilities.receive_buffer_max, receive);
        if let Some(window) = window {
            capabilities.receive_window_max = window;
        }
    }

    fn limits(&mut self) -> [(&'static str, &mut Option<u32>); 7] {
        let Self { tcp, path, neighbor, ip, send, receive, window } = self;
        [
            ("tcp", tcp),
            ("path", path),
            ("neighbor", neighbor),
            ("ip", ip),
            ("send", send),
            ("receive", receive),
            ("window", window),
        ]
    }
}

impl FromStr for Capacity {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut capacity = Self::default();
        for part in text.split_terminator(',') {
            let (key, number) = part.split_once('=').unwrap_or((part, ""));
            let names: Vec<_> = capacity.limits().into_iter().map(|(name, _)| name).collect();
            let found = capacity.limits().into_iter().find(|(name, _)| *name == key);
            let Some((_, limit)) = found else {
                return Err(format!("{key:?}: expected one of {}", names.join(", ")));
            };
            let number = number
                .parse()
                .map_err(|_| format!("{part:?}: expected {key}=N, 0 to {}", u32::MAX))?;
            if limit.replace(number).is_some() {
                return Err(format!("{key}: duplicate key"));
            }
        }
        Ok(capacity)
    }
}

impl fmt::Display for Capacity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut copy = *self;
        let given = copy.limits().into_iter().filter_map(|(name, limit)| Some((name, (*limit)?)));
        let parts: Vec<_> = given.map(|(name, limit)| format!("{name}={limit}")).collect();
        f.write_str(&parts.join(","))
    }
}

/// Options of the chimney.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(default)]
#[cfg_attr(feature = "clap", derive(clap::Args), command(next_help_heading = "Chimney options"))]
pub struct ChimneyOptions {
    /// Offload with --offload auto after this many bytes in one direction
    #[cfg_attr(feature = "clap", arg(long, value_name = "BYTES", default_value_t = AUTO_OFFLOAD_BYTES))]
    pub offload_after_bytes: u64,

    /// Offload with --offload auto at this age, s: 1..=86400 [default: none]
    ///
    /// The age applies regardless of traffic.
    #[cfg_attr(
        feature = "clap",
        arg(
            long = "offload-after-age",
            value_name = "SECONDS",
            value_parser = clap::value_parser!(u32).range(1..=SECONDS_MAX),
        )
    )]
    pub offload_after_age_s: Option<u32>,

    /// Offload only these local or remote ports; at most 64 [default: any]
    ///
    /// Applies to offloads by policy.
    #[cfg_attr(
        feature = "clap",
        arg(long, value_name = "PORT,…", value_delimiter = ',', value_parser = clap::value_parser!(u16).range(1..))
    )]
    pub offload_ports: Option<Vec<u16>>,

    /// Upload for these optional reasons [default: none]
    ///
    /// Mandatory reasons (urgent data, timeouts, invalidated or corrupt state) always lead to an upload.
    #[cfg_attr(
        feature = "clap",
        arg(long, value_enum, value_name = "REASON,…", value_delimiter = ',')
    )]
    pub upload_on: Vec<UploadReason>,

    /// Delay the next offload after an upload or refusal, s: 0..=86400
    ///
    /// Applies to uploads requested by the target.
    #[serde(alias = "upload_rest_s")]
    #[cfg_attr(
        feature = "clap",
        arg(
            long = "offload-holddown",
            alias = "upload-rest",
            value_name = "SECONDS",
            default_value_t = OFFLOAD_HOLDDOWN_DEFAULT_SECONDS,
            value_parser = clap::value_parser!(u32).range(0..=SECONDS_MAX),
        )
    )]
    pub offload_holddown_s: u32,

    /// Limit the target: tcp, path, neighbor, ip, send, receive, window
    ///
    /// tcp, path, neighbor and ip count objects; send, receive and window are bytes. A further offload is refused with
    /// the status of its limit. Defaults: docs/reference/chimney.md.
    #[cfg_attr(
        feature = "clap",
        arg(long, value_name = "KIND=N,…", default_value_t, hide_default_value = true)
    )]
    pub capacity: Capacity,
}

impl Default for ChimneyOptions {
    fn default() -> Self {
        Self {
            offload_after_bytes: AUTO_OFFLOAD_BYTES,
            offload_after_age_s: None,
            offload_ports: None,
            upload_on: Vec::new(),
            offload_holddown_s: OFFLOAD_HOLDDOWN_DEFAULT_SECONDS,
            capacity: Capacity::default(),
        }
    }
}

impl ChimneyOptions {
    pub(crate) fn check(&self) -> Result<(), Error> {
        let count = self.offload_ports.as_ref().map_or(0, Vec::len);
        if count > PORTS_MAX {
            return Err(Error::option(format!(
                "--offload-ports: {count} ports, expected at most {PORTS_MAX}"
            )));
        }
        let seconds = [
            ("--offload-after-age", self.offload_after_age_s.unwrap_or(1), 1..=SECONDS_MAX),
            ("--offload-holddown", self.offload_holddown_s, 0..=SECONDS_MAX),
        ];
        for (option, value, range) in seconds {
            if !range.contains(&value.into()) {
                return Err(Error::option(format!("{option} {value}: expected {range:?} seconds")));
            }
        }
        Ok(())
    }

    /// Returns the host stack's rules for offloads and uploads.
    pub(crate) fn rules(&self) -> OffloadRules {
        let seconds = |seconds: u32| Duration::from_secs(seconds.into());
        OffloadRules {
            after_age: self.offload_after_age_s.map(seconds),
            ports: self.offload_ports.clone(),
            upload_on: self
                .upload_on
                .iter()
                .fold(UploadReasons::default(), |set, one| set.with(*one)),
            holddown: seconds(self.offload_holddown_s),
        }
    }

    /// Returns the thresholds at which the target requests an upload.
    pub(crate) fn thresholds(&self) -> UploadThresholds {
        self.upload_on.iter().fold(UploadThresholds::default(), |all, one| all.with(*one))
    }
}

impl fmt::Display for ChimneyOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "auto after {} bytes", self.offload_after_bytes)?;
        if let Some(age) = self.offload_after_age_s {
            write!(f, " or {age} s")?;
        }
        match &self.offload_ports {
            None => f.write_str(", any port")?,
            Some(ports) => write!(f, ", ports {}", joined(ports))?,
        }
        let reasons: Vec<_> = self.upload_on.iter().map(|reason| word(*reason)).collect();
        let reasons = if reasons.is_empty() { "none".into() } else { reasons.join(", ") };
        write!(f, "; optional uploads: {reasons}, hold-down {} s", self.offload_holddown_s)?;
        match self.capacity.to_string().as_str() {
            "" => f.write_str("; capacity default"),
            capacity => write!(f, "; capacity {capacity}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn capacities_are_named() {
        let capacity: Capacity = "tcp=1,neighbor=0".parse().unwrap();
        assert_eq!(capacity, Capacity { tcp: Some(1), neighbor: Some(0), ..Capacity::default() });
        assert_eq!(capacity.to_string(), "tcp=1,neighbor=0");
        assert_eq!("".parse(), Ok(Capacity::default()));
        assert_eq!(Capacity::default().to_string(), "");
        for (text, word) in [
            ("objects=1", "expected one of tcp, path"),
            ("tcp", "expected tcp=N"),
            ("tcp=x", "tcp=x"),
            ("tcp=-1", "tcp=-1"),
            ("tcp=1,tcp=2", "duplicate"),
            ("sockets=1", "sockets"),
        ] {
            let error = text.parse::<Capacity>().unwrap_err();
            assert!(error.contains(word), "{text}: {word:?} is not in {error}");
        }
    }
}
