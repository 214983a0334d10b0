//! List of open seeds, `tests/campaign/open-seeds.txt`: known failures that are not fixed yet.
//!
//! One per line: `suite | seed | class | note`. Lines that start with `#` are comments.

use super::Class;

/// Seed with a known failure.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct OpenSeed {
    pub(super) suite: String,
    pub(super) seed: u64,
    pub(super) class: Class,
    pub(super) note: String,
}

/// Open seeds of a suite.
pub(super) fn read(suite: &str) -> Vec<OpenSeed> {
    let path = super::workspace().join("tests/campaign/open-seeds.txt");
    let text = std::fs::read_to_string(&path)
        .unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let mut open = parse(&text).unwrap_or_else(|line| panic!("{}: {line}", path.display()));
    open.retain(|one| one.suite == suite);
    open
}

/// # Errors
/// The first malformed line.
pub(super) fn parse(text: &str) -> Result<Vec<OpenSeed>, String> {
    let lines = text.lines().map(str::trim);
    lines
        .filter(|line| !line.is_empty() && !line.starts_with('#'))
        .map(|line| one(line).ok_or_else(|| format!("not `suite | seed | class | note`: {line}")))
        .collect()
}

fn one(line: &str) -> Option<OpenSeed> {
    let mut columns = line.splitn(4, '|').map(str::trim);
    let mut next = || columns.next().filter(|column| !column.is_empty());
    Some(OpenSeed {
        suite: next()?.to_owned(),
        seed: next()?.parse().ok()?,
        class: Class::from_name(next()?)?,
        note: next()?.to_owned(),
    })
}
