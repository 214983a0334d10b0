//! State of a playground: a file `playground-NAME.json` in the directory of the control sockets.
//!
//! The keeper has the file open with an exclusive lock (flock(2)), which the kernel releases when the keeper ends. A
//! state without a lock describes a playground that has ended. A process id in a locked state is that of the keeper: a
//! descriptor of the process (pidfd) that was opened before a check of the lock cannot refer to another process.

use std::{
    fs::{self, File, OpenOptions, TryLockError},
    io::{self, Read as _},
    net::Ipv4Addr,
    os::{
        fd::OwnedFd,
        unix::fs::{MetadataExt as _, OpenOptionsExt as _},
    },
    path::{Path, PathBuf},
};

use rustix::process::{Pid, PidfdFlags, pidfd_open};
use serde::{Deserialize, Serialize};

use crate::{control::socket_path, failure::Failure, units::IpPrefix};

/// Name of the bridge in each node.
pub const BRIDGE: &str = "br0";
/// Network of the nodes.
const NETWORK: [u8; 3] = [10, 77, 1];
/// Prefix length of the network.
const PREFIX_LENGTH: u8 = 24;
/// Distance between the address of a node's kernel and that of its TAP node.
const TAP_OFFSET: u8 = 100;
/// Most bytes of a state that are read.
const STATE_BYTES_MAX: u64 = 64 * 1024;

/// A playground, as its keeper describes it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct State {
    /// Name of the playground.
    pub name: String,
    /// Process id of the keeper.
    pub keeper: u32,
    /// True if the namespaces belong to a user namespace, which the keeper is in.
    pub in_user_namespace: bool,
    /// The nodes, from number 1 on.
    pub nodes: Vec<NodeState>,
}

/// A node of a playground.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct NodeState {
    /// Number, from 1 on.
    pub node: u8,
    /// Address of kernel sockets.
    pub address: Ipv4Addr,
    /// Address and prefix for a TAP node.
    pub tap_address: IpPrefix,
    /// Path of the network namespace, while the keeper runs.
    pub namespace: PathBuf,
}

impl NodeState {
    /// Returns the description of node `node`, whose namespace the process `keeper` has open.
    ///
    /// # Panics
    /// If the number exceeds 99.
    pub fn new(node: u8, keeper: u32, descriptor: i32) -> Self {
        let [a, b, c] = NETWORK;
        assert!(node < TAP_OFFSET, "node {node}: expected at most 99");
        let at = |host| Ipv4Addr::new(a, b, c, host);
        let tap = IpPrefix::new(at(TAP_OFFSET + node).into(), PREFIX_LENGTH);
        Self {
            node,
            address: at(node),
            tap_address: tap.expect("the address of a host"),
            namespace: format!("/proc/{keeper}/fd/{descriptor}").into(),
        }
    }

    /// Returns the address of kernel sockets with its prefix.
    ///
    /// # Panics
    /// If a state has the address of a network.
    pub fn prefix(&self) -> IpPrefix {
        IpPrefix::new(self.address.into(), PREFIX_LENGTH).expect("the address of a host")
    }
}

/// A running playground.
#[derive(Debug)]
pub struct Running {
    /// Its description.
    pub state: State,
    /// Descriptor of the keeper's process.
    pub keeper: OwnedFd,
}

/// Search result for a playground.
#[derive(Debug)]
pub enum Found {
    /// No state.
    Absent,
    /// State of a keeper that has ended. The lock prevents a start until it is dropped.
    Ended(File),
    /// A keeper that is starting or ending.
    Changing,
    /// A running keeper.
    Running(Running),
}

/// Returns the path of a playground's state.
pub fn path(name: &str) -> PathBuf {
    socket_path::directory().join(format!("playground-{name}.json"))
}

/// Returns the name of the playground in the path of its state.
pub fn name(path: &Path) -> Option<&str> {
    path.file_name()?.to_str()?.strip_prefix("playground-")?.strip_suffix(".json")
}

/// Searches for the playground of a state.
///
/// # Errors
/// The file cannot be read, or its directory is accessible to other users.
pub fn find(path: &Path) -> Result<Found, Failure> {
    let directory = path.parent().unwrap_or_else(|| Path::new("/"));
    match socket_path::check_directory(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Found::Absent),
        checked => checked.map_err(|error| failed(directory, &error))?,
    }
    loop {
        let mut file = match OpenOptions::new().read(true).write(true).open(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Found::Absent),
            opened => opened.map_err(|error| failed(path, &error))?,
        };
        if try_lock(&file, path)? {
            match is_at(&file, path) {
                true => return Ok(Found::Ended(file)),
                // Removed since it was opened.
                false => continue,
            }
        }
        let mut text = String::new();
        file.by_ref()
            .take(STATE_BYTES_MAX)
            .read_to_string(&mut text)
            .map_err(|error| failed(path, &error))?;
        // The keeper writes its state when the nodes are complete.
        let Ok(state) = serde_json::from_str::<State>(&text) else { return Ok(Found::Changing) };
        let pid = i32::try_from(state.keeper).ok().and_then(Pid::from_raw);
        let keeper = pid.and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok());
        return Ok(match (keeper, try_lock(&file, path)?) {
            (Some(keeper), false) => Found::Running(Running { state, keeper }),
            (None, false) => Found::Changing,
            (_, true) => Found::Ended(file),
        });
    }
}

