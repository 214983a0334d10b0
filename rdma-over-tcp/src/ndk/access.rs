//! An adapter on a node: consumers' calls take the node's lock, and leave by the wire before it is let go.

use alloc::{boxed::Box, sync::Arc};
use std::{io, sync::OnceLock};

use host_stack::node::{Node, NodeConfig, Progress, Urgency};
use offload_engine::{
    engine::doorbell::Doorbell,
    link::Link,
    time::{Duration, Instant},
};

use super::{
    adapter::AdapterCore,
    config::AdapterConfig,
    handles::{Adapter, CoreAccess},
};

/// Starts a node on `link` whose client is NDK, and opens its adapter. The node runs until its last
/// handle is dropped; the adapter holds one.
///
/// # Errors
/// As [`Node::start`].
pub fn open(
    link: Box<dyn Link>,
    node: NodeConfig,
    adapter: AdapterConfig,
) -> io::Result<(Node<AdapterCore>, Adapter)> {
    let doorbell: Arc<OnceLock<Arc<Doorbell>>> = Arc::default();
    let bell = doorbell.clone();
    // A callback that has returned may let others go (NDK-LIFE-6): the engine looks again.
    let wake = move || {
        if let Some(bell) = bell.get() {
            bell.ring();
        }
    };
    let node = Node::start(link, node, |port| AdapterCore::new(adapter, port, Box::new(wake)))?;
    // Nobody has set it before: it was made above.
    let _ = doorbell.set(node.doorbell().clone());
    let adapter = Adapter::new(Arc::new(NodeAccess(node.clone())));
    Ok((node, adapter))
}

struct NodeAccess(Node<AdapterCore>);

impl CoreAccess for NodeAccess {
    fn enter(&self, work: &mut dyn FnMut(&mut AdapterCore, Instant)) {
        self.0.with(|core, _, now| work(core, now));
    }

    fn enter_lazily(&self, work: &mut dyn FnMut(&mut AdapterCore) -> Urgency) {
        self.0.with_lazily(work);
    }

    fn progress(&self) {
        if self.0.progress() == Progress::Manual {
            // Once through the loop; that nothing was waited for is no news.
            let _ = self.0.wait(Some(Duration::ZERO), |_, _, _| None::<()>);
        }
    }
}
