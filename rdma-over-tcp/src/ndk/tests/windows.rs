//! Memory windows.

use super::{
    bench::Bench,
    sides::{LIMITS, Side, connect_at, connected, pattern},
};
use crate::{
    error::WireError,
    ndk::{Data, DisconnectReason, MrFlags, Mw, NtStatus, OpFlags, OperationType, Sge},
};

/// Binds a window of `side` to `length` bytes of its buffer, starting at `offset`.
fn bound(side: &Side, offset: usize, length: usize, rights: OpFlags) -> (Mw, Sge) {
    let mw = side.pd.create_mw().unwrap();
    let address = side.buffer.address() + offset as u64;
    let token = side.qp.bind(50, &side.mr, &mw, address, length as u64, rights).unwrap();
    assert_eq!(mw.remote_token(), token, "valid at once (NDK-MEM-11)");
    (mw, Sge { address, length: length as u32, token })
}

/// Asserts that an error of `active`, detected by `passive`, closed the connection at both ends.
fn assert_terminated(bench: &mut Bench, active: &Side, passive: &Side, error: WireError) {
    bench.settle();
    let reason = DisconnectReason::terminated(error.number()).0;
    assert_eq!(active.log.take(), [("disconnect event", NtStatus(reason))]);
    assert!(!active.qp.is_connected() && !passive.qp.is_connected());
}

// NDK-MEM-11, -13, -16, NDK-RI-1: a window is bound, read and written within its bounds and rights, and invalidated by
// the peer's Send. Then it grants no access.
#[test]
pub(super) fn window_lifecycle() {
    let mut bench = Bench::new(1);
    let (active, passive) = connected(&mut bench);
    let (mw, target) = bound(&passive, 1000, 500, OpFlags::ALLOW_REMOTE_WRITE);
    let (_, source) = bound(&passive, 1000, 500, OpFlags::ALLOW_REMOTE_READ);
    assert_ne!(target.token >> 8, source.token >> 8);
    bench.settle();
    let results = passive.poll();
    assert_eq!(results.len(), 2);
    assert!(results.iter().all(|result| result.operation == OperationType::Bind));
    assert!(results.iter().all(|result| result.status == NtStatus::SUCCESS));
    active.fill(0, 500, 3);
    let data = [active.sge(0, 500)];
    let none = OpFlags::empty();
    active.qp.write(1, Data::Registered(&data), target.address, target.token, none).unwrap();
    let sink = [active.sge(4096, 100)];
    active.qp.read(2, &sink, source.address + 400, source.token, none).unwrap();
    passive.receive(3, 20_000, 10);
    active.qp.send_and_invalidate(4, Data::Inline(&[]), target.token, none).unwrap();
    bench.settle();
    assert!(active.outcomes().iter().all(|(_, status)| *status == NtStatus::SUCCESS));
    assert!(passive.content(1000, 500) == pattern(500, 3));
    assert!(active.content(4096, 100) == pattern(500, 3)[400..]);
    let results = passive.poll();
    assert_eq!(results[0].operation, OperationType::ReceiveAndInvalidate);
    assert_eq!(results[0].invalidated_token, target.token);
    // The window can be bound again, with another token.
    let (region, length) = (&passive.mr, 500);
    let rights = OpFlags::ALLOW_REMOTE_WRITE;
    let again = passive.qp.bind(5, region, &mw, target.address, length, rights).unwrap();
    assert_eq!((again >> 8, again == target.token), (target.token >> 8, false));
    bench.settle();
    assert_eq!(passive.outcomes(), [(5, NtStatus::SUCCESS)]);
    // The old token grants no access (NDK-ERR-2).
    active.qp.write(6, Data::Registered(&data), target.address, target.token, none).unwrap();
    assert_terminated(&mut bench, &active, &passive, WireError::TaggedInvalidStag);
}

