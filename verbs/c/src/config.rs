//! Adapter of the process, configured by environment variables ([`Settings`]), because the command line is the
//! program's.

use std::{
    mem, process,
    sync::{
        Arc, Mutex, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use flue_adapter::{AdapterOptions, DeviceKind, control::server::Control};
use flue_verbs_core::{
    device::Device,
    fatal::{report_link_loss, reset_connections},
    identity::{Identity, addresses_of_machine},
    process::generation,
    usage,
};
use rdma_over_tcp::rnic::{CallbackThread, Config, CrcRequest};
use tracing_subscriber::{
    filter::{LevelFilter, dynamic_filter_fn},
    layer::SubscriberExt as _,
    util::SubscriberInitExt as _,
};

use crate::{exit, guard::Errno, inherit, log::LogFile, settings::Settings};

/// Time limit for a message to wait for a receive. InfiniBand senders may retry without limit; here a receiver that
/// posts nothing for this long counts as failed. The limit allows for a process with little CPU time: fio blocks
/// forever after its connection has ended.
const RECEIVE_WAIT: Duration = Duration::from_secs(30);

/// Time limit for a disconnect to wait for blocked Sends. Programs disconnect with Sends outstanding, and expect the
/// disconnect to overtake them, as with InfiniBand. Such a connection ends after this time even if a Send has no
/// receive.
const END_WAIT: Duration = Duration::from_millis(500);

/// Returns the settings of the environment. They are read once, at the first call that needs the adapter.
fn settings() -> &'static Settings {
    static SETTINGS: OnceLock<Settings> = OnceLock::new();
    SETTINGS.get_or_init(|| {
        let (settings, bad) = Settings::from_environment();
        start_log(&settings);
        for setting in bad {
            tracing::error!("{setting}: setting ignored");
        }
        settings
    })
}

/// Starts the log. Standard output and error belong to the program, so nothing is logged without a file.
fn start_log(settings: &Settings) {
    let Some(path) = &settings.log else { return };
    let file = LogFile::new(path);
    let log = tracing_subscriber::fmt()
        // Otherwise a failed write of the log, for example to a full disk, is reported on the program's standard error.
        .log_internal_errors(false)
        // Without a mutex, which another thread might hold at a fork.
        .with_writer(Arc::new(file))
        .with_ansi(false)
        .with_max_level(LevelFilter::INFO)
        .finish()
        .with(dynamic_filter_fn(|_, _| !exit::is_log_closed()));
    let _ = log.try_init();
}

/// Opens the log, at the first call that needs a descriptor.
pub(crate) fn open_log() {
    settings();
}

/// Returns the identity of the device, without starting an adapter. It is fixed at the first call.
pub(crate) fn identity() -> &'static Identity {
    static IDENTITY: OnceLock<Identity> = OnceLock::new();
    IDENTITY.get_or_init(|| Identity::new(settings().options(), addresses_of_machine))
}

/// Returns true if the device is a RoCE device, without starting an adapter.
pub(crate) fn is_roce() -> bool {
    settings().options().device == DeviceKind::Roce
}

/// Returns the options of the adapter, the defaults for verbs programs, and the identity of the device.
fn options() -> (AdapterOptions, Config, &'static Identity) {
    let config = Config {
        crc: CrcRequest::Auto,
        // The callbacks only set flags and write to pipes, so they need no separate thread.
        callbacks: CallbackThread::Caller,
        receive_wait: RECEIVE_WAIT,
        // Programs change memory while an adapter reads it: QEMU migrates a running guest.
        copies_payload: true,
        end_wait: END_WAIT,
        ..Config::default()
    };
    (settings().adapter(), config, identity())
}

/// Adapter of a process, with its control socket.
struct Started {
    /// Process id. A forked child must not end the adapter of its parent.
    owner: u32,
    device: &'static Device,
    control: Option<Control>,
}

static STARTED: Mutex<Option<Started>> = Mutex::new(None);

/// Starts the services of the adapter, which end with the process: usage record, control socket, exit handler.
fn start_services(device: &'static Device) {
    report_link_loss(device);
    if let Some(path) = &settings().usage
        && let Err(error) = usage::begin(path)
    {
        tracing::error!("device usage not recorded: {}: {error}", path.display());
    }
    let served = settings().adapter().serve(vec![device.adapter().clone()]);
    let control = served.unwrap_or_else(|failure| {
        tracing::error!("{failure}");
        None
    });
    if let Ok(mut started) = STARTED.lock() {
        let before = started.replace(Started { owner: process::id(), device, control });
        // In a forked child this is the parent's, whose thread and socket must not be ended here.
        mem::forget(before);
    }
    if !exit::register(finish) {
        tracing::error!("exit handler not installed: captures may end early");
    }
}

/// True if the process has called exit.
static IS_ENDING: AtomicBool = AtomicBool::new(false);

/// Returns true if the process has called exit and the adapter is ending.
pub(crate) fn is_ending() -> bool {
    IS_ENDING.load(Ordering::Acquire)
}

extern "C" fn finish() {
    IS_ENDING.store(true, Ordering::Release);
    let is_own = |started: &mut Started| started.owner == process::id();
    let is_due = || STARTED.lock().is_ok_and(|mut started| started.as_mut().is_some_and(is_own));
    exit::run(is_due, move || {
        let started = STARTED.lock().ok().and_then(|mut started| started.take_if(is_own));
        let Some(Started { owner: _, device, control }) = started else { return };
        drop(control);
        device.finish();
        if device.is_exclusive() && generation() > 0 {
            reset_connections();
            device.finish();
        }
    });
}

/// Returns the adapter of this process, and starts it if necessary.
pub(crate) fn device() -> Result<&'static Device, Errno> {
    start().inspect_err(|error| {
        if let (Errno(libc::EBUSY), Some(node)) = (error, settings().transport().node()) {
            tracing::error!("TAP {}: in use by another process", node.tap);
        }
    })
}

/// As [`device`], but does not log an error if another process uses the node.
pub(crate) fn start() -> Result<&'static Device, Errno> {
    inherit::install_fork_handler(start)?;
    let mut is_new = false;
    let device = Device::get(|| {
        is_new = true;
        options()
    })?;
    if is_new {
        start_services(device);
    }
    Ok(device)
}

/// Starts the adapter on a node, for a program that only waits for asynchronous events: the end of the node is an event
/// of the device. Kernel sockets have no such event.
pub(crate) fn watch_node() {
    if settings().transport().node().is_some() && Device::started().is_none() {
        // Fails if another process uses the node. Then this device has no events.
        let _ = device();
    }
}
