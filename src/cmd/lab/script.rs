//! What the two nodes of the lab say to each other over their queue pair, as pure state machines.
//!
//! A file of `length` octets crosses three times, each time by another operation: *A* sends it in
//! chunks into the receives that *B* has posted over its sink; *A* writes it into the sink; *B* reads it
//! from *A*'s memory. After each passage *B* says that all has arrived, and then the SHA-256 of its
//! sink, which it clears before the next passage, so that nothing can pass for what came before.
//!
//! ```text
//! A                                   B
//!   Hello(length, chunk)      ->           gets memory, posts receives over it
//!                             <-  Ready(its memory, credit)
//!   data, data, ...           ->
//!                             <-  Credit, as receives are posted again
//!                             <-  Arrived, Digest
//!   RDMA Writes, Written      ->
//!                             <-  Arrived, Digest
//!   Offer(its memory)         ->
//!                             <-  RDMA Reads, then Arrived, Digest
//!   disconnects
//! ```
//!
//! iWARP has no "receiver not ready": a Send that finds no receive posted ends the connection. Hence the
//! credit. One credit is one receive that *B* has posted and *A* has not used; a Hello uses the one that
//! *B* has posted before it accepts. Toward *A* at most [`CONTROL_RECEIVES`] messages are on the way:
//! two or three Credits (each stands for at least half of the window), Arrived and Digest.
//!
//! The machines hold no memory and no clock. [`Initiator::poll`] and [`Target::poll`] say what is to be
//! posted, as long as the initiator queue has room; `handle` takes what has happened.

mod message;

use std::collections::VecDeque;

pub use self::message::{CONTROL_BYTES, Control, Digest, Remote, ScriptError, TransferKind};

/// Receives for control messages that *A* keeps posted.
pub const CONTROL_RECEIVES: usize = 8;
/// Longest file: both nodes hold it in registered memory.
pub const FILE_BYTES_MAX: u64 = 1 << 30;
/// Longest chunk: one Send, Write or Read.
pub const CHUNK_BYTES_MAX: u32 = 16 << 20;
/// Most receives that *B* posts ahead.
pub const WINDOW_RECEIVES_MAX: u32 = 1024;

/// Octets of the node's own file memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Chunk {
    /// From the start of the file.
    pub offset: u64,
    /// Octets.
    pub length: u32,
}

/// What is to be done next.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Work {
    /// Get file memory of that many octets, all zero, registered for remote write. Answer with
    /// [`Event::Prepared`].
    Prepare(u64),
    /// Post a receive for a control message.
    ReceiveControl,
    /// Post a receive over file memory.
    ReceiveData(Chunk),
    /// Post a Send of a control message. A request.
    SendControl(Control),
    /// Post a Send of file memory. A request.
    SendData(Chunk),
    /// Post an RDMA Write of file memory. A request.
    Write {
        /// From here.
        from: Chunk,
        /// To there.
        to: Remote,
    },
    /// Post an RDMA Read into file memory. A request.
    Read {
        /// From there.
        from: Remote,
        /// To here.
        to: Chunk,
    },
    /// Hash the file memory. Answer with [`Event::Hashed`].
    Hash,
    /// Set the file memory to zero.
    Clear,
    /// A passage begins: note time and counters.
    Begin(TransferKind),
    /// A passage has ended: note time and counters.
    End(TransferKind),
    /// The digests of a passage agree.
    Verified(TransferKind, Digest),
    /// All is done; *A* disconnects now, *B* waits for it.
    Done,
}

impl Work {
    /// Whether it takes a place in the initiator queue until it is complete.
    pub const fn is_request(&self) -> bool {
        matches!(
            self,
            Self::SendControl(_) | Self::SendData(_) | Self::Write { .. } | Self::Read { .. }
        )
    }
}

