//! Command blocks of the front page and the guide, and the examples of the help texts.
//!
//! Each `sh` block follows a comment: `<!-- run: namespace -->`, or `<!-- not run: REASON -->`. A block runs in bash,
//! in network, mount and process namespaces of its own and an empty directory. Its first failing command fails it. A
//! line that ends with `&` starts a server: the next line runs when that listens.

use std::{
    collections::BTreeMap,
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::Mutex,
    thread,
};

use flue_test_support::{
    flue::Scratch,
    needs::{Need, find_tool, lacks},
};

use super::root;

/// Pages, and directories of pages, whose blocks run.
const PAGES: [&str; 4] = ["README.md", "docs/README.md", "docs/guide", "docs/tools"];
/// Time limit of a block, in seconds.
const LIMIT_SECONDS: &str = "120";
/// Number of blocks that run concurrently: they mostly wait.
const LANES: usize = 3;
const NEEDS: &[Need] =
    &[Need::Root, Need::Tun, Need::Tool("unshare"), Need::Tool("ip"), Need::Tool("bash")];
/// Programs of blocks that are not part of every system. A block is skipped, or fails in CI, if one is missing.
const PROGRAMS: [&str; 16] = [
    "ib_write_bw",
    "ib_send_lat",
    "ibv_devinfo",
    "ibv_rc_pingpong",
    "ucx_perftest",
    "rping",
    "rstream",
    "iperf3",
    "tshark",
    "tgtd",
    "iscsi-inq",
    "qemu-io",
    "nc",
    "jq",
    "curl",
    "rdma_client",
];
/// Commands whose examples do not run, with the reason.
const NOT_RUN: &[(&str, &str)] = &[
    ("bench", "takes minutes"),
    ("judge", "needs a peer"),
    ("man-pages", "needs man(1)"),
    ("top", "needs a terminal"),
];
/// Commands whose examples need a connection of port 7174 between the nodes flue0 and flue1.
const WITH_CONNECTION: [&str; 5] = ["capture", "metrics", "offload", "ss", "upload"];
const CONNECTION: &str = "\
ip link add br0 type bridge && ip link set br0 up
flue rping -s -q --bridge br0 &
flue rping -c -q -a 10.77.0.2 --bridge br0 --tap flue1 --addr 10.77.0.3/24 &
";
/// Texts in the output of blocks, by page and a command of the block.
const EXPECTED: &[(&str, &str, &[&str])] = &[
    ("README.md", "flue lab", &["kernel sockets", "SHA-256", "RDMA Write", "RDMA Read"]),
    ("README.md", "ib_write_bw", &["Transport type : IB", " 65536      5000 "]),
    (
        "docs/guide/quick-start.md",
        "ibv_devinfo",
        &["hca_id:\tflue0", "InfiniBand (0)", "PORT_ACTIVE", "ping data: rdma-ping-9"],
    ),
    // The line about the disconnect event may be missing: rping exits without its thread for events, which prints it.
    ("docs/guide/quick-start.md", "--drop 1", &["ping data: rdma-ping-9"]),
    (
        "docs/guide/quick-start.md",
        "tshark",
        &["MPA Request Frame", "MPA Reply Frame", "Send", "Read Request"],
    ),
    (
        "docs/guide/verbs.md",
        "--verbose",
        &["flue: device used: processes=1 queue_pairs=2 connections=2"],
    ),
    ("docs/guide/verbs-connect.md", "ib_write_bw", &["Transport type : IB", " 65536      5000 "]),
    (
        "docs/guide/verbs-connect.md",
        "ibv_rc_pingpong",
        &["InfiniBand (0)", "RoCE v2", "8192000 bytes"],
    ),
    ("docs/guide/verbs-connect.md", "ucx_perftest", &["Final:"]),
    ("docs/guide/verbs-connect.md", "ucx_info", &["rc_verbs", "flue0:1"]),
    ("docs/guide/rsockets.md", "LD_PRELOAD", &["flue: device used", "receiver"]),
    ("docs/guide/verbs-recipes.md", "iscsi-inq", &["IET", "read 262144/262144"]),
    ("docs/tools/ss.md", "flue upload", &["Offloaded to InHost in"]),
    ("docs/tools/perf.md", "tcp-rr", &["\"schema\":", "\"verified\":"]),
    ("docs/tools/serve.md", "rdma_client", &["rdma_client: end 0"]),
    ("flue help capture", "stop", &["flue1.pcapng: started", " frames"]),
    ("flue help perf", "write-bw", &["RDMA Write, bandwidth", "half round trip"]),
    ("flue help rping", "rping", &["ping data: rdma-ping-9"]),
    ("flue help serve", "rdma_client", &["rdma_client: end 0"]),
    ("flue help nc", "received", &[" bytes sent, 0 received"]),
    ("flue help upload", "upload", &["Offloaded to InHost in"]),
    ("docs/tools/wire.md", "iperf3", &["receiver", "iperf Done."]),
];

