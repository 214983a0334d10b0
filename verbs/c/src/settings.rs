//! Settings of the library, from the environment of the program.

use std::{
    env, ffi::OsString, fmt, os::unix::ffi::OsStrExt as _, path::PathBuf, process, str::FromStr,
    time::Duration,
};

use flue_adapter::launched::LaunchedNode;
use flue_verbs_abi::settings;
use flue_verbs_core::address::{AddressMapping, PortMapping};

/// Revision of the MPA Request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MpaRevision {
    /// RFC 5044.
    One,
    /// RFC 6581.
    Two,
    /// Revision 2, and 1 on a new connection if the peer does not know 2.
    Auto,
}

/// The ready-to-receive message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rtr {
    Send,
    Write,
    Read,
}

/// What the environment sets; `None` leaves the default of the adapter.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Settings {
    pub(crate) log: Option<PathBuf>,
    pub(crate) pcap: Option<PathBuf>,
    pub(crate) mpa_crc: Option<bool>,
    pub(crate) mpa_markers: Option<bool>,
    pub(crate) mpa_revision: Option<MpaRevision>,
    pub(crate) rtr: Option<Rtr>,
    pub(crate) rfc7306: Option<bool>,
    pub(crate) receive_wait: Option<Duration>,
    pub(crate) tap: Option<Box<LaunchedNode>>,
    pub(crate) map: Vec<AddressMapping>,
    pub(crate) port_map: Vec<PortMapping>,
    pub(crate) control: Option<PathBuf>,
    pub(crate) usage: Option<PathBuf>,
}

/// A variable whose value is none of its values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct BadSetting {
    name: &'static str,
    value: OsString,
    expected: &'static str,
}

impl fmt::Display for BadSetting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, value, expected } = self;
        write!(f, "{name}={}: expected {expected}", value.display())
    }
}

impl Settings {
    /// Reads the environment. Values that make no sense are left out and returned, for the log.
    pub(crate) fn from_environment() -> (Self, Vec<BadSetting>) {
        Self::read(|name| env::var_os(name).filter(|value| !value.is_empty()))
    }

    fn read(variable: impl Fn(&'static str) -> Option<OsString>) -> (Self, Vec<BadSetting>) {
        const SWITCH: &[(&str, bool)] = &[("on", true), ("off", false)];
        const REVISION: &[(&str, MpaRevision)] =
            &[("1", MpaRevision::One), ("2", MpaRevision::Two), ("auto", MpaRevision::Auto)];
        const RTR: &[(&str, Rtr)] =
            &[("send", Rtr::Send), ("write", Rtr::Write), ("read", Rtr::Read)];
        let mut bad = Vec::new();
        let mut reader = Reader { variable: &variable, bad: &mut bad };
        let settings = Self {
            log: variable(settings::LOG).map(|path| for_process(path, process::id())),
            pcap: variable(settings::PCAP).map(|path| for_process(path, process::id())),
            mpa_crc: reader.one_of(settings::MPA_CRC, SWITCH, "on or off"),
            mpa_markers: reader.one_of(settings::MPA_MARKERS, SWITCH, "on or off"),
            mpa_revision: reader.one_of(settings::MPA_REVISION, REVISION, "1, 2 or auto"),
            rtr: reader.one_of(settings::RTR, RTR, "send, write or read"),
            rfc7306: reader.one_of(settings::RFC7306, SWITCH, "on or off"),
            receive_wait: reader.seconds(settings::RECEIVE_WAIT),
            tap: reader
                .parsed(settings::TAP, "a node in JSON, as flue run gives it")
                .map(own_files),
            map: reader.list(settings::MAP, "HOST=NODE,..."),
            port_map: reader.list(settings::PORT_MAP, "[HOST:]PORT=PORT,..."),
            control: variable(settings::CONTROL).map(PathBuf::from),
            usage: variable(settings::USAGE).map(PathBuf::from),
        };
        (settings, bad)
    }
}

struct Reader<'a, V> {
    variable: &'a V,
    bad: &'a mut Vec<BadSetting>,
}

