//! `flue judge`: judges an iWARP peer by the rules of the RFCs. The crate `flue-judge` has rules, cases and verdicts.

use std::{
    net::{IpAddr, SocketAddr},
    path::PathBuf,
    time::Duration,
};

use clap::Args;
use flue_adapter::random_seed;
use flue_judge::{CaseResult, Consumer, Judgment, Outcome, Settings, Verdict};
use serde::Serialize;

use super::rping::PORT_DEFAULT;
use crate::{failure::Failure, options::OutputArgs, report::Console};

/// Packets of a violated rule that are printed.
const PACKETS_SHOWN: usize = 8;

/// Test the conformance of an iWARP peer to RFC 5040, 5041, 5044 and 6581
///
/// Connects to PEER over kernel sockets, sends valid and invalid messages, and prints a verdict for each rule: met,
/// violated, not observable or not run. The peer may be Linux siw, a hardware adapter, flue or another implementation.
/// --consumer selects the messages that its program understands.
///
/// The peer must be a test machine: invalid messages end its connections. The status is 1 if a rule is violated.
#[derive(Args, Clone, Debug)]
#[command(after_long_help = "Examples:
  # Linux siw or an adapter: on the peer, while true; do rping -s -P; done
  flue judge 10.77.0.2 --consumer rping

  # start-up rules of any listener
  flue judge 10.77.0.2:4420

  # the peer as initiator: there, while true; do rping -c -a 10.77.0.1 -C 1; done
  flue judge --listen 10.77.0.1

  # one rule, with its packets in Wireshark
  flue judge 10.77.0.2 --consumer rping --only RDM-4.8-1 --pcap judge.pcapng")]
pub struct JudgeArgs {
    /// Address of the peer; port of rping by default
    #[arg(value_name = "IP[:PORT]", value_parser = parse_peer,
          required_unless_present_any = ["listen", "list"])]
    pub peer: Option<SocketAddr>,

    /// Judge a peer that connects to this address
    ///
    /// The peer connects once for each case, within --timeout.
    #[arg(long, value_name = "IP[:PORT]", value_parser = parse_peer, conflicts_with = "peer")]
    pub listen: Option<SocketAddr>,

    /// Use these messages of the program at the peer
    #[arg(long, value_enum, default_value_t = Consumer::None, value_name = "CONSUMER")]
    pub consumer: Consumer,

    /// Run the cases of this rule, or this case; repeatable
    ///
    /// The name of a case may end in *.
    #[arg(long, value_name = "RULE|CASE")]
    pub only: Vec<String>,

    /// Print the cases with their rules
    #[arg(long)]
    pub list: bool,

    /// Expect a response within this time, seconds: 1..=600
    #[arg(short = 'w', long, value_name = "SECONDS", default_value_t = 15,
          value_parser = clap::value_parser!(u16).range(1..=600))]
    pub timeout: u16,

    /// Seed guesses of STags [default: random, printed]
    #[arg(long, value_name = "N")]
    pub seed: Option<u64>,

    /// Capture all connections to this file (pcapng)
    #[arg(long, value_name = "FILE")]
    pub pcap: Option<PathBuf>,

    /// Output format.
    #[command(flatten)]
    pub output: OutputArgs,
}

/// Parses an address with or without a port.
fn parse_peer(text: &str) -> Result<SocketAddr, String> {
    let with_default = |ip: IpAddr| SocketAddr::new(ip, PORT_DEFAULT);
    text.parse().or_else(|_| text.parse().map(with_default)).map_err(|_| {
        "expected an IP address, such as 10.77.0.2, 10.77.0.2:4420 or [fd00::2]:4420".into()
    })
}

/// Configuration of a run.
#[derive(Clone, Debug, Serialize)]
struct Config {
    peer: SocketAddr,
    is_listening: bool,
    consumer: Consumer,
    only: Vec<String>,
    timeout_s: u16,
    /// Digits: numbers above 2^53 are rounded by jq.
    seed: String,
}

impl std::fmt::Display for Config {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { peer, is_listening, consumer, timeout_s, seed, .. } = self;
        let role = if *is_listening { "listening on" } else { "peer" };
        let consumer = consumer.name();
        write!(f, "{role} {peer}, consumer {consumer}, timeout {timeout_s} s, seed {seed}")
    }
}