/// A block of a page.
#[derive(Clone)]
struct Block {
    page: String,
    line: usize,
    /// The preceding comment, if any.
    comment: String,
    commands: String,
}

/// Pages with their text.
pub(super) fn pages() -> Vec<(String, String)> {
    let mut pages = Vec::new();
    for page in PAGES {
        let path = root().join(page);
        let files: Vec<PathBuf> = match path.is_dir() {
            true => fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()).collect(),
            false => vec![path],
        };
        for file in files {
            let shown = file.strip_prefix(root()).unwrap().display().to_string();
            pages.push((shown, fs::read_to_string(file).unwrap()));
        }
    }
    pages.sort();
    pages
}

fn blocks() -> Vec<Block> {
    let mut blocks = Vec::new();
    for (page, text) in pages() {
        let mut before = "";
        let mut open: Option<Block> = None;
        for (line, content) in (1..).zip(text.lines()) {
            match (&mut open, content) {
                (None, "```sh") => {
                    let (page, comment) = (page.clone(), before.to_owned());
                    open = Some(Block { page, line, comment, commands: String::new() });
                }
                (Some(_), "```") => blocks.extend(open.take()),
                (Some(block), _) => block.commands += &format!("{content}\n"),
                (None, _) => {}
            }
            before = content;
        }
    }
    blocks
}

/// Examples of the help texts, a block for each command.
fn examples() -> Vec<Block> {
    let command = flue::cli::command();
    let shown = command.get_subcommands().filter(|it| !it.is_hide_set());
    let of = |command: &clap::Command| {
        let name = command.get_name();
        let text = command.get_before_long_help()?.to_string();
        let lines = text.lines().skip(1).map(|line| line.strip_prefix("  ").unwrap_or(line));
        let own: String = lines.map(|line| format!("{line}\n")).collect();
        let before = if WITH_CONNECTION.contains(&name) { CONNECTION } else { "" };
        let comment = match NOT_RUN.iter().find(|(other, _)| *other == name) {
            Some((_, reason)) => format!("<!-- not run: {reason} -->"),
            None => "<!-- run: namespace -->".into(),
        };
        let (page, commands) = (format!("flue help {name}"), format!("{before}{own}"));
        Some(Block { page, line: 1, comment, commands })
    };
    shown.filter_map(of).collect()
}

/// `REASON` of `<!-- KIND: REASON -->`.
fn marked<'a>(block: &'a Block, kind: &str) -> Option<&'a str> {
    let text = block.comment.strip_prefix("<!-- ")?.strip_suffix(" -->")?;
    text.strip_prefix(kind)?.strip_prefix(": ").filter(|reason| !reason.is_empty())
}

#[test]
fn every_block_is_marked() {
    let blocks = blocks();
    for block in &blocks {
        let Block { page, line, comment, .. } = block;
        let is_marked =
            marked(block, "run") == Some("namespace") || marked(block, "not run").is_some();
        assert!(
            is_marked,
            "{page}:{line}: no `<!-- run: namespace -->` or `<!-- not run: REASON -->`: {comment}"
        );
    }
    assert!(blocks.len() > 25, "{} blocks", blocks.len());
    let examples = examples();
    assert!(examples.len() > 12, "{} commands with examples", examples.len());
    for (name, _) in NOT_RUN {
        assert!(examples.iter().any(|it| it.page.ends_with(&format!(" {name}"))), "{name}");
    }
    for (page, command, _) in EXPECTED {
        let is_of = |block: &&Block| block.page == *page && block.commands.contains(command);
        assert!(
            blocks.iter().chain(&examples).any(|block| is_of(&block)),
            "{page}: no block with {command}"
        );
    }
}

/// Shell functions of a block. `cargo` builds nothing: flue is in the path. A listener is a kernel socket, a node's
/// socket, or a TAP of a wire.
const PRELUDE: &str = r#"
set -euo pipefail
cargo() { if [[ $1 == run ]]; then shift; while [[ $1 != -- ]]; do shift; done; shift; flue "$@"; fi; }
everywhere() { "$@"; ip -all netns exec "$@"; }
listeners() {
    everywhere cat /proc/net/tcp /proc/net/tcp6 | awk '$4 == "0A"' | wc -l
    flue ss -aHO 2>/dev/null | grep -c LISTEN || true
    everywhere ip -br link | grep -c 'UP\|UNKNOWN' || true
}
ready() {
    local try before=$1
    for try in {1..600}; do
        if [[ $(listeners) != "$before" ]]; then sleep 0.3; return; fi
        if ! kill -0 "$!" 2>/dev/null; then return; fi
        sleep 0.05
    done
    echo "no listener after 30 s" >&2
    return 1
}
"#;

