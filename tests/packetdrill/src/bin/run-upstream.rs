//! Runner of packetdrill's own scripts in all modes, compared with the known differences.
//!
//!     cargo build -p flue-packetdrill
//!     cargo run -p flue-packetdrill --bin run-upstream -- --packetdrill PATH --scripts gtests/net/tcp
//!
//! flue's own scripts run the same way: `--scripts tests/packetdrill/scripts --differences /dev/null`.
//!
//! `differences.txt` lists the scripts that do not pass, with reasons. Scripts outside the list must pass, and
//! scripts in the list must fail: an unexpected pass is an error too.
//!
//! The scripts configure a kernel by sysctl, ip and tc. Stub commands of these names, in a directory of this
//! run, replace them. The sysctl changes that the adapter supports are read from the script and passed as
//! `--so_flags`.

use std::{
    collections::BTreeMap,
    env, fs, io,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::{Command, ExitCode, Stdio},
    sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

const USAGE: &str = "run-upstream --packetdrill PATH --scripts DIRECTORY \
                     [--mode MODE] [--ip ipv4|ipv6|ipv4-mapped-ipv6] [--only TEXT] \
                     [--so PATH] [--differences PATH] [--verbose]";
const MODES: [&str; 3] = ["host", "offload", "handover"];
/// Time limit of a script; the longest one computes for a few seconds.
const TIME_LIMIT: Duration = Duration::from_secs(60);
const WORKERS: usize = 2;
/// Commands that configure a kernel.
const SILENT: [&str; 5] = ["sysctl", "ip", "tc", "ethtool", "nstat"];

/// Address families of packetdrill's own runner, and the name suffixes of scripts for other families.
#[derive(Clone, Copy)]
enum Ip {
    V4,
    V6,
    Mapped,
}

impl Ip {
    fn parse(name: &str) -> Option<Self> {
        match name {
            "ipv4" => Some(Self::V4),
            "ipv6" => Some(Self::V6),
            "ipv4-mapped-ipv6" => Some(Self::Mapped),
            _ => None,
        }
    }

    fn arguments(self) -> &'static [&'static str] {
        match self {
            Self::V4 => &[
                "--ip_version=ipv4",
                "--local_ip=192.168.0.1",
                "--gateway_ip=192.168.0.1",
                "--netmask_ip=255.255.0.0",
                "--remote_ip=192.0.2.1",
            ],
            Self::V6 => &[
                "--ip_version=ipv6",
                "--mtu=1520",
                "--local_ip=fd3d:a0b:17d6::1",
                "--gateway_ip=fd3d:a0b:17d6:8888::1",
                "--remote_ip=fd3d:fa7b:d17d::1",
            ],
            Self::Mapped => &[
                "--ip_version=ipv4-mapped-ipv6",
                "--local_ip=192.168.0.1",
                "--gateway_ip=192.168.0.1",
                "--netmask_ip=255.255.0.0",
                "--remote_ip=192.0.2.1",
            ],
        }
    }

    /// The IPv6 header is 20 bytes longer, and the scripts' MSS is the same.
    fn flags(self) -> &'static str {
        match self {
            Self::V6 => ",mtu=1520",
            Self::V4 | Self::Mapped => "",
        }
    }

    fn excludes(self) -> &'static str {
        match self {
            Self::V6 => "v4.pkt",
            Self::V4 | Self::Mapped => "v6.pkt",
        }
    }
}

struct Options {
    packetdrill: PathBuf,
    scripts: PathBuf,
    modes: Vec<String>,
    ip: Ip,
    only: String,
    so: PathBuf,
    differences: PathBuf,
    verbose: bool,
}

impl Options {
    fn parse() -> Result<Self, String> {
        let exe = env::current_exe().map_err(|error| error.to_string())?;
        let mut values: BTreeMap<String, Vec<String>> = BTreeMap::new();
        let mut verbose = false;
        let mut arguments = env::args().skip(1);
        while let Some(argument) = arguments.next() {
            match argument.as_str() {
                "--verbose" => verbose = true,
                "--packetdrill" | "--scripts" | "--mode" | "--ip" | "--only" | "--so"
                | "--differences" => {
                    let value = arguments.next().ok_or(USAGE)?;
                    values.entry(argument).or_default().push(value);
                }
                _ => return Err(format!("{argument}: unknown argument\n{USAGE}")),
            }
        }
        let one = |name: &str| values.get(name).and_then(|given| given.last()).cloned();
        let path = |name: &str| one(name).map(PathBuf::from);
        let absolute = |path: PathBuf| {
            fs::canonicalize(&path).map_err(|error| format!("{}: {error}", path.display()))
        };
        let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("differences.txt");
        let so = exe.with_file_name("libflue_packetdrill.so");
        Ok(Self {
            packetdrill: absolute(path("--packetdrill").ok_or(USAGE)?)?,
            scripts: absolute(path("--scripts").ok_or(USAGE)?)?,
            modes: values.get("--mode").cloned().unwrap_or_else(|| MODES.map(String::from).into()),
            ip: one("--ip").map_or(Some(Ip::V4), |name| Ip::parse(&name)).ok_or(USAGE)?,
            only: one("--only").unwrap_or_default(),
            so: absolute(path("--so").unwrap_or(so))?,
            differences: path("--differences").unwrap_or(data),
            verbose,
        })
    }
}

