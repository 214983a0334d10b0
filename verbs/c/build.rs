//! Sets the name, the symbol versions and the exported stubs (`src/exports.rs`) of the library.
//!
//! rustc passes an anonymous version script to the linker. rust-lld, lld and mold accept a second script, whose nodes
//! are empty, and stubs whose names have versions. GNU ld rejects the pair ("anonymous version tag cannot be combined
//! with other version tags"), and the build fails. So where rustc's default linker is GNU ld, the build selects the
//! rust-lld of the toolchain. A `-fuse-ld` in RUSTFLAGS follows that option and takes precedence.

use std::{
    collections::BTreeMap,
    env,
    fmt::Write as _,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use flue_verbs_abi::symbols::{self, PRIVATE_VARIABLE, Symbol};

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libflue_verbs.so");
    // A dlclose(3) must not unload the library, whose thread and handlers of exit and fork remain.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
    let directory = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    let script = directory.join("versions.map");
    fs::write(&script, version_script()).expect("OUT_DIR can be written to");
    println!("cargo::rustc-cdylib-link-arg=-Wl,--version-script={}", script.display());
    fs::write(directory.join("exports.rs"), exports()).expect("OUT_DIR can be written to");
    if env::var("TARGET").as_deref() != Ok("x86_64-unknown-linux-gnu") {
        select_rust_lld();
    }
}

/// Returns the version tree, without symbols.
fn version_script() -> String {
    let mut script = String::new();
    for (name, parent) in symbols::versions() {
        let parent = parent.unwrap_or_default();
        writeln!(script, "{name} {{ }} {parent};").expect("writes to a String do not fail");
    }
    script
}

/// Returns Rust source with a stub for each exported name.
fn exports() -> String {
    let mut names: BTreeMap<&str, Vec<Symbol>> = BTreeMap::new();
    for symbol in symbols::symbols() {
        names.entry(symbol.name).or_default().push(symbol);
    }
    names.iter().map(|(name, versions)| stub(name, versions)).collect()
}

/// Returns the assembly of one stub: a label for each version, and a jump. The variable is a byte of 0 instead.
fn stub(name: &str, versions: &[Symbol]) -> String {
    let is_variable = name == PRIVATE_VARIABLE;
    let (section, kind) = match is_variable {
        true => (".rodata", "STT_OBJECT"),
        false => (".text", "STT_FUNC"),
    };
    let flags = if is_variable { "a" } else { "ax" };
    let mut lines = vec![format!(".pushsection {section}.{name},\"{flags}\",%progbits")];
    let labels: Vec<_> = (0..versions.len()).map(|at| format!("__flue_{name}_{at}")).collect();
    for label in &labels {
        lines.push(format!(".globl {label}"));
        lines.push(format!(".type {label}, {kind}"));
        lines.push(format!("{label}:"));
    }
    if is_variable {
        lines.push(".byte 0".into());
    } else {
        let jump = match env::var("CARGO_CFG_TARGET_ARCH").as_deref() {
            Ok("x86_64") => "jmp",
            Ok("aarch64") => "b",
            other => {
                panic!("architecture {other:?}: no jump instruction defined: add it to this file")
            }
        };
        lines.extend([".cfi_startproc".into(), format!("{jump} {{}}"), ".cfi_endproc".into()]);
    }
    for (label, Symbol { version, is_default, .. }) in labels.iter().zip(versions) {
        let separator = if *is_default { "@@" } else { "@" };
        lines.push(format!(".size {label}, . - {label}"));
        lines.push(format!(".symver {label}, {name}{separator}{version}"));
    }
    lines.push(".popsection".into());
    let lines: Vec<_> = lines.iter().map(|line| format!("    {line:?},\n")).collect();
    let operand = if is_variable { String::new() } else { format!("    sym {name},\n") };
    format!("core::arch::global_asm!(\n{}{operand});\n", lines.concat())
}

/// Selects the rust-lld of the toolchain as the linker of the compiler driver.
fn select_rust_lld() {
    let rustc = env::var_os("RUSTC").expect("cargo sets RUSTC");
    let host = env::var("HOST").expect("cargo sets HOST");
    let printed = Command::new(rustc).args(["--print", "sysroot"]).output();
    let printed = printed.expect("rustc prints its directory").stdout;
    let sysroot = String::from_utf8(printed).expect("a path in UTF-8");
    let linkers = Path::new(sysroot.trim_end()).join("lib/rustlib").join(host).join("bin/gcc-ld");
    println!("cargo::rustc-link-arg=-fuse-ld=lld");
    if linkers.is_dir() {
        println!("cargo::rustc-link-arg=-B{}", linkers.display());
    }
}
