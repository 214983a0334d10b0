//! `flue judge` against siw's responder, with rping in the guest: the verdict for each rule.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;

use serde_json::Value;

use crate::bench::Bench;
use crate::guest::{ADDRESS, Siw};
use crate::{KERNEL, LIMIT, Row};

const PORT: u16 = 7174;

/// Cases that crash the kernel of the guest or end siw's listener: the connection ends before siw has reported it as
/// established, or a Send has several pieces without a byte. A name may end in `*`.
const CRASHES: &[&str] = &[
    "fpdu-crc-of-first",
    "startup-fin-behind-reply",
    "startup-cut-*",
    "startup-enhanced-word-cut",
    "startup-fpdu-behind-request",
    "startup-two-requests",
    "startup-silence-*",
    "startup-request-as-fpdu",
    "rdmap-terminate-as-first-fpdu",
    "untagged-empty-segments",
];

pub(crate) fn rows(siw: Siw, rows: &mut Vec<Row>) {
    let run = move |bench: &mut Bench| judge(bench, siw);
    rows.push(Row { siw, setup: KERNEL, what: "judge, responder".into(), run: Box::new(run) });
}

/// Runs the judge for the cases that siw survives, and writes the verdicts to target/siw/judge-VARIANT.md.
fn judge(bench: &mut Bench, siw: Siw) -> String {
    let end = bench.set_up(&KERNEL);
    let _server = bench.guest.start(&format!("while true; do rping -s -P -a {ADDRESS}; done"));
    bench.wait_for_guest(PORT);
    let listed = bench.flue(&end, "judge --list --json").all_lines(LIMIT);
    let listed: Value = serde_json::from_str(&listed).expect("a document");
    let names = listed["result"]["cases"].as_array().expect("cases").iter();
    let names = names.filter_map(|case| case["name"].as_str());
    let crashes = |name: &str| {
        CRASHES.iter().any(|it| it.strip_suffix('*').map_or(name == *it, |it| name.starts_with(it)))
    };
    let selected: Vec<String> =
        names.filter(|name| !crashes(name)).map(|name| format!("--only {name}")).collect();
    let line = format!(
        "judge {ADDRESS} --consumer rping --timeout 12 --seed 1 --json {}",
        selected.join(" ")
    );
    let output = bench.flue(&end, &line).all_lines(6 * LIMIT);
    let document: Value = serde_json::from_str(&output).expect("a document");
    assert!(document["result"].is_object(), "{}", document["error"]);
    let (text, counts) = table(&document["result"]);
    let file = bench.files().join(format!("judge-{}.md", siw.name()));
    fs::write(&file, text).expect("a writable directory");
    counts
        .iter()
        .map(|(verdict, count)| format!("{count} {verdict}"))
        .collect::<Vec<_>>()
        .join(", ")
}

/// Returns the verdicts as a table, and the number of each.
fn table(result: &Value) -> (String, BTreeMap<String, usize>) {
    let (mut text, mut counts) = (String::new(), BTreeMap::new());
    text.push_str("| rule | level | section | verdict | reason |\n|---|---|---|---|---|\n");
    for rule in result["rules"].as_array().expect("rules") {
        let field = |name: &str| rule[name].as_str().unwrap_or_default().replace('|', "\\|");
        let verdict = field("verdict").replace('_', " ");
        if field("reason") == "no case observes it" {
            continue;
        }
        *counts.entry(verdict.clone()).or_insert(0) += 1;
        let row = [field("id"), field("level"), field("section"), verdict, field("reason")];
        writeln!(text, "| {} |", row.join(" | ")).expect("write to a String");
    }
    (text, counts)
}
