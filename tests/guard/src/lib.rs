//! Cost limits of data path operations, and the means to count them.
//!
//! Two guards use this crate. `tests/allocations.rs` runs streams and RDMA through two nodes, in memory under
//! virtual time and over TAPs. It limits the allocations, locks and system calls per message in the steady
//! state. `tests/instructions.rs` runs the program `hot-paths` under callgrind and compares the instructions of
//! each operation with a snapshot in the repository.
//!
//! | module | provides |
//! |---|---|
//! | [`counting`] | a counting allocator, and the counts of a thread |
//! | [`wire`] | a link with counted calls; the work of a fixture link is excluded |
//! | [`virtual_time`] | two nodes in memory, polled alternately |
//! | [`rdma`] | connected queue pairs, and traffic on them |
//! | [`stream`] | a client whose connections carry bytes at the maximum rate |

pub mod counting;
pub mod rdma;
pub mod stream;
pub mod virtual_time;
pub mod wire;
