//! Options of MPA's start-up; the same words on command lines, in JSON and in environment variables.

use rdma_over_tcp::{
    mpa::startup::{Revision, RtrKind, RtrSet},
    rnic::Config,
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

/// The revision of MPA.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
pub enum MpaRevision {
    /// RFC 5044
    #[serde(rename = "1")]
    #[cfg_attr(feature = "clap", value(name = "1"))]
    One,
    /// RFC 6581: IRD, ORD and the ready-to-receive message are agreed on
    #[serde(rename = "2")]
    #[cfg_attr(feature = "clap", value(name = "2"))]
    Two,
    /// 2, and 1 on a new connection if the peer does not know 2
    #[serde(rename = "auto")]
    Auto,
}

/// The first message of the connecting end.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
pub enum Rtr {
    /// A Send without data, which takes a receive of the peer's
    Send,
    /// An RDMA Write without data
    Write,
    /// An RDMA Read without data
    Read,
}

/// Start-up of MPA, for adapters that are connected to. Options that are not given leave the adapter's default.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
#[serde(default)]
#[cfg_attr(feature = "clap", derive(clap::Args), command(next_help_heading = "MPA options"))]
pub struct MpaAcceptOptions {
    /// Ask for CRCs of FPDUs; they are used if either end asks for them [default: on]
    #[cfg_attr(feature = "clap", arg(long = "mpa-crc", value_enum, value_name = "WHEN"))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub crc: Option<Switch>,

    /// Ask the peer for markers [default: off]
    #[cfg_attr(feature = "clap", arg(long = "mpa-markers", value_enum, value_name = "WHEN"))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub markers: Option<Switch>,

    /// The only ready-to-receive message that is offered, or understood [default: write or read]
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

    /// Revision of the Request; an accepting end answers in that of the peer [default: 2]
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
            crc: is_on(crc, config.crc),
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
