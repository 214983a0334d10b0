use std::{boxed::Box, vec::Vec};

use super::*;
use crate::{
    error::WireError,
    rnic::{
        memory::{
            buffer::RegisteredBuffer, fast::FastMemory, region::FastRegisterLimits,
            registration::AccessError,
        },
        objects::{
            id::{PdId, RegionId},
            lifetime::Returns,
        },
    },
};

const BASE: u64 = 0x1_0000_0000;
const BYTES: u64 = 8192;
const PEERS: Access = Access::REMOTE_READ;

/// Registered region, and users of two domains.
struct Bench {
    regions: Regions,
    region: RegionId,
    users: [User; 3],
    buffer: RegisteredBuffer,
}

impl Bench {
    fn new(rights: Access) -> Self {
        let regions = Regions::new([8; 3], 7, Returns::new(Box::new(|| {})));
        let buffer = RegisteredBuffer::allocate(BYTES as usize).unwrap().at_address(BASE);
        // The first two users are of one domain.
        let users = [(0, 0), (0, 1), (1, 2)];
        let users = users.map(|(pd, qp)| User { pd: PdId::new(pd, 0), qp: QpId::new(qp, 0) });
        let region = RegionId::new(0, 0);
        let mut bench = Self { regions, region, users, buffer };
        bench.region = bench.registered(rights);
        bench
    }

    fn registered(&mut self, rights: Access) -> RegionId {
        let region = Region::new(self.users[0].pd, false);
        let id = self.regions.table.insert(region).unwrap();
        self.regions.register_part(id, &self.buffer, 0, BYTES as usize, rights).unwrap();
        id
    }

    fn window(&mut self, kind: WindowType) -> WindowId {
        let (life, keys) = (Life::default(), Keys::default());
        let pd = self.users[0].pd;
        let window = Window { life, pd, kind, token: 0, keys, binding: None };
        let id = self.regions.windows.insert(window).unwrap();
        let token = self.regions.draw(Owner::Window(id)).unwrap();
        self.regions.windows.get_mut(id).unwrap().token = token;
        id
    }

    fn all(&self, window: WindowId) -> Bind {
        let region = self.region;
        Bind { window, key: None, region, address: BASE, length: BYTES, base: BASE, rights: PEERS }
    }

    /// Prepares and executes a bind.
    fn bind(&mut self, bind: Bind) -> Result<(u32, bool), VerbError> {
        let prepared = self.regions.prepare_bind(self.users[0].pd, bind)?;
        Ok((prepared.token, self.regions.bind(self.users[0], prepared)))
    }

    fn bound(&mut self, bind: Bind) -> u32 {
        let (token, is_bound) = self.bind(bind).unwrap();
        assert!(is_bound);
        token
    }

    /// Results of an access by each user.
    fn errors(&self, token: u32, address: u64, right: Access) -> [Option<AccessError>; 3] {
        self.users.map(|user| self.regions.access(user, token, address, 1, right).err())
    }

    fn windows(&self) -> u32 {
        self.regions.table.get(self.region).unwrap().windows
    }
}

// A window of type 1 is for peers of its domain, one of type 2 for the peer of its queue pair. Local accesses are
// refused.
#[test]
fn window_is_limited_to_its_users() {
    let mut bench = Bench::new(Access::BIND);
    let [one, two] = [WindowType::One, WindowType::Two].map(|kind| bench.window(kind));
    let [of_one, of_two] = [one, two].map(|window| bench.bound(bench.all(window)));
    let foreign = Some(AccessError::NotAssociated);
    assert_eq!(bench.errors(of_one, BASE, PEERS), [None, None, foreign]);
    assert_eq!(bench.errors(of_two, BASE, PEERS), [None, foreign, foreign]);
    for local in [Access::NONE, Access::LOCAL_WRITE] {
        for token in [of_one, of_two] {
            let refused = Some(AccessError::Rights);
            assert_eq!(bench.errors(token, BASE, local)[0], refused, "{local:?}");
        }
    }
    assert_eq!(bench.errors(of_one, BASE, Access::REMOTE_WRITE)[0], Some(AccessError::Rights));
    // The region itself is not accessible to peers.
    let token = bench.regions.table.get(bench.region).unwrap().token.unwrap();
    assert_eq!(bench.errors(token, BASE, PEERS)[0], Some(AccessError::Rights));
    assert_eq!(bench.windows(), 2);
}

