//! `docs/reference/chimney-windows.md`: each entry point of the chimney has its counterpart in flue, and a test.

use std::{fmt::Write as _, fs};

use super::{files, is_test, quoted, root, section, test_functions};

/// Functions of `ndischimney.h` by their documented names, excluding those that share a callback type.
const ENTRY_POINTS: [&str; 45] = [
    "NdisInitiateOffload",
    "NdisInvalidateOffload",
    "NdisMGetOffloadHandlers",
    "NdisMInitiateOffloadComplete",
    "NdisMInvalidateOffloadComplete",
    "NdisMOffloadEventIndicate",
    "NdisMQueryOffloadStateComplete",
    "NdisMTerminateOffloadComplete",
    "NdisMUpdateOffloadComplete",
    "NdisOffloadTcpDisconnect",
    "NdisOffloadTcpForward",
    "NdisOffloadTcpReceive",
    "NdisOffloadTcpReceiveReturn",
    "NdisOffloadTcpSend",
    "NdisQueryOffloadState",
    "NdisTerminateOffload",
    "NdisUpdateOffload",
    "NdisTcpOffloadDisconnectComplete",
    "NdisTcpOffloadEventHandler",
    "NdisTcpOffloadForwardComplete",
    "NdisTcpOffloadReceiveComplete",
    "NdisTcpOffloadReceiveHandler",
    "NdisTcpOffloadSendComplete",
    "ProtocolIndicateOffloadEvent",
    "ProtocolInitiateOffloadComplete",
    "ProtocolInvalidateOffloadComplete",
    "ProtocolQueryOffloadComplete",
    "ProtocolTcpOffloadDisconnectComplete",
    "ProtocolTcpOffloadEvent",
    "ProtocolTcpOffloadForwardComplete",
    "ProtocolTcpOffloadReceiveComplete",
    "ProtocolTcpOffloadReceiveIndicate",
    "ProtocolTcpOffloadSendComplete",
    "ProtocolTerminateOffloadComplete",
    "ProtocolUpdateOffloadComplete",
    "MiniportInitiateOffload",
    "MiniportInvalidateOffload",
    "MiniportQueryOffload",
    "MiniportTcpOffloadDisconnect",
    "MiniportTcpOffloadForward",
    "MiniportTcpOffloadReceive",
    "MiniportTcpOffloadReceiveReturn",
    "MiniportTcpOffloadSend",
    "MiniportTerminateOffload",
    "MiniportUpdateOffload",
];

/// True if the sources define the last name of the path: a function, variant, field or type.
fn is_defined(path: &str, sources: &[(String, String)]) -> bool {
    let name = path.rsplit("::").next().unwrap_or_default();
    let forms = [
        format!("fn {name}("),
        format!("fn {name}<"),
        format!("pub {name}: "),
        format!("struct {name} "),
        format!("enum {name} "),
        format!("    {name}("),
        format!("    {name} {{"),
    ];
    sources.iter().any(|(_, text)| forms.iter().any(|form| text.contains(form)))
}

#[test]
fn every_entry_point_of_the_chimney_has_its_counterpart_and_a_test() {
    let file = "docs/reference/chimney-windows.md";
    let text = fs::read_to_string(root().join(file)).unwrap();
    let mut rows = section(&text, "Every entry point");
    rows.retain(|cells| !cells[0].starts_with("**") && cells[0] != "NDIS");
    let sources: Vec<(String, String)> =
        files("rs").into_iter().filter(|(file, _)| file.contains("/src/")).collect();
    let functions = test_functions();
    let mut findings = String::new();
    for point in ENTRY_POINTS {
        let is_of = |cells: &&Vec<&str>| cells[0].split([' ', ',']).next() == Some(point);
        if rows.iter().filter(is_of).count() != 1 {
            writeln!(findings, "{file}: {point} does not occur once").unwrap();
        }
    }
    for cells in &rows {
        let &[name, _, here, tests] = cells.as_slice() else {
            writeln!(findings, "{file}: {} has not four cells", cells[0]).unwrap();
            continue;
        };
        for path in quoted(here).into_iter().filter(|path| !is_defined(path, &sources)) {
            writeln!(findings, "{file}: {name}: {path} not found").unwrap();
        }
        let tests = quoted(tests);
        if tests.is_empty() && !here.starts_with("none: ") {
            writeln!(findings, "{file}: {name}: no test").unwrap();
        }
        for test in tests.into_iter().filter(|test| !is_test(test, &functions, &[])) {
            writeln!(findings, "{file}: {name}: test not found: {test}").unwrap();
        }
    }
    assert!(findings.is_empty(), "\n{findings}");
}
