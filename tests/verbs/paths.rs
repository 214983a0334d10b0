//! Files of a RoCE device: every function of libc that takes a path finds them, and programs of other packages do.
//! Other paths, and programs without the device, are unaffected.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use flue_test_support::flue::Scratch;
use flue_test_support::needs::{Need, lacks};
use flue_verbs_abi::settings;

use crate::launch::{compile, launcher, run};
use crate::test_bed::{LIMIT, NodePair};
use crate::{NEEDS, machine};

const SOURCE: &str = include_str!("paths.c");
const ROCE: &str = "--device roce";
const IWARP: &str = "--device iwarp";

/// Program that calls the functions, in a directory of its own.
fn program(scratch: &Scratch) -> PathBuf {
    compile(scratch, "paths", SOURCE, &["-Wall", "-Werror", "-ldl"])
}

/// Output of a shell under flue, which exits with 0 and reports no error.
fn shell(scratch: &Scratch, options: &str, script: &str) -> String {
    let (output, out, err) = run(&mut launcher(scratch, options, &["sh", "-c", script]));
    assert_eq!((output.status.code(), err.as_str()), (Some(0), ""), "{script}: {out}");
    out
}

/// Directory of the files.
fn tree(scratch: &Scratch) -> String {
    shell(scratch, ROCE, "echo $FLUE_VERBS_FILES").trim_end().to_owned()
}

/// Character device of the files, without its directory.
fn node(tree: &str) -> &str {
    let name = Path::new(tree).file_name().and_then(|name| name.to_str()).expect("a name");
    name.split('-').next().expect("a name")
}

/// Number of directories of files.
fn trees(directory: &Path) -> usize {
    let entries = fs::read_dir(directory).expect("a directory").flatten();
    entries.filter(|it| it.file_name().to_string_lossy().starts_with("uverbs")).count()
}

#[test]
fn every_function_finds_the_files() {
    if lacks(&[Need::Tool("cc")]) {
        return;
    }
    let scratch = Scratch::new();
    let program = program(&scratch);
    let tree = tree(&scratch);
    let node = node(&tree);
    let mut words = vec![program.to_str().expect("a name").to_owned(), "compare".into()];
    let below = [
        "/sys/class/infiniband",
        "/sys/class/infiniband/.",
        "/sys/class/infiniband/flue0",
        "/sys/class/infiniband//flue0/node_type",
        "/sys/class/infiniband/flue0/ports/1/gids",
        "/sys/class/infiniband/flue0/ports/1/gids/0",
        "/sys/class/infiniband/flue0/ports/1/none",
        "/sys/class/infiniband/flue0/device",
        "/sys/class/infiniband/flue0/device/net",
        "/sys/class/infiniband/flue0/../..",
        "/sys/class/infiniband_verbs",
        "/sys/class/infiniband_verbs/abi_version",
        "/dev/infiniband",
    ];
    for path in below {
        words.extend([path.to_owned(), format!("{tree}{path}")]);
    }
    let verbs = format!("/sys/class/infiniband_verbs/{node}/ibdev");
    words.extend([verbs.clone(), format!("{tree}{verbs}")]);
    words.extend([format!("/dev/infiniband/{node}"), "/dev/null".into()]);
    words.extend(["/sys/class/infiniband/../net", "/sys/class/net"].map(str::to_owned));
    let words: Vec<_> = words.iter().map(String::as_str).collect();
    let (output, out, err) = run(&mut launcher(&scratch, ROCE, &words));
    assert_eq!((output.status.code(), err.as_str()), (Some(0), ""), "{out}");
    assert_eq!(out, "46 functions, 0 differences\n");
    // The comparison has a difference without the device.
    let (output, out, _) = run(&mut launcher(&scratch, IWARP, &words));
    assert_eq!(output.status.code(), Some(1), "{out}");
}

