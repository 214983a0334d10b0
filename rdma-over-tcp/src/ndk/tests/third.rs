//! A third transport for the calls of every interface: the pipe, run by its caller.

use std::{
    io::ErrorKind,
    sync::{Arc, Mutex},
    thread,
    time::{Duration, Instant as Clock},
};

use offload_engine::runtime::WaitError;
use offload_engine::{chimney::client::OffloadHandle, time::Instant};

use super::bench::{Bench, TestAccess};
use crate::{
    adapter::Stack,
    ndk::{
        Adapter, Data, DisconnectReason, Driver, NdkResultEx, NtStatus, OpFlags, QpLimits,
        ReadLimit,
        blocking::{Connection, Incoming},
    },
    rnic::{Rnic, Urgency},
};

const LIMIT: Duration = Duration::from_secs(60);
const LIMITS: ReadLimit = ReadLimit { inbound: 1, outbound: 1 };

/// Driver of one end of the pipe.
struct Pipe {
    core: Arc<TestAccess>,
    bench: Arc<Mutex<Bench>>,
}

impl Driver for Pipe {
    fn enter(&self, work: &mut dyn FnMut(&mut Rnic, Instant)) {
        self.core.enter(work);
    }

    fn enter_for_post(&self, work: &mut dyn FnMut(&mut Rnic) -> Urgency) {
        self.core.enter_for_post(work);
    }

    fn progress(&self) -> bool {
        self.bench.lock().unwrap().step()
    }

    fn wait_while(
        &self,
        timeout: Option<Duration>,
        is_over: &mut dyn FnMut() -> bool,
    ) -> Result<(), WaitError> {
        let deadline = Clock::now() + timeout.unwrap_or(LIMIT);
        while !is_over() {
            if Clock::now() >= deadline {
                return Err(WaitError::TimedOut);
            }
            if !self.progress() {
                thread::yield_now();
            }
        }
        Ok(())
    }
}

// All of these work with the methods above and the defaults: waiting calls, posts, connection ends, listings,
// migrations, and the loss of the device.
#[test]
fn transport_with_four_methods_serves_all_calls() {
    let bench = Arc::new(Mutex::new(Bench::new(1)));
    let (cores, server) = {
        let bench = bench.lock().unwrap();
        (bench.nodes.each_ref().map(|node| node.access().clone()), bench.server)
    };
    let [near, far] = cores.map(|core| Adapter::new(Arc::new(Pipe { core, bench: bench.clone() })));
    let objects = |adapter: &Adapter| {
        let (pd, cq) = (adapter.create_pd().unwrap(), adapter.create_cq(16, |_| {}).unwrap());
        let qp = pd.create_qp(&cq, &cq, 7, QpLimits::default()).unwrap();
        (cq, qp)
    };
    let ((near_cq, near_qp), (far_cq, far_qp)) = (objects(&near), objects(&far));
    far_qp.receive(1, &[]).unwrap();
    let mut incoming = Incoming::listen(&mut far.clone(), server, 1).unwrap();
    let (active, passive) = thread::scope(|scope| {
        let passive = scope.spawn(|| {
            let waiter = &mut far.clone();
            let connector = incoming.next(waiter).unwrap();
            Connection::accept(waiter, connector, &far_qp, LIMITS, &[]).unwrap()
        });
        let active = Connection::connect(&mut near.clone(), &near_qp, server, LIMITS, &[]).unwrap();
        (active, passive.join().unwrap())
    });
    near_qp.send(2, Data::Inline(&[]), OpFlags::empty()).unwrap();
    for (adapter, cq) in [(&near, &near_cq), (&far, &far_cq)] {
        let mut results = [NdkResultEx::default()];
        let polled =
            adapter.wait_until(Some(LIMIT), || (cq.poll_ex(&mut results) == 1).then_some(()));
        assert_eq!(polled, Ok(()));
        assert_eq!(results[0].status, NtStatus::SUCCESS);
    }
    assert_eq!(near.list(LIMIT), Ok(std::vec![]));
    assert_eq!(near.snapshots(&[OffloadHandle(1)]), [None]);
    let moved = near.migrate(OffloadHandle(1), Stack::Target);
    assert_eq!(moved.unwrap_err().kind(), ErrorKind::Unsupported);
    assert!(!near.is_exclusive());
    near.abandon();
    let reason = far.wait_until(Some(LIMIT), || active.disconnection().reason());
    assert_eq!(reason, Ok(DisconnectReason::DEVICE_LOST.0));
    drop((passive, incoming));
}
