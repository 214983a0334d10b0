//! Payload that a link borrows until its device has sent it.
//!
//! A link whose [`Link::transmit`](super::Link::transmit) sends or copies the frame before it returns needs no loan.
//! One that passes descriptors to a device borrows the payload ([`TxFrame::lend`]): spans of its memory, without a
//! copy. Until the loan ends the memory remains allocated, and the engine withholds all events that permit its owner to
//! write it. These are completions of sends and of disconnects, the end of the connection, and its upload. Ending the
//! loan reports the completion. Loans may end in any order and on any thread.
#![forbid(unsafe_code)]

use core::fmt;
use std::{sync::Arc, vec::Vec};

use super::TxFrame;
use crate::memory::{Piece, Span, to_vec};

/// Owner of the payload of a frame.
pub trait Lender: fmt::Debug {
    /// Appends references to the memory of `payload` to `borrowed`. The owner does not change the memory while a clone
    /// of the returned token exists.
    fn lend(&self, payload: &[Piece<'_>], borrowed: &mut Vec<Span>) -> Arc<()>;
}

/// Borrowed payload of one transmitted frame, until it is dropped or [`TxLoan::end`] is called.
#[derive(Debug, Default)]
pub struct TxLoan {
    // Released before the owner is notified.
    pieces: Vec<Span>,
    token: Option<Arc<()>>,
}

impl TxLoan {
    /// Returns the payload, in order.
    pub fn pieces(&self) -> &[Span] {
        &self.pieces
    }

    /// Ends the loan after the device has sent the frame. The value can be reused without an allocation.
    pub fn end(&mut self) {
        let Self { pieces, token } = self;
        pieces.clear();
        *token = None;
    }
}

impl TxFrame<'_> {
    /// Borrows the payload. `loan` is ended first. [`TxFrame::head`] is not borrowed: it is rewritten for the next
    /// frame, so the link copies it. A payload without a lender is copied.
    pub fn lend(&self, loan: &mut TxLoan) {
        loan.end();
        match self.lender {
            _ if self.payload.iter().all(Piece::is_empty) => {}
            Some(lender) => loan.token = Some(lender.lend(self.payload, &mut loan.pieces)),
            None => {
                loan.pieces.extend(self.payload.iter().map(|piece| to_vec([*piece]).into()));
            }
        }
    }
}
