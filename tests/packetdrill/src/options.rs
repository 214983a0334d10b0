//! TCP options, parsed from any layout and written in that of Linux.

/// Options of a header.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub(crate) struct TcpOptions {
    mss: Option<[u8; 2]>,
    window_scale: Option<u8>,
    sack_permitted: bool,
    timestamps: Option<[u8; 8]>,
    sack: Vec<u8>,
}

impl TcpOptions {
    /// Parses options. `None` if an option is unknown or malformed.
    pub(crate) fn parse(mut data: &[u8]) -> Option<Self> {
        let mut options = Self::default();
        loop {
            match data {
                [] | [0, ..] => return Some(options),
                [1, rest @ ..] => data = rest,
                [2, 4, a, b, rest @ ..] => {
                    options.mss = Some([*a, *b]);
                    data = rest;
                }
                [3, 3, shift, rest @ ..] => {
                    options.window_scale = Some(*shift);
                    data = rest;
                }
                [4, 2, rest @ ..] => {
                    options.sack_permitted = true;
                    data = rest;
                }
                [5, length, rest @ ..] => {
                    let length = usize::from(*length).checked_sub(2)?;
                    options.sack = rest.get(..length)?.to_vec();
                    data = &rest[length..];
                }
                [8, 10, rest @ ..] => {
                    options.timestamps = Some(*rest.first_chunk()?);
                    data = &rest[8..];
                }
                _ => return None,
            }
        }
    }

    /// Options in the order of Linux, each padded by preceding NOPs; SACK-permitted replaces the NOPs of the
    /// timestamps.
    pub(crate) fn as_linux(&self) -> Vec<u8> {
        let Self { mss, window_scale, sack_permitted, timestamps, sack } = self;
        let mut data = Vec::with_capacity(40);
        if let Some(mss) = mss {
            data.extend_from_slice(&[2, 4]);
            data.extend_from_slice(mss);
        }
        match (sack_permitted, timestamps) {
            (true, Some(_)) => data.extend_from_slice(&[4, 2]),
            (true, None) => data.extend_from_slice(&[1, 1, 4, 2]),
            (false, Some(_)) => data.extend_from_slice(&[1, 1]),
            (false, None) => {}
        }
        if let Some(timestamps) = timestamps {
            data.extend_from_slice(&[8, 10]);
            data.extend_from_slice(timestamps);
        }
        if let Some(shift) = window_scale {
            data.extend_from_slice(&[1, 3, 3, *shift]);
        }
        if !sack.is_empty() {
            data.extend_from_slice(&[1, 1, 5, sack.len() as u8 + 2]);
            data.extend_from_slice(sack);
        }
        data
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 9293 §3.1: the order of options has no meaning; their content is unchanged.
    #[test]
    fn rewriting_changes_the_order_only() {
        let syn = [3, 3, 8, 4, 2, 2, 4, 5, 0xb4, 8, 10, 0, 0, 0, 1, 0, 0, 0, 2, 0];
        let options = TcpOptions::parse(&syn).unwrap();
        let linux = options.as_linux();
        assert_eq!(linux[..8], [2, 4, 5, 0xb4, 4, 2, 8, 10]);
        assert_eq!(linux[16..], [1, 3, 3, 8]);
        assert_eq!(TcpOptions::parse(&linux), Some(options));
    }

    /// RFC 2018 §3: blocks keep their order, and their bytes.
    #[test]
    fn blocks_are_kept() {
        let data = [5, 18, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0, 4, 1, 1];
        let linux = TcpOptions::parse(&data).unwrap().as_linux();
        assert_eq!(linux[..4], [1, 1, 5, 18]);
        assert_eq!(linux[4..], data[2..18]);
        assert_eq!(linux.len() % 4, 0);
    }

    #[test]
    fn malformed_or_unknown_options_are_not_parsed() {
        for data in [&[34, 2][..], &[2, 4, 5], &[5, 1], &[5, 10, 0], &[8, 10, 0], &[2]] {
            assert_eq!(TcpOptions::parse(data), None, "{data:?}");
        }
    }
}