/// Runs `flue judge`.
///
/// # Errors
/// The peer is not reachable, a rule is violated, or the capture cannot be written.
pub fn run(args: &JudgeArgs, console: &mut Console<'_>) -> Result<(), Failure> {
    if args.list {
        return list(args, console);
    }
    let Some(address) = args.peer.or(args.listen) else {
        return Err(Failure::usage("no peer: add IP[:PORT] or --listen"));
    };
    let seed = args.seed.map_or_else(random_seed, Ok)?;
    let settings = Settings {
        address,
        is_listening: args.listen.is_some(),
        consumer: args.consumer,
        only: args.only.clone(),
        seed,
        limit: Duration::from_secs(args.timeout.into()),
        pcap: args.pcap.clone(),
    };
    console.config(&Config {
        peer: address,
        is_listening: settings.is_listening,
        consumer: args.consumer,
        only: args.only.clone(),
        timeout_s: args.timeout,
        seed: seed.to_string(),
    });
    let judged = flue_judge::judge(&settings, &mut |result| step(result, console));
    let (judgment, failure) = match judged {
        Ok(judgment) => (Some(judgment), None),
        Err((failure, judgment)) => (judgment, Some(failure)),
    };
    if let Some(judgment) = &judgment {
        print(judgment, console);
    }
    failure.map_or(Ok(()), Err)?;
    let violated = judgment.map_or(0, |judgment| judgment.count(Verdict::Violated));
    match violated {
        0 => Ok(()),
        1 => Err(Failure::work("1 rule is violated")),
        count => Err(Failure::work(format!("{count} rules are violated"))),
    }
}

/// Prints the result of a case.
fn step(result: &CaseResult, console: &mut Console<'_>) {
    let CaseResult { name, outcome, differences, .. } = result;
    match outcome {
        Outcome::Passed => console.step(format!("ok      {name}")),
        Outcome::Failed => {
            let rules: Vec<&str> = differences.iter().flat_map(|it| it.rules.clone()).collect();
            let text = differences.first().map_or("", |it| it.text.as_str());
            console.step(format!("differs {name}: {text} [{}]", rules.join(" ")));
        }
        Outcome::NotRun(reason) | Outcome::NotObservable(reason) => {
            console.step(format!("not run {name}: {reason}"));
        }
    }
}

/// Prints the verdicts.
fn print(judgment: &Judgment, console: &mut Console<'_>) {
    console.print(judgment.table());
    for violated in judgment.violated() {
        let rule = violated.rule;
        let reason = violated.reason.as_deref().unwrap_or_default();
        console.print(format!("\nviolated: {} ({}): {}", rule.id, rule.section, rule.subject));
        console.print(format!("  {reason}"));
        let name = violated.cases.first();
        let case = judgment.cases.iter().find(|case| Some(&case.name) == name);
        let packets = case.map_or(&[][..], |case| &case.packets);
        for packet in &packets[packets.len().saturating_sub(PACKETS_SHOWN)..] {
            console.print(format!("  {packet}"));
        }
        if violated.cases.len() > 1 {
            console.print(format!("  also: {}", violated.cases[1..].join(", ")));
        }
    }
    let [met, violated, unobservable, not_run] =
        [Verdict::Met, Verdict::Violated, Verdict::NotObservable, Verdict::NotRun]
            .map(|verdict| judgment.count(verdict));
    console.print(format!(
        "\n{met} rules met, {violated} violated, {unobservable} not observable, {not_run} not run"
    ));
    console.result(judgment);
}

/// Prints the cases.
fn list(args: &JudgeArgs, console: &mut Console<'_>) -> Result<(), Failure> {
    #[derive(Serialize)]
    struct Case {
        name: String,
        rules: Vec<&'static str>,
        consumer: Consumer,
    }
    let all = flue_judge::list().into_iter();
    let cases: Vec<Case> =
        all.map(|(name, rules, consumer)| Case { name, rules, consumer }).collect();
    if !args.only.is_empty() || args.pcap.is_some() {
        return Err(Failure::usage("--list: not supported with --only and --pcap"));
    }
    for Case { name, rules, consumer } in &cases {
        console.print(format!("{name} ({}): {}", consumer.name(), rules.join(" ")));
    }
    console.result(&serde_json::json!({ "cases": cases, "rules": flue_judge::rules() }));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn port_of_rping_is_the_default() {
        assert_eq!(parse_peer("10.0.0.1"), Ok("10.0.0.1:7174".parse().unwrap()));
        assert_eq!(parse_peer("[fd00::1]:80"), Ok("[fd00::1]:80".parse().unwrap()));
        assert_eq!(parse_peer("fd00::1"), Ok("[fd00::1]:7174".parse().unwrap()));
        assert!(parse_peer("peer:80").unwrap_err().contains("10.77.0.2:4420"));
    }
}
