//! Scripts of `scripts/`, in every mode that they list, through the interface that packetdrill uses.
//!
//! packetdrill is no Debian package, so these scripts are run by `interpreter`: the part of the language that
//! they use. It is stricter in two ways: an unexpected outbound packet fails the script, and so does a
//! timestamp outside the tolerance. The same scripts pass under packetdrill itself; see
//! `docs/contributing/packetdrill.md` to run it.
//!
//! Opening comments of a script: `// modes: offload handover` (default: all three), `// flags: key=value`.

mod interpreter;

use std::{fs, path::Path};

use interpreter::{parse, run};

const MODES: [&str; 3] = ["host", "offload", "handover"];

/// Value of a script's opening comment `// key: value`.
fn comment<'a>(text: &'a str, key: &str) -> Option<&'a str> {
    text.lines().find_map(|line| line.strip_prefix("// ")?.strip_prefix(key)?.strip_prefix(": "))
}

fn scripts() -> Vec<(String, String)> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts");
    let entries = fs::read_dir(&directory).expect("the scripts exist");
    let mut scripts: Vec<(String, String)> = entries
        .map(|entry| entry.expect("readable").path())
        .filter(|path| path.extension().is_some_and(|it| it == "pkt"))
        .map(|path| {
            let name = path.file_stem().expect("a name").to_string_lossy().into_owned();
            (name, fs::read_to_string(&path).expect("readable"))
        })
        .collect();
    scripts.sort();
    scripts
}

fn run_mode(mode: &str) {
    let only = std::env::var("FLUE_SCRIPT").unwrap_or_default();
    let mut failures = String::new();
    let mut count = 0;
    for (name, text) in scripts().iter().filter(|(name, _)| name.contains(&only)) {
        let modes = comment(text, "modes");
        if modes.is_some_and(|modes| !modes.split(' ').any(|of| of == mode)) {
            continue;
        }
        count += 1;
        let flags = comment(text, "flags").unwrap_or_default();
        let result = parse(text).and_then(|script| run(&script, &format!("mode={mode},{flags}")));
        if let Err(error) = result {
            failures += &format!("scripts/{name}.pkt:{error}\n");
        }
    }
    assert!(
        failures.is_empty(),
        "\n{failures}again: FLUE_SCRIPT=name cargo test -p flue-packetdrill --test scripts {mode}"
    );
    assert!(count > 0, "no script ran");
}

#[test]
fn host() {
    run_mode("host");
}

#[test]
fn offload() {
    run_mode("offload");
}

#[test]
fn handover() {
    run_mode("handover");
}

/// Every script cites the rule that it tests, and lists existing modes.
#[test]
fn scripts_cite_their_rule() {
    let scripts = scripts();
    assert!(scripts.len() >= 25, "{} scripts", scripts.len());
    for (name, text) in scripts {
        let opening = text.lines().take_while(|line| line.starts_with("//"));
        assert!(opening.clone().any(|line| line.contains("RFC ")), "{name}: no rule");
        for mode in comment(&text, "modes").unwrap_or_default().split_whitespace() {
            assert!(MODES.contains(&mode), "{name}: mode {mode}");
        }
    }
}

/// Checks that the interpreter detects errors: each of these scripts is wrong in one place.
#[test]
fn wrong_scripts_fail() {
    const OPENING: &str = "
0 socket(..., SOCK_STREAM, IPPROTO_TCP) = 3
+0 bind(3, ..., ...) = 0
+0 listen(3, 1) = 0
+0 < S 0:0(0) win 65535 <mss 1000,sackOK,nop,nop,nop,wscale 7>
+0 > S. 0:0(0) ack 1 <mss 1460,nop,nop,sackOK,nop,wscale 8>
+.1 < . 1:1(0) ack 1 win 512
+0 accept(3, ..., ...) = 4
";
    let right = "+0 write(4, ..., 1000) = 1000\n+0 > P. 1:1001(1000) ack 1\n+0 %{ assert tcpi_state == 1 }%\n";
    let check = |rest: &str| {
        parse(&format!("{OPENING}{rest}")).and_then(|script| run(&script, "mode=offload"))
    };
    check(right).unwrap();
    for (from, to, complaint) in [
        ("= 1000", "= 999", "expected 999"),
        ("> P. 1:", "> . 1:", "flags"),
        ("1:1001(1000)", "1:901(900)", "payload"),
        ("1:1001(1000)", "2:1002(1000)", "sequence number"),
        ("ack 1\n", "ack 2\n", "acknowledgment"),
        ("+0 > P", "+.1 > P", "time"),
        ("ack 1\n", "ack 1 win 7\n", "window"),
        ("ack 1\n", "ack 1 <nop,nop,TS val 1 ecr 1>\n", "options"),
        ("tcpi_state == 1", "tcpi_state == 4", "tcpi_state"),
        ("+0 > P. 1:1001(1000) ack 1", "", "no line expects"),
        ("write", "scribble", "scribble"),
    ] {
        let wrong = right.replacen(from, to, 1);
        let error = check(&wrong).expect_err(&wrong);
        assert!(error.contains(complaint), "{error}: not about {complaint}");
    }
}
