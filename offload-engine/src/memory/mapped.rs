//! Validation of foreign memory before it becomes a span.

use std::{fs, io};

use libc::{c_int, c_void};

/// `madvise(2)`: populate pages for reads or for writes (Linux 5.14).
const MADV_POPULATE_READ: c_int = 22;
const MADV_POPULATE_WRITE: c_int = 23;

/// Checks that the program could read, or write, this memory itself. Otherwise an access by the adapter would end the
/// program with a signal.
///
/// The pages are populated afterwards, as with an adapter that pins them.
///
/// # Errors
/// `EINVAL`: the range wraps. `EFAULT`: the memory is not accessible. `ENOMEM`: no memory for pages.
pub fn check(address: usize, length: usize, is_written: bool) -> io::Result<()> {
    let error = |number| Err(io::Error::from_raw_os_error(number));
    // SAFETY: no memory is involved.
    let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    let page = usize::try_from(page).unwrap_or(4096);
    let start = address / page * page;
    let end = address.checked_add(length).and_then(|end| end.checked_next_multiple_of(page));
    let Some(end) = end else { return error(libc::EINVAL) };
    let advice = if is_written { MADV_POPULATE_WRITE } else { MADV_POPULATE_READ };
    // SAFETY: the advice changes no byte; an address that is not mapped is an error.
    if unsafe { libc::madvise(start as *mut c_void, end - start, advice) } == 0 {
        return Ok(());
    }
    match io::Error::last_os_error().raw_os_error() {
        // The kernel does not support the advice, or the mapping is special. Then the mappings decide.
        Some(libc::EINVAL) => {
            let maps = fs::read_to_string("/proc/self/maps")?;
            match is_covered(&maps, address, address + length, is_written) {
                true => Ok(()),
                false => error(libc::EFAULT),
            }
        }
        Some(libc::EAGAIN) => error(libc::ENOMEM),
        _ => error(libc::EFAULT),
    }
}

/// True if mappings (`/proc/PID/maps`, which are in order) cover a range without a gap.
fn is_covered(maps: &str, mut at: usize, end: usize, is_written: bool) -> bool {
    for line in maps.lines() {
        let mut words = line.split_whitespace();
        let (Some(range), Some(rights)) = (words.next(), words.next()) else { continue };
        let Some((first, last)) = range.split_once('-') else { continue };
        let (Ok(first), Ok(last)) =
            (usize::from_str_radix(first, 16), usize::from_str_radix(last, 16))
        else {
            continue;
        };
        if last <= at {
            continue;
        }
        if first > at || !rights.starts_with('r') || is_written && !rights[1..].starts_with('w') {
            return false;
        }
        at = last;
        if at >= end {
            return true;
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use alloc::vec;

    use super::*;

    const MAPS: &str = "\
1000-3000 rw-p 00000000 00:00 0 [heap]
3000-4000 r--p 00000000 00:00 0
5000-6000 rw-s 00000000 00:01 9 /dev/shm/x
7000-8000 ---p 00000000 00:00 0
";

    #[test]
    fn ranges_without_a_gap_are_covered() {
        for (from, to, is_written, expected) in [
            (0x1000, 0x3000, true, true),
            (0x1fff, 0x2001, true, true),
            (0x1000, 0x4000, false, true),
            (0x1000, 0x4000, true, false),
            (0x3fff, 0x4001, false, false),
            (0x5800, 0x6000, true, true),
            (0x7000, 0x7001, false, false),
            (0x0, 0x1001, false, false),
            (0x9000, 0x9001, false, false),
        ] {
            assert_eq!(is_covered(MAPS, from, to, is_written), expected, "{from:x} to {to:x}");
        }
    }

    // Memory of the program is accepted. A page that is not mapped, or is not writable for a write, is refused.
    #[test]
    fn accessible_memory_is_accepted() {
        let mut own = vec![1_u8; 10_000];
        let refused = |address, length, is_written| {
            check(address, length, is_written).map_err(|error| error.raw_os_error())
        };
        assert_eq!(refused(own.as_mut_ptr() as usize, own.len(), true), Ok(()));
        static CONSTANT: [u8; 8192] = [7; 8192];
        let constant = CONSTANT.as_ptr() as usize;
        assert_eq!(refused(constant, CONSTANT.len(), false), Ok(()));
        assert_eq!(refused(constant, CONSTANT.len(), true), Err(Some(libc::EFAULT)));
        assert_eq!(refused(0x1000, 10, false), Err(Some(libc::EFAULT)));
        assert_eq!(refused(usize::MAX - 5, 10, false), Err(Some(libc::EINVAL)));
    }
}
