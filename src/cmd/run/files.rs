//! Files of the device that drivers of the kernel create under `/sys/class` and `/dev`, for programs that read them.
//!
//! The launcher writes them to a directory, and a preloaded library redirects the paths of programs to it
//! (`flue-verbs-paths`). The files have the values of the library's calls, because both derive from the same options.
//! Directories of different descriptions have different names, so programs of several network namespaces, or nodes, do
//! not share files. A directory is completed and repaired by each launcher that uses it.
//!
//! The class directories contain links to the devices of the machine too, because a program that lists them lists the
//! directory of flue.

use std::{
    collections::BTreeMap,
    env, fs,
    hash::{DefaultHasher, Hash as _, Hasher as _},
    io,
    os::unix::{
        ffi::OsStrExt as _,
        fs::{PermissionsExt as _, symlink},
    },
    path::{Path, PathBuf},
    time::Duration,
};

use flue_adapter::{AdapterOptions, DeviceKind};
use flue_verbs_abi::settings::{self, DEVICE_NAME, NODE_PREFIX};
use flue_verbs_core::{
    address::{self, Interface},
    gid::GidEntry,
    identity::{self, Identity, PortSpeed},
};

use super::{directory::replace, environments};

/// Class of the devices.
const CLASS: &str = "sys/class/infiniband";
/// Class of the character devices.
const CLASS_VERBS: &str = "sys/class/infiniband_verbs";
/// Directory of the character devices.
const NODES: &str = "dev/infiniband";
/// Directory of the device behind the entries of both classes.
const HARDWARE: &str = "sys/devices/virtual/flue/flue0";
/// Character device that the device's refers to, and its number in sysfs.
const NULL: (&str, &str) = ("/dev/null", "1:3");

/// Time after which a directory is removed if no process uses it. A launcher names it in the environment of a process
/// only after it has prepared it, and processes of other PID namespaces are not listed.
const UNUSED_AFTER: Duration = Duration::from_secs(24 * 3600);

/// Values of the files.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Description {
    /// Interface whose hardware address the device has.
    pub(super) interface: Interface,
    /// GIDs in the order of their table, each with the name of its interface. `None`: an empty entry.
    pub(super) gids: Vec<Option<([u8; 16], String)>>,
    /// Active width and speed of the port, as `ibv_query_port` returns them.
    pub(super) rate: (u8, u8),
}

/// Content of one entry of the directory.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
enum Entry {
    Directory,
    /// Text without its newline.
    File(String),
    /// Link to a path below the directory.
    Inner(&'static str, String),
    /// Link to a path of the machine.
    Outer(PathBuf),
}

type Entries = BTreeMap<PathBuf, Entry>;

/// Returns the name of the character device that starts the name of a directory.
fn node_of(directory: &Path) -> Option<String> {
    let node = settings::node_of(directory.as_os_str().as_bytes())?;
    String::from_utf8(node.to_owned()).ok()
}

impl Description {
    /// Returns the values of a RoCE device with these options, as the library determines them.
    pub(super) fn of(options: &AdapterOptions) -> Self {
        let options = AdapterOptions { device: DeviceKind::Roce, ..options.clone() };
        let addresses = identity::addresses_of_machine().unwrap_or_default();
        let identity = Identity::new(&options, identity::addresses_of_machine);
        let interface = identity.interface().clone();
        let name = |index: u32| {
            let named = addresses.iter().find(|address| address.index == index);
            named.map_or_else(|| interface.name.clone(), |address| address.name.clone())
        };
        let gids = identity.current_gids().into_iter();
        let gids = gids.map(|gid| gid.map(|GidEntry { gid, interface }| (gid.0, name(interface))));
        let gids = gids.collect();
        let PortSpeed { width, speed, effective: _ } = identity.port_speed();
        Self { interface, gids, rate: (width, speed) }
    }
}

/// Creates the directory for a description in `parent`, or completes an existing one. `owner`: the process whose
/// launcher removes the directory; `None`: it is kept for later runs.
///
/// # Errors
/// The directory cannot be written.
pub(super) fn prepare(parent: &Path, of: &Description, owner: Option<u32>) -> io::Result<PathBuf> {
    let machine = Machine::find();
    let entries = machine.entries(of);
    let mut hash = DefaultHasher::new();
    entries.hash(&mut hash);
    let mut name = format!("{}-{:016x}", machine.node, hash.finish());
    if let Some(owner) = owner {
        name.push_str(&format!("-{owner}"));
    }
    let directory = parent.join(name);
    if !directory.is_dir() {
        remove_unused(parent, UNUSED_AFTER);
    }
    fs::create_dir_all(&directory)?;
    for (path, entry) in &entries {
        let path = directory.join(path);
        if !entry.is_at(&path, &directory) {
            entry.create(&path, &directory)?;
        }
    }
    // The time of the last use.
    let now = rustix::fs::Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_NOW };
    let times = rustix::fs::Timestamps { last_access: now, last_modification: now };
    rustix::fs::utimensat(rustix::fs::CWD, &directory, &times, rustix::fs::AtFlags::empty())?;
    Ok(directory)
}

