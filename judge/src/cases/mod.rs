//! The cases, by subject. The name of a case begins with its subject.

mod ending;
mod extension;
mod framing;
mod initiator;
mod operation;
mod response;
mod startup;
mod tagged;
mod terminate;
mod untagged;

use crate::case::{Case, Cases};

/// Returns all cases.
pub(crate) fn all() -> Vec<Case> {
    let mut cases = Cases::default();
    startup::add(&mut cases);
    initiator::add(&mut cases);
    framing::add(&mut cases);
    untagged::add(&mut cases);
    tagged::add(&mut cases);
    operation::add(&mut cases);
    response::add(&mut cases);
    terminate::add(&mut cases);
    ending::add(&mut cases);
    extension::add(&mut cases);
    cases.0
}
