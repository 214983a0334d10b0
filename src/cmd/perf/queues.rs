//! One measuring thread with nodes of several queues.
//!
//! The measuring thread polls each queue in turn. With manual progress a poll runs the queue's loop, so this thread
//! runs all loops and does not sleep. With automatic progress each queue has an engine thread. To sleep on all queues,
//! one relay thread per queue waits on its node, and wakes the measuring thread after a change.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
};

use host_stack::node::{Node, Progress};
use offload_engine::engine::NodeClient;

use super::Waiting;
use crate::{
    failure::Failure,
    options::{NodeArgs, NodeSetup, QueueOptions},
};

/// Resolves the node options for `queues` queues.
///
/// # Errors
/// [`Failure::usage`]: an option is not supported with several queues.
pub(super) fn resolve(
    node: &NodeArgs,
    options: QueueOptions,
    waiting: Waiting,
) -> Result<NodeSetup, Failure> {
    let QueueOptions { queues } = options;
    if node.node.progress != Progress::Manual || queues == 1 {
        return node.resolve_on(options);
    }
    if waiting == Waiting::Block {
        return Err(Failure::usage(format!(
            "--queues {queues} --progress manual: not supported with --wait block, because one thread runs all \
             queues: use --wait spin or --progress auto"
        )));
    }
    node.resolve_on_any(queues)
}

/// Relay threads, which unpark the creating thread ([`thread::park`]) after any change at a node.
pub(super) struct Relays {
    is_over: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
    /// Wakes the relays to check `is_over`.
    wake: Box<dyn Fn()>,
}

impl Relays {
    /// Starts one relay per node if several nodes have engine threads; otherwise none.
    ///
    /// # Errors
    /// A thread could not be started.
    pub(super) fn start<C: NodeClient + Send + 'static>(
        nodes: &[Node<C>],
    ) -> Result<Self, Failure> {
        let all = nodes.to_vec();
        let wake = Box::new(move || all.iter().for_each(Node::wake));
        let mut relays = Self { is_over: Arc::default(), threads: Vec::new(), wake };
        let are_needed = nodes.len() > 1 && nodes[0].progress() != Progress::Manual;
        for (queue, node) in nodes.iter().enumerate().filter(|_| are_needed) {
            let (node, is_over) = (node.clone(), relays.is_over.clone());
            let measuring = thread::current();
            let relay = move || {
                // The relay also returns if the node has failed; the measuring thread must detect that.
                let _ = node.wait_until(None, || {
                    measuring.unpark();
                    is_over.load(Ordering::Relaxed).then_some(())
                });
                measuring.unpark();
            };
            let name = format!("flue-relay-{queue}");
            let thread = thread::Builder::new().name(name).spawn(relay);
            let failed = |error| Failure::work(format!("queue {queue}: start a thread: {error}"));
            relays.threads.push(thread.map_err(failed)?);
        }
        Ok(relays)
    }
}

impl Drop for Relays {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        (self.wake)();
        for thread in self.threads.drain(..) {
            // A relay only waits and wakes: it cannot panic.
            let _ = thread.join();
        }
    }
}
