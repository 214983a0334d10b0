//! What steers the chimney: which connections go down and when, which come back, and how much the target holds.

use std::{fmt, str::FromStr};

use clap::{Args, ValueEnum};
use offload_engine::chimney::client::UploadReason;
use serde::{Deserialize, Serialize};

use super::name;

/// Bytes after which `--offload auto` offloads a connection, unless said otherwise.
pub const OFFLOAD_AFTER_BYTES_DEFAULT: u64 = 64 * 1024;
/// Seconds that a connection rests in the host after an upload that nobody asked for, or a refusal.
pub const UPLOAD_REST_DEFAULT_SECONDS: u32 = 10;
/// Most ports of `--offload-ports`.
pub const PORTS_MAX: usize = 64;
/// Longest age and rest: a day.
const SECONDS_MAX: i64 = 86_400;

/// An optional reason for which the target may ask for an upload (TCP_UPLOAD_REASON). Mandatory ones are followed in
/// any case.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum UploadOn {
    /// Less than 4 KiB moved in 2 s
    LowActivity,
    /// 5 % of 1,000 data segments sent again
    HighDropRate,
    /// 16 receive requests of less than 512 bytes in a row
    SmallIo,
    /// 1 MiB received with no receive request posted
    NoBufferPreposting,
    /// 10 % of 1,000 packets from the peer are fragments
    HighFragmentation,
    /// 10 % of 1,000 data segments from the peer out of order
    HighOutOfOrderPackets,
}

impl From<UploadOn> for UploadReason {
    fn from(reason: UploadOn) -> Self {
        match reason {
            UploadOn::LowActivity => Self::LowActivity,
            UploadOn::HighDropRate => Self::HighDropRate,
            UploadOn::SmallIo => Self::SmallIo,
            UploadOn::NoBufferPreposting => Self::NoBufferPreposting,
            UploadOn::HighFragmentation => Self::HighFragmentation,
            UploadOn::HighOutOfOrderPackets => Self::HighOutOfOrderPackets,
        }
    }
}

/// Limits of the target; one connection, path or neighbor more is refused, with the status of that limit.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Capacity {
    /// Connections; beyond it OFFLOAD_TCP_ENTRIES.
    pub tcp: Option<u32>,
    /// Paths; beyond it OFFLOAD_PATH_ENTRIES.
    pub path: Option<u32>,
    /// Neighbors; beyond it OFFLOAD_NEIGHBOR_ENTRIES.
    pub neighbor: Option<u32>,
    /// Source addresses; beyond it OFFLOAD_IP_ADDRESS_ENTRIES.
    pub ip: Option<u32>,
    /// Bytes of send data that connections bring along; beyond it OFFLOAD_TCP_XMIT_BUFFER.
    pub send: Option<u32>,
    /// Bytes of received data that they bring along; beyond it OFFLOAD_TCP_RCV_BUFFER.
    pub receive: Option<u32>,
    /// Bytes of InitialRcvWnd; beyond it OFFLOAD_TCP_RCV_WINDOW.
    pub window: Option<u32>,
}

impl Capacity {
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
        for part in text.split(',') {
            let (key, number) = part.split_once('=').unwrap_or((part, ""));
            let names: Vec<_> = capacity.limits().into_iter().map(|(name, _)| name).collect();
            let found = capacity.limits().into_iter().find(|(name, _)| *name == key);
            let Some((_, limit)) = found else {
                return Err(format!("{key:?} is none of {}", names.join(", ")));
            };
            let number = number
                .parse()
                .map_err(|_| format!("{part:?}: not {key}=NUMBER, 0 to {}", u32::MAX))?;
            if limit.replace(number).is_some() {
                return Err(format!("{key} is given twice"));
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
        f.write_str(if parts.is_empty() { "default" } else { "" })?;
        f.write_str(&parts.join(","))
    }
}

/// Options of the chimney.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Chimney options")]
pub struct ChimneyOptions {
    /// Bytes in one direction after which --offload auto offloads a connection
    #[arg(long, value_name = "BYTES", default_value_t = OFFLOAD_AFTER_BYTES_DEFAULT)]
    pub offload_after_bytes: u64,

