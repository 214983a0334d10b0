//! Start of a node from its options: TAP, the kernel's side of it, capture, impairments, host stack, engine, clients.

use std::{
    io::{self, BufWriter},
    os::fd::OwnedFd,
    time::{Duration, SystemTime},
};

use flue_network::{
    Netlink,
    environment::tap_error,
    plumb::{self, KernelSide},
};
use host_stack::{dad::Detection, frame_log, node::Node, socket::SocketPort};
use offload_engine::{
    descriptor::duplicate,
    engine::NodeClient,
    link::{CaptureLink, Impaired, Impairments, Link, OpenTap, ReclaimMode, open_tap_descriptor},
};
use rdma_over_tcp::ndk::{self, Adapter, AdapterConfig, AdapterCore};

use super::{detection::detect_duplicates, impairment::Impairment, options::NodeOptions};
use crate::{
    error::Error,
    output::{OutputFile, of_queue},
};

/// Bytes of the buffer between a capture or trace and its file.
const CAPTURE_BUFFER_BYTES: usize = 1 << 20;

/// Links of a node's TAP, and the files of its traces.
pub struct OpenLinks {
    /// One link per queue, each with its own capture and impairments; at least one.
    pub links: Vec<Box<dyn Link>>,
    /// True if frames carry a virtio-net header.
    pub vnet_header: bool,
    /// Trace of each queue; empty without `--tcp-trace`.
    pub(crate) traces: Vec<OutputFile>,
}

impl std::fmt::Debug for OpenLinks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("OpenLinks")
            .field("queues", &self.links.len())
            .field("vnet_header", &self.vnet_header)
            .finish_non_exhaustive()
    }
}

/// A node and its adapter.
pub type NdkNode = (Node<AdapterCore>, Adapter);

