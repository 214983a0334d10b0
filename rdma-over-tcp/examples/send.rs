//! A message between two adapters in one process: `cargo run -p rdma-over-tcp --example send`.

use std::{error::Error, net::SocketAddr, thread};

use rdma_over_tcp::ndk::{
    AdapterConfig, Data, MrFlags, NdkResultEx, OpFlags, Pair, QpLimits, ReadLimit, Sge,
    blocking::{Connection, Incoming},
};

type Outcome = Result<(), Box<dyn Error + Send + Sync>>;

fn main() -> Outcome {
    let Pair { adapters: [mut near, mut far], .. } = Pair::open(AdapterConfig::default())?;
    let server = SocketAddr::from((Pair::ADDRESSES[1], 7174));
    let mut incoming = Incoming::listen(&mut far, server, 1)?;

    let passive = thread::spawn(move || -> Outcome {
        let (pd, cq) = (far.create_pd()?, far.create_cq(16, |_| {})?);
        let qp = pd.create_qp(&cq, &cq, 0, QpLimits::default())?;
        // Receives into registered memory. The receive is posted before the connection exists.
        let (buffer, mr) = (far.allocate(64)?, pd.create_mr(false)?);
        mr.register(&buffer, 0, 64, MrFlags::ALLOW_LOCAL_WRITE)?;
        qp.receive(1, &[Sge { address: buffer.address(), length: 64, token: mr.local_token() }])?;
        let connector = incoming.next(&mut far)?;
        let connection = Connection::accept(&mut far, connector, &qp, ReadLimit::default(), &[])?;
        let mut results = [NdkResultEx::default()];
        connection.poll(&mut far, &cq, &mut results)?;
        let mut message = vec![0; results[0].bytes_transferred as usize];
        buffer.read_at(0, &mut message);
        println!("{}: {}", results[0].status, String::from_utf8_lossy(&message));
        assert_eq!(message, b"hello");
        Ok(connection.disconnect(&mut far)?)
    });

    let (pd, cq) = (near.create_pd()?, near.create_cq(16, |_| {})?);
    let qp = pd.create_qp(&cq, &cq, 0, QpLimits::default())?;
    let connection = Connection::connect(&mut near, &qp, server, ReadLimit::default(), &[])?;
    qp.send(1, Data::Inline(&[b"hello"]), OpFlags::empty())?;
    passive.join().expect("the passive side panics")?;
    Ok(connection.disconnect(&mut near)?)
}

#[test]
fn runs() {
    main().unwrap();
}