#[test]
fn other_paths_are_unaffected() {
    if lacks(&[Need::Tool("cc")]) {
        return;
    }
    let scratch = Scratch::new();
    let program = program(&scratch);
    let created = scratch.file("created");
    let words = [created.to_str().expect("a name"), "/etc/passwd", "/", "/dev/null", "/usr/lib"];
    let more = ["", ".", "/sys/class/net", "/sys/class/infinibandx", "/dev/infiniband/umad0"];
    let words: Vec<_> = words.into_iter().chain(more).collect();
    let (_, expected, _) = run(Command::new(&program).arg("print").args(&words));
    let program = program.to_str().expect("a name");
    let line: Vec<_> = [program, "print"].into_iter().chain(words).collect();
    for options in [IWARP, ROCE] {
        let (output, out, err) = run(&mut launcher(&scratch, options, &line));
        assert_eq!((output.status.code(), err.as_str()), (Some(0), ""), "{options}");
        assert_eq!(out, expected, "{options}");
    }
    assert!(expected.starts_with("mode 100640\nmode 100604\n"), "{expected}");
    assert!(expected.contains("null: 1 -1\n"), "{expected}");
}

#[test]
fn programs_of_other_packages_find_the_files() {
    let scratch = Scratch::new();
    let tree = tree(&scratch);
    let node = node(&tree);
    let said = |script: &str| shell(&scratch, ROCE, &script.replace("NODE", node));
    let character = "character special file\n";
    assert_eq!(said("stat -c %F /dev/infiniband/NODE"), character);
    assert_eq!(
        said("test -c /dev/infiniband/NODE -a -r /dev/infiniband/NODE && echo yes"),
        "yes\n"
    );
    assert_eq!(said("cat /sys/class/infiniband/flue0/node_type"), "1: CA\n");
    assert_eq!(said("cat /sys/class/infiniband_verbs/NODE/ibdev"), "flue0\n");
    let entries = |out: String| out.lines().map(str::to_owned).collect::<Vec<_>>();
    assert!(entries(said("ls /sys/class/infiniband")).contains(&"flue0".into()));
    assert!(entries(said("ls /dev/infiniband/")).contains(&node.into()));
    assert!(entries(said("cd /sys/class/infiniband/flue0/ports/1; ls")).contains(&"gids".into()));
    assert!(said("ls -l /dev/infiniband/NODE").starts_with("crw-rw-rw-"));
    // Each entry by its path, with attributes.
    said("ls -laR /sys/class/infiniband/ /sys/class/infiniband_verbs/ /dev/infiniband/");
    let device = format!("{tree}/sys/devices/virtual/flue/flue0");
    for script in [
        "readlink -f /sys/class/infiniband/flue0/../..",
        "realpath /sys/class/infiniband/flue0/device",
        "cd /sys/class/infiniband/flue0/device; pwd -P",
    ] {
        assert_eq!(said(script), format!("{device}\n"), "{script}");
    }
    let found = said("find /sys/class/infiniband/flue0/ports/1/ -name gids");
    assert_eq!(found, "/sys/class/infiniband/flue0/ports/1/gids\n");
    if !lacks(&[Need::Tool("python3")]) {
        let python = "python3 -c 'import os, stat; print(stat.S_ISCHR(os.stat(\"/dev/infiniband/NODE\").st_mode), \
                      os.access(\"/dev/infiniband/NODE\", os.R_OK | os.W_OK), \
                      \"flue0\" in os.listdir(\"/sys/class/infiniband\"), \
                      os.path.realpath(\"/sys/class/infiniband/flue0/device\"), \
                      open(\"/sys/class/infiniband/flue0/ports/1/state\").read())'";
        assert_eq!(said(python), format!("True True True {device} 4: ACTIVE\n\n"));
    }
}

/// Compares the files of the device with the results of its calls.
const DEVICE: &str = r#"
#include <arpa/inet.h>
#include <infiniband/verbs.h>
#include <net/if.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

static char text[256];

