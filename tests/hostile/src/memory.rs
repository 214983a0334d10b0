//! The memory of a connection: pages side by side, so that an access beyond one region reaches another.
//!
//! | page | region | peers may |
//! |---|---|---|
//! | 0 | read and write | read, write |
//! | 1 | read only | read |
//! | 2 | write only | write |
//! | 3 | local | nothing |
//! | 4 | deregistered before the Reply: its STag is stale | nothing |
//! | 5 | for a fast registration | what that grants |
//! | 6 | sink of Reads | nothing |
//! | 7, 8 | receives | nothing |
//!
//! A ninth entry of the Reply is the server's own page, registered in a protection domain of its own.

use rdma_over_tcp::ndk::{Adapter, Mr, MrFlags, NtStatus, Pd, RegisteredBuffer, Sge};

/// Bytes of a page.
pub const PAGE: usize = 4096;
const PAGES: usize = 9;
/// Pages with a region of their own from the beginning.
const REGIONS: usize = 5;
/// The page whose STag is stale.
const STALE: usize = 4;
/// The page for fast registration.
pub const FAST: usize = 5;
const SINK: usize = 6;
const RECEIVES: usize = 7;

/// What a page holds at first.
#[must_use]
pub fn pattern(page: usize) -> Vec<u8> {
    (0..PAGE).map(|at| (at * 7 + page * 31 + at / 256) as u8).collect()
}

/// The pages of one connection, with their regions.
#[derive(Debug)]
pub struct Memory {
    /// All pages.
    pub buffer: RegisteredBuffer,
    /// By page.
    pub regions: Vec<Mr>,
    /// Of sink and receives.
    private: Mr,
    stale: u32,
}

/// A page that changed: the first byte and how many differ.
#[derive(Clone, Copy, PartialEq, Eq, Debug, serde::Serialize)]
pub struct Change {
    /// Page.
    pub page: usize,
    /// Offset of the first byte that differs.
    pub first: usize,
    /// Bytes that differ.
    pub count: usize,
}

fn region(
    pd: &Pd,
    buffer: &RegisteredBuffer,
    page: usize,
    rights: MrFlags,
) -> Result<Mr, NtStatus> {
    let mr = pd.create_mr(false)?;
    mr.register(buffer, page * PAGE, PAGE, rights)?;
    Ok(mr)
}

/// All that a peer may get.
pub const READ_WRITE: [MrFlags; 2] = [MrFlags::ALLOW_REMOTE_READ, MrFlags::ALLOW_REMOTE_WRITE];

impl Memory {
    /// Pages with their pattern, and regions in this domain.
    ///
    /// # Errors
    /// Memory or regions are short.
    pub fn new(adapter: &Adapter, pd: &Pd) -> Result<Self, NtStatus> {
        let buffer = adapter.allocate(PAGES * PAGE)?;
        (0..PAGES).for_each(|page| buffer.write_at(page * PAGE, &pattern(page)));
        let [read, write] = READ_WRITE;
        let rights = [read | write, read, write, MrFlags::ALLOW_LOCAL_WRITE, read | write];
        let regions = rights.into_iter().enumerate();
        let regions: Vec<Mr> = regions
            .map(|(page, rights)| region(pd, &buffer, page, rights))
            .collect::<Result<_, _>>()?;
        let stale = regions[STALE].remote_token();
        // Nothing uses it yet, so it is done at once.
        let _ = regions[STALE].deregister(|| {});
        let private = pd.create_mr(false)?;
        private.register(&buffer, SINK * PAGE, 3 * PAGE, MrFlags::ALLOW_LOCAL_WRITE)?;
        Ok(Self { buffer, regions, private, stale })
    }

    /// Where a page begins, for local and remote users.
    #[must_use]
    pub fn address(&self, page: usize) -> u64 {
        self.buffer.address() + (page * PAGE) as u64
    }

    fn private(&self, page: usize, offset: usize, length: u32) -> Sge {
        let address = self.address(page) + offset as u64;
        Sge { address, length, token: self.private.local_token() }
    }

    /// The sink of Reads.
    #[must_use]
    pub fn sink(&self, length: u32) -> Sge {
        self.private(SINK, 0, length)
    }

    /// What the sink holds.
    #[must_use]
    pub fn sink_octets(&self, length: usize) -> Vec<u8> {
        self.octets(SINK * PAGE, length)
    }

    /// The buffer of receive `slot`.
    #[must_use]
    pub fn receive(&self, slot: usize, length: u32) -> Sge {
        self.private(RECEIVES, slot * 1024, length)
    }

    /// What receive `slot` holds.
    #[must_use]
    pub fn received(&self, slot: usize, length: usize) -> Vec<u8> {
        self.octets(RECEIVES * PAGE + slot * 1024, length)
    }

    /// The first bytes of page 0, to be sent.
    #[must_use]
    pub fn source(&self, length: u32) -> Sge {
        Sge { address: self.address(0), length, token: self.regions[0].local_token() }
    }

    fn octets(&self, offset: usize, length: usize) -> Vec<u8> {
        let mut octets = vec![0; length];
        self.buffer.read_at(offset, &mut octets);
        octets
    }

    /// STag and address of each page that the peer is told of.
    #[must_use]
    pub fn adverts(&self) -> Vec<(u32, u64)> {
        let advert = |(page, mr): (usize, &Mr)| {
            let token = if page == STALE { self.stale } else { mr.remote_token() };
            (token, self.address(page))
        };
        self.regions.iter().enumerate().map(advert).collect()
    }

    /// Pages whose bytes are not those of the pattern any more, but for sink and receives.
    #[must_use]
    pub fn changes(&self) -> Vec<Change> {
        (0..=REGIONS).filter_map(|page| change(&self.octets(page * PAGE, PAGE), page)).collect()
    }

    /// Lets go of all regions.
    pub fn close(&self) {
        for mr in self.regions.iter().chain([&self.private]) {
            let _ = mr.close(|| {});
        }
    }
}

/// How a page differs from its pattern, if it does.
#[must_use]
pub fn change(octets: &[u8], page: usize) -> Option<Change> {
    let pattern = pattern(page);
    let differs = |at: &usize| octets[*at] != pattern[*at];
    let first = (0..PAGE).find(differs)?;
    Some(Change { page, first, count: (0..PAGE).filter(differs).count() })
}
