//! Messages of the consumers: exchanges that show that a connection works, reads and writes of the peer, reports.

use std::time::Instant;

use crate::{
    consumer::{Consumer, READ_SIZE, Report, SOURCE, TARGET},
    finding::{Step, Stop, ensure},
    link::Link,
    wire::{
        Header, READ_OCTETS, READ_REQUEST, READ_RESPONSE, Segment, WRITE, be32, be64, fpdu, hex,
        tagged,
    },
};

/// Message of rping: address, STag and size of memory.
fn advert((stag, to): (u32, u64), size: usize) -> Vec<u8> {
    [&to.to_be_bytes()[..], &stag.to_be_bytes(), &(size as u32).to_be_bytes()].concat()
}

/// Octets of a message of rping.
const ADVERT_OCTETS: usize = 16;

/// Text of a ping: it ends with its only NUL, as the server writes back as many octets as the text has.
fn text() -> Vec<u8> {
    let mut octets: Vec<u8> = (0..READ_SIZE).map(|at| b'A' + (at % 26) as u8).collect();
    octets[READ_SIZE - 1] = 0;
    octets
}

impl Link {
    /// Returns a message that the consumer answers: a case in which the peer must refuse it detects an answer.
    pub(crate) fn command(&self) -> Vec<u8> {
        match self.peer.consumer {
            Consumer::Rping => advert(SOURCE, READ_SIZE),
            _ => b"E1234567".to_vec(),
        }
    }

    /// Returns the next Send, with a message that the consumer answers, and a changed header.
    pub(crate) fn command_with(&mut self, change: impl FnOnce(&mut Header)) -> Vec<u8> {
        let command = self.command();
        self.send_with(&command, change)
    }

    /// Exchanges messages with the consumer: the connection works. [`Consumer::None`] exchanges none.
    pub(crate) fn ping(&mut self) -> Step {
        self.ping_with(|_| {})
    }

    /// Exchanges messages with rping: the consumer has the connection. Some implementations crash if it ends before.
    pub(crate) fn await_consumer(&mut self) -> Step {
        if self.peer.consumer != Consumer::Rping {
            return Ok(());
        }
        self.ping()
    }

    /// As [`Link::ping`], with a changed header of the first Send.
    pub(crate) fn ping_with(&mut self, change: impl FnOnce(&mut Header)) -> Step {
        self.ping_by(|link, mut ulpdu| {
            if let Some(Segment { mut header, data, .. }) =
                Segment::decode(core::mem::take(&mut ulpdu))
            {
                change(&mut header);
                ulpdu = header.with(&data);
            }
            link.post(ulpdu);
        })
    }

    /// As [`Link::ping`]; `post` sends the segment of the first Send.
    pub(crate) fn ping_by(&mut self, post: impl FnOnce(&mut Self, Vec<u8>)) -> Step {
        match self.peer.consumer {
            Consumer::None => Ok(()),
            Consumer::Flue => {
                let text: Vec<u8> = b"E".iter().copied().chain(0..72).collect();
                let send = self.send(&text);
                post(self, send);
                let echo = self.message()?;
                ensure(echo == text, || format!("echo {} of {}", hex(&echo), hex(&text)))
            }
            Consumer::Rping => {
                if self.exchanged.is_none() {
                    let send = self.send(&advert(SOURCE, READ_SIZE));
                    post(self, send);
                    self.read_request(READ_SIZE)?;
                    let (stag, to) = self.sink;
                    self.put(&fpdu(&tagged(READ_RESPONSE, stag, to, &text())));
                    self.answered(&text())?;
                }
                self.written_back()
            }
        }
    }

    /// Causes the peer to read memory of the judge, and receives the Read Request.
    pub(crate) fn ask_read(&mut self) -> Step {
        let send = match self.peer.consumer {
            Consumer::Rping => advert(SOURCE, READ_SIZE),
            _ => [
                b"R",
                &SOURCE.0.to_be_bytes()[..],
                &SOURCE.1.to_be_bytes(),
                &[0, 0, 0, READ_SIZE as u8],
            ]
            .concat(),
        };
        let send = self.send(&send);
        self.put(&fpdu(&send));
        self.read_request(READ_SIZE)
    }

