//! One client of the control socket: receives its request, then sends the reply, without blocking.
//!
//! Limits: [`REQUEST_BYTES_MAX`] octets of a request. Timers: [`REQUEST_LIMIT`], [`ANSWER_LIMIT`].

use std::{
    fs::File,
    io::{self, IoSliceMut, Write},
    mem::{self, MaybeUninit},
    os::unix::net::UnixStream,
    time::{Duration, Instant},
};

use offload_engine::descriptor::{Guarded, move_to_high_number};
use rustix::{
    cmsg_space,
    event::PollFlags,
    io::Errno,
    net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg},
};

use crate::control::{ANSWER_LIMIT, FILES_MAX, REQUEST_BYTES_MAX, REQUEST_LIMIT};

/// End of a session without a complete reply.
#[derive(Debug, thiserror::Error)]
pub(super) enum SessionEnd {
    #[error("time limit of {} s", .0.as_secs_f64())]
    Late(Duration),
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error("closed by the client")]
    Closed,
}

#[derive(Debug)]
enum Stage {
    Request { line: Vec<u8>, files: Vec<Guarded<File>> },
    Answer { text: Vec<u8>, sent: usize },
}

/// A client whose reply is not complete.
#[derive(Debug)]
pub(super) struct Session {
    client: Guarded<UnixStream>,
    stage: Stage,
    /// Time limit of the stage.
    deadline: Instant,
    /// Time at which octets were last received or sent.
    active_at: Instant,
}

impl Session {
    /// Creates the session of an accepted client.
    ///
    /// # Errors
    /// `fcntl` of the socket failed.
    pub(super) fn new(client: UnixStream) -> io::Result<Self> {
        client.set_nonblocking(true)?;
        let now = Instant::now();
        let stage = Stage::Request { line: Vec::new(), files: Vec::new() };
        Ok(Self { client: client.into(), stage, deadline: now + REQUEST_LIMIT, active_at: now })
    }

    pub(super) fn client(&self) -> &UnixStream {
        &self.client
    }

    pub(super) const fn deadline(&self) -> Instant {
        self.deadline
    }

    pub(super) const fn active_at(&self) -> Instant {
        self.active_at
    }

    /// Returns the events of the socket that let the session proceed.
    pub(super) const fn events(&self) -> PollFlags {
        match self.stage {
            Stage::Request { .. } => PollFlags::IN,
            Stage::Answer { .. } => PollFlags::OUT,
        }
    }

    /// Receives and sends as far as the socket does not block; `answer` converts a request and its files to its reply.
    /// Returns true when the reply is complete.
    ///
    /// # Errors
    /// The session has ended.
    pub(super) fn proceed(
        &mut self,
        answer: impl FnOnce(&[u8], Vec<Guarded<File>>) -> io::Result<Vec<u8>>,
    ) -> Result<bool, SessionEnd> {
        if let Stage::Request { line, files } = &mut self.stage {
            if !receive(&self.client, line, files, &mut self.active_at)? {
                return self.check_deadline(REQUEST_LIMIT);
            }
            let text = answer(line, mem::take(files))?;
            self.stage = Stage::Answer { text, sent: 0 };
            self.deadline = Instant::now() + ANSWER_LIMIT;
        }
        let Stage::Answer { text, sent } = &mut self.stage else { return Ok(false) };
        while *sent < text.len() {
            match self.client.write(&text[*sent..]) {
                Ok(0) => return Err(SessionEnd::Closed),
                Ok(count) => *sent += count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    return self.check_deadline(ANSWER_LIMIT);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
            self.active_at = Instant::now();
        }
        Ok(true)
    }

    fn check_deadline(&self, limit: Duration) -> Result<bool, SessionEnd> {
        match self.deadline <= Instant::now() {
            true => Err(SessionEnd::Late(limit)),
            false => Ok(false),
        }
    }
}

/// Appends received octets to `line` and descriptors to `files`. Returns true when `line` holds a request, without its
/// newline, or [`REQUEST_BYTES_MAX`] octets without a newline.
fn receive(
    client: &UnixStream,
    line: &mut Vec<u8>,
    files: &mut Vec<Guarded<File>>,
    active_at: &mut Instant,
) -> Result<bool, SessionEnd> {
    loop {
        let mut octets = [0; REQUEST_BYTES_MAX];
        let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(FILES_MAX))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut room = [IoSliceMut::new(&mut octets[..REQUEST_BYTES_MAX - line.len()])];
        // The kernel closes descriptors for which there is no space.
        match recvmsg(client, &mut room, &mut control, RecvFlags::CMSG_CLOEXEC) {
            Ok(received) if received.bytes == 0 => return Err(SessionEnd::Closed),
            Ok(received) => {
                for message in control.drain() {
                    if let RecvAncillaryMessage::ScmRights(descriptors) = message {
                        let descriptors = descriptors.map(move_to_high_number);
                        files.extend(descriptors.map(|it| File::from(it).into()));
                        files.truncate(FILES_MAX);
                    }
                }
                *active_at = Instant::now();
                let octets = &octets[..received.bytes];
                let end = octets.iter().position(|&octet| octet == b'\n');
                line.extend_from_slice(&octets[..end.unwrap_or(octets.len())]);
                if end.is_some() || line.len() == REQUEST_BYTES_MAX {
                    return Ok(true);
                }
            }
            Err(Errno::AGAIN) => return Ok(false),
            Err(Errno::INTR) => {}
            Err(error) => return Err(io::Error::from(error).into()),
        }
    }
}
