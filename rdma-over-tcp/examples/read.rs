//! RDMA Read of another adapter's memory, on kernel sockets:
//! `cargo run -p rdma-over-tcp --example read`.

use std::{error::Error, net::SocketAddr, thread};

use rdma_over_tcp::ndk::{
    AdapterConfig, MrFlags, NdkResultEx, OpFlags, QpLimits, ReadLimit, Sge, SocketsConfig,
    blocking::{Connection, Incoming},
    open_sockets,
};

const TEXT: &[u8] = b"read by the peer, without a message from this side";

type Outcome = Result<(), Box<dyn Error + Send + Sync>>;

fn main() -> Outcome {
    let open = |seed| {
        open_sockets(SocketsConfig::default(), AdapterConfig { seed, ..AdapterConfig::default() })
    };
    let (mut near, mut far) = (open(1)?, open(2)?);
    let any = SocketAddr::from(([127, 0, 0, 1], 0));
    let mut incoming = Incoming::listen(&mut far, any, 1)?;
    let server = incoming.listener().local_address().expect("it listens");
    let reads = ReadLimit { inbound: 8, outbound: 8 };

    let passive = thread::spawn(move || -> Outcome {
        let (pd, cq) = (far.create_pd()?, far.create_cq(16, |_| {})?);
        let qp = pd.create_qp(&cq, &cq, 0, QpLimits::default())?;
        let (buffer, mr) = (far.allocate(TEXT.len())?, pd.create_mr(false)?);
        buffer.write_at(0, TEXT);
        mr.register(&buffer, 0, TEXT.len(), MrFlags::ALLOW_REMOTE_READ)?;
        // The private data of the reply carries the token and the address to the peer.
        let mut offer = mr.remote_token().to_be_bytes().to_vec();
        offer.extend(buffer.address().to_be_bytes());
        let connector = incoming.next(&mut far)?;
        let connection = Connection::accept(&mut far, connector, &qp, reads, &offer)?;
        connection.poll(&mut far, &cq, &mut [NdkResultEx::default()])?;
        Ok(())
    });

    let (pd, cq) = (near.create_pd()?, near.create_cq(16, |_| {})?);
    let qp = pd.create_qp(&cq, &cq, 0, QpLimits::default())?;
    let (buffer, mr) = (near.allocate(TEXT.len())?, pd.create_mr(false)?);
    mr.register(&buffer, 0, TEXT.len(), MrFlags::ALLOW_LOCAL_WRITE)?;
    let connection = Connection::connect(&mut near, &qp, server, reads, &[])?;
    let (token, address) = connection.private_data().split_at(4);
    let (token, address) =
        (u32::from_be_bytes(token.try_into()?), u64::from_be_bytes(address.try_into()?));
    let sink =
        Sge { address: buffer.address(), length: TEXT.len() as u32, token: mr.local_token() };
    qp.read(1, &[sink], address, token, OpFlags::empty())?;
    let mut results = [NdkResultEx::default()];
    connection.poll(&mut near, &cq, &mut results)?;
    let mut text = vec![0; TEXT.len()];
    buffer.read_at(0, &mut text);
    println!("{}: {}", results[0].status, String::from_utf8_lossy(&text));
    assert_eq!(text, TEXT);
    connection.disconnect(&mut near)?;
    passive.join().expect("the passive side panics")
}

#[test]
fn runs() {
    main().unwrap();
}
