//! Attributes that programs set on queue pairs of the RoCE device, and the transitions that set them.
//!
//! The tables of transitions are those of InfiniBand: for each, the attributes that must be given and those that may
//! be. The check is pure. Only attributes that the mask names are read; the others have undefined values.

use rdma_over_tcp::rnic::{DatagramPath, QpService};

use crate::{
    errno::Errno,
    gid::{Gid, GidEntry},
    identity::Identity,
};

/// State of a queue pair, `IBV_QPS_*`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum IbvQpState {
    /// Accepts no request.
    Reset = 0,
    /// Accepts receives.
    Init = 1,
    /// Accepts receives.
    ReadyToReceive = 2,
    /// Accepts all requests.
    ReadyToSend = 3,
    /// Starts no request.
    Drained = 4,
    /// Flushes requests after a failed one, and accepts receives: SQE, without a connection or acknowledgments.
    SendError = 5,
    /// Flushes all requests.
    Error = 6,
}

impl IbvQpState {
    /// Returns the state with this number. `None`: not a state that a program may request.
    pub const fn from_number(number: u32) -> Option<Self> {
        Some(match number {
            0 => Self::Reset,
            1 => Self::Init,
            2 => Self::ReadyToReceive,
            3 => Self::ReadyToSend,
            4 => Self::Drained,
            6 => Self::Error,
            _ => return None,
        })
    }
}

/// Bits of an attribute mask, `IBV_QP_*`.
#[expect(missing_docs, reason = "names of the C headers")]
pub mod mask {
    pub const STATE: u32 = 1;
    pub const CUR_STATE: u32 = 1 << 1;
    pub const EN_SQD_ASYNC_NOTIFY: u32 = 1 << 2;
    pub const ACCESS_FLAGS: u32 = 1 << 3;
    pub const PKEY_INDEX: u32 = 1 << 4;
    pub const PORT: u32 = 1 << 5;
    pub const QKEY: u32 = 1 << 6;
    pub const AV: u32 = 1 << 7;
    pub const PATH_MTU: u32 = 1 << 8;
    pub const TIMEOUT: u32 = 1 << 9;
    pub const RETRY_CNT: u32 = 1 << 10;
    pub const RNR_RETRY: u32 = 1 << 11;
    pub const RQ_PSN: u32 = 1 << 12;
    pub const MAX_QP_RD_ATOMIC: u32 = 1 << 13;
    pub const ALT_PATH: u32 = 1 << 14;
    pub const MIN_RNR_TIMER: u32 = 1 << 15;
    pub const SQ_PSN: u32 = 1 << 16;
    pub const MAX_DEST_RD_ATOMIC: u32 = 1 << 17;
    pub const PATH_MIG_STATE: u32 = 1 << 18;
    pub const CAP: u32 = 1 << 19;
    pub const DEST_QPN: u32 = 1 << 20;
    /// All bits that a request may have.
    pub const STANDARD: u32 = (1 << 21) - 1;
}

/// Number of the only port.
const PORT: u8 = 1;
/// `IBV_MIG_MIGRATED`.
const MIGRATED: u32 = 0;
/// Path MTU of a queue pair before one is set, `IBV_MTU_256`.
const PATH_MTU_INITIAL: u8 = 1;
/// Largest number of a path MTU, `IBV_MTU_4096`.
const PATH_MTU_LAST: u8 = 5;
/// Largest code of a timeout or of an RNR timer.
const TIMER_CODE_MAX: u8 = 31;
/// Largest number of retries.
const RETRIES_MAX: u8 = 7;
/// Bits of PSNs and QP numbers.
const NUMBER_BITS: u32 = 0xff_ffff;
/// Bits of a flow label.
const FLOW_LABEL_BITS: u32 = 0xf_ffff;

/// Address vector.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
#[expect(missing_docs, reason = "members of ibv_ah_attr")]
pub struct AddressVector {
    pub dgid: Gid,
    pub flow_label: u32,
    pub sgid_index: u8,
    pub hop_limit: u8,
    pub traffic_class: u8,
    pub dlid: u16,
    pub sl: u8,
    pub src_path_bits: u8,
    pub static_rate: u8,
    pub is_global: u8,
    pub port: u8,
}

