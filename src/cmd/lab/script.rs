//! Protocol of the two lab nodes over their queue pair, as pure state machines.
//!
//! A file of `length` bytes is transferred three times, each time by another operation. *A* sends it in chunks into
//! receives that *B* posted over its sink; *A* writes it into the sink; *B* reads it from the memory of *A*. After each
//! transfer *B* sends Arrived, then the SHA-256 of its sink. *B* clears the sink before the next transfer, so that
//! stale data cannot match.
//!
//! ```text
//! A                                   B
//!   Hello(length, chunk)      ->           allocates memory, posts receives over it
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
//! iWARP has no "receiver not ready": a Send without a posted receive ends the connection. Hence the credits. One
//! credit is one receive that *B* has posted and *A* has not used; a Hello uses the receive that *B* posts before it
//! accepts. At most [`CONTROL_RECEIVES`] messages to *A* are in flight: two or three Credits (each for at least half of
//! the window), Arrived and Digest.
//!
//! The machines hold no memory and no clock. [`Initiator::poll`] and [`Target::poll`] return the work to post while the
//! initiator queue has room; `handle` takes the events.

mod message;

use std::collections::VecDeque;

pub use self::message::{CONTROL_BYTES, Control, Digest, Remote, ScriptError, TransferKind};

/// Receives for control messages that *A* keeps posted.
pub const CONTROL_RECEIVES: usize = 8;
/// Longest file, bytes: both nodes hold it in registered memory.
pub const FILE_BYTES_MAX: u64 = 1 << 30;
/// Longest chunk, bytes: one Send, Write or Read.
pub const CHUNK_BYTES_MAX: u32 = 16 << 20;
/// Most receives that *B* posts ahead.
pub const WINDOW_RECEIVES_MAX: u32 = 1024;

/// Range of the node's own file memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Chunk {
    /// Offset from the start of the file, bytes.
    pub offset: u64,
    /// Length, bytes.
    pub length: u32,
}

/// Next work of a node.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Work {
    /// Allocate that many zero bytes of file memory, registered for remote write. Answer with [`Event::Prepared`].
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
        /// Local source.
        from: Chunk,
        /// Remote destination.
        to: Remote,
    },
    /// Post an RDMA Read into file memory. A request.
    Read {
        /// Remote source.
        from: Remote,
        /// Local destination.
        to: Chunk,
    },
    /// Hash the file memory. Answer with [`Event::Hashed`].
    Hash,
    /// Clear the file memory.
    Clear,
    /// Start of a transfer: record time and counters.
    Begin(TransferKind),
    /// End of a transfer: record time and counters.
    End(TransferKind),
    /// The digests of a transfer match.
    Verified(TransferKind, Digest),
    /// The script is complete; *A* disconnects now, *B* waits for the disconnect.
    Done,
}

impl Work {
    /// Returns true if the work occupies an entry of the initiator queue until completion.
    pub const fn is_request(&self) -> bool {
        matches!(
            self,
            Self::SendControl(_) | Self::SendData(_) | Self::Write { .. } | Self::Read { .. }
        )
    }
}

/// Event passed to a state machine.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Event<'a> {
    /// File memory requested by [`Work::Prepare`].
    Prepared(Remote),
    /// Completion of a receive posted by [`Work::ReceiveControl`], with these bytes.
    Control(&'a [u8]),
    /// Completion of a receive posted by [`Work::ReceiveData`], with that many bytes.
    Data(u32),
    /// Successful completion of the oldest request.
    RequestDone,
    /// Digest requested by [`Work::Hash`].
    Hashed(Digest),
}

/// Pending work, and the occupancy of the initiator queue.
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

    /// Returns the oldest pending work, unless it is a request and the initiator queue is full.
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
            self.outstanding.checked_sub(1).ok_or(ScriptError::Unexpected("completion"))?;
        Ok(())
    }
}

/// Iterator over the chunks of a file, in order.
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
        // The minimum fits the narrower type.
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

