//! Scripts: some with a purpose, and any number from seeds.

use oorandom::Rand32;

use super::{Call, calls::RECORD};

/// `IBV_SEND_*`.
const FENCE: u8 = 1;
const SIGNALED: u8 = 2;
const SOLICITED: u8 = 4;
const INLINE: u8 = 8;
/// Indices of the work request opcodes in a script.
const SEND: u8 = 0;
const WRITE: u8 = 1;
const READ: u8 = 2;
const SEND_WITH_INVALIDATE: u8 = 3;
const WRITE_WITH_IMMEDIATE: u8 = 4;
const SWAP: u8 = 5;
const ADD: u8 = 6;
/// Shapes of requests: with checked data; one in a list; without octets; in memory without a purpose; invalid.
const CHECKED: u8 = 0;
const LIST: u8 = 8;
const EMPTY: u8 = 4;
const FREE: u8 = 5;
const WRONG: u8 = 6;
/// Queues of 64, four entries, 256 octets inline.
const CAPS: u8 = 3 | 2 << 2 | 2 << 4;
/// No shared receive queue.
const OWN: u8 = 1;
const RESET: u8 = 0;
const ERROR: u8 = 6;

/// Posts to the client's queue pair, or to another.
const fn post(qp: u8, opcode: u8, flags: u8, shape: u8, length: u16) -> Call {
    let (mr, remote, offset, count, wild) = (0, 0, 0, 3, 0);
    Call::PostSend { qp, opcode, flags, shape, mr, length, remote, offset, count, wild }
}

const fn receives(qp: u8, count: u8) -> Call {
    Call::PostRecv { qp, count: count - 1, shape: CHECKED, mr: 0, length: 0 }
}

const fn pair(srq: u8) -> Call {
    Call::Pair { cq: 0, other_cq: 0, srq, caps: CAPS, reads: 4, data: 12 }
}

/// Region without a purpose.
const fn region(area: u8, access: u16) -> Call {
    Call::RegMr { pd: 0, area, access, offset: 0, length: 8192, how: 0 }
}

const DRAIN: Call = Call::Drain { cq: u8::MAX };
const SEND_ALL: u8 = CHECKED | LIST;