/// Removes directories that no process has used since `limit`.
fn remove_unused(parent: &Path, limit: Duration) {
    let Ok(found) = fs::read_dir(parent) else { return };
    let is_old = |directory: &PathBuf| {
        let changed = fs::symlink_metadata(directory).and_then(|it| it.modified());
        changed.is_ok_and(|it| it.elapsed().is_ok_and(|elapsed| elapsed >= limit))
    };
    let directories = found.flatten().map(|entry| entry.path());
    let old: Vec<_> = directories.filter(|it| node_of(it).is_some()).filter(is_old).collect();
    if old.is_empty() {
        return;
    }
    let used = used();
    for directory in old.iter().filter(|directory| !used.contains(directory)) {
        // Another launcher may remove it too.
        let _ = fs::remove_dir_all(directory);
    }
}

/// Returns the directories in the environment of processes, as far as this user can read it.
fn used() -> Vec<PathBuf> {
    let value = |environment: Vec<u8>| {
        let text = String::from_utf8_lossy(&environment).into_owned();
        let value =
            text.split('\0').find_map(|it| it.strip_prefix(settings::FILES)?.strip_prefix('='));
        value.map(PathBuf::from)
    };
    environments::read().filter_map(value).collect()
}

impl Entry {
    /// Returns the target of a link.
    fn target(&self, directory: &Path) -> Option<PathBuf> {
        match self {
            Self::Inner(base, path) => Some(directory.join(base).join(path)),
            Self::Outer(target) => Some(target.clone()),
            Self::Directory | Self::File(_) => None,
        }
    }

    fn text(&self) -> Option<String> {
        match self {
            // sysfs ends a value with a newline.
            Self::File(text) => Some(format!("{text}\n")),
            _ => None,
        }
    }

    fn is_at(&self, path: &Path, directory: &Path) -> bool {
        match (self.text(), self.target(directory)) {
            (Some(text), _) => {
                let is_file = fs::symlink_metadata(path).is_ok_and(|it| it.is_file());
                is_file && fs::read(path).is_ok_and(|found| found == text.as_bytes())
            }
            (_, Some(target)) => fs::read_link(path).is_ok_and(|found| found == target),
            (None, None) => fs::symlink_metadata(path).is_ok_and(|it| it.is_dir()),
        }
    }

    /// Creates or replaces the entry atomically: another launcher may create it concurrently, or a program read it.
    fn create(&self, path: &Path, directory: &Path) -> io::Result<()> {
        let (text, target) = (self.text(), self.target(directory));
        if text.is_none() && target.is_none() {
            return fs::create_dir_all(path);
        }
        if let Some(above) = path.parent() {
            fs::create_dir_all(above)?;
        }
        replace(path, |fresh| match (&text, &target) {
            (Some(text), _) => {
                fs::write(fresh, text)?;
                fs::set_permissions(fresh, fs::Permissions::from_mode(0o444))
            }
            (None, Some(target)) => symlink(target, fresh),
            (None, None) => Ok(()),
        })
    }
}

