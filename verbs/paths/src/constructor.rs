//! Constructor of the library.

use crate::{calls, tree};

/// Prepares the calls: a signal handler, or a child between vfork and exec, must not search.
extern "C" fn prepare() {
    tree::keep();
    for next in calls::ALL {
        next.find();
    }
}

// SAFETY: the loader calls the functions in this section with the C ABI.
#[used]
#[unsafe(link_section = ".init_array")]
static CONSTRUCTOR: extern "C" fn() = prepare;
