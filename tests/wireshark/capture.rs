//! Capture of one TCP connection, built manually: pcap, Ethernet, IPv4.

/// Frames so far, and the sequence numbers of both sides.
pub(crate) struct Connection {
    pcap: Vec<u8>,
    ports: [u16; 2],
    /// Next sequence numbers of client and server.
    next: [u32; 2],
    frames: u32,
}

const SYN: u8 = 0x02;
const PSH_ACK: u8 = 0x18;
const ACK: u8 = 0x10;

fn sum(octets: &[u8], start: u32) -> u32 {
    octets.chunks(2).fold(start, |sum, pair| {
        sum + (u32::from(pair[0]) << 8) + u32::from(pair.get(1).copied().unwrap_or(0))
    })
}

fn checksum(mut sum: u32) -> [u8; 2] {
    while sum > 0xffff {
        sum = (sum >> 16) + (sum & 0xffff);
    }
    (!(sum as u16)).to_be_bytes()
}

impl Connection {
    /// Creates a connection to `port` of the server.
    pub(crate) fn new(port: u16) -> Self {
        let mut pcap = 0xa1b2_c3d4_u32.to_le_bytes().to_vec();
        pcap.extend([2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 4, 0, 1, 0, 0, 0]);
        let mut connection = Self { pcap, ports: [49_500, port], next: [1000, 5000], frames: 0 };
        connection.frame(0, SYN, &[]);
        connection.next[0] += 1;
        connection.frame(1, SYN | ACK, &[]);
        connection.next[1] += 1;
        connection.frame(0, ACK, &[]);
        // The handshake is not part of the capture.
        connection.pcap.truncate(24);
        connection.frames = 0;
        connection
    }

    /// Appends a segment of the client.
    pub(crate) fn client_sends(&mut self, payload: &[u8]) {
        self.data(0, payload);
    }

    /// Appends a segment of the server.
    pub(crate) fn server_sends(&mut self, payload: &[u8]) {
        self.data(1, payload);
    }

    /// Content of the capture file.
    pub(crate) fn pcap(&self) -> &[u8] {
        &self.pcap
    }

    fn data(&mut self, side: usize, payload: &[u8]) {
        self.frame(side, PSH_ACK, payload);
        self.next[side] += payload.len() as u32;
    }

    fn frame(&mut self, side: usize, flags: u8, payload: &[u8]) {
        let (from, to) = ([10, 0, 0, 1 + side as u8], [10, 0, 0, 2 - side as u8]);
        let mut tcp = [self.ports[side].to_be_bytes(), self.ports[1 - side].to_be_bytes()].concat();
        tcp.extend(self.next[side].to_be_bytes());
        tcp.extend(self.next[1 - side].to_be_bytes());
        tcp.extend([0x50, flags, 0xff, 0xff, 0, 0, 0, 0]);
        tcp.extend(payload);
        let pseudo = [&from[..], &to, &[0, 6], &(tcp.len() as u16).to_be_bytes()].concat();
        let tcp_sum = checksum(sum(&tcp, sum(&pseudo, 0)));
        tcp[16..18].copy_from_slice(&tcp_sum);

        let mut ip = vec![0x45, 0];
        ip.extend((20 + tcp.len() as u16).to_be_bytes());
        ip.extend([0, 0, 0x40, 0, 64, 6, 0, 0]);
        ip.extend(from);
        ip.extend(to);
        let ip_sum = checksum(sum(&ip, 0));
        ip[10..12].copy_from_slice(&ip_sum);

        let mut ethernet = vec![2, 0, 0, 0, 0, 2 - side as u8, 2, 0, 0, 0, 0, 1 + side as u8, 8, 0];
        ethernet.extend(ip);
        ethernet.extend(tcp);
        self.frames += 1;
        let length = ethernet.len() as u32;
        for word in [self.frames, 0, length, length] {
            self.pcap.extend(word.to_le_bytes());
        }
        self.pcap.extend(ethernet);
    }
}
