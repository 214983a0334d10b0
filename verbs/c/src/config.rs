//! The adapter of the process, configured by the environment ([`Settings`]): the program's command line is its own.

use std::{
    fs::File,
    io::{self, Write},
    mem, process,
    sync::{
        Arc, Mutex, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use flue_adapter::{AdapterOptions, SocketsOptions, TransportOptions, control::server::Control};
use flue_verbs_core::{
    address::{self, Interface},
    device::Device,
    fatal::{report_link_loss, reset_connections},
    process::generation,
    usage,
};
use offload_engine::descriptor::{Guarded, moved_up};
use rdma_over_tcp::rnic::{CallbackThread, Config};
use tracing_subscriber::filter::LevelFilter;

use crate::{
    guard::{self, Errno},
    inherit,
    log::LogFile,
    settings::Settings,
};

/// InfiniBand's senders may retry for ever; a receiver that posts nothing for this long counts as failed. Long enough
/// for a process that gets little CPU time: fio waits for ever once its connection is gone.
const RECEIVE_WAIT: Duration = Duration::from_secs(30);

/// Programs stop in the midst of their Sends, and count on it that the end goes beside them, as with InfiniBand: such a
/// connection ends in this time, though one of them has no receive.
const END_WAIT: Duration = Duration::from_millis(500);

/// The environment's settings, read once: with the first call of the program that needs the adapter.
fn settings() -> &'static Settings {
    static SETTINGS: OnceLock<Settings> = OnceLock::new();
    SETTINGS.get_or_init(|| {
        let (settings, bad) = Settings::from_environment();
        start_log(&settings);
        for setting in bad {
            tracing::error!("{setting}; it is ignored");
        }
        settings
    })
}

/// Standard output and error are the program's: without a file nothing is logged.
fn start_log(settings: &Settings) {
    let Some(path) = &settings.log else { return };
    let file = LogFile::new(path);
    let log = tracing_subscriber::fmt()
        // A log that cannot be written, on a full disk for example, would be reported on the program's standard error.
        .log_internal_errors(false)
        // Without a lock, which a thread might hold at a fork.
        .with_writer(Arc::new(file))
        .with_ansi(false)
        .with_max_level(LevelFilter::INFO);
    let _ = log.try_init();
}

/// Opens the log, with the first call of the program that needs a descriptor.
pub(crate) fn open_log() {
    settings();
}

/// Options of the adapter, and the defaults of verbs programs.
fn options() -> (AdapterOptions, Config) {
    let mut options = settings().adapter();
    // A capture that cannot be written leaves the adapter alone ([`start_capture`]).
    if let TransportOptions::Sockets(sockets) = &mut options.transport {
        sockets.pcap = None;
    }
    let config = Config {
        // They only set flags and write to pipes: no change of threads is needed for that.
        callbacks: CallbackThread::Caller,
        receive_wait: RECEIVE_WAIT,
        // Programs change memory that an adapter reads: a guest runs on while QEMU migrates it.
        copies_payload: true,
        end_wait: END_WAIT,
        ..Config::default()
    };
    (options, config)
}

/// The adapter of a process, and what goes with it.
struct Started {
    /// A child must not end what is its parent's.
    owner: u32,
    device: &'static Device,
    control: Option<Control>,
}

static STARTED: Mutex<Option<Started>> = Mutex::new(None);

/// What begins with the adapter, and ends with the process.
fn accompany(device: &'static Device) {
    report_link_loss(device);
    start_capture(device);
    if let Some(path) = &settings().usage
        && let Err(error) = usage::begin(path)
    {
        tracing::error!("use of the device not recorded: {}: {error}", path.display());
    }
    let served = settings().adapter().serve(vec![device.adapter().clone()]);
    let control = served.unwrap_or_else(|failure| {
        tracing::error!("{failure}");
        None
    });
    if let Ok(mut started) = STARTED.lock() {
        let before = started.replace(Started { owner: process::id(), device, control });
        // That of a parent, whose thread and socket are not ours to end.
        mem::forget(before);
    }
    // SAFETY: a function of this library, which is never unloaded while the program runs.
    if unsafe { libc::atexit(finish) } != 0 {
        tracing::error!("the end of captures may be missing: no room for an exit handler");
    }
}

/// File of a capture, until the program closes its descriptor.
struct CaptureFile(Guarded<File>);

impl Write for CaptureFile {
    fn write(&mut self, octets: &[u8]) -> io::Result<usize> {
        match self.0.is_intact() {
            true => self.0.write(octets),
            false => Err(io::Error::from_raw_os_error(libc::EBADF)),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn start_capture(device: &Device) {
    let TransportOptions::Sockets(SocketsOptions { pcap: Some(path), .. }) =
        settings().adapter().transport
    else {
        return;
    };
    let started = File::create(&path)
        .map(|file| CaptureFile(File::from(moved_up(file.into())).into()))
        .and_then(|file| device.start_capture(Box::new(file)));
    if let Err(error) = started {
        tracing::error!("capture to {}: {error}", path.display());
    }
}

/// The process has called exit.
static IS_ENDING: AtomicBool = AtomicBool::new(false);

/// Whether the process has called exit, and the adapter ends.
pub(crate) fn is_ending() -> bool {
    IS_ENDING.load(Ordering::Acquire)
}

extern "C" fn finish() {
    IS_ENDING.store(true, Ordering::Release);
    guard::at_exit(|| {
        let started = STARTED
            .lock()
            .ok()
            .and_then(|mut started| started.take_if(|started| started.owner == process::id()));
        let Some(Started { owner: _, device, control }) = started else { return };
        drop(control);
        device.finish();
        if device.is_exclusive() && generation() > 0 {
            reset_connections();
            device.finish();
        }
    });
}

/// The interface that gives the device its identity. Nothing is started.
pub(crate) fn interface() -> Interface {
    match settings().transport().node() {
        Some(node) => address::interface_of_node(node),
        None => address::interface_of_device(),
    }
}

/// The adapter of this process.
pub(crate) fn device() -> Result<&'static Device, Errno> {
    start().inspect_err(|error| {
        if let (Errno(libc::EBUSY), Some(node)) = (error, settings().transport().node()) {
            tracing::error!("TAP {}: another process has the node", node.tap);
        }
    })
}

/// As [`device`], without a line in the log if another process has the node.
pub(crate) fn start() -> Result<&'static Device, Errno> {
    inherit::install_fork_handler(start)?;
    let mut is_new = false;
    let device = Device::get(|| {
        is_new = true;
        options()
    })?;
    if is_new {
        accompany(device);
    }
    Ok(device)
}

/// Starts the adapter on a node, whose end is an event of its device, for a program that waits for such events and does
/// nothing else. Kernel sockets have no end.
pub(crate) fn watch_node() {
    if settings().transport().node().is_some() && Device::started().is_none() {
        // Another process may have it: then nothing happens to the device here.
        let _ = device();
    }
}
