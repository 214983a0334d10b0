//! Queue pairs as verbs require them: complete completions, late posts, destroyed and reused queue pairs.

use rdma_over_tcp::{
    ddp::{Stag, TaggedOffset},
    rnic::{
        Access as Rights, Arrival, Close, Completion, CompletionRetention, Data, ErrorStatePosts,
        Key, Operation, QpConfig, QpLimits, QpService, QpState, RegisteredBuffer, Remote, Rnic,
        Sge, VerbError, WcOpcode, WcStatus, WrFlags,
    },
};

use crate::ends::{CallbackResults, End, connect, outcome};

fn region_and_sge(end: &End, bytes: u32) -> (u32, RegisteredBuffer, Sge) {
    let buffer = RegisteredBuffer::allocate(bytes as usize).unwrap();
    let rights = Rights::LOCAL_WRITE | Rights::REMOTE_READ | Rights::REMOTE_WRITE;
    let (_, token) = end.register(&buffer, rights);
    let sge = Sge { address: buffer.address(), length: bytes, token };
    (token, buffer, sge)
}

// A completion has number and context of the queue pair, opcode, length, solicited event and immediate data.
#[test]
fn completions_have_all_fields() {
    let (near, far) = (End::new(ErrorStatePosts::Flush), End::new(ErrorStatePosts::Flush));
    connect(&near, &far);
    let (_, _, sge) = region_and_sge(&far, 4096);
    let (token, buffer, _) = region_and_sge(&far, 4096);
    (1..=3).for_each(|context| far.receive(context, &[sge]));
    let send = Operation::Send { invalidate: None };
    let data = Data::Inline(&[b"four"]);
    near.adapter.post(|rnic| rnic.post(near.qp, 11, send, data, WrFlags::SOLICITED)).unwrap();
    near.send(12, b"fifth").unwrap();
    let (immediate, none) = (Operation::Immediate { data: *b"12345678" }, Data::Registered(&[]));
    near.adapter.post(|rnic| rnic.post(near.qp, 13, immediate, none, WrFlags::NONE)).unwrap();
    let remote = Remote { stag: Stag(token), offset: TaggedOffset(buffer.address()) };
    let (_, _, sink) = region_and_sge(&near, 512);
    let read = Operation::Read { from: remote, invalidate_sink: false };
    assert_eq!(near.post(14, read, Data::Inline(&[])), Err(VerbError::InvalidArgument));
    near.post(14, read, Data::Registered(&[sink])).unwrap();
    near.post(15, Operation::Write { to: remote }, Data::Registered(&[sink])).unwrap();

    let expected = |context, opcode, bytes, solicited, arrival| Completion {
        status: WcStatus::Success,
        opcode,
        error: None,
        bytes,
        arrival,
        solicited,
        qp: far.qp,
        qp_context: 7,
        context,
    };
    let receive = WcOpcode::Receive;
    for completion in [
        expected(1, receive, 4, true, Arrival::Plain),
        expected(2, receive, 5, false, Arrival::Plain),
        expected(3, receive, 0, false, Arrival::Immediate(*b"12345678")),
    ] {
        let found = far.completion();
        assert_eq!(Completion { bytes: completion.bytes, ..found }, completion);
        assert!(found.bytes == completion.bytes || completion.context == 3);
    }
    for (context, opcode, bytes) in [
        (11, WcOpcode::Send, 4),
        (12, WcOpcode::Send, 5),
        (13, WcOpcode::Immediate, 0),
        (14, WcOpcode::Read, 512),
        (15, WcOpcode::Write, 512),
    ] {
        let found = near.completion();
        assert_eq!((found.context, found.opcode, found.bytes), (context, opcode, bytes));
        assert_eq!((found.qp, found.qp_context), (near.qp, 7));
        assert_eq!(found.qp.number(), near.qp.number());
    }
    assert!((1 << 16..1 << 24).contains(&near.qp.number()));
}

// ErrorStatePosts::Flush: a request posted after a disconnect is not sent, and completes flushed after the earlier
// ones; after the end of the connection it completes immediately. ErrorStatePosts::Refuse: an error, and no completion.
#[test]
fn error_state_posts() {
    for error_state_posts in [ErrorStatePosts::Flush, ErrorStatePosts::Refuse] {
        let (near, far) = (End::new(error_state_posts), End::new(ErrorStatePosts::Refuse));
        let [(active, _), (_, ended)] = connect(&near, &far);
        let (_, _, sge) = region_and_sge(&far, 4096);
        (1..=3).for_each(|context| far.receive(context, &[sge]));
        near.receive(21, &[]);
        let (is_flushed, late) = match error_state_posts {
            ErrorStatePosts::Flush => (true, Ok(())),
            ErrorStatePosts::Refuse => (false, Err(VerbError::NotConnected)),
        };
        outcome(&near, |done| {
            near.adapter.with(|rnic, now| {
                let send = Operation::Send { invalidate: None };
                let data = Data::Inline(&[b"data"]);
                let post = |rnic: &mut Rnic, context| {
                    rnic.post(near.qp, context, send, data, WrFlags::SILENT | WrFlags::DEFER).0
                };
                assert_eq!(post(rnic, 1), Ok(()));
                rnic.disconnect(now, active, done()).unwrap();
                assert_eq!(rnic.qp_state(near.qp), Some(QpState::Error));
                assert_eq!(post(rnic, 2), late);
                let target = Remote { stag: Stag(0), offset: TaggedOffset(0) };
                let read = Operation::Read { from: target, invalidate_sink: false };
                let (posted, _) = rnic.post(near.qp, 3, read, Data::Registered(&[]), WrFlags::NONE);
                assert_eq!(posted, late);
            });
            far.wait(|| ended.take());
        })
        .unwrap();
        // The Send before the disconnect has arrived, later ones have not.
        assert_eq!(far.outcomes(1), [(1, WcStatus::Success)]);
        assert_eq!(far.poll(), None);
        near.receive(22, &[]);
        assert_eq!(near.send(4, b"later"), late);
        let mut expected = vec![(21, WcStatus::Flushed), (22, WcStatus::Flushed)];
        if is_flushed {
            expected.extend([2, 3, 4].map(|context| (context, WcStatus::Flushed)));
        }
        let mut outcomes = near.outcomes(expected.len());
        let sends: Vec<u64> =
            outcomes.iter().map(|(context, _)| *context).filter(|it| *it < 20).collect();
        assert!(sends.is_sorted(), "{sends:?}");
        outcomes.sort_by_key(|(context, _)| (*context < 20, *context));
        assert_eq!(outcomes, expected);
        assert_eq!(near.poll(), None);
    }
}