/// Creates the state of a new playground, empty and locked. The lock belongs to the file that is returned, and to its
/// duplicates in child processes.
///
/// # Errors
/// A playground of this name is running, or the directory cannot be used.
pub fn claim(path: &Path, name: &str) -> Result<File, Failure> {
    let directory = path.parent().unwrap_or_else(|| Path::new("/"));
    socket_path::make_directory(directory)?;
    loop {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(path)
            .map_err(|error| failed(path, &error))?;
        if try_lock(&file, path)? {
            if is_at(&file, path) {
                file.set_len(0).map_err(|error| failed(path, &error))?;
                return Ok(file);
            }
            continue;
        }
        return Err(match find(path)? {
            Found::Running(Running { state, .. }) => Failure::work(format!(
                "playground {name}: already up: {} nodes, keeper is process {}",
                state.nodes.len(),
                state.keeper
            ))
            .with_hint(format!(
                "remove it with \"flue down{}\", or start another with --name",
                super::selection(name)
            )),
            Found::Changing => changing(name),
            Found::Absent | Found::Ended(_) => continue,
        });
    }
}

/// Removes the states of ended keepers whose name begins with `prefix`: of playgrounds that no other command removes.
pub fn sweep(prefix: &str) {
    let Ok(entries) = fs::read_dir(socket_path::directory()) else { return };
    for entry in entries.take(socket_path::ENTRIES_MAX).flatten() {
        let path = entry.path();
        if name(&path).is_some_and(|name| name.starts_with(prefix))
            && let Ok(Found::Ended(lock)) = find(&path)
        {
            // Fails if another command has removed it already.
            let _ = remove(&path, lock);
        }
    }
}

/// Failure of a command that finds a keeper during its start or end.
pub fn changing(name: &str) -> Failure {
    Failure::work(format!("playground {name}: another command starts or removes it"))
        .with_hint("wait until that has ended, and repeat the command")
}

/// Removes a state whose lock this process has.
///
/// # Errors
/// The directory cannot be written.
pub fn remove(path: &Path, _lock: File) -> Result<(), Failure> {
    fs::remove_file(path).map_err(|error| failed(path, &error))
}

fn try_lock(file: &File, path: &Path) -> Result<bool, Failure> {
    match file.try_lock() {
        Ok(()) => Ok(true),
        Err(TryLockError::WouldBlock) => Ok(false),
        Err(TryLockError::Error(error)) => Err(failed(path, &error)),
    }
}

/// Returns true if `path` still refers to the file.
fn is_at(file: &File, path: &Path) -> bool {
    let identity = |it: fs::Metadata| (it.dev(), it.ino());
    let own = file.metadata().map(identity).ok();
    own.is_some() && fs::symlink_metadata(path).map(identity).ok() == own
}

fn failed(path: &Path, error: &io::Error) -> Failure {
    Failure::work(format!("state of the playground: {}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    fn scratch(name: &str) -> PathBuf {
        let directory =
            std::env::temp_dir().join(format!("flue-playground-{}-{name}", std::process::id()));
        let _ = fs::remove_dir_all(&directory);
        directory.join("playground-x.json")
    }

    fn state(keeper: u32) -> State {
        let nodes = vec![NodeState::new(1, keeper, 5), NodeState::new(16, keeper, 20)];
        State { name: "x".into(), keeper, in_user_namespace: true, nodes }
    }

    #[test]
    fn state_without_lock_is_that_of_an_ended_keeper() {
        let path = scratch("ended");
        assert!(matches!(find(&path).unwrap(), Found::Absent));
        let mut keeper = claim(&path, "x").unwrap();
        assert!(matches!(find(&path).unwrap(), Found::Changing), "a lock, and no state");
        let failure = claim(&path, "x").unwrap_err();
        assert!(failure.message.contains("another command"), "{failure}");
        keeper
            .write_all(serde_json::to_string(&state(std::process::id())).unwrap().as_bytes())
            .unwrap();
        let Found::Running(running) = find(&path).unwrap() else { panic!("locked, with a state") };
        assert_eq!(running.state, state(std::process::id()));
        let failure = claim(&path, "x").unwrap_err();
        let expected =
            format!("playground x: already up: 2 nodes, keeper is process {}", std::process::id());
        assert_eq!(failure.message, expected);
        assert!(failure.hint.unwrap().contains("flue down --name x"));
        drop(keeper);
        let Found::Ended(lock) = find(&path).unwrap() else { panic!("no lock") };
        assert!(matches!(find(&path).unwrap(), Found::Running(_)), "locked by the first search");
        remove(&path, lock).unwrap();
        assert!(matches!(find(&path).unwrap(), Found::Absent));
        fs::remove_dir(path.parent().unwrap()).unwrap();
    }

    #[test]
    fn claim_empties_the_state_of_an_ended_keeper() {
        let path = scratch("stale");
        let mut keeper = claim(&path, "x").unwrap();
        keeper.write_all(serde_json::to_string(&state(1)).unwrap().as_bytes()).unwrap();
        drop(keeper);
        let claimed = claim(&path, "x").unwrap();
        assert_eq!(claimed.metadata().unwrap().len(), 0);
        assert_eq!(claimed.metadata().unwrap().mode() & 0o777, 0o600);
        fs::remove_dir_all(path.parent().unwrap()).unwrap();
    }

    #[test]
    fn addresses_of_kernel_and_tap_node_are_in_one_network() {
        for node in [1, 16] {
            let state = NodeState::new(node, 7, 3);
            assert_eq!(state.namespace, Path::new("/proc/7/fd/3"));
            assert!(state.prefix().contains(state.tap_address.address()));
            assert_ne!(state.tap_address.address(), state.address);
        }
    }
}
