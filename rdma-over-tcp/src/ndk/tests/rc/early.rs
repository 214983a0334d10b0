//! Local operations of queue pairs that are not connected.

use super::*;
use crate::rnic::{Bind, Revocable, WindowId, WindowType};

/// Creates a window of type 2.
fn window(end: &End) -> WindowId {
    end.adapter.with(|rnic, _| rnic.create_window(end.pd, WindowType::Two)).unwrap()
}

/// Registers memory for windows.
fn bindable(end: &End) -> RegionId {
    end.adapter.with(|rnic, _| {
        let region = rnic.create_region(end.pd, false).unwrap();
        let rights = Access::LOCAL_WRITE | Access::BIND;
        rnic.register(region, &end.buffer, 0, BUFFER, rights).unwrap();
        region
    })
}

/// Posts the bind of the first `length` bytes. Returns the token.
fn bind(end: &End, context: u64, window: WindowId, region: RegionId, length: u64) -> u32 {
    let address = end.buffer.address();
    let (key, rights) = (None, Access::REMOTE_WRITE);
    let bind = Bind { window, key, region, address, length, base: address, rights };
    end.adapter.post(|rnic| rnic.post_bind(end.qp, context, bind, WrFlags::NONE)).unwrap()
}

fn invalidate(end: &End, context: u64, token: u32) {
    let target = Revocable::Token(token);
    let post =
        |rnic: &mut crate::rnic::Rnic| rnic.post_invalidate(end.qp, context, target, WrFlags::NONE);
    end.adapter.post(post).unwrap();
}

// A bind completes without a peer, and its token is valid once there is one. No budget starts for it. Operations after
// a request that waits are executed in order.
#[test]
pub(super) fn local_operations_need_no_connection() {
    let mut bench = Bench::new(41);
    let (mut active, mut passive) = (End::new(&bench, 0), End::new(&bench, 1));
    let (region, first, second) = (bindable(&passive), window(&passive), window(&passive));
    passive.adapter.with(|rnic, _| rnic.allow_sends(passive.qp)).unwrap();
    let token = bind(&passive, 1, first, region, 1000);
    bench.settle();
    assert_eq!(passive.outcomes(), success([1]));
    assert_eq!(passive.events.take(), []);
    invalidate(&passive, 2, token);
    let token = bind(&passive, 3, first, region, 1000);
    bench.settle();
    assert_eq!(passive.outcomes(), success([2, 3]));

    passive.send(4, 0, 10);
    bind(&passive, 5, second, region, 1000);
    bench.settle();
    assert_eq!(
        (passive.outcomes(), passive.events.take()),
        (Vec::new(), Vec::from([QpEvent::RequestsWaiting]))
    );
    let server = bench.server;
    active.receive(11, 2000, 10);
    connect_at(&mut bench, &mut active, &mut passive, server);
    assert_eq!(
        (passive.outcomes(), active.outcomes()),
        (success([4, 5]).into(), success([11]).into())
    );
    active.fill(0, 1000, 3);
    active.write(12, (0, 1000), Remote::new(passive.buffer.address(), token));
    bench.settle();
    assert_eq!(active.outcomes(), success([12]));
    assert!(passive.content(0, 1000) == pattern(1000, 3));
}

// While sends are held, no local operation starts.
#[test]
pub(super) fn held_operations_start_with_the_next_requests() {
    let mut bench = Bench::new(42);
    let end = End::new(&bench, 1);
    let (region, window) = (bindable(&end), window(&end));
    end.adapter.with(|rnic, _| rnic.allow_sends(end.qp)).unwrap();
    end.adapter.with(|rnic, _| rnic.hold_sends(end.qp, true)).unwrap();
    bind(&end, 1, window, region, 1000);
    bench.settle();
    assert_eq!(end.outcomes(), []);
    end.adapter.with(|rnic, _| rnic.hold_sends(end.qp, false)).unwrap();
    bench.settle();
    assert_eq!(end.outcomes(), success([1]));
}

// A bind of a window that is bound fails, and with it the queue pair.
#[test]
pub(super) fn failed_local_operation_ends_the_queue_pair() {
    let mut bench = Bench::new(43);
    let end = End::new(&bench, 1);
    let (region, window) = (bindable(&end), window(&end));
    end.receive(9, 0, 10);
    end.adapter.with(|rnic, _| rnic.allow_sends(end.qp)).unwrap();
    bind(&end, 1, window, region, 1000);
    bind(&end, 2, window, region, 1000);
    bench.settle();
    let (fails, flushed) = (WcStatus::LocalOperation, WcStatus::Flushed);
    assert_eq!(end.outcomes(), [(1, WcStatus::Success), (2, fails), (9, flushed)]);
    assert_eq!(end.state(), QpState::Error);
}