// An access one byte beyond the window, or without the right, terminates the connection, even if the region would allow
// it.
#[test]
fn bounds_and_rights() {
    let (read, write) = (OpFlags::ALLOW_REMOTE_READ, OpFlags::ALLOW_REMOTE_WRITE);
    for (rights, is_read, offset, error) in [
        (write, false, 1, WireError::TaggedBounds),
        (read, false, 0, WireError::TaggedInvalidStag),
        (read, true, 1, WireError::ProtectionBounds),
        (write, true, 0, WireError::ProtectionAccess),
        (OpFlags::empty(), true, 0, WireError::ProtectionAccess),
    ] {
        let mut bench = Bench::new(1);
        let (active, passive) = connected(&mut bench);
        let (_, target) = bound(&passive, 1000, 500, rights);
        bench.settle();
        let (address, token) = (target.address + offset, target.token);
        let own = [active.sge(0, 500)];
        match is_read {
            true => active.qp.read(1, &own, address, token, OpFlags::empty()).unwrap(),
            false => {
                let data = Data::Registered(&own);
                active.qp.write(1, data, address, token, OpFlags::empty()).unwrap();
            }
        }
        assert_terminated(&mut bench, &active, &passive, error);
        assert!(passive.content(0, 4096).iter().all(|byte| *byte == 0), "nothing was placed");
    }
}

// NDK-MEM-16: a window of one queue pair is not valid for another of the same domain, which may access the region.
#[test]
pub(super) fn window_is_valid_for_its_queue_pair_only() {
    let mut bench = Bench::new(1);
    let (_first, passive) = connected(&mut bench);
    let (mut stranger, mut second) = (Side::new(&bench, 0), Side::new(&bench, 1));
    second.qp = passive.pd.create_qp(&second.cq, &second.cq, 7, Default::default()).unwrap();
    connect_at(
        &mut bench,
        &mut stranger,
        &mut second,
        [LIMITS; 2],
        "10.0.0.2:7001".parse().unwrap(),
    );
    let (_, target) = bound(&passive, 0, 4096, OpFlags::ALLOW_REMOTE_WRITE);
    bench.settle();
    let data = [stranger.sge(0, 100)];
    let none = OpFlags::empty();
    let (address, token) = (passive.buffer.address(), passive.mr.remote_token());
    stranger.qp.write(1, Data::Registered(&data), address, token, none).unwrap();
    bench.settle();
    assert_eq!(stranger.outcomes(), [(1, NtStatus::SUCCESS)], "the region belongs to the domain");
    stranger.qp.write(2, Data::Registered(&data), address, target.token, none).unwrap();
    bench.settle();
    let reason = DisconnectReason::terminated(WireError::TaggedNotAssociated.number()).0;
    assert_eq!(stranger.log.take(), [("disconnect event", NtStatus(reason))]);
    assert!(passive.qp.is_connected(), "the other connection is unaffected");
}

// NDK-MEM-10, -12: a bind of a bound window, or the invalidation of an unbound one, terminates the connection.
#[test]
fn bind_or_invalidate_in_wrong_state_terminates() {
    for is_bind in [true, false] {
        let mut bench = Bench::new(1);
        let (active, passive) = connected(&mut bench);
        let (mw, target) = bound(&passive, 0, 100, OpFlags::ALLOW_REMOTE_READ);
        let none = OpFlags::empty();
        match is_bind {
            true => {
                let bind = passive.qp.bind(1, &passive.mr, &mw, target.address, 100, none);
                assert!(bind.is_ok());
            }
            false => {
                passive.qp.invalidate(0, &mw, none).unwrap();
                passive.qp.invalidate(1, &mw, none).unwrap();
            }
        }
        bench.settle();
        let outcomes = passive.outcomes();
        assert_eq!(outcomes.last(), Some(&(1, NtStatus::INVALID_DEVICE_REQUEST)), "{outcomes:?}");
        assert!(!passive.qp.is_connected() && !active.qp.is_connected());
    }
}

