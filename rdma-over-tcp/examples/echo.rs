//! A hundred connections to an echo server, as tasks of one thread:
//! `cargo run -p rdma-over-tcp --example echo`.

use std::{error::Error, net::SocketAddr};

use futures::{executor::LocalPool, future::try_join_all, task::LocalSpawnExt};
use rdma_over_tcp::ndk::{
    Adapter, AdapterConfig, Data, MrFlags, NdkResultEx, OpFlags, Pair, Qp, QpLimits, ReadLimit,
    RegisteredBuffer, Sge,
    asynchronous::{Completions, Connection, Incoming},
};

const CLIENTS: u32 = 100;
type Outcome<T> = Result<T, Box<dyn Error>>;

/// Queue pair with a buffer, and a receive posted into it.
struct End {
    completions: Completions,
    qp: Qp,
    buffer: RegisteredBuffer,
    sge: Sge,
}

impl End {
    fn new(adapter: &Adapter) -> Outcome<Self> {
        let (completions, pd) = (Completions::create(adapter, 16)?, adapter.create_pd()?);
        let qp = pd.create_qp(completions.cq(), completions.cq(), 0, QpLimits::default())?;
        let (buffer, mr) = (adapter.allocate(64)?, pd.create_mr(false)?);
        mr.register(&buffer, 0, 64, MrFlags::ALLOW_LOCAL_WRITE)?;
        let sge = Sge { address: buffer.address(), length: 64, token: mr.local_token() };
        qp.receive(0, &[sge])?;
        Ok(Self { completions, qp, buffer, sge })
    }

    async fn message(&self, connection: &Connection) -> Outcome<Sge> {
        let mut results = [NdkResultEx::default()];
        assert_eq!(connection.next(&self.completions, &mut results).await?, 1);
        Ok(Sge { length: results[0].bytes_transferred, ..self.sge })
    }
}

async fn serve(adapter: Adapter, mut incoming: Incoming, pool: impl LocalSpawnExt) -> Outcome<()> {
    for _ in 0..CLIENTS {
        let (connector, end) = (incoming.next().await, End::new(&adapter)?);
        let echo = async move {
            let connection =
                Connection::accept(connector, &end.qp, ReadLimit::default(), &[]).await?;
            let message = end.message(&connection).await?;
            end.qp.send(1, Data::Registered(&[message]), OpFlags::SILENT_SUCCESS)?;
            connection.disconnection().await;
            Outcome::Ok(())
        };
        pool.spawn_local(async { echo.await.expect("an echo") })?;
    }
    Ok(())
}

async fn client(adapter: &Adapter, server: SocketAddr, number: u32) -> Outcome<()> {
    let end = End::new(adapter)?;
    let connection =
        Connection::connect(adapter, &end.qp, server, ReadLimit::default(), &[]).await?;
    end.qp.send(1, Data::Inline(&[&number.to_be_bytes()]), OpFlags::SILENT_SUCCESS)?;
    let mut echo = vec![0; end.message(&connection).await?.length as usize];
    end.buffer.read_at(0, &mut echo);
    assert_eq!(echo, number.to_be_bytes());
    Ok(connection.disconnect().await?)
}

fn main() -> Outcome<()> {
    let pair = Pair::open(AdapterConfig::default())?;
    let [near, far] = &pair.adapters;
    let server = (Pair::ADDRESSES[1], 7).into();
    let mut pool = LocalPool::new();
    let incoming = pool.run_until(Incoming::listen(far, server, CLIENTS as usize))?;
    let serving = serve(far.clone(), incoming, pool.spawner());
    pool.spawner().spawn_local(async { serving.await.expect("the server") })?;
    pool.run_until(try_join_all((0..CLIENTS).map(|number| client(near, server, number))))?;
    println!("{CLIENTS} echoes");
    Ok(())
}

#[test]
fn runs() {
    main().unwrap();
}
