//! `flue metrics`: exporter for Prometheus. Nodes are queried at each scrape.
//!
//! One thread serves one client at a time (`http` has the limits); `exposition` has the table of the metrics.

mod exposition;
mod http;

use std::{
    io::{self, Write},
    net::{SocketAddr, TcpListener},
    os::unix::net::UnixStream,
};

use clap::Args;
use rustix::event::{PollFd, PollFlags, poll};

use self::{
    exposition::{Scraped, text},
    http::Reply,
};
use crate::{
    cmd::ss::listing,
    control::client::{self, Nodes},
    failure::Failure,
    options::OutputArgs,
    report::Console,
    waker::Waker,
};

/// Default address. The ports that exporters of Prometheus use by convention, 9100 to 9999, are all allocated.
const LISTEN: &str = "127.0.0.1:17174";

/// Export counters of running nodes to Prometheus
///
/// http://ADDR:PORT/metrics has the counters of all nodes of the user, and of programs under "flue run". Nodes are
/// queried at each scrape. There is no authentication: keep the address local, or restrict it by a firewall.
#[derive(Args, Clone, Debug)]
#[command(after_long_help = "Examples:
  flue metrics &
  curl -s http://127.0.0.1:17174/metrics | grep retransmissions

  # one node, another port
  flue metrics --listen 127.0.0.1:17175 --node flue0 &")]
pub struct MetricsArgs {
    /// Address to listen on; port 0: a free port
    #[arg(long, value_name = "ADDR:PORT", default_value = LISTEN)]
    pub listen: SocketAddr,

    /// Query this node: socket, process id, TAP or program [default: all]
    ///
    /// By default all nodes of the user are queried.
    #[arg(long, value_name = "PATH|PID|TAP|PROGRAM")]
    pub node: Option<String>,

    /// Print errors only
    #[arg(short, long)]
    pub quiet: bool,
}

impl MetricsArgs {
    /// Returns the quietness.
    pub const fn output_args(&self) -> OutputArgs {
        OutputArgs { quiet: self.quiet, trace: false, json: false }
    }
}

/// Runs `flue metrics` until a signal stops it.
///
/// # Errors
/// The address cannot be listened on, or signals cannot be caught.
pub fn run(args: &MetricsArgs, console: &mut Console<'_>) -> Result<(), Failure> {
    let failed = |error: io::Error| Failure::work(format!("--listen {}: {error}", args.listen));
    let listener = TcpListener::bind(args.listen).map_err(failed)?;
    // A client may disconnect before it is accepted.
    listener.set_nonblocking(true).map_err(failed)?;
    let (wake, woken) = UnixStream::pair().map_err(failed)?;
    let waker = Waker::new();
    waker.set(move || {
        // A full socket wakes too.
        let _ = (&wake).write(&[0]);
    });
    waker.catch_signals()?;
    let nodes = Nodes::parse(args.node.as_deref());
    let address = listener.local_addr().map_err(failed)?;
    console.step(format_args!("listening: http://{address}/metrics"));
    loop {
        if waker.signal().is_some() {
            return Ok(());
        }
        let mut waits = [PollFd::new(&listener, PollFlags::IN), PollFd::new(&woken, PollFlags::IN)];
        match poll(&mut waits, None) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(failed(error.into())),
        }
        match listener.accept() {
            Ok((client, peer)) => {
                if let Err(error) = http::serve(&client, |path| reply(path, &nodes)) {
                    tracing::debug!(%peer, %error, "client failed");
                }
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => {
                tracing::warn!(%error, "accept failed");
                // Without free descriptors it would fail again immediately.
                let mut waits = [PollFd::new(&woken, PollFlags::IN)];
                let pause = rustix::event::Timespec { tv_sec: 0, tv_nsec: 100_000_000 };
                let _ = poll(&mut waits, Some(&pause));
            }
        }
    }
}

fn reply(path: &str, nodes: &Nodes) -> Reply {
    match path {
        "/metrics" => Reply::text(text(scrape(nodes))),
        "/" => Reply::text("Metrics of flue: /metrics\n".into()),
        _ => Reply::NOT_FOUND,
    }
}

/// Queries the nodes. A node that was requested by `--node` and has ended is an empty list.
fn scrape(nodes: &Nodes) -> Vec<Scraped> {
    let controls = client::find(nodes).map(|(controls, _)| controls).unwrap_or_default();
    let listed = listing::query_all(&controls);
    listed.into_iter().map(Scraped::new).collect()
}
