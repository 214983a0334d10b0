//! `flue wireshark-profile`: installs a profile for Wireshark 4 that decodes iWARP on any port.
//!
//! The files are those of docs/wireshark/flue. Wireshark and tshark use them with `-C flue`.

use std::{
    env, fs, io,
    path::{Path, PathBuf},
};

use clap::Args;
use serde::Serialize;

use crate::{failure::Failure, options::OutputArgs, report::Console};

/// Name of the profile.
const PROFILE: &str = "flue";

/// Files of the profile.
const FILES: [(&str, &str); 5] = [
    ("preferences", include_str!("../../docs/wireshark/flue/preferences")),
    ("disabled_protos", include_str!("../../docs/wireshark/flue/disabled_protos")),
    ("heuristic_protos", include_str!("../../docs/wireshark/flue/heuristic_protos")),
    ("colorfilters", include_str!("../../docs/wireshark/flue/colorfilters")),
    ("dfilter_buttons", include_str!("../../docs/wireshark/flue/dfilter_buttons")),
];

/// Install a Wireshark profile that decodes iWARP
///
/// Writes the profile "flue": columns, colors, filter buttons, and the preferences that MPA requires. Existing files
/// are replaced.
#[derive(Args, Clone, Debug)]
#[command(after_long_help = "Examples:
  flue wireshark-profile
  flue lab -q --file /etc/passwd --pcap lab.pcapng
  tshark -C flue -r lab.pcapng -Y iwarp_mpa")]
pub struct WiresharkProfileArgs {
    /// Create "flue" in this profile directory
    ///
    /// Default: "profiles" in $WIRESHARK_CONFIG_DIR, in $XDG_CONFIG_HOME/wireshark or in ~/.config/wireshark; in
    /// ~/.wireshark if only that exists.
    #[arg(long, value_name = "DIR")]
    pub dir: Option<PathBuf>,

    /// Output options.
    #[command(flatten)]
    pub output: OutputArgs,
}

/// The `result` object of the JSON document.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Installed {
    /// Directory of the profile.
    pub directory: PathBuf,
    /// Installed files.
    pub files: Vec<&'static str>,
}

/// Returns the user's profile directory from the environment; `exists` returns true for an existing directory.
fn profiles(
    variable: impl Fn(&str) -> Option<PathBuf>,
    exists: impl Fn(&Path) -> bool,
) -> Option<PathBuf> {
    let set = |name| variable(name).filter(|path| !path.as_os_str().is_empty());
    if let Some(config) = set("WIRESHARK_CONFIG_DIR") {
        return Some(config.join("profiles"));
    }
    let home = set("HOME");
    let config = set("XDG_CONFIG_HOME").or_else(|| Some(home.as_ref()?.join(".config")));
    let config = config.map(|config| config.join("wireshark"));
    let old = home.map(|home| home.join(".wireshark"));
    let is_there = |path: &Option<PathBuf>| path.as_deref().is_some_and(&exists);
    let chosen = if !is_there(&config) && is_there(&old) { old } else { config };
    Some(chosen?.join("profiles"))
}

fn write(directory: &Path) -> io::Result<()> {
    fs::create_dir_all(directory)?;
    FILES.iter().try_for_each(|(name, content)| fs::write(directory.join(name), content))
}

/// Runs `flue wireshark-profile`.
///
/// # Errors
/// No directory was found, or it cannot be written.
pub fn run(args: &WiresharkProfileArgs, console: &mut Console<'_>) -> Result<(), Failure> {
    let variable = |name: &str| env::var_os(name).map(PathBuf::from);
    let profiles = args.dir.clone().or_else(|| profiles(variable, Path::is_dir));
    let directory = profiles
        .ok_or_else(|| {
            Failure::usage("--dir: no default, because $HOME is not set: give a directory")
        })?
        .join(PROFILE);
    write(&directory)
        .map_err(|error| Failure::work(format!("{}: {error}", directory.display())))?;
    console.print(format_args!("profile: {}", directory.display()));
    console.print(format_args!("use it: wireshark -C {PROFILE}, tshark -C {PROFILE}"));
    let files = FILES.iter().map(|(name, _)| *name).collect();
    console.result(&Installed { directory, files });
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directory_matches_wireshark() {
        let all = |name: &str| Some(PathBuf::from(format!("/{name}")));
        let but = |hidden: &'static str| move |name: &str| all(name).filter(|_| name != hidden);
        let none = |_: &Path| false;
        let shown = |path: Option<PathBuf>| path.map(|path| path.display().to_string());
        let of = |path: &str| Some(path.to_owned());
        assert_eq!(shown(profiles(all, none)), of("/WIRESHARK_CONFIG_DIR/profiles"));
        let xdg = but("WIRESHARK_CONFIG_DIR");
        assert_eq!(shown(profiles(xdg, none)), of("/XDG_CONFIG_HOME/wireshark/profiles"));
        let home = |name: &str| all(name).filter(|_| name == "HOME");
        assert_eq!(shown(profiles(home, none)), of("/HOME/.config/wireshark/profiles"));
        let old = |path: &Path| path.ends_with(".wireshark");
        assert_eq!(shown(profiles(home, old)), of("/HOME/.wireshark/profiles"));
        assert_eq!(shown(profiles(home, |_| true)), of("/HOME/.config/wireshark/profiles"));
        assert_eq!(profiles(|_| None, none), None);
    }
}