/// Names in the class directories and in the directory of the character devices.
type Links = Vec<(&'static str, Vec<String>)>;

/// Returns the first name of a character device that no device of the machine has.
fn free_node(links: &Links) -> String {
    let is_free = |node: &String| !links.iter().any(|(_, names)| names.contains(node));
    let mut nodes = (0_u32..).map(|number| format!("{NODE_PREFIX}{number}"));
    nodes.find(is_free).unwrap_or_default()
}

/// Devices of the machine.
#[derive(Debug, Default)]
struct Machine {
    /// Character device of flue: the first number that no device of the machine has.
    node: String,
    /// Devices of drivers.
    links: Links,
    /// CPUs that are online, as a list of ranges.
    cpus: String,
}

impl Machine {
    fn find() -> Self {
        // The files of an enclosing launcher.
        let enclosing = env::var_os(settings::FILES).and_then(|path| node_of(Path::new(&path)));
        let names = |directory: &str| -> Vec<String> {
            let entries = fs::read_dir(Path::new("/").join(directory)).into_iter().flatten();
            let names = entries.flatten().filter_map(|entry| entry.file_name().into_string().ok());
            names.filter(|name| name != DEVICE_NAME && Some(name) != enclosing.as_ref()).collect()
        };
        let links: Vec<_> =
            [CLASS, CLASS_VERBS, NODES].map(|directory| (directory, names(directory))).into();
        let node = enclosing.unwrap_or_else(|| free_node(&links));
        let cpus = read("/sys/devices/system/cpu/online").unwrap_or_else(|| "0".into());
        Self { node, links, cpus }
    }

    fn entries(&self, of: &Description) -> Entries {
        let Self { node, links, cpus } = self;
        let Description { interface, gids, rate } = of;
        let guid = groups(&address::eui64(interface.mac));
        let mut entries = Entries::new();
        let mut add = |path: String, entry: Entry| {
            entries.insert(path.into(), entry);
        };
        let file = |text: &str| Entry::File(text.to_owned());

        let hardware = Path::new("/sys/class/net").join(&interface.name).join("device");
        let of_interface = |name: &str| read(hardware.join(name));
        let online = of_interface("local_cpulist").unwrap_or_else(|| cpus.clone());
        let mask = of_interface("local_cpus").unwrap_or_else(|| cpu_mask(&online));
        let numa_node = of_interface("numa_node").unwrap_or_else(|| "-1".into());
        for (name, text) in
            [("local_cpulist", &online), ("local_cpus", &mask), ("numa_node", &numa_node)]
        {
            add(format!("{HARDWARE}/{name}"), file(text));
        }
        let net = Path::new("/sys/class/net").join(&interface.name);
        add(format!("{HARDWARE}/net/{}", interface.name), Entry::Outer(net));

        let device = format!("{HARDWARE}/infiniband/{DEVICE_NAME}");
        let up = |path: &str| Entry::Inner(HARDWARE, path.into());
        add(format!("{device}/device"), up(""));
        let version = env!("CARGO_PKG_VERSION");
        for (name, text) in [
            ("node_type", "1: CA"),
            ("fw_ver", version),
            ("node_guid", &guid),
            ("sys_image_guid", &guid),
            ("node_desc", DEVICE_NAME),
            ("ports/1/state", "4: ACTIVE"),
            ("ports/1/phys_state", "5: LinkUp"),
            ("ports/1/link_layer", "Ethernet"),
            ("ports/1/rate", &rate_text(*rate)),
            ("ports/1/lid", "0x0"),
            ("ports/1/lid_mask_count", "0"),
            ("ports/1/sm_lid", "0x0"),
            ("ports/1/sm_sl", "0"),
            ("ports/1/pkeys/0", "0xffff"),
        ] {
            add(format!("{device}/{name}"), file(text));
        }
        let port = format!("{device}/ports/1");
        for name in ["gids", "gid_attrs/types", "gid_attrs/ndevs"] {
            add(format!("{port}/{name}"), Entry::Directory);
        }
        for (index, gid) in gids.iter().enumerate() {
            let (octets, interface) = gid.clone().unwrap_or_default();
            add(format!("{port}/gids/{index}"), file(&groups(&octets)));
            // Of an empty entry, sysfs returns an error for both.
            if gid.is_some() {
                add(format!("{port}/gid_attrs/types/{index}"), file("RoCE v2"));
                add(format!("{port}/gid_attrs/ndevs/{index}"), file(&interface));
            }
        }

        let verbs = format!("{HARDWARE}/infiniband_verbs/{node}");
        add(format!("{verbs}/device"), up(""));
        for (name, text) in [("ibdev", DEVICE_NAME), ("abi_version", "1"), ("dev", NULL.1)] {
            add(format!("{verbs}/{name}"), file(text));
        }

        for (directory, names) in links {
            add((*directory).into(), Entry::Directory);
            for name in names {
                let path = format!("{directory}/{name}");
                let target = Path::new("/").join(&path);
                add(path, Entry::Outer(target));
            }
        }
        add(format!("{CLASS}/{DEVICE_NAME}"), up(&format!("infiniband/{DEVICE_NAME}")));
        add(format!("{CLASS_VERBS}/{node}"), up(&format!("infiniband_verbs/{node}")));
        add(format!("{CLASS_VERBS}/abi_version"), file("6"));
        add(format!("{NODES}/{node}"), Entry::Outer(NULL.0.into()));
        entries
    }
}

/// Returns the first line of a file.
fn read(file: impl AsRef<Path>) -> Option<String> {
    let text = fs::read_to_string(file).ok()?;
    text.lines().next().map(str::to_owned)
}

/// Returns identifiers in sysfs notation: groups of 16 bits.
fn groups(octets: &[u8]) -> String {
    let group = |pair: &[u8]| pair.iter().map(|octet| format!("{octet:02x}")).collect::<String>();
    octets.chunks(2).map(group).collect::<Vec<_>>().join(":")
}

/// Returns width and speed of a port in sysfs notation: `25 Gb/sec (1X EDR)`.
fn rate_text((width, speed): (u8, u8)) -> String {
    // `IBV_WIDTH_*` and `IBV_SPEED_*`: lanes, and 100 Mbit/s of a lane with the name.
    let lanes = match width {
        2 => 4,
        4 => 8,
        8 => 12,
        16 => 2,
        _ => 1,
    };
    let (per_lane, name) = match speed {
        2 => (50, " DDR"),
        4 => (100, " QDR"),
        8 => (100, " FDR10"),
        16 => (140, " FDR"),
        32 => (250, " EDR"),
        64 => (500, " HDR"),
        128 => (1000, " NDR"),
        _ => (25, ""),
    };
    let rate = lanes * per_lane;
    let half = if rate % 10 == 0 { "" } else { ".5" };
    format!("{}{half} Gb/sec ({lanes}X{name})", rate / 10)
}

/// Returns a list of CPU ranges, `0-3,8`, as a mask in sysfs notation: words of 32 bits, the highest first.
fn cpu_mask(list: &str) -> String {
    let mut words = vec![0_u32];
    for range in list.split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (Ok(first), Ok(last)) = (first.trim().parse::<u16>(), last.trim().parse::<u16>())
        else {
            continue;
        };
        for cpu in first..=last {
            let word = usize::from(cpu / 32);
            words.resize(words.len().max(word + 1), 0);
            words[word] |= 1 << (cpu % 32);
        }
    }
    let mut words: Vec<_> = words.iter().map(|word| format!("{word:08x}")).collect();
    words.reverse();
    // The highest word has no leading zeros.
    let highest = words[0].trim_start_matches('0');
    words[0] = if highest.is_empty() { "0".into() } else { highest.into() };
    words.join(",")
}

