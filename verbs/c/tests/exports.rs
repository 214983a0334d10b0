//! Comparison of the library's exports with the list of symbols, by the dynamic loader: each symbol under its versions
//! and without a version, and no symbol that is not listed.
//!
//! Requires `cc` and `nm`. Without them the tests are skipped, but fail in CI.

use std::{
    collections::BTreeSet,
    env,
    fmt::Write as _,
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::Command,
};

use flue_verbs_abi::{
    settings::LIBRARY_FILE,
    symbols::{
        PRIVATE, PRIVATE_VARIABLE, PRIVATE_VERSIONS, PrivateVersion, Symbol, symbols, versions,
    },
};

/// Returns the path of the library, which cargo builds with this test.
fn library() -> PathBuf {
    let test = env::current_exe().unwrap();
    test.parent().unwrap().join(LIBRARY_FILE)
}

fn lacks(what: &str) {
    assert!(env::var("CI").as_deref() != Ok("true"), "in CI no test is skipped: {what}");
    println!("skipped: {what}");
}

/// Runs a compiler or linker in `directory`. `None`: not installed.
fn cc(directory: &Path, arguments: &[&str]) -> Option<()> {
    let done = Command::new("cc").args(arguments).current_dir(directory).output().ok()?;
    assert!(done.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&done.stderr));
    Some(())
}

/// Returns the symbols that programs and providers of one version of the private interface bind.
fn references(private: &'static str) -> Vec<Symbol> {
    let is_of_release =
        |symbol: &Symbol| symbol.version == private || !symbol.version.contains("PRIVATE");
    symbols().filter(is_of_release).collect()
}

/// Builds a library of empty functions with the versions of the originals or none, and a program that is linked to it.
fn build_program(directory: &Path, references: &[Symbol], is_versioned: bool) -> Option<()> {
    let (mut stubs, mut program, mut script) = (String::new(), String::new(), String::new());
    for Symbol { name, .. } in references {
        let is_variable = *name == PRIVATE_VARIABLE;
        let kind = if is_variable { "char" } else { "void" };
        let (definition, reference) = if is_variable { ("", "") } else { ("(void) {}", "(void)") };
        writeln!(stubs, "{kind} {name}{definition};").unwrap();
        writeln!(program, "extern {kind} {name}{reference};").unwrap();
    }
    let names: Vec<_> =
        references.iter().map(|symbol| format!("(void *)&{}", symbol.name)).collect();
    writeln!(
        program,
        "void *all[] = {{{}}};\nint main(void) {{ return all[0] == 0; }}",
        names.join(",")
    )
    .unwrap();
    for (version, parent) in versions() {
        let of_version = references.iter().filter(|symbol| symbol.version == version);
        let names: String = of_version.map(|symbol| format!("{}; ", symbol.name)).collect();
        let names = if names.is_empty() { names } else { format!("global: {names}") };
        writeln!(script, "{version} {{ {names} }} {};", parent.unwrap_or_default()).unwrap();
    }
    for (name, text) in [("stubs.c", stubs), ("program.c", program), ("stubs.map", script)] {
        fs::write(directory.join(name), text).unwrap();
    }
    let map = if is_versioned { "-Wl,--version-script=stubs.map" } else { "-Wl,-z,now" };
    cc(
        directory,
        &["-shared", "-fPIC", "-Wl,-soname,libprobe.so", map, "stubs.c", "-o", "libprobe.so"],
    )?;
    // Otherwise the linker would bind `rpoll` and others to functions of the C library.
    cc(directory, &["-Wl,-z,now", "-fno-builtin", "program.c", "./libprobe.so", "-o", "program"])
}

