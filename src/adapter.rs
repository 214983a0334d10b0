//! The adapter of a command: its options as they are given and printed, and waits that signals end.

use std::{fmt, path::PathBuf};

use clap::Args;
use flue_adapter::{
    AdapterOptions, MpaOptions, NodeOptions, SocketsOptions, TransportOptions,
    control::{
        message::NodeName,
        server::{Control, ControlListener},
        socket_path::ControlSocketPath,
    },
    random_seed,
};
use rdma_over_tcp::ndk::{Adapter, AdapterConfig, CallError, blocking::Wait};
use serde::Serialize;

use crate::{
    failure::Failure,
    node::LINGER_LIMIT,
    options::{NodeArgs, NodeSetup, QueueOptions, shown_socket},
    report::Console,
    sandbox::{Policy, SandboxArgs},
    station::Station,
    waker::Waker,
};

pub use flue_adapter::Transport;

/// The choice of a transport, for commands that have queue pairs.
#[derive(Args, Clone, Copy, Debug, Default)]
#[command(next_help_heading = "Node options")]
pub struct TransportArgs {
    /// Carry queue pairs over this transport
    ///
    /// With kernel sockets, only the node options --control, --pcap and --seed apply; in the lab also --addr and --mtu.
    #[arg(long, value_enum, value_name = "TRANSPORT", default_value_t)]
    pub transport: Transport,
}

/// Returns the options of a command's adapter, checked and complete.
///
/// # Errors
/// [`Failure::usage`], naming the option and its limit.
pub fn resolve(
    node: &NodeArgs,
    QueueOptions { queues }: QueueOptions,
    transport: Transport,
    mpa: impl Into<MpaOptions>,
) -> Result<AdapterOptions, Failure> {
    if transport == Transport::Tap {
        return Ok(on_node(node.resolve_on(QueueOptions { queues })?, mpa));
    }
    let control = Some(ControlSocketPath::resolve(node.control.as_deref()));
    let node = NodeOptions { queues, ..node.node.clone() };
    let mut transport = TransportOptions::new(transport, node)?;
    if let TransportOptions::Sockets(SocketsOptions { seed, .. }) = &mut transport {
        *seed = Some(seed.map_or_else(random_seed, Ok)?);
    }
    Ok(AdapterOptions { transport, mpa: mpa.into(), control, ..Default::default() })
}

/// Returns the options of an adapter on this node.
pub(crate) fn on_node(setup: NodeSetup, mpa: impl Into<MpaOptions>) -> AdapterOptions {
    let NodeSetup { node, control } = setup;
    AdapterOptions {
        transport: TransportOptions::Node(Box::new(node)),
        mpa: mpa.into(),
        control: Some(control),
        ..Default::default()
    }
}

/// Kernel sockets, as they are printed.
#[derive(Serialize)]
struct SocketsSetup<'a> {
    transport: Transport,
    pcap: Option<&'a PathBuf>,
    #[serde(serialize_with = "flue_adapter::seed::serialize")]
    seed: Option<u64>,
    control: ControlSocketPath,
}

impl fmt::Display for SocketsSetup<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { transport: _, pcap, seed, control } = self;
        let pcap = pcap.as_ref().map_or_else(|| "none".into(), |path| path.display().to_string());
        let seed = seed.unwrap_or(0);
        let control = shown_socket(control, &NodeName::of_sockets().tap);
        write!(
            f,
            "transport: kernel sockets\ncapture: {pcap}\nseed: {seed}\ncontrol socket: {control}"
        )
    }
}

/// Prints the configuration of an adapter: its transport and its control socket.
pub(crate) fn show(options: &AdapterOptions, console: &mut Console<'_>) {
    let control = options.control.clone().unwrap_or_else(|| ControlSocketPath::resolve(None));
    match &options.transport {
        TransportOptions::Sockets(SocketsOptions { pcap, seed }) => {
            let (transport, pcap) = (Transport::Kernel, pcap.as_ref());
            console.config(&SocketsSetup { transport, pcap, seed: *seed, control });
        }
        TransportOptions::Node(_) | TransportOptions::Launched(_) => {
            let node = options.transport.node().cloned().unwrap_or_default();
            console.config(&NodeSetup { node, control });
        }
    }
}

/// Adapters of all queues of a TAP, or one on kernel sockets, with their control socket.
pub(crate) struct OpenAdapters {
    pub(crate) opened: flue_adapter::OpenAdapter,
    pub(crate) station: Station,
    pub(crate) control: Option<Control>,
}