impl AddressVector {
    /// Checks an address vector, and masks its flow label.
    ///
    /// # Errors
    /// `EINVAL`: another port, no global route, an index beyond the GID table, or a destination that is not a unicast
    /// address of the family of the source.
    pub fn checked(mut self, identity: &Identity) -> Result<Self, Errno> {
        let source = identity.gids().get(self.sgid_index.into()).ok_or(Errno::INVAL)?.gid;
        let is_same_family = source.ip().is_ipv4() == self.dgid.ip().is_ipv4();
        if self.port != PORT || self.is_global == 0 || !self.dgid.is_unicast() || !is_same_family {
            return Err(Errno::INVAL);
        }
        self.flow_label &= FLOW_LABEL_BITS;
        Ok(self)
    }

    /// Returns the addresses of datagrams. The vector is [checked](Self::checked).
    ///
    /// # Errors
    /// `EINVAL`: the GID entry is empty.
    pub fn datagram_path(&self, identity: &Identity) -> Result<DatagramPath, Errno> {
        let entries = identity.current_gids();
        let entry = entries.get(usize::from(self.sgid_index)).copied().flatten();
        let GidEntry { gid, interface } = entry.ok_or(Errno::INVAL)?;
        Ok(DatagramPath { local: gid.ip(), remote: self.dgid.at(interface, 0) })
    }
}

/// Attributes of a queue pair, as `ibv_query_qp` returns them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[expect(missing_docs, reason = "members of ibv_qp_attr")]
pub struct IbvQpAttributes {
    pub path_mtu: u8,
    pub path_mig_state: u32,
    pub rq_psn: u32,
    pub sq_psn: u32,
    pub dest_qp_num: u32,
    pub access_flags: u32,
    pub address: AddressVector,
    pub pkey_index: u16,
    pub en_sqd_async_notify: bool,
    pub max_rd_atomic: u8,
    pub max_dest_rd_atomic: u8,
    pub min_rnr_timer: u8,
    pub port: u8,
    pub timeout: u8,
    pub retry_cnt: u8,
    pub rnr_retry: u8,
    pub qkey: u32,
}

impl Default for IbvQpAttributes {
    fn default() -> Self {
        Self {
            path_mtu: PATH_MTU_INITIAL,
            path_mig_state: MIGRATED,
            rq_psn: 0,
            sq_psn: 0,
            dest_qp_num: 0,
            access_flags: 0,
            address: AddressVector::default(),
            pkey_index: 0,
            en_sqd_async_notify: false,
            max_rd_atomic: 0,
            max_dest_rd_atomic: 0,
            min_rnr_timer: 0,
            port: PORT,
            timeout: 0,
            retry_cnt: 0,
            rnr_retry: 0,
            qkey: 0,
        }
    }
}

/// Type of a queue pair, `IBV_QPT_*`.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum QpKind {
    /// Reliable connected.
    #[default]
    Rc,
    /// Unreliable connected.
    Uc,
    /// Unreliable datagram.
    Ud,
}

impl QpKind {
    /// Service in the core of a queue pair that the program connects.
    pub(crate) const fn service(self) -> QpService {
        match self {
            Self::Rc => QpService::Rc,
            Self::Uc => QpService::Uc,
            Self::Ud => QpService::Ud,
        }
    }
}

/// Arguments of `ibv_modify_qp`.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct IbvQpChange {
    /// Attributes that are given, [`mask`].
    pub mask: u32,
    /// Requested state.
    pub state: u32,
    /// State in which the program expects the queue pair.
    pub current_state: u32,
    /// Values of the attributes that the mask names.
    pub values: IbvQpAttributes,
}

/// Limits of attributes, with the identity of the device.
#[derive(Clone, Copy, Debug)]
pub struct IbvQpLimits<'a> {
    /// Type of the queue pair, which selects the table.
    pub kind: QpKind,
    /// Identity of the device.
    pub identity: &'a Identity,
    /// Reads and atomics that the queue pair may have outstanding.
    pub rd_atomic_max: u32,
    /// Reads and atomics of the peer that it may serve at a time.
    pub dest_rd_atomic_max: u32,
}

