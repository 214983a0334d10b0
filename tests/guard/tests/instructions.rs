//! Instructions of each data path operation, compared with a snapshot.
//!
//! The program `hot-paths`, built in release mode, runs under callgrind, whose counts are independent of the
//! machine's load. A difference of more than [`TOLERANCE_PERCENT`] from `instructions.snap` fails, in either
//! direction: an unrecorded gain hides the next loss. Another compiler inlines differently; then only an
//! increase of more than [`FOREIGN_TOLERANCE_PERCENT`] fails. `FLUE_BLESS=1` updates the snapshot.

use std::{
    collections::BTreeMap,
    env,
    fmt::Write as _,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use flue_test_support::needs::{Need, lacks};

/// Tolerance for differences of inlining and layout between builds.
const TOLERANCE_PERCENT: f64 = 3.0;
/// Tolerance for another compiler or tool than the snapshot's.
const FOREIGN_TOLERANCE_PERCENT: f64 = 25.0;
const SNAPSHOT: &str = "instructions.snap";
const UPDATE: &str = "FLUE_BLESS=1 cargo test -p flue-guard --test instructions";

/// Costs by name, and the versions of the tools that counted them.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
struct Snapshot {
    tools: Vec<String>,
    /// Instructions of one operation.
    instructions: BTreeMap<String, u64>,
}

impl Snapshot {
    fn parse(text: &str) -> Self {
        let mut snapshot = Self::default();
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            if let Some(tool) = line.strip_prefix("by ") {
                snapshot.tools.push(tool.to_owned());
            } else if let Some((name, count)) = line.split_once(' ') {
                let count = count.trim().parse().expect("a count of instructions");
                snapshot.instructions.insert(name.to_owned(), count);
            }
        }
        snapshot
    }

    fn text(&self) -> String {
        let mut text = format!(
            "# Instructions of one operation on the data path, as tests/instructions.rs counts them.\n# {UPDATE}\n"
        );
        self.tools.iter().for_each(|tool| text += &format!("by {tool}\n"));
        for (name, count) in &self.instructions {
            text += &format!("{name:32} {count:9}\n");
        }
        text
    }
}

/// Table with a row for each operation, and the failures.
fn compare(kept: &Snapshot, counted: &Snapshot) -> (String, Vec<String>) {
    let is_foreign = kept.tools != counted.tools;
    let mut table = format!("{:32} {:>9} {:>9}\n", "instructions of", "snapshot", "now");
    let mut wrong = Vec::new();
    for (name, now) in &counted.instructions {
        let Some(before) = kept.instructions.get(name) else {
            writeln!(table, "{name:32} {:>9} {now:9}", "-").expect("write to a String");
            wrong.push(format!("{name} is not in the snapshot"));
            continue;
        };
        let percent = (*now as f64 / *before as f64 - 1.0) * 100.0;
        writeln!(table, "{name:32} {before:9} {now:9} {percent:+7.2} %")
            .expect("write to a String");
        let is_over = match is_foreign {
            true => percent > FOREIGN_TOLERANCE_PERCENT,
            false => percent.abs() > TOLERANCE_PERCENT,
        };
        if is_over {
            wrong.push(format!("{name}: {before} before, {now} now, {percent:+.2} %"));
        }
    }
    let gone = kept.instructions.keys().filter(|name| !counted.instructions.contains_key(*name));
    wrong.extend(gone.map(|name| format!("{name} is no longer counted")));
    if is_foreign {
        writeln!(
            table,
            "snapshot by {:?}, now {:?}: only losses above {FOREIGN_TOLERANCE_PERCENT} % fail",
            kept.tools, counted.tools
        )
        .expect("write to a String");
    }
    (table, wrong)
}

/// Standard output of a command.
fn output(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?} exited with {}: {errors}", output.status);
    String::from_utf8(output.stdout).expect("its output is UTF-8")
}

fn version(program: &str) -> String {
    output(Command::new(program).arg("--version")).trim().to_owned()
}

