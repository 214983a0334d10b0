//! Sequences of `ibv_modify_qp` with arbitrary masks and attributes, compared with a model.
//!
//! The model is written from the tables of the InfiniBand specification by number of bit and state, apart from the
//! library's. After each change it checks:
//!
//! - A bit that is not standard returns EOPNOTSUPP. A transition that does not exist, a missing or unexpected
//!   attribute, another current state and a value out of its range return EINVAL.
//! - An accepted change sets the attributes that the mask names, and no others; a reset sets the initial ones.
//!
//! A script is a list of records of [`RECORD_OCTETS`]. Most of them are close to a transition that the state allows, so
//! that sequences reach every state.

use flue_adapter::{AdapterOptions, DeviceKind, NodeOptions, TransportOptions};
use flue_verbs_core::{
    attributes::{AddressVector, IbvQpAttributes, IbvQpChange, IbvQpLimits, IbvQpState, QpKind},
    errno::Errno,
    gid::Gid,
    identity::Identity,
};
use oorandom::Rand32;

/// Octets of a record.
pub const RECORD_OCTETS: usize = 32;

/// Limits of Reads and atomics, of both directions.
const RD_ATOMIC_MAX: [u8; 2] = [16, 8];

/// Largest path MTU on Ethernet with an MTU of 1500 bytes: 1024 bytes.
const PATH_MTU_MAX: u8 = 3;

/// Standard bits.
const STANDARD: u32 = 0x1f_ffff;

/// Transition of a queue pair by numbers of states, with the numbers of the required and the optional bits.
type Transition = (u32, u32, &'static [u8], &'static [u8]);

/// Transitions of RC, without those to RESET and to ERR.
const RC: [Transition; 9] = [
    (0, 1, &[3, 4, 5], &[]),
    (1, 1, &[], &[3, 4, 5]),
    (1, 2, &[7, 8, 12, 15, 17, 20], &[3, 4, 14]),
    (2, 3, &[9, 10, 11, 13, 16], &[1, 3, 14, 15, 18]),
    (3, 3, &[], &[1, 3, 14, 15, 18]),
    (3, 4, &[], &[2]),
    (4, 3, &[], &[1, 3, 14, 15, 18]),
    (4, 4, &[], &[3, 4, 5, 7, 9, 10, 11, 13, 14, 15, 17, 18]),
    (6, 6, &[], &[]),
];

/// Transitions of UC.
const UC: [Transition; 9] = [
    (0, 1, &[3, 4, 5], &[]),
    (1, 1, &[], &[3, 4, 5]),
    (1, 2, &[7, 8, 12, 20], &[3, 4, 14]),
    (2, 3, &[16], &[1, 3, 14, 18]),
    (3, 3, &[], &[1, 3, 14, 18]),
    (3, 4, &[], &[2]),
    (4, 3, &[], &[1, 3, 14, 18]),
    (4, 4, &[], &[3, 4, 7, 14, 18]),
    (6, 6, &[], &[]),
];

/// Transitions of UD. No change leads to SQE.
const UD: [Transition; 9] = [
    (0, 1, &[4, 5, 6], &[]),
    (1, 1, &[], &[4, 5, 6]),
    (1, 2, &[], &[4, 6]),
    (2, 3, &[16], &[1, 6]),
    (3, 3, &[], &[1, 6]),
    (3, 4, &[], &[2]),
    (4, 3, &[], &[1, 6]),
    (4, 4, &[], &[4, 6]),
    (6, 6, &[], &[]),
];

/// Types of queue pairs, with their tables.
const KINDS: [(QpKind, &[Transition]); 3] =
    [(QpKind::Rc, &RC), (QpKind::Uc, &UC), (QpKind::Ud, &UD)];

/// Number of transitions of all types: those of the table, five more to RESET of another state, RESET to itself, and
/// four to ERR.
pub const TRANSITIONS: usize = RC.len() + UC.len() + UD.len() + KINDS.len() * (6 + 4);

/// Returns required and optional bits of a transition; `None`: it does not exist.
fn transition(table: &[Transition], from: u32, to: u32) -> Option<(u32, u32)> {
    let bits = |numbers: &[u8]| numbers.iter().fold(0, |bits, number| bits | 1 << number);
    let row = table.iter().find(|row| (row.0, row.1) == (from, to));
    match row {
        Some((_, _, required, optional)) => Some((bits(required), bits(optional))),
        // From any state to RESET; to ERR from all but RESET.
        None => (to == 0 || to == 6 && from != 0).then_some((0, 0)),
    }
}

