//! Options of MPA start-up, with the same words on command lines, in JSON and in environment variables.

use rdma_over_tcp::{
    mpa::startup::{Revision, RtrKind, RtrSet},
    rnic::{Config, CrcRequest},
};
use serde::{Deserialize, Serialize};

/// On or off.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
pub enum Switch {
    /// Enabled.
    On,
    /// Disabled.
    Off,
}

/// Condition for requesting CRCs.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
pub enum Crc {
    /// Always
    On,
    /// Never
    Off,
    /// Unless both ends have the same IP address, or loopback addresses
    Auto,
}

/// The revision of MPA.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
pub enum MpaRevision {
    /// RFC 5044
    #[serde(rename = "1")]
    #[cfg_attr(feature = "clap", value(name = "1"))]
    One,
    /// RFC 6581: negotiates IRD, ORD and the ready-to-receive (RTR) message
    #[serde(rename = "2")]
    #[cfg_attr(feature = "clap", value(name = "2"))]
    Two,
    /// 2, then 1 on a new connection if the peer does not support 2
    #[serde(rename = "auto")]
    Auto,
}

/// Ready-to-receive message: the first message of the connecting end.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
pub enum Rtr {
    /// Zero-length Send, which consumes a receive of the peer
    Send,
    /// Zero-length RDMA Write
    Write,
    /// Zero-length RDMA Read
    Read,
}

/// Start-up of MPA, for adapters that only accept connections. Options that are not given keep the adapter's default.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
#[serde(default)]
#[cfg_attr(feature = "clap", derive(clap::Args), command(next_help_heading = "MPA options"))]
pub struct MpaAcceptOptions {
    /// Request CRCs; used if either end requests them [default: auto]
    #[cfg_attr(feature = "clap", arg(long = "mpa-crc", value_enum, value_name = "WHEN"))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub crc: Option<Crc>,

    /// Request markers from the peer [default: off]
    #[cfg_attr(feature = "clap", arg(long = "mpa-markers", value_enum, value_name = "WHEN"))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub markers: Option<Switch>,

    /// Offer and accept only this RTR message [default: write or read]
    #[cfg_attr(feature = "clap", arg(long, value_enum, value_name = "KIND"))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rtr: Option<Rtr>,
}

/// Start-up of MPA, for adapters that also connect.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
#[serde(default)]
#[cfg_attr(feature = "clap", derive(clap::Args), command(next_help_heading = "MPA options"))]
pub struct MpaOptions {
    /// Options of either end.
    #[cfg_attr(feature = "clap", command(flatten))]
    #[serde(flatten)]
    pub accept: MpaAcceptOptions,

    /// Revision of the MPA Request [default: 2]
    ///
    /// An accepting end replies in the revision of the peer.
    #[cfg_attr(feature = "clap", arg(long = "mpa-revision", value_enum, value_name = "REVISION"))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub revision: Option<MpaRevision>,
}

impl From<MpaAcceptOptions> for MpaOptions {
    fn from(accept: MpaAcceptOptions) -> Self {
        Self { accept, revision: None }
    }
}

impl MpaOptions {
    /// Returns the configuration with the options that are given.
    #[must_use]
    pub fn configure(&self, config: Config) -> Config {
        let Self { accept: MpaAcceptOptions { crc, markers, rtr }, revision } = *self;
        let is_on = |option: Option<Switch>, default| option.map_or(default, |it| it == Switch::On);
        let (revision, retry_plain) = match revision {
            None => (config.revision, config.retry_plain),
            Some(MpaRevision::One) => (Revision::One, false),
            Some(MpaRevision::Two) => (Revision::Two, false),
            Some(MpaRevision::Auto) => (Revision::Two, true),
        };
        Config {
            crc: match crc {
                Some(Crc::On) => CrcRequest::On,
                Some(Crc::Off) => CrcRequest::Off,
                Some(Crc::Auto) => CrcRequest::Auto,
                None => config.crc,
            },
            markers: is_on(markers, config.markers),
            rtr: match rtr {
                None => config.rtr,
                Some(Rtr::Send) => RtrSet::only(RtrKind::Send),
                Some(Rtr::Write) => RtrSet::only(RtrKind::Write),
                Some(Rtr::Read) => RtrSet::only(RtrKind::Read),
            },
            revision,
            retry_plain,
            ..config
        }
    }

    /// Returns the options with those of `other` where none is given.
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        let Self { accept: MpaAcceptOptions { crc, markers, rtr }, revision } = self;
        let accept = MpaAcceptOptions {
            crc: crc.or(other.accept.crc),
            markers: markers.or(other.accept.markers),
            rtr: rtr.or(other.accept.rtr),
        };
        Self { accept, revision: revision.or(other.revision) }
    }
}
