//! Gives the library its symbol versions, and its name.
//!
//! rustc passes a version script of its own, which is anonymous. rust-lld, its default linker on x86-64, takes a second
//! one whose nodes are empty: the versions are defined, the symbols stay in the base version, and the dynamic loader
//! accepts an unversioned definition for any version that a program asks for. GNU ld refuses the pair ("anonymous
//! version tag cannot be combined with other version tags"). Where the linker is not known to be rust-lld, the versions
//! are left out, and then the loader prints "no version information available" for each program;
//! `FLUE_VERBS_VERSIONS=yes` or `no` decides otherwise.

use std::{env, fmt::Write as _, fs, path::Path};

use flue_verbs_abi::symbols;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-env-changed=FLUE_VERBS_VERSIONS");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libflue_verbs.so");
    // A program that lets go of it with dlclose(3) leaves the adapter's thread behind, and handlers of exit and fork.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
    let has_versions = match env::var("FLUE_VERBS_VERSIONS").as_deref() {
        Ok("yes") => true,
        Ok("no") => false,
        _ => is_rust_lld(),
    };
    if !has_versions {
        println!("cargo::warning=flue-verbs has no symbol versions; verbs/build.rs says why");
        return;
    }
    let mut script = String::new();
    for (name, parent) in symbols::versions() {
        let parent = parent.unwrap_or_default();
        writeln!(script, "{name} {{ }} {parent};").expect("writes to a String do not fail");
    }
    let directory = env::var_os("OUT_DIR").expect("cargo sets OUT_DIR");
    let path = Path::new(&directory).join("versions.map");
    fs::write(&path, script).expect("OUT_DIR can be written to");
    println!("cargo::rustc-cdylib-link-arg=-Wl,--version-script={}", path.display());
}

/// Whether the linker is rustc's default of this target, and that is rust-lld.
fn is_rust_lld() -> bool {
    let target = env::var("TARGET").unwrap_or_default();
    let flags = env::var("CARGO_ENCODED_RUSTFLAGS").unwrap_or_default();
    let is_other = |flag: &str| {
        let names_another = flag.contains("fuse-ld=") && !flag.contains("fuse-ld=lld");
        names_another || flag.contains("linker-features=-lld") || flag.contains("linker=")
    };
    let asks_for_lld = flags.contains("fuse-ld=lld");
    !flags.split('\x1f').any(is_other) && (target == "x86_64-unknown-linux-gnu" || asks_for_lld)
}
