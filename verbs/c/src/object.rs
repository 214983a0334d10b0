//! Objects that programs hold by pointer: the structure of `verbs.h`, followed by the private part.

use crate::guard::Errno;

/// Object. Programs read `seen`, and write some of its members.
#[repr(C)]
pub(crate) struct Object<S, T> {
    pub(crate) seen: S,
    pub(crate) own: T,
}

impl<S, T> Object<S, T> {
    /// Allocates an object, which [`Object::remove`] frees.
    pub(crate) fn make(seen: S, own: T) -> *mut Self {
        Box::into_raw(Box::new(Self { seen, own }))
    }

    /// Returns the private part of the object of the program's pointer.
    ///
    /// # Safety
    /// The pointer is null, or refers to an object of this type that was not removed.
    pub(crate) unsafe fn of<'a, P>(pointer: *mut P) -> Result<&'a T, Errno> {
        let object = pointer.cast::<Self>();
        // Programs also pass results of failed calls. A null or misaligned pointer is not an object.
        if object.is_null() || !object.is_aligned() {
            return Err(Errno(libc::EINVAL));
        }
        // SAFETY: guaranteed by the caller. The part is private to the library, so the program does not write it.
        Ok(unsafe { &(*object).own })
    }

    /// Frees an object.
    ///
    /// # Safety
    /// As [`Object::of`]. The object is no longer used.
    pub(crate) unsafe fn remove<P>(pointer: *mut P) {
        // SAFETY: guaranteed by the caller; it was created by `make`.
        drop(unsafe { Box::from_raw(pointer.cast::<Self>()) });
    }
}
