//! Options of the adapter, which the environment gives: the program's command line is its own.
//!
//! | variable | values | |
//! |---|---|---|
//! | `FLUE_VERBS_MPA_CRC` | `on`, `off` | ask for MPA's CRC; a peer's wish turns it on anyway. Default: on |
//! | `FLUE_VERBS_MPA_REVISION` | 1, 2 | revision of MPA Requests. Default: 2 |
//! | `FLUE_VERBS_RFC7306` | `on`, `off` | atomics and immediate data: every peer must have them, too. Default: off |
//! | `FLUE_VERBS_PCAP` | path | record what is sent and received; `%p` stands for the process's number |
//! | `FLUE_VERBS_LOG` | path | append what goes wrong; `%p` as above |
//!
//! A value that is none of these counts as not given, and is logged.

use std::{env, ffi::OsString, fs::File, io, path::PathBuf, sync::OnceLock};

use flue_verbs_core::engine::{Engine, Options};
use rdma_over_tcp::{
    mpa::startup::Revision,
    rnic::Config,
};

use crate::{guard::Errno, log};

/// The value of a variable, if it has one.
fn text(name: &str) -> Option<String> {
    env::var(name).ok().filter(|value| !value.is_empty())
}

/// One of some values.
fn choice<T: Copy>(name: &str, values: &[(&str, T)]) -> Option<T> {
    let given = text(name)?;
    let found = values.iter().find(|(value, _)| *value == given);
    if found.is_none() {
        log::line(format_args!("{name}={given}: not a value; it is ignored"));
    }
    found.map(|(_, value)| *value)
}

/// A path, with the number of the process in it.
pub(crate) fn path(name: &str) -> Option<PathBuf> {
    let given: OsString = env::var_os(name).filter(|value| !value.is_empty())?;
    Some(match given.to_str() {
        Some(text) => text.replace("%p", &std::process::id().to_string()).into(),
        None => given.into(),
    })
}

fn options() -> Options {
    let switch = [("on", true), ("off", false)];
    let mut adapter = Config::default();
    if let Some(crc) = choice("FLUE_VERBS_MPA_CRC", &switch) {
        adapter.crc = crc;
    }
    if let Some(revision) =
        choice("FLUE_VERBS_MPA_REVISION", &[("1", Revision::One), ("2", Revision::Two)])
    {
        adapter.revision = revision;
    }
    if let Some(rfc7306) = choice("FLUE_VERBS_RFC7306", &switch) {
        adapter.rfc7306 = rfc7306;
    }
    Options { adapter, ..Options::default() }
}

fn capture(engine: &Engine) {
    let Some(path) = path("FLUE_VERBS_PCAP") else { return };
    let started =
        File::create(&path).and_then(|file| engine.sockets().start_capture(Box::new(file)));
    if let Err(error) = started {
        log::line(format_args!("FLUE_VERBS_PCAP={}: {error}", path.display()));
    }
}

/// The adapter of this process.
pub(crate) fn engine() -> Result<&'static Engine, Errno> {
    static FORKS: OnceLock<Result<(), i32>> = OnceLock::new();
    let watched = FORKS.get_or_init(|| {
        // SAFETY: the handler only counts.
        match unsafe { libc::pthread_atfork(None, None, Some(forked)) } {
            0 => Ok(()),
            error => Err(error),
        }
    });
    watched.map_err(Errno)?;
    let mut is_new = false;
    let engine = Engine::get(|| {
        is_new = true;
        options()
    })?;
    if is_new {
        capture(engine);
    }
    Ok(engine)
}

unsafe extern "C" fn forked() {
    flue_verbs_core::engine::forked();
}

impl From<io::Error> for Errno {
    fn from(error: io::Error) -> Self {
        Self(error.raw_os_error().unwrap_or(libc::EIO))
    }
}
