//! Memory of the program: any pages, shared by regions, at another address; unused after its deregistration is
//! complete.

use std::{ptr::NonNull, sync::Arc};

use offload_engine::memory::SharedSpan;
use rdma_over_tcp::{
    ddp::{Stag, TaggedOffset},
    rnic::{
        Access as Rights, Close, Data, ErrorStatePosts, Operation, RegisteredBuffer, Remote, Sge,
        VerbError, WcStatus,
    },
};
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

use crate::ends::{CallbackResults, End, connect};

const BYTES: usize = 8 << 20;

/// Owner that reports its drop.
struct Owner(CallbackResults<&'static str>);

impl Drop for Owner {
    fn drop(&mut self) {
        self.0.push("memory");
    }
}

/// Maps anonymous pages.
fn map() -> NonNull<u8> {
    let protection = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: new pages, at an address that the system chooses.
    let pages = unsafe {
        mmap_anonymous(std::ptr::null_mut(), BYTES, protection, MapFlags::PRIVATE).unwrap()
    };
    NonNull::new(pages.cast()).unwrap()
}

fn unmap(pages: NonNull<u8>) {
    // SAFETY: all spans of them are dropped, and the test has no reference to them.
    unsafe { munmap(pages.as_ptr().cast(), BYTES).unwrap() };
}

fn remote(token: u32, address: u64) -> Remote {
    Remote { stag: Stag(token), offset: TaggedOffset(address) }
}

// A Write of more than the socket buffers hold is in progress when its region is deregistered, at either end. The pages
// are unmapped in the completion, which follows the drop of their owner. A byte accessed afterwards would terminate the
// process by a signal.
#[test]
fn no_byte_is_accessed_after_deregistration() {
    for (round, is_source) in (0..6).map(|round| (round, round % 2 == 0)) {
        let (near, far) = (End::new(ErrorStatePosts::Flush), End::new(ErrorStatePosts::Flush));
        connect(&near, &far);
        let events = CallbackResults::new();
        let pages = map();
        // SAFETY: they are unmapped when the owner is dropped, and no reference to them exists.
        let memory =
            unsafe { SharedSpan::from_raw(pages, BYTES, true, Arc::new(Owner(events.clone()))) };
        let mapped = RegisteredBuffer::from(memory);
        mapped.write_at(0, &[7; 4096]);
        let other = RegisteredBuffer::allocate(BYTES).unwrap();
        let (source, sink) = if is_source { (mapped, other) } else { (other, mapped) };
        let (of_source, source_token) = near.register(&source, Rights::NONE);
        let (of_sink, sink_token) = far.register(&sink, Rights::LOCAL_WRITE | Rights::REMOTE_WRITE);
        let to = remote(sink_token, sink.address());
        let sge = Sge { address: source.address(), length: BYTES as u32, token: source_token };
        near.post(1, Operation::Write { to }, Data::Registered(&[sge])).unwrap();
        // In later rounds more of it is in the kernel's buffers, and placed.
        near.wait(|| {
            near.adapter.progress();
            let sent = near.adapter.with(|rnic, _| rnic.counters().fpdu_out);
            (sent > 20 * round).then_some(())
        });
        drop((source, sink));
        let (end, region) = if is_source { (&near, of_source) } else { (&far, of_sink) };
        let results = events.clone();
        let completion = Box::new(move || results.push("deregistration"));
        let close = end.adapter.with(|rnic, _| rnic.deregister(region, completion)).unwrap();
        assert_eq!(events.take(), Some("memory"), "owner not dropped before the call returns");
        if close == Close::Pending {
            assert_eq!(end.wait(|| events.take()), "deregistration");
        }
        unmap(pages);
        // The request completes with or without an error, without the memory.
        let outcome = near.outcomes(1)[0];
        assert_eq!(outcome.0, 1);
        let refused = [WcStatus::LocalProtection, WcStatus::RemoteAccess, WcStatus::Flushed];
        assert!(outcome.1 == WcStatus::Success || refused.contains(&outcome.1), "{outcome:?}");
        let again = end.adapter.with(|rnic, _| rnic.deregister(region, Box::new(|| {})));
        assert_eq!(again, Err(VerbError::InvalidArgument));
    }
}

// Regions share pages, each with its own rights and addresses.
#[test]
fn regions_overlap() {
    let (near, far) = (End::new(ErrorStatePosts::Flush), End::new(ErrorStatePosts::Flush));
    connect(&near, &far);
    let pages = map();
    // SAFETY: no reference to them exists, and they are never unmapped.
    let memory = unsafe { SharedSpan::from_raw(pages, BYTES, true, Arc::new(())) };
    let whole = RegisteredBuffer::from(memory.clone());
    let odd = RegisteredBuffer::from(memory.slice(3..1003)).at_address(0x1_0000_0001);
    let (_, readable) = far.register(&whole, Rights::REMOTE_READ);
    let (of_odd, writable) = far.register(&odd, Rights::LOCAL_WRITE | Rights::REMOTE_WRITE);
    let source = RegisteredBuffer::allocate(4096).unwrap();
    source.write_at(0, b"across");
    let (_, token) = near.register(&source, Rights::LOCAL_WRITE);
    let sge = |offset, length| Sge { address: source.address() + offset, length, token };
    let write = |context, to| {
        let operation = Operation::Write { to };
        near.post(context, operation, Data::Registered(&[sge(0, 6)])).unwrap();
    };
    write(1, remote(writable, 0x1_0000_0001 + 994));
    let from = remote(readable, whole.address() + 3 + 994);
    let read = Operation::Read { from, invalidate_sink: false };
    near.post(2, read, Data::Registered(&[sge(100, 6)])).unwrap();
    assert_eq!(near.outcomes(2), [(1, WcStatus::Success), (2, WcStatus::Success)]);
    let mut found = [0; 6];
    source.read_at(100, &mut found);
    assert_eq!(&found, b"across");
    // A deregistration does not affect the other region.
    let _ = far.adapter.with(|rnic, _| rnic.deregister(of_odd, Box::new(|| {}))).unwrap();
    near.post(3, read, Data::Registered(&[sge(100, 6)])).unwrap();
    assert_eq!(near.outcomes(1), [(3, WcStatus::Success)]);
    // One byte beyond the first region is also outside of its rights.
    write(4, remote(writable, 0x1_0000_0001));
    near.post(5, read, Data::Registered(&[sge(100, 6)])).unwrap();
    let outcomes = near.outcomes(2);
    assert_eq!(outcomes[1].1, WcStatus::Flushed, "{outcomes:?}");
}