impl NodeOptions {
    /// Opens a node in the network namespace of the calling thread: TAP, addresses, bridge and host address, then
    /// engine and host stack. Returns a handle per queue; `client` creates the client of each.
    ///
    /// The options are those of [`NodeOptions::completed`], or are completed here.
    ///
    /// # Errors
    /// An option, a prerequisite or an operation: [`Error::cause`].
    pub fn open<C: NodeClient + 'static>(
        &self,
        client: impl FnMut(SocketPort) -> C,
    ) -> Result<Vec<Node<C>>, Error> {
        let complete = self.clone().completed()?;
        complete.start(complete.open_links()?, client)
    }

    /// As [`NodeOptions::open`], for a TAP with one queue: returns its node.
    ///
    /// # Errors
    /// As [`NodeOptions::open`]; [`Error::Option`]: the options have several queues.
    pub fn open_one<C: NodeClient + 'static>(
        &self,
        client: impl FnMut(SocketPort) -> C,
    ) -> Result<Node<C>, Error> {
        self.check_one_queue()?;
        Ok(self.open(client)?.swap_remove(0))
    }

    /// As [`NodeOptions::open_one`], with NDK: returns the node and its adapter.
    ///
    /// # Errors
    /// As [`NodeOptions::open_one`].
    pub fn open_one_ndk(&self, adapter: AdapterConfig) -> Result<NdkNode, Error> {
        self.check_one_queue()?;
        Ok(self.open_ndk(adapter)?.swap_remove(0))
    }

    fn check_one_queue(&self) -> Result<(), Error> {
        match self.queues {
            1 => Ok(()),
            queues => Err(Error::option(format!("queues: {queues}, expected 1 for one node"))),
        }
    }

    /// As [`NodeOptions::open`], with NDK as the client of each queue, and one adapter per queue.
    ///
    /// # Errors
    /// As [`NodeOptions::open`].
    pub fn open_ndk(&self, adapter: AdapterConfig) -> Result<Vec<NdkNode>, Error> {
        let complete = self.clone().completed()?;
        complete.start_ndk(complete.open_links()?, adapter)
    }

    /// Opens the links, the first half of [`NodeOptions::open`]: opens the TAP, sets up the kernel's side of it, and
    /// adds capture and impairments. A capture has the frames after impairments were applied.
    ///
    /// It starts no thread. After it, the node opens no file, socket or device, and needs no capability.
    ///
    /// # Errors
    /// As [`NodeOptions::open`].
    pub fn open_links(&self) -> Result<OpenLinks, Error> {
        self.open_links_on(Ok)
    }

    /// As [`NodeOptions::open_links`]; `wrap` adds a layer directly above each TAP.
    pub(crate) fn open_links_on(
        &self,
        mut wrap: impl FnMut(Box<dyn Link>) -> Result<Box<dyn Link>, Error>,
    ) -> Result<OpenLinks, Error> {
        let opened = self.open_taps()?;
        let vnet_header = opened.iter().all(|queue| queue.vnet_header);
        let wrapped = opened.into_iter().enumerate().map(|(queue, OpenTap { link, name, .. })| {
            let link = frame_log::logged(self.captured(wrap(link)?, &name, queue)?);
            self.impaired(link, self.seed().wrapping_add(2 * queue as u64))
        });
        let links = wrapped.collect::<Result<Vec<_>, _>>()?;
        let traces = self.tcp_trace.iter().flat_map(|path| {
            (0..links.len()).map(|queue| OutputFile::create("--tcp-trace", &of_queue(path, queue)))
        });
        let traces = traces.collect::<Result<_, _>>()?;
        Ok(OpenLinks { links, vnet_header, traces })
    }

    /// Returns true if no station can reach the node through its open TAP: the TAP is not a port of a bridge, and the
    /// kernel has no address on it. `netlink` was opened in the namespace of the TAP.
    ///
    /// # Errors
    /// The kernel does not list its links and addresses.
    pub fn is_isolated(&self, netlink: &mut Netlink) -> Result<bool, Error> {
        if self.tap_fd.is_some() {
            return Ok(false);
        }
        let is_port = netlink.link(&self.tap)?.master_index.is_some();
        let has_address = netlink.addresses()?.iter().any(|own| own.name == self.tap);
        Ok(!is_port && !has_address)
    }

    fn open_taps(&self) -> Result<Vec<OpenTap>, Error> {
        let (mut opened, is_alone) = match self.tap_fd {
            None => {
                let (netlink, options) = (&mut Netlink::open()?, self.tap_options());
                let side = self.kernel_side();
                let opened = plumb::open_taps(netlink, &options, self.queues.into(), &side)?;
                let link = netlink.link(&opened[0].name)?;
                (opened, link.temporary_tun && link.master_index.is_none())
            }
            Some(number) => (vec![self.inherit(number)?], false),
        };
        if self.detection == Detection::On {
            detect_duplicates(&mut opened, self, is_alone)?;
        }
        Ok(opened)
    }

    /// Returns the name of the TAP and its descriptor, ready for use. Programs started afterwards inherit the
    /// descriptor.
    pub(crate) fn open_descriptor(&self) -> Result<(OwnedFd, String), Error> {
        let opened = self.open_taps()?;
        let failed = || Error::operation("TAP: no descriptor");
        let first = opened.into_iter().next().ok_or_else(failed)?;
        let descriptor = rustix::io::dup(first.link.descriptor().ok_or_else(failed)?)
            .map_err(|error| Error::operation(format!("TAP: duplicate the descriptor: {error}")))?;
        Ok((descriptor, first.name))
    }

    /// Returns the options without capture, trace, impairments and page recycling: a link that needs the TAP only, and
    /// opens no file or socket.
    pub(crate) fn without_observers(&self) -> Self {
        let impairment = Impairment::default();
        let tx_page_recycling = ReclaimMode::Off;
        Self { pcap: None, tcp_trace: None, impairment, tx_page_recycling, ..self.clone() }
    }

    /// Starts engine and host stack on the links, the second half of [`NodeOptions::open`].
    ///
    /// # Errors
    /// No descriptor or thread is available, or a file cannot be written.
    pub fn start<C: NodeClient + 'static>(
        &self,
        OpenLinks { links, vnet_header: _, traces }: OpenLinks,
        client: impl FnMut(SocketPort) -> C,
    ) -> Result<Vec<Node<C>>, Error> {
        let nodes = Node::start_queues(links, self.node_config(), client).map_err(start_failure)?;
        start_traces(traces, nodes.iter())?;
        Ok(nodes)
    }

    /// As [`NodeOptions::start`], with NDK. The adapter's seed is that of the options.
    ///
    /// # Errors
    /// As [`NodeOptions::start`]; or the options exclude a requirement of queue pairs.
    pub fn start_ndk(
        &self,
        OpenLinks { links, vnet_header: _, traces }: OpenLinks,
        adapter: AdapterConfig,
    ) -> Result<Vec<NdkNode>, Error> {
        let adapter = AdapterConfig { seed: self.seed().into(), ..adapter };
        let opened = ndk::open_queues(links, self.node_config(), adapter).map_err(start_failure)?;
        start_traces(traces, opened.iter().map(|(node, _)| node))?;
        Ok(opened)
    }

    fn kernel_side(&self) -> KernelSide<'_> {
        KernelSide {
            bridge: self.bridge.as_deref(),
            addresses: self.host_addresses.iter().copied().map(Into::into).collect(),
            txqueuelen: self.txqueuelen,
        }
    }

    /// Returns the TAP of an inherited descriptor.
    fn inherit(&self, number: i32) -> Result<OpenTap, Error> {
        let descriptor = duplicate(number).map_err(|error| {
            match Error::io(format_args!("--tap-fd {number}"), &error) {
                Error::Operation(message) => Error::Option(message),
                shortage => shortage,
            }
        })?;
        let opened = open_tap_descriptor(descriptor, &self.tap_options()).map_err(tap_error)?;
        let is_changed =
            self.bridge.is_some() || !self.host_addresses.is_empty() || self.txqueuelen.is_some();
        if is_changed {
            let (mtu, side) = (self.mtu_bytes.into(), self.kernel_side());
            plumb::make_ready(&mut Netlink::open()?, &opened.name, mtu, &side)?;
        }
        Ok(opened)
    }

    /// Returns the link with its capture; `tap` is the interface's name in the capture.
    fn captured(
        &self,
        link: Box<dyn Link>,
        tap: &str,
        queue: usize,
    ) -> Result<Box<dyn Link>, Error> {
        let Some(path) = &self.pcap else { return Ok(link) };
        let output = OutputFile::create("--pcap", &of_queue(path, queue))?;
        let name = output.name().to_owned();
        let failed = |error| Error::operation(format!("{name}: {error}"));
        // The node's clock starts with the node, shortly after this point.
        let now =
            SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or(Duration::ZERO);
        let now_nanos = u64::try_from(now.as_nanos()).unwrap_or(u64::MAX);
        let tee = CaptureLink::new(link, buffered(output), tap, now_nanos).map_err(failed)?;
        Ok(Box::new(tee))
    }

    fn impaired(&self, link: Box<dyn Link>, seed: u64) -> Result<Box<dyn Link>, Error> {
        if self.impairment.is_none() {
            return Ok(link);
        }
        let transmit = self.impairment.on_a_link(seed);
        let receive = Impairments { seed: seed.wrapping_add(1), ..transmit };
        let link = Impaired::new(link, transmit, receive)
            .map_err(|error| Error::option(format!("impairment: {error}")))?;
        Ok(Box::new(link))
    }
}

