//! ICMP echo from a kernel, with each reply counted: late, duplicate, reordered or missing.

use std::net::{Ipv4Addr, SocketAddrV4, UdpSocket};
use std::time::{Duration, Instant};

use rustix::net::{AddressFamily, SocketType, ipproto, socket};

use crate::netns::Namespace;

const ECHO_REQUEST: u8 = 8;
const HEADER_BYTES: usize = 8;
/// Time limit for the reply to the last of several requests. If it is too short, a late reply counts as lost.
const REPLY_TIMEOUT: Duration = Duration::from_secs(60);
/// Retransmission interval of an unanswered request.
const RETRANSMIT_INTERVAL: Duration = Duration::from_millis(500);

/// A socket for echo requests to one host.
#[derive(Debug)]
pub struct Pinger {
    socket: UdpSocket,
    next: u16,
}

/// Reply: the number of the request, and the time since it was sent.
pub type Answer = (u16, Duration);

impl Pinger {
    /// Creates a pinger from `host` to `address`.
    ///
    /// # Panics
    ///
    /// If the kernel does not support sockets for ICMP echo.
    pub fn new(host: &Namespace, address: Ipv4Addr) -> Self {
        host.sysctl("net/ipv4/ping_group_range", "0 2147483647");
        let socket = host.run(|| {
            let socket = socket(AddressFamily::INET, SocketType::DGRAM, Some(ipproto::ICMP))
                .expect("sockets for ICMP echo");
            // Such a socket accepts the calls of a datagram socket.
            UdpSocket::from(socket)
        });
        socket.connect(SocketAddrV4::new(address, 0)).expect("there is a route");
        Self { socket, next: 0 }
    }

    /// Sends a request with `bytes` bytes of payload, and returns its number.
    fn send(&mut self, bytes: usize) -> u16 {
        let mut message = vec![0; HEADER_BYTES + bytes];
        message[0] = ECHO_REQUEST;
        message[6..8].copy_from_slice(&self.next.to_be_bytes());
        self.socket.send(&message).expect("the socket is connected");
        let number = self.next;
        self.next += 1;
        number
    }

    /// Number of the next reply, if one arrives within `limit`.
    fn receive(&self, limit: Duration) -> Option<u16> {
        self.socket.set_read_timeout(Some(limit)).expect("a time limit is possible");
        let mut answer = [0; 2048];
        let length = self.socket.recv(&mut answer).ok()?;
        assert!(length >= HEADER_BYTES && answer[0] == 0, "{:?}", &answer[..length]);
        Some(u16::from_be_bytes([answer[6], answer[7]]))
    }

    /// Round-trip time of one request. Unanswered requests are retransmitted. Afterwards the neighbor entry
    /// exists.
    ///
    /// # Panics
    ///
    /// If there is no reply within `REPLY_TIMEOUT`.
    pub fn once(&mut self) -> Duration {
        let deadline = Instant::now() + REPLY_TIMEOUT;
        while Instant::now() < deadline {
            let (number, sent) = (self.send(0), Instant::now());
            while let Some(answered) = self.receive(RETRANSMIT_INTERVAL) {
                if answered == number {
                    return sent.elapsed();
                }
            }
        }
        panic!("no reply within {REPLY_TIMEOUT:?}");
    }

    /// Sends `count` requests of `bytes` each at once, and returns the replies, numbered from 0. Ends when
    /// `is_enough` returns true or no reply arrives for `quiet`.
    pub fn burst(
        &mut self,
        count: u16,
        bytes: usize,
        quiet: Duration,
        is_enough: impl Fn(&[Answer]) -> bool,
    ) -> Vec<Answer> {
        let first = self.next;
        let sent: Vec<_> = (0..count).map(|_| (self.send(bytes), Instant::now())).collect();
        let mut answers = Vec::new();
        while !is_enough(&answers) {
            let Some(number) = self.receive(quiet) else { break };
            // A reply to an earlier request is too late.
            if let Some(index) = number.checked_sub(first) {
                answers.push((index, sent[usize::from(index)].1.elapsed()));
            }
        }
        answers
    }
}