    /// Age at which --offload auto offloads a connection whatever it has carried: 1..=86400
    /// [default: age does not matter]
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u32).range(1..=SECONDS_MAX))]
    pub offload_after_age: Option<u32>,

    /// Offload by policy only what has one of these ports, local or remote; at most 64 [default: any]
    #[arg(long, value_name = "PORT,…", value_delimiter = ',', value_parser = clap::value_parser!(u16).range(1..))]
    pub offload_ports: Vec<u16>,

    /// Optional reasons for which the target may have a connection uploaded [default: none]
    ///
    /// Mandatory ones (urgent data, time-outs, invalidated or corrupt state) are followed in any case.
    #[arg(long, value_enum, value_name = "REASON,…", value_delimiter = ',')]
    pub upload_on: Vec<UploadOn>,

    /// Seconds that a connection stays in the host after an upload that nobody asked for, or a refusal that may
    /// change: 0..=86400
    #[arg(long, value_name = "SECONDS", default_value_t = UPLOAD_REST_DEFAULT_SECONDS,
          value_parser = clap::value_parser!(u32).range(0..=SECONDS_MAX))]
    pub upload_rest: u32,

    /// Limits of the target: tcp, path, neighbor and ip count objects; send, receive and window are bytes
    /// [default: those of the documentation]
    #[arg(long, value_name = "KIND=N,…", default_value = "", hide_default_value = true,
          value_parser = parse_capacity)]
    pub capacity: Capacity,
}

fn parse_capacity(text: &str) -> Result<Capacity, String> {
    if text.is_empty() { Ok(Capacity::default()) } else { text.parse() }
}

/// What steers the chimney, complete.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ChimneyConfig {
    /// Bytes in one direction after which `auto` offloads.
    pub offload_after_bytes: u64,
    /// Age at which it does, seconds.
    pub offload_after_age_s: Option<u32>,
    /// Ports that are offloaded by policy; `None`: any.
    pub offload_ports: Option<Vec<u16>>,
    /// Optional reasons that are followed.
    pub upload_on: Vec<UploadOn>,
    /// Rest in the host, seconds.
    pub upload_rest_s: u32,
    /// Limits of the target.
    pub capacity: Capacity,
}

impl ChimneyOptions {
    /// Checks and completes the options.
    ///
    /// # Errors
    /// Too many ports.
    pub fn resolve(&self) -> Result<ChimneyConfig, crate::failure::Failure> {
        let count = self.offload_ports.len();
        if count > PORTS_MAX {
            return Err(crate::failure::Failure::usage(format!(
                "--offload-ports: {count} ports, at most {PORTS_MAX}"
            )));
        }
        let mut upload_on = self.upload_on.clone();
        upload_on.sort_unstable();
        upload_on.dedup();
        Ok(ChimneyConfig {
            offload_after_bytes: self.offload_after_bytes,
            offload_after_age_s: self.offload_after_age,
            offload_ports: Some(self.offload_ports.clone()).filter(|ports| !ports.is_empty()),
            upload_on,
            upload_rest_s: self.upload_rest,
            capacity: self.capacity,
        })
    }
}

impl fmt::Display for ChimneyConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            offload_after_bytes,
            offload_after_age_s,
            offload_ports,
            upload_on,
            upload_rest_s,
            capacity,
        } = self;
        write!(f, "auto after {offload_after_bytes} bytes")?;
        if let Some(age) = offload_after_age_s {
            write!(f, " or {age} s")?;
        }
        match offload_ports {
            None => f.write_str(", any port")?,
            Some(ports) => write!(f, ", ports {}", super::joined(ports))?,
        }
        let reasons: Vec<_> = upload_on.iter().map(|reason| name(*reason)).collect();
        let reasons = if reasons.is_empty() { "none".into() } else { reasons.join(", ") };
        write!(f, "; optional uploads: {reasons}, rest {upload_rest_s} s; capacity {capacity}")
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
        assert_eq!(Capacity::default().to_string(), "default");
        for (text, word) in [
            ("", "none of tcp, path"),
            ("tcp", "not tcp=NUMBER"),
            ("tcp=x", "tcp=x"),
            ("tcp=-1", "tcp=-1"),
            ("tcp=1,tcp=2", "twice"),
            ("sockets=1", "sockets"),
        ] {
            let error = text.parse::<Capacity>().unwrap_err();
            assert!(error.contains(word), "{text}: {word:?} is not in {error}");
        }
    }
}
