//! The library's exports against the list of symbols, by the dynamic loader itself: each symbol under the version that
//! programs ask for, and no symbol that is not on the list.
//!
//! Needs `cc` and `nm`; says so and passes without them, but fails in CI.

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
    symbols::{PRIVATE, PRIVATE_VARIABLE, Symbol, symbols, versions},
};

/// Cargo builds the library beside this test.
fn library() -> PathBuf {
    let test = env::current_exe().unwrap();
    test.parent().unwrap().join(LIBRARY_FILE)
}

fn lacks(what: &str) {
    assert!(env::var("CI").as_deref() != Ok("true"), "in CI nothing is skipped: {what}");
    println!("skipped: {what}");
}

/// Runs a compiler or linker in `directory`. `None`: there is none.
fn cc(directory: &Path, arguments: &[&str]) -> Option<()> {
    let done = Command::new("cc").args(arguments).current_dir(directory).output().ok()?;
    assert!(done.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&done.stderr));
    Some(())
}

/// Symbols as programs and providers bind them: those of the private interface under each of its versions.
fn references(private: &'static str) -> Vec<Symbol> {
    let of_release = |symbol: &Symbol| {
        !symbol.name.starts_with("verbs_register_driver_")
            || symbol.name.rsplit('_').next() == private.rsplit('_').next()
    };
    let under = |symbol: Symbol| match symbol.version.contains("PRIVATE") {
        true => Symbol { version: private, ..symbol },
        false => symbol,
    };
    symbols().filter(of_release).map(under).collect()
}

/// A library of the same name and versions as the originals, with empty functions, and a program that is linked to it.
fn build_program(directory: &Path, references: &[Symbol]) -> Option<()> {
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
    let map = "-Wl,--version-script=stubs.map";
    cc(
        directory,
        &["-shared", "-fPIC", "-Wl,-soname,libprobe.so", map, "stubs.c", "-o", "libprobe.so"],
    )?;
    // Functions of C's own library would do for `rpoll` and the like otherwise.
    cc(directory, &["-Wl,-z,now", "-fno-builtin", "program.c", "./libprobe.so", "-o", "program"])
}

fn every_symbol_binds(private: &'static str) {
    let references = references(private);
    assert!(references.len() > 200, "only {}", references.len());
    assert!(references.iter().filter(|it| it.version == private).count() > PRIVATE.len());
    let directory = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(private);
    let _ = fs::remove_dir_all(&directory);
    fs::create_dir_all(directory.join("lib")).unwrap();
    if build_program(&directory, &references).is_none() {
        return lacks("cc does not start: install gcc");
    }
    symlink(library(), directory.join("lib/libprobe.so")).unwrap();
    let run = |path: &Path| {
        let mut command = Command::new(directory.join("program"));
        command.env("LD_LIBRARY_PATH", path).output().unwrap()
    };
    let ended = run(&directory.join("lib"));
    let said = String::from_utf8_lossy(&ended.stderr);
    assert!(ended.status.success() && said.is_empty(), "{}: {said}", ended.status);
}

#[test]
fn every_symbol_binds_under_its_version() {
    every_symbol_binds("IBVERBS_PRIVATE_34");
}

#[test]
fn providers_of_later_releases_bind() {
    every_symbol_binds("IBVERBS_PRIVATE_59");
    every_symbol_binds("IBVERBS_PRIVATE_64");
}

/// `nm` lists defined symbols, and versions as absolute ones.
#[test]
fn nothing_else_is_exported() {
    let Ok(listed) = Command::new("nm").args(["-D", "--defined-only"]).arg(library()).output()
    else {
        return lacks("nm is not installed (Debian package binutils)");
    };
    let text = String::from_utf8(listed.stdout).unwrap();
    let symbol = |line: &'_ str| {
        line.rsplit(' ').next().map(|name| name.split('@').next().unwrap_or(name).to_owned())
    };
    let exported: BTreeSet<String> = text.lines().filter_map(symbol).collect();
    let versions: BTreeSet<&str> = versions().map(|(name, _)| name).collect();
    let known: BTreeSet<&str> = symbols().map(|symbol| symbol.name).collect();
    let is_unknown =
        |name: &&String| !known.contains(name.as_str()) && !versions.contains(name.as_str());
    let unknown: Vec<_> = exported.iter().filter(is_unknown).collect();
    assert!(unknown.is_empty(), "{unknown:?}");
    assert!(exported.len() >= known.len(), "{} of {}", exported.len(), known.len());
}
