//! Functions of libc that take a path.

use std::{
    ffi::{c_char, c_int, c_uint, c_void},
    mem, ptr,
};

use libc::{mode_t, size_t, ssize_t};

use crate::{
    next::Next,
    place::is_candidate,
    tree::{Buffer, redirect},
};

/// Result of a function that this libc does not define.
trait Undefined {
    const FAILED: Self;
}

impl Undefined for c_int {
    const FAILED: Self = -1;
}

impl Undefined for ssize_t {
    const FAILED: Self = -1;
}

impl<T> Undefined for *mut T {
    const FAILED: Self = ptr::null_mut();
}

#[cold]
fn undefined<T: Undefined>() -> T {
    // SAFETY: `errno` of this thread.
    unsafe { *libc::__errno_location() = libc::ENOSYS };
    T::FAILED
}

/// Calls a function with the path, or with its replacement.
///
/// # Safety
/// The path is null or a C string.
#[inline(always)]
unsafe fn through<T>(path: *const c_char, call: impl FnOnce(*const c_char) -> T) -> T {
    // SAFETY: guaranteed by the caller.
    if unsafe { is_candidate(path.cast()) } {
        // SAFETY: as above; a candidate is not null.
        unsafe { with_replacement(path, call) }
    } else {
        call(path)
    }
}

/// Apart from the other calls, which need no room on the stack for a path.
///
/// # Safety
/// The path is a C string.
#[cold]
#[inline(never)]
unsafe fn with_replacement<T>(path: *const c_char, call: impl FnOnce(*const c_char) -> T) -> T {
    let mut buffer = Buffer::uninit();
    // SAFETY: guaranteed by the caller.
    call(unsafe { redirect(path, &mut buffer) })
}

/// Defines functions of libc: the parameters before the path and after it, then those that C declares as `...`.
macro_rules! intercept {
    ($($name:ident: [$($before:ident: $before_type:ty),*] path [$($after:ident: $after_type:ty),*]
        $([$dots:tt $variable:ident: $variable_type:ty])? -> $result:ty;)*) => {
        /// Next definition of each function.
        #[expect(non_upper_case_globals, reason = "the names are those of the functions")]
        mod next {
            use super::Next;

            $(pub(super) static $name: Next = {
                match std::ffi::CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
                    Ok(name) => Next::of(name),
                    Err(_) => unreachable!(),
                }
            };)*
        }

        pub(crate) static ALL: &[&Next] = &[$(&next::$name),*];

        $(
            // SAFETY: the definition replaces libc's, with its parameters and its contract. C declares the last
            // parameter of open and openat as `...`, which Rust cannot define. On x86-64 and AArch64 Linux, an integer
            // is passed there as a named parameter is, in the same register. A caller without it leaves any value in
            // that register, which the next definition does not use.
            #[unsafe(no_mangle)]
            unsafe extern "C" fn $name(
                $($before: $before_type,)*
                path: *const c_char
                $(, $after: $after_type)*
                $(, $variable: $variable_type)?
            ) -> $result {
                type Function = unsafe extern "C" fn(
                    $($before_type,)*
                    *const c_char
                    $(, $after_type)*
                    $(, $dots)?
                ) -> $result;
                let found = next::$name.get();
                if found.is_null() {
                    return undefined();
                }
                // SAFETY: the address of a function with this name has its type. The arguments are those of the caller,
                // who guarantees what the function requires.
                unsafe {
                    let next = mem::transmute::<*mut c_void, Function>(found);
                    through(path, |path| next($($before,)* path $(, $after)* $(, $variable)?))
                }
            }
        )*
    };
}

intercept! {
    open: [] path [flags: c_int] [... mode: mode_t] -> c_int;
    open64: [] path [flags: c_int] [... mode: mode_t] -> c_int;
    openat: [at: c_int] path [flags: c_int] [... mode: mode_t] -> c_int;
    openat64: [at: c_int] path [flags: c_int] [... mode: mode_t] -> c_int;
    __open_2: [] path [flags: c_int] -> c_int;
    __open64_2: [] path [flags: c_int] -> c_int;
    __openat_2: [at: c_int] path [flags: c_int] -> c_int;
    __openat64_2: [at: c_int] path [flags: c_int] -> c_int;
    fopen: [] path [mode: *const c_char] -> *mut libc::FILE;
    fopen64: [] path [mode: *const c_char] -> *mut libc::FILE;
    freopen: [] path [mode: *const c_char, stream: *mut libc::FILE] -> *mut libc::FILE;
    freopen64: [] path [mode: *const c_char, stream: *mut libc::FILE] -> *mut libc::FILE;

    stat: [] path [into: *mut c_void] -> c_int;
    stat64: [] path [into: *mut c_void] -> c_int;
    lstat: [] path [into: *mut c_void] -> c_int;
    lstat64: [] path [into: *mut c_void] -> c_int;
    fstatat: [at: c_int] path [into: *mut c_void, flags: c_int] -> c_int;
    fstatat64: [at: c_int] path [into: *mut c_void, flags: c_int] -> c_int;
    statx: [at: c_int] path [flags: c_int, mask: c_uint, into: *mut c_void] -> c_int;
    __xstat: [version: c_int] path [into: *mut c_void] -> c_int;
    __xstat64: [version: c_int] path [into: *mut c_void] -> c_int;
    __lxstat: [version: c_int] path [into: *mut c_void] -> c_int;
    __lxstat64: [version: c_int] path [into: *mut c_void] -> c_int;
    __fxstatat: [version: c_int, at: c_int] path [into: *mut c_void, flags: c_int] -> c_int;
    __fxstatat64: [version: c_int, at: c_int] path [into: *mut c_void, flags: c_int] -> c_int;
    access: [] path [mode: c_int] -> c_int;
    euidaccess: [] path [mode: c_int] -> c_int;
    eaccess: [] path [mode: c_int] -> c_int;
    faccessat: [at: c_int] path [mode: c_int, flags: c_int] -> c_int;
    getxattr: [] path [name: *const c_char, value: *mut c_void, size: size_t] -> ssize_t;
    lgetxattr: [] path [name: *const c_char, value: *mut c_void, size: size_t] -> ssize_t;
    listxattr: [] path [list: *mut c_char, size: size_t] -> ssize_t;
    llistxattr: [] path [list: *mut c_char, size: size_t] -> ssize_t;

    realpath: [] path [resolved: *mut c_char] -> *mut c_char;
    __realpath_chk: [] path [resolved: *mut c_char, length: size_t] -> *mut c_char;
    canonicalize_file_name: [] path [] -> *mut c_char;
    readlink: [] path [into: *mut c_char, size: size_t] -> ssize_t;
    __readlink_chk: [] path [into: *mut c_char, size: size_t, length: size_t] -> ssize_t;
    readlinkat: [at: c_int] path [into: *mut c_char, size: size_t] -> ssize_t;
    __readlinkat_chk: [at: c_int] path [into: *mut c_char, size: size_t, length: size_t] -> ssize_t;

    opendir: [] path [] -> *mut libc::DIR;
    scandir: [] path [list: *mut c_void, filter: *mut c_void, order: *mut c_void] -> c_int;
    scandir64: [] path [list: *mut c_void, filter: *mut c_void, order: *mut c_void] -> c_int;
    scandirat: [at: c_int] path [list: *mut c_void, filter: *mut c_void, order: *mut c_void] -> c_int;
    scandirat64: [at: c_int] path [list: *mut c_void, filter: *mut c_void, order: *mut c_void] -> c_int;
    chdir: [] path [] -> c_int;
}
