//! Objects that consumers hold by pointer.
//!
//! A pointer is looked up before any memory behind it is read. Each object has a slot in an address range that this
//! process has reserved; the object's state is in a parallel table. So a handle that is stale, foreign or null is
//! always refused. The slot of a closed object remains readable: a consumer that calls through the `Dispatch` of a
//! stale handle gets a status. A slot is reused only after [`QUARANTINE`] other slots, so that a stale handle is
//! detected for long.
//!
//! The structure that consumers see is written once, when the object is created, and never read (NDK-OBJ-2).

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

/// Maximum number of objects of all adapters of a process. Their slots take 64 MiB of addresses, and memory as they are
/// used.
const OBJECTS_MAX: usize = 1 << 20;
/// Bytes of a slot: one cache line.
const SLOT_BYTES: usize = 64;
/// Number of objects whose state table is allocated at once.
const CHUNK_OBJECTS: usize = 1 << 12;
/// Number of slots of closed objects that are not reused.
const QUARANTINE: usize = 1 << 10;

/// Type of objects.
pub(crate) trait Kind: Any + Send + Sync {
    /// Structure that consumers see.
    type Public;
    /// Object type in the header.
    const TYPE: NDK_OBJECT_TYPE;

    /// Returns the dispatch table.
    fn dispatch() -> *const c_void;
}

/// Common structure of all objects, which consumers see.
#[repr(C, align(64))]
struct Slot {
    header: NDK_OBJECT_HEADER,
    dispatch: *const c_void,
}

const _: () = assert!(size_of::<Slot>() == SLOT_BYTES);

/// State of an object; `None` unless it is open.
type Own = RwLock<Option<Arc<dyn Any + Send + Sync>>>;

#[derive(Default)]
struct Free {
    /// First slot that was never used.
    fresh: usize,
    /// Slots that were used and are free, the oldest first.
    used: VecDeque<usize>,
}

struct Table {
    slots: NonNull<Slot>,
    own: [OnceLock<Box<[Own]>>; OBJECTS_MAX / CHUNK_OBJECTS],
    free: Mutex<Free>,
}

// SAFETY: a slot is written only by the thread that took its number from `free`, and not read here.
unsafe impl Send for Table {}
// SAFETY: as above.
unsafe impl Sync for Table {}

/// Returns the table of this process. `None`: its address range cannot be reserved.
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
        let bytes = OBJECTS_MAX * SLOT_BYTES;
        // SAFETY: a new anonymous mapping, which no other code uses.
        let slots = unsafe { libc::mmap(ptr::null_mut(), bytes, protection, flags, -1, 0) };
        if slots == libc::MAP_FAILED {
            return None;
        }
        let own = [const { OnceLock::new() }; OBJECTS_MAX / CHUNK_OBJECTS];
        let free = Mutex::default();
        Some(Self { slots: NonNull::new(slots.cast())?, own, free })
    }

    fn own(&self, number: usize) -> &Own {
        let make = || (0..CHUNK_OBJECTS).map(|_| Own::default()).collect();
        &self.own[number / CHUNK_OBJECTS].get_or_init(make)[number % CHUNK_OBJECTS]
    }

    /// Returns the number of the slot at a pointer; `None`: the pointer is not the address of a slot.
    #[inline]
    fn number(&self, pointer: *const c_void) -> Option<usize> {
        let offset = pointer.addr().checked_sub(self.slots.as_ptr().addr())?;
        (offset % SLOT_BYTES == 0 && offset < OBJECTS_MAX * SLOT_BYTES)
            .then_some(offset / SLOT_BYTES)
    }

    fn take_slot(&self) -> Option<usize> {
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        if free.used.len() > QUARANTINE || free.fresh == OBJECTS_MAX {
            return free.used.pop_front();
        }
        free.fresh += 1;
        Some(free.fresh - 1)
    }

    fn free_slot(&self, number: usize) {
        self.free.lock().unwrap_or_else(PoisonError::into_inner).used.push_back(number);
    }
}

/// Slot without an open object, for an object that is being created or closed. Dropping it frees the slot.
pub(crate) struct Reserved(usize);

impl Drop for Reserved {
    fn drop(&mut self) {
        if let Some(table) = table() {
            table.free_slot(self.0);
        }
    }
}

/// Reserves a slot for a new object.
///
/// # Errors
/// INSUFFICIENT_RESOURCES: all slots are in use.
pub(crate) fn reserve() -> Result<Reserved, NtStatus> {
    let number = table().and_then(Table::take_slot).ok_or(NtStatus::INSUFFICIENT_RESOURCES)?;
    Ok(Reserved(number))
}

