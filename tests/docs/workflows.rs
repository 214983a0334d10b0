//! Shell steps of the GitHub action and of the workflows: bash parses them, and those of the action run.

use std::{
    fs,
    path::Path,
    process::{Command, Output},
};

use flue_test_support::{
    flue::Scratch,
    needs::{Need, lacks},
};
use serde_json::Value;

use super::root;

const FLUE: &str = env!("CARGO_BIN_EXE_flue");
const NEEDS: &[Need] = &[Need::Tool("bash"), Need::Tool("python3")];
/// Prints a YAML file as JSON.
const CONVERT: &str =
    "import json, sys, yaml; json.dump(yaml.safe_load(open(sys.argv[1])), sys.stdout)";

fn document(file: &str) -> Value {
    let output = Command::new("python3").args(["-c", CONVERT, file]).current_dir(root()).output();
    let output = output.expect("python3 starts");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{file}: python3-yaml reads it: {errors}");
    serde_json::from_slice(&output.stdout).expect(file)
}

/// Returns the scripts of all steps in a document.
fn scripts(document: &Value) -> Vec<&str> {
    match document {
        Value::Object(map) => {
            let own = map.get("run").and_then(Value::as_str);
            own.into_iter().chain(map.values().flat_map(scripts)).collect()
        }
        Value::Array(items) => items.iter().flat_map(scripts).collect(),
        _ => Vec::new(),
    }
}

#[test]
fn scripts_of_workflows_are_valid() {
    if lacks(NEEDS) {
        return;
    }
    for (file, least) in [("action.yml", 3), (".github/workflows/ci.yml", 8)] {
        let document = document(file);
        let scripts = scripts(&document);
        assert!(scripts.len() >= least, "{file}: {scripts:?}");
        for script in scripts {
            let output = Command::new("bash").args(["-n", "-c", script]).output().unwrap();
            let errors = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success() && errors.is_empty(), "{file}: {errors}\n{script}");
        }
    }
}

/// Runs a step as the runner does, with its environment and with `variables`.
fn run(step: &Value, home: &Path, variables: &[(&str, &str)]) -> Output {
    let mut command = Command::new("bash");
    command.args(["--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"].as_str().unwrap()]);
    command.env("HOME", home).env("GITHUB_ACTION_PATH", root());
    command.env("GITHUB_OUTPUT", home.join("output")).env("GITHUB_PATH", home.join("path"));
    command.env("RUNNER_OS", "Linux").env("RUNNER_ARCH", "X64").env_remove("ImageOS");
    command.current_dir(home).envs(variables.iter().copied());
    command.output().expect("bash starts")
}

// In the order of the runner: key of the cache, installation found in the cache, commands on the device.
#[test]
fn action_runs_its_commands_on_a_device() {
    if lacks(NEEDS) {
        return;
    }
    let action = document("action.yml");
    let steps = action["runs"]["steps"].as_array().unwrap();
    let with_script: Vec<&Value> = steps.iter().filter(|step| step["run"].is_string()).collect();
    let [sources, install, commands] = with_script[..] else { panic!("{steps:?}") };
    let scratch = Scratch::new();
    let home = scratch.file("home");
    fs::create_dir(&home).unwrap();
    let file = |name: &str| fs::read_to_string(home.join(name)).unwrap();
    let done = |output: &Output| {
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{errors}");
        errors
    };

    done(&run(sources, &home, &[]));
    let output = file("output");
    let key = output.trim().strip_prefix("key=flue-Linux-X64-").expect(&output);
    assert!(key.len() == 16 && key.bytes().all(|digit| digit.is_ascii_hexdigit()), "{key}");
    done(&run(sources, &home, &[]));
    assert_eq!(file("output"), output.repeat(2), "the key is that of the sources");

    let cache = home.join(".cache/flue/action/bin");
    fs::create_dir_all(&cache).unwrap();
    std::os::unix::fs::symlink(FLUE, cache.join("flue")).unwrap();
    done(&run(install, &home, &[]));
    let version = file("output").lines().last().unwrap().to_owned();
    assert!(version.starts_with("version=flue "), "{version}");
    assert_eq!(file("path").trim(), cache.display().to_string());

    let path = format!("{}:{}", cache.display(), std::env::var("PATH").unwrap());
    let text = "it's a \"test\"; $(false)";
    let script = format!("echo \"$LD_PRELOAD$LD_LIBRARY_PATH\"\ncat <<'END'\n{text}\nEND");
    let variables = [
        ("PATH", &*path),
        ("FLUE_ACTION_RUN", &script),
        ("FLUE_ACTION_DEVICE", action["inputs"]["device"]["default"].as_str().unwrap()),
        ("FLUE_ACTION_OPTIONS", "--verbose"),
    ];
    let ran = run(commands, &home, &variables);
    done(&ran);
    let said = String::from_utf8(ran.stdout).unwrap();
    let (libraries, rest) = said.split_once('\n').expect(&said);
    assert!(libraries.contains("flue"), "the libraries of flue: {said}");
    assert_eq!(rest.trim(), text);
    let mut failing = variables;
    failing[1].1 = "false | true\necho no";
    assert_eq!(run(commands, &home, &failing).status.code(), Some(1));
}