/// Transition with its attributes.
#[derive(Clone, Copy, Debug)]
struct Transition {
    from: IbvQpState,
    to: IbvQpState,
    required: u32,
    optional: u32,
}

/// Attributes that may be changed while requests can be sent.
const OF_SENDER: u32 = mask::CUR_STATE
    | mask::ACCESS_FLAGS
    | mask::ALT_PATH
    | mask::PATH_MIG_STATE
    | mask::MIN_RNR_TIMER;

/// The same of UC queue pairs.
const UC_SENDER: u32 = OF_SENDER & !mask::MIN_RNR_TIMER;

macro_rules! transitions {
    ($($from:ident $to:ident: $required:expr, $optional:expr;)*) => {
        &[$(Transition {
            from: IbvQpState::$from,
            to: IbvQpState::$to,
            required: $required,
            optional: $optional,
        }),*]
    };
}

/// Transitions of all queue pairs. Every other one that is not of the type is refused.
const TRANSITIONS: &[Transition] = transitions! {
    Reset Reset: 0, 0;
    Init Reset: 0, 0;
    ReadyToReceive Reset: 0, 0;
    ReadyToSend Reset: 0, 0;
    Drained Reset: 0, 0;
    Error Reset: 0, 0;
    Init Error: 0, 0;
    ReadyToReceive Error: 0, 0;
    ReadyToSend Error: 0, 0;
    Drained Error: 0, 0;
    Error Error: 0, 0;
    ReadyToSend Drained: 0, mask::EN_SQD_ASYNC_NOTIFY;
};

/// Transitions of RC queue pairs.
const RC_TRANSITIONS: &[Transition] = transitions! {
    Reset Init: mask::PKEY_INDEX | mask::PORT | mask::ACCESS_FLAGS, 0;
    Init Init: 0, mask::PKEY_INDEX | mask::PORT | mask::ACCESS_FLAGS;
    Init ReadyToReceive:
        mask::AV | mask::PATH_MTU | mask::DEST_QPN | mask::RQ_PSN | mask::MAX_DEST_RD_ATOMIC | mask::MIN_RNR_TIMER,
        mask::ALT_PATH | mask::ACCESS_FLAGS | mask::PKEY_INDEX;
    ReadyToReceive ReadyToSend:
        mask::TIMEOUT | mask::RETRY_CNT | mask::RNR_RETRY | mask::SQ_PSN | mask::MAX_QP_RD_ATOMIC,
        OF_SENDER;
    ReadyToSend ReadyToSend: 0, OF_SENDER;
    Drained ReadyToSend: 0, OF_SENDER;
    Drained Drained: 0,
        mask::PORT | mask::AV | mask::TIMEOUT | mask::RETRY_CNT | mask::RNR_RETRY | mask::MAX_QP_RD_ATOMIC
            | mask::MAX_DEST_RD_ATOMIC | mask::ALT_PATH | mask::ACCESS_FLAGS | mask::PKEY_INDEX
            | mask::MIN_RNR_TIMER | mask::PATH_MIG_STATE;
};

/// Transitions of UC queue pairs. Requests have no errors of the peer, so a queue pair is never in SQE.
const UC_TRANSITIONS: &[Transition] = transitions! {
    Reset Init: mask::PKEY_INDEX | mask::PORT | mask::ACCESS_FLAGS, 0;
    Init Init: 0, mask::PKEY_INDEX | mask::PORT | mask::ACCESS_FLAGS;
    Init ReadyToReceive:
        mask::AV | mask::PATH_MTU | mask::DEST_QPN | mask::RQ_PSN,
        mask::ALT_PATH | mask::ACCESS_FLAGS | mask::PKEY_INDEX;
    ReadyToReceive ReadyToSend: mask::SQ_PSN, UC_SENDER;
    ReadyToSend ReadyToSend: 0, UC_SENDER;
    Drained ReadyToSend: 0, UC_SENDER;
    Drained Drained: 0,
        mask::AV | mask::ALT_PATH | mask::ACCESS_FLAGS | mask::PKEY_INDEX | mask::PATH_MIG_STATE;
};

