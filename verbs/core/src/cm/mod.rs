//! Connection management: identifiers, their states and events (`rdma_cma.h`).
//!
//! ```text
//! active:   Idle -bind-> Bound -resolve address-> AddressResolved -resolve route-> RouteResolved
//!           -connect-> Connecting -> Connected
//! passive:  Idle -bind-> Bound -listen-> Listening; each request: Requested -accept-> Accepting -> Connected
//! both:     Connected -> Closed, by either side
//! ```
//!
//! Calls start an operation and return. Its result is an event of the identifier's channel. Callbacks of the core
//! deliver it, on any thread and possibly before the call of the core returns. So no lock of an identifier is held
//! across a call of the core.

mod connect;
mod id;
mod inherit;

pub use self::id::{
    ConnectParameters, Id, PortSpace,
    channel::{Event, EventChannel, EventKind},
};
pub(crate) use self::id::{close_all, remove_device};
pub use self::inherit::{announce_connections, listening_channels};