/// State of *A*.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum InitiatorStep {
    /// Hello is sent.
    Greeting,
    /// The chunks, or the offer, of the transfer are being sent.
    Passing(TransferKind),
    /// All are sent.
    Passed(TransferKind),
    /// The data has arrived; its digest has not.
    Arrived(TransferKind),
    /// The script is complete.
    Done,
}

/// State machine of *A*, which has the file.
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
    /// Creates the state machine for a file in registered memory at `source` that hashes to `digest`. At most `depth`
    /// requests are outstanding.
    ///
    /// Post [`Initiator::receives_before_connect`] receives before connecting.
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

    /// Returns the number of control receives to post before the queue pair connects.
    pub const fn receives_before_connect() -> usize {
        CONTROL_RECEIVES
    }

    /// Returns the next work. The answer changes only with [`Initiator::handle`]; call until `None`.
    #[must_use]
    pub fn poll(&mut self) -> Option<Work> {
        if self.queue.waiting.is_empty()
            && let InitiatorStep::Passing(passage) = self.step
        {
            self.pass(passage);
        }
        self.queue.take()
    }

    /// Queues the next request of a transfer, if credit permits.
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
            // Ready starts the first transfer and carries the sink.
            (TransferKind::Write, None) => (None, false),
        };
        // Every Send consumes one receive of B.
        let is_send = matches!(work, Some(Work::SendData(_) | Work::SendControl(_)));
        self.credit -= u32::from(is_send);
        self.queue.waiting.extend(work);
        if is_last {
            self.step = InitiatorStep::Passed(passage);
        }
    }

    /// Handles an event.
    ///
    /// # Errors
    /// The peer violates the script, or a digest differs: disconnect.
    pub fn handle(&mut self, event: &Event<'_>) -> Result<(), ScriptError> {
        match event {
            Event::RequestDone => self.queue.request_done(),
            Event::Control(octets) => {
                self.queue.waiting.push_back(Work::ReceiveControl);
                self.control(Control::decode(octets)?)
            }
            Event::Prepared(_) | Event::Data(_) | Event::Hashed(_) => {
                Err(ScriptError::Unexpected("event of the other side"))
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
            _ => Err(ScriptError::Unexpected("message of the initiator")),
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

/// State of *B*.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum TargetStep {
    /// No message has arrived.
    Waiting,
    /// Memory is being allocated.
    Preparing,
    /// The transfer is in progress.
    Passing(TransferKind),
    /// All data has arrived and is being hashed.
    Hashing(TransferKind),
    /// The script is complete.
    Done,
}

/// State machine of *B*, which receives the file.
#[derive(Debug)]
pub struct Target {
    queue: Queue,
    window: u32,
    /// Chunks over which receives are posted; later, chunks that are read.
    chunks: Chunks,
    /// Control receives, for Written and Offer, to post after the data receives.
    controls_left: u32,
    /// Receives posted whose credit is not yet sent to *A*.
    ungranted: u32,
    /// Chunks received by Send.
    arrived: Chunks,
    source: Option<Remote>,
    step: TargetStep,
}

impl Target {
    /// Creates the state machine with at most `window` receives posted ahead and `depth` outstanding requests. Post one
    /// control receive before accepting.
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

    /// Returns the number of control receives to post before the connection is accepted.
    pub const fn receives_before_accept() -> usize {
        1
    }

    /// Returns the next work. The answer changes only with [`Target::handle`]; call until `None`.
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

    /// Handles an event.
    ///
    /// # Errors
    /// The peer violates the script: disconnect.
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
                    .ok_or(ScriptError::Unexpected("length of the data"))?;
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
                Err(ScriptError::Unexpected("result without a request"))
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
            _ => Err(ScriptError::Unexpected("message of the target")),
        }
    }

    /// Queues the next receive of the script. Returns false if none is left.
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

    /// Posts the next receive after one was consumed, and grants credit in halves of the window.
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
        // Requests complete in order (NDK-WR-6), so completions before the first Read belong to other requests.
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
        // The sink is cleared before A receives the message that permits the next transfer.
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
