//! Objects that programs hold by pointer: the structure of `verbs.h`, followed by the private part.

use crate::guard::Errno;

/// An object. Programs see `seen`, and write some of its members.
#[repr(C)]
pub(crate) struct Object<S, T> {
    pub(crate) seen: S,
    pub(crate) own: T,
}

impl<S, T> Object<S, T> {
    /// Makes an object; it lives until [`Object::remove`].
    pub(crate) fn make(seen: S, own: T) -> *mut Self {
        Box::into_raw(Box::new(Self { seen, own }))
    }

    /// Our part of the object behind a pointer of the program's.
    ///
    /// # Safety
    /// The pointer is null, or of an object of this type that was not removed.
    pub(crate) unsafe fn of<'a, P>(pointer: *mut P) -> Result<&'a T, Errno> {
        let object = pointer.cast::<Self>();
        // Programs call with what is left of a failure, too; what cannot be an object is none.
        if object.is_null() || !object.is_aligned() {
            return Err(Errno(libc::EINVAL));
        }
        // SAFETY: as the caller says. The program does not know this part of the object, so no one writes it.
        Ok(unsafe { &(*object).own })
    }

    /// Frees an object.
    ///
    /// # Safety
    /// As [`Object::of`], and nobody uses the object any more.
    pub(crate) unsafe fn remove<P>(pointer: *mut P) {
        // SAFETY: as the caller says; it came from `make`.
        drop(unsafe { Box::from_raw(pointer.cast::<Self>()) });
    }
}
