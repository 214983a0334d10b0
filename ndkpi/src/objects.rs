//! The objects that consumers hold by pointer.
//!
//! A pointer is looked up before anything behind it is read: an object's place is in a range of addresses that this
//! process has reserved for them, and what belongs to the object is in a table beside it. So a handle that is stale,
//! foreign or null is refused, whatever the consumer has done, and a place whose object is closed can still be read: a
//! consumer that calls through a stale handle's `Dispatch` gets a status, too. A place is given away again only after
//! [`QUARANTINE`] others, so that a stale handle stays one for long.
//!
//! What consumers see is written once, when the object is made, and never read (NDK-OBJ-2).

use std::{
    any::Any,
    collections::VecDeque,
    ffi::c_void,
    mem,
    ptr::{self, NonNull},
    sync::{Arc, Mutex, OnceLock, PoisonError, RwLock},
};

use rdma_over_tcp::ndk::{NDK_VERSION, NtStatus};

use crate::abi::types::{
    NDK_OBJECT_HEADER, NDK_OBJECT_HEADER_RESERVED_BLOCK, NDK_OBJECT_TYPE, NDK_VERSION as Version,
};

/// Objects of all adapters of a process, at most: their places take 64 MiB of addresses, and memory as they are used.
const OBJECTS_MAX: usize = 1 << 20;
/// Bytes of a place: a cache line.
const PLACE_BYTES: usize = 64;
/// Objects whose table is allocated at once.
const CHUNK_OBJECTS: usize = 1 << 12;
/// Closed objects whose places are kept back.
const QUARANTINE: usize = 1 << 10;

/// A type of objects.
pub(crate) trait Kind: Any + Send + Sync {
    /// What consumers see.
    type Seen;
    /// Its number in the header.
    const TYPE: NDK_OBJECT_TYPE;

    /// Its dispatch table.
    fn dispatch() -> *const c_void;
}

/// The structure of every object.
#[repr(C, align(64))]
struct Place {
    header: NDK_OBJECT_HEADER,
    dispatch: *const c_void,
}

const _: () = assert!(size_of::<Place>() == PLACE_BYTES);

/// What belongs to an object, while it is open.
type Own = RwLock<Option<Arc<dyn Any + Send + Sync>>>;

#[derive(Default)]
struct Free {
    /// Places that were never used begin here.
    fresh: usize,
    /// Those that were, the oldest first.
    used: VecDeque<usize>,
}

struct Table {
    places: NonNull<Place>,
    own: [OnceLock<Box<[Own]>>; OBJECTS_MAX / CHUNK_OBJECTS],
    free: Mutex<Free>,
}

// SAFETY: a place is written by whoever has taken its number from `free`, and not read here.
unsafe impl Send for Table {}
// SAFETY: as above.
unsafe impl Sync for Table {}

/// The table of this process. `None`: there are no addresses for it.
fn table() -> Option<&'static Table> {
    static TABLE: OnceLock<Option<Table>> = OnceLock::new();
    TABLE.get_or_init(Table::reserve).as_ref()
}

impl Table {
    fn reserve() -> Option<Self> {
        let (protection, flags) = (
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
        );
        let bytes = OBJECTS_MAX * PLACE_BYTES;
        // SAFETY: new memory, which nobody else has.
        let places = unsafe { libc::mmap(ptr::null_mut(), bytes, protection, flags, -1, 0) };
        if places == libc::MAP_FAILED {
            return None;
        }
        let own = [const { OnceLock::new() }; OBJECTS_MAX / CHUNK_OBJECTS];
        let free = Mutex::default();
        Some(Self { places: NonNull::new(places.cast())?, own, free })
    }

    fn own(&self, number: usize) -> &Own {
        let make = || (0..CHUNK_OBJECTS).map(|_| Own::default()).collect();
        &self.own[number / CHUNK_OBJECTS].get_or_init(make)[number % CHUNK_OBJECTS]
    }

    /// The number of the place behind a pointer, if there is one.
    #[inline]
    fn number(&self, pointer: *const c_void) -> Option<usize> {
        let offset = pointer.addr().checked_sub(self.places.as_ptr().addr())?;
        (offset % PLACE_BYTES == 0 && offset < OBJECTS_MAX * PLACE_BYTES)
            .then_some(offset / PLACE_BYTES)
    }

    fn take_place(&self) -> Option<usize> {
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        if free.used.len() > QUARANTINE || free.fresh == OBJECTS_MAX {
            return free.used.pop_front();
        }
        free.fresh += 1;
        Some(free.fresh - 1)
    }

    fn give_back(&self, number: usize) {
        self.free.lock().unwrap_or_else(PoisonError::into_inner).used.push_back(number);
    }
}

/// A place without an open object: for one that is being made or closed. Dropped, it may become another's.
pub(crate) struct Reserved(usize);

impl Drop for Reserved {
    fn drop(&mut self) {
        if let Some(table) = table() {
            table.give_back(self.0);
        }
    }
}

/// A place for an object that is about to be made.
///
/// # Errors
/// INSUFFICIENT_RESOURCES: there are as many as can be.
pub(crate) fn reserve() -> Result<Reserved, NtStatus> {
    let number = table().and_then(Table::take_place).ok_or(NtStatus::INSUFFICIENT_RESOURCES)?;
    Ok(Reserved(number))
}