impl OpenAdapters {
    /// Opens devices, files and control socket, enters the sandbox, and starts the adapters. Warns if no peer can reach
    /// them.
    ///
    /// # Errors
    /// As [`OpenAdapter::open`].
    pub(crate) fn open(
        options: &AdapterOptions,
        config: AdapterConfig,
        sandbox: SandboxArgs,
        console: &mut Console<'_>,
    ) -> Result<Self, Failure> {
        let limit = config.connect_timeout;
        let prepared = options.prepare()?;
        let node = options.transport.node();
        let station = Station::new(node, limit);
        station.warn(console);
        let control = options.listen()?;
        let transport = node.map_or(Transport::Kernel, |_| Transport::Tap);
        sandbox.enter(Policy::of(transport, control.as_ref().map(ControlListener::path)));
        let opened = prepared.start(config)?;
        let control = control.map(|it| it.serve(opened.adapters.clone())).transpose()?;
        Ok(Self { opened, station, control })
    }
}

/// An adapter with its control socket.
pub struct OpenAdapter {
    /// The adapter; on a TAP of several queues, that of the first.
    pub adapter: Adapter,
    /// Its end of connections.
    pub station: Station,
    _control: Option<Control>,
}

impl OpenAdapter {
    /// Opens it in a sandbox, and warns if no peer can reach it.
    ///
    /// # Errors
    /// The options, the machine, or an operation that failed.
    pub fn open(
        options: &AdapterOptions,
        config: AdapterConfig,
        sandbox: SandboxArgs,
        console: &mut Console<'_>,
    ) -> Result<Self, Failure> {
        let mut opened = OpenAdapters::open(options, config, sandbox, console)?;
        let adapter = opened.opened.adapters.swap_remove(0);
        Ok(Self { adapter, station: opened.station, _control: opened.control })
    }

    /// Runs `work`, whose waits SIGINT, SIGTERM and SIGHUP end.
    ///
    /// # Errors
    /// Those of `work`; or signals cannot be caught.
    pub fn interruptible<T>(
        &self,
        work: impl FnOnce(Waiter<'_>) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        let waker = Waker::new();
        let woken = self.adapter.clone();
        waker.set(move || woken.wake());
        let ended =
            waker.catch_signals().and_then(|()| work(Waiter { opened: self, waker: &waker }));
        waker.clear();
        ended
    }

    /// Stays until the connections have ended, so that the peers' ends are clean too.
    pub fn linger(&self) {
        linger(&self.adapter);
    }
}

/// Waits for an adapter; a signal ends the wait.
#[derive(Clone, Copy)]
pub struct Waiter<'a> {
    opened: &'a OpenAdapter,
    /// Wakes it.
    pub waker: &'a Waker,
}

impl Wait for Waiter<'_> {
    type Error = Failure;

    fn adapter(&self) -> &Adapter {
        &self.opened.adapter
    }

    fn failed(&self, error: CallError) -> Failure {
        self.opened.station.failure(&error)
    }

    fn wait<T>(&mut self, mut look: impl FnMut() -> Option<T>) -> Result<T, Failure> {
        let waited = self.opened.adapter.wait_until(None, || match self.waker.interrupted() {
            Ok(()) => look().map(Ok),
            Err(interrupted) => Some(Err(interrupted)),
        });
        waited.unwrap_or_else(|error| Err(Failure::work(error.to_string())))
    }
}

/// Stays until the connections have ended; at most for [`LINGER_LIMIT`].
pub fn linger(adapter: &Adapter) {
    if let Err(error) = adapter.linger(LINGER_LIMIT) {
        tracing::debug!(%error, "peers did not close in time");
    }
}

/// Returns the result of a command with the failure of an output file, if any. Call it after the nodes and adapters
/// that write the files were dropped.
pub fn with_failed_outputs(ended: Result<(), Failure>) -> Result<(), Failure> {
    with_output(ended, flue_adapter::output::take_failure().map(Failure::from))
}

/// Combines the result of the run with the failure of an output file, if any.
fn with_output(ended: Result<(), Failure>, output: Option<Failure>) -> Result<(), Failure> {
    match (ended, output) {
        (ended, None) => ended,
        (Ok(()), Some(output)) => Err(output),
        (Err(failure), Some(output)) => {
            Err(Failure { message: format!("{}; {}", failure.message, output.message), ..failure })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failed_output_file_fails_the_run() {
        let full = || Some(Failure::work("--pcap x: full"));
        assert_eq!(with_output(Ok(()), None), Ok(()));
        assert_eq!(with_output(Ok(()), full()).unwrap_err().message, "--pcap x: full");
        let both = with_output(Err(Failure::lacking("no TUN")), full()).unwrap_err();
        assert_eq!((both.message.as_str(), both.exit_status()), ("no TUN; --pcap x: full", 3));
    }
}
