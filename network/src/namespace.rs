//! Network namespace for the process, created as root or through a user namespace.
//!
//! A process leaves its network namespace by unshare(2). Without CAP_SYS_ADMIN the same call must create a user
//! namespace, in which the process is root. The kernel allows that only for a process with a single thread, so `main`
//! calls [`enter`] first. The three files `setgroups`, `uid_map` and `gid_map` then map the caller to root
//! (user_namespaces(7)). `setgroups` must be denied before `gid_map` can be written: otherwise a process could drop a
//! supplementary group to gain access.
//!
//! These namespaces have no name. They end with their last process, so no run has to clean them up.

use std::{
    fs::{self, File},
    io,
    os::{fd::AsFd as _, unix::fs::MetadataExt as _},
    path::Path,
};

use rustix::{
    io::Errno,
    process::{getegid, geteuid},
    thread::{
        CapabilitySet, LinkNameSpaceType, UnshareFlags, capabilities, move_into_link_name_space,
    },
};

use crate::Error;

/// Method by which the caller got its network namespace.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum EntryMethod {
    /// With its previous capabilities.
    Privileged,
    /// As root of a new user namespace.
    UserNamespace,
}

/// Returns true if the calling thread may configure its network namespace.
pub fn has_net_admin() -> bool {
    has(CapabilitySet::NET_ADMIN)
}

fn has(wanted: CapabilitySet) -> bool {
    capabilities(None).is_ok_and(|sets| sets.effective.contains(wanted))
}

/// Moves the calling process into a new network namespace, through a user namespace if it is not root. The process must
/// have a single thread.
///
/// # Errors
/// [`Error::prerequisite`], which names the kernel setting that forbids it.
pub fn enter() -> Result<EntryMethod, Error> {
    if has(CapabilitySet::NET_ADMIN | CapabilitySet::SYS_ADMIN) {
        unshare(UnshareFlags::NEWNET).map_err(|errno| diagnose(errno, false, &Settings::read()))?;
        return Ok(EntryMethod::Privileged);
    }
    // Read the ids before unshare(2): afterwards they read as the overflow id.
    let (uid, gid) = (geteuid().as_raw(), getegid().as_raw());
    let forbidden = |errno| diagnose(errno, true, &Settings::read());
    unshare(UnshareFlags::NEWUSER | UnshareFlags::NEWNET).map_err(forbidden)?;
    let maps = [
        ("/proc/self/setgroups", "deny".to_owned()),
        ("/proc/self/uid_map", format!("0 {uid} 1")),
        ("/proc/self/gid_map", format!("0 {gid} 1")),
    ];
    for (path, text) in maps {
        fs::write(path, text).map_err(|error| map_failure(path, &error))?;
    }
    if !has_net_admin() {
        // AppArmor permits the namespace but removes its capabilities.
        return Err(forbidden(Errno::PERM));
    }
    Ok(EntryMethod::UserNamespace)
}

/// Moves a child of a process that has called [`enter`] into a new network namespace.
///
/// # Errors
/// As [`enter`].
pub fn enter_below() -> Result<(), Error> {
    unshare(UnshareFlags::NEWNET).map_err(|errno| diagnose(errno, false, &Settings::read()))
}

/// Returns the network namespace of the calling thread. It exists as long as the descriptor is open.
///
/// # Errors
/// /proc is not mounted.
pub fn current() -> io::Result<File> {
    File::open("/proc/thread-self/ns/net")
}

/// Moves the calling thread to an existing network namespace, first to the user namespace that owns it, if given. A
/// move to another user namespace requires a process with a single thread.
///
/// # Errors
/// The user is neither root nor the owner of the user namespace.
pub fn join(user: Option<&File>, network: &File) -> Result<(), Error> {
    let failed = |what: &str, error: io::Error| {
        Error::prerequisite(format!("enter a {what} namespace: {error}"))
            .with_hint("run as the user who created it")
    };
    let identity = |file: io::Result<fs::Metadata>| file.map(|it| (it.dev(), it.ino()));
    if let Some(user) = user {
        let target = identity(user.metadata()).map_err(|error| failed("user", error))?;
        // setns(2) refuses the namespace that the process is in.
        if identity(fs::metadata("/proc/thread-self/ns/user")).ok() != Some(target) {
            move_into_link_name_space(user.as_fd(), Some(LinkNameSpaceType::User))
                .map_err(|errno| failed("user", errno.into()))?;
        }
    }
    move_into_link_name_space(network.as_fd(), Some(LinkNameSpaceType::Network))
        .map_err(|errno| failed("network", errno.into()))
}

/// Mounts /sys again in a new mount namespace. A sysfs mount shows the links of the network namespace in which it was
/// mounted. Call it in that network namespace, while the process has a single thread.
///
/// # Errors
/// The mount namespace or the mount is refused. In the second case the process is already in the new mount namespace.
pub fn show_own_links() -> Result<(), Error> {
    use rustix::mount::{MountFlags, MountPropagationFlags, mount, mount_change};
    let failed = |errno| Error::prerequisite(format!("mount /sys: {errno}"));
    unshare(UnshareFlags::NEWNS).map_err(failed)?;
    let private = MountPropagationFlags::REC | MountPropagationFlags::PRIVATE;
    mount_change("/", private).map_err(failed)?;
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC | MountFlags::RDONLY;
    mount("sysfs", "/sys", "sysfs", flags, None).map_err(failed)
}

#[allow(unsafe_code)]
fn unshare(flags: UnshareFlags) -> rustix::io::Result<()> {
    // SAFETY: only the flag FILES is dangerous: it gives the calling thread its own descriptor table, while other code
    // still holds numbers of the previous one. It is never passed.
    unsafe { rustix::thread::unshare_unsafe(flags) }
}