static const char *file(const char *name)
{
    char path[512];
    snprintf(path, sizeof path, "/sys/class/infiniband/flue0/%s", name);
    FILE *stream = fopen(path, "r");
    strcpy(text, "none");
    if (stream) {
        if (!fgets(text, sizeof text, stream))
            strcpy(text, "empty");
        fclose(stream);
    }
    text[strcspn(text, "\n")] = 0;
    return text;
}

static int differs(const char *name, const char *expected)
{
    int differs = strcmp(file(name), expected) != 0;
    printf("%s %s%s%s\n", name, text, differs ? ", expected " : "", differs ? expected : "");
    return differs;
}

static void groups(const unsigned char *octets, int count, char *out)
{
    for (int at = 0; at < count; at += 2)
        out += sprintf(out, "%s%02x%02x", at ? ":" : "", octets[at], octets[at + 1]);
}

int main(void)
{
    int differences = 0;
    struct ibv_device **all = ibv_get_device_list(NULL);
    struct ibv_context *context = ibv_open_device(all[0]);
    struct ibv_port_attr port;
    struct stat node;
    char name[IF_NAMESIZE], expected[256], path[512];
    if (!context || ibv_query_port(context, 1, &port))
        return 2;
    snprintf(path, sizeof path, "/dev/infiniband/%s", all[0]->dev_name);
    differences += stat(path, &node) || !S_ISCHR(node.st_mode);
    snprintf(path, sizeof path, "%s/ibdev", all[0]->dev_path);
    differences += stat(path, &node) || !S_ISREG(node.st_mode);
    uint64_t guid = ibv_get_device_guid(all[0]);
    groups((unsigned char *)&guid, sizeof guid, expected);
    differences += differs("node_guid", expected);
    for (int at = 0; at < port.gid_tbl_len; at++) {
        struct ibv_gid_entry entry;
        if (ibv_query_gid_ex(context, 1, at, &entry, 0))
            return 3;
        groups(entry.gid.raw, 16, expected);
        snprintf(path, sizeof path, "ports/1/gids/%d", at);
        differences += differs(path, expected);
        snprintf(path, sizeof path, "ports/1/gid_attrs/types/%d", at);
        differences += differs(path, "RoCE v2");
        snprintf(path, sizeof path, "ports/1/gid_attrs/ndevs/%d", at);
        if (if_indextoname(entry.ndev_ifindex, name))
            differences += differs(path, name);
    }
    snprintf(path, sizeof path, "ports/1/gids/%d", port.gid_tbl_len);
    differences += differs(path, "none");
    printf("%d entries, %d differences\n", port.gid_tbl_len, differences);
    return differences != 0;
}
"#;

#[test]
fn files_have_the_values_of_the_calls() {
    if lacks(NEEDS) || lacks(&[Need::Tool("cc")]) {
        return;
    }
    let scratch = Scratch::new();
    let program = compile(&scratch, "device", DEVICE, &["-Wall", "-Werror", "-libverbs"]);
    let program = program.to_str().expect("a name");
    let host = machine();
    // A link-local address would appear later than the others, between the two readers of the addresses.
    host.ip("link set eth0 addrgenmode none");
    let (output, out, err) = host.run(|| run(&mut launcher(&scratch, ROCE, &[program])));
    assert_eq!((output.status.code(), err.as_str()), (Some(0), ""), "{out}");
    assert!(out.contains("gids/0 0000:0000:0000:0000:0000:ffff:0a4d:0001\n"), "{out}");
    assert!(out.contains("ndevs/0 eth0\n") && out.contains("gids/1 fd77:"), "{out}");
    if lacks(&[Need::Tun]) {
        return;
    }
    let nodes = NodePair::new();
    let mut ran = nodes.start(0, ROCE, program);
    let ended = ran.wait(LIMIT).map(|status| status.code());
    ran.kill();
    assert_eq!(ended, Ok(Some(0)), "{}", ran.report());
    let said = ran.said();
    assert!(said.contains("gids/0 0000:0000:0000:0000:0000:ffff:0a09:0001\n"), "{said}");
    assert!(said.contains("ndevs/0 tap0\n"), "{said}");
    // The identity of a node is new in each run.
    let directory = fs::read_dir(nodes.runtime[0].file("")).expect("a directory").flatten();
    let mut directory = directory.filter(|it| it.file_name().to_string_lossy().contains("verbs"));
    let directory = directory.next().expect("the directory of the library").path();
    assert_eq!(trees(&directory), 0);
}

