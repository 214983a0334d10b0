//! `flue up`, `flue enter` and `flue down`: a playground of nodes on one machine, each a network namespace.
//!
//! ```text
//!  namespace of node 1            switch               namespace of node 2
//!  br0 (10.77.1.1) - eth0 ======= bridge ======= eth0 - br0 (10.77.1.2)
//!   └ TAP of a command                                   └ TAP of a command
//! ```
//!
//! Kernel sockets use the address of the bridge. Commands with `--tap NAME --bridge br0` make their TAP a port of it,
//! and have addresses of their own in the same network.
//!
//! A process without a terminal, the [`keeper`], creates the namespaces and holds them open. Without it they end, so
//! nothing has to be removed. [`state`] is its description in a file, on which the keeper has a lock: a state without
//! a lock is that of a keeper that was killed. [`enter`] executes a command in a node, and [`down`] ends the commands
//! and the keeper.

pub mod down;
pub mod enter;
pub mod keeper;
mod programs;
pub mod state;
pub mod up;

use std::{
    env,
    path::{Path, PathBuf},
};

use clap::Args;

/// Variable with the path of the playground's state, in the environment of commands in a node.
const STATE_VARIABLE: &str = "FLUE_PLAYGROUND";
/// Name of the playground if no other is given.
const NAME_DEFAULT: &str = "default";
/// Maximum length of a name, bytes.
const NAME_BYTES_MAX: usize = 32;
/// Path of the running program, as its child processes resolve it.
const OWN_PROGRAM: &str = "/proc/self/exe";

/// The playground of a command.
#[derive(Args, Clone, Debug, Default)]
pub struct PlaygroundArgs {
    /// Name of the playground [default: default, or that of the node]
    #[arg(long, value_name = "NAME", value_parser = parse_name)]
    pub name: Option<String>,
}

/// Name of a playground, and the path of its state.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Place {
    name: String,
    path: PathBuf,
}

impl Place {
    /// Returns the place of a name, in the directory of this user.
    fn named(name: &str) -> Self {
        Self { name: name.into(), path: state::path(name) }
    }

    /// Returns the place of a state, if the path is that of one.
    fn at(path: &Path) -> Option<Self> {
        let name = state::name(path).filter(|_| path.is_absolute())?;
        Some(Self { name: parse_name(name).ok()?, path: path.into() })
    }
}

impl PlaygroundArgs {
    /// Returns the place of the option's name, otherwise that of the environment.
    fn place(&self) -> Place {
        // The directory of the user may be another one in a node, where the user is root.
        let of_node = || Place::at(Path::new(&env::var_os(STATE_VARIABLE)?));
        match &self.name {
            Some(name) => Place::named(name),
            None => of_node().unwrap_or_else(|| Place::named(NAME_DEFAULT)),
        }
    }
}

/// Parses the name of a playground, which is part of a file name.
fn parse_name(text: &str) -> Result<String, String> {
    let is_allowed = |it: u8| it.is_ascii_alphanumeric() || it == b'-' || it == b'_';
    match text.len() {
        1..=NAME_BYTES_MAX if text.bytes().all(is_allowed) => Ok(text.into()),
        _ => Err(format!("expected 1 to {NAME_BYTES_MAX} letters, digits, '-' or '_'")),
    }
}

/// Returns the part of a command line that selects the playground.
fn selection(name: &str) -> String {
    if name == NAME_DEFAULT { String::new() } else { format!(" --name {name}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_is_part_of_a_file_name() {
        for name in ["a", "ci-1_B", &"n".repeat(32)] {
            assert_eq!(parse_name(name).as_deref(), Ok(name));
        }
        for name in ["", "a/b", "..", "a b", "ä", &"n".repeat(33)] {
            assert!(parse_name(name).unwrap_err().contains("1 to 32"), "{name}");
        }
        let path = Path::new("/run/flue/playground-a_b-1.json");
        assert_eq!(Place::at(path), Some(Place { name: "a_b-1".into(), path: path.into() }));
        for path in
            ["playground-a.json", "/run/a.json", "/run/playground-.json", "/run/playground-a"]
        {
            assert_eq!(Place::at(Path::new(path)), None, "{path}");
        }
        assert_eq!(selection(NAME_DEFAULT), "");
        assert_eq!(selection("ci"), " --name ci");
    }
}
