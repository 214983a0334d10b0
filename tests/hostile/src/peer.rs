//! Hostile peer as a command: `hostile-peer IP:PORT [--only CASE] [--rounds N]` runs the cases of `flue judge` against
//! `hostile-server`, and prints a line for each. `hostile-peer --list` prints the cases with their rules.
//!
//! A case fails if the server behaves differently from any of its expectations, including those that the RFCs leave to
//! the implementation.

use std::{net::SocketAddr, process::ExitCode, time::Duration};

use clap::Parser;
use flue_judge::{CaseResult, Consumer, Outcome, Settings, judge, list};

/// Time limit of a response.
const LIMIT: Duration = Duration::from_secs(15);

#[derive(Parser)]
struct Arguments {
    /// Address of the server
    #[arg(required_unless_present = "list")]
    server: Option<SocketAddr>,
    /// Rule or case to run; repeatable
    #[arg(long)]
    only: Vec<String>,
    /// Number of runs of the cases
    #[arg(long, default_value_t = 1)]
    rounds: u32,
    /// Print the cases with their rules
    #[arg(long)]
    list: bool,
}

/// Prints the line of a case, unless it was not selected.
fn print(result: &CaseResult) {
    let CaseResult { name, rules, outcome, differences, packets, milliseconds, .. } = result;
    let rules = rules.join(" ");
    match outcome {
        Outcome::Passed => println!("ok {name} [{rules}] {milliseconds} ms"),
        Outcome::Failed => {
            let texts: Vec<&str> = differences.iter().map(|it| it.text.as_str()).collect();
            println!("FAILED {name} [{rules}]: {}", texts.join("; "));
            packets.iter().for_each(|packet| println!("    {packet}"));
        }
        Outcome::NotRun(reason) | Outcome::NotObservable(reason) => {
            println!("FAILED {name} [{rules}]: {reason}");
        }
    }
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let Some(address) = arguments.server else {
        for (name, rules, _) in list() {
            println!("{name} {}", rules.join(" "));
        }
        return ExitCode::SUCCESS;
    };
    let settings = Settings {
        address,
        is_listening: false,
        consumer: Consumer::Flue,
        only: arguments.only,
        seed: 7,
        limit: LIMIT,
        pcap: None,
    };
    for _ in 0..arguments.rounds {
        if let Err((failure, _)) = judge(&settings, &mut print) {
            println!("FAILED run: {failure}");
            return ExitCode::FAILURE;
        }
    }
    println!("done");
    ExitCode::SUCCESS
}