// NDK-MEM-11: a window covers bytes of its region, with rights that the region allows.
#[test]
fn window_is_limited_to_its_region() {
    let writes = [Access::REMOTE_WRITE, Access::REMOTE_ATOMIC];
    for (of_region, refused) in [
        (Access::BIND | Access::LOCAL_WRITE, &[][..]),
        (Access::BIND, &writes),
        (Access::LOCAL_WRITE, &[PEERS, Access::REMOTE_WRITE, Access::REMOTE_ATOMIC]),
    ] {
        let mut bench = Bench::new(of_region);
        for rights in [PEERS, Access::REMOTE_WRITE, Access::REMOTE_ATOMIC] {
            let window = bench.window(WindowType::Two);
            let result = bench.bind(Bind { rights, ..bench.all(window) });
            let error = refused.contains(&rights).then_some(VerbError::RightsNotAllowed);
            assert_eq!(result.err(), error, "{rights:?} of {of_region:?}");
        }
    }
    let mut bench = Bench::new(Access::BIND | Access::LOCAL_WRITE);
    let window = bench.window(WindowType::Two);
    let all = bench.all(window);
    for bad in [
        Bind { address: BASE - 1, ..all },
        Bind { length: BYTES + 1, ..all },
        Bind { address: BASE + 1, ..all },
        Bind { address: BASE + BYTES, length: 1, ..all },
        Bind { length: u64::MAX, base: 0, ..all },
        Bind { base: u64::MAX - 5, ..all },
        Bind { length: 0, ..all },
        Bind { rights: PEERS | Access::LOCAL_WRITE, ..all },
        Bind { rights: PEERS | Access::BIND, ..all },
    ] {
        assert_eq!(bench.bind(bad), Err(VerbError::InvalidArgument), "{bad:?}");
    }
    let foreign = bench.users[2].pd;
    let result = bench.regions.prepare_bind(foreign, all).map(drop);
    assert_eq!(result, Err(VerbError::InvalidHandle), "other domain");
    assert_eq!(bench.windows(), 0);
    // A range in the middle, with its own base address.
    let token = bench.bound(Bind { address: BASE + 100, length: 10, base: 0, ..all });
    let bounds = Some(AccessError::Bounds);
    for (address, error) in [(0, None), (9, None), (10, bounds), (BASE + 100, bounds)] {
        assert_eq!(bench.errors(token, address, PEERS)[0], error, "{address}");
    }
    bench.buffer.write_at(109, b"x");
    let granted = bench.regions.access(bench.users[0], token, 9, 1, PEERS).unwrap();
    let mut found = bytes::BytesMut::new();
    granted.each_piece(|piece| piece.append_to(&mut found));
    assert_eq!(&found[..], b"x");
}

// A window of type 1 is rebound with a new token, and unbound by a bind of zero bytes. It takes no key of the consumer.
#[test]
fn type_one_window_is_rebound() {
    let mut bench = Bench::new(Access::BIND);
    let window = bench.window(WindowType::One);
    let all = bench.all(window);
    let first = bench.bound(all);
    let second = bench.bound(Bind { length: 10, ..all });
    assert_eq!((first >> 8, first == second), (second >> 8, false));
    let invalid = Some(AccessError::Invalid);
    assert_eq!(bench.errors(first, BASE, PEERS)[0], invalid);
    assert_eq!(bench.errors(second, BASE, PEERS)[0], None);
    assert_eq!(bench.windows(), 1);
    let keyed = bench.bind(Bind { key: Some(1), ..all });
    assert_eq!(keyed, Err(VerbError::InvalidArgument));
    assert_eq!(bench.errors(second, BASE, PEERS)[0], None, "unchanged");
    let user = bench.users[0];
    let target = Revocable::Window(window);
    assert_eq!(bench.regions.check_revocable(user.pd, target), Err(VerbError::InvalidHandle));
    let refused = Err(WireError::ProtectionCannotInvalidate);
    assert_eq!(bench.regions.invalidate_remotely(user, second), refused);
    bench.bound(Bind { length: 0, ..all });
    assert_eq!(bench.errors(second, BASE, PEERS)[0], invalid);
    assert_eq!(bench.windows(), 0);
}