#[cfg(test)]
mod tests {
    use std::process;

    use super::*;

    fn description() -> Description {
        let mac = "52:54:00:12:34:56".parse().unwrap();
        let interface =
            Interface { name: "eth9".into(), index: 9, mac, mtu: 1500, ..Interface::default() };
        let mut gid = [0; 16];
        gid[10..].copy_from_slice(&[0xff, 0xff, 10, 0, 0, 1]);
        Description { interface, gids: vec![Some((gid, "eth9".into())), None], rate: (1, 32) }
    }

    /// Directory of one test, removed with it.
    struct Parent(PathBuf);

    impl Parent {
        fn new(name: &str) -> Self {
            let path = env::temp_dir().join(format!("flue-files-{name}-{}", process::id()));
            fs::create_dir_all(&path).unwrap();
            Self(path)
        }
    }

    impl Drop for Parent {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn files_have_the_values_of_the_device() {
        let parent = Parent::new("values");
        let directory = prepare(&parent.0, &description(), None).unwrap();
        let device = directory.join("sys/class/infiniband/flue0");
        for (name, expected) in [
            ("node_type", "1: CA"),
            ("node_guid", "5054:00ff:fe12:3456"),
            ("ports/1/rate", "25 Gb/sec (1X EDR)"),
            ("ports/1/state", "4: ACTIVE"),
            ("ports/1/gids/0", "0000:0000:0000:0000:0000:ffff:0a00:0001"),
            ("ports/1/gids/1", "0000:0000:0000:0000:0000:0000:0000:0000"),
            ("ports/1/gid_attrs/types/0", "RoCE v2"),
            ("ports/1/gid_attrs/ndevs/0", "eth9"),
            ("device/numa_node", "-1"),
            ("../../numa_node", "-1"),
        ] {
            let found = fs::read_to_string(device.join(name)).unwrap();
            assert_eq!(found, format!("{expected}\n"), "{name}");
        }
        for name in ["types/1", "ndevs/1"] {
            assert!(!device.join("ports/1/gid_attrs").join(name).exists(), "{name}");
        }
        let node = node_of(&directory).unwrap();
        let verbs = directory.join("sys/class/infiniband_verbs").join(&node);
        assert_eq!(fs::read_to_string(verbs.join("ibdev")).unwrap(), "flue0\n");
        let net = fs::read_link(device.join("device/net/eth9")).unwrap();
        assert_eq!(net, Path::new("/sys/class/net/eth9"));
        let null = fs::canonicalize(directory.join("dev/infiniband").join(&node)).unwrap();
        assert_eq!(null, Path::new("/dev/null"));
    }

