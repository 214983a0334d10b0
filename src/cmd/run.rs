//! `flue run`: runs an unmodified program of libibverbs and librdmacm on flue.
//!
//! The command creates a directory with the names of both libraries, which refer to flue's library, and prepends it to
//! LD_LIBRARY_PATH. It adds objects to LD_PRELOAD for programs that ignore LD_LIBRARY_PATH, and for a RoCE device the
//! library that redirects the device's files (`files`). Then it executes the program. So the program keeps process id,
//! descriptors, signals and exit status, and nothing is printed. With `--tap` or `--verbose` the command remains as the
//! program's parent instead (`launcher`).

mod directory;
mod environments;
mod files;
pub(crate) mod launcher;
mod library;
mod preload;
pub(crate) mod process;
mod program;
mod usage;

use std::{
    env,
    ffi::{OsStr, OsString},
    fs,
    io::{self, Write as _},
    iter,
    os::unix::{ffi::OsStrExt as _, process::CommandExt as _},
    path::{Path, PathBuf},
    process::{self as this, Command},
    time::Duration,
};

use clap::Args;
use flue_adapter::{
    AdapterOptions, DeviceKind, MpaOptions, NodeOptions, OPTIONS_VARIABLE, PortRange,
    SocketsOptions, Switch, TAP_DEFAULT, TransportOptions,
    address_map::{AddressMapping, PortMapping},
    control::socket_path::ControlSocketPath,
    launched::{Launch, LaunchedNode},
    parse_interface, parse_receive_wait,
};
use flue_verbs_abi::settings;
use host_stack::node::Progress;
use rustix::fs::StatVfsMountFlags;

pub use self::library::find_library;
use self::{directory::Directory, usage::Usage};
use crate::{
    failure::Failure, options::NodeArgs, report::Console, sandbox::SandboxArgs, station::Station,
};

/// Directories that the dynamic loader searches first.
const LOADER_PATH: &str = "LD_LIBRARY_PATH";
/// Objects that the dynamic loader loads before the dependencies of the program.
const LOADER_PRELOADS: &str = "LD_PRELOAD";
/// Options of AddressSanitizer.
const ASAN_OPTIONS: &str = "ASAN_OPTIONS";
/// AddressSanitizer rejects any object loaded before its own library, because that object could define functions that
/// it intercepts. The library of the paths defines some, and calls the next definition, which is the sanitizer's.
const ASAN_ACCEPTS_PRELOADS: &str = "verify_asan_link_order=0";