/// Transitions of UD queue pairs.
const UD_TRANSITIONS: &[Transition] = transitions! {
    SendError Reset: 0, 0;
    SendError Error: 0, 0;
    Reset Init: mask::PKEY_INDEX | mask::PORT | mask::QKEY, 0;
    Init Init: 0, mask::PKEY_INDEX | mask::PORT | mask::QKEY;
    Init ReadyToReceive: 0, mask::PKEY_INDEX | mask::QKEY;
    ReadyToReceive ReadyToSend: mask::SQ_PSN, mask::CUR_STATE | mask::QKEY;
    ReadyToSend ReadyToSend: 0, mask::CUR_STATE | mask::QKEY;
    Drained ReadyToSend: 0, mask::CUR_STATE | mask::QKEY;
    Drained Drained: 0, mask::PKEY_INDEX | mask::QKEY;
    SendError ReadyToSend: 0, mask::CUR_STATE | mask::QKEY;
};

/// Returns the transitions of a type.
fn transitions(kind: QpKind) -> impl Iterator<Item = &'static Transition> {
    let own = match kind {
        QpKind::Rc => RC_TRANSITIONS,
        QpKind::Uc => UC_TRANSITIONS,
        QpKind::Ud => UD_TRANSITIONS,
    };
    TRANSITIONS.iter().chain(own)
}

impl IbvQpChange {
    /// Checks the transition from `from`, and returns its state.
    fn target(&self, kind: QpKind, from: IbvQpState) -> Result<IbvQpState, Errno> {
        if self.mask & !mask::STANDARD != 0 {
            return Err(Errno::OPNOTSUPP);
        }
        let to = match self.mask & mask::STATE {
            0 => from,
            _ => IbvQpState::from_number(self.state).ok_or(Errno::INVAL)?,
        };
        let given = self.mask & !mask::STATE;
        let is_permitted = |it: &Transition| {
            let Transition { required, optional, .. } = *it;
            (it.from, it.to) == (from, to)
                && given & required == required
                && given & !(required | optional) == 0
        };
        if !transitions(kind).any(is_permitted)
            || given & mask::CUR_STATE != 0 && self.current_state != from as u32
        {
            return Err(Errno::INVAL);
        }
        Ok(to)
    }

    /// Checks that the values are in their ranges.
    fn check_values(&self, limits: &IbvQpLimits<'_>) -> Result<(), Errno> {
        let IbvQpAttributes {
            path_mtu,
            path_mig_state,
            pkey_index,
            max_rd_atomic,
            max_dest_rd_atomic,
            min_rnr_timer,
            port,
            timeout,
            retry_cnt,
            rnr_retry,
            // Any value is valid, or the address vector is checked separately.
            rq_psn: _,
            sq_psn: _,
            dest_qp_num: _,
            access_flags: _,
            address: _,
            en_sqd_async_notify: _,
            qkey: _,
        } = self.values;
        let mtu_max = limits.identity.active_mtu().min(PATH_MTU_LAST);
        let is_valid = |bit: u32| match bit {
            mask::PKEY_INDEX => pkey_index == 0,
            mask::PORT => port == PORT,
            mask::PATH_MTU => (PATH_MTU_INITIAL..=mtu_max).contains(&path_mtu),
            mask::TIMEOUT => timeout <= TIMER_CODE_MAX,
            mask::RETRY_CNT => retry_cnt <= RETRIES_MAX,
            mask::RNR_RETRY => rnr_retry <= RETRIES_MAX,
            mask::MAX_QP_RD_ATOMIC => u32::from(max_rd_atomic) <= limits.rd_atomic_max,
            mask::MAX_DEST_RD_ATOMIC => u32::from(max_dest_rd_atomic) <= limits.dest_rd_atomic_max,
            mask::MIN_RNR_TIMER => min_rnr_timer <= TIMER_CODE_MAX,
            mask::PATH_MIG_STATE => path_mig_state == MIGRATED,
            // There is one path.
            mask::ALT_PATH => false,
            _ => true,
        };
        let bits = (0..u32::BITS).map(|bit| 1 << bit);
        match bits.filter(|bit| self.mask & bit != 0).all(is_valid) {
            true => Ok(()),
            false => Err(Errno::INVAL),
        }
    }

