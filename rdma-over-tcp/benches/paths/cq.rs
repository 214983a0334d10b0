//! Completions through a queue, without a connection.
//!
//! The benchmark in the parent directory times them; the instruction guard in `tests/guard` counts them.

use std::sync::{Arc, Mutex};

use host_stack::socket::SocketPort;
use offload_engine::{engine::doorbell::Doorbell, time::Instant};
use rdma_over_tcp::{
    ndk::{Adapter, AdapterConfig, AdapterCore, Cq, Driver, NdkResultEx, NtStatus, Qp, QpLimits},
    rnic::Rnic,
};

struct Locked(Mutex<AdapterCore>);

impl Driver for Locked {
    fn enter(&self, work: &mut dyn FnMut(&mut Rnic, Instant)) {
        work(self.0.lock().expect("no panic").rnic(), Instant::ZERO);
    }
}

/// A completion queue, and a queue pair whose receives fill it when they are flushed.
#[derive(Debug)]
pub(crate) struct Completions {
    cq: Cq,
    qp: Qp,
}

impl Completions {
    /// Completions of one [`Completions::push`].
    pub(crate) const COUNT: usize = 64;

    pub(crate) fn new() -> Self {
        let doorbell = Arc::new(Doorbell::new().expect("a descriptor"));
        let (port, _host) = SocketPort::pair(doorbell);
        let core = AdapterCore::new(AdapterConfig::default(), port, Box::new(|| {}));
        let adapter = Adapter::new(Arc::new(Locked(Mutex::new(core))));
        let objects = || -> Result<Self, NtStatus> {
            let cq = adapter.create_cq(Self::COUNT as u32, |_| {})?;
            let pd = adapter.create_pd()?;
            let qp = pd.create_qp(&cq, &cq, 0, QpLimits::default())?;
            Ok(Self { cq, qp })
        };
        objects().expect("a queue and a queue pair")
    }

    /// Posts receives.
    pub(crate) fn post(&self) {
        for context in 0..Self::COUNT {
            self.qp.receive(context as u64, &[]).expect("a receive");
        }
    }

    /// Completes them.
    pub(crate) fn push(&self) {
        self.qp.flush();
    }

    /// Takes their completions, 16 at a time.
    pub(crate) fn poll(&self) {
        let mut results = [NdkResultEx::default(); 16];
        for _ in 0..Self::COUNT / results.len() {
            assert_eq!(self.cq.poll_ex(&mut results), results.len());
        }
    }
}