/// Run a verbs program (rping, perftest, fio, ...) on flue without an RDMA adapter
///
/// The program uses flue's libibverbs.so.1 and librdmacm.so.1 instead of the system's. No kernel module and no root are
/// required. Its queue pairs use iWARP over TCP sockets of the kernel, at the addresses of this machine. flue executes
/// the program in its own process: exit status, signals, standard streams and process id are the program's. Of the node
/// options, kernel sockets support --control and --pcap.
///
/// With --tap the program uses a node of its own, with host stack and offload target, at the addresses of --addr. flue
/// remains as the parent process, forwards signals and the exit status, and resets the connections that a killed
/// program leaves.
#[derive(Args, Clone, Debug)]
#[command(mut_arg("tap", |tap| tap.default_value("").hide_default_value(true).value_parser(parse_tap)))]
// The program polls: an engine thread would compete with it for the CPU.
#[command(mut_arg("progress", |progress| progress.default_value("shared")))]
pub struct RunArgs {
    /// The program and its arguments
    #[arg(
        required = true,
        trailing_var_arg = true,
        value_name = "PROGRAM",
        value_hint = clap::ValueHint::CommandWithArguments
    )]
    pub program: Vec<OsString>,

    /// Show this device to the program [default: roce]
    ///
    /// roce: the program may also connect its queue pairs itself, by an exchange of GID, QP number and PSN and
    /// ibv_modify_qp, as perftest without -R and ibv_rc_pingpong do. Both ends use flue with this device. iwarp: the
    /// device has the properties of an iWARP adapter. The wire is iWARP over TCP with both.
    #[arg(long, value_enum, value_name = "KIND")]
    pub device: Option<DeviceKind>,

    /// Use this file as libflue_verbs.so [env: FLUE_VERBS_LIBRARY]
    ///
    /// Default: next to the flue executable, in ../lib/flue, ../lib/MACHINE-linux-gnu/flue or ../lib64/flue, otherwise
    /// the copy in the executable.
    #[arg(long, value_name = "FILE")]
    pub library: Option<PathBuf>,

    /// Append the library's log to this file; %p is the process id
    #[arg(long, value_name = "FILE")]
    pub log: Option<PathBuf>,

    /// Report the use of the device on standard error, after the program
    ///
    /// flue remains as the parent process.
    #[arg(long)]
    pub verbose: bool,

    /// Rights of the parent processes, not of the program.
    #[command(flatten)]
    pub sandbox: SandboxArgs,

    /// Map HOST, an address of the kernel, to NODE; repeatable, with --tap
    ///
    /// For programs that use one address for kernel sockets and RDMA: where the program binds or connects to HOST for
    /// RDMA, it uses NODE, and NODE is reported to it as HOST. Other calls of the program, such as connect(2), use the
    /// kernel.
    #[arg(long, value_name = "HOST=NODE")]
    pub map: Vec<AddressMapping>,

    /// Map a port of the program to another RDMA port; repeatable
    ///
    /// For programs that use one port number for TCP and RDMA: where the program binds or connects to PORT (of HOST, if
    /// given) for RDMA, it uses the port after the equals sign, and its own port is reported to it. TCP sockets of the
    /// program keep the port. Peers that run on flue use the same option; others use the mapped port. An IPv6 HOST is
    /// written in brackets.
    #[arg(long, value_name = "[HOST:]PORT=PORT")]
    pub port_map: Vec<PortMapping>,

    /// Accept peers of queue pairs that programs connect: 1024..=65535
    ///
    /// For firewalls, which admit TCP connections to these ports. Each process of the program listens at one port for
    /// each 256 queue pairs. Default: ports that the kernel or the node selects.
    #[arg(long, value_name = "FIRST-LAST")]
    pub rendezvous_ports: Option<PortRange>,

    /// Start-up of MPA.
    #[command(flatten)]
    pub mpa: MpaOptions,

    /// Enable atomics and immediate data (RFC 7306) [default: off]
    ///
    /// MPA does not negotiate them, so both ends require the option.
    #[arg(long, value_enum, value_name = "WHEN", help_heading = "MPA options")]
    pub rfc7306: Option<Switch>,

    /// Wait for a posted receive before the connection ends, s [default: 30]
    ///
    /// 0: the connection ends at once. Maximum: 3600.
    #[arg(long, alias = "receive-wait", value_name = "SECONDS", value_parser = parse_receive_wait,
          help_heading = "MPA options")]
    pub rnr_timeout: Option<Duration>,

    /// The node.
    #[command(flatten)]
    pub node: NodeArgs,
}

/// Parses the name of a TAP like [`parse_interface`]; an empty name selects no TAP.
fn parse_tap(text: &str) -> Result<String, String> {
    if text.is_empty() { Ok(String::new()) } else { parse_interface(text) }
}

impl RunArgs {
    /// Returns the options of the library's adapter: those of the command line, otherwise those of `inherited`, from an
    /// enclosing launcher. `node` is the node of the program; `None`: kernel sockets.
    ///
    /// # Errors
    /// A relative path cannot be made absolute: there is no working directory.
    fn options(
        &self,
        inherited: AdapterOptions,
        node: Option<LaunchedNode>,
    ) -> io::Result<AdapterOptions> {
        let NodeArgs { node: NodeOptions { pcap, .. }, control } = &self.node;
        let transport = match (node, inherited.transport) {
            (Some(node), _) => TransportOptions::Launched(Box::new(node)),
            (None, TransportOptions::Sockets(sockets)) => {
                let pcap = absolute(pcap)?.or(sockets.pcap);
                TransportOptions::Sockets(SocketsOptions { pcap, ..sockets })
            }
            (None, _) => {
                let pcap = absolute(pcap)?;
                TransportOptions::Sockets(SocketsOptions { pcap, ..SocketsOptions::default() })
            }
        };
        let control = match control {
            Some(none) if none.as_os_str() == "none" => Some(ControlSocketPath::None),
            control => absolute(control)?.map(ControlSocketPath::Path),
        };
        let mut map = inherited.map;
        if !self.map.is_empty() {
            map.addresses = self.map.clone();
        }
        if !self.port_map.is_empty() {
            map.ports = self.port_map.clone();
        }
        Ok(AdapterOptions {
            transport,
            mpa: self.mpa.or(inherited.mpa),
            rfc7306: self.rfc7306.or(inherited.rfc7306),
            receive_wait: self.rnr_timeout.or(inherited.receive_wait),
            map,
            control: control.or(inherited.control),
            device: self.device.unwrap_or(inherited.device),
            rendezvous_ports: self.rendezvous_ports.or(inherited.rendezvous_ports),
        })
    }