    /// Returns state and attributes after the change of a queue pair in `from`.
    ///
    /// # Errors
    /// `EOPNOTSUPP`: a bit beyond [`mask::STANDARD`]. `EINVAL`: the transition does not exist, an attribute is missing,
    /// not permitted or out of its range, or another current state.
    pub fn apply(
        &self,
        from: IbvQpState,
        before: &IbvQpAttributes,
        limits: &IbvQpLimits<'_>,
    ) -> Result<(IbvQpState, IbvQpAttributes), Errno> {
        let to = self.target(limits.kind, from)?;
        self.check_values(limits)?;
        if to == IbvQpState::Reset {
            return Ok((to, IbvQpAttributes::default()));
        }
        let given = &self.values;
        let mut after = *before;
        if self.mask & mask::AV != 0 {
            after.address = given.address.checked(limits.identity)?;
        }
        macro_rules! set {
            ($($bit:ident $field:ident $(& $bits:expr)?;)*) => {$(
                if self.mask & mask::$bit != 0 {
                    after.$field = given.$field $(& $bits)?;
                }
            )*};
        }
        set! {
            EN_SQD_ASYNC_NOTIFY en_sqd_async_notify;
            ACCESS_FLAGS access_flags;
            PKEY_INDEX pkey_index;
            PORT port;
            PATH_MTU path_mtu;
            TIMEOUT timeout;
            RETRY_CNT retry_cnt;
            RNR_RETRY rnr_retry;
            RQ_PSN rq_psn & NUMBER_BITS;
            MAX_QP_RD_ATOMIC max_rd_atomic;
            MIN_RNR_TIMER min_rnr_timer;
            SQ_PSN sq_psn & NUMBER_BITS;
            MAX_DEST_RD_ATOMIC max_dest_rd_atomic;
            PATH_MIG_STATE path_mig_state;
            DEST_QPN dest_qp_num & NUMBER_BITS;
            QKEY qkey;
        }
        Ok((to, after))
    }
}

#[cfg(test)]
mod tests {
    use flue_adapter::{AdapterOptions, DeviceKind, NodeOptions, TransportOptions};

    use super::*;

    const STATES: [IbvQpState; 7] = [
        IbvQpState::Reset,
        IbvQpState::Init,
        IbvQpState::ReadyToReceive,
        IbvQpState::ReadyToSend,
        IbvQpState::Drained,
        IbvQpState::SendError,
        IbvQpState::Error,
    ];

    fn identity() -> Identity {
        let node = NodeOptions {
            addresses: ["10.0.0.1/24", "fd00::1/64"].map(|it| it.parse().unwrap()).into(),
            mtu_bytes: 1500,
            mac: Some("02:00:00:00:00:01".parse().unwrap()),
            ..NodeOptions::default()
        };
        let options = AdapterOptions {
            transport: TransportOptions::Node(Box::new(node)),
            device: DeviceKind::Roce,
            ..AdapterOptions::default()
        };
        Identity::new(&options, || None)
    }