/// The script of a block: after a line that starts a server, it waits for the listener.
fn script(commands: &str) -> String {
    let mut script = PRELUDE.to_owned();
    let commands = commands.replace("\\\n", " ");
    for line in commands.lines() {
        let command = line.split("  #").next().unwrap_or_default().trim_end();
        match command.ends_with('&') && !command.ends_with("&&") {
            true => script += &format!("before=$(listeners)\n{command}\nready \"$before\"\n"),
            false => script += &format!("{line}\n"),
        }
    }
    script
}

/// Runs a block and returns its output, or the reason why it failed.
fn run(block: &Block) -> Result<String, String> {
    let scratch = Scratch::new();
    let path =
        format!("{}:{}", flue_directory().display(), std::env::var("PATH").unwrap_or_default());
    let home = scratch.file("home");
    fs::create_dir_all(home.join("work")).unwrap();
    fs::create_dir_all(home.join("run")).unwrap();
    fs::set_permissions(home.join("run"), fs::Permissions::from_mode(0o700)).unwrap();
    // Named namespaces and the control sockets of targets are files in /run, so the block has its own /run.
    let start =
        "ip link set lo up && mount -t tmpfs none /run && mkdir /run/netns && exec bash -c \"$1\"";
    let mut command = Command::new("timeout");
    command.args([
        "--signal=KILL",
        LIMIT_SECONDS,
        "unshare",
        "--net",
        "--mount",
        "--pid",
        "--fork",
        "--kill-child",
    ]);
    command.args(["--mount-proc", "bash", "-c", start, "block", &script(&block.commands)]);
    command.env("PATH", path).env("HOME", &home).env("XDG_RUNTIME_DIR", home.join("run"));
    command.current_dir(home.join("work")).stdin(Stdio::null());
    let output = command.output().map_err(|error| error.to_string())?;
    let (out, err) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    let text = format!("{out}{err}");
    if !output.status.success() {
        return Err(format!("{}:\n{text}", output.status));
    }
    Ok(text)
}

/// Directory of the command and the library.
fn flue_directory() -> &'static Path {
    Path::new(env!("CARGO_BIN_EXE_flue")).parent().unwrap()
}

/// True if a program of the block is missing.
fn lacks_program(block: &Block) -> bool {
    let is_missing =
        |program: &&&str| block.commands.contains(**program) && find_tool(program).is_none();
    PROGRAMS.iter().find(is_missing).is_some_and(|program| lacks(&[Need::Tool(program)]))
}

/// Runs a block and compares its output.
fn check(block: &Block) -> Result<(), String> {
    let output = run(block)?;
    let is_of = |(page, command, _): &&(&str, &str, &[&str])| {
        *page == block.page && block.commands.contains(command)
    };
    let texts = EXPECTED.iter().filter(is_of).flat_map(|(_, _, texts)| *texts);
    match texts.into_iter().find(|text| !output.contains(**text)) {
        Some(text) => Err(format!("no \"{text}\" in:\n{output}")),
        None => Ok(()),
    }
}

#[test]
fn shown_programs_have_no_hidden_lines() {
    let libraries = fs::read_dir(root().join("docs/libraries")).unwrap();
    let pages = libraries.map(|entry| entry.unwrap().path()).chain([root().join("README.md")]);
    for page in pages {
        let text = fs::read_to_string(&page).unwrap();
        for program in text.split("```rust").skip(1) {
            let program = program.split("```").next().unwrap();
            // rustdoc compiles such lines and hides them; a page of Markdown shows them.
            let is_hidden = |line: &str| line == "#" || line.starts_with("# ");
            assert!(!program.lines().any(is_hidden), "{}: {program}", page.display());
        }
    }
}

#[test]
fn blocks_run() {
    if lacks(NEEDS) {
        return;
    }
    let mut blocks = [blocks(), examples()].concat();
    blocks.retain(|block| marked(block, "run").is_some() && !lacks_program(block));
    let (queue, failures) = (Mutex::new(blocks.iter()), Mutex::new(BTreeMap::new()));
    let lane = || {
        while let Some(block) = { queue.lock().unwrap().next() } {
            if let Err(reason) = check(block) {
                let place = format!("{}:{}", block.page, block.line);
                failures.lock().unwrap().insert(place, reason);
            }
        }
    };
    thread::scope(|scope| (0..LANES).for_each(|_| drop(scope.spawn(lane))));
    let failures = failures.into_inner().unwrap();
    let report: String =
        failures.iter().map(|(place, reason)| format!("{place}: {reason}\n")).collect();
    assert!(failures.is_empty(), "\n{report}");
}