    /// Returns the variables that would override options of the command line.
    fn overrides(&self) -> impl Iterator<Item = &'static str> {
        let mpa = &self.mpa;
        let variables = [
            (settings::TAP, true),
            (settings::PCAP, self.node.node.pcap.is_some()),
            (settings::MPA_CRC, mpa.accept.crc.is_some()),
            (settings::MPA_MARKERS, mpa.accept.markers.is_some()),
            (settings::MPA_REVISION, mpa.revision.is_some()),
            (settings::RTR, mpa.accept.rtr.is_some()),
            (settings::RFC7306, self.rfc7306.is_some()),
            (settings::RECEIVE_WAIT, self.rnr_timeout.is_some()),
            (settings::MAP, !self.map.is_empty()),
            (settings::PORT_MAP, !self.port_map.is_empty()),
            (settings::CONTROL, self.node.control.is_some()),
            (settings::DEVICE, self.device.is_some()),
            (settings::RENDEZVOUS_PORTS, self.rendezvous_ports.is_some()),
        ];
        variables.into_iter().filter(|(_, is_given)| *is_given).map(|(name, _)| name)
    }

    /// Returns true if the program sees a RoCE device, whose files programs read.
    fn wants_device_files(&self, options: &AdapterOptions) -> bool {
        // As for the library, the variable takes precedence over an enclosing launcher.
        match env::var(settings::DEVICE) {
            Ok(kind) if self.device.is_none() && kind == "iwarp" => false,
            Ok(kind) if self.device.is_none() && kind == "roce" => true,
            _ => options.device == DeviceKind::Roce,
        }
    }

    /// Returns true if the program runs on a node.
    fn has_node(&self) -> bool {
        let NodeOptions { tap, tap_fd, .. } = &self.node.node;
        !tap.is_empty() || tap_fd.is_some()
    }

    /// Returns the validated options of the node; `None`: kernel sockets.
    ///
    /// # Errors
    /// [`Failure::usage`]: an option exceeds its limits, or requires a node.
    pub fn node(&self) -> Result<Option<NodeOptions>, Failure> {
        let given = &self.node.node;
        for (index, one) in self.port_map.iter().enumerate() {
            if let Some(other) =
                self.port_map[..index].iter().find(|other| one.conflicts_with(other))
            {
                return Err(Failure::usage(format!(
                    "--port-map {one}: conflicts with --port-map {other}"
                )));
            }
        }
        if !self.has_node() {
            let own = NodeOptions {
                tap: String::new(),
                pcap: given.pcap.clone(),
                progress: given.progress,
                ..NodeOptions::default()
            };
            if *given != own || !self.map.is_empty() {
                return Err(Failure::usage(
                    "kernel sockets: only --control and --pcap of the node options are supported: add --tap NAME",
                ));
            }
            return Ok(None);
        }
        if given.progress == Progress::Manual {
            return Err(Failure::usage(
                "--progress manual: not supported: a blocked program does not run the engine: use --progress shared",
            ));
        }
        for (index, one) in self.map.iter().enumerate() {
            let is_double =
                |other: &AddressMapping| other.host == one.host || other.node == one.node;
            if self.map[..index].iter().any(is_double) {
                return Err(Failure::usage(format!(
                    "--map {one}: an address of the pair is already mapped"
                )));
            }
        }
        // With a descriptor the name of the TAP is irrelevant.
        let tap = if given.tap.is_empty() { TAP_DEFAULT } else { &given.tap };
        let node = NodeOptions {
            tap: tap.into(),
            pcap: absolute(&given.pcap).map_err(no_directory)?,
            tcp_trace: absolute(&given.tcp_trace).map_err(no_directory)?,
            ..given.clone()
        };
        Ok(Some(node.completed()?))
    }
}

/// Makes a path absolute: the program may change its working directory before it opens the device.
fn absolute(path: &Option<PathBuf>) -> io::Result<Option<PathBuf>> {
    path.as_deref().map(std::path::absolute).transpose()
}

