//! Landlock: access to files, TCP ports and abstract Unix sockets.
//!
//! It complements the filter of system calls, which cannot examine a path: a node may remove files, but only in the
//! directory of its control socket.

use std::path::Path;

use landlock::{
    ABI, Access as _, AccessFs, AccessNet, CompatLevel, Compatible as _, LandlockStatus,
    PathBeneath, PathFd, RestrictionStatus, Ruleset, RulesetAttr as _, RulesetCreatedAttr as _,
    RulesetError, RulesetStatus, Scope,
};

use super::Policy;

/// Newest version whose restrictions are requested. The kernel may support fewer.
const VERSION: ABI = ABI::V7;

/// Restricts the calling thread to the files and ports of a policy.
///
/// # Errors
/// The kernel does not support Landlock, or rejects a rule.
pub(super) fn restrict(policy: Policy<'_>) -> Result<(), String> {
    let (control, has_sockets) = match policy {
        Policy::Node { control } => (control, false),
        Policy::Sockets { control } => (control, true),
        // It may not examine processes outside its own domain, such as the program.
        Policy::Launcher => return Ok(()),
    };
    let restricted = apply(control, has_sockets).map_err(|error| error.to_string())?;
    match (restricted.ruleset, restricted.landlock) {
        (RulesetStatus::NotEnforced, status) => Err(describe(status)),
        (RulesetStatus::FullyEnforced | RulesetStatus::PartiallyEnforced, _) => Ok(()),
    }
}

fn apply(control: Option<&Path>, has_sockets: bool) -> Result<RestrictionStatus, RulesetError> {
    let mut rules = Ruleset::default()
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(AccessFs::from_all(VERSION))?
        .scope(Scope::AbstractUnixSocket)?;
    if !has_sockets {
        rules = rules.handle_access(AccessNet::from_all(VERSION))?;
    }
    let mut rules = rules.create()?;
    // Without the directory there is no socket that could be removed.
    if let Some(Ok(directory)) = control.map(|path| PathFd::new(directory(path))) {
        rules = rules.add_rule(PathBeneath::new(directory, AccessFs::RemoveFile))?;
    }
    rules.restrict_self()
}

/// Returns the directory of a file.
fn directory(path: &Path) -> &Path {
    path.parent().filter(|it| !it.as_os_str().is_empty()).unwrap_or_else(|| Path::new("."))
}

fn describe(status: LandlockStatus) -> String {
    match status {
        LandlockStatus::NotImplemented => "not supported by the kernel".into(),
        LandlockStatus::NotEnabled => "disabled at the start of the kernel".into(),
        LandlockStatus::Available { effective_abi, kernel_abi } => {
            format!("version {}", kernel_abi.unwrap_or(effective_abi as i32))
        }
    }
}

/// Returns the version of Landlock, from a thread that restricts itself.
///
/// # Errors
/// The kernel does not support Landlock.
pub fn kernel_support() -> Result<String, String> {
    let restricted = std::thread::spawn(|| apply(None, false)).join();
    let restricted = restricted.map_err(|_| "the thread panicked".to_owned())?;
    let restricted = restricted.map_err(|error| error.to_string())?;
    let text = describe(restricted.landlock);
    match restricted.ruleset {
        RulesetStatus::NotEnforced => Err(text),
        RulesetStatus::FullyEnforced => Ok(text),
        RulesetStatus::PartiallyEnforced => {
            Ok(format!("{text}: a part of the restrictions of version {}", VERSION as i32))
        }
    }
}