/// Scripts with a purpose, by name.
#[must_use]
pub fn named() -> Vec<(&'static str, Vec<Call>)> {
    let prepare = |entries| Call::Prepare { entries };
    let connected = [prepare(200), pair(OWN), receives(1, 16), receives(0, 16)];
    let with = |calls: &[Call]| [&connected[..], calls].concat();
    let event = |channel| Call::CmEvent { channel, hold: 0 };
    let resolve = [
        Call::CreateId { channel: 0, space: 0 },
        Call::Bind { id: 0, how: 0 },
        Call::Listen { id: 0, backlog: 5 },
        Call::CreateId { channel: 1, space: 0 },
        Call::ResolveAddr { id: 1, to: 0, how: 0 },
        event(1),
        Call::ResolveRoute { id: 1 },
        event(1),
        Call::CreateQp { pd: 0, id: 0, send_cq: 0, receive_cq: 0, srq: OWN, caps: CAPS, how: 0 },
        Call::Connect { id: 1, qp: 0, data: 100, reads: 3 },
        Call::Establish { id: 1 },
    ];
    vec![
        (
            "send",
            with(&[
                post(0, SEND, SIGNALED, SEND_ALL, 200),
                post(1, SEND, SIGNALED | SOLICITED | INLINE, SEND_ALL, 30),
                post(0, SEND, 0, EMPTY, 0),
                post(0, SEND, SIGNALED, CHECKED, 256),
                DRAIN,
            ]),
        ),
        (
            "write-read",
            with(&[
                post(0, WRITE, 0, SEND_ALL, 256),
                post(0, READ, SIGNALED, SEND_ALL, 200),
                post(1, READ, SIGNALED, SEND_ALL, 255),
                post(0, SEND, SIGNALED | FENCE, CHECKED, 9),
                DRAIN,
            ]),
        ),
        (
            "immediate-atomic",
            with(&[
                region(5, 0x0f),
                Call::PostRecv { qp: 1, count: 3, shape: EMPTY, mr: 0, length: 0 },
                post(0, WRITE_WITH_IMMEDIATE, SIGNALED, SEND_ALL, 100),
                post(0, ADD, SIGNALED, FREE, 8),
                post(0, SWAP, SIGNALED, FREE, 8),
                DRAIN,
            ]),
        ),
        (
            "flush",
            with(&[
                Call::ModifyQp { qp: 0, state: ERROR, mask: 0 },
                post(0, WRITE_WITH_IMMEDIATE, SIGNALED, SEND_ALL, 50),
                post(0, SEND, 0, SEND_ALL, 50),
                post(0, READ, SIGNALED, SEND_ALL, 50),
                DRAIN,
            ]),
        ),
        (
            "immediate-flushed-under-way",
            vec![
                prepare(200),
                pair(OWN),
                post(0, WRITE_WITH_IMMEDIATE, SIGNALED, SEND_ALL, 256),
                post(0, WRITE_WITH_IMMEDIATE, SIGNALED, WRONG, 256),
                post(0, WRITE_WITH_IMMEDIATE, 0, SEND_ALL, 256),
                DRAIN,
            ],
        ),
        (
            "shared-receives",
            vec![
                prepare(200),
                Call::CreateSrq { pd: 0, depth: 32, sges: 2 },
                Call::PostSrq { srq: 0, count: 15, shape: CHECKED, mr: 0, length: 0 },
                pair(0),
                pair(0),
                Call::ModifySrq { srq: 0, mask: 2, depth: 0, limit: 12 },
                post(0, SEND, SIGNALED, SEND_ALL, 100),
                post(2, SEND, SIGNALED, SEND_ALL, 100),
                DRAIN,
                Call::AsyncEvent { hold: 1 },
                Call::DestroySrq { srq: 0 },
                Call::ModifyQp { qp: 1, state: ERROR, mask: 0 },
            ],
        ),
        (
            "windows",
            with(&[
                region(5, 0x1f),
                Call::AllocMw { pd: 0, kind: 1 },
                Call::AllocMw { pd: 0, kind: 2 },
                bind(0),
                bind(1),
                DRAIN,
                Call::PostSend {
                    qp: 0,
                    opcode: WRITE,
                    flags: SIGNALED,
                    shape: FREE,
                    mr: 0,
                    length: 40,
                    remote: 0x40,
                    offset: 0,
                    count: 0,
                    wild: 0,
                },
                DRAIN,
                Call::DeregMr { mr: 5, after: 0 },
                Call::InvalidateMw { qp: 1, mw: 1, flags: SIGNALED, wild: 0 },
                Call::PostSend {
                    qp: 0,
                    opcode: SEND_WITH_INVALIDATE,
                    flags: SIGNALED,
                    shape: CHECKED,
                    mr: 0,
                    length: 40,
                    remote: 0x41,
                    offset: 0,
                    count: 0,
                    wild: 0,
                },
                DRAIN,
                Call::DeallocMw { mw: 0 },
            ]),
        ),
        (
            "completion-queue-overrun",
            vec![
                Call::CreateChannel {},
                prepare(100),
                pair(OWN),
                receives(1, 8),
                Call::Notify { cq: 0, solicited: 0 },
                Call::ResizeCq { cq: 0, entries: 1 },
                post(0, WRITE, SIGNALED, SEND_ALL, 20),
                Call::Drain { cq: 0 },
                Call::CqEvent { channel: 0, hold: 1 },
                pair(OWN),
            ],
        ),
        (
            "overrun-without-an-arm",
            vec![
                prepare(1),
                pair(OWN),
                receives(1, 8),
                post(0, SEND, SIGNALED, SEND_ALL, 20),
                post(0, SEND, SIGNALED, SEND_ALL, 20),
                Call::Establish { id: 0 },
            ],
        ),
        (
            "overrun-during-a-connect",
            vec![
                prepare(100),
                pair(OWN),
                receives(1, 8),
                Call::CreateId { channel: 1, space: 0 },
                Call::ResolveAddr { id: 3, to: 0, how: 0 },
                Call::ResolveRoute { id: 3 },
                Call::CreateQp {
                    pd: 0,
                    id: 0,
                    send_cq: 0,
                    receive_cq: 0,
                    srq: OWN,
                    caps: CAPS,
                    how: 0,
                },
                Call::Connect { id: 3, qp: 2, data: 100, reads: 3 },
                Call::Establish { id: 3 },
                Call::ResizeCq { cq: 0, entries: 1 },
                post(0, SEND, SIGNALED, SEND_ALL, 20),
                Call::Establish { id: 3 },
            ],
        ),
        (
            "notifications",
            vec![
                Call::CreateChannel {},
                prepare(100),
                pair(OWN),
                receives(1, 8),
                Call::PollCq { cq: 0, count: 1 },
                Call::Notify { cq: 0, solicited: 0 },
                Call::PollCq { cq: 0, count: 1 },
                post(0, SEND, SIGNALED, SEND_ALL, 20),
                DRAIN,
            ],
        ),
        ("reject", [&[prepare(20)], &resolve[..], &[Call::Reject { id: 2, data: 50 }]].concat()),
        (
            "accept-by-hand",
            [
                &[prepare(20)],
                &resolve[..],
                &[
                    Call::CreateQp {
                        pd: 0,
                        id: 2,
                        send_cq: 0,
                        receive_cq: 0,
                        srq: OWN,
                        caps: CAPS,
                        how: 0xc0,
                    },
                    Call::Accept { id: 2, qp: 1, data: 90, reads: 9 },
                    Call::Establish { id: 1 },
                    receives(1, 4),
                    post(0, SEND, SIGNALED, CHECKED, 77),
                    DRAIN,
                    Call::Migrate { id: 2, channel: 1 },
                    Call::Disconnect { id: 2 },
                ],
            ]
            .concat(),
        ),
        (
            "no-listener",
            [
                &[prepare(20)],
                &resolve[..9],
                &[Call::DestroyId { id: 0 }, Call::Connect { id: 0, qp: 0, data: 0, reads: 1 }],
            ]
            .concat(),
        ),
        (
            "destroy-under-traffic",
            with(&[
                post(0, SEND, SIGNALED, SEND_ALL, 256),
                post(1, WRITE, SIGNALED, SEND_ALL, 256),
                Call::DestroyQp { qp: 1 },
                post(0, READ, SIGNALED, SEND_ALL, 256),
                Call::DestroyId { id: 1 },
                pair(OWN),
            ]),
        ),
        (
            "memory-that-goes",
            with(&[
                region(6, 0x04),
                post(0, SEND, SIGNALED, LIST | FREE, 8000),
                Call::DeregMr { mr: 5, after: 0 },
                region(6, 0x04),
                post(1, SEND, SIGNALED, LIST | FREE, 200),
                Call::DeregMr { mr: 5, after: 1 },
                DRAIN,
            ]),
        ),
        (
            "disconnect",
            with(&[
                post(0, SEND, SIGNALED, SEND_ALL, 100),
                Call::Disconnect { id: 1 },
                Call::Disconnect { id: 2 },
                post(0, SEND, SIGNALED, SEND_ALL, 100),
            ]),
        ),
        (
            "reset-and-connect-again",
            with(&[
                post(0, SEND, SIGNALED, SEND_ALL, 100),
                Call::ModifyQp { qp: 0, state: RESET, mask: 0 },
                Call::Disconnect { id: 1 },
                Call::DestroyId { id: 1 },
                Call::CreateId { channel: 1, space: 0 },
                Call::ResolveAddr { id: 2, to: 0, how: 0 },
                Call::ResolveRoute { id: 2 },
                Call::Connect { id: 2, qp: 0, data: 30, reads: 1 },
                Call::Establish { id: 2 },
            ]),
        ),
        (
            "built-requests",
            vec![
                prepare(200),
                Call::Pair { cq: 0, other_cq: 0, srq: OWN, caps: CAPS, reads: 4, data: 2 },
                receives(1, 16),
                build(SEND, SIGNALED),
                build(WRITE, 0),
                build(READ, SIGNALED),
                build(SEND, SIGNALED | INLINE),
                build(WRITE_WITH_IMMEDIATE, SIGNALED),
                DRAIN,
            ],
        ),
        (
            "busy",
            with(&[
                Call::DeallocPd { pd: 0 },
                Call::DestroyCq { cq: 0 },
                post(0, SEND, SIGNALED, SEND_ALL, 100),
                DRAIN,
            ]),
        ),
    ]
}