fn no_directory(error: io::Error) -> Failure {
    Failure::work(format!("working directory: {error}"))
}

/// Executes the program, or with a node runs it as a child process.
///
/// # Errors
/// The program cannot be started, the TAP cannot be opened, or the library is missing: [`Failure::lacking`].
pub fn run(args: &RunArgs, _console: &mut Console<'_>) -> Result<(), Failure> {
    let Some((program, arguments)) = args.program.split_first() else {
        return Err(Failure::usage("PROGRAM: missing"));
    };
    // An unknown option is parsed as the program.
    if program.as_bytes().starts_with(b"-") {
        let message = format!("{}: not an option of flue run", program.display());
        return Err(Failure::usage(message).with_hint("\"flue run -h\" lists the options"));
    }
    let node = args.node()?;
    let library = find_library(args.library.as_deref())?;
    let NodeOptions { pcap, tcp_trace, .. } = &args.node.node;
    let files = pcap.iter().chain(tcp_trace).chain(&args.log);
    files.into_iter().try_for_each(|file| check_writable(file))?;
    let Prepared { mut command, directory } = prepare(&library, program)?;
    command.args(arguments);
    let launch = node.as_ref().map(Launch::prepare).transpose()?;
    if let Some(warning) = Station::new(node.as_ref(), Duration::ZERO).warning() {
        // A write error on standard error cannot be reported.
        let _ = io::stderr().write_all(format!("flue run: {warning}\n").as_bytes());
    }
    let inherited = env::var(OPTIONS_VARIABLE).ok().and_then(|text| text.parse().ok());
    let launched = launch.as_ref().map(|launch| launch.node.clone());
    let options = args.options(inherited.unwrap_or_default(), launched).map_err(no_directory)?;
    for name in args.overrides() {
        command.env_remove(name);
    }
    match options == AdapterOptions::default() {
        true => command.env_remove(OPTIONS_VARIABLE),
        false => command.env(OPTIONS_VARIABLE, options.to_string()),
    };
    let wants_files = args.wants_device_files(&options);
    let files = wants_files.then(|| add_files(&mut command, &directory, &library, &options));
    let files = files.transpose()?;
    if let Some(log) = absolute(&args.log).map_err(no_directory)? {
        command.env(settings::LOG, log);
    }
    let usage = args.verbose.then(Usage::new).transpose()?;
    if let Some(usage) = &usage {
        command.env(settings::USAGE, usage.path());
    }
    if launch.is_some() || usage.is_some() {
        let files = files.filter(|_| launch.is_some());
        return launcher::run(command, launch, usage.as_ref(), files, args.sandbox);
    }
    let error = command.exec();
    Err(not_started(program, &error))
}

/// Failure of exec(2). A name without a slash was searched in PATH. A file that was found may lack its interpreter.
pub(crate) fn not_started(program: &OsStr, error: &io::Error) -> Failure {
    let is_in = |directory: PathBuf| directory.join(program).exists();
    let is_found = program.as_bytes().contains(&b'/')
        || env::var_os("PATH").is_some_and(|path| env::split_paths(&path).any(is_in));
    if error.kind() == io::ErrorKind::NotFound && !is_found {
        return Failure::lacking(format!("{}: command not found in PATH", program.display()));
    }
    Failure::lacking(format!("{}: {error}", program.display()))
}

/// Checks that a file can be written: after the start of the program an error could not be reported.
///
/// # Errors
/// Neither the file nor a new one in its directory can be written.
fn check_writable(file: &Path) -> Result<(), Failure> {
    let parent = file.parent().filter(|parent| !parent.as_os_str().is_empty());
    let place = if file.exists() { file } else { parent.unwrap_or_else(|| Path::new(".")) };
    rustix::fs::access(place, rustix::fs::Access::WRITE_OK)
        .map_err(|error| Failure::work(format!("{}: {error}", file.display())))
}

/// Command of a program, and the directory with the library.
struct Prepared {
    command: Command,
    directory: Directory,
}

/// Returns the command of the program, with flue's library before the system's.
///
/// # Errors
/// The library cannot be placed there, or the loader would ignore it.
pub fn command(library: &Path, program: &OsStr) -> Result<Command, Failure> {
    prepare(library, program).map(|prepared| prepared.command)
}

