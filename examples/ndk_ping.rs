//! Round trips of a message between two queue pairs: on kernel sockets, or on TAP nodes in the playground of `flue up`.
//!
//! `cargo run --example ndk_ping` runs both ends on loopback. On nodes, after `cargo build --example ndk_ping`:
//!
//! ```text
//! $ flue enter 1 -- target/debug/examples/ndk_ping server 10.77.1.101:7174 10.77.1.101/24 &
//! $ flue enter 2 -- target/debug/examples/ndk_ping client 10.77.1.101:7174 10.77.1.102/24
//! 1000 round trips
//! ```
//!
//! Without the last argument, the address of a TAP node, they use kernel sockets: `server 10.77.1.1:7174`.

use std::{env, error::Error, net::SocketAddr, thread};

use flue_rdma::prelude::*;

type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;
const ROUND_TRIPS: u32 = 1000;

/// Role of an end of the connection.
enum Role {
    Client(SocketAddr),
    Server(Incoming),
}

fn ping(mut adapter: Adapter, role: Role) -> Outcome<()> {
    let (pd, cq) = (adapter.create_pd()?, adapter.create_cq(16, |_status| {})?);
    let qp = pd.create_qp(&cq, &cq, 0, QpLimits::default())?;
    let (buffer, mr) = (adapter.allocate(64)?, pd.create_mr(false)?);
    mr.register(&buffer, 0, 64, MrFlags::ALLOW_LOCAL_WRITE)?;
    let sge = [Sge { address: buffer.address(), length: 64, token: mr.local_token() }];
    // Each message needs a receive that was posted before. The first is posted before the connection exists.
    qp.receive(0, &sge)?;
    // Only a failed Send has a completion, so each completion below is that of a receive.
    let send = || qp.send(1, Data::Inline(&[b"ping"]), OpFlags::SILENT_SUCCESS);
    let (is_client, reads) = (matches!(role, Role::Client(_)), ReadLimit::default());
    let connection = match role {
        Role::Client(server) => Connection::connect(&mut adapter, &qp, server, reads, &[])?,
        Role::Server(mut incoming) => {
            let connector = incoming.next(&mut adapter)?;
            Connection::accept(&mut adapter, connector, &qp, reads, &[])?
        }
    };
    if is_client {
        send()?;
    }
    for number in 1..=ROUND_TRIPS {
        let mut results = [NdkResultEx::default()];
        assert_eq!(connection.poll(&mut adapter, &cq, &mut results)?, 1, "the peer disconnected");
        assert_eq!(results[0].bytes_transferred, 4, "{}", results[0].status);
        qp.receive(0, &sge)?;
        if !is_client || number < ROUND_TRIPS {
            send()?;
        }
    }
    println!("{ROUND_TRIPS} round trips");
    Ok(connection.disconnect(&mut adapter)?)
}

fn main() -> Outcome<()> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let [role, server, tap @ ..] = &arguments[..] else { return on_loopback() };
    let server: SocketAddr = server.parse()?;
    // The node ends when it is dropped.
    let (_node, mut adapter) = match tap.first() {
        None => (None, sockets()?),
        Some(address) => {
            let addresses = vec![address.parse()?];
            let (tap, bridge) = ("ping0".into(), Some("br0".into()));
            let options = NodeOptions { tap, bridge, addresses, ..NodeOptions::default() };
            let (node, adapter) = options.open_one_ndk(AdapterConfig::default())?;
            (Some(node), adapter)
        }
    };
    let role = match &**role {
        "client" => Role::Client(server),
        _ => Role::Server(Incoming::listen(&mut adapter, server, 1)?),
    };
    ping(adapter, role)
}

fn sockets() -> Outcome<Adapter> {
    Ok(open_sockets(SocketsConfig::default(), AdapterConfig::default())?)
}

#[cfg_attr(test, test)]
fn on_loopback() -> Outcome<()> {
    let mut server = sockets()?;
    let incoming = Incoming::listen(&mut server, ([127, 0, 0, 1], 0).into(), 1)?;
    let address = incoming.listener().local_address().ok_or("no address")?;
    let serving = thread::spawn(move || ping(server, Role::Server(incoming)));
    ping(sockets()?, Role::Client(address))?;
    serving.join().expect("the server does not panic")
}
