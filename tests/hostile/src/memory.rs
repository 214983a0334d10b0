//! Memory of a connection: adjacent pages, so that an access outside one region reaches another.
//!
//! | page | region | access by peers |
//! |---|---|---|
//! | 0 | read, write and atomics | read, write, atomics |
//! | 1 | read only | read |
//! | 2 | write only | write |
//! | 3 | local | nothing |
//! | 4 | deregistered before the Reply: its STag is stale | nothing |
//! | 5 | for a fast registration | as granted by it |
//! | 6 | sink of Reads | nothing |
//! | 7, 8 | receives | nothing |
//!
//! A ninth entry of the Reply is a page of the server, registered in a separate protection domain.

use rdma_over_tcp::ndk::{Adapter, Mr, MrFlags, NtStatus, Pd, RegisteredBuffer, Sge};

/// Bytes of a page.
pub const PAGE: usize = 4096;
const PAGES: usize = 9;
/// Number of pages that have their own region from the start.
const REGIONS: usize = 5;
/// Page whose STag is stale.
const STALE: usize = 4;
/// Page for fast registration.
pub const FAST: usize = 5;
const SINK: usize = 6;
const RECEIVES: usize = 7;

/// Returns the initial content of a page.
#[must_use]
pub fn pattern(page: usize) -> Vec<u8> {
    (0..PAGE).map(|at| (at * 7 + page * 31 + at / 256) as u8).collect()
}

/// Pages of one connection, with their regions.
#[derive(Debug)]
pub struct Memory {
    /// All pages.
    pub buffer: RegisteredBuffer,
    /// Regions, by page.
    pub regions: Vec<Mr>,
    /// Region of the sink and the receives.
    private: Mr,
    stale: u32,
}

/// Change of a page: offset of the first changed byte and number of changed bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, serde::Serialize)]
pub struct Change {
    /// Page.
    pub page: usize,
    /// Offset of the first byte that differs.
    pub first: usize,
    /// Number of bytes that differ.
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

/// All access rights that a peer can get.
pub const READ_WRITE: [MrFlags; 2] = [MrFlags::ALLOW_REMOTE_READ, MrFlags::ALLOW_REMOTE_WRITE];

impl Memory {
    /// Creates the pages with their pattern, and regions in the domain `pd`.
    ///
    /// # Errors
    /// Not enough memory or regions.
    pub fn new(adapter: &Adapter, pd: &Pd) -> Result<Self, NtStatus> {
        let buffer = adapter.allocate(PAGES * PAGE)?;
        (0..PAGES).for_each(|page| buffer.write_at(page * PAGE, &pattern(page)));
        let [read, write] = READ_WRITE;
        let all = read | write | MrFlags::ALLOW_REMOTE_ATOMIC;
        let rights = [all, read, write, MrFlags::ALLOW_LOCAL_WRITE, read | write];
        let regions = rights.into_iter().enumerate();
        let regions: Vec<Mr> = regions
            .map(|(page, rights)| region(pd, &buffer, page, rights))
            .collect::<Result<_, _>>()?;
        let stale = regions[STALE].remote_token();
        // No request uses the region yet, so the deregistration completes immediately.
        let _ = regions[STALE].deregister(|| {});
        let private = pd.create_mr(false)?;
        private.register(&buffer, SINK * PAGE, 3 * PAGE, MrFlags::ALLOW_LOCAL_WRITE)?;
        Ok(Self { buffer, regions, private, stale })
    }

    /// Returns the start of a page, for local and remote access.
    #[must_use]
    pub fn address(&self, page: usize) -> u64 {
        self.buffer.address() + (page * PAGE) as u64
    }

    fn private(&self, page: usize, offset: usize, length: u32) -> Sge {
        let address = self.address(page) + offset as u64;
        Sge { address, length, token: self.private.local_token() }
    }

    /// Returns the entry of the sink of Reads.
    #[must_use]
    pub fn sink(&self, length: u32) -> Sge {
        self.private(SINK, 0, length)
    }

    /// Returns the content of the sink.
    #[must_use]
    pub fn sink_octets(&self, length: usize) -> Vec<u8> {
        self.octets(SINK * PAGE, length)
    }

    /// Returns the entry of receive `slot`.
    #[must_use]
    pub fn receive(&self, slot: usize, length: u32) -> Sge {
        self.private(RECEIVES, slot * 1024, length)
    }

    /// Returns the content of receive `slot`.
    #[must_use]
    pub fn received(&self, slot: usize, length: usize) -> Vec<u8> {
        self.octets(RECEIVES * PAGE + slot * 1024, length)
    }

    /// Returns the entry of the first bytes of page 0, to be sent.
    #[must_use]
    pub fn source(&self, length: u32) -> Sge {
        Sge { address: self.address(0), length, token: self.regions[0].local_token() }
    }

    fn octets(&self, offset: usize, length: usize) -> Vec<u8> {
        let mut octets = vec![0; length];
        self.buffer.read_at(offset, &mut octets);
        octets
    }

    /// Returns STag and address of each page that is advertised to the peer.
    #[must_use]
    pub fn adverts(&self) -> Vec<(u32, u64)> {
        let advert = |(page, mr): (usize, &Mr)| {
            let token = if page == STALE { self.stale } else { mr.remote_token() };
            (token, self.address(page))
        };
        self.regions.iter().enumerate().map(advert).collect()
    }

    /// Returns the pages that differ from the pattern, except for sink and receives.
    #[must_use]
    pub fn changes(&self) -> Vec<Change> {
        (0..=REGIONS).filter_map(|page| change(&self.octets(page * PAGE, PAGE), page)).collect()
    }

    /// Closes all regions.
    pub fn close(&self) {
        for mr in self.regions.iter().chain([&self.private]) {
            let _ = mr.close(|| {});
        }
    }
}

/// Returns the difference of a page from its pattern, if any.
#[must_use]
pub fn change(octets: &[u8], page: usize) -> Option<Change> {
    let pattern = pattern(page);
    let differs = |at: &usize| octets[*at] != pattern[*at];
    let first = (0..PAGE).find(differs)?;
    Some(Change { page, first, count: (0..PAGE).filter(differs).count() })
}