/// As [`command`], with the files of a RoCE device on kernel sockets.
///
/// # Errors
/// As [`command`]; the files cannot be written, or their library is missing.
pub fn command_with_files(library: &Path, program: &OsStr) -> Result<Command, Failure> {
    let Prepared { mut command, directory } = prepare(library, program)?;
    add_files(&mut command, &directory, library, &AdapterOptions::default())?;
    Ok(command)
}

fn prepare(library: &Path, program: &OsStr) -> Result<Prepared, Failure> {
    check_mount(library)?;
    if let Some((file, obstacle)) = program::check(program, library)? {
        // Standard error may be closed.
        let _ = writeln!(
            io::stderr(),
            "flue: {}: {obstacle}: the program does not use flue; programs that it starts do",
            file.display()
        );
    }
    let directory = directory::prepare(library)?;
    let mut command = Command::new(program);
    command.env(LOADER_PATH, list([directory.path.as_os_str(), &variable(LOADER_PATH)]));
    command.env(LOADER_PRELOADS, preloads(&directory.preloads));
    // Those of an enclosing launcher.
    command.env_remove(settings::FILES);
    // The user's own option is last and takes precedence.
    let accepting = OsStr::new(ASAN_ACCEPTS_PRELOADS);
    command.env(ASAN_OPTIONS, list([accepting, &variable(ASAN_OPTIONS)]));
    Ok(Prepared { command, directory })
}

/// Returns the value of a variable, or an empty one.
fn variable(name: &str) -> OsString {
    env::var_os(name).unwrap_or_default()
}

/// Returns the list of preloaded objects: after the user's, which may replace functions.
fn preloads(objects: &[PathBuf]) -> OsString {
    let before = variable(LOADER_PRELOADS);
    list(iter::once(&*before).chain(objects.iter().map(AsRef::as_ref)))
}

/// Adds the files of the device, and the library that redirects their paths. Returns their directory.
///
/// # Errors
/// [`Failure::lacking`]: the library is missing, or its file system is mounted noexec. [`Failure::work`]: the files
/// cannot be written.
fn add_files(
    command: &mut Command,
    directory: &Directory,
    library: &Path,
    options: &AdapterOptions,
) -> Result<PathBuf, Failure> {
    let file = library.with_file_name(settings::PATHS_LIBRARY_FILE);
    let file = fs::canonicalize(&file).map_err(|error| {
        let failure = Failure::lacking(format!("library {}: {error}", file.display()));
        failure.with_hint(format!("copy {} to that directory", settings::PATHS_LIBRARY_FILE))
    })?;
    check_mount(&file)?;
    let mut objects = directory.preloads.clone();
    objects.push(directory.link(settings::PATHS_LIBRARY_FILE, &file)?);
    command.env(LOADER_PRELOADS, preloads(&objects));
    // Files of a node are removed after the program, since its identity is new in each run.
    let owner = options.transport.node().map(|_| this::id());
    let files = files::prepare(&directory.path, &files::Description::of(options), owner);
    let files = files.map_err(|error| {
        Failure::work(format!("files of the device in {}: {error}", directory.path.display()))
    })?;
    command.env(settings::FILES, &files);
    Ok(files)
}

/// Rejects a library that the loader cannot map.
///
/// # Errors
/// [`Failure::lacking`]: its file system is mounted noexec.
fn check_mount(library: &Path) -> Result<(), Failure> {
    let mount = rustix::fs::statvfs(library);
    if mount.is_ok_and(|it| it.f_flag.contains(StatVfsMountFlags::NOEXEC)) {
        return Err(Failure::lacking(format!(
            "library {}: file system mounted noexec",
            library.display()
        ))
        .with_hint("copy it to another file system and set --library FILE"));
    }
    Ok(())
}