    fn read_request(&mut self, size: usize) -> Step {
        self.reads_of_peer += 1;
        let segment = self.segment()?;
        let data = &segment.data;
        let found = (segment.header.qn, segment.header.msn, segment.header.is_last, data.len());
        let is_valid =
            segment.is(READ_REQUEST, false) && found == (1, self.reads_of_peer, true, READ_OCTETS);
        let source = (be32(data, 12) as usize, be32(data, 16), be64(data, 20));
        self.sink = (be32(data, 0), be64(data, 4));
        ensure(is_valid, || {
            let msn = self.reads_of_peer;
            format!(
                "{segment}: expected a Read Request on QN 1, MSN {msn}, of {READ_OCTETS} octets"
            )
        })?;
        ensure(source == (size, SOURCE.0, SOURCE.1), || {
            format!(
                "{segment}: the Read Request has other parameters than the consumer's: {}",
                hex(data)
            )
        })
    }

    /// Checks that the consumer of the peer has received the octets of the Read Response.
    pub(crate) fn answered(&mut self, octets: &[u8]) -> Step {
        let message = self.message()?;
        match self.peer.consumer {
            Consumer::Rping => {
                self.exchanged = Some(octets.to_vec());
                let length = message.len();
                ensure(length == ADVERT_OCTETS, || format!("Send of {length} octets: expected 16"))
            }
            _ => ensure(message[1..] == *octets, || {
                format!("the peer has read {}: expected {}", hex(&message[1..]), hex(octets))
            }),
        }
    }

    /// Receives the RDMA Write of the exchange of rping, and the Send after it.
    fn written_back(&mut self) -> Step {
        let octets = self.exchanged.take().unwrap_or_default();
        let send = self.send(&advert(TARGET, READ_SIZE));
        self.put(&fpdu(&send));
        // The server writes a text with its NUL, or the whole buffer.
        let length =
            octets.iter().position(|octet| *octet == 0).map_or(octets.len(), |nul| nul + 1);
        let found = self.written(TARGET)?;
        ensure(found.len() >= length && found[..length] == octets[..length], || {
            format!("RDMA Write of {}: expected {}", hex(&found), hex(&octets[..length]))
        })?;
        let message = self.message()?;
        ensure(message.len() == ADVERT_OCTETS, || {
            format!("Send of {} octets: expected {ADVERT_OCTETS}", message.len())
        })
    }

    /// Receives an RDMA Write to this memory of the judge. Returns its octets.
    pub(crate) fn written(&mut self, (stag, to): (u32, u64)) -> Step<Vec<u8>> {
        let mut octets = Vec::new();
        loop {
            let segment = self.segment()?;
            let expected = (stag, to.wrapping_add(octets.len() as u64));
            let is_next = (segment.header.stag, segment.header.to) == expected;
            ensure(segment.is(WRITE, true) && is_next, || {
                format!(
                    "{segment}: expected an RDMA Write to STag {:#x}, TO {:#x}",
                    expected.0, expected.1
                )
            })?;
            octets.extend_from_slice(&segment.data);
            if segment.header.is_last {
                return Ok(octets);
            }
        }
    }

    /// Queries the report of a connection, over this one.
    pub(crate) fn report(&mut self, number: u32) -> Step<Report> {
        let reply = self.ask(&[b"Q", &number.to_be_bytes()[..]].concat())?;
        serde_json::from_slice(&reply[1..])
            .map_err(|error| Stop::case(format!("report {}: {error}", hex(&reply))))
    }

    /// Returns the well-behaved connection.
    pub(crate) fn witness(&mut self) -> Step<&mut Self> {
        let none = || Stop::Skip("no well-behaved connection".into());
        self.witness.as_deref_mut().ok_or_else(none)
    }

    /// As [`Link::report`], over the well-behaved connection, once it meets the condition or the time limit is over.
    pub(crate) fn report_when(
        &mut self,
        number: u32,
        is_met: impl Fn(&Report) -> bool,
    ) -> Step<Report> {
        let deadline = self.deadline();
        loop {
            let report = self.witness()?.report(number)?;
            if is_met(&report) || Instant::now() > deadline {
                return Ok(report);
            }
        }
    }
}
