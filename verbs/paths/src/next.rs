//! Next definitions of the functions, in the libraries that the loader searches after this one.

use std::{
    ffi::{CStr, c_int, c_void},
    ptr,
    sync::atomic::{AtomicPtr, Ordering},
};

/// Next definition of one function.
pub(crate) struct Next {
    name: &'static CStr,
    found: AtomicPtr<c_void>,
}

impl Next {
    pub(crate) const fn of(name: &'static CStr) -> Self {
        Self { name, found: AtomicPtr::new(ptr::null_mut()) }
    }

    /// Returns the address of the function. Null: this libc does not define it.
    #[inline]
    pub(crate) fn get(&self) -> *mut c_void {
        let found = self.found.load(Ordering::Relaxed);
        // Before the constructor of this library, or not defined.
        if found.is_null() { self.find() } else { found }
    }

    /// Searches the function.
    #[cold]
    pub(crate) fn find(&self) -> *mut c_void {
        // SAFETY: `errno` of this thread; the name is a C string. A failure leaves a message for the program's next
        // dlerror(3), so it is fetched here.
        unsafe {
            let errno = libc::__errno_location();
            let kept: c_int = *errno;
            let found = libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr());
            if found.is_null() {
                libc::dlerror();
            }
            *errno = kept;
            self.found.store(found, Ordering::Relaxed);
            found
        }
    }
}