/// Closes an object, and waits for the end of its callbacks: the thread that makes progress may be executing one.
fn close(end: &End, key: Key) {
    let closed = CallbackResults::new();
    let done = closed.callback();
    if end.adapter.with(|rnic, _| rnic.close(key, Box::new(move || done(())))) == Close::Pending {
        end.wait(|| closed.take());
    }
}

// Unpolled::Discard: unpolled completions and flushed requests of the closed queue pair are not returned; those of
// another queue pair in the same queue are.
#[test]
fn closed_queue_pair_discards_completions() {
    for retention in [CompletionRetention::Keep, CompletionRetention::Discard] {
        let (near, far) = (End::new(ErrorStatePosts::Flush), End::new(ErrorStatePosts::Flush));
        let [(active, _), _] = connect(&near, &far);
        let (_, _, sge) = region_and_sge(&far, 4096);
        far.receive(1, &[sge]);
        near.receive(21, &[]);
        near.send(11, b"data").unwrap();
        far.wait(|| far.poll());
        // A queue pair that fails before it was connected flushes.
        near.adapter.with(|rnic, _| {
            let config = QpConfig {
                receive_cq: near.cq,
                send_cq: near.cq,
                context: 8,
                limits: QpLimits::default(),
                srq: None,
                error_state_posts: ErrorStatePosts::Flush,
                service: QpService::Iwarp,
            };
            let other = rnic.create_qp(near.pd, config).unwrap();
            assert_eq!(rnic.post_receive(other, 31, &[]).0, Ok(()));
            rnic.break_qp(other);
            assert_eq!(rnic.qp_state(other), Some(QpState::Error));
        });
        let closed = CallbackResults::new();
        let done = closed.callback();
        let close_qp = |rnic: &mut Rnic| {
            assert!(rnic.is_in_use(Key::Qp(near.qp)), "not held by its connector");
            rnic.close_qp(near.qp, retention, Box::new(move || done(())))
        };
        assert_eq!(near.adapter.with(|rnic, _| close_qp(rnic)), Close::Pending);
        close(&near, Key::Connector(active));
        near.wait(|| closed.take());
        assert_eq!(near.adapter.with(|rnic, _| rnic.qp_state(near.qp)), None);
        let mut polled: Vec<u64> = Vec::new();
        while let Some(completion) = near.poll() {
            polled.push(completion.context);
        }
        polled.sort_unstable();
        match retention {
            CompletionRetention::Keep => assert_eq!(polled, [11, 21, 31]),
            CompletionRetention::Discard => assert_eq!(polled, [31]),
        }
    }
}

// A connected queue pair is reset, keeps its number, and is connected again; no earlier request is left.
#[test]
fn reset_queue_pairs_are_reconnected() {
    let (near, far) = (End::new(ErrorStatePosts::Flush), End::new(ErrorStatePosts::Flush));
    let (_, _, sge) = region_and_sge(&far, 4096);
    for round in 0..3_u64 {
        let [(active, _), (passive, ended)] = connect(&near, &far);
        far.receive(round, &[sge]);
        far.receive(100, &[sge]);
        near.send(round, b"data").unwrap();
        assert_eq!(far.outcomes(1), [(round, WcStatus::Success)]);
        if round == 1 {
            // One completion is not polled; the connection ends first.
            near.adapter.with(|rnic, _| rnic.break_qp(near.qp));
        } else {
            assert_eq!(near.outcomes(1), [(round, WcStatus::Success)]);
        }
        near.adapter.with(|rnic, _| {
            rnic.reset_qp(near.qp).unwrap();
            assert_eq!(rnic.qp_state(near.qp), Some(QpState::Idle));
            assert_eq!(rnic.post_receive(near.qp, 1, &[]).0, Ok(()));
            rnic.reset_qp(near.qp).unwrap();
        });
        assert_eq!(near.send(9, b"early"), Err(VerbError::NotConnected));
        far.wait(|| ended.take());
        far.adapter.with(|rnic, _| rnic.reset_qp(far.qp)).unwrap();
        assert_eq!((near.poll(), far.poll()), (None, None));
        close(&near, Key::Connector(active));
        close(&far, Key::Connector(passive));
    }
    close(&near, Key::Qp(near.qp));
    assert_eq!(near.adapter.with(|rnic, _| rnic.reset_qp(near.qp)), Err(VerbError::InvalidHandle));
}