/// Known result of some scripts in some modes.
struct KnownResult {
    scripts: String,
    modes: Vec<String>,
    expectation: Expectation,
}

enum Expectation {
    /// Fails for this reason: an intended difference.
    Differs(String),
    /// Fails because this feature is missing.
    Unsupported(String),
    /// Requires these flags.
    Flags(String),
    /// Passes, overriding earlier lines.
    Passes,
}

impl KnownResult {
    fn parse(line: &str) -> Option<Self> {
        let mut fields = line.splitn(4, '|').map(str::trim);
        let (scripts, modes) = (fields.next()?, fields.next()?);
        let (expectation, text) = (fields.next()?, fields.next().unwrap_or_default().to_owned());
        let modes: Vec<String> = modes.split_whitespace().map(String::from).collect();
        let good_modes = modes.iter().all(|mode| mode == "*" || MODES.contains(&mode.as_str()));
        let expectation = match expectation {
            "flags" => Expectation::Flags(text),
            "passes" => Expectation::Passes,
            "differs" if !text.is_empty() => Expectation::Differs(text),
            "unsupported" if !text.is_empty() => Expectation::Unsupported(text),
            _ => return None,
        };
        (good_modes && !scripts.is_empty()).then(|| Self {
            scripts: scripts.into(),
            modes,
            expectation,
        })
    }

    /// True if the line applies to the script. A directory means all scripts in it, `*` for all scripts.
    fn is_of(&self, script: &str, mode: &str) -> bool {
        let script_fits = self.scripts == "*"
            || self.scripts == script
            || (self.scripts.ends_with('/') && script.starts_with(&self.scripts));
        let mode = mode.split(':').next().unwrap_or(mode);
        script_fits && self.modes.iter().any(|of| of == "*" || of == mode)
    }
}

/// Lines of `differences.txt`. `@name | text` defines a reason that later lines refer to by name.
fn read_known(path: &Path) -> Result<Vec<KnownResult>, String> {
    let text = fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?;
    let mut reasons: BTreeMap<String, String> = BTreeMap::new();
    let mut known = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        if line.trim().is_empty() || line.starts_with('#') {
            continue;
        }
        if let Some((name, reason)) = line.split_once('|').filter(|_| line.starts_with('@')) {
            reasons.insert(name.trim().into(), reason.trim().into());
            continue;
        }
        let wrong = || format!("{}:{number}: {line}", path.display());
        let mut entry = KnownResult::parse(line).ok_or_else(wrong)?;
        if let Expectation::Differs(reason) = &mut entry.expectation
            && reason.starts_with('@')
        {
            *reason = reasons.get(reason).ok_or_else(wrong)?.clone();
        }
        known.push(entry);
    }
    Ok(known)
}

fn find_scripts(directory: &Path, found: &mut Vec<PathBuf>) -> io::Result<()> {
    for entry in fs::read_dir(directory)? {
        let path = entry?.path();
        if path.is_dir() {
            find_scripts(&path, found)?;
        } else if path.extension().is_some_and(|it| it == "pkt") {
            found.push(path);
        }
    }
    Ok(())
}

/// Directory of a run, with the commands that scripts call; removed at the end of the run.
struct StubDirectory(PathBuf);

impl StubDirectory {
    fn new() -> io::Result<Self> {
        let root = env::temp_dir().join(format!("flue-packetdrill-{}", std::process::id()));
        let stage = Self(root);
        for name in SILENT {
            stage.command(&format!("bin/{name}"), "exit 0")?;
        }
        // Scripts are one or two directories deep, and refer to `common` from there.
        for common in ["common", "deep/common"] {
            stage.command(&format!("{common}/defaults.sh"), "exit 0")?;
            let restore = "f=/tmp/sysctl_restore_$PACKETDRILL_PID.sh\n\
                           printf '#!/bin/sh\\nrm -f %s\\n' $f > $f && chmod +x $f";
            stage.command(&format!("{common}/set_sysctls.py"), restore)?;
        }
        fs::create_dir_all(stage.scripts())?;
        Ok(stage)
    }