/// Returns a colon-separated list of the loader, without empty elements.
fn list<'a>(elements: impl IntoIterator<Item = &'a OsStr>) -> OsString {
    let elements: Vec<_> = elements.into_iter().filter(|it| !it.is_empty()).collect();
    elements.join(OsStr::new(":"))
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use flue_adapter::Rtr;

    use super::*;

    #[derive(Parser, Debug)]
    struct Command {
        #[command(flatten)]
        run: RunArgs,
    }

    fn parse(line: &str) -> RunArgs {
        Command::try_parse_from(line.split_whitespace()).unwrap_or_else(|e| panic!("{e}")).run
    }

    #[test]
    fn arguments_after_program_are_passed_on() {
        let args = parse("flue --rtr read -- rping -s --pcap x");
        assert_eq!(args.program, ["rping", "-s", "--pcap", "x"]);
        assert_eq!(args.node.node.pcap, None);
        assert_eq!(parse("flue rping -s -- --rtr").program, ["rping", "-s", "--", "--rtr"]);
        assert!(Command::try_parse_from(["flue", "--mpa-crc", "off"]).is_err(), "no program");
    }

    #[test]
    fn unknown_option_is_not_the_program() {
        for (line, similar) in
            [("flue --ta x -- rping", "'--tap'"), ("flue --divice x", "'--device'")]
        {
            let error = Command::try_parse_from(line.split(' ')).unwrap_err();
            assert_eq!(error.kind(), clap::error::ErrorKind::UnknownArgument, "{line}");
            assert!(error.to_string().contains(similar), "{line}: {error}");
        }
        assert_eq!(parse("flue -- -program -s").program, ["-program", "-s"]);
    }

    #[test]
    fn absent_options_are_inherited() {
        let none = parse("flue true");
        assert!(none.overrides().eq([settings::TAP]));
        let default = AdapterOptions::default;
        assert_eq!(none.options(default(), None).unwrap(), default());
        let line = "flue --mpa-crc off --mpa-markers on --mpa-revision 1 --rtr read --rfc7306 on \
                    --rnr-timeout 0.5 --pcap /a --log /b --map 1.1.1.1=2.2.2.2 --map ::1=::2 --port-map 7=8 \
                    --control none --device iwarp --rendezvous-ports 4000-4015 true";
        let all = parse(line);
        assert_eq!(all.overrides().count(), 13);
        let options = all.options(default(), None).unwrap();
        assert_eq!(options.device, DeviceKind::Iwarp);
        assert_eq!(options.rendezvous_ports, "4000-4015".parse().ok());
        let json = concat!(
            r#"{"transport":{"sockets":{"pcap":"/a"}},"#,
            r#""mpa":{"crc":"off","markers":"on","rtr":"read","revision":"1"},"#
        );
        assert!(options.to_string().starts_with(json), "{options}");
        assert_eq!(options.to_string().parse::<AdapterOptions>().unwrap(), options);
        assert_eq!(none.options(options.clone(), None).unwrap(), options);
        // Alias for the former name.
        let former = parse("flue --receive-wait 0.5 true");
        assert_eq!(former.rnr_timeout, all.rnr_timeout);
        let mixed = parse("flue --rtr send --rnr-timeout 0 true").options(options.clone(), None);
        let mut expected = options;
        expected.mpa.accept.rtr = Some(Rtr::Send);
        expected.receive_wait = Some(Duration::ZERO);
        assert_eq!(mixed.unwrap(), expected);
    }

    #[test]
    fn node_options_require_a_tap() {
        let node = |line: &str| parse(line).node().map_err(|failure| failure.message);
        assert_eq!(node("flue --pcap a --control none true"), Ok(None));
        for line in ["--addr 10.0.0.1/24", "--drop 1", "--mtu 9000", "--map ::1=::2"] {
            let error = node(&format!("flue {line} true")).unwrap_err();
            assert!(error.starts_with("kernel sockets:"), "{line}: {error}");
        }
        let made = node("flue --tap a --addr 10.0.0.1/24 --drop 1 --pcap p true").unwrap().unwrap();
        assert_eq!((made.tap.as_str(), made.impairment.is_none()), ("a", false));
        assert!(made.pcap.unwrap().is_absolute() && made.mac.is_some() && made.seed.is_some());
        assert!(node("flue --tap a --progress manual true").unwrap_err().contains("--progress"));
        let double = "flue --tap a --map 1.1.1.1=2.2.2.2 --map 3.3.3.3=2.2.2.2 true";
        assert!(node(double).unwrap_err().contains("already mapped"));
    }

    #[test]
    fn list_keeps_its_elements() {
        let of = |elements: &[&str]| list(elements.iter().map(OsStr::new));
        assert_eq!(of(&["/run/flue", ""]), "/run/flue");
        assert_eq!(of(&["/run/flue", "/opt/lib:/x"]), "/run/flue:/opt/lib:/x");
    }
}
