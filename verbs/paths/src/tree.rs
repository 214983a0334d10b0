//! Directory of the files, from the environment, and the replacement of a path.

use std::{
    cell::UnsafeCell,
    ffi::{CStr, c_char},
    mem::MaybeUninit,
    ptr,
    sync::atomic::{AtomicPtr, Ordering},
};

use flue_verbs_abi::settings;

use crate::place::{self, Place};

/// Bytes of the longest path, with its null byte.
pub(crate) const PATH_BYTES: usize = libc::PATH_MAX as usize;

/// Room for a replaced path.
pub(crate) type Buffer = MaybeUninit<[u8; PATH_BYTES]>;

/// Copy of the variable: programs that set their title overwrite the original.
struct Kept(UnsafeCell<[u8; PATH_BYTES]>);

// SAFETY: written once, by the constructor of this library, before its address is published in `DIRECTORY`.
unsafe impl Sync for Kept {}

static KEPT: Kept = Kept(UnsafeCell::new([0; PATH_BYTES]));

/// The directory; empty: none. Null before the constructor of this library.
static DIRECTORY: AtomicPtr<c_char> = AtomicPtr::new(ptr::null_mut());

/// Returns the value of the variable.
fn variable() -> Option<&'static CStr> {
    // SAFETY: the name is a C string. The value is in the environment, which the program does not change while it is in
    // a call of its own: before the constructor, there is one thread.
    unsafe {
        let value = libc::getenv(settings::FILES_C.as_ptr());
        (!value.is_null()).then(|| CStr::from_ptr(value))
    }
}

/// Reads the variable once.
pub(crate) fn keep() {
    let value = variable().unwrap_or_default().to_bytes_with_nul();
    let kept = KEPT.0.get().cast::<u8>();
    if value.len() <= PATH_BYTES {
        // SAFETY: there is room, and this constructor is the only writer.
        unsafe { ptr::copy_nonoverlapping(value.as_ptr(), kept, value.len()) };
    }
    DIRECTORY.store(kept.cast(), Ordering::Release);
}

/// Returns the directory, and the name of the character device, which starts the directory's name.
fn tree() -> Option<(&'static [u8], &'static [u8])> {
    let kept = DIRECTORY.load(Ordering::Acquire);
    let directory = match kept.is_null() {
        true => variable()?,
        // SAFETY: a C string that is not changed again.
        false => unsafe { CStr::from_ptr(kept) },
    };
    let directory = directory.to_bytes();
    Some((directory, settings::node_of(directory)?))
}

/// Returns the path with which a function is called: the path itself, or its replacement in the buffer.
///
/// # Safety
/// The path is a C string.
pub(crate) unsafe fn redirect(path: *const c_char, buffer: &mut Buffer) -> *const c_char {
    // SAFETY: guaranteed by the caller.
    let given = unsafe { CStr::from_ptr(path) }.to_bytes();
    let replacement = tree().and_then(|(directory, node)| match place::place(given, node)? {
        Place::Tree(class, rest) => join([directory, class, rest], buffer),
        Place::Above(above, rest) => join([above, rest, b""], buffer),
        Place::Null => Some(c"/dev/null".as_ptr()),
    });
    replacement.unwrap_or(path)
}

/// Concatenates the parts. `None`: longer than a path may be.
fn join(parts: [&[u8]; 3], buffer: &mut Buffer) -> Option<*const c_char> {
    let start = buffer.as_mut_ptr().cast::<u8>();
    let mut length = 0_usize;
    for part in parts {
        let end = length.checked_add(part.len()).filter(|end| *end < PATH_BYTES)?;
        // SAFETY: the part ends within the buffer, which is not part of the sources.
        unsafe { ptr::copy_nonoverlapping(part.as_ptr(), start.add(length), part.len()) };
        length = end;
    }
    // SAFETY: the length is less than the size of the buffer.
    unsafe { start.add(length).write(0) };
    Some(start.cast())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn path_that_is_too_long_is_not_joined() {
        let mut buffer = Buffer::uninit();
        let long = vec![b'x'; PATH_BYTES - 3];
        let joined = join([b"/a", &long, b""], &mut buffer).unwrap();
        // SAFETY: ended by `join`.
        let joined = unsafe { CStr::from_ptr(joined) }.to_bytes().to_vec();
        assert_eq!(joined, [&b"/a"[..], &long].concat());
        assert_eq!(join([b"/a", &long, b"/"], &mut buffer), None);
        assert_eq!(join([b"/ab", &long, b""], &mut buffer), None);
    }

    // In one process, so one test: without the constructor, after it.
    #[test]
    fn variable_is_read_by_the_constructor() {
        let of = |path: &CStr| {
            let mut buffer = Buffer::uninit();
            // SAFETY: C strings.
            let found = unsafe { CStr::from_ptr(redirect(path.as_ptr(), &mut buffer)) };
            found.to_str().unwrap().to_owned()
        };
        let path = c"/sys/class/infiniband/flue0/node_type";
        assert_eq!(of(path), path.to_str().unwrap());
        // SAFETY: no other test of this crate reads the environment.
        unsafe { std::env::set_var(settings::FILES, "/t/uverbs3-4") };
        let expected = "/t/uverbs3-4/sys/class/infiniband/flue0/node_type";
        assert_eq!(of(path), expected);
        keep();
        // SAFETY: as above.
        unsafe { std::env::remove_var(settings::FILES) };
        assert_eq!(of(path), expected);
        assert_eq!(of(c"/dev/infiniband/uverbs3"), "/dev/null");
        assert_eq!(of(c"/dev/infiniband/uverbs4"), "/dev/infiniband/uverbs4");
    }
}
