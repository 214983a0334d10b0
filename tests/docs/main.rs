//! Documents: the reference of the command line is generated from the commands, and command blocks of the front page
//! and the guide run.

mod blocks;
mod cli;

use std::path::Path;

/// Root of the repository.
fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}
