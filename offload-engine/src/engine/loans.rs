//! Payload of a connection borrowed by its link, and events delayed by it.
//!
//! A link may retain the payload of a frame until its device has sent it ([`crate::link::TxLoan`]). Until then the
//! poster must not be notified that it may reuse the memory. This holds even if the peer acknowledged an earlier copy
//! of the bytes, or the connection was reset. So send completions are withheld, and later events after them, in order.
//! Each waits only for the loans made before it, so a connection that keeps sending still completes its sends. Loans
//! made since the last withheld event share a token, and the next withheld event takes that token.
//!
//! A link that never borrows costs one check of a flag per frame, upcall and event.

use core::cell::OnceCell;
use std::{collections::VecDeque, sync::Arc, vec::Vec};

use super::Engine;
use crate::{
    link::Lender,
    memory::{Piece, Span, to_vec},
    tcp::{Connection, Event, Transmit},
};

/// Loans of one connection.
#[derive(Debug, Default)]
pub(super) struct Loans {
    /// Token shared by all loans since the last withheld event. Empty if there was no loan.
    current: OnceCell<Arc<()>>,
    /// Events withheld until the link has dropped their token. Without a token they wait only for earlier events.
    withheld: VecDeque<(Event, Option<Arc<()>>)>,
    /// True if there may be loans or withheld events: the connection was registered by [`Engine::track_loan`].
    tracked: bool,
}

/// True if loans with this token have not ended. `get_mut` has Acquire ordering: the holder's reads precede later
/// writes to the memory.
fn is_lent(token: &mut Arc<()>) -> bool {
    Arc::get_mut(token).is_none()
}

/// Approximation of [`is_lent`], for the check before sleeping.
fn is_lent_relaxed(token: &Arc<()>) -> bool {
    Arc::strong_count(token) > 1
}

impl Loans {
    /// True if the link may have memory of the connection, or events are withheld. [`Engine::release_loans`]
    /// determines which.
    #[inline]
    pub(super) const fn may_be_lent(&self) -> bool {
        self.tracked
    }

    /// True if the link has memory of the connection.
    pub(super) fn is_lent(&mut self) -> bool {
        let withheld = self.withheld.iter_mut().filter_map(|(_, token)| token.as_mut());
        self.current.get_mut().into_iter().chain(withheld).any(is_lent)
    }

    /// True if the first withheld event can be released, or all loans have ended since registration.
    fn is_releasable(&self) -> bool {
        match self.withheld.front() {
            Some((_, token)) => !token.as_ref().is_some_and(is_lent_relaxed),
            None => !self.current.get().is_some_and(is_lent_relaxed),
        }
    }

    /// Returns the first withheld event if it can be released.
    pub(super) fn pop(&mut self) -> Option<Event> {
        let (_, token) = self.withheld.front_mut()?;
        if token.as_mut().is_some_and(is_lent) {
            return None;
        }
        self.withheld.pop_front().map(|(event, _)| event)
    }

    /// Returns the event unless it must be withheld.
    pub(super) fn pass(&mut self, event: Event) -> Option<Event> {
        let ends_send = match &event {
            // Receive completions do not depend on sent payload.
            Event::ReceiveComplete(_) => return Some(event),
            Event::SendComplete(_) | Event::DisconnectComplete(_) | Event::Closed => true,
            Event::SendBacklogChange(_) | Event::PeerClosed | Event::Reset | Event::Retrieve(_) => {
                false
            }
        };
        let token = if ends_send { self.current.take().filter(is_lent_relaxed) } else { None };
        if self.withheld.is_empty() && token.is_none() {
            return Some(event);
        }
        self.withheld.push_back((event, token));
        None
    }
}

/// Lender of the payload of a segment.
#[derive(Debug)]
pub(super) struct SegmentLender<'a> {
    pub(super) tcp: &'a Connection,
    pub(super) transmit: &'a Transmit,
    pub(super) loans: &'a Loans,
}

impl Lender for SegmentLender<'_> {
    fn lend(&self, payload: &[Piece<'_>], borrowed: &mut Vec<Span>) -> Arc<()> {
        let mut memory = self.tcp.payload_memory(self.transmit).peekable();
        for piece in payload {
            // A frame contains a part of the segment, in its order.
            while memory.next_if(|span| offset_in(span, piece).is_none()).is_some() {}
            let found = memory.peek().and_then(|span| Some((span, offset_in(span, piece)?)));
            borrowed.push(match found {
                Some((span, offset)) => span.slice(offset..offset + piece.len()),
                // A link in between has replaced the payload.
                None => to_vec([*piece]).into(),
            });
        }
        self.loans.current.get_or_init(Arc::default).clone()
    }
}

/// Returns the offset of `piece` in `span`, if it is part of it.
fn offset_in(span: &Span, piece: &Piece<'_>) -> Option<usize> {
    let offset = piece.as_ptr().addr().checked_sub(span.as_ptr().addr())?;
    (offset + piece.len() <= span.len()).then_some(offset)
}

impl Engine {
    /// Registers the connection if the link may have borrowed payload just sent, so that the engine checks for its
    /// return.
    #[inline]
    pub(super) fn track_loan(loans: &mut Loans, slot: usize, borrowers: &mut Vec<usize>) {
        if loans.current.get().is_some() {
            Self::track(loans, slot, borrowers);
        }
    }

    #[cold]
    fn track(loans: &mut Loans, slot: usize, borrowers: &mut Vec<usize>) {
        if !core::mem::replace(&mut loans.tracked, true) {
            borrowers.push(slot);
        }
    }

    /// Schedules connections whose loans have ended or whose withheld event can be released. Returns true if there was
    /// one: a terminate may be delayed by it.
    pub(super) fn release_loans(&mut self) -> bool {
        let Self { connections, borrowed, .. } = self;
        let mut is_releasable = false;
        borrowed.retain(|&slot| {
            let Some(offloaded) = connections.slot(slot) else { return false };
            let loans = &mut offloaded.loans;
            if !loans.is_releasable() {
                return true;
            }
            loans.tracked = loans.is_lent() || !loans.withheld.is_empty();
            let keep = loans.tracked;
            connections.mark_ready(slot);
            is_releasable = true;
            keep
        });
        is_releasable
    }

    /// True if [`Engine::release_loans`] has work to do.
    pub(super) fn has_ended_loans(&self) -> bool {
        let loans = |slot: &usize| self.connections.at(*slot).map(|offloaded| &offloaded.loans);
        self.borrowed.iter().any(|slot| loans(slot).is_none_or(Loans::is_releasable))
    }
}
