//! What an operation on the data path may cost, and how that is counted.
//!
//! Two guards stand on this crate. `tests/allocations.rs` moves streams and RDMA through two nodes, in memory under
//! virtual time and over TAPs, and says how many allocations, locks and system calls a message takes once
//! everything is warm. `tests/instructions.rs` runs the program `hot-paths` under callgrind and compares the
//! instructions of each operation with a snapshot in the repository.
//!
//! | module | gives |
//! |---|---|
//! | [`counting`] | an allocator that counts, and counts of a thread |
//! | [`wire`] | a link whose calls are counted, and left out of the count if it is only a fixture |
//! | [`virtual_time`] | two nodes in memory, polled by turns |
//! | [`rdma`] | connected queue pairs, and traffic on them |
//! | [`stream`] | a client whose connections carry bytes as fast as they can |

pub mod counting;
pub mod rdma;
pub mod stream;
pub mod virtual_time;
pub mod wire;
