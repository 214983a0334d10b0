//! The end of a command's connections, on a node or on kernel sockets: failures of its calls in the words of Unix, and
//! the warning of a TAP that no peer can reach.
//!
//! NDK statuses are logged with `-v` only.

use std::{
    fmt,
    net::{IpAddr, SocketAddr},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use clap::Args;
use flue_adapter::NodeOptions;
use host_stack::socket::HostError;
use rdma_over_tcp::{
    ndk::{CallError, ConnectCause, NtStatus},
    rnic::ConnectError,
};

use crate::{failure::Failure, net::Netlink, report::Console};

/// Time limit of the connects of a command.
#[derive(Args, Clone, Copy, Debug)]
pub struct ConnectOptions {
    /// Limit the time of a connect, seconds: 1..=600
    #[arg(short = 'w', long, value_name = "SECONDS", default_value_t = 10,
          value_parser = clap::value_parser!(u16).range(1..=600))]
    pub timeout: u16,
}

impl ConnectOptions {
    /// Returns the time limit.
    pub fn limit(&self) -> Duration {
        Duration::from_secs(self.timeout.into())
    }
}

/// The end of a command's connections.
#[derive(Clone, Debug, Default)]
pub struct Station {
    /// Options of the node; `None`: kernel sockets.
    node: Option<NodeOptions>,
    /// Opened before the process drops the right to; `None`: kernel sockets, or not available.
    netlink: Option<Arc<Mutex<Netlink>>>,
    /// Time limit of a connect.
    limit: Duration,
}

impl Station {
    /// Creates a station on `node`, or on kernel sockets, whose connects have a time limit.
    pub fn new(node: Option<&NodeOptions>, limit: Duration) -> Self {
        let netlink = node.and_then(|_| Netlink::open().ok());
        let netlink = netlink.map(|netlink| Arc::new(Mutex::new(netlink)));
        Self { node: node.cloned(), netlink, limit }
    }

    /// Returns the time limit of a connect.
    pub const fn limit(&self) -> Duration {
        self.limit
    }

    /// Prints [`Station::warning`].
    pub fn warn(&self, console: &mut Console<'_>) {
        self.warning().into_iter().for_each(|warning| console.remark(warning));
    }

    /// Returns a warning if no peer can reach the node: its TAP is open, but connected to nothing.
    pub fn warning(&self) -> Option<String> {
        let isolation = self.isolation()?;
        Some(format!("warning: {isolation}: no peer can reach this node\n  hint: {REMEDY}"))
    }

    /// Returns the reason why no frame leaves the TAP of the node, if that is so.
    fn isolation(&self) -> Option<String> {
        let (node, netlink) = (self.node.as_ref()?, self.netlink.as_ref()?);
        let mut netlink = netlink.lock().unwrap_or_else(PoisonError::into_inner);
        // Without an answer of the kernel, no warning.
        let is_isolated = node.is_isolated(&mut netlink).unwrap_or(false);
        is_isolated.then(|| format!("TAP {} has neither --bridge nor --host-addr", node.tap))
    }

    /// Prints the address of a connect that begins, on a terminal.
    pub fn connecting(&self, remote: SocketAddr, console: &mut Console<'_>) {
        if rustix::termios::isatty(std::io::stderr()) {
            console.remark(format_args!("connecting to {remote}..."));
        }
    }

    /// Returns the text of a local address: an unspecified address of a node stands for those of the node.
    pub fn shown(&self, local: SocketAddr) -> String {
        let Some(node) = self.node.as_ref().filter(|_| local.ip().is_unspecified()) else {
            return local.to_string();
        };
        let own = node.addresses.iter().map(|prefix| prefix.address());
        let served = own.filter(|own| own.is_ipv4() || local.is_ipv6());
        let shown = served.map(|ip: IpAddr| SocketAddr::new(ip, local.port()).to_string());
        shown.collect::<Vec<_>>().join(", ")
    }

    /// Returns the failure of a call.
    pub fn failure(&self, error: &CallError) -> Failure {
        let CallError { call, status, cause } = error;
        tracing::debug!(%call, %status, "call failed");
        match cause {
            Some(ConnectCause::Tcp(ConnectError::HostUnreachable)) => self.no_next_hop(call),
            Some(ConnectCause::Tcp(error)) => self.explained(call, *status, &error),
            Some(cause) => self.explained(call, *status, cause),
            None => self.explained(call, *status, &Words(*status)),
        }
    }

    /// Returns the failure of a call that has a status only.
    pub fn status(&self, call: &str, status: NtStatus) -> Failure {
        self.failure(&CallError { call: call.to_owned(), status, cause: None })
    }

    /// Returns the failure of a call of a byte stream.
    pub fn stream(&self, call: &str, error: HostError) -> Failure {
        match error {
            HostError::HostUnreachable => self.no_next_hop(call),
            HostError::AddressInUse => self.status(call, NtStatus::SHARING_VIOLATION),
            HostError::AddressNotAvailable => self.status(call, NtStatus::INVALID_ADDRESS),
            HostError::TimedOut => {
                let seconds = self.limit.as_secs_f64();
                Failure::work(format!("{call}: no reply to SYN in {seconds} s"))
            }
            error => {
                let text = error.to_string();
                let text = text.trim_start_matches("TCP: ").trim_start_matches("IP: ");
                Failure::work(format!("{call}: {text}"))
            }
        }
    }

