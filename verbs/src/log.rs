//! Lines for whoever looks for an error, in a file that `FLUE_VERBS_LOG` names: standard output and error are the
//! program's.

use std::{
    fmt,
    fs::{File, OpenOptions},
    io::Write,
    sync::OnceLock,
};

use crate::config;

/// Appends a line, if there is a file.
pub(crate) fn line(text: fmt::Arguments<'_>) {
    static FILE: OnceLock<Option<File>> = OnceLock::new();
    let file = FILE.get_or_init(|| {
        let path = config::path("FLUE_VERBS_LOG")?;
        OpenOptions::new().create(true).append(true).open(path).ok()
    });
    if let Some(mut file) = file.as_ref() {
        let pid = std::process::id();
        // There is nobody to tell that it cannot be written.
        let _ = file.write_all(format!("flue-verbs[{pid}] {text}\n").as_bytes());
    }
}
