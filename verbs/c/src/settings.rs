//! Settings of the library, read from environment variables.

use std::{
    env,
    ffi::OsString,
    fmt,
    os::unix::ffi::{OsStrExt as _, OsStringExt as _},
    path::PathBuf,
    process,
    str::FromStr,
};

use flue_adapter::{
    AdapterOptions, OPTIONS_VARIABLE, SocketsOptions, TransportOptions,
    control::socket_path::ControlSocketPath, launched::LaunchedNode, parse_receive_wait,
    parse_word,
};
use flue_verbs_abi::settings;
use serde::de::DeserializeOwned;

/// Settings of the environment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Settings {
    pub(crate) log: Option<PathBuf>,
    pub(crate) usage: Option<PathBuf>,
    /// Options of the adapter; `%p` in file names is replaced by the process id.
    options: AdapterOptions,
}

/// Variable with an invalid value.
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
    /// Reads the environment. Invalid values are omitted and returned separately, for the log.
    pub(crate) fn from_environment() -> (Self, Vec<BadSetting>) {
        Self::read(|name| env::var_os(name).filter(|value| !value.is_empty()))
    }

    /// Returns the options of the adapter, with `%p` in file names replaced.
    pub(crate) fn adapter(&self) -> AdapterOptions {
        let mut options = self.options.clone();
        for file in options.transport.files_mut() {
            *file = for_process(file.clone().into_os_string(), process::id());
        }
        options
    }

    /// Returns the options of the adapter as they were read, without a replaced `%p`.
    pub(crate) fn options(&self) -> &AdapterOptions {
        &self.options
    }

    /// Returns the transport of the adapter.
    pub(crate) fn transport(&self) -> &TransportOptions {
        &self.options.transport
    }

    fn read(variable: impl Fn(&'static str) -> Option<OsString>) -> (Self, Vec<BadSetting>) {
        let mut bad = Vec::new();
        let mut reader = Reader { variable: &variable, bad: &mut bad };
        let expected = "adapter options in JSON, as set by flue run";
        let mut options =
            reader.value(OPTIONS_VARIABLE, expected, parse::<AdapterOptions>).unwrap_or_default();
        let AdapterOptions {
            transport,
            mpa,
            rfc7306,
            receive_wait,
            map,
            control,
            device,
            rendezvous_ports,
        } = &mut options;
        let expected = "node options in JSON, as set by flue run";
        let from_json = |text: &str| serde_json::from_str::<LaunchedNode>(text).ok();
        if let Some(node) = reader.value(settings::TAP, expected, from_json) {
            *transport = TransportOptions::Launched(Box::new(node));
        }
        if let TransportOptions::Sockets(SocketsOptions { pcap, .. }) = transport
            && let Some(path) = variable(settings::PCAP)
        {
            *pcap = Some(path.into());
        }
        reader.word(&mut mpa.accept.crc, settings::MPA_CRC, "on, off or auto");
        reader.word(&mut mpa.accept.markers, settings::MPA_MARKERS, "on or off");
        reader.word(&mut mpa.revision, settings::MPA_REVISION, "1, 2 or auto");
        reader.word(&mut mpa.accept.rtr, settings::RTR, "send, write or read");
        reader.word(rfc7306, settings::RFC7306, "on or off");
        let seconds = |text: &str| parse_receive_wait(text).ok();
        if let Some(wait) = reader.value(settings::RECEIVE_WAIT, "0 to 3600 seconds", seconds) {
            *receive_wait = Some(wait);
        }
        if let Some(list) = reader.value(settings::MAP, "HOST=NODE,...", parse_list) {
            map.addresses = list;
        }
        if let Some(list) = reader.value(settings::PORT_MAP, "[HOST:]PORT=PORT,...", parse_list) {
            map.ports = list;
        }
        if let Some(kind) = reader.value(settings::DEVICE, "iwarp or roce", parse_word) {
            *device = kind;
        }
        let expected = "FIRST-LAST, ports 1024 to 65535";
        if let Some(range) = reader.value(settings::RENDEZVOUS_PORTS, expected, parse) {
            *rendezvous_ports = Some(range);
        }
        if let Some(path) = variable(settings::CONTROL) {
            *control = Some(ControlSocketPath::resolve(Some(path.as_ref())));
        }
        let settings = Self {
            log: variable(settings::LOG).map(|path| for_process(path, process::id())),
            usage: variable(settings::USAGE).map(PathBuf::from),
            options,
        };
        (settings, bad)
    }
}

fn parse<T: FromStr>(text: &str) -> Option<T> {
    text.parse().ok()
}

/// Parses comma-separated elements; `None`: one of them is invalid.
fn parse_list<T: FromStr>(text: &str) -> Option<Vec<T>> {
    text.split(',').map(parse).collect()
}

struct Reader<'a, V> {
    variable: &'a V,
    bad: &'a mut Vec<BadSetting>,
}

