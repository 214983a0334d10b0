//! Copy of memory that may be written or read concurrently.
//!
//! In the Rust memory model it is a relaxed atomic access of each byte. This is the only access size that requires no
//! agreement with the other side. Racing atomic accesses of different sizes are undefined, and spans start and end at
//! any address. Compilers generate a loop of single bytes, so on x86-64 the copy is written in assembly. The assembly
//! is equivalent to that loop: each instruction performs 1 to 16 of its steps, or all. A byte may be copied twice; the
//! later copy counts.
//!
//! On other targets, and for tools that check each access (ThreadSanitizer, Miri), it is the loop.

#[cfg(not(all(target_arch = "x86_64", not(any(miri, race_detector)))))]
use core::sync::atomic::{AtomicU8, Ordering};

/// Copies `len` bytes.
///
/// # Safety
/// `source` is valid for reads of `len` bytes and `target` for writes, and they do not overlap. Concurrent accesses to
/// either are atomic, use this function, or are made from outside of the program.
#[cfg(not(all(target_arch = "x86_64", not(any(miri, race_detector)))))]
pub(super) unsafe fn copy(source: *const u8, target: *mut u8, len: usize) {
    for at in 0..len {
        // SAFETY: within both, by the caller's contract; `AtomicU8` has the layout of a byte.
        unsafe {
            let byte = AtomicU8::from_ptr(source.cast_mut().add(at)).load(Ordering::Relaxed);
            AtomicU8::from_ptr(target.add(at)).store(byte, Ordering::Relaxed);
        }
    }
}

#[cfg(all(target_arch = "x86_64", not(any(miri, race_detector))))]
pub(super) use x86_64::copy;

#[cfg(all(target_arch = "x86_64", not(any(miri, race_detector))))]
mod x86_64 {
    use core::arch::asm;

    /// Smallest length for which the target is aligned first.
    const ALIGNED_BYTES_MIN: usize = 256;
    /// Smallest length copied by a single instruction. It takes some time to start, and then moves up to one cache line
    /// at once.
    const STRING_BYTES_MIN: usize = 1024;

    /// Copies `len` bytes.
    ///
    /// # Safety
    /// `source` is valid for reads of `len` bytes and `target` for writes, and they do not overlap. Concurrent accesses
    /// to either are atomic, use this function, or are made from outside of the program.
    #[inline(always)]
    pub(in super::super) unsafe fn copy(source: *const u8, target: *mut u8, len: usize) {
        // SAFETY: each function accesses only bytes of the range, which are valid by the caller's contract.
        unsafe {
            match len {
                0 => {}
                1 => copy_1(source, target),
                2..4 => ends(source, target, len - 2, copy_2),
                4..8 => ends(source, target, len - 4, copy_4),
                8..=16 => ends(source, target, len - 8, copy_8),
                17..=32 => ends(source, target, len - 16, copy_16),
                33..=64 => ends(source, target, len - 32, copy_32),
                STRING_BYTES_MIN.. => copy_string(source, target, len),
                _ => copy_blocks(source, target, len),
            }
        }
    }

    /// Copies the first and the last bytes, which overlap or touch.
    ///
    /// # Safety
    /// The contract of `copy` holds at both offsets.
    #[inline]
    unsafe fn ends(
        source: *const u8,
        target: *mut u8,
        end: usize,
        copy: unsafe fn(*const u8, *mut u8),
    ) {
        // SAFETY: by the caller's contract.
        unsafe {
            copy(source, target);
            copy(source.add(end), target.add(end));
        }
    }

    /// Copies more than 64 bytes.
    ///
    /// # Safety
    /// As for [`copy`].
    unsafe fn copy_blocks(source: *const u8, target: *mut u8, len: usize) {
        let last = len - 16;
        let mut at = 0;
        // SAFETY: all copies end within `len`: 16 bytes from at most `last` on, 64 from at most `last - 48` on.
        unsafe {
            if len > ALIGNED_BYTES_MIN {
                // Stores that span two cache lines cost twice as much.
                copy_16(source, target);
                at = 16 - target.addr() % 16;
            }
            while at + 48 <= last {
                copy_64(source.add(at), target.add(at));
                at += 64;
            }
            while at < last {
                copy_16(source.add(at), target.add(at));
                at += 16;
            }
            copy_16(source.add(last), target.add(last));
        }
    }

    /// Copies many bytes.
    ///
    /// # Safety
    /// As for [`copy`].
    #[inline]
    unsafe fn copy_string(source: *const u8, target: *mut u8, len: usize) {
        // SAFETY: reads and writes within the caller's contract; the direction flag is clear, as the ABI requires.
        unsafe {
            asm!(
                "rep movsb",
                inout("rcx") len => _,
                inout("rsi") source => _,
                inout("rdi") target => _,
                options(nostack, preserves_flags),
            );
        }
    }

    macro_rules! one_register {
        ($($name:ident moves $octets:literal by $load:literal, $store:literal in $class:ident;)*) => {$(
            #[doc = concat!("Moves ", $octets, " bytes.")]
            ///
            /// # Safety
            /// As for [`copy`].
            #[inline]
            unsafe fn $name(source: *const u8, target: *mut u8) {
                // SAFETY: reads and writes within the caller's contract, touches no flags and no stack.
                unsafe {
                    asm!(
                        $load,
                        $store,
                        source = in(reg) source,
                        target = in(reg) target,
                        value = out($class) _,
                        options(nostack, preserves_flags),
                    );
                }
            }
        )*};
    }

    one_register! {
        copy_1 moves 1 by "mov {value}, byte ptr [{source}]", "mov byte ptr [{target}], {value}" in reg_byte;
        copy_2 moves 2 by "mov {value:x}, word ptr [{source}]", "mov word ptr [{target}], {value:x}" in reg;
        copy_4 moves 4 by "mov {value:e}, dword ptr [{source}]", "mov dword ptr [{target}], {value:e}" in reg;
        copy_8 moves 8 by "mov {value}, qword ptr [{source}]", "mov qword ptr [{target}], {value}" in reg;
        copy_16 moves 16 by "movups {value}, [{source}]", "movups [{target}], {value}" in xmm_reg;
    }

    /// Moves 32 bytes.
    ///
    /// # Safety
    /// As for [`copy`].
    #[inline]
    unsafe fn copy_32(source: *const u8, target: *mut u8) {
        // SAFETY: 16 bytes twice.
        unsafe {
            copy_16(source, target);
            copy_16(source.add(16), target.add(16));
        }
    }

    /// Moves 64 bytes.
    ///
    /// # Safety
    /// As for [`copy`].
    #[inline]
    unsafe fn copy_64(source: *const u8, target: *mut u8) {
        // SAFETY: reads and writes within the caller's contract, touches no flags and no stack.
        unsafe {
            asm!(
                "movups {a}, [{source}]",
                "movups {b}, [{source} + 16]",
                "movups {c}, [{source} + 32]",
                "movups {d}, [{source} + 48]",
                "movups [{target}], {a}",
                "movups [{target} + 16], {b}",
                "movups [{target} + 32], {c}",
                "movups [{target} + 48], {d}",
                source = in(reg) source,
                target = in(reg) target,
                a = out(xmm_reg) _,
                b = out(xmm_reg) _,
                c = out(xmm_reg) _,
                d = out(xmm_reg) _,
                options(nostack, preserves_flags),
            );
        }
    }
}
