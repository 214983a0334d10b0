//! Table of options, whose completeness is checked against clap's list.

use std::collections::BTreeSet;

use clap::{CommandFactory, Parser};
use flue::cli::{Cli, Command};
use flue::control::socket_path::ControlSocketPath;
use flue::options::{NodeArgs, NodeSetup, QueueOptions};
use host_stack::node::Progress;

use crate::{chimney, impairments, link, mpa, nc, output, perf, rping, tcp};

/// Option, or positional argument, by its name in the help.
pub(crate) struct Row {
    /// Commands that have the option.
    pub(crate) commands: &'static [&'static str],
    /// Name: `--long`, else `-s`, else that of the argument's value.
    pub(crate) name: &'static str,
    /// Arguments that set it on a node, for options shared by all commands.
    pub(crate) words: &'static str,
}

/// Commands that run a node.
pub(crate) const ALL: &[&str] = &["nc", "rping", "perf"];

/// Defines rows and tests: `name, words => check;`. The check is a function in the same module, which receives a
/// bench.
macro_rules! rows {
    ($commands:expr; $($name:literal $(, $words:literal)? => $check:ident;)*) => {
        pub(crate) const ROWS: &[$crate::table::Row] = &[$($crate::table::Row {
            commands: $commands,
            name: $name,
            words: concat!("", $($words)?),
        }),*];

        mod option {
            $(#[test]
            fn $check() {
                if !flue_test_support::needs::lacks($crate::NEEDS) {
                    super::$check(&flue_test_support::bench::Bench::new($crate::FLUE));
                }
            })*
        }
    };
}
pub(crate) use rows;

/// Rows of all modules.
fn table() -> impl Iterator<Item = &'static Row> {
    let modules = [
        link::ROWS,
        tcp::ROWS,
        chimney::ROWS,
        impairments::ROWS,
        output::ROWS,
        mpa::ROWS,
        nc::ROWS,
        rping::ROWS,
        perf::ROWS,
    ];
    modules.into_iter().flatten()
}

/// Options and arguments of the command that the help shows.
fn arguments(command: &str) -> BTreeSet<String> {
    let cli = Cli::command();
    let command = cli.find_subcommand(command).expect("a command of flue");
    let name = |argument: &clap::Arg| match (argument.get_long(), argument.get_short()) {
        (Some(long), _) => format!("--{long}"),
        (None, Some(short)) => format!("-{short}"),
        (None, None) => argument.get_value_names().map_or_else(
            || argument.get_id().as_str().to_uppercase(),
            |names| names.iter().map(|name| name.to_string()).collect::<Vec<_>>().join(" "),
        ),
    };
    command.get_arguments().map(name).collect()
}

#[test]
fn each_option_has_a_row_and_each_row_an_option() {
    let mut findings = Vec::new();
    for command in ALL {
        let rows: Vec<_> = table().filter(|row| row.commands.contains(command)).collect();
        let names: BTreeSet<String> = rows.iter().map(|row| row.name.to_owned()).collect();
        assert_eq!(names.len(), rows.len(), "{command}: an option has two rows");
        let options = arguments(command);
        assert!(options.len() > 40, "{command}: only {options:?}");
        let untested = options.difference(&names).map(|name| format!("{command} {name}: no row"));
        findings.extend(untested);
        findings
            .extend(names.difference(&options).map(|name| format!("{command} {name}: no option")));
    }
    assert!(findings.is_empty(), "{findings:#?}");
}

/// Node configuration of a command line.
fn node_config(line: &str) -> NodeSetup {
    let words = std::iter::once("flue").chain(line.split_whitespace());
    let cli = Cli::try_parse_from(words).unwrap_or_else(|error| panic!("{line}: {error}"));
    let resolve = |queues: QueueOptions, node: &NodeArgs| {
        node.resolve_on(queues).unwrap_or_else(|failure| panic!("{line}: {failure}"))
    };
    match &cli.command {
        Command::Nc(args) => resolve(args.queues, &args.node),
        Command::Rping(args) => resolve(args.queues, &args.node),
        Command::Perf(args) => resolve(args.queues, &args.node),
        Command::Serve(args) => resolve(args.queues, &args.node),
        Command::Run(args) => {
            let node = args.node().unwrap_or_else(|failure| panic!("{line}: {failure}"));
            let node = node.unwrap_or_else(|| panic!("{line}: kernel sockets"));
            NodeSetup { node, control: ControlSocketPath::resolve(args.node.control.as_deref()) }
        }
        other => panic!("{other:?}"),
    }
}

/// Configurations of the four commands with these arguments.
fn configs(words: &str) -> [NodeSetup; 4] {
    ["nc -l 5000", "rping -s", "perf tcp-bw", "serve"]
        .map(|command| node_config(&format!("{command} {words}")))
}

/// Configuration of `flue run`, which uses a node if a TAP is given; its file paths are absolute.
fn config_of_run(words: &str) -> NodeSetup {
    let tap = if words.contains("--tap") { "" } else { "--tap flue0" };
    node_config(&format!("run {tap} {words} true"))
}

/// Configuration with absolute paths.
fn absolute(mut setup: NodeSetup) -> NodeSetup {
    for path in [&mut setup.node.pcap, &mut setup.node.tcp_trace].into_iter().flatten() {
        *path = std::path::absolute(&*path).expect("a working directory");
    }
    setup
}

// Each node option changes the configuration, and equally in each command.
#[test]
fn commands_accept_the_same_node_options() {
    let modules = [link::ROWS, tcp::ROWS, chimney::ROWS, impairments::ROWS];
    let [plain, ..] = configs("--seed 1");
    for row in modules.into_iter().flatten() {
        assert!(row.words.contains(row.name), "{}: {:?}", row.name, row.words);
        let seed = if row.name == "--seed" { "" } else { "--seed 1" };
        let [nc, rping, perf, serve] = configs(&format!("{seed} {}", row.words));
        assert_ne!(nc, plain, "{}: nothing changes", row.words);
        assert_eq!(nc, rping, "{}", row.words);
        assert_eq!(nc, perf, "{}", row.words);
        assert_eq!(nc, serve, "{}", row.words);
        // A verbs program has one queue, and runs the engine with a thread.
        if !matches!(row.name, "--queues" | "--progress") {
            let run = config_of_run(&format!("{seed} {}", row.words));
            let mut expected = absolute(serve);
            expected.node.progress = Progress::Shared;
            assert_eq!(expected, run, "{}", row.words);
        }
    }
    for (alias, name) in
        [("--cc", "--congestion-control"), ("--loss", "--drop"), ("--duplicate", "--dup")]
    {
        let value = if alias == "--cc" { "newreno" } else { "7" };
        let [of_alias, of_name] =
            [alias, name].map(|name| configs(&format!("--seed 1 {name} {value}")));
        assert_eq!(of_alias, of_name);
    }
    assert_eq!(
        configs("--seed 1 --rate 1Mbit --limit 9p"),
        configs("--seed 1 --rate 1Mbit --queue 9p")
    );
}