// A library of the program is initialized before the preloaded one, and calls its functions.
#[test]
fn functions_work_before_their_library_is_initialized() {
    if lacks(&[Need::Tool("cc")]) {
        return;
    }
    const EARLY: &str = r#"
#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>
char early[64];
__attribute__((constructor)) static void start(void)
{
    int fd = open("/sys/class/infiniband/flue0/node_type", O_RDONLY);
    if (read(fd, early, sizeof early - 1) < 0)
        perror("read");
}
"#;
    const MAIN: &str = r#"
#include <stdio.h>
extern char early[];
int main(void) { return fputs(early, stdout) < 0; }
"#;
    let scratch = Scratch::new();
    let library = compile(&scratch, "libearly.so", EARLY, &["-shared", "-fPIC"]);
    let library = library.to_str().expect("a name");
    let main = compile(&scratch, "early", MAIN, &[library]);
    let main = main.to_str().expect("a name");
    for preload in ["", library] {
        let mut command = launcher(&scratch, ROCE, &[main]);
        let (output, out, err) = run(command.env("LD_PRELOAD", preload));
        assert_eq!((output.status.code(), out.as_str()), (Some(0), "1: CA\n"), "{err}");
    }
}

#[test]
fn files_are_for_programs_with_the_device() {
    let scratch = Scratch::new();
    let script = "echo $LD_PRELOAD; echo files=$FLUE_VERBS_FILES; ls $LD_LIBRARY_PATH";
    let plain = shell(&scratch, IWARP, script);
    assert!(!plain.contains("paths") && plain.contains("files=\n"), "{plain}");
    assert!(!plain.contains("uverbs"), "{plain}");
    // The variable selects the device as the option does.
    let mut command = launcher(&scratch, "", &["sh", "-c", script]);
    let (_, by_variable, err) = run(command.env(settings::DEVICE, "iwarp"));
    assert_eq!((by_variable, err.as_str()), (plain, ""));
    let roce = shell(&scratch, ROCE, script);
    let preloads = roce.lines().next().expect("a line");
    assert!(preloads.starts_with('/'), "{preloads}");
    assert!(preloads.ends_with("/libflue_verbs_paths.so"), "{preloads}");
    // The files of an enclosing launcher are not those of a program on another device.
    let flue = format!("{} run {IWARP} --", crate::FLUE);
    let nested = format!(
        "{flue} sh -c 'echo files=$FLUE_VERBS_FILES; ls /dev/infiniband; true' 2>/dev/null"
    );
    let nested = shell(&scratch, ROCE, &nested);
    assert!(nested.starts_with("files=\n") && !nested.contains("uverbs"), "{nested}");
    // One directory for all runs.
    let again = tree(&scratch);
    let tree = tree(&scratch);
    assert_eq!(tree, again);
    let parent = Path::new(&tree).parent().expect("a directory");
    assert_eq!(trees(parent), 1);
}

#[test]
fn missing_library_of_the_paths_is_reported() {
    let scratch = Scratch::new();
    let copy = scratch.file("libflue_verbs.so");
    fs::copy(crate::library(), &copy).expect("a copied file");
    let mut command = Command::new(crate::FLUE);
    command.args(["run", "--device", "roce", "--library"]).arg(&copy).args(["--", "true"]);
    let (output, _, err) = run(command.env("TMPDIR", scratch.file("")));
    assert_eq!(output.status.code(), Some(3), "{err}");
    assert!(err.contains("libflue_verbs_paths.so: No such file"), "{err}");
}
