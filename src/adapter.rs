//! The adapter of a command: on a node behind a TAP, or on the kernel's sockets.

use std::{fmt, path::PathBuf};

use clap::{Args, ValueEnum};
use flue_adapter::{NodeOptions, output::OutputFile, random_seed};
use rdma_over_tcp::ndk::{self, Adapter, AdapterConfig, CallError, SocketsConfig, blocking::Wait};
use serde::{Deserialize, Serialize};

use crate::{
    control::{
        message::NodeName,
        place::ControlPlace,
        server::{self, Control},
    },
    failure::Failure,
    node::LINGER_LIMIT,
    options::{NodeArgs, NodeSetup, QueueOptions},
    waker::Waker,
};

/// What carries the byte streams of queue pairs.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Transport {
    /// A node on a TAP, with host stack and offload target
    #[default]
    Tap,
    /// TCP sockets of this machine's kernel: no TAP, no privileges, the machine's own addresses
    Kernel,
}

/// The choice of a transport, for commands that have queue pairs.
#[derive(Args, Clone, Copy, Debug, Default)]
pub struct TransportOptions {
    /// What carries the queue pairs' byte streams; of the node options, kernel has --control, --pcap and --seed
    #[arg(long, value_enum, value_name = "TRANSPORT", default_value_t)]
    pub transport: Transport,
}

/// The adapter of a command, checked and complete.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(untagged)]
pub enum AdapterSetup {
    /// On a node.
    Tap(Box<NodeSetup>),
    /// On kernel sockets.
    Kernel(SocketsSetup),
}

/// Kernel sockets, checked and complete.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct SocketsSetup {
    /// [`Transport::Kernel`].
    pub transport: Transport,
    /// A capture of the bytes, as frames made up around them.
    pub pcap: Option<PathBuf>,
    /// Seed of the STags.
    pub seed: u64,
    /// The control socket.
    pub control: ControlPlace,
}

impl AdapterSetup {
    /// Checks and completes the options.
    ///
    /// # Errors
    /// [`Failure::usage`], naming the option and its limit.
    pub fn resolve(
        node: &NodeArgs,
        queues: QueueOptions,
        TransportOptions { transport }: TransportOptions,
    ) -> Result<Self, Failure> {
        match transport {
            Transport::Tap => Ok(Self::Tap(Box::new(node.resolve_on(queues)?))),
            Transport::Kernel => Ok(Self::Kernel(SocketsSetup::resolve(node, queues)?)),
        }
    }
}

impl SocketsSetup {
    /// Checks and completes the options.
    ///
    /// # Errors
    /// [`Failure::usage`]: an option is for nodes only.
    pub fn resolve(node: &NodeArgs, queues: QueueOptions) -> Result<Self, Failure> {
        let NodeOptions { seed, pcap, .. } = node.node.clone();
        let own = NodeOptions { seed, pcap: pcap.clone(), ..NodeOptions::default() };
        if node.node != own || queues.queues != 1 {
            return Err(Failure::usage(
                "kernel sockets: of the node options they have --control, --pcap and --seed only",
            ));
        }
        Ok(Self {
            transport: Transport::Kernel,
            pcap,
            seed: seed.map_or_else(random_seed, Ok)?,
            control: ControlPlace::resolve(node.control.as_deref()),
        })
    }

    /// Opens an adapter.
    ///
    /// # Errors
    /// No descriptor or thread is left, or the control socket that was asked for cannot be had.
    pub fn open(&self, config: AdapterConfig) -> Result<OpenAdapter, Failure> {
        let failed = |error| Failure::work(format!("kernel sockets: {error}"));
        let config = AdapterConfig { seed: self.seed.into(), ..config };
        let adapter = ndk::open_sockets(SocketsConfig::default(), config).map_err(failed)?;
        if let Some(path) = &self.pcap {
            let output = OutputFile::create("--pcap", path)?;
            let name = output.name().to_owned();
            adapter
                .start_capture(Box::new(output))
                .map_err(|error| Failure::work(format!("{name}: {error}")))?;
        }
        let control = server::serve(vec![adapter.clone()], NodeName::of_sockets(), &self.control)?;
        Ok(OpenAdapter { adapter, control })
    }
}

impl fmt::Display for AdapterSetup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tap(setup) => setup.fmt(f),
            Self::Kernel(setup) => setup.fmt(f),
        }
    }
}

impl fmt::Display for SocketsSetup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { transport: _, pcap, seed, control } = self;
        let pcap = pcap.as_ref().map_or_else(|| "none".into(), |path| path.display().to_string());
        write!(
            f,
            "transport: kernel sockets\ncapture: {pcap}\nseed: {seed}\ncontrol socket: {control}"
        )
    }
}

/// An adapter with its control socket.
pub struct OpenAdapter {
    /// The adapter.
    pub adapter: Adapter,
    /// Its control socket.
    pub control: Option<Control>,
}

impl OpenAdapter {
    /// Opens it; on a TAP of several queues, on the first.
    ///
    /// # Errors
    /// What stands in the way, as [`Failure`]'s kind: the options, the machine, or something else.
    pub fn open(setup: &AdapterSetup, config: AdapterConfig) -> Result<Self, Failure> {
        let setup = match setup {
            AdapterSetup::Tap(setup) => setup,
            AdapterSetup::Kernel(setup) => return setup.open(config),
        };
        let first = setup.node.open_ndk(config)?.into_iter().next();
        let (_, adapter) = first.ok_or_else(|| Failure::work("a TAP without a queue"))?;
        let name = NodeName::of(&setup.node);
        let control = server::serve(vec![adapter.clone()], name, &setup.control)?;
        Ok(Self { adapter, control })
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
        let ended = waker
            .catch_signals()
            .and_then(|()| work(Waiter { adapter: &self.adapter, waker: &waker }));
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
    adapter: &'a Adapter,
    /// Wakes it.
    pub waker: &'a Waker,
}

impl Wait for Waiter<'_> {
    type Error = Failure;

    fn failed(&self, error: CallError) -> Failure {
        Failure::work(error.to_string())
    }

    fn wait<T>(&mut self, mut look: impl FnMut() -> Option<T>) -> Result<T, Failure> {
        let waited = self.adapter.wait_until(None, || match self.waker.interrupted() {
            Ok(()) => look().map(Ok),
            Err(interrupted) => Some(Err(interrupted)),
        });
        waited.unwrap_or_else(|error| Err(Failure::work(error.to_string())))
    }
}

/// Stays until the connections have ended; at most for [`LINGER_LIMIT`].
pub fn linger(adapter: &Adapter) {
    if let Err(error) = adapter.linger(LINGER_LIMIT) {
        tracing::debug!(%error, "waiting for the peers' ends");
    }
}