const fn bind(mw: u8) -> Call {
    let (offset, length, access, flags, how) = (0, 4096, 0x06, SIGNALED, 1);
    Call::BindMw { qp: 1, mw, mr: 0, offset, length, access, flags, how }
}

const fn build(opcode: u8, flags: u8) -> Call {
    Call::Build { qp: 0, opcode, flags, shape: CHECKED, length: 60, offset: 3, finish: 0 }
}

/// Records per thousand of a kind that remain in a script.
const fn share(call: &Call) -> u32 {
    match call {
        Call::Pair { .. } => 1000,
        Call::BindMw { .. } | Call::AllocMw { .. } => 1000,
        Call::PostSend { .. } | Call::PostRecv { .. } => 1000,
        Call::Build { .. } | Call::PostSrq { .. } | Call::PollCq { .. } => 600,
        Call::Prepare { .. } | Call::DeallocPd { .. } | Call::DestroyChannel { .. } => 100,
        Call::DestroyCq { .. } | Call::DestroySrq { .. } | Call::DestroyId { .. } => 100,
        Call::DestroyQp { .. } | Call::ModifyQp { .. } | Call::Disconnect { .. } => 80,
        Call::Drain { .. } | Call::Establish { .. } => 200,
        Call::ResizeCq { .. } => 100,
        _ => 400,
    }
}

