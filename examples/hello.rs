//! A message between the queue pairs of two adapters in one process, over a link in memory. It needs no privileges:
//! `cargo run --example hello`.
//!
//! ```text
//! STATUS_SUCCESS (0x00000000): hello
//! ```

use std::{error::Error, net::SocketAddr, thread};

use flue_rdma::{ndk::Pair, prelude::*};

type Outcome = Result<(), Box<dyn Error + Send + Sync>>;

fn main() -> Outcome {
    // Each adapter has a node of its own: a host stack, an offload engine, and a thread that runs them.
    let Pair { adapters: [mut near, mut far], .. } = Pair::open(AdapterConfig::default())?;
    let server = SocketAddr::from((Pair::ADDRESSES[1], 7174));
    let mut incoming = Incoming::listen(&mut far, server, 1)?;

    let passive = thread::spawn(move || -> Outcome {
        let (pd, cq) = (far.create_pd()?, far.create_cq(16, |_| {})?);
        let qp = pd.create_qp(&cq, &cq, 0, QpLimits::default())?;
        // A receive is into registered memory. It is posted before the connection exists, because a Send without a
        // posted receive ends an iWARP connection.
        let (buffer, mr) = (far.allocate(64)?, pd.create_mr(false)?);
        mr.register(&buffer, 0, 64, MrFlags::ALLOW_LOCAL_WRITE)?;
        qp.receive(1, &[Sge { address: buffer.address(), length: 64, token: mr.local_token() }])?;
        let connector = incoming.next(&mut far)?;
        let connection = Connection::accept(&mut far, connector, &qp, ReadLimit::default(), &[])?;
        // Waits for a completion.
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
    // Inline data is copied, so it needs no registration.
    qp.send(1, Data::Inline(&[b"hello"]), OpFlags::empty())?;
    passive.join().expect("the passive side does not panic")?;
    Ok(connection.disconnect(&mut near)?)
}

#[test]
fn runs() {
    main().unwrap();
}
