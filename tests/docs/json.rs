//! JSON documents: those of the commands are valid against `docs/reference/schema.json`, and the example of `flue perf`
//! has the keys of its documents.

use std::{
    collections::BTreeSet,
    fs,
    process::{Command, Output},
};

use flue_test_support::{
    needs::{Need, lacks},
    netns::Namespace,
    process::{Output as Lines, Process},
};
use serde_json::Value;

use super::root;

const FLUE: &str = env!("CARGO_BIN_EXE_flue");
const NEEDS: &[Need] = &[Need::Root, Need::Tun, Need::Tool("ip")];
const LIMIT: std::time::Duration = std::time::Duration::from_secs(60);

/// Validator of the keywords that the schema uses; another keyword is a finding.
struct Schema(Value);

impl Schema {
    fn read() -> Self {
        let text = fs::read_to_string(root().join("docs/reference/schema.json")).unwrap();
        Self(serde_json::from_str(&text).unwrap())
    }

    /// Returns the first violation of `rule` by a value.
    fn check(&self, rule: &Value, value: &Value) -> Result<(), String> {
        for (keyword, operand) in rule.as_object().expect("a schema is an object") {
            self.keyword(rule, keyword, operand, value)
                .map_err(|why| format!("{keyword} {operand}: {why}"))?;
        }
        Ok(())
    }

    fn keyword(
        &self,
        rule: &Value,
        keyword: &str,
        operand: &Value,
        value: &Value,
    ) -> Result<(), String> {
        let list = || operand.as_array().expect("a list");
        let wrong = || Err(value.to_string());
        let holds = |it: bool| if it { Ok(()) } else { wrong() };
        match keyword {
            "$schema" | "$defs" | "title" | "description" => Ok(()),
            "$ref" => {
                let path = operand.as_str().unwrap().trim_start_matches('#');
                self.check(self.0.pointer(path).expect("a definition"), value)
            }
            "oneOf" => {
                let outcomes: Vec<_> = list().iter().map(|rule| self.check(rule, value)).collect();
                match outcomes.iter().filter(|outcome| outcome.is_ok()).count() {
                    1 => Ok(()),
                    count => Err(format!("{count} alternatives: {outcomes:?}")),
                }
            }
            "type" => {
                let is = |name: &Value| match name.as_str().unwrap() {
                    "object" => value.is_object(),
                    "string" => value.is_string(),
                    "boolean" => value.is_boolean(),
                    "integer" => value.is_i64() || value.is_u64(),
                    "null" => value.is_null(),
                    other => panic!("type {other}"),
                };
                holds(operand.as_array().map_or_else(|| is(operand), |names| names.iter().any(is)))
            }
            "enum" => holds(list().contains(value)),
            "minimum" => holds(value.as_i64() >= operand.as_i64()),
            "maximum" => holds(value.as_i64() <= operand.as_i64()),
            "required" => {
                holds(list().iter().all(|key| value.get(key.as_str().unwrap()).is_some()))
            }
            "additionalProperties" => {
                let own = value.as_object().into_iter().flat_map(|it| it.keys());
                holds(own.into_iter().all(|key| rule["properties"].get(key).is_some()))
            }
            "properties" => {
                let present = operand.as_object().unwrap().iter();
                let mut present = present.filter_map(|(key, rule)| Some((rule, value.get(key)?)));
                present.try_for_each(|(rule, value)| self.check(rule, value))
            }
            // The two patterns of the schema: a name of lower-case letters, with or without a version.
            "pattern" => {
                let text = value.as_str().unwrap_or_default();
                let is_name = |text: &str| {
                    !text.is_empty() && text.bytes().all(|it| it == b'-' || it.is_ascii_lowercase())
                };
                let is_versioned = |text: &str| {
                    let parts = text.strip_prefix("flue.").and_then(|text| text.split_once('/'));
                    parts.is_some_and(|(name, version)| {
                        is_name(name) && version.parse::<u32>().is_ok()
                    })
                };
                holds(match operand.as_str().unwrap() {
                    "^[a-z-]+$" => is_name(text),
                    r"^flue\.[a-z-]+/[1-9][0-9]*$" => is_versioned(text),
                    other => panic!("pattern {other}"),
                })
            }
            other => panic!("keyword {other} is not supported"),
        }
    }
}

fn flue(host: &Namespace, line: &str) -> Output {
    let run = || Command::new(FLUE).args(line.split_whitespace()).output().unwrap();
    host.run(run)
}

