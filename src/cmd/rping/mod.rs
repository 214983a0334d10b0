//! `flue rping`: rdma-core's rping, compatible on the wire, over NDK queue pairs.
//!
//! Each ping transfers `-S` bytes in both directions. The server reads them from the client's source by RDMA Read and
//! writes them to the client's sink by RDMA Write; the client compares. [`wire`] is the message, [`pattern`] the text,
//! [`steps`] the state machines.

pub mod pattern;
mod run;
pub mod steps;
pub mod wire;

use std::net::SocketAddr;

use clap::Args;

use self::pattern::{SIZE_DEFAULT_BYTES, SIZE_MAX_BYTES, SIZE_MIN_BYTES};
use crate::{
    adapter::TransportArgs,
    failure::Failure,
    host::HostAddress,
    options::{MpaOptions, NodeArgs, OutputArgs, QueueOptions},
    report::Console,
    sandbox::SandboxArgs,
    station::ConnectOptions,
};

/// Default port: that of rping.
pub const PORT_DEFAULT: u16 = 7174;

/// Ping by Send, RDMA Read and RDMA Write, compatible with rdma-core's rping
///
/// The server reads the data that the client offers, and writes it back; the client compares it. Options and
/// messages are those of rdma-core's rping, so either side may be a Linux machine with siw or an iWARP adapter. Without
/// -C the client pings until it is interrupted.
///
/// The buffer of the server has the size of its own -S. It rejects a client with a larger size.
#[derive(Args, Clone, Debug)]
#[command(
    disable_version_flag = true,
    group = clap::ArgGroup::new("role").required(true).args(["server", "client"]),
    after_long_help = "Examples:
  # two nodes on a bridge: server, then client
  ip link add br0 type bridge && ip link set br0 up
  flue rping -s --bridge br0 &
  flue rping -c -a 10.77.0.2 -C 10 -v --bridge br0 --tap t1 --addr 10.77.0.3/24

  # kernel sockets
  flue rping -s --transport kernel &
  flue rping -c -a 127.0.0.1 -C 10 -v --transport kernel"
)]
pub struct RpingArgs {
    /// Be the server
    #[arg(short, long)]
    pub server: bool,

    /// Be the client; requires -a
    #[arg(short, long, requires = "addr_to")]
    pub client: bool,

    /// Connect to, or listen on, this address [server default: all]
    #[arg(short = 'a', id = "addr_to", value_name = "IP[%INTERFACE]")]
    pub address: Option<HostAddress>,

    /// Port of the server: 1..=65535
    #[arg(short, long, value_name = "PORT", default_value_t = PORT_DEFAULT,
          value_parser = clap::value_parser!(u16).range(1..))]
    pub port: u16,

    /// Time limit of its connect.
    #[command(flatten)]
    pub connect: ConnectOptions,

    /// Number of pings; 0: unlimited
    #[arg(short = 'C', long, value_name = "COUNT", default_value_t = 0)]
    pub count: u32,

    /// Size of a ping and of the server buffer, bytes: 26..=65535
    #[arg(short = 'S', long, value_name = "BYTES", default_value_t = SIZE_DEFAULT_BYTES,
          value_parser = clap::value_parser!(u32)
              .range(i64::from(SIZE_MIN_BYTES)..=i64::from(SIZE_MAX_BYTES)))]
    pub size: u32,

    /// Print the data of each ping
    #[arg(short = 'v', long = "show")]
    pub show: bool,

    /// Compare data with the text of its ping, computed again
    ///
    /// A server then checks the data of its client, and a client the data that it sent: a peer with the rights to write
    /// may have changed it. A client compares received data with sent data in any case.
    #[arg(short = 'V', long)]
    pub validate: bool,

    /// Log events on standard error
    #[arg(long, conflicts_with = "quiet", help_heading = "Output")]
    pub verbose: bool,

    /// Output format.
    #[command(flatten)]
    pub output: OutputArgs,

    /// Transport of its connection.
    #[command(flatten)]
    pub transport: TransportArgs,

    /// Rights of the process.
    #[command(flatten)]
    pub sandbox: SandboxArgs,

    /// The queues of its TAP; the connection is the first one's.
    #[command(flatten)]
    pub queues: QueueOptions,

    /// MPA.
    #[command(flatten)]
    pub mpa: MpaOptions,

    /// The node.
    #[command(flatten)]
    pub node: NodeArgs,
}

/// Runs `flue rping`.
///
/// # Errors
/// The node or the connection could not be opened, the peer violated the protocol, or data differs.
pub fn run(args: &RpingArgs, console: &mut Console<'_>) -> Result<(), Failure> {
    run::run(args, console)
}

/// Role and address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Role {
    /// Listens on this address; an unspecified address means all addresses of the node.
    Server(SocketAddr),
    /// Connects to this address for that many pings; `None`: unlimited.
    Client(SocketAddr, Option<u32>),
}

impl RpingArgs {
    /// Returns the role selected by the options.
    ///
    /// # Errors
    /// [`Failure::usage`].
    pub fn role(&self) -> Result<Role, Failure> {
        let transport = self.transport.transport;
        match (self.client, &self.address) {
            (true, Some(address)) if address.ip.is_unspecified() || address.ip.is_multicast() => {
                Err(Failure::usage(format!("-a {address}: expected a unicast address")))
            }
            (true, Some(address)) => {
                let count = (self.count > 0).then_some(self.count);
                Ok(Role::Client(address.at(self.port, transport)?, count))
            }
            (true, None) => Err(Failure::usage("-c: no address of the server: add -a")),
            (false, Some(address)) => Ok(Role::Server(address.at(self.port, transport)?)),
            (false, None) => {
                Ok(Role::Server(SocketAddr::new(self.node.all_addresses(), self.port)))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        rping: RpingArgs,
    }

    fn parse(line: &str) -> Result<RpingArgs, String> {
        let words = std::iter::once("rping").chain(line.split_whitespace());
        Line::try_parse_from(words).map(|line| line.rping).map_err(|error| error.to_string())
    }

    #[test]
    fn options_of_rdma_core_are_accepted() {
        let client = parse("-c -a 10.77.0.1 -C 10 -S 100 -vV -p 7200").unwrap();
        assert!(client.show && client.validate);
        assert_eq!(client.size, 100);
        let to = "10.77.0.1:7200".parse().unwrap();
        assert_eq!(client.role(), Ok(Role::Client(to, Some(10))));
        let server = parse("-s").unwrap();
        assert_eq!(server.size, 64);
        assert_eq!(server.role(), Ok(Role::Server("0.0.0.0:7174".parse().unwrap())));
        let endless = parse("-ca fd77::1").unwrap();
        assert_eq!(endless.role(), Ok(Role::Client("[fd77::1]:7174".parse().unwrap(), None)));
    }

    #[test]
    fn invalid_options_are_rejected() {
        let cases = [
            ("", "<--server|--client>"),
            ("-s -c -a 10.0.0.1", "cannot be used with"),
            ("-c", "-a"),
            ("-s -S 25", "26..=65535"),
            ("-s -S 65536", "26..=65535"),
            ("-s -p 0", "1..=65535"),
        ];
        for (line, word) in cases {
            let text = parse(line).err().unwrap();
            assert!(text.contains(word), "{line}: {word:?} is not in {text}");
        }
        assert!(parse("-c -a 0.0.0.0").unwrap().role().is_err());
    }
}
