//! Consumer calls: the methods of [`Rnic`](crate::rnic::Rnic), by the objects they work on.

pub(crate) mod connect;
mod create;
mod deferral;
mod lam;
pub(crate) mod post;
mod query;
mod rc;
mod shared_endpoint;
mod srq;
mod ud;
mod window;
