//! Pauses of a node's target, changes of settings and queries, at random times.

use host_stack::node::{Core, Cores};
use offload_engine::{state::TcpCached, time::Instant};
use oorandom::Rand64;

use crate::{
    client::Walker,
    incidents::{CoverageEvent, Incidents},
    plan::{Plan, pick},
};

/// Maximum number of changes of each kind at one node in one run.
const CHANGES_MAX: u64 = 10;

/// Injector of pauses, resumes and setting changes at one node.
pub(crate) struct FaultInjector {
    rng: Rand64,
    changes: u64,
    has_new_hop: bool,
}

impl FaultInjector {
    pub(crate) fn new(seed: u64, node: usize) -> Self {
        let rng = Rand64::new((u128::from(seed) ^ 0x3edd << 64) + (node as u128));
        Self { rng, changes: 0, has_new_hop: false }
    }

    pub(crate) fn act(&mut self, cores: &mut Cores, plan: &Plan, node: usize, now: Instant) {
        let &Incidents { adapter, settings, .. } = &plan.incidents;
        if adapter && plan.walks(node) {
            // Each target is paused separately.
            for core in &mut cores.shards {
                self.adapter(core, plan, node);
            }
        }
        if let (0, false, Some((at, _))) = (node, self.has_new_hop, plan.incidents.new_hop)
            && at <= now
        {
            self.has_new_hop = true;
            let second = plan.gateways().expect("two gateways")[1];
            cores.host.set_gateways(vec![second]).expect("reachable gateway");
            cores.shards[0].clients.first_mut::<Walker>().seen.note(CoverageEvent::NewHop);
        }
        if settings && self.rng.rand_range(0..50) == 0 && self.changes < CHANGES_MAX {
            self.changes += 1;
            self.settings(cores, now);
        }
    }

    fn adapter(&mut self, core: &mut Core, plan: &Plan, node: usize) {
        let seen = &mut core.clients.first_mut::<Walker>().seen;
        if core.engine.is_paused() {
            if self.rng.rand_range(0..20) == 0 {
                core.engine.resume(plan.capabilities(node));
                seen.note(CoverageEvent::Resumed);
            }
        } else if self.changes < CHANGES_MAX && self.rng.rand_range(0..100) == 0 {
            self.changes += 1;
            if self.rng.rand_range(0..2) == 0 {
                core.engine.pause();
                seen.note(CoverageEvent::Paused);
            } else {
                core.engine.upload_all();
                seen.note(CoverageEvent::UploadAll);
            }
        }
    }

    fn settings(&mut self, cores: &mut Cores, now: Instant) {
        let flag = |rng: &mut Rand64| rng.rand_range(0..2) == 0;
        let tcp = TcpCached {
            nagling_enabled: flag(&mut self.rng),
            keep_alive_enabled: flag(&mut self.rng),
            // Eleven of these are longer than any temporary outage.
            ka_timeout: pick(&mut self.rng, &[0, 1_000, 5_000]),
            ka_interval: 5_000,
            max_rt: pick(&mut self.rng, &[Some(0), Some(200_000)]),
            ..TcpCached::default()
        };
        cores.host.set_tcp(tcp).expect("valid settings");
        for core in &mut cores.shards {
            let all = core.engine.connections().list(now).map(|(handle, ..)| handle);
            for handle in all.collect::<Vec<_>>() {
                let Some(io) = core.engine.connections().get(now, handle) else { continue };
                let (queried, info) = (io.query().delegated, io.info());
                assert_eq!(queried.state, info.phase);
                assert!(!queried.snd_una.is_after(queried.snd_max), "{queried:?}");
                core.clients.first_mut::<Walker>().seen.note(CoverageEvent::Queried);
            }
        }
    }
}
