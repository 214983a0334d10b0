//! Includes the shared library of a dependency in a program, for installations that consist of one file.
//!
//! `cargo install` installs executables only. A dependency whose crate types are `cdylib` and `rlib` is compiled by one
//! rustc, which writes both files to one directory under one name, before the dependent crate is compiled. rustc is
//! given the path of the rlib (`--extern`), so [`cdylib!`] finds the shared library next to it. This requires neither a
//! second build, nor a cargo within a build script, nor assumptions about cargo's directories.

use std::{
    env,
    ffi::OsString,
    fs,
    hash::{DefaultHasher, Hash as _, Hasher as _},
    path::{Path, PathBuf},
};

use proc_macro::{Literal, TokenStream};

/// Expands to `Option<(&'static [u8], u64)>`: the shared library of the crate with this name, and a hash of it.
///
/// `None` where no library was compiled: `cargo check`, `cargo doc`, an editor.
#[proc_macro]
pub fn cdylib(input: TokenStream) -> TokenStream {
    let name = input.to_string();
    let expression = match extern_of(&name, arguments(env::args_os())).and_then(read) {
        Ok(None) => "None::<(&'static [u8], u64)>".to_owned(),
        Ok(Some((path, hash))) => {
            format!("Some((include_bytes!({}).as_slice(), {hash}_u64))", Literal::string(&path))
        }
        Err(error) => {
            let message = Literal::string(&format!("library of {name}: {error}"));
            format!("compile_error!({message})")
        }
    };
    expression.parse().expect("an expression without syntax errors")
}

/// Returns the arguments of the compiler, with those of argument files, which have one per line.
fn arguments(given: impl IntoIterator<Item = OsString>) -> Vec<String> {
    let given = given.into_iter().map(|argument| argument.to_string_lossy().into_owned());
    given
        .flat_map(|argument| match argument.strip_prefix('@').map(fs::read_to_string) {
            Some(Ok(text)) => text.lines().map(str::to_owned).collect(),
            _ => vec![argument],
        })
        .collect()
}

/// Returns the path that the compiler has for the crate. `None`: this process compiles no crate.
///
/// # Errors
/// The crate is not a dependency.
fn extern_of(name: &str, arguments: Vec<String>) -> Result<Option<PathBuf>, String> {
    if !arguments.iter().any(|it| it == "--crate-name") {
        return Ok(None);
    }
    let path = |value: &str| {
        let (left, path) = value.split_once('=')?;
        // Options of a dependency precede its name: `priv:NAME=PATH`.
        (left.rsplit(':').next() == Some(name)).then(|| PathBuf::from(path))
    };
    let separate = arguments.windows(2).filter(|pair| pair[0] == "--extern").map(|pair| &*pair[1]);
    let joined = arguments.iter().filter_map(|it| it.strip_prefix("--extern="));
    let found = separate.chain(joined).find_map(path);
    found.map(Some).ok_or_else(|| "not a dependency: add it to Cargo.toml".into())
}

/// Returns the path of the shared library next to an rlib, and the hash of its content. `None`: metadata only.
///
/// # Errors
/// There is no shared library.
fn read(rlib: Option<PathBuf>) -> Result<Option<(String, u64)>, String> {
    let Some(rlib) = rlib.filter(|path| path.extension() != Some("rmeta".as_ref())) else {
        return Ok(None);
    };
    let library =
        std::path::absolute(rlib.with_extension("so")).map_err(|error| error.to_string())?;
    let failed = |error| {
        format!(
            "{}: {error}: targets without shared libraries require --no-default-features --features std",
            library.display()
        )
    };
    let octets = fs::read(&library).map_err(failed)?;
    let mut hash = DefaultHasher::new();
    octets.hash(&mut hash);
    Ok(Some((text(&library)?, hash.finish())))
}

fn text(path: &Path) -> Result<String, String> {
    path.to_str().map(str::to_owned).ok_or_else(|| format!("{}: not UTF-8", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(line: &str) -> Result<Option<PathBuf>, String> {
        extern_of("flue_verbs", line.split(' ').map(str::to_owned).collect())
    }

    #[test]
    fn dependency_is_found_in_each_notation() {
        let path = Ok(Some(PathBuf::from("/d/libflue_verbs-1.rlib")));
        for line in [
            "rustc --crate-name a --extern b=/b.rlib --extern flue_verbs=/d/libflue_verbs-1.rlib",
            "rustc --crate-name a --extern priv:flue_verbs=/d/libflue_verbs-1.rlib src/lib.rs",
            "rustc --crate-name a --extern=priv,noprelude:flue_verbs=/d/libflue_verbs-1.rlib",
        ] {
            assert_eq!(found(line), path, "{line}");
        }
        assert!(found("rustc --crate-name a --extern flue_verbs_abi=/a.rlib").is_err());
        assert_eq!(found("rust-analyzer-proc-macro-srv"), Ok(None));
    }

    #[test]
    fn argument_files_are_read() {
        let file = env::temp_dir().join(format!("flue-embed-{}", std::process::id()));
        fs::write(&file, "--extern\nflue_verbs=/a b.rlib\n").unwrap();
        let given = ["rustc".to_owned(), format!("@{}", file.display()), "@scope".to_owned()];
        let read = arguments(given.map(Into::into));
        fs::remove_file(&file).unwrap();
        assert_eq!(read, ["rustc", "--extern", "flue_verbs=/a b.rlib", "@scope"]);
    }

    #[test]
    fn library_is_next_to_the_rlib() {
        let directory = env::temp_dir().join(format!("flue-embed-{}-so", std::process::id()));
        fs::create_dir(&directory).unwrap();
        let rlib = directory.join("liba-1.rlib");
        let missing = read(Some(rlib.clone())).unwrap_err();
        fs::write(directory.join("liba-1.so"), "one").unwrap();
        let one = read(Some(rlib.clone())).unwrap().unwrap();
        fs::write(directory.join("liba-1.so"), "two").unwrap();
        let two = read(Some(rlib)).unwrap().unwrap();
        fs::remove_dir_all(&directory).unwrap();
        assert!(missing.contains("--no-default-features"), "{missing}");
        assert!(one.0.ends_with("/liba-1.so") && one.0 == two.0 && one.1 != two.1);
        assert_eq!(read(Some("/d/liba.rmeta".into())), Ok(None));
    }
}
