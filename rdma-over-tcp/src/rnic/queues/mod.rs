//! Queue pairs: work requests, work queues, and completion queues.

pub(crate) mod cq;
pub(crate) mod qp;
pub(crate) mod rc;
pub(crate) mod receive_queue;
pub(crate) mod send_queue;
pub(crate) mod sges;
pub(crate) mod srq;
pub(crate) mod ud;
pub(crate) mod wr;