// A window of type 2 is bound once, with the consumer's key if there is one. It is unbound by an invalidation of its
// queue pair, or of that queue pair's peer.
#[test]
fn type_two_window_is_bound_once() {
    let mut bench = Bench::new(Access::BIND);
    let window = bench.window(WindowType::Two);
    let all = bench.all(window);
    let [user, other, _] = bench.users;
    let index = bench.regions.windows.get(window).unwrap().token & !0xff;
    for key in [5, 6, 6] {
        let token = bench.bound(Bind { key: Some(key), ..all });
        assert_eq!(token, index | u32::from(key));
        let (_, is_bound) = bench.bind(all).unwrap();
        assert!(!is_bound, "NDK-MEM-12");
        assert_eq!(bench.errors(token, BASE, PEERS)[0], None);
        let refused = Err(WireError::ProtectionCannotInvalidate);
        assert_eq!(bench.regions.invalidate_remotely(other, token), refused);
        assert!(!bench.regions.invalidate(other, Revocable::Window(window)));
        assert_eq!(bench.regions.invalidate_remotely(user, token), Ok(()));
        let unknown = Err(WireError::OperationCannotInvalidate);
        assert_eq!(bench.regions.invalidate_remotely(user, token), unknown);
        assert_eq!(bench.errors(token, BASE, PEERS)[0], Some(AccessError::Invalid));
    }
    for by_token in [false, true] {
        let token = bench.bound(all);
        let target = if by_token { Revocable::Token(token) } else { Revocable::Window(window) };
        assert_eq!(bench.regions.check_revocable(user.pd, target), Ok(()));
        assert!(!bench.regions.invalidate(user, Revocable::Token(token ^ 1)), "a stale key");
        assert!(bench.regions.invalidate(user, target));
        assert!(!bench.regions.invalidate(user, target), "NDK-MEM-10");
    }
    assert_eq!(bench.windows(), 0);
}

// Keys of binds are not sequential, and consecutive keys differ.
#[test]
fn bind_keys_are_not_sequential() {
    let mut bench = Bench::new(Access::BIND);
    let window = bench.window(WindowType::One);
    let all = bench.all(window);
    let keys: Vec<u8> = (0..300).map(|_| bench.bound(all) as u8).collect();
    assert!(keys.windows(2).all(|pair| pair[0] != pair[1]));
    let steps = keys.windows(2).filter(|pair| pair[1] == pair[0].wrapping_add(1)).count();
    assert!(steps < 30, "{steps}");
}

// A region with windows cannot be invalidated by either end. A region that an earlier request registers is checked when
// the bind starts.
#[test]
fn region_with_windows_is_not_invalidated() {
    let mut bench = Bench::new(Access::BIND);
    let user = bench.users[0];
    let region = bench.regions.table.insert(Region::new(user.pd, true)).unwrap();
    let limits = FastRegisterLimits { pages: 2, remote_access: true };
    bench.regions.initialize(region, limits).unwrap();
    let window = bench.window(WindowType::Two);
    let bind = Bind { region, ..bench.all(window) };
    let prepared = bench.regions.prepare_bind(user.pd, bind).unwrap();
    assert!(!bench.regions.bind(user, prepared), "the region is not registered");
    let buffer = bench.buffer.clone();
    for (rights, is_fit) in [(Access::REMOTE_READ, false), (Access::BIND, true)] {
        let length = BYTES as usize;
        let memory = FastMemory::Buffer { buffer: &buffer, offset: 0 };
        let registration =
            bench.regions.prepare_fast_register(region, memory, length, BASE, rights).unwrap();
        let token = registration.token();
        let prepared = bench.regions.prepare_bind(user.pd, bind).unwrap();
        assert!(bench.regions.fast_register(region, &registration));
        assert_eq!(bench.regions.bind(user, prepared), is_fit);
        if is_fit {
            let refused = Err(WireError::ProtectionCannotInvalidate);
            assert_eq!(bench.regions.invalidate_remotely(user, token), refused);
            assert!(!bench.regions.invalidate(user, Revocable::Region(region)));
            assert!(!bench.regions.invalidate_locally(user.pd, token));
            assert!(bench.regions.invalidate(user, Revocable::Window(window)));
        }
        assert!(bench.regions.invalidate(user, Revocable::Region(region)));
    }
}

// Destroying a queue pair unbinds its windows. Destroying a window invalidates its token.
#[test]
fn ends() {
    let mut bench = Bench::new(Access::BIND);
    let [one, two] = [WindowType::One, WindowType::Two].map(|kind| bench.window(kind));
    let [of_one, of_two] = [one, two].map(|window| bench.bound(bench.all(window)));
    bench.regions.unbind_all(bench.users[1].qp);
    assert_eq!(bench.errors(of_two, BASE, PEERS)[0], None, "other queue pair");
    bench.regions.unbind_all(bench.users[0].qp);
    assert_eq!(bench.errors(of_two, BASE, PEERS)[0], Some(AccessError::Invalid));
    assert_eq!(bench.errors(of_one, BASE, PEERS)[0], None);
    assert!(bench.regions.remove_window(one).is_some());
    assert_eq!(bench.regions.owner(of_one), None);
    assert_eq!((bench.windows(), bench.regions.windows.len()), (0, 1));
    let prepared = bench.regions.prepare_bind(bench.users[0].pd, bench.all(two)).unwrap();
    bench.regions.remove_window(two);
    assert!(!bench.regions.bind(bench.users[0], prepared), "it was removed");
}
