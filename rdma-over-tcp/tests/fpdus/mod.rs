//! FPDUs without markers, CRC on, verified with tshark; F11 also as captured from Linux siw. Hexadecimal octets:
//! ULPDU_Length, ULPDU, pad, CRC.

/// Send, MSN 1: rping's advertisement of 64 octets at 0x7f0012345000, STag 0x00abcd00.
pub(crate) const F1: &str = "\
    00 22 41 43 00 00 00 00 00 00 00 00 00 00 00 01 00 00 00 00 00 00 7f 00 \
    12 34 50 00 00 ab cd 00 00 00 00 40 3d 35 c1 80";
/// Send, MSN 1, "hello", three pad octets.
pub(crate) const F2: &str = "\
    00 17 41 43 00 00 00 00 00 00 00 00 00 00 00 01 00 00 00 00 68 65 6c 6c \
    6f 00 00 00 b9 90 b1 0c";
/// Send, MSN 1, no payload.
pub(crate) const F3: &str = "\
    00 12 41 43 00 00 00 00 00 00 00 00 00 00 00 01 00 00 00 00 58 7b e8 c4";
/// Send with Invalidate, MSN 2, STag 0x00abcd00, "bye!".
pub(crate) const F4: &str = "\
    00 16 41 44 00 ab cd 00 00 00 00 00 00 00 00 02 00 00 00 00 62 79 65 21 \
    88 74 d5 b5";
/// Send with Solicited Event, MSN 3, "se".
pub(crate) const F5: &str = "\
    00 14 41 45 00 00 00 00 00 00 00 00 00 00 00 03 00 00 00 00 73 65 00 00 \
    39 2d 92 8a";
/// Write, STag 0x11223344, offset 0x1000, "data".
pub(crate) const F6: &str = "\
    00 12 c1 40 11 22 33 44 00 00 00 00 00 00 10 00 64 61 74 61 e8 50 3d b0";
/// RTR Write, STag 1.
pub(crate) const F7: &str = "\
    00 0e c1 40 00 00 00 01 00 00 00 00 00 00 00 00 eb d3 4c 5f";
/// Read Request, MSN 1, 64 octets.
pub(crate) const F8: &str = "\
    00 2e 41 41 00 00 00 00 00 00 00 01 00 00 00 01 00 00 00 00 01 02 03 04 \
    00 00 00 00 00 00 20 00 00 00 00 40 00 ab cd 00 00 00 7f 00 12 34 50 00 \
    b5 de 92 98";
/// RTR Read Request, STags 1.
pub(crate) const F9: &str = "\
    00 2e 41 41 00 00 00 00 00 00 00 01 00 00 00 01 00 00 00 00 00 00 00 01 \
    00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 01 00 00 00 00 00 00 00 00 \
    27 db d7 e7";
/// Read Response, eight octets.
pub(crate) const F10: &str = "\
    00 16 c1 42 01 02 03 04 00 00 00 00 00 00 20 00 00 01 02 03 04 05 06 07 \
    a6 46 3b 06";
/// Read Response to F9.
pub(crate) const F11: &str = "\
    00 0e c1 42 00 00 00 01 00 00 00 00 00 00 00 00 21 a3 e8 3e";
/// Terminate 2/0/02.
pub(crate) const F12: &str = "\
    00 16 41 47 00 00 00 00 00 00 00 02 00 00 00 01 00 00 00 00 20 02 00 00 \
    7f e4 25 85";
/// Terminate 1/2/03 of a Send, MSN 9.
pub(crate) const F13: &str = "\
    00 2a 41 47 00 00 00 00 00 00 00 02 00 00 00 01 00 00 00 00 12 03 c0 00 \
    00 22 41 43 00 00 00 00 00 00 00 00 00 00 00 09 00 00 00 00 67 1f 57 58";
/// Terminate 1/1/00 of a Write.
pub(crate) const F14: &str = "\
    00 26 41 47 00 00 00 00 00 00 00 02 00 00 00 01 00 00 00 00 11 00 c0 00 \
    00 22 c1 40 de ad be ef 00 00 00 00 00 00 10 00 0b eb 4c 81";
/// Terminate 0/1/01 of a Read Request.
pub(crate) const F15: &str = "\
    00 46 41 47 00 00 00 00 00 00 00 02 00 00 00 01 00 00 00 00 01 01 e0 00 \
    00 2e 41 41 00 00 00 00 00 00 00 01 00 00 00 01 00 00 00 00 00 ab cd 42 \
    00 00 00 00 00 01 00 00 00 00 00 40 de ad be 01 00 00 00 00 00 00 10 00 \
    b9 21 c5 66";
/// Terminate 2/0/07.
pub(crate) const F16: &str = "\
    00 16 41 47 00 00 00 00 00 00 00 02 00 00 00 01 00 00 00 00 20 07 00 00 \
    1b d2 ba be";
/// Terminate 2/0/02 as sent by Linux siw on x86.
pub(crate) const F17: &str = "\
    00 16 41 47 00 00 00 00 00 00 00 02 00 00 00 01 00 00 00 00 02 02 00 00 \
    75 d3 67 ed";
/// Atomic Request, MSN 2, FetchAdd.
pub(crate) const F18: &str = "\
    00 46 41 4a 00 00 00 00 00 00 00 01 00 00 00 02 00 00 00 00 00 00 00 00 \
    00 00 00 07 00 ab cd 00 00 00 00 00 00 00 20 00 00 00 00 00 00 00 00 05 \
    00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 ff ff ff ff ff ff ff ff \
    eb a7 63 b5";
/// Atomic Response, MSN 1.
pub(crate) const F19: &str = "\
    00 1e 41 4b 00 00 00 00 00 00 00 03 00 00 00 01 00 00 00 00 00 00 00 07 \
    00 00 00 00 00 00 00 63 3d de 36 c2";
/// Immediate Data, MSN 4.
pub(crate) const F20: &str = "\
    00 1a 41 48 00 00 00 00 00 00 00 00 00 00 00 04 00 00 00 00 11 22 33 44 \
    55 66 77 88 0b a7 7a 64";