/// Counters of a run.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Summary {
    /// Accepted changes by transition: index of the type, number of the old and of the new state.
    pub accepted: std::collections::BTreeMap<(usize, u32, u32), u64>,
    /// Changes that returned EINVAL although their transition and mask are right.
    pub out_of_range: u64,
    /// Other changes that returned EINVAL.
    pub invalid: u64,
    /// Changes that returned EOPNOTSUPP.
    pub unsupported: u64,
}

impl Summary {
    /// Adds the counters of another run.
    pub fn add(&mut self, other: Self) {
        let Self { accepted, out_of_range, invalid, unsupported } = other;
        for (transition, count) in accepted {
            *self.accepted.entry(transition).or_default() += count;
        }
        self.out_of_range += out_of_range;
        self.invalid += invalid;
        self.unsupported += unsupported;
    }
}

/// Returns a value up to `max` from most octets, and any value from the rest.
const fn value(octet: u8, max: u8) -> u8 {
    if octet < 240 { octet % (max + 1) } else { octet }
}

/// Returns an address vector, and true if it is valid at a node with one address of each family.
fn address(choice: u8, octet: u8) -> (AddressVector, bool) {
    let of = |ip: &str| Gid::of(ip.parse().expect("an address"));
    let valid = AddressVector {
        dgid: of("10.0.0.2"),
        flow_label: u32::from(octet) << 16,
        sgid_index: 0,
        hop_limit: octet,
        traffic_class: octet,
        dlid: 0xc000,
        sl: octet & 15,
        src_path_bits: octet,
        static_rate: octet,
        is_global: 1 | octet & 0xfe,
        port: 1,
    };
    match choice {
        0..=199 => match choice & 1 {
            0 => (valid, true),
            _ => (AddressVector { dgid: of("fd00::2"), sgid_index: 1, ..valid }, true),
        },
        200..=206 => (AddressVector { is_global: 0, ..valid }, false),
        207..=213 => (AddressVector { port: 2, ..valid }, false),
        214..=220 => (AddressVector { sgid_index: 2 + octet % 254, ..valid }, false),
        221..=227 => (AddressVector { dgid: Gid::default(), ..valid }, false),
        228..=234 => (AddressVector { dgid: of("239.0.0.1"), ..valid }, false),
        235..=241 => (AddressVector { dgid: of("fd00::2"), ..valid }, false),
        242..=248 => (AddressVector { dgid: of("ff02::1"), sgid_index: 1, ..valid }, false),
        249..=255 => (AddressVector { sgid_index: 1, ..valid }, false),
    }
}

/// Change of a record, and true if each value that its mask names is in its range.
fn change(table: &[Transition], record: &[u8; RECORD_OCTETS], from: u32) -> (IbvQpChange, bool) {
    let [target, flips, a, b, c, current, at, rest @ ..] = record;
    // Mostly a transition of the state; otherwise any number.
    let targets: Vec<_> = (0..7).filter(|to| transition(table, from, *to).is_some()).collect();
    let to = match target {
        0..=223 => targets[usize::from(*target) % targets.len()],
        _ => u32::from(*target) - 224,
    };
    let (required, optional) = transition(table, from, to).unwrap_or((0, 0));
    let mut mask = 1 | required | optional & u32::from_le_bytes([*a, *b, *c, 0]);
    for flip in [a, b, c].into_iter().take(usize::from(flips.saturating_sub(160) / 24)) {
        mask ^= 1 << (flip % 32);
    }
    let psn = |at: usize| u32::from_le_bytes([rest[at], rest[at + 1], rest[at + 2], rest[at + 3]]);
    let (address, is_address_valid) = address(*at, rest[13]);
    let values = IbvQpAttributes {
        path_mtu: match rest[0] {
            0..=239 => 1 + rest[0] % PATH_MTU_MAX,
            other => other - 240,
        },
        path_mig_state: u32::from(value(rest[1], 0)),
        rq_psn: psn(14),
        sq_psn: psn(18),
        dest_qp_num: psn(21),
        access_flags: u32::from(rest[2]),
        address,
        pkey_index: u16::from(value(rest[3], 0)),
        en_sqd_async_notify: rest[4] & 1 != 0,
        max_rd_atomic: value(rest[5], RD_ATOMIC_MAX[0]),
        max_dest_rd_atomic: value(rest[6], RD_ATOMIC_MAX[1]),
        min_rnr_timer: value(rest[7], 31),
        port: if rest[8] < 240 { 1 } else { rest[8] - 240 },
        timeout: value(rest[9], 31),
        retry_cnt: value(rest[10], 7),
        rnr_retry: value(rest[11], 7),
        qkey: psn(17),
    };
    let in_range = [
        (4, values.pkey_index == 0),
        (5, values.port == 1),
        (7, is_address_valid),
        (8, (1..=PATH_MTU_MAX).contains(&values.path_mtu)),
        (9, values.timeout < 32),
        (10, values.retry_cnt < 8),
        (11, values.rnr_retry < 8),
        (13, values.max_rd_atomic <= RD_ATOMIC_MAX[0]),
        (14, false),
        (15, values.min_rnr_timer < 32),
        (17, values.max_dest_rd_atomic <= RD_ATOMIC_MAX[1]),
        (18, values.path_mig_state == 0),
    ];
    let is_in_range = in_range.iter().all(|(bit, is_valid)| mask >> bit & 1 == 0 || *is_valid);
    let current_state = if *current < 240 { from } else { u32::from(*current - 240) };
    (IbvQpChange { mask, state: to, current_state, values }, is_in_range)
}