/// What has happened.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Event<'a> {
    /// The file memory asked for by [`Work::Prepare`].
    Prepared(Remote),
    /// A receive posted by [`Work::ReceiveControl`] is complete, with these octets.
    Control(&'a [u8]),
    /// A receive posted by [`Work::ReceiveData`] is complete, with that many octets.
    Data(u32),
    /// The oldest request is complete, successfully.
    RequestDone,
    /// The digest asked for by [`Work::Hash`].
    Hashed(Digest),
}

/// Work that waits, and places in the initiator queue.
#[derive(Debug)]
struct Queue {
    waiting: VecDeque<Work>,
    outstanding: u32,
    depth: u32,
}

impl Queue {
    fn new(depth: u32) -> Self {
        Self { waiting: VecDeque::new(), outstanding: 0, depth: depth.max(1) }
    }

    fn has_room(&self) -> bool {
        self.outstanding < self.depth
    }

    /// The oldest work that waits, unless it needs a place and there is none.
    fn take(&mut self) -> Option<Work> {
        if self.waiting.front()?.is_request() && !self.has_room() {
            return None;
        }
        let work = self.waiting.pop_front()?;
        self.outstanding += u32::from(work.is_request());
        Some(work)
    }

    fn request_done(&mut self) -> Result<(), ScriptError> {
        self.outstanding =
            self.outstanding.checked_sub(1).ok_or(ScriptError::Unexpected("a completion"))?;
        Ok(())
    }
}

/// Chunks of a file, one after the other.
#[derive(Clone, Copy, Debug)]
struct Chunks {
    length: u64,
    chunk: u32,
    next: u64,
}

impl Chunks {
    const fn new(length: u64, chunk: u32) -> Self {
        Self { length, chunk, next: 0 }
    }

    const fn rewind(&mut self) {
        self.next = 0;
    }

    const fn is_at_end(&self) -> bool {
        self.next == self.length
    }

    fn take(&mut self) -> Option<Chunk> {
        let left = self.length - self.next;
        if left == 0 {
            return None;
        }
        // The minimum fits the smaller of the two.
        let length = left.min(self.chunk.into()) as u32;
        let chunk = Chunk { offset: self.next, length };
        self.next += u64::from(length);
        Some(chunk)
    }
}

fn check_sizes(length: u64, chunk: u32) -> Result<(), ScriptError> {
    if !(1..=FILE_BYTES_MAX).contains(&length) {
        return Err(ScriptError::Limit("length of the file"));
    }
    if !(1..=CHUNK_BYTES_MAX).contains(&chunk) {
        return Err(ScriptError::Limit("length of a chunk"));
    }
    Ok(())
}

/// Where *A* is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum InitiatorStep {
    /// Hello is sent.
    Greeting,
    /// The chunks, or the offer, of the passage are going out.
    Passing(TransferKind),
    /// They are out.
    Passed(TransferKind),
    /// They have arrived; their digest has not.
    Arrived(TransferKind),
    /// Nothing is left.
    Done,
}

/// *A*: has the file.
#[derive(Debug)]
pub struct Initiator {
    queue: Queue,
    chunks: Chunks,
    source: Remote,
    digest: Digest,
    sink: Option<Remote>,
    credit: u32,
    step: InitiatorStep,
}

impl Initiator {
    /// The file is in registered memory at `source` and hashes to `digest`. At most `depth` requests are
    /// outstanding. Post what [`Initiator::receives_before_connect`] says before connecting.
    ///
    /// # Errors
    /// [`ScriptError::Limit`].
    pub fn new(
        length: u64,
        chunk: u32,
        depth: u32,
        source: Remote,
        digest: Digest,
    ) -> Result<Self, ScriptError> {
        check_sizes(length, chunk)?;
        let mut queue = Queue::new(depth);
        queue.waiting.push_back(Work::SendControl(Control::Hello { length, chunk }));
        let chunks = Chunks::new(length, chunk);
        let step = InitiatorStep::Greeting;
        Ok(Self { queue, chunks, source, digest, sink: None, credit: 0, step })
    }

