//! The configuration of an adapter: JSON that the consumer gives when it opens it.

use std::time::Duration;

use flue_node::{Error, NodeOptions, random_seed};
use host_stack::node::Node;
use rdma_over_tcp::{
    access::{self, Access},
    ndk::{
        Adapter, AdapterConfig, AdapterCore, CallbackThread, Deferral, Driver, Sockets,
        SocketsConfig,
    },
};
use serde::Deserialize;

/// How an adapter is to be opened. Without a node it is on kernel sockets.
#[derive(Default, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Configuration {
    /// The node that carries its connections, on a TAP.
    node: Option<NodeOptions>,
    /// The thread of callbacks.
    callbacks: Callbacks,
    /// Has creates, requests and closes pend that need not.
    deferral: Option<DeferralOptions>,
}

/// The thread of callbacks ([`CallbackThread`]).
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Callbacks {
    #[default]
    Own,
    Caller,
}

/// As [`Deferral`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
struct DeferralOptions {
    seed: u64,
    delay_max_microseconds: u64,
}

/// What carries the connections of an adapter.
pub(crate) enum Carrier {
    /// Sockets of the kernel, and the way to the adapter.
    Sockets(Sockets, Access),
    /// A node on a TAP.
    Node(Node<AdapterCore>),
}

impl Carrier {
    /// What drives the adapter.
    pub(crate) fn driver(&self) -> &dyn Driver {
        match self {
            Self::Sockets(sockets, _) => sockets,
            Self::Node(node) => node,
        }
    }

    /// Ends the adapter as if its device were gone. Not for callbacks.
    pub(crate) fn abandon(&self) {
        match self {
            Self::Sockets(sockets, _) => sockets.abandon(),
            Self::Node(node) => node.abandon(),
        }
    }

    /// Calls `work` with the adapter's lock.
    #[cfg_attr(
        not(debug_assertions),
        expect(dead_code, reason = "for the checks of a debug build")
    )]
    pub(crate) fn with_lock(&self, work: impl Fn()) {
        match self {
            Self::Sockets(_, access) => access.with(|_, _| work()),
            Self::Node(node) => node.with(|_, _, _| work()),
        }
    }
}

impl Configuration {
    /// Reads a configuration; an empty one has everything by default.
    ///
    /// # Errors
    /// [`Error::Option`]: it is none.
    pub(crate) fn parse(text: &str) -> Result<Self, Error> {
        if text.trim().is_empty() {
            return Ok(Self::default());
        }
        serde_json::from_str(text).map_err(|error| Error::Option(format!("configuration: {error}")))
    }

    fn adapter(&self) -> AdapterConfig {
        let callbacks = match self.callbacks {
            Callbacks::Own => CallbackThread::Own,
            Callbacks::Caller => CallbackThread::Caller,
        };
        let deferral = self.deferral.map(|DeferralOptions { seed, delay_max_microseconds }| {
            Deferral { seed, delay_max: Duration::from_micros(delay_max_microseconds) }
        });
        AdapterConfig { callbacks, deferral, ..AdapterConfig::default() }
    }

    /// Opens the adapter.
    ///
    /// # Errors
    /// As [`NodeOptions::open_ndk`] and [`access::open_sockets`].
    pub(crate) fn open(&self) -> Result<(Carrier, Adapter), Error> {
        let Some(node) = &self.node else {
            let config = AdapterConfig { seed: random_seed()?.into(), ..self.adapter() };
            let (sockets, access) = access::open_sockets(SocketsConfig::default(), config)
                .map_err(|error| Error::Operation(format!("kernel sockets: {error}")))?;
            return Ok((Carrier::Sockets(sockets, access.clone()), access.into()));
        };
        if node.queues != 1 {
            return Err(Error::Option("queues: an adapter has one queue".into()));
        }
        let mut opened = node.open_ndk(self.adapter())?;
        let (node, adapter) = opened.pop().expect("a queue has an adapter");
        Ok((Carrier::Node(node), adapter))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn configurations() {
        for text in ["", " ", "{}"] {
            assert_eq!(Configuration::parse(text), Ok(Configuration::default()));
        }
        let node = Configuration::parse(r#"{"node": {"tap": "tap7"}}"#).unwrap().node.unwrap();
        assert_eq!(node, NodeOptions { tap: "tap7".into(), ..NodeOptions::default() });
        let text =
            r#"{"callbacks": "caller", "deferral": {"seed": 3, "delay_max_microseconds": 70}}"#;
        let adapter = Configuration::parse(text).unwrap().adapter();
        assert_eq!(adapter.callbacks, CallbackThread::Caller);
        let delay_max = Duration::from_micros(70);
        assert_eq!(adapter.deferral, Some(Deferral { seed: 3, delay_max }));
        for text in ["{", "7", r#"{"nodes": {}}"#, r#"{"node": {"tap": 7}}"#, r#"{"deferral": {}}"#]
        {
            assert!(Configuration::parse(text).is_err(), "{text}");
        }
    }
}