// Deregistration with a bound window is rejected; a close waits for it (NDK-LIFE-10). Closing the window or its queue
// pair unbinds it.
#[test]
fn regions_wait_for_their_windows() {
    for closes_qp in [false, true] {
        let mut bench = Bench::new(1);
        let (active, passive) = connected(&mut bench);
        let (mw, target) = bound(&passive, 0, 100, OpFlags::ALLOW_REMOTE_READ);
        bench.settle();
        let note = |name| {
            let note = passive.log.note(name);
            move || note(NtStatus::SUCCESS)
        };
        assert_eq!(passive.mr.deregister(|| {}), NtStatus::DEVICE_BUSY);
        assert_eq!(passive.mr.close(note("region")), NtStatus::PENDING);
        // The window still grants access.
        let sink = [active.sge(0, 100)];
        active.qp.read(1, &sink, target.address, target.token, OpFlags::empty()).unwrap();
        bench.settle();
        assert_eq!(active.outcomes(), [(1, NtStatus::SUCCESS)]);
        assert_eq!(passive.log.take(), []);
        let late = passive.qp.bind(2, &passive.mr, &mw, target.address, 1, OpFlags::empty());
        assert_eq!(late, Err(NtStatus::INVALID_PARAMETER), "the region is being closed");
        if closes_qp {
            assert_eq!(passive.qp.close(|| {}), NtStatus::PENDING, "its connector");
            let connector = passive.connector.clone().unwrap();
            assert_eq!(connector.close(|| {}), NtStatus::SUCCESS);
        } else {
            assert_eq!(mw.close(|| {}), NtStatus::SUCCESS);
        }
        bench.settle();
        let events = passive.log.take();
        assert!(events.contains(&("region", NtStatus::SUCCESS)), "{events:?}");
    }
}

// Windows of a deregistered region, of another domain, without local write; a domain waits for its windows.
#[test]
fn refused_inline() {
    let mut bench = Bench::new(1);
    let (_active, passive) = connected(&mut bench);
    let mw = passive.pd.create_mw().unwrap();
    let address = passive.buffer.address();
    let bind = |mr, mw, length, rights| passive.qp.bind(1, mr, mw, address, length, rights).err();
    let read = OpFlags::ALLOW_REMOTE_READ;
    let plain = passive.pd.create_mr(false).unwrap();
    plain.register(&passive.buffer, 0, 100, MrFlags::ALLOW_REMOTE_READ).unwrap();
    let refused = Some(NtStatus::ACCESS_VIOLATION);
    assert_eq!(bind(&plain, &mw, 100, OpFlags::ALLOW_REMOTE_WRITE), refused, "NDK-MEM-11");
    let invalid = Some(NtStatus::INVALID_PARAMETER);
    assert_eq!(bind(&plain, &mw, 101, read), invalid);
    assert_eq!(bind(&plain, &mw, 0, read), invalid);
    assert_eq!(bind(&plain, &mw, 100, OpFlags::INLINE), invalid, "NDK-FLG-5");
    let other = Side::new(&bench, 1);
    let foreign = other.pd.create_mw().unwrap();
    assert_eq!(bind(&plain, &foreign, 100, read), invalid, "another domain's");
    assert_eq!(bind(&other.mr, &mw, 100, read), invalid, "another domain's");
    assert_eq!(
        passive.qp.invalidate(1, &foreign, OpFlags::empty()),
        Err(NtStatus::INVALID_PARAMETER)
    );
    assert_eq!(bind(&plain, &mw, 100, read), None);
    bench.settle();
    let idle = Side::new(&bench, 1);
    let bound = idle.qp.bind(1, &idle.mr, &idle.pd.create_mw().unwrap(), 0, 1, read);
    assert_eq!(bound, Err(NtStatus::CONNECTION_INVALID), "NDK-CON-11");
    let domain = bench.nodes[0].adapter.create_pd().unwrap();
    let last = domain.create_mw().unwrap();
    assert_eq!(domain.close(|| {}), NtStatus::PENDING);
    assert!(domain.create_mw().is_err());
    assert_eq!(last.close(|| {}), NtStatus::SUCCESS);
}
