//! A small interpreter of packetdrill's language: `language` reads, `packet` builds and takes apart, `play`
//! runs against the interface. Syntax that is not known is an error.

mod language;
mod packet;
mod play;

pub(crate) use language::parse;
pub(crate) use play::run;
