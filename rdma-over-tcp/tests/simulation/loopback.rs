//! Two adapters on kernel sockets over loopback, in real time: the plan's link is not used.

use std::time::{Duration, Instant};

use rdma_over_tcp::ndk::{self, Adapter, SocketsConfig};

use crate::{bench::Stage, plan::Plan};

/// Longer than the run of any plan.
const LIMIT: Duration = Duration::from_secs(120);

/// Maximum wait before the other end is run.
const TURN: Duration = Duration::from_micros(50);

pub(crate) struct Loopback {
    adapters: [Adapter; 2],
}

impl Loopback {
    pub(crate) fn new(plan: &Plan) -> Self {
        let open = |node: usize| {
            ndk::open_sockets(SocketsConfig::default(), plan.adapters[node].clone()).unwrap()
        };
        Self { adapters: [0, 1].map(open) }
    }
}

impl Stage for Loopback {
    fn is_lockstep(&self) -> bool {
        false
    }

    fn adapters(&self) -> &[Adapter; 2] {
        &self.adapters
    }

    fn run(&mut self, done: &mut dyn FnMut() -> bool) -> Result<(), String> {
        let began = Instant::now();
        // The consumers of both ends are one thread.
        while !done() {
            for adapter in &self.adapters {
                // Usually it ends by its limit.
                let _ = adapter.wait_until(Some(TURN), || None::<()>);
            }
            if began.elapsed() > LIMIT {
                return Err(format!("not done within {LIMIT:?}"));
            }
        }
        Ok(())
    }

    fn run_until_empty(&mut self) -> Result<(), String> {
        for adapter in &self.adapters {
            adapter.linger(LIMIT).map_err(|error| error.to_string())?;
        }
        Ok(())
    }

    fn describe(&self) -> String {
        let rows = self.adapters.each_ref().map(|adapter| adapter.list(LIMIT));
        let counters = self.adapters.each_ref().map(Adapter::counters);
        format!("{rows:#?}\n{counters:#?}")
    }

    fn assert_connections(&self, _count: u64) {
        // The connections are the kernel's.
    }
}
