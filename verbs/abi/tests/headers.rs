//! Comparison of every structure, member and constant with the installed headers, by a C compiler.
//!
//! Requires `cc`, libibverbs-dev and librdmacm-dev. Without them the test is skipped, but fails in CI.

use std::{
    env,
    fmt::Write as _,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use flue_verbs_abi::{constants, layouts};

/// Structures named in C by a member, since they have no name of their own; and one named by a typedef.
const NAMELESS: [(&str, &str); 4] = [
    ("ibv_send_wr_rdma", "__typeof__(((struct ibv_send_wr *)0)->wr.rdma)"),
    ("ibv_send_wr_atomic", "__typeof__(((struct ibv_send_wr *)0)->wr.atomic)"),
    ("ibv_send_wr_ud", "__typeof__(((struct ibv_send_wr *)0)->wr.ud)"),
    ("ibv_send_wr_bind_mw", "__typeof__(((struct ibv_send_wr *)0)->bind_mw)"),
];

/// Structures that later releases of rdma-core extend at the end, with the reason why the shorter one serves them. The
/// members that both have are still compared.
const EXTENDED_LATER: [(&str, &str); 2] = [
    (
        "ibv_port_attr",
        "ibv_query_port passes the program's size; the rest is zero: no active_speed_ex",
    ),
    ("ibv_qp_ex", "ibv_wr_flush needs IBV_QP_EX_WITH_FLUSH, which ibv_create_qp_ex refuses"),
];

/// True if `ours` and `theirs` are sizes of one structure, and that of the headers may be larger.
fn is_extended(ours: &str, theirs: &str) -> bool {
    let size_of = |line: &str, name: &str| line.strip_prefix(name)?.trim().parse::<usize>().ok();
    EXTENDED_LATER.iter().any(|(name, _)| {
        size_of(ours, name).zip(size_of(theirs, name)).is_some_and(|(ours, theirs)| ours < theirs)
    })
}

fn c_type(name: &str) -> String {
    let nameless = NAMELESS.iter().find(|(rust, _)| *rust == name);
    nameless.map_or_else(|| format!("struct {name}"), |(_, c)| (*c).to_owned())
}

/// Returns the C path of a member. Raw identifiers are C keywords; a few names differ in letters.
fn c_member(structure: &str, member: &str) -> String {
    let member = member.trim_start_matches("r#");
    match (structure, member) {
        ("verbs_context", "abi_placeholder1" | "abi_placeholder2") => {
            member.replace("abi_", "ABI_")
        }
        ("verbs_context", "_abi_placeholder3") => "_ABI_placeholder3".into(),
        ("rdma_addr", "src_storage" | "dst_storage" | "addr") => member.into(),
        _ => member.into(),
    }
}

/// Returns a C program that prints a line for each size, offset and value.
fn program() -> String {
    let mut code = String::from(
        "#include <stddef.h>\n#include <stdio.h>\n#include <infiniband/verbs.h>\n#include <rdma/rdma_cma.h>\n\
         int main(void) {\n",
    );
    for layout in layouts() {
        let (name, c) = (layout.name, c_type(layout.name));
        writeln!(code, "printf(\"{name} %zu\\n\", sizeof({c}));").unwrap();
        for member in layout.members {
            let path = c_member(name, member.name);
            writeln!(
                code,
                "printf(\"{name}.{} %zu %zu\\n\", offsetof({c}, {path}), sizeof((({c} *)0)->{path}));",
                member.name
            )
            .unwrap();
        }
    }
    for (name, _) in constants() {
        writeln!(code, "printf(\"{name} = %lld\\n\", (long long){name});").unwrap();
    }
    code + "return 0;\n}\n"
}

/// Returns the same lines from the crate.
fn expected() -> String {
    let mut lines = String::new();
    for layout in layouts() {
        writeln!(lines, "{} {}", layout.name, layout.size).unwrap();
        for member in layout.members {
            writeln!(lines, "{}.{} {} {}", layout.name, member.name, member.offset, member.size)
                .unwrap();
        }
    }
    for (name, value) in constants() {
        writeln!(lines, "{name} = {value}").unwrap();
    }
    lines
}

fn lacks(what: &str) {
    assert!(env::var("CI").as_deref() != Ok("true"), "in CI no test is skipped: {what}");
    println!("skipped: {what}");
}

#[test]
fn layouts_and_constants_are_those_of_the_headers() {
    let headers = ["/usr/include/infiniband/verbs.h", "/usr/include/rdma/rdma_cma.h"];
    if let Some(header) = headers.iter().find(|path| !Path::new(path).exists()) {
        return lacks(&format!("{header}: install libibverbs-dev and librdmacm-dev"));
    }
    let directory = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
    let (source, binary) = (directory.join("layouts.c"), directory.join("layouts"));
    fs::write(&source, program()).unwrap();
    let compiled = Command::new("cc").arg("-o").arg(&binary).arg(&source).output();
    let Ok(compiled) = compiled else { return lacks("cc not found: install gcc") };
    assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
    let printed = Command::new(&binary).output().unwrap();
    let printed = String::from_utf8(printed.stdout).unwrap();
    let expected = expected();
    let differing: Vec<_> = expected
        .lines()
        .zip(printed.lines())
        .filter(|(ours, theirs)| ours != theirs && !is_extended(ours, theirs))
        .map(|(ours, theirs)| format!("{ours}, in C {theirs}"))
        .collect();
    assert!(differing.is_empty(), "{differing:#?}");
    assert_eq!(expected.lines().count(), printed.lines().count());
    assert!(expected.lines().count() > 700, "only {} lines", expected.lines().count());
}
