//! Payload that a link borrows until its device has sent it.
//!
//! A link that returns from [`Link::transmit`](super::Link::transmit) with the frame sent or copied needs none of
//! this. One that hands descriptors to a device asks the frame for a loan ([`TxFrame::lend`]): spans of the
//! memory that the payload lies in, without a copy. Until the loan ends the memory stays allocated, and the engine
//! withholds what would signal to its owner that it may be written again: completions of sends and of disconnects, the
//! end of the connection, its upload. To end the loan is the completion; loans may end in any order and on any thread.
#![forbid(unsafe_code)]

use core::fmt;
use std::{sync::Arc, vec::Vec};

use super::TxFrame;
use crate::memory::{Piece, Span, to_vec};

/// The owner of the payload of a frame.
pub trait Lender: fmt::Debug {
    /// Appends references to the memory of `payload` to `borrowed`. The owner leaves it as it is while there is a
    /// clone of what is returned.
    fn lend(&self, payload: &[Piece<'_>], borrowed: &mut Vec<Span>) -> Arc<()>;
}

/// The payload of one transmitted frame, on loan until this is dropped or [`TxLoan::end`] is called.
#[derive(Debug, Default)]
pub struct TxLoan {
    // Given back before the owner is notified.
    pieces: Vec<Span>,
    token: Option<Arc<()>>,
}

impl TxLoan {
    /// The payload, in order.
    pub fn pieces(&self) -> &[Span] {
        &self.pieces
    }

    /// The device has sent the frame. What is left can be used for another one without an allocation.
    pub fn end(&mut self) {
        let Self { pieces, token } = self;
        pieces.clear();
        *token = None;
    }
}

impl TxFrame<'_> {
    /// Borrows the payload. `loan` is ended first. [`TxFrame::head`] is not part of it: it is rewritten for the next
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
