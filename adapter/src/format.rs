//! Words and lists of options, as configurations and command lines have them.

use std::fmt;

use serde::{Serialize, de::DeserializeOwned};

pub(crate) fn joined<T: fmt::Display>(values: &[T]) -> String {
    values.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

/// The word that stands for a choice in configurations and on the command line.
pub fn word(choice: impl Serialize) -> String {
    let value = serde_json::to_value(choice).ok();
    value.as_ref().and_then(|value| value.as_str()).unwrap_or_default().to_owned()
}

/// The choice that a word stands for; `None`: it stands for none.
pub fn parse_word<T: DeserializeOwned>(word: &str) -> Option<T> {
    serde_json::from_value(word.into()).ok()
}
