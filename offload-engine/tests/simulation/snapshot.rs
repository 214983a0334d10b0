//! Comparison of generated text with the text in the repository.

use std::{env, fs, path::Path};

/// Compares with `tests/snapshots/name`, or writes it if `FLUE_BLESS` is set.
pub(crate) fn check(name: &str, text: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/snapshots").join(name);
    if env::var_os("FLUE_BLESS").is_some() {
        fs::write(&path, text).expect("the snapshot can be written");
        return;
    }
    let kept = fs::read_to_string(&path).unwrap_or_default();
    if kept == text {
        return;
    }
    let mut changes = String::new();
    let (mut old, mut new) = (kept.lines(), text.lines());
    loop {
        match (old.next(), new.next()) {
            (None, None) => break,
            (was, is) if was == is => {}
            (was, is) => {
                was.iter().for_each(|line| changes += &format!("- {line}\n"));
                is.iter().for_each(|line| changes += &format!("+ {line}\n"));
            }
        }
    }
    panic!(
        "{name} differs:\n{changes}if intended: \
         FLUE_BLESS=1 cargo test -p offload-engine --test simulation"
    );
}
