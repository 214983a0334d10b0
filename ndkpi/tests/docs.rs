//! docs/reference/ndkpi.md against the header and the programs: each function has a row, and each row names a test that
//! exists.

const DOCUMENT: &str = include_str!("../../docs/reference/ndkpi.md");
const HEADER: &str = include_str!("../include/ndkpi.h");
const PROGRAMS: [&str; 3] =
    [include_str!("opening.c"), include_str!("consumer.c"), include_str!("ends.c")];

/// The rows of the table of functions.
fn rows() -> impl Iterator<Item = Vec<&'static str>> {
    let section = DOCUMENT.split("\n## ").find(|section| section.starts_with("Functions"));
    let rows = section.unwrap().lines().filter(|line| line.starts_with("| ")).skip(1);
    rows.map(|row| row.trim_matches('|').split(" | ").map(str::trim).collect())
}

#[test]
fn every_function_has_a_row() {
    let told: Vec<&str> = rows().flat_map(|row| row[1].split(", ").collect::<Vec<_>>()).collect();
    let mut functions = 0;
    let is_entry = |line: &&str| line.starts_with("\tNDK_FN_") && line.split(' ').count() == 2;
    for line in HEADER.lines().filter(is_entry) {
        let name = line.trim_end_matches(';').rsplit(' ').next().unwrap();
        // In one row for all.
        let name = if name.starts_with("NdkClose") { "NdkCloseXxx" } else { name };
        functions += 1;
        assert!(told.contains(&name), "{name} has no row");
    }
    assert_eq!(functions, 70);
}

#[test]
fn tests_of_every_row_exist() {
    let mut named = 0;
    for row in rows() {
        for test in row.last().unwrap().split('`').skip(1).step_by(2) {
            named += 1;
            let is_there = |program: &str| program.contains(&format!(" {test}("));
            assert!(PROGRAMS.iter().any(|program| is_there(program)), "{test}: {row:?}");
        }
        // A status by its name, as the header has it.
        for word in row[2].split([' ', ',', ';', ':', '(', ')']).filter(|it| it.len() > 6) {
            let is_status = word.bytes().all(|it| it.is_ascii_uppercase() || it == b'_');
            let is_known = HEADER.contains(&format!("#define STATUS_{word} "));
            assert!(!is_status || is_known || word.starts_with("NDK_"), "{word}");
        }
    }
    assert!(named > 40, "only {named}");
}