    fn command(&self, path: &str, text: &str) -> io::Result<()> {
        let path = self.0.join(path);
        fs::create_dir_all(path.parent().unwrap_or(&self.0))?;
        fs::write(&path, format!("#!/bin/sh\n{text}\n"))?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755))
    }

    fn scripts(&self) -> PathBuf {
        self.0.join("deep/scripts")
    }

    fn path(&self) -> String {
        let inherited = env::var("PATH").unwrap_or_default();
        format!("{}:{inherited}", self.0.join("bin").display())
    }
}

impl Drop for StubDirectory {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Value of a script's opening comment `// key: value`.
fn comment<'a>(text: &'a str, key: &str) -> Option<&'a str> {
    text.lines().find_map(|line| line.strip_prefix("// ")?.strip_prefix(key)?.strip_prefix(": "))
}

/// Flags for the adapter, from a script's `flags` comment or its sysctls.
fn flags_of(text: &str) -> String {
    if let Some(flags) = comment(text, "flags") {
        return format!(",{flags}");
    }
    if !text.contains("defaults.sh") {
        return String::new();
    }
    // Settings of `defaults.sh`, and the changes by the scripts.
    let mut flags = String::from(",idle-restart=off,validation=off");
    let sysctls = [
        ("tcp_timestamps=0", ",timestamps=off"),
        ("tcp_ecn=1", ",ecn=on"),
        ("tcp_ecn=2", ",ecn=on"),
        ("tcp_congestion_control=reno", ",congestion=newreno"),
        ("tcp_slow_start_after_idle=1", ",idle-restart=on,validation=on"),
    ];
    for (sysctl, flag) in sysctls {
        if text.contains(sysctl) {
            flags.push_str(flag);
        }
    }
    flags
}

/// Runs one script. `Err` contains its output.
fn run(options: &Options, stage: &StubDirectory, script: &Path, flags: &str) -> Result<(), String> {
    let output = stage.0.join(format!("output-{:?}", std::thread::current().id()));
    let file = fs::File::create(&output).map_err(|error| error.to_string())?;
    let mut child = Command::new(&options.packetdrill)
        .args(options.ip.arguments())
        .arg("--send_omit_free")
        .args(["-D", "CMSG_LEVEL_IP=SOL_IP", "-D", "CMSG_TYPE_RECVERR=IP_RECVERR"])
        .args(["-D", "TFO_COOKIE=3021b9d889017eeb", "-D", "CODE=host_unreachable"])
        .arg(format!("--so_filename={}", options.so.display()))
        .arg(format!("--so_flags={flags}"))
        .arg(script)
        .env("LD_PRELOAD", &options.so)
        .env("PATH", stage.path())
        .current_dir(stage.scripts())
        .stdin(Stdio::null())
        .stdout(file.try_clone().map_err(|error| error.to_string())?)
        .stderr(file)
        .spawn()
        .map_err(|error| format!("{}: {error}", options.packetdrill.display()))?;
    let started = Instant::now();
    let status = loop {
        match child.try_wait() {
            Ok(Some(status)) => break Some(status),
            Ok(None) if started.elapsed() < TIME_LIMIT => {
                // No wait with a deadline is available here; a script takes a tenth of a second.
                std::thread::park_timeout(Duration::from_millis(5));
            }
            Ok(None) | Err(_) => {
                let _ = child.kill();
                let _ = child.wait();
                break None;
            }
        }
    };
    let said = fs::read(&output).unwrap_or_default();
    let said = String::from_utf8_lossy(&said).into_owned();
    match status {
        Some(status) if status.success() => Ok(()),
        Some(_) => Err(said),
        None => Err(format!("{said}\nstill running after {} s", TIME_LIMIT.as_secs())),
    }
}

struct Verdict {
    script: String,
    mode: String,
    result: Result<(), String>,
    /// Reason for an expected failure.
    known: Option<(&'static str, String)>,
}

impl Verdict {
    fn is_expected(&self) -> bool {
        self.result.is_ok() == self.known.is_none()
    }

    fn word(&self) -> &'static str {
        match (&self.result, &self.known) {
            (Ok(()), None) => "pass",
            (Ok(()), Some(_)) => "UNEXPECTED PASS",
            (Err(_), None) => "FAIL",
            (Err(_), Some((word, _))) => word,
        }
    }

