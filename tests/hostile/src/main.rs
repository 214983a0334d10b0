//! The server for hostile peers as a command: `hostile-server [--kernel | node options] --port N`. It ends at the end
//! of its standard input.

use std::{
    io::{Read as _, stdin},
    net::{Ipv6Addr, SocketAddr},
    process::ExitCode,
    thread,
};

use clap::Parser;
use flue_adapter::{AdapterOptions, NodeOptions, TransportOptions};
use flue_hostile::server::{Server, adapter_config};
use rdma_over_tcp::ndk::Adapter;

#[derive(Parser)]
struct Arguments {
    /// Kernel sockets instead of a node on a TAP
    #[arg(long)]
    kernel: bool,
    #[command(flatten)]
    node: NodeOptions,
    /// Port to listen on
    #[arg(long, default_value_t = 7000)]
    port: u16,
}

fn open(arguments: &Arguments) -> Result<Adapter, flue_adapter::Error> {
    let transport = match arguments.kernel {
        true => TransportOptions::default(),
        false => TransportOptions::Node(Box::new(arguments.node.clone())),
    };
    let options = AdapterOptions { transport, ..AdapterOptions::default() };
    Ok(options.open(adapter_config())?.adapters.swap_remove(0))
}

fn run(arguments: &Arguments) -> Result<(), Box<dyn std::error::Error>> {
    let adapter = open(arguments)?;
    // In both families.
    let local = SocketAddr::from((Ipv6Addr::UNSPECIFIED, arguments.port));
    let server = Server::listen(adapter, local)?;
    let stop = server.stopper();
    thread::spawn(move || {
        let mut rest = [0; 64];
        // Nothing is read: it only matters when the other end is closed.
        while stdin().read(&mut rest).is_ok_and(|count| count > 0) {}
        stop();
    });
    println!("listening: {local}");
    server.run();
    Ok(())
}

fn main() -> ExitCode {
    match run(&Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("hostile-server: {error}");
            ExitCode::FAILURE
        }
    }
}