/// Starts a server that exits after its client.
fn server(host: &Namespace, line: &str, ready: &str) -> Process {
    let mut command = Command::new(FLUE);
    command.args(line.split_whitespace());
    let mut server = Process::start(host, command, Lines::Lines);
    server.expect_line(ready, LIMIT);
    server
}

/// Documents of an output: one, or one per line.
fn documents(text: &[u8]) -> Vec<Value> {
    serde_json::Deserializer::from_slice(text).into_iter().map(|it| it.unwrap()).collect()
}

#[test]
fn documents_of_commands_are_valid() {
    if lacks(NEEDS) {
        return;
    }
    let (schema, host) = (Schema::read(), Namespace::new());
    host.ip("link set lo up");
    let check = |line: &str, documents: Vec<Value>| {
        assert!(!documents.is_empty(), "{line}: no document");
        for document in &documents {
            schema.check(&schema.0, document).unwrap_or_else(|why| panic!("{line}: {why}"));
            for seed in seeds(document) {
                assert!(seed.is_string() || seed.is_null(), "{line}: seed {seed}");
            }
        }
    };
    for line in [
        "doctor --json",
        "ss --json",
        "ss --no-such-option --json",
        "wire w0 w1 -D 1 --json",
        "lab --file /etc/passwd --seed 18446744073709551615 --json",
        "lab --transport kernel --file /etc/passwd --json",
        "perf write-bw --stack kernel 127.0.0.1 --json",
        "perf tcp-bw -R -b --json",
        "rping -c --transport kernel -a 127.0.0.1 --json",
        "serve --transport kernel -a 10.99.0.1 --json",
    ] {
        check(line, documents(&flue(&host, line).stdout));
    }
    let line = "nc 10.77.0.1 9 --host-addr 10.77.0.1/24 --json";
    check(line, documents(&flue(&host, line).stderr));
    for kind in ["write-bw", "tcp-rr"] {
        let options = "--stack kernel -n 20 --interval 0.1";
        let mut serving = server(&host, &format!("perf {kind} --stack kernel -1"), "listening");
        let line = format!("perf {kind} {options} 127.0.0.1 --json-stream");
        check(&line, documents(&flue(&host, &line).stdout));
        serving.expect_exit(0, LIMIT);
    }
    let mut serving = server(&host, "serve --transport kernel --echo -1 --json", "listening");
    flue(&host, "rping -c --transport kernel -a 127.0.0.1 -C 1");
    serving.expect_exit(0, LIMIT);
    let lines = serving.all_lines(LIMIT);
    check("serve", lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect());
}

/// Values of all keys `seed`.
fn seeds(value: &Value) -> Vec<&Value> {
    match value {
        Value::Object(map) => map
            .iter()
            .flat_map(|(key, value)| if key == "seed" { vec![value] } else { seeds(value) })
            .collect(),
        Value::Array(items) => items.iter().flat_map(seeds).collect(),
        _ => Vec::new(),
    }
}

/// Paths of the keys of a document; those of an array are those of its first element.
fn keys(value: &Value, path: &str, found: &mut BTreeSet<String>) {
    match value {
        Value::Object(map) => map.iter().for_each(|(key, value)| {
            let path = format!("{path}.{key}");
            keys(value, &path, found);
            found.insert(path);
        }),
        Value::Array(items) => {
            items.first().into_iter().for_each(|item| keys(item, &format!("{path}[]"), found));
        }
        _ => {}
    }
}

#[test]
fn example_of_perf_has_the_keys_of_its_documents() {
    if lacks(&[Need::Root, Need::Tool("ip")]) {
        return;
    }
    let page = fs::read_to_string(root().join("docs/tools/perf.md")).unwrap();
    let (_, example) = page.split_once("```json\n").unwrap();
    let example: Value = serde_json::from_str(example.split_once("```").unwrap().0).unwrap();
    let host = Namespace::new();
    host.ip("link set lo up");
    let mut serving = server(&host, "perf write-bw --stack kernel -1", "listening");
    let line = "perf write-bw --stack kernel -D 0.3 --interval 0.1 127.0.0.1 --json";
    let document = documents(&flue(&host, line).stdout).remove(0);
    serving.expect_exit(0, LIMIT);
    let keys_of = |value: &Value| {
        let mut found = BTreeSet::new();
        keys(value, "", &mut found);
        found
    };
    assert_eq!(keys_of(&document), keys_of(&example));
}