fn map_failure(path: &str, error: &io::Error) -> Error {
    let code = error.raw_os_error().map(Errno::from_raw_os_error);
    match code {
        Some(Errno::PERM | Errno::ACCESS) => {
            diagnose(Errno::PERM, true, &Settings::read()).at(&format!("write {path}"))
        }
        _ => Error::prerequisite(format!("write {path}: {error}")),
    }
}

/// Kernel settings that restrict namespaces. `None`: the kernel does not have the setting.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Settings {
    max_user_namespaces: Option<u64>,
    max_net_namespaces: Option<u64>,
    unprivileged_userns_clone: Option<u64>,
    apparmor_restrict: Option<u64>,
    has_user_namespaces: bool,
}

const MAX_USER_NAMESPACES: &str = "/proc/sys/user/max_user_namespaces";
const MAX_NET_NAMESPACES: &str = "/proc/sys/user/max_net_namespaces";
const USERNS_CLONE: &str = "/proc/sys/kernel/unprivileged_userns_clone";
const APPARMOR_RESTRICT: &str = "/proc/sys/kernel/apparmor_restrict_unprivileged_userns";

impl Settings {
    fn read() -> Self {
        let number = |path| fs::read_to_string(path).ok()?.trim().parse().ok();
        Self {
            max_user_namespaces: number(MAX_USER_NAMESPACES),
            max_net_namespaces: number(MAX_NET_NAMESPACES),
            unprivileged_userns_clone: number(USERNS_CLONE),
            apparmor_restrict: number(APPARMOR_RESTRICT),
            has_user_namespaces: Path::new("/proc/self/ns/user").exists(),
        }
    }
}

/// Returns an error with the reason why unshare(2), with or without NEWUSER, failed with `errno`.
fn diagnose(errno: Errno, user: bool, settings: &Settings) -> Error {
    let forbids = |path: &str, value: &str, advice: &str| {
        Error::prerequisite(format!("namespaces: disabled by {path} = {value}")).with_hint(advice)
    };
    let what = if user { "user and network namespace" } else { "network namespace" };
    if user && !settings.has_user_namespaces {
        return Error::prerequisite(
            "user namespaces: not supported by this kernel (CONFIG_USER_NS)",
        )
        .with_hint("run as root");
    }
    if user && settings.max_user_namespaces == Some(0) {
        return forbids(
            MAX_USER_NAMESPACES,
            "0",
            "sysctl user.max_user_namespaces=1024, or run as root",
        );
    }
    if settings.max_net_namespaces == Some(0) {
        return forbids(MAX_NET_NAMESPACES, "0", "sysctl user.max_net_namespaces=1024");
    }
    if user && settings.unprivileged_userns_clone == Some(0) {
        let advice = "sysctl kernel.unprivileged_userns_clone=1, or run as root";
        return forbids(USERNS_CLONE, "0", advice);
    }
    if user && errno == Errno::PERM && settings.apparmor_restrict.is_some_and(|value| value > 0) {
        let advice = "sysctl kernel.apparmor_restrict_unprivileged_userns=0, or an AppArmor profile \
                      for flue with \"userns,\", or run as root";
        return forbids(APPARMOR_RESTRICT, "1", advice);
    }
    let failure = Error::prerequisite(format!("create a {what}: {errno}"));
    match errno {
        Errno::PERM if user => failure.with_hint(
            "run as root, or allow unshare(2) in the seccomp profile of the container; a chroot also \
             forbids user namespaces",
        ),
        Errno::PERM => failure.with_hint("run with CAP_SYS_ADMIN"),
        Errno::NOSPC | Errno::USERS => failure
            .with_hint(format!("raise {MAX_USER_NAMESPACES} or {MAX_NET_NAMESPACES}")),
        _ => failure,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Cause;

    const OPEN: Settings = Settings {
        max_user_namespaces: Some(1024),
        max_net_namespaces: Some(1024),
        unprivileged_userns_clone: None,
        apparmor_restrict: None,
        has_user_namespaces: true,
    };

    fn message(errno: Errno, user: bool, settings: Settings) -> String {
        let failure = diagnose(errno, user, &settings);
        assert_eq!(failure.cause, Cause::Prerequisite);
        failure.to_string()
    }

    #[test]
    fn forbidding_setting_is_named() {
        let cases = [
            (Settings { max_user_namespaces: Some(0), ..OPEN }, Errno::NOSPC, MAX_USER_NAMESPACES),
            (Settings { max_net_namespaces: Some(0), ..OPEN }, Errno::NOSPC, MAX_NET_NAMESPACES),
            (Settings { unprivileged_userns_clone: Some(0), ..OPEN }, Errno::PERM, USERNS_CLONE),
            (Settings { apparmor_restrict: Some(1), ..OPEN }, Errno::PERM, APPARMOR_RESTRICT),
            (Settings { has_user_namespaces: false, ..OPEN }, Errno::INVAL, "CONFIG_USER_NS"),
            (OPEN, Errno::PERM, "seccomp"),
            (OPEN, Errno::USERS, "raise /proc/sys/user"),
        ];
        for (settings, errno, word) in cases {
            let text = message(errno, true, settings);
            assert!(text.contains(word), "{word:?} is not in {text:?}");
        }
    }

    #[test]
    fn user_namespace_settings_do_not_affect_root() {
        let closed = Settings { max_user_namespaces: Some(0), apparmor_restrict: Some(1), ..OPEN };
        let text = message(Errno::PERM, false, closed);
        assert!(text.contains("CAP_SYS_ADMIN"), "{text}");
        assert!(!text.contains("user_namespaces"), "{text}");
    }
}
