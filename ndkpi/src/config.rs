//! Configuration of an adapter: JSON that the consumer passes when it opens the adapter.

use std::time::Duration;

use flue_adapter::{AdapterOptions, Error, NodeOptions, TransportOptions};
use offload_engine::descriptor::watch;
use rdma_over_tcp::ndk::{Adapter, AdapterConfig, CallbackThread, Deferral};
use serde::Deserialize;

/// Configuration for opening an adapter. Without a node the adapter uses kernel sockets.
#[derive(Default, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Configuration {
    /// Node with a TAP that carries the connections.
    node: Option<NodeOptions>,
    /// Thread that runs callbacks.
    callbacks: Callbacks,
    /// Deferral of creates, requests and closes that could complete immediately.
    deferral: Option<DeferralOptions>,
}

/// Thread that runs callbacks ([`CallbackThread`]).
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

impl Configuration {
    /// Parses a configuration; an empty one has the default values.
    ///
    /// # Errors
    /// [`Error::Option`]: the text is not a configuration.
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
    /// As [`AdapterOptions::open`]; or the node has several queues.
    pub(crate) fn open(self) -> Result<Adapter, Error> {
        watch().map_err(|error| Error::io("descriptors", &error))?;
        let config = self.adapter();
        let transport = match self.node {
            None => TransportOptions::default(),
            Some(node) if node.queues == 1 => TransportOptions::Node(Box::new(node)),
            Some(_) => return Err(Error::Option("queues: expected 1 per adapter".into())),
        };
        let options = AdapterOptions { transport, ..AdapterOptions::default() };
        Ok(options.open(config)?.adapters.swap_remove(0))
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