    /// Receives for control messages to be posted before the queue pair connects.
    pub const fn receives_before_connect() -> usize {
        CONTROL_RECEIVES
    }

    /// What is to be done next. Changes with [`Initiator::handle`] only; call until `None`.
    #[must_use]
    pub fn poll(&mut self) -> Option<Work> {
        if self.queue.waiting.is_empty()
            && let InitiatorStep::Passing(passage) = self.step
        {
            self.pass(passage);
        }
        self.queue.take()
    }

    /// Queues the next request of a passage, if it may go now.
    fn pass(&mut self, passage: TransferKind) {
        let needs_credit = passage != TransferKind::Write || self.chunks.is_at_end();
        if !self.queue.has_room() || (needs_credit && self.credit == 0) {
            return;
        }
        let (work, is_last) = match (passage, self.sink) {
            (TransferKind::Send, _) => {
                let work = self.chunks.take().map(Work::SendData);
                (work, self.chunks.is_at_end())
            }
            (TransferKind::Write, Some(sink)) => match self.chunks.take() {
                Some(from) => {
                    let to = Remote { address: sink.address.wrapping_add(from.offset), ..sink };
                    (Some(Work::Write { from, to }), false)
                }
                None => (Some(Work::SendControl(Control::Written)), true),
            },
            (TransferKind::Read, _) => {
                let offer = Control::Offer { source: self.source };
                (Some(Work::SendControl(offer)), true)
            }
            // Ready, which begins the first passage, brings the sink.
            (TransferKind::Write, None) => (None, false),
        };
        // Every Send uses up one of B's receives.
        let is_send = matches!(work, Some(Work::SendData(_) | Work::SendControl(_)));
        self.credit -= u32::from(is_send);
        self.queue.waiting.extend(work);
        if is_last {
            self.step = InitiatorStep::Passed(passage);
        }
    }

    /// Takes what has happened.
    ///
    /// # Errors
    /// The peer does not follow the script, or a digest differs: disconnect.
    pub fn handle(&mut self, event: &Event<'_>) -> Result<(), ScriptError> {
        match event {
            Event::RequestDone => self.queue.request_done(),
            Event::Control(octets) => {
                self.queue.waiting.push_back(Work::ReceiveControl);
                self.control(Control::decode(octets)?)
            }
            Event::Prepared(_) | Event::Data(_) | Event::Hashed(_) => {
                Err(ScriptError::Unexpected("an event of the other side"))
            }
        }
    }

    fn control(&mut self, control: Control) -> Result<(), ScriptError> {
        use InitiatorStep::{Arrived, Done, Greeting, Passed, Passing};
        match (control, self.step) {
            (Control::Ready { sink, credit }, Greeting) => {
                self.sink = Some(sink);
                self.grant(credit)?;
                self.begin(TransferKind::Send);
                Ok(())
            }
            (Control::Credit { credit }, Passing(_) | Passed(_) | Arrived(_)) => self.grant(credit),
            (Control::Arrived, Passed(passage)) => {
                self.queue.waiting.push_back(Work::End(passage));
                self.step = Arrived(passage);
                Ok(())
            }
            (Control::Digest(digest), Arrived(passage)) => {
                if digest != self.digest {
                    return Err(ScriptError::DigestMismatch(passage));
                }
                self.queue.waiting.push_back(Work::Verified(passage, digest));
                match passage.next() {
                    Some(next) => self.begin(next),
                    None => {
                        self.queue.waiting.push_back(Work::Done);
                        self.step = Done;
                    }
                }
                Ok(())
            }
            (Control::Ready { .. }, _) => Err(ScriptError::Unexpected("Ready")),
            (Control::Credit { .. }, _) => Err(ScriptError::Unexpected("Credit")),
            (Control::Arrived, _) => Err(ScriptError::Unexpected("Arrived")),
            (Control::Digest(_), _) => Err(ScriptError::Unexpected("Digest")),
            _ => Err(ScriptError::Unexpected("a message of the initiator")),
        }
    }