/// Script of a seed.
#[must_use]
pub fn random(seed: u64) -> Vec<Call> {
    let mut random = Rand32::new(seed);
    let entries = [1, 20, 255, 255, 255][random.rand_range(0..5) as usize];
    let mut script = Vec::new();
    if random.rand_range(0..2) == 0 {
        script.push(Call::CreateChannel {});
    }
    script.push(Call::Prepare { entries });
    script.extend([region(5, 0x1f), region(6, 0x0f), region(7, 0x04)]);
    if random.rand_range(0..3) == 0 {
        script.push(Call::CreateSrq { pd: 0, depth: 40, sges: 4 });
    }
    script.push(pair(random.rand_range(0..2) as u8));
    script.extend([receives(0, 20), receives(1, 20)]);
    let length = script.len() + 20 + random.rand_range(0..80) as usize;
    while script.len() < length {
        let mut record = [0; RECORD];
        record.iter_mut().for_each(|octet| *octet = random.rand_u32() as u8);
        // Half of the calls are posts.
        record[0] = match random.rand_range(0..10) {
            0..4 => post(0, 0, 0, 0, 0).write()[0],
            4 => receives(0, 1).write()[0],
            5 => bind(0).write()[0],
            _ => record[0],
        };
        let call = Call::read(&record);
        if random.rand_range(0..1000) >= share(&call) {
            continue;
        }
        // The long wait is reserved for scripts whose requests complete.
        script.push(if call == DRAIN { Call::Drain { cq: 0 } } else { call });
        if matches!(call, Call::Pair { .. }) && random.rand_range(0..4) > 0 {
            script.extend((0..8).map(|qp| receives(qp, 1 + record[1] % 16)));
        }
    }
    script
}
