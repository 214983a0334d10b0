//! The server for hostile peers as a command: `hostile-server [node options] --port N`. It ends at the end of its
//! standard input.

use std::{
    io::{Read as _, stdin},
    net::SocketAddr,
    process::ExitCode,
    thread,
};

use clap::Parser;
use flue_hostile::server::{Server, adapter_config};
use flue_node::NodeOptions;

#[derive(Parser)]
struct Arguments {
    #[command(flatten)]
    node: NodeOptions,
    /// Port to listen on
    #[arg(long, default_value_t = 7000)]
    port: u16,
}

fn run(arguments: &Arguments) -> Result<(), Box<dyn std::error::Error>> {
    let mut opened = arguments.node.open_ndk(adapter_config())?;
    let (_node, adapter) = opened.pop().ok_or("a TAP without a queue")?;
    let local = SocketAddr::from(([0, 0, 0, 0], arguments.port));
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