impl Reserved {
    /// Makes the object.
    pub(crate) fn fill<T: Kind>(self, own: T) -> *mut T::Seen {
        let table = table().expect("a place is in it");
        let number = self.0;
        mem::forget(self);
        // SAFETY: within the range.
        let place = unsafe { table.places.add(number) };
        let header = NDK_OBJECT_HEADER {
            Version: Version { Major: NDK_VERSION.major, Minor: NDK_VERSION.minor },
            ObjectType: T::TYPE,
            NdkReserved: NDK_OBJECT_HEADER_RESERVED_BLOCK { Reserved: [ptr::null_mut(); 4] },
        };
        // SAFETY: within the range, and its number was reserved: nobody else writes it.
        unsafe { place.write(Place { header, dispatch: T::dispatch() }) };
        *table.own(number).write().unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(own));
        place.as_ptr().cast()
    }
}

fn find(pointer: *const c_void) -> Result<(&'static Table, usize), NtStatus> {
    let table = table().ok_or(NtStatus::INVALID_HANDLE)?;
    let number = table.number(pointer).ok_or(NtStatus::INVALID_HANDLE)?;
    Ok((table, number))
}

/// What belongs to any open object.
///
/// # Errors
/// INVALID_HANDLE: the pointer is not one's.
pub(crate) fn get_any(
    pointer: *const NDK_OBJECT_HEADER,
) -> Result<Arc<dyn Any + Send + Sync>, NtStatus> {
    let (table, number) = find(pointer.cast())?;
    let own = table.own(number).read().unwrap_or_else(PoisonError::into_inner);
    own.clone().ok_or(NtStatus::INVALID_HANDLE)
}

/// What belongs to an open object of one type.
///
/// # Errors
/// INVALID_HANDLE: the pointer is not one's.
#[inline]
pub(crate) fn get<T: Kind>(pointer: *mut T::Seen) -> Result<Arc<T>, NtStatus> {
    get_any(pointer.cast())?.downcast().map_err(|_| NtStatus::INVALID_HANDLE)
}

/// Takes an object from its consumer: its handle is stale from now on (NDK-LIFE-2).
///
/// # Errors
/// As [`get`].
pub(crate) fn take<T: Kind>(pointer: *mut T::Seen) -> Result<(Arc<T>, Reserved), NtStatus> {
    let (table, number) = find(pointer.cast())?;
    let mut own = table.own(number).write().unwrap_or_else(PoisonError::into_inner);
    let found = own.clone().and_then(|own| own.downcast().ok());
    let found = found.ok_or(NtStatus::INVALID_HANDLE)?;
    *own = None;
    Ok((found, Reserved(number)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::abi::types::{NDK_CQ, NDK_PD};

    struct Odd(u32);
    struct Even;

    impl Kind for Odd {
        type Seen = NDK_CQ;
        const TYPE: u32 = 3;
        fn dispatch() -> *const c_void {
            ptr::null()
        }
    }

    impl Kind for Even {
        type Seen = NDK_PD;
        const TYPE: u32 = 6;
        fn dispatch() -> *const c_void {
            ptr::null()
        }
    }

    fn is_refused<T: Kind>(pointer: *mut T::Seen) -> bool {
        matches!(get::<T>(pointer), Err(NtStatus::INVALID_HANDLE))
            && matches!(take::<T>(pointer), Err(NtStatus::INVALID_HANDLE))
    }

    // NDK-OBJ-1: version, type, and reserved members that are zero. Pointers of all other sorts are refused.
    #[test]
    fn pointers_are_looked_up() {
        let odd = reserve().unwrap().fill(Odd(7));
        let even = reserve().unwrap().fill(Even);
        // SAFETY: just made.
        let header = unsafe { (*odd).Header };
        assert_eq!((header.Version.Major, header.Version.Minor, header.ObjectType), (2, 1, 3));
        assert!(header.NdkReserved.Reserved.iter().all(|it| it.is_null()));
        assert_eq!(get::<Odd>(odd).unwrap().0, 7);

        assert!(is_refused::<Even>(odd.cast()) && is_refused::<Odd>(even.cast()));
        assert!(is_refused::<Odd>(ptr::null_mut()));
        assert!(is_refused::<Odd>(odd.wrapping_byte_add(8)));
        assert!(is_refused::<Odd>(odd.wrapping_byte_add(PLACE_BYTES * 100_000)));
        assert!(is_refused::<Odd>(odd.wrapping_byte_add(PLACE_BYTES * OBJECTS_MAX)));
        assert!(is_refused::<Odd>((&raw const header).cast_mut().cast()));

        let (own, closing) = take::<Odd>(odd).unwrap();
        assert!(own.0 == 7 && is_refused::<Odd>(odd));
        drop(closing);
        assert!(is_refused::<Odd>(odd));
        // A place comes back after many others.
        for _ in 0..QUARANTINE {
            let other = reserve().unwrap().fill(Odd(1));
            assert_ne!(other, odd);
            drop(take::<Odd>(other).unwrap());
        }
        assert!(is_refused::<Odd>(odd));
    }
}