impl<V: Fn(&'static str) -> Option<OsString>> Reader<'_, V> {
    fn parsed<T: FromStr>(&mut self, name: &'static str, expected: &'static str) -> Option<T> {
        let value = (self.variable)(name)?;
        let parsed = value.to_str().and_then(|text| text.parse().ok());
        if parsed.is_none() {
            self.bad.push(BadSetting { name, value, expected });
        }
        parsed
    }

    fn list<T: FromStr>(&mut self, name: &'static str, expected: &'static str) -> Vec<T> {
        let Some(value) = (self.variable)(name) else { return Vec::new() };
        let parts = value.to_str().unwrap_or_default().split(',');
        let parsed: Result<Vec<T>, _> = parts.map(str::parse).collect();
        parsed.unwrap_or_else(|_| {
            self.bad.push(BadSetting { name, value, expected });
            Vec::new()
        })
    }

    fn one_of<T: Copy>(
        &mut self,
        name: &'static str,
        values: &[(&str, T)],
        expected: &'static str,
    ) -> Option<T> {
        let value = (self.variable)(name)?;
        let found = values.iter().find(|(text, _)| value == **text);
        if found.is_none() {
            self.bad.push(BadSetting { name, value, expected });
        }
        found.map(|(_, meaning)| *meaning)
    }

    fn seconds(&mut self, name: &'static str) -> Option<Duration> {
        let value = (self.variable)(name)?;
        let seconds = value.to_str().and_then(|text| text.parse().ok());
        let seconds =
            seconds.filter(|seconds| (0.0..=settings::RECEIVE_WAIT_MAX).contains(seconds));
        if seconds.is_none() {
            self.bad.push(BadSetting { name, value, expected: "seconds, up to 3600" });
        }
        seconds.map(Duration::from_secs_f64)
    }
}

/// The node with files of this process.
fn own_files(mut node: LaunchedNode) -> Box<LaunchedNode> {
    let own = |path: PathBuf| for_process(path.into_os_string(), process::id());
    node.options.pcap = node.options.pcap.map(own);
    node.options.tcp_trace = node.options.tcp_trace.map(own);
    Box::new(node)
}

/// `%p` becomes the process id: a program that forks has a file for each process.
fn for_process(path: OsString, id: u32) -> PathBuf {
    use std::os::unix::ffi::OsStringExt as _;
    let mut octets = Vec::with_capacity(path.len());
    let mut rest = path.as_bytes();
    while let Some(&first) = rest.first() {
        if rest.starts_with(b"%p") {
            octets.extend(id.to_string().bytes());
            rest = &rest[2..];
        } else {
            octets.push(first);
            rest = &rest[1..];
        }
    }
    OsString::from_vec(octets).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_are_read_and_nonsense_is_named() {
        let (settings, bad) = Settings::read(|_| None);
        assert_eq!((settings, bad), (Settings::default(), vec![]));
        let (settings, bad) = Settings::read(|name| match name {
            settings::MPA_CRC => Some("off".into()),
            settings::MPA_MARKERS => Some("on".into()),
            settings::MPA_REVISION => Some("auto".into()),
            settings::RTR => Some("seldom".into()),
            settings::RECEIVE_WAIT => Some("0.25".into()),
            settings::RFC7306 => Some("off".into()),
            settings::PCAP => Some("/tmp/a.pcapng".into()),
            settings::TAP => Some("{}".into()),
            settings::MAP => Some("127.0.0.1=10.9.0.1,::1=fd00::1".into()),
            settings::PORT_MAP => Some("3260=3261,[::1]:7=8".into()),
            settings::CONTROL => Some("none".into()),
            _ => None,
        });
        let expected = Settings {
            pcap: Some("/tmp/a.pcapng".into()),
            mpa_crc: Some(false),
            mpa_markers: Some(true),
            mpa_revision: Some(MpaRevision::Auto),
            rfc7306: Some(false),
            receive_wait: Some(Duration::from_millis(250)),
            map: ["127.0.0.1=10.9.0.1", "::1=fd00::1"].map(|it| it.parse().unwrap()).into(),
            port_map: ["3260=3261", "[::1]:7=8"].map(|it| it.parse().unwrap()).into(),
            control: Some("none".into()),
            ..Settings::default()
        };
        assert_eq!(settings, expected);
        let said: Vec<_> = bad.iter().map(ToString::to_string).collect();
        let expected = [
            "FLUE_VERBS_RTR=seldom: expected send, write or read",
            "FLUE_VERBS_TAP={}: expected a node in JSON, as flue run gives it",
        ];
        assert_eq!(said, expected);
        for nonsense in ["-1", "3600.1", "NaN", "inf", "1s"] {
            let is_wait = |name| name == settings::RECEIVE_WAIT;
            let (settings, bad) = Settings::read(|name| is_wait(name).then(|| nonsense.into()));
            assert_eq!((settings, bad.len()), (Settings::default(), 1), "{nonsense}");
        }
    }

    #[test]
    fn a_file_for_each_process() {
        assert_eq!(for_process("a%p-%q%p.pcapng".into(), 17), PathBuf::from("a17-%q17.pcapng"));
        assert_eq!(for_process("%".into(), 17), PathBuf::from("%"));
    }
}
