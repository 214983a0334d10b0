//! Links around other links.

use std::{boxed::Box, io, os::fd::BorrowedFd, task::Waker};

use super::{Link, LinkCapabilities, LinkStats, RxBatch, TxFrame, TxOutcome};
use crate::time::Instant;

/// Implements the accessors of [`LinkWrapper`], from the type of the wrapped link and the field that contains it.
#[macro_export]
macro_rules! wraps {
    ($inner:ty, $field:tt) => {
        type Inner = $inner;

        fn inner(&self) -> &$inner {
            &self.$field
        }

        fn inner_mut(&mut self) -> &mut $inner {
            &mut self.$field
        }
    };
}

pub use crate::wraps;

/// Link around another one. Methods of [`Link`] that the wrapper does not implement call the wrapped link. Own methods
/// call it by [`LinkWrapper::inner_mut`]. A wrapper that transmits from [`LinkWrapper::receive`], because a frame has
/// become due, flushes the wrapped link itself.
///
/// ```
/// use offload_engine::link::{Link, TxFrame, TxOutcome, wrapper::{LinkWrapper, wraps}};
/// use offload_engine::time::Instant;
///
/// /// Drops transmitted frames.
/// struct Silent<L>(L);
///
/// impl<L: Link> LinkWrapper for Silent<L> {
///     wraps!(L, 0);
///
///     fn transmit(&mut self, _now: Instant, _frame: &TxFrame<'_>) -> TxOutcome {
///         TxOutcome::Sent
///     }
/// }
///
/// let (one, _other) = offload_engine::link::memory_link_pair(Default::default());
/// let link: &dyn Link = &Silent(one);
/// assert_eq!(link.capabilities().mtu, 1500);
/// ```
pub trait LinkWrapper: Send {
    /// Type of the wrapped link.
    type Inner: Link + ?Sized;

    /// Returns the wrapped link.
    fn inner(&self) -> &Self::Inner;

    /// Returns the wrapped link, mutable.
    fn inner_mut(&mut self) -> &mut Self::Inner;

    /// See [`Link::capabilities`].
    fn capabilities(&self) -> LinkCapabilities {
        self.inner().capabilities()
    }

    /// See [`Link::receive`].
    ///
    /// # Errors
    /// Errors of the wrapped link.
    fn receive(&mut self, now: Instant, batch: &mut RxBatch) -> io::Result<usize> {
        self.inner_mut().receive(now, batch)
    }

    /// See [`Link::transmit`].
    fn transmit(&mut self, now: Instant, frame: &TxFrame<'_>) -> TxOutcome {
        self.inner_mut().transmit(now, frame)
    }

    /// See [`Link::flush`].
    fn flush(&mut self, now: Instant) {
        self.inner_mut().flush(now);
    }

    /// See [`Link::sync`].
    fn sync(&mut self) {
        self.inner_mut().sync();
    }

    /// See [`Link::descriptor`].
    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.inner().descriptor()
    }

    /// See [`Link::poll_at`].
    fn poll_at(&self) -> Option<Instant> {
        self.inner().poll_at()
    }

    /// See [`Link::set_waker`].
    fn set_waker(&mut self, waker: Waker) {
        self.inner_mut().set_waker(waker);
    }

    /// See [`Link::stats`].
    fn stats(&self) -> LinkStats {
        self.inner().stats()
    }

    /// See [`Link::uses_comments`].
    fn uses_comments(&self) -> bool {
        self.inner().uses_comments()
    }
}

impl<W: LinkWrapper> Link for W {
    fn capabilities(&self) -> LinkCapabilities {
        LinkWrapper::capabilities(self)
    }

    fn receive(&mut self, now: Instant, batch: &mut RxBatch) -> io::Result<usize> {
        LinkWrapper::receive(self, now, batch)
    }

    fn transmit(&mut self, now: Instant, frame: &TxFrame<'_>) -> TxOutcome {
        LinkWrapper::transmit(self, now, frame)
    }

    fn flush(&mut self, now: Instant) {
        LinkWrapper::flush(self, now);
    }

    fn sync(&mut self) {
        LinkWrapper::sync(self);
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        LinkWrapper::descriptor(self)
    }

    fn poll_at(&self) -> Option<Instant> {
        LinkWrapper::poll_at(self)
    }

    fn set_waker(&mut self, waker: Waker) {
        LinkWrapper::set_waker(self, waker);
    }

    fn stats(&self) -> LinkStats {
        LinkWrapper::stats(self)
    }

    fn uses_comments(&self) -> bool {
        LinkWrapper::uses_comments(self)
    }
}

impl<L: Link + ?Sized> LinkWrapper for Box<L> {
    type Inner = L;

    fn inner(&self) -> &L {
        self
    }

    fn inner_mut(&mut self) -> &mut L {
        self
    }
}