/// Returns the attributes after an accepted change.
fn changed(before: &IbvQpAttributes, change: &IbvQpChange, to: u32) -> IbvQpAttributes {
    if to == 0 {
        return IbvQpAttributes::default();
    }
    let (given, mut after) = (&change.values, *before);
    let has = |bit: u32| change.mask >> bit & 1 != 0;
    macro_rules! set {
        ($($bit:literal $field:ident $(& $bits:literal)?;)*) => {
            $(if has($bit) { after.$field = given.$field $(& $bits)?; })*
        };
    }
    set! {
        2 en_sqd_async_notify;
        3 access_flags;
        4 pkey_index;
        5 port;
        6 qkey;
        7 address;
        8 path_mtu;
        9 timeout;
        10 retry_cnt;
        11 rnr_retry;
        12 rq_psn & 0xff_ffff;
        13 max_rd_atomic;
        15 min_rnr_timer;
        16 sq_psn & 0xff_ffff;
        17 max_dest_rd_atomic;
        18 path_mig_state;
        20 dest_qp_num & 0xff_ffff;
    }
    after.address.flow_label &= 0xf_ffff;
    after
}

fn identity() -> Identity {
    let node = NodeOptions {
        addresses: ["10.0.0.1/24", "fd00::1/64"].map(|it| it.parse().expect("an address")).into(),
        mtu_bytes: 1500,
        mac: Some("02:00:00:00:00:01".parse().expect("an address")),
        ..NodeOptions::default()
    };
    let options = AdapterOptions {
        transport: TransportOptions::Node(Box::new(node)),
        device: DeviceKind::Roce,
        ..AdapterOptions::default()
    };
    Identity::new(&options, || Some(Vec::new()))
}

/// Makes the changes of a script, from RESET on.
///
/// # Panics
/// On a violation.
pub fn run(octets: &[u8]) -> Summary {
    let identity = identity();
    // The last octet of the first record.
    let index =
        usize::from(octets.get(RECORD_OCTETS - 1).copied().unwrap_or_default()) % KINDS.len();
    let (kind, table) = KINDS[index];
    let [rd_atomic_max, dest_rd_atomic_max] = RD_ATOMIC_MAX.map(u32::from);
    let limits = IbvQpLimits { kind, identity: &identity, rd_atomic_max, dest_rd_atomic_max };
    let (mut state, mut attributes) = (IbvQpState::Reset, IbvQpAttributes::default());
    let mut summary = Summary::default();
    for record in octets.as_chunks::<RECORD_OCTETS>().0 {
        let from = state as u32;
        let (change, is_in_range) = change(table, record, from);
        let to = if change.mask & 1 == 0 { from } else { change.state };
        let given = change.mask & !1;
        let is_permitted = transition(table, from, to).is_some_and(|(required, optional)| {
            given & required == required && given & !(required | optional) == 0
        }) && (given & 2 == 0 || change.current_state == from);
        let expected = match (change.mask & !STANDARD, is_permitted && is_in_range) {
            (1.., _) => Err(Errno::OPNOTSUPP),
            (0, false) => Err(Errno::INVAL),
            (0, true) => Ok((to, changed(&attributes, &change, to))),
        };
        let found = change.apply(state, &attributes, &limits);
        assert_eq!(found.map(|(to, after)| (to as u32, after)), expected, "{state:?}: {change:?}");
        match found {
            Ok((to, after)) => {
                *summary.accepted.entry((index, from, to as u32)).or_default() += 1;
                (state, attributes) = (to, after);
            }
            Err(Errno::OPNOTSUPP) => summary.unsupported += 1,
            Err(_) if is_permitted => summary.out_of_range += 1,
            Err(_) => summary.invalid += 1,
        }
    }
    summary
}

/// Returns the script of a seed.
#[must_use]
pub fn script(seed: u64) -> Vec<u8> {
    let mut random = Rand32::new(seed);
    (0..60 * RECORD_OCTETS).map(|_| random.rand_u32() as u8).collect()
}

/// Runs libFuzzer's octets as a script.
pub fn check(octets: &[u8]) {
    run(octets);
}