    fn begin(&mut self, passage: TransferKind) {
        self.chunks.rewind();
        self.queue.waiting.push_back(Work::Begin(passage));
        self.step = InitiatorStep::Passing(passage);
    }

    fn grant(&mut self, credit: u32) -> Result<(), ScriptError> {
        let total = self.credit.checked_add(credit);
        self.credit = total
            .filter(|&total| total <= WINDOW_RECEIVES_MAX)
            .ok_or(ScriptError::Limit("credit"))?;
        Ok(())
    }
}

/// Where *B* is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum TargetStep {
    /// Nothing has come.
    Waiting,
    /// Memory is being made.
    Preparing,
    /// The passage is under way.
    Passing(TransferKind),
    /// All has arrived and is being hashed.
    Hashing(TransferKind),
    /// Nothing is left.
    Done,
}

/// *B*: gets the file.
#[derive(Debug)]
pub struct Target {
    queue: Queue,
    window: u32,
    /// Chunks over which receives are posted; later, chunks that are read.
    chunks: Chunks,
    /// Control receives to be posted when the data receives are: for Written and Offer.
    controls_left: u32,
    /// Receives posted and not yet told to *A*.
    ungranted: u32,
    /// Chunks that have arrived by Send.
    arrived: Chunks,
    source: Option<Remote>,
    step: TargetStep,
}

impl Target {
    /// At most `window` receives are posted ahead and `depth` requests are outstanding. Post one control
    /// receive before accepting.
    ///
    /// # Errors
    /// [`ScriptError::Limit`].
    pub fn new(window: u32, depth: u32) -> Result<Self, ScriptError> {
        if !(1..=WINDOW_RECEIVES_MAX).contains(&window) {
            return Err(ScriptError::Limit("window"));
        }
        Ok(Self {
            queue: Queue::new(depth),
            window,
            chunks: Chunks::new(0, 1),
            controls_left: 0,
            ungranted: 0,
            arrived: Chunks::new(0, 1),
            source: None,
            step: TargetStep::Waiting,
        })
    }

    /// Receives for control messages to be posted before the connection is accepted.
    pub const fn receives_before_accept() -> usize {
        1
    }

    /// What is to be done next. Changes with [`Target::handle`] only; call until `None`.
    #[must_use]
    pub fn poll(&mut self) -> Option<Work> {
        if self.queue.waiting.is_empty()
            && self.queue.has_room()
            && self.step == TargetStep::Passing(TransferKind::Read)
            && let Some(source) = self.source
            && let Some(to) = self.chunks.take()
        {
            let address = source.address.wrapping_add(to.offset);
            let from = Remote { address, ..source };
            self.queue.waiting.push_back(Work::Read { from, to });
        }
        self.queue.take()
    }

    /// Takes what has happened.
    ///
    /// # Errors
    /// The peer does not follow the script: disconnect.
    pub fn handle(&mut self, event: &Event<'_>) -> Result<(), ScriptError> {
        match (event, self.step) {
            (Event::RequestDone, _) => {
                self.queue.request_done()?;
                self.read_done();
                Ok(())
            }
            (Event::Control(octets), _) => self.control(Control::decode(octets)?),
            (Event::Data(length), TargetStep::Passing(TransferKind::Send)) => {
                self.arrived
                    .take()
                    .filter(|chunk| chunk.length == *length)
                    .ok_or(ScriptError::Unexpected("the length of the data"))?;
                self.post_receive();
                if self.arrived.is_at_end() {
                    self.all_arrived(TransferKind::Send);
                }
                Ok(())
            }
            (Event::Prepared(sink), TargetStep::Preparing) => {
                self.queue.waiting.push_back(Work::Begin(TransferKind::Send));
                let mut posted = 0;
                while posted < self.window && self.queue_receive() {
                    posted += 1;
                }
                let ready = Control::Ready { sink: *sink, credit: posted };
                self.queue.waiting.push_back(Work::SendControl(ready));
                self.step = TargetStep::Passing(TransferKind::Send);
                Ok(())
            }
            (Event::Hashed(digest), TargetStep::Hashing(passage)) => {
                self.hashed(passage, *digest);
                Ok(())
            }
            (Event::Data(_), _) => Err(ScriptError::Unexpected("data")),
            (Event::Prepared(_) | Event::Hashed(_), _) => {
                Err(ScriptError::Unexpected("an answer to nothing"))
            }
        }
    }

