//! One measuring thread, and nodes of several queues.
//!
//! The measuring thread looks at each queue in turn. With manual progress a look runs the queue's loop, so that
//! thread runs all of them, and does not sleep. With automatic progress each queue has its engine's thread; to sleep
//! until something comes on any of them, a relay for each waits at its node, and wakes the measuring thread when
//! something has changed there.

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

/// The node on so many queues.
///
/// # Errors
/// [`Failure::usage`]: what cannot be had with several.
pub(super) fn resolve(
    node: &NodeArgs,
    options: QueueOptions,
    waiting: Waiting,
) -> Result<NodeSetup, Failure> {
    let QueueOptions { queues } = options;
    if node.node.progress == Progress::Automatic || queues == 1 {
        return node.resolve_on(options);
    }
    if waiting == Waiting::Block {
        return Err(Failure::usage(format!(
            "--queues {queues} --progress manual --wait block: one thread runs all queues, and cannot sleep on more \
             than one; --wait spin, or --progress auto"
        )));
    }
    node.resolve_on_any(queues)
}

/// Wakes the thread that has made it, by [`thread::park`]'s token, whenever something has changed at a node.
pub(super) struct Relays {
    is_over: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
    /// Has them look whether it is over.
    wake: Box<dyn Fn()>,
}

impl Relays {
    /// One for each node, where there are several with threads of their own; else none.
    ///
    /// # Errors
    /// No thread can be had.
    pub(super) fn start<C: NodeClient + Send + 'static>(
        nodes: &[Node<C>],
    ) -> Result<Self, Failure> {
        let all = nodes.to_vec();
        let wake = Box::new(move || all.iter().for_each(Node::wake));
        let mut relays = Self { is_over: Arc::default(), threads: Vec::new(), wake };
        let are_needed = nodes.len() > 1 && nodes[0].progress() == Progress::Automatic;
        for (queue, node) in nodes.iter().enumerate().filter(|_| are_needed) {
            let (node, is_over) = (node.clone(), relays.is_over.clone());
            let measuring = thread::current();
            let relay = move || {
                // It ends too when the node has failed, which the measuring thread is to see.
                let _ = node.wait_until(None, || {
                    measuring.unpark();
                    is_over.load(Ordering::Relaxed).then_some(())
                });
                measuring.unpark();
            };
            let name = format!("flue-relay-{queue}");
            let thread = thread::Builder::new().name(name).spawn(relay);
            let failed = |error| Failure::work(format!("a thread for queue {queue}: {error}"));
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
            // It waits and wakes, and cannot panic.
            let _ = thread.join();
        }
    }
}
