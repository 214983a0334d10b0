//! Comparison of every structure, member and constant with the header, by a C compiler; and of the exported symbols.
//!
//! Needs `cc` and `nm`. Without them the tests print that and pass, but fail in CI.

use std::{env, fmt::Write as _, fs, path::PathBuf, process::Command};

use flue_ndkpi::abi::{constants, layouts};
use flue_test_support::needs::{Need, lacks};

/// Members that are unions in C, and the member that the crate declares for each.
const UNIONS: [(&str, &str); 1] = [("NDK_SGE.VirtualAddress", "LogicalAddress.QuadPart")];

/// Returns a C file that compiles only if the header agrees with the crate.
fn assertions() -> String {
    let mut code = String::from("#include <ndkpi.h>\n");
    let mut count = 0;
    let mut assert = |what: String| {
        count += 1;
        writeln!(code, "_Static_assert({what}, \"differs\");").unwrap();
    };
    for layout in layouts() {
        let name = layout.name;
        assert(format!("sizeof({name}) == {}", layout.size));
        for member in layout.members {
            let own = (format!("{name}.{}", member.name), member.name);
            let others = UNIONS.iter().filter(|(path, _)| *path == own.0).map(|(_, other)| *other);
            for path in [own.1].into_iter().chain(others) {
                assert(format!("offsetof({name}, {path}) == {}", member.offset));
                if member.size > 0 {
                    assert(format!("sizeof((({name} *)0)->{path}) == {}", member.size));
                }
            }
        }
    }
    for (name, value) in constants() {
        // Compare as signed: statuses are signed, flags are not.
        assert(format!("(long long){name} == {value}LL"));
    }
    assert!(count > 400, "only {count}");
    code
}

#[test]
fn header_agrees_with_the_crate() {
    if lacks(&[Need::Tool("cc")]) {
        return;
    }
    let directory = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
    let source = directory.join("layout.c");
    fs::write(&source, assertions()).unwrap();
    for arguments in [&["-std=c11", "-pedantic"][..], &["-std=gnu99"]] {
        let mut compile = Command::new("cc");
        compile.args(["-Wall", "-Wextra", "-Werror", "-fsyntax-only"]).args(arguments);
        compile.arg("-I").arg(concat!(env!("CARGO_MANIFEST_DIR"), "/include")).arg(&source);
        let compiled = compile.output().unwrap();
        let errors = String::from_utf8_lossy(&compiled.stderr);
        assert!(compiled.status.success(), "{arguments:?}: {errors}");
    }
}

#[test]
fn library_exports_all_functions_of_the_header() {
    if lacks(&[Need::Tool("nm")]) {
        return;
    }
    let test = env::current_exe().unwrap();
    let library = test.parent().unwrap().join("libflue_ndkpi.so");
    let listed = Command::new("nm").args(["-D", "--defined-only"]).arg(library).output().unwrap();
    let listed = String::from_utf8(listed.stdout).unwrap();
    let mut exported: Vec<_> = listed.lines().filter_map(|line| line.rsplit(' ').next()).collect();
    exported.sort_unstable();
    let header = include_str!("../include/ndkpi.h");
    let mut declared: Vec<_> = header
        .lines()
        .filter(|line| !line.starts_with([' ', '/', '*']))
        .filter_map(|line| line.split('(').next()?.split([' ', '*']).next_back())
        .filter(|word| word.starts_with("FlueNdk"))
        .collect();
    declared.sort_unstable();
    assert_eq!(exported, declared);
    assert!(declared.len() >= 4);
}
