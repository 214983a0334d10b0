//! State of connections visible to consumers: connectors, listeners, endpoints. The protocol is in
//! [`stream`](super::stream).

pub(crate) mod cause;
pub(crate) mod connector;
pub(crate) mod endpoint;
pub(crate) mod listener;
pub(crate) mod read_limit;
pub(crate) mod shared_endpoint;