    fn explained(&self, call: &str, status: NtStatus, why: &dyn fmt::Display) -> Failure {
        let failure = Failure::work(format!("{call}: {why}"));
        match (status, &self.node) {
            (NtStatus::SHARING_VIOLATION, _) => {
                failure.with_hint("stop the program that listens there, or use another port: -p")
            }
            (NtStatus::INVALID_ADDRESS, Some(node)) => {
                let own = node.addresses.iter().map(|prefix| prefix.address().to_string());
                let own = own.collect::<Vec<_>>().join(", ");
                failure.with_hint(format!("--addr of this node: {own}"))
            }
            (NtStatus::INVALID_ADDRESS, None) => {
                failure.with_hint("\"ip -br addr\" lists the addresses of this machine")
            }
            _ => failure,
        }
    }

    fn no_next_hop(&self, call: &str) -> Failure {
        let seconds = self.limit.as_secs_f64();
        let text = format!("{call}: no ARP or ND reply from the next hop in {seconds} s");
        match self.isolation() {
            _ if self.node.is_none() => Failure::work(format!("{call}: no route to host")),
            Some(isolation) => Failure::work(format!("{text}: {isolation}")).with_hint(REMEDY),
            None => Failure::work(text).with_hint("check the address, and that its node runs"),
        }
    }
}

/// Remedies for a TAP that is connected to nothing.
const REMEDY: &str = "--host-addr IP/PREFIX connects this machine, --bridge BRIDGE other nodes; \"flue up\" starts \
                      connected nodes";

/// Text of a status.
struct Words(NtStatus);

impl fmt::Display for Words {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(status) = *self;
        let words = match status {
            NtStatus::SHARING_VIOLATION => "address already in use",
            NtStatus::INVALID_ADDRESS => "address not available",
            NtStatus::ADDRESS_ALREADY_EXISTS => "connection already exists",
            NtStatus::TOO_MANY_ADDRESSES => "no free port",
            NtStatus::IO_TIMEOUT => "no response from the peer",
            NtStatus::CANCELLED => "request flushed",
            NtStatus::INSUFFICIENT_RESOURCES => "out of resources",
            NtStatus::INVALID_PARAMETER => "invalid argument",
            NtStatus::REMOTE_RESOURCES => "error at the peer",
            NtStatus::ACCESS_VIOLATION => "access to memory denied",
            NtStatus::BUFFER_OVERFLOW => {
                "message longer than the receive, or completion queue overrun"
            }
            NtStatus::IMPLEMENTATION_LIMIT => "memory region too large",
            _ => {
                let name = status.name().map(|name| name.to_lowercase().replace('_', " "));
                return f.write_str(&name.unwrap_or_else(|| status.to_string()));
            }
        };
        f.write_str(words)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node() -> Station {
        let addresses = ["10.77.0.2/24", "fd00::2/64"].map(|text| text.parse().unwrap()).into();
        let node = NodeOptions { tap: "no-such-tap".into(), addresses, ..NodeOptions::default() };
        Station::new(Some(&node), Duration::from_secs(3))
    }

    #[test]
    fn statuses_are_shown_in_unix_words() {
        let kernel = Station::default();
        for status in NtStatus::ALL {
            for station in [&kernel, &node()] {
                let text = station.status("listen on 0.0.0.0:1", *status).to_string();
                let is_plain =
                    !text.contains("STATUS") && !text.contains("0x") && !text.contains("NDK");
                assert!(is_plain && text.starts_with("listen on 0.0.0.0:1: "), "{text}");
            }
        }
        let used = kernel.status("listen on 0.0.0.0:1", NtStatus::SHARING_VIOLATION).to_string();
        assert!(used.contains("address already in use") && used.contains("-p"), "{used}");
        let foreign = node().status("listen on 10.9.0.1:1", NtStatus::INVALID_ADDRESS).to_string();
        assert!(foreign.contains("not available") && foreign.contains("10.77.0.2"), "{foreign}");
    }

    #[test]
    fn cause_of_a_connect_is_shown_with_its_layer() {
        let call = |cause| CallError {
            call: "connect to 10.77.0.9:1".into(),
            status: NtStatus::HOST_UNREACHABLE,
            cause: Some(cause),
        };
        let unreachable = call(ConnectCause::Tcp(ConnectError::HostUnreachable));
        let text = node().failure(&unreachable).message;
        assert_eq!(text, "connect to 10.77.0.9:1: no ARP or ND reply from the next hop in 3 s");
        assert_eq!(
            node().stream("connect to 10.77.0.9:1", HostError::HostUnreachable).message,
            text
        );
        let text = Station::default().failure(&unreachable).message;
        assert_eq!(text, "connect to 10.77.0.9:1: no route to host");
        let refused = call(ConnectCause::Tcp(ConnectError::Refused));
        let text = node().failure(&refused).message;
        assert_eq!(text, "connect to 10.77.0.9:1: connection refused by the peer");
        let text = node().stream("connect to 10.77.0.9:1", HostError::Refused).message;
        assert_eq!(text, "connect to 10.77.0.9:1: connection refused");
        let silent = call(ConnectCause::NoReply(Duration::from_secs(1)));
        assert!(node().failure(&silent).message.contains(": MPA: no Reply"));
    }

    #[test]
    fn listener_on_all_addresses_is_shown_with_those_of_the_node() {
        let shown = |text: &str| node().shown(text.parse().unwrap());
        assert_eq!(shown("0.0.0.0:80"), "10.77.0.2:80");
        assert_eq!(shown("[::]:80"), "10.77.0.2:80, [fd00::2]:80");
        assert_eq!(shown("10.77.0.2:80"), "10.77.0.2:80");
        assert_eq!(Station::default().shown("0.0.0.0:80".parse().unwrap()), "0.0.0.0:80");
    }
}