/// Starts the trace of each queue.
pub(crate) fn start_traces<'a, C: NodeClient + 'static>(
    traces: Vec<OutputFile>,
    nodes: impl Iterator<Item = &'a Node<C>>,
) -> Result<(), Error> {
    for (output, node) in traces.into_iter().zip(nodes) {
        let name = output.name().to_owned();
        node.with_engine(|engine, _| engine.start_trace(Box::new(buffered(output))))
            .map_err(|error| Error::operation(format!("{name}: {error}")))?;
    }
    Ok(())
}

fn buffered(output: OutputFile) -> BufWriter<OutputFile> {
    BufWriter::with_capacity(CAPTURE_BUFFER_BYTES, output)
}

fn start_failure(error: io::Error) -> Error {
    Error::io("start the node", &error)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Cause;

    // A launcher may open neither after the start of its program.
    #[test]
    fn link_of_a_reset_opens_no_file_or_socket() {
        let options = NodeOptions {
            pcap: Some("a".into()),
            tcp_trace: Some("b".into()),
            tx_page_recycling: ReclaimMode::On,
            ..NodeOptions::default()
        };
        let expected =
            NodeOptions { tx_page_recycling: ReclaimMode::Off, ..NodeOptions::default() };
        assert_eq!(options.without_observers(), expected);
    }

    #[test]
    fn one_node_needs_one_queue() {
        let options = NodeOptions { queues: 2, ..NodeOptions::default() };
        let error = options.open_one_ndk(AdapterConfig::default()).map(drop).unwrap_err();
        assert_eq!(error.cause(), Cause::Option);
        assert!(error.message().contains("queues: 2"), "{error}");
    }
}