/// Starts a program that binds the symbols of the public interface and of one version of the private one.
fn every_symbol_binds(private: &PrivateVersion, is_versioned: bool) {
    let references = references(private.name);
    assert!(references.len() > 200, "only {}", references.len());
    let of_private = references.iter().filter(|it| it.version == private.name).count();
    assert_eq!(of_private, PRIVATE.len() + 2, "with the variable and the registration");
    let name = format!("{}-{is_versioned}", private.name);
    let directory = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(&name);
    let _ = fs::remove_dir_all(&directory);
    fs::create_dir_all(directory.join("lib")).unwrap();
    if build_program(&directory, &references, is_versioned).is_none() {
        return lacks("cc not found: install gcc");
    }
    symlink(library(), directory.join("lib/libprobe.so")).unwrap();
    let mut command = Command::new(directory.join("program"));
    let ended = command.env("LD_LIBRARY_PATH", directory.join("lib")).output().unwrap();
    let text = String::from_utf8_lossy(&ended.stderr);
    assert!(ended.status.success() && text.is_empty(), "{name}: {}: {text}", ended.status);
}

#[test]
fn every_symbol_binds_under_its_version() {
    PRIVATE_VERSIONS.iter().for_each(|private| every_symbol_binds(private, true));
}

// References of a program that was linked to a library without versions.
#[test]
fn every_symbol_binds_without_a_version() {
    PRIVATE_VERSIONS.iter().for_each(|private| every_symbol_binds(private, false));
}

// NCCL resolves its functions this way.
#[test]
fn dlvsym_finds_every_symbol_under_each_of_its_versions_only() {
    let directory = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("dlvsym");
    fs::create_dir_all(&directory).unwrap();
    let rows = symbols().map(|it| format!("{{\"{}\", \"{}\"}},\n", it.name, it.version));
    let program = format!(
        "#define _GNU_SOURCE\n#include <dlfcn.h>\n#include <stdio.h>\n\
         static const char *const all[][2] = {{\n{}}};\n{DLVSYM_MAIN}",
        rows.collect::<String>()
    );
    fs::write(directory.join("dlvsym.c"), program).unwrap();
    if cc(&directory, &["dlvsym.c", "-o", "dlvsym", "-ldl"]).is_none() {
        return lacks("cc not found: install gcc");
    }
    let found = Command::new(directory.join("dlvsym")).arg(library()).output().unwrap();
    let text = String::from_utf8_lossy(&found.stdout);
    assert!(found.status.success() && text.is_empty(), "{}: {text}", found.status);
}

/// Prints symbols that are missing, and symbols that are found under a wrong version.
const DLVSYM_MAIN: &str = r#"
int main(int count, char **arguments)
{
    void *library = dlopen(arguments[1], RTLD_NOW);
    if (count != 2 || !library)
        return 2;
    for (unsigned i = 0; i < sizeof all / sizeof *all; i++) {
        if (!dlvsym(library, all[i][0], all[i][1]))
            printf("%s@%s is not found\n", all[i][0], all[i][1]);
        if (!dlsym(library, all[i][0]))
            printf("%s is not found\n", all[i][0]);
    }
    if (dlvsym(library, "rdma_create_id", "IBVERBS_1.1") || dlvsym(library, "ibv_reg_mr", "IBVERBS_1.0"))
        puts("a symbol is found under another's version");
    return 0;
}
"#;

#[test]
fn exports_are_the_listed_symbols() {
    let Ok(listed) = Command::new("nm").args(["-D", "--defined-only"]).arg(library()).output()
    else {
        return lacks("nm is not installed (Debian package binutils)");
    };
    let text = String::from_utf8(listed.stdout).unwrap();
    // `nm` lists versions as absolute symbols.
    let symbols_only = text.lines().filter(|line| !line.contains(" A "));
    let exported: BTreeSet<_> = symbols_only.filter_map(|line| line.rsplit(' ').next()).collect();
    let name = |symbol: Symbol| {
        let separator = if symbol.is_default { "@@" } else { "@" };
        format!("{}{separator}{}", symbol.name, symbol.version)
    };
    let expected: BTreeSet<_> = symbols().map(name).collect();
    let expected: BTreeSet<_> = expected.iter().map(String::as_str).collect();
    let difference: Vec<_> = exported.symmetric_difference(&expected).collect();
    assert!(difference.is_empty(), "exported or listed, but not both: {difference:?}");
}