impl Reserved {
    /// Creates the object in the slot.
    pub(crate) fn fill<T: Kind>(self, own: T) -> *mut T::Public {
        let table = table().expect("a slot was reserved in the table");
        let number = self.0;
        mem::forget(self);
        // SAFETY: the number is within the range.
        let slot = unsafe { table.slots.add(number) };
        let header = NDK_OBJECT_HEADER {
            Version: Version { Major: NDK_VERSION.major, Minor: NDK_VERSION.minor },
            ObjectType: T::TYPE,
            NdkReserved: NDK_OBJECT_HEADER_RESERVED_BLOCK { Reserved: [ptr::null_mut(); 4] },
        };
        // SAFETY: within the range, and its number was reserved: no other thread writes it.
        unsafe { slot.write(Slot { header, dispatch: T::dispatch() }) };
        *table.own(number).write().unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(own));
        slot.as_ptr().cast()
    }
}

fn find(pointer: *const c_void) -> Result<(&'static Table, usize), NtStatus> {
    let table = table().ok_or(NtStatus::INVALID_HANDLE)?;
    let number = table.number(pointer).ok_or(NtStatus::INVALID_HANDLE)?;
    Ok((table, number))
}

/// Returns the state of an open object of any type.
///
/// # Errors
/// INVALID_HANDLE: the pointer is not a handle of an open object.
pub(crate) fn get_any(
    pointer: *const NDK_OBJECT_HEADER,
) -> Result<Arc<dyn Any + Send + Sync>, NtStatus> {
    let (table, number) = find(pointer.cast())?;
    let own = table.own(number).read().unwrap_or_else(PoisonError::into_inner);
    own.clone().ok_or(NtStatus::INVALID_HANDLE)
}

/// Returns the state of an open object of one type.
///
/// # Errors
/// INVALID_HANDLE: the pointer is not a handle of an open object of this type.
#[inline]
pub(crate) fn get<T: Kind>(pointer: *mut T::Public) -> Result<Arc<T>, NtStatus> {
    get_any(pointer.cast())?.downcast().map_err(|_| NtStatus::INVALID_HANDLE)
}

/// Invalidates the handle of an open object and returns its state and its slot (NDK-LIFE-2).
///
/// # Errors
/// As [`get`].
pub(crate) fn take<T: Kind>(pointer: *mut T::Public) -> Result<(Arc<T>, Reserved), NtStatus> {
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
        type Public = NDK_CQ;
        const TYPE: u32 = 3;
        fn dispatch() -> *const c_void {
            ptr::null()
        }
    }

    impl Kind for Even {
        type Public = NDK_PD;
        const TYPE: u32 = 6;
        fn dispatch() -> *const c_void {
            ptr::null()
        }
    }

    fn is_refused<T: Kind>(pointer: *mut T::Public) -> bool {
        matches!(get::<T>(pointer), Err(NtStatus::INVALID_HANDLE))
            && matches!(take::<T>(pointer), Err(NtStatus::INVALID_HANDLE))
    }

    // NDK-OBJ-1: version, type, and reserved members of zero. Any other pointer is refused.
    #[test]
    fn pointers_are_looked_up() {
        let odd = reserve().unwrap().fill(Odd(7));
        let even = reserve().unwrap().fill(Even);
        // SAFETY: the object was just created.
        let header = unsafe { (*odd).Header };
        assert_eq!((header.Version.Major, header.Version.Minor, header.ObjectType), (2, 1, 3));
        assert!(header.NdkReserved.Reserved.iter().all(|it| it.is_null()));
        assert_eq!(get::<Odd>(odd).unwrap().0, 7);

        assert!(is_refused::<Even>(odd.cast()) && is_refused::<Odd>(even.cast()));
        assert!(is_refused::<Odd>(ptr::null_mut()));
        assert!(is_refused::<Odd>(odd.wrapping_byte_add(8)));
        assert!(is_refused::<Odd>(odd.wrapping_byte_add(SLOT_BYTES * 100_000)));
        assert!(is_refused::<Odd>(odd.wrapping_byte_add(SLOT_BYTES * OBJECTS_MAX)));
        assert!(is_refused::<Odd>((&raw const header).cast_mut().cast()));

        let (own, closing) = take::<Odd>(odd).unwrap();
        assert!(own.0 == 7 && is_refused::<Odd>(odd));
        drop(closing);
        assert!(is_refused::<Odd>(odd));
        // A slot is reused only after QUARANTINE other slots.
        for _ in 0..QUARANTINE {
            let other = reserve().unwrap().fill(Odd(1));
            assert_ne!(other, odd);
            drop(take::<Odd>(other).unwrap());
        }
        assert!(is_refused::<Odd>(odd));
    }
}
