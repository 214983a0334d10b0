//! Sets the name of the library.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libflue_verbs_paths.so");
    // Programs keep pointers to its functions.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