    fn control(&mut self, control: Control) -> Result<(), ScriptError> {
        match (control, self.step) {
            (Control::Hello { length, chunk }, TargetStep::Waiting) => {
                check_sizes(length, chunk)?;
                self.chunks = Chunks::new(length, chunk);
                self.arrived = self.chunks;
                self.controls_left = 2;
                self.queue.waiting.push_back(Work::Prepare(length));
                self.step = TargetStep::Preparing;
                Ok(())
            }
            (Control::Written, TargetStep::Passing(TransferKind::Write)) => {
                self.post_receive();
                self.all_arrived(TransferKind::Write);
                Ok(())
            }
            (Control::Offer { source }, TargetStep::Passing(TransferKind::Read))
                if self.source.is_none() =>
            {
                self.chunks.rewind();
                self.source = Some(source);
                Ok(())
            }
            (Control::Hello { .. }, _) => Err(ScriptError::Unexpected("Hello")),
            (Control::Written, _) => Err(ScriptError::Unexpected("Written")),
            (Control::Offer { .. }, _) => Err(ScriptError::Unexpected("Offer")),
            _ => Err(ScriptError::Unexpected("a message of the target")),
        }
    }

    /// Queues the posting of the next receive of the script, if there is one.
    fn queue_receive(&mut self) -> bool {
        let work = match self.chunks.take() {
            Some(chunk) => Work::ReceiveData(chunk),
            None if self.controls_left > 0 => {
                self.controls_left -= 1;
                Work::ReceiveControl
            }
            None => return false,
        };
        self.queue.waiting.push_back(work);
        true
    }

    /// A receive was used: posts the next, and grants credit in halves of the window.
    fn post_receive(&mut self) {
        let posted = self.queue_receive();
        self.ungranted += u32::from(posted);
        let is_last = self.chunks.is_at_end() && self.controls_left == 0;
        if self.ungranted > 0 && (is_last || self.ungranted >= (self.window / 2).max(1)) {
            let credit = std::mem::take(&mut self.ungranted);
            self.queue.waiting.push_back(Work::SendControl(Control::Credit { credit }));
        }
    }

    fn read_done(&mut self) {
        // Requests complete in order (NDK-WR-6), so those before the first Read were others.
        let reading = self.step == TargetStep::Passing(TransferKind::Read) && self.source.is_some();
        if reading && self.chunks.is_at_end() && self.queue.outstanding == 0 {
            self.all_arrived(TransferKind::Read);
        }
    }

    fn all_arrived(&mut self, passage: TransferKind) {
        let works = [Work::End(passage), Work::SendControl(Control::Arrived), Work::Hash];
        self.queue.waiting.extend(works);
        self.step = TargetStep::Hashing(passage);
    }

    fn hashed(&mut self, passage: TransferKind, digest: Digest) {
        // The sink is cleared before A learns that it may fill it again.
        if passage.next().is_some() {
            self.queue.waiting.push_back(Work::Clear);
        }
        self.queue.waiting.push_back(Work::Verified(passage, digest));
        match passage.next() {
            Some(next) => {
                self.queue.waiting.push_back(Work::Begin(next));
                self.step = TargetStep::Passing(next);
            }
            None => self.step = TargetStep::Done,
        }
        self.queue.waiting.push_back(Work::SendControl(Control::Digest(digest)));
        if self.step == TargetStep::Done {
            self.queue.waiting.push_back(Work::Done);
        }
    }
}

#[cfg(test)]
mod tests;
