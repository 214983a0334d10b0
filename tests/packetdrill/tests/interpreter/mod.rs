//! Small interpreter of packetdrill's language: `language` parses, `packet` builds and parses packets, `play`
//! runs events against the interface. Unknown syntax is an error.

mod language;
mod packet;
mod play;

pub(crate) use language::parse;
pub(crate) use play::run;