    fn limits(identity: &Identity, kind: QpKind) -> IbvQpLimits<'_> {
        IbvQpLimits { kind, identity, rd_atomic_max: 128, dest_rd_atomic_max: 64 }
    }

    /// Returns valid values of all attributes, different from the initial ones.
    fn values() -> IbvQpAttributes {
        let address = AddressVector {
            dgid: Gid::of([10, 0, 0, 2].into()),
            flow_label: 0xfff_ffff,
            hop_limit: 1,
            traffic_class: 3,
            dlid: 0xc000,
            sl: 5,
            is_global: 1,
            port: 1,
            ..AddressVector::default()
        };
        IbvQpAttributes {
            path_mtu: 3,
            path_mig_state: 0,
            rq_psn: 0xff00_0001,
            sq_psn: 0xff00_0002,
            dest_qp_num: 0x1234,
            access_flags: 15,
            address,
            pkey_index: 0,
            en_sqd_async_notify: true,
            max_rd_atomic: 128,
            max_dest_rd_atomic: 64,
            min_rnr_timer: 12,
            port: 1,
            timeout: 14,
            retry_cnt: 7,
            rnr_retry: 7,
            qkey: 0x1111_1111,
        }
    }

    fn change(from: IbvQpState, to: IbvQpState, bits: u32) -> IbvQpChange {
        IbvQpChange {
            mask: mask::STATE | bits,
            state: to as u32,
            current_state: from as u32,
            values: values(),
        }
    }

    fn result_of(
        kind: QpKind,
        from: IbvQpState,
        change: &IbvQpChange,
    ) -> Result<IbvQpState, Errno> {
        let identity = identity();
        let limits = limits(&identity, kind);
        change.apply(from, &IbvQpAttributes::default(), &limits).map(|(to, _)| to)
    }

    fn result(from: IbvQpState, change: &IbvQpChange) -> Result<IbvQpState, Errno> {
        result_of(QpKind::Rc, from, change)
    }

    fn rule_of(kind: QpKind, from: IbvQpState, to: IbvQpState) -> Option<&'static Transition> {
        transitions(kind).find(|it| (it.from, it.to) == (from, to))
    }

    fn rule(from: IbvQpState, to: IbvQpState) -> Option<&'static Transition> {
        rule_of(QpKind::Rc, from, to)
    }

    // Every pair of states, with every required bit removed and every other bit added. An alternate path is permitted
    // by the table, but there is none.
    #[test]
    fn each_transition_requires_its_attributes_and_permits_no_others() {
        for (kind, count) in [(QpKind::Rc, 19), (QpKind::Uc, 19), (QpKind::Ud, 22)] {
            check_transitions(kind, |from, change| result_of(kind, from, change));
            let transitions: Vec<_> = transitions(kind).map(|it| (it.from, it.to)).collect();
            let copies = |one| transitions.iter().filter(|other| *other == one).count();
            assert!(transitions.iter().all(|it| copies(it) == 1));
            assert_eq!(transitions.len(), count);
            assert!(rule_of(kind, IbvQpState::Reset, IbvQpState::Error).is_none());
        }
    }

    fn check_transitions(
        kind: QpKind,
        result: impl Fn(IbvQpState, &IbvQpChange) -> Result<IbvQpState, Errno>,
    ) {
        for (from, to) in STATES.into_iter().flat_map(|from| STATES.map(|to| (from, to))) {
            let Some(rule) = rule_of(kind, from, to) else {
                for bits in [0, mask::STANDARD & !mask::STATE] {
                    assert_eq!(result(from, &change(from, to, bits)), Err(Errno::INVAL));
                }
                continue;
            };
            let required = change(from, to, rule.required);
            assert_eq!(result(from, &required), Ok(to), "{from:?} to {to:?}");
            for bit in (1..32).map(|bit| 1_u32 << bit) {
                let with = change(from, to, rule.required | bit);
                let without = change(from, to, rule.required & !bit);
                let expected = match bit {
                    _ if bit & !mask::STANDARD != 0 => Err(Errno::OPNOTSUPP),
                    mask::ALT_PATH => Err(Errno::INVAL),
                    _ if bit & (rule.required | rule.optional) != 0 => Ok(to),
                    _ => Err(Errno::INVAL),
                };
                assert_eq!(result(from, &with), expected, "{from:?} to {to:?} with {bit:#x}");
                if bit & rule.required != 0 {
                    assert_eq!(result(from, &without), Err(Errno::INVAL), "{from:?} to {to:?}");
                }
            }
        }
    }

    // Without a state, the current one is the target.
    #[test]
    fn state_is_optional_and_current_state_is_compared() {
        let mut timer = change(IbvQpState::ReadyToSend, IbvQpState::Reset, mask::MIN_RNR_TIMER);
        timer.mask &= !mask::STATE;
        assert_eq!(result(IbvQpState::ReadyToSend, &timer), Ok(IbvQpState::ReadyToSend));
        assert_eq!(result(IbvQpState::ReadyToReceive, &timer), Err(Errno::INVAL));
        timer.mask |= mask::CUR_STATE;
        assert_eq!(result(IbvQpState::ReadyToSend, &timer), Ok(IbvQpState::ReadyToSend));
        for other in [2, 4, 5, 6, 7, 99] {
            timer.current_state = other;
            assert_eq!(result(IbvQpState::ReadyToSend, &timer), Err(Errno::INVAL), "{other}");
        }
        for unknown in [5, 7, 255] {
            let mut change = change(IbvQpState::ReadyToSend, IbvQpState::Error, 0);
            change.state = unknown;
            assert_eq!(result(IbvQpState::ReadyToSend, &change), Err(Errno::INVAL));
        }
    }

    #[test]
    fn values_out_of_range_are_refused_only_if_the_mask_names_them() {
        type Edit = fn(&mut IbvQpAttributes);
        let of_rtr: [Edit; 14] = [
            |it| it.path_mtu = 0,
            |it| it.path_mtu = 4,
            |it| it.path_mtu = 6,
            |it| it.max_dest_rd_atomic = 65,
            |it| it.min_rnr_timer = 32,
            |it| it.address.is_global = 0,
            |it| it.address.port = 0,
            |it| it.address.port = 2,
            |it| it.address.sgid_index = 2,
            |it| it.address.sgid_index = 1,
            |it| it.address.dgid = Gid::default(),
            |it| it.address.dgid = Gid::of([239, 0, 0, 1].into()),
            |it| it.address.dgid = Gid::of("fd00::2".parse().unwrap()),
            |it| it.address.dgid = Gid::of("ff02::1".parse().unwrap()),
        ];
        let of_rts: [Edit; 4] = [
            |it| it.timeout = 32,
            |it| it.retry_cnt = 8,
            |it| it.rnr_retry = 8,
            |it| it.max_rd_atomic = 129,
        ];
        let of_init: [Edit; 3] = [|it| it.pkey_index = 1, |it| it.port = 0, |it| it.port = 2];
        let (reset, init) = (IbvQpState::Reset, IbvQpState::Init);
        let (rtr, rts) = (IbvQpState::ReadyToReceive, IbvQpState::ReadyToSend);
        let cases = [
            (init, rtr, &of_rtr[..], &of_rts[..]),
            (rtr, rts, &of_rts, &of_rtr),
            (reset, init, &of_init, &of_rtr),
        ];
        for (from, to, own, others) in cases {
            let Some(rule) = rule(from, to) else { panic!("a transition") };
            for (at, edit) in own.iter().enumerate() {
                let mut bad = change(from, to, rule.required);
                edit(&mut bad.values);
                assert_eq!(result(from, &bad), Err(Errno::INVAL), "{to:?} {at}");
            }
            let mut garbage = change(from, to, rule.required);
            others.iter().for_each(|edit| edit(&mut garbage.values));
            assert_eq!(result(from, &garbage), Ok(to));
        }
        let mut migrating = change(rts, rts, mask::PATH_MIG_STATE);
        migrating.values.path_mig_state = 1;
        assert_eq!(result(rts, &migrating), Err(Errno::INVAL));
    }

    #[test]
    fn attributes_are_kept_until_reset() {
        let identity = identity();
        let mut now = (IbvQpState::Reset, IbvQpAttributes::default());
        let mut to = |state: IbvQpState| {
            let Some(rule) = rule(now.0, state) else { panic!("a transition") };
            let change = change(now.0, state, rule.required);
            now = change.apply(now.0, &now.1, &limits(&identity, QpKind::Rc)).unwrap();
            now.1
        };
        let init = to(IbvQpState::Init);
        assert_eq!((init.access_flags, init.port, init.min_rnr_timer), (15, 1, 0));
        let rtr = to(IbvQpState::ReadyToReceive);
        assert_eq!((rtr.rq_psn, rtr.sq_psn, rtr.dest_qp_num), (1, 0, 0x1234));
        assert_eq!((rtr.address.flow_label, rtr.address.dlid), (0xf_ffff, 0xc000));
        let rts = to(IbvQpState::ReadyToSend);
        assert_eq!((rts.sq_psn, rts.timeout, rts.max_rd_atomic), (2, 14, 128));
        assert_eq!(to(IbvQpState::Error), rts);
        assert_eq!(to(IbvQpState::Reset), IbvQpAttributes::default());
    }
}