    /// Most informative line: the one with the script's name, or the failed assertion.
    fn message(&self) -> String {
        let Err(said) = &self.result else { return String::new() };
        let telling = |line: &&str| line.contains(".pkt:") || line.contains("Error");
        let line = said.lines().find(telling).or_else(|| said.lines().last()).unwrap_or_default();
        line.rsplit(".pkt:").next().unwrap_or(line).chars().take(160).collect()
    }
}

fn run_all(
    options: &Options,
    known: &[KnownResult],
    stage: &StubDirectory,
) -> Result<Vec<Verdict>, String> {
    let mut scripts = Vec::new();
    find_scripts(&options.scripts, &mut scripts).map_err(|error| error.to_string())?;
    scripts.sort();
    let jobs: Vec<(PathBuf, String, String)> = scripts
        .iter()
        .filter_map(|path| {
            let name = path.strip_prefix(&options.scripts).ok()?.display().to_string();
            let fits = name.contains(&options.only) && !name.ends_with(options.ip.excludes());
            fits.then_some((path, name))
        })
        .flat_map(|(path, name)| {
            let text = fs::read_to_string(path).unwrap_or_default();
            let of_ip = comment(&text, "ip").and_then(Ip::parse);
            let fits = of_ip.is_none_or(|ip| ip.excludes() == options.ip.excludes());
            let modes = comment(&text, "modes").map(String::from);
            let runs = move |mode: &&String| {
                let named = |modes: &String| modes.split(' ').any(|of| of == mode.as_str());
                fits && modes.as_ref().is_none_or(named)
            };
            let modes = options.modes.iter().filter(runs);
            modes.map(|mode| (path.clone(), name.clone(), mode.clone())).collect::<Vec<_>>()
        })
        .collect();
    let next = AtomicUsize::new(0);
    let verdicts = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..WORKERS {
            scope.spawn(|| {
                while let Some((path, name, mode)) = jobs.get(next.fetch_add(1, Ordering::Relaxed))
                {
                    let verdict = judge(options, known, stage, path, name, mode);
                    verdicts.lock().expect("no worker panics").push(verdict);
                }
            });
        }
    });
    let mut verdicts = verdicts.into_inner().expect("no worker panics");
    verdicts.sort_by(|a, b| (&a.script, &a.mode).cmp(&(&b.script, &b.mode)));
    Ok(verdicts)
}

fn judge(
    options: &Options,
    known: &[KnownResult],
    stage: &StubDirectory,
    path: &Path,
    name: &str,
    mode: &str,
) -> Verdict {
    let text = fs::read_to_string(path).unwrap_or_default();
    let mut flags = format!("mode={mode}{}{}", options.ip.flags(), flags_of(&text));
    let mut reason = None;
    for known in known.iter().filter(|known| known.is_of(name, mode)) {
        match &known.expectation {
            Expectation::Differs(why) => reason = Some(("differs", why.clone())),
            Expectation::Unsupported(why) => reason = Some(("unsupported", why.clone())),
            Expectation::Flags(more) => {
                flags.push(',');
                flags.push_str(more);
            }
            Expectation::Passes => reason = None,
        }
    }
    let result = run(options, stage, path, &flags);
    if options.verbose
        && let Err(said) = &result
    {
        eprintln!("--- {name}, {flags}\n{said}");
    }
    Verdict { script: name.into(), mode: mode.into(), result, known: reason }
}

fn report(options: &Options, verdicts: &[Verdict]) -> bool {
    for verdict in verdicts {
        let Verdict { script, mode, known, .. } = verdict;
        let why = match (verdict.is_expected(), known) {
            (true, Some((_, why))) => why.clone(),
            _ => verdict.message(),
        };
        println!("{:<16}{mode:<10}{script}  {why}", verdict.word());
    }
    println!();
    for mode in &options.modes {
        let of_mode = || verdicts.iter().filter(|verdict| verdict.mode == *mode);
        let count = |word| of_mode().filter(|verdict| verdict.word() == word).count();
        println!(
            "{mode:<10}{} scripts: {} pass, {} differ, {} unsupported, {} fail, {} pass unexpectedly",
            of_mode().count(),
            count("pass"),
            count("differs"),
            count("unsupported"),
            count("FAIL"),
            count("UNEXPECTED PASS"),
        );
    }
    verdicts.iter().all(Verdict::is_expected)
}

fn main() -> ExitCode {
    let outcome = Options::parse().and_then(|options| {
        let known = read_known(&options.differences)?;
        let stage = StubDirectory::new().map_err(|error| error.to_string())?;
        let verdicts = run_all(&options, &known, &stage)?;
        Ok(report(&options, &verdicts))
    });
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::from(2)
        }
    }
}
