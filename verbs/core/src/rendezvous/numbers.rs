//! QP numbers: `k * 65536 + P`, where P is the port of a listener of this process, and k the index of a
//! queue pair of this port.
//!
//! Numbers of one port are used in turn, so that a number is reused as late as possible.

/// Queue pairs of one port.
const QPS_PER_PORT: usize = 256;
/// Number of the multicast queue pair, which no other queue pair may have.
const MULTICAST_QPN: u32 = 0xff_ffff;

/// Numbers of one port.
#[derive(Debug)]
struct Port {
    port: u16,
    used: [bool; QPS_PER_PORT],
    /// First index to consider next.
    next: usize,
    /// Numbers in use that need datagrams; `None`: the port receives none.
    datagram_qps: Option<usize>,
}

/// Numbers of all ports.
#[derive(Debug, Default)]
pub(super) struct QpNumbers(Vec<Port>);

/// Returns the port in a QP number.
pub(super) const fn port(number: u32) -> u16 {
    number as u16
}

impl QpNumbers {
    /// Adds a port on which the process listens.
    pub(super) fn add(&mut self, port: u16) {
        let used = [false; QPS_PER_PORT];
        self.0.push(Port { port, used, next: 0, datagram_qps: None });
    }

    /// Returns true if the process listens on a port.
    pub(super) fn has(&self, port: u16) -> bool {
        self.0.iter().any(|it| it.port == port)
    }

    /// Records that a port also receives datagrams.
    pub(super) fn add_datagrams(&mut self, port: u16) {
        let of = self.0.iter_mut().find(|it| it.port == port);
        of.into_iter().for_each(|of| _ = of.datagram_qps.get_or_insert(0));
    }

    /// Returns the ports that receive no datagrams.
    pub(super) fn without_datagrams(&self) -> Vec<u16> {
        self.0.iter().filter(|it| it.datagram_qps.is_none()).map(|it| it.port).collect()
    }

    /// Allocates a number, of a port that receives datagrams if they are needed; `None`: all are in use.
    pub(super) fn allocate(&mut self, needs_datagrams: bool) -> Option<u32> {
        let ports = self.0.iter_mut().filter(|it| it.datagram_qps.is_some() || !needs_datagrams);
        ports.into_iter().find_map(|of| {
            let Port { port, used, next, datagram_qps } = of;
            let number = |index: usize| (index as u32) << 16 | u32::from(*port);
            let indexes = (0..QPS_PER_PORT).map(|step| (*next + step) % QPS_PER_PORT);
            let is_free = |index: &usize| !used[*index] && number(*index) != MULTICAST_QPN;
            let index = { indexes }.find(is_free)?;
            used[index] = true;
            let found = number(index);
            *next = index + 1;
            if let Some(count) = datagram_qps.as_mut().filter(|_| needs_datagrams) {
                *count += 1;
            }
            Some(found)
        })
    }

    /// Releases a number, of which `needed_datagrams` was requested. Returns true if its port needs no datagrams any
    /// longer; it then receives none.
    pub(super) fn release(&mut self, number: u32, needed_datagrams: bool) -> bool {
        let Some(of) = self.0.iter_mut().find(|it| it.port == port(number)) else { return false };
        let used = of.used.get_mut((number >> 16) as usize);
        let was_used = used.is_some_and(core::mem::take);
        if !was_used || !needed_datagrams {
            return false;
        }
        of.datagram_qps =
            of.datagram_qps.and_then(|count| count.checked_sub(1)).filter(|it| *it > 0);
        of.datagram_qps.is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_a_port_are_used_in_turn() {
        let mut numbers = QpNumbers::default();
        assert_eq!(numbers.allocate(false), None);
        numbers.add(4000);
        assert_eq!(
            (numbers.allocate(false), numbers.allocate(false)),
            (Some(4000), Some(0x1_0000 + 4000))
        );
        assert!(!numbers.release(4000, false));
        for index in 2..256 {
            assert_eq!(numbers.allocate(false), Some(index << 16 | 4000));
        }
        assert_eq!(numbers.allocate(false), Some(4000), "released before");
        assert_eq!(numbers.allocate(false), None);
        numbers.add(4001);
        assert_eq!(numbers.allocate(false).map(port), Some(4001));
        numbers.release(0x7_0000 + 4000, false);
        assert_eq!(numbers.allocate(false), Some(0x7_0000 + 4000));
        numbers.release(0x7_0000 + 5000, false);
    }

    #[test]
    fn datagrams_have_numbers_of_ports_that_receive_them() {
        let mut numbers = QpNumbers::default();
        numbers.add(4000);
        numbers.add(4001);
        assert_eq!(numbers.allocate(true), None);
        assert_eq!(numbers.without_datagrams(), [4000, 4001]);
        numbers.add_datagrams(4001);
        assert_eq!(numbers.without_datagrams(), [4000]);
        assert_eq!((numbers.allocate(true), numbers.allocate(false)), (Some(4001), Some(4000)));
    }

    // A connection's queue pair at the same port does not count.
    #[test]
    fn last_number_with_datagrams_ends_those_of_its_port() {
        let mut numbers = QpNumbers::default();
        numbers.add(4000);
        numbers.add_datagrams(4000);
        let [first, second] = [true, true].map(|needs| numbers.allocate(needs).unwrap());
        let connected = numbers.allocate(false).unwrap();
        assert!(!numbers.release(first, true));
        assert!(!numbers.release(first, true), "released before");
        assert!(!numbers.release(connected, false));
        assert!(numbers.without_datagrams().is_empty());
        assert!(numbers.release(second, true));
        assert_eq!((numbers.without_datagrams(), numbers.allocate(true)), (vec![4000], None));
    }

    #[test]
    fn multicast_number_is_never_allocated() {
        let mut numbers = QpNumbers::default();
        numbers.add(65_535);
        let all: Vec<_> = std::iter::from_fn(|| numbers.allocate(false)).collect();
        assert_eq!((all.len(), all.contains(&MULTICAST_QPN)), (255, false));
    }
}
