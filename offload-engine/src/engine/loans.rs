//! Payload of a connection that its link has borrowed, and what waits for it.
//!
//! A link may hold on to the payload of a frame until its device has sent it ([`crate::link::TxLoan`]). Meanwhile the
//! poster must not be notified that the memory is its own again, be it because the peer has acknowledged the bytes of
//! an earlier copy or because the connection was reset. So completions of sends wait, in order, with whatever comes
//! behind them. Each waits for the loans that were made before it and for no others, so a connection that keeps sending
//! completes all the same: the loans since the last wait share a token, and who has to wait takes it along.
//!
//! A link that borrows nothing costs a look at a flag per frame, upcall and event.

use core::cell::OnceCell;
use std::{collections::VecDeque, sync::Arc, vec::Vec};

use super::Engine;
use crate::{
    link::Lender,
    memory::{Piece, Span, to_vec},
    tcp::{Connection, Event, Transmit},
};

/// The loans of one connection.
#[derive(Debug, Default)]
pub(super) struct Loans {
    /// Shared by every loan since an event was withheld; none was made yet while it is empty.
    current: OnceCell<Arc<()>>,
    /// Events that wait until the link has dropped their token. None: only for those in front of it.
    withheld: VecDeque<(Event, Option<Arc<()>>)>,
    /// There may be loans, or events that wait: [`Engine::note_loan`] has noted the connection.
    noted: bool,
}

/// Whether loans with this token have not ended. Acquire, by `get_mut`: what their holder has read it has read before
/// the memory is written again.
fn is_lent(token: &mut Arc<()>) -> bool {
    Arc::get_mut(token).is_none()
}

/// The same as a hint, for a look before sleeping.
fn seems_lent(token: &Arc<()>) -> bool {
    Arc::strong_count(token) > 1
}

impl Loans {
    /// Whether the link may have memory of the connection, or events wait. [`Engine::take_loans_back`] finds out.
    #[inline]
    pub(super) const fn may_be_lent(&self) -> bool {
        self.noted
    }

    /// Whether the link has memory of the connection.
    pub(super) fn is_lent(&mut self) -> bool {
        let withheld = self.withheld.iter_mut().filter_map(|(_, token)| token.as_mut());
        self.current.get_mut().into_iter().chain(withheld).any(is_lent)
    }

    /// Whether an event waits no longer, or all loans have ended since the connection was noted.
    fn has_news(&self) -> bool {
        match self.withheld.front() {
            Some((_, token)) => !token.as_ref().is_some_and(seems_lent),
            None => !self.current.get().is_some_and(seems_lent),
        }
    }

    /// The first event that was withheld, if it need not wait any more.
    pub(super) fn pop(&mut self) -> Option<Event> {
        let (_, token) = self.withheld.front_mut()?;
        if token.as_mut().is_some_and(is_lent) {
            return None;
        }
        self.withheld.pop_front().map(|(event, _)| event)
    }

    /// The event, unless it has to wait.
    pub(super) fn pass(&mut self, event: Event) -> Option<Event> {
        let ends_send = match &event {
            // Nothing of it was sent.
            Event::ReceiveComplete(_) => return Some(event),
            Event::SendComplete(_) | Event::DisconnectComplete(_) | Event::Closed => true,
            Event::SendBacklogChange(_) | Event::PeerClosed | Event::Reset | Event::Retrieve(_) => {
                false
            }
        };
        let token = if ends_send { self.current.take().filter(seems_lent) } else { None };
        if self.withheld.is_empty() && token.is_none() {
            return Some(event);
        }
        self.withheld.push_back((event, token));
        None
    }
}

/// Lends the payload of a segment.
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
            // A frame is a part of the segment, in its order.
            while memory.next_if(|span| offset_in(span, piece).is_none()).is_some() {}
            let found = memory.peek().and_then(|span| Some((span, offset_in(span, piece)?)));
            borrowed.push(match found {
                Some((span, offset)) => span.slice(offset..offset + piece.len()),
                // A link in between has put something else in its place.
                None => to_vec([*piece]).into(),
            });
        }
        self.loans.current.get_or_init(Arc::default).clone()
    }
}

/// Where `piece` lies in `span`, if it does.
fn offset_in(span: &Span, piece: &Piece<'_>) -> Option<usize> {
    let offset = piece.as_ptr().addr().checked_sub(span.as_ptr().addr())?;
    (offset + piece.len() <= span.len()).then_some(offset)
}

impl Engine {
    /// The link may have borrowed of what was just sent: has the engine look whether it has given it back.
    #[inline]
    pub(super) fn note_loan(loans: &mut Loans, slot: usize, borrowers: &mut Vec<usize>) {
        if loans.current.get().is_some() {
            Self::note(loans, slot, borrowers);
        }
    }

    #[cold]
    fn note(loans: &mut Loans, slot: usize, borrowers: &mut Vec<usize>) {
        if !core::mem::replace(&mut loans.noted, true) {
            borrowers.push(slot);
        }
    }

    /// Has connections drained whose loans have ended, or an event of which waits no longer. Returns whether there was
    /// one: a terminate may have waited for it.
    pub(super) fn take_loans_back(&mut self) -> bool {
        let Self { connections, borrowed, .. } = self;
        let mut has_news = false;
        borrowed.retain(|&slot| {
            let Some(offloaded) = connections.slot(slot) else { return false };
            let loans = &mut offloaded.loans;
            if !loans.has_news() {
                return true;
            }
            loans.noted = loans.is_lent() || !loans.withheld.is_empty();
            let keep = loans.noted;
            connections.mark_ready(slot);
            has_news = true;
            keep
        });
        has_news
    }

    /// Whether [`Engine::take_loans_back`] has something to do.
    pub(super) fn has_ended_loans(&self) -> bool {
        let loans = |slot: &usize| self.connections.at(*slot).map(|offloaded| &offloaded.loans);
        self.borrowed.iter().any(|slot| loans(slot).is_none_or(Loans::has_news))
    }
}