/// Builds `hot-paths` in release mode.
fn build() -> PathBuf {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().expect("it is in `target`");
    let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    output(
        Command::new(cargo)
            .current_dir(env!("CARGO_MANIFEST_DIR"))
            .args([
                "build",
                "--release",
                "--locked",
                "--quiet",
                "--bin",
                "hot-paths",
                "--target-dir",
            ])
            .arg(target),
    );
    target.join("release/hot-paths")
}

/// Instructions per operation of each case.
fn count(program: &Path) -> BTreeMap<String, u64> {
    let directory =
        Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("callgrind.{}", std::process::id()));
    fs::create_dir_all(&directory).expect("the directory can be created");
    let dump = directory.join("out");
    let printed = output(
        Command::new("valgrind")
            .args(["-q", "--tool=callgrind", "--collect-atstart=no"])
            .args(["--toggle-collect=*guard_measured*", "--dump-after=*guard_case_ends*"])
            .arg(format!("--callgrind-out-file={}", dump.display()))
            .arg(program),
    );
    let case = |(number, line): (usize, &str)| {
        let (name, operations) = line.split_once(' ').expect("a name and a number");
        let operations: u64 = operations.parse().expect("a number of operations");
        let text = fs::read_to_string(format!("{}.{}", dump.display(), number + 1))
            .unwrap_or_else(|error| panic!("no dump of {name}: {error}"));
        let total = text.lines().find_map(|line| line.strip_prefix("totals: "));
        let total: u64 = total.and_then(|total| total.parse().ok()).expect("a dump has a total");
        assert!(total > 0, "no instruction of {name} was counted");
        (name.to_owned(), total.div_ceil(operations))
    };
    let counted = printed.lines().enumerate().map(case).collect();
    fs::remove_dir_all(&directory).expect("the test owns the directory");
    counted
}

#[test]
fn hot_paths_match_the_snapshot() {
    if lacks(&[Need::Tool("valgrind")]) {
        return;
    }
    if !cfg!(target_arch = "x86_64") {
        println!("skipped: the snapshot is x86-64's");
        return;
    }
    let tools = vec![version("rustc"), version("valgrind")];
    let counted = Snapshot { tools, instructions: count(&build()) };
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(SNAPSHOT);
    if env::var_os("FLUE_BLESS").is_some() {
        fs::write(&path, counted.text()).expect("the snapshot can be written");
    }
    let kept = Snapshot::parse(&fs::read_to_string(&path).expect("the snapshot exists"));
    let (table, wrong) = compare(&kept, &counted);
    println!("{table}");
    assert!(wrong.is_empty(), "\n{table}\n{}\n\nif intended: {UPDATE}", wrong.join("\n"));
}

#[test]
fn differences_from_the_snapshot_are_found() {
    let snapshot = |tool: &str, counts: &[(&str, u64)]| Snapshot {
        tools: vec![tool.into()],
        instructions: counts.iter().map(|(name, count)| ((*name).into(), *count)).collect(),
    };
    let kept = snapshot("rustc 1", &[("classify", 1000), ("cq", 1000), ("gone", 1)]);
    assert_eq!(Snapshot::parse(&kept.text()), kept);
    let wrong = |counted: &Snapshot| compare(&kept, counted).1;
    let near = [("classify", 1029), ("cq", 971), ("gone", 1)];
    assert_eq!(wrong(&snapshot("rustc 1", &near)), [""; 0]);
    let far = [("classify", 1031), ("cq", 969), ("new", 1)];
    assert_eq!(wrong(&snapshot("rustc 1", &far)).len(), 4);
    let foreign = [("classify", 1240), ("cq", 500), ("gone", 1)];
    assert_eq!(wrong(&snapshot("rustc 2", &foreign)), [""; 0]);
    let twice = [("classify", 2000), ("cq", 1000), ("gone", 1)];
    assert_eq!(wrong(&snapshot("rustc 2", &twice)).len(), 1);
}
