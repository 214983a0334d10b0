//! Calls as records of octets, so that every input is a script, and a mutation keeps the meaning of the other
//! records.

/// Octets of a record: the kind of the call, then its fields.
pub(super) const RECORD: usize = 16;
/// Maximum calls of a script.
pub const CALLS_MAX: usize = 250;

/// Field of a record.
trait Field: Sized {
    fn read(octets: &mut impl Iterator<Item = u8>) -> Self;
    fn write(&self, octets: &mut Vec<u8>);
}

impl Field for u8 {
    fn read(octets: &mut impl Iterator<Item = u8>) -> Self {
        octets.next().unwrap_or_default()
    }

    fn write(&self, octets: &mut Vec<u8>) {
        octets.push(*self);
    }
}

impl Field for u16 {
    fn read(octets: &mut impl Iterator<Item = u8>) -> Self {
        Self::from_le_bytes([u8::read(octets), u8::read(octets)])
    }

    fn write(&self, octets: &mut Vec<u8>) {
        octets.extend(self.to_le_bytes());
    }
}

macro_rules! calls {
    ($($(#[$about:meta])* $name:ident { $($field:ident: $type:ty),* $(,)? })*) => {
        /// Call of a script. A field that selects an object is taken modulo the number of live objects of its
        /// kind.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        #[allow(missing_docs, reason = "fields are the call's arguments")]
        pub enum Call {
            $($(#[$about])* $name { $($field: $type),* },)*
        }

        /// Kinds of calls.
        const KINDS: &[fn(&[u8; RECORD - 1]) -> Call] = &[$(
            #[allow(unused_variables, unused_mut, reason = "some calls have no fields")]
            |record| {
                let mut octets = record.iter().copied();
                Call::$name { $($field: Field::read(&mut octets)),* }
            },
        )*];

        impl Call {
            /// Encodes the record that [`Call::read`] parses.
            #[must_use]
            pub fn write(&self) -> [u8; RECORD] {
                let mut octets = Vec::with_capacity(RECORD);
                let mut kind = 0;
                $(
                    if let Self::$name { $($field),* } = self {
                        octets.push(kind);
                        $($field.write(&mut octets);)*
                    }
                    kind += 1;
                )*
                let _ = kind;
                octets.resize(RECORD, 0);
                octets.try_into().unwrap_or_else(|_| unreachable!("it has this length"))
            }
        }
    };
}

calls! {
    /// Creates a domain, a completion queue, and regions for checked data.
    Prepare { entries: u8 }
    /// Connects two new identifiers, with queue pairs in one domain.
    Pair { cq: u8, other_cq: u8, srq: u8, caps: u8, reads: u8, data: u8 }
    /// `ibv_alloc_pd`.
    AllocPd {}
    /// `ibv_dealloc_pd`.
    DeallocPd { pd: u8 }
    /// `ibv_reg_mr`, `ibv_reg_mr_iova2`.
    RegMr { pd: u8, area: u8, access: u16, offset: u16, length: u16, how: u8 }
    /// `ibv_rereg_mr`.
    ReregMr { mr: u8, flags: u8, pd: u8, area: u8, access: u16, offset: u16, length: u16 }
    /// `ibv_dereg_mr`; the memory may be overwritten or become inaccessible immediately.
    DeregMr { mr: u8, after: u8 }
    /// `ibv_alloc_mw`.
    AllocMw { pd: u8, kind: u8 }
    /// `ibv_dealloc_mw`.
    DeallocMw { mw: u8 }
    /// `ibv_bind_mw`, or a bind by `ibv_post_send`.
    BindMw { qp: u8, mw: u8, mr: u8, offset: u16, length: u16, access: u8, flags: u8, how: u8 }
    /// Local invalidation of a window's key.
    InvalidateMw { qp: u8, mw: u8, flags: u8, wild: u16 }
    /// `ibv_create_comp_channel`.
    CreateChannel {}
    /// `ibv_destroy_comp_channel`.
    DestroyChannel { channel: u8 }
    /// `ibv_create_cq`.
    CreateCq { entries: u16, channel: u8 }
    /// `ibv_resize_cq`.
    ResizeCq { cq: u8, entries: u16 }
    /// `ibv_poll_cq`.
    PollCq { cq: u8, count: u8 }
    /// `ibv_req_notify_cq`.
    Notify { cq: u8, solicited: u8 }
    /// `ibv_get_cq_event`, acknowledged immediately or before the queue is destroyed.
    CqEvent { channel: u8, hold: u8 }
    /// `ibv_destroy_cq`.
    DestroyCq { cq: u8 }
    /// `ibv_create_srq`.
    CreateSrq { pd: u8, depth: u8, sges: u8 }
    /// `ibv_modify_srq`, `ibv_query_srq`.
    ModifySrq { srq: u8, mask: u8, depth: u8, limit: u8 }
    /// `ibv_post_srq_recv`.
    PostSrq { srq: u8, count: u8, shape: u8, mr: u8, length: u16 }
    /// `ibv_destroy_srq`.
    DestroySrq { srq: u8 }
    /// `ibv_create_qp`, or `rdma_create_qp` of an identifier.
    CreateQp { pd: u8, id: u8, send_cq: u8, receive_cq: u8, srq: u8, caps: u8, how: u8 }
    /// `ibv_modify_qp`.
    ModifyQp { qp: u8, state: u8, mask: u8 }
    /// `ibv_query_qp`.
    QueryQp { qp: u8 }
    /// `ibv_destroy_qp`, `rdma_destroy_qp`.
    DestroyQp { qp: u8 }
    /// `ibv_post_send` of one request or a list.
    PostSend {
        qp: u8, opcode: u8, flags: u8, shape: u8, mr: u8, length: u16, remote: u8, offset: u16, count: u8, wild: u16,
    }
    /// `ibv_wr_start` to `ibv_wr_complete`.
    Build { qp: u8, opcode: u8, flags: u8, shape: u8, length: u16, offset: u16, finish: u8 }
    /// `ibv_post_recv`.
    PostRecv { qp: u8, count: u8, shape: u8, mr: u8, length: u16 }
    /// `ibv_get_async_event`, acknowledged immediately or before the object is destroyed.
    AsyncEvent { hold: u8 }
    /// `rdma_create_id`.
    CreateId { channel: u8, space: u8 }
    /// `rdma_bind_addr`.
    Bind { id: u8, how: u8 }
    /// `rdma_listen`.
    Listen { id: u8, backlog: u8 }
    /// `rdma_resolve_addr`.
    ResolveAddr { id: u8, to: u8, how: u8 }
    /// `rdma_resolve_route`.
    ResolveRoute { id: u8 }
    /// `rdma_connect`.
    Connect { id: u8, qp: u8, data: u8, reads: u8 }
    /// `rdma_accept`.
    Accept { id: u8, qp: u8, data: u8, reads: u8 }
    /// `rdma_reject`.
    Reject { id: u8, data: u8 }
    /// `rdma_disconnect`.
    Disconnect { id: u8 }
    /// `rdma_get_cm_event`, acknowledged immediately or before the identifier is destroyed.
    CmEvent { channel: u8, hold: u8 }
    /// `rdma_migrate_id`.
    Migrate { id: u8, channel: u8 }
    /// `rdma_destroy_id`.
    DestroyId { id: u8 }
    /// Waits until the pending connects have completed.
    Establish { id: u8 }
    /// Waits until the signaled requests of live connections have completed, or for a short time.
    Drain { cq: u8 }
}

impl Call {
    /// Parses a record; every record is valid.
    #[must_use]
    pub fn read(record: &[u8; RECORD]) -> Self {
        let [kind, fields @ ..] = record;
        KINDS[usize::from(*kind) % KINDS.len()](fields)
    }
}

/// Parses a script; an incomplete record is ignored.
#[must_use]
pub fn read(octets: &[u8]) -> Vec<Call> {
    let (records, _) = octets.as_chunks::<RECORD>();
    records.iter().take(CALLS_MAX).map(Call::read).collect()
}

/// Encodes the octets that [`read`] parses.
#[must_use]
pub fn write(script: &[Call]) -> Vec<u8> {
    script.iter().flat_map(Call::write).collect()
}