impl<V: Fn(&'static str) -> Option<OsString>> Reader<'_, V> {
    /// Returns the value of a variable; `None`: it is not set or invalid.
    fn value<T>(
        &mut self,
        name: &'static str,
        expected: &'static str,
        parse: impl FnOnce(&str) -> Option<T>,
    ) -> Option<T> {
        let value = (self.variable)(name)?;
        let parsed = value.to_str().and_then(parse);
        if parsed.is_none() {
            self.bad.push(BadSetting { name, value, expected });
        }
        parsed
    }

    /// Overrides an option if a variable has a valid word.
    fn word<T: DeserializeOwned>(
        &mut self,
        option: &mut Option<T>,
        name: &'static str,
        expected: &'static str,
    ) {
        if let Some(word) = self.value(name, expected, parse_word) {
            *option = Some(word);
        }
    }
}

/// Replaces `%p` with the process id, so that each process of a program that forks has its own file.
fn for_process(path: OsString, id: u32) -> PathBuf {
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
    use std::time::Duration;

    use flue_adapter::{
        Crc, DeviceKind, MpaAcceptOptions, MpaOptions, MpaRevision, Rtr, Switch,
        address_map::AddressMap,
    };

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
            settings::DEVICE => Some("iwarp".into()),
            settings::RENDEZVOUS_PORTS => Some("4000-4015".into()),
            _ => None,
        });
        let accept = MpaAcceptOptions {
            crc: Some(Crc::Off),
            markers: Some(Switch::On),
            ..MpaAcceptOptions::default()
        };
        let expected = AdapterOptions {
            transport: TransportOptions::Sockets(SocketsOptions {
                pcap: Some("/tmp/a.pcapng".into()),
                seed: None,
            }),
            mpa: MpaOptions { revision: Some(MpaRevision::Auto), ..accept.into() },
            rfc7306: Some(Switch::Off),
            receive_wait: Some(Duration::from_millis(250)),
            map: AddressMap {
                addresses: ["127.0.0.1=10.9.0.1", "::1=fd00::1"]
                    .map(|it| it.parse().unwrap())
                    .into(),
                ports: ["3260=3261", "[::1]:7=8"].map(|it| it.parse().unwrap()).into(),
            },
            control: Some(ControlSocketPath::None),
            device: DeviceKind::Iwarp,
            rendezvous_ports: Some("4000-4015".parse().unwrap()),
        };
        let expected = Settings { options: expected, ..Settings::default() };
        assert_eq!(settings, expected);
        let said: Vec<_> = bad.iter().map(ToString::to_string).collect();
        let expected = [
            "FLUE_VERBS_TAP={}: expected node options in JSON, as set by flue run",
            "FLUE_VERBS_RTR=seldom: expected send, write or read",
        ];
        assert_eq!(said, expected);
        for nonsense in ["-1", "3600.1", "NaN", "inf", "1s"] {
            let is_wait = |name| name == settings::RECEIVE_WAIT;
            let (settings, bad) = Settings::read(|name| is_wait(name).then(|| nonsense.into()));
            assert_eq!((settings, bad.len()), (Settings::default(), 1), "{nonsense}");
        }
    }

    // Each variable overrides the option of the launcher. A variable that is not set or invalid keeps it.
    #[test]
    fn variables_override_the_options_of_the_launcher() {
        let mut given = AdapterOptions::default();
        given.mpa.accept.rtr = Some(Rtr::Read);
        given.mpa.accept.crc = Some(Crc::Off);
        given.map.ports = vec!["7=8".parse().unwrap()];
        given.receive_wait = Some(Duration::ZERO);
        given.device = DeviceKind::Iwarp;
        given.rendezvous_ports = Some("5000-5001".parse().unwrap());
        let (settings, bad) = Settings::read(|name| match name {
            OPTIONS_VARIABLE => Some(given.to_string().into()),
            settings::RTR => Some("send".into()),
            settings::MPA_CRC => Some("maybe".into()),
            settings::DEVICE => Some("rxe".into()),
            settings::RENDEZVOUS_PORTS => Some("80".into()),
            settings::PORT_MAP => Some("7".into()),
            settings::PCAP => Some("/tmp/%p.pcapng".into()),
            _ => None,
        });
        let mut expected = given;
        expected.mpa.accept.rtr = Some(Rtr::Send);
        let file = |path: String| {
            TransportOptions::Sockets(SocketsOptions { pcap: Some(path.into()), seed: None })
        };
        expected.transport = file("/tmp/%p.pcapng".into());
        assert_eq!(settings.options, expected);
        let of_process = file(format!("/tmp/{}.pcapng", process::id()));
        assert_eq!(settings.adapter().transport, of_process);
        let reported: Vec<_> = bad.iter().map(ToString::to_string).collect();
        let expected = [
            "FLUE_VERBS_MPA_CRC=maybe: expected on, off or auto",
            "FLUE_VERBS_PORT_MAP=7: expected [HOST:]PORT=PORT,...",
            "FLUE_VERBS_DEVICE=rxe: expected iwarp or roce",
            "FLUE_VERBS_RENDEZVOUS_PORTS=80: expected FIRST-LAST, ports 1024 to 65535",
        ];
        assert_eq!(reported, expected);
        let is_options = |name| name == OPTIONS_VARIABLE;
        for nonsense in ["{", "7", r#"{"mpa":{"crc":"maybe"}}"#, r#"{"transports":{}}"#] {
            let (settings, bad) = Settings::read(|name| is_options(name).then(|| nonsense.into()));
            assert_eq!(settings, Settings::default());
            let bad = bad[0].to_string();
            assert!(bad.ends_with("expected adapter options in JSON, as set by flue run"), "{bad}");
        }
    }

    #[test]
    fn each_process_has_its_own_file() {
        assert_eq!(for_process("a%p-%q%p.pcapng".into(), 17), PathBuf::from("a17-%q17.pcapng"));
        assert_eq!(for_process("%".into(), 17), PathBuf::from("%"));
    }
}