    #[test]
    fn devices_of_the_machine_are_listed_too() {
        let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        let links = vec![
            (CLASS, names(&["mlx5_0"])),
            (CLASS_VERBS, names(&["uverbs0", "abi_version"])),
            (NODES, names(&["uverbs0", "rdma_cm"])),
        ];
        let node = free_node(&links);
        assert_eq!(node, "uverbs1");
        let entries = Machine { node, links, cpus: "0".into() }.entries(&description());
        for path in ["sys/class/infiniband/mlx5_0", "dev/infiniband/uverbs0"] {
            let target = Path::new("/").join(path);
            assert_eq!(entries.get(Path::new(path)), Some(&Entry::Outer(target)));
        }
        let dev = "sys/devices/virtual/flue/flue0/infiniband_verbs/uverbs1/dev";
        assert_eq!(entries.get(Path::new(dev)), Some(&Entry::File("1:3".into())));
        let null = Entry::Outer("/dev/null".into());
        assert_eq!(entries.get(Path::new("dev/infiniband/uverbs1")), Some(&null));
    }

    #[test]
    fn directory_is_kept_and_repaired() {
        let parent = Parent::new("repair");
        let directory = prepare(&parent.0, &description(), None).unwrap();
        let state = directory.join("sys/class/infiniband/flue0/ports/1/state");
        fs::remove_file(&state).unwrap();
        let mut other = description();
        other.gids.pop();
        assert_ne!(prepare(&parent.0, &other, None).unwrap(), directory);
        let owned = prepare(&parent.0, &description(), Some(7)).unwrap();
        assert_eq!(owned.to_str(), Some(&*format!("{}-7", directory.display())));
        assert_eq!(prepare(&parent.0, &description(), None).unwrap(), directory);
        assert_eq!(fs::read_to_string(state).unwrap(), "4: ACTIVE\n");
        assert_eq!(fs::read_dir(&parent.0).unwrap().count(), 3);
    }

    #[test]
    fn unused_directories_are_removed() {
        let parent = Parent::new("unused");
        let directory = prepare(&parent.0, &description(), None).unwrap();
        let kept = parent.0.join("libibverbs.so.1");
        fs::write(&kept, "").unwrap();
        remove_unused(&parent.0, UNUSED_AFTER);
        assert!(directory.is_dir());
        let used = prepare(&parent.0, &description(), Some(7)).unwrap();
        let program = environments::Process::with(settings::FILES, used.as_os_str());
        remove_unused(&parent.0, Duration::ZERO);
        drop(program);
        assert_eq!([&directory, &used, &kept].map(|it| it.exists()), [false, true, true]);
    }

    #[test]
    fn values_are_in_the_notation_of_sysfs() {
        let masks = [("0", "1"), ("0-3", "f"), ("0-31", "ffffffff"), ("1,32", "1,00000002")];
        for (list, expected) in masks {
            assert_eq!(cpu_mask(list), expected, "{list}");
        }
        let rates = [
            ((1, 1), "2.5 Gb/sec (1X)"),
            ((1, 8), "10 Gb/sec (1X FDR10)"),
            ((2, 2), "20 Gb/sec (4X DDR)"),
            ((2, 32), "100 Gb/sec (4X EDR)"),
        ];
        for (rate, expected) in rates {
            assert_eq!(rate_text(rate), expected);
        }
    }
}
