//! Run of the cases against a peer.

use std::{
    collections::BTreeMap,
    fs::OpenOptions,
    net::TcpListener,
    path::PathBuf,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use flue_report::failure::Failure;
use signal_hook::consts::{SIGINT, SIGTERM};

use crate::{
    capture::Capture,
    case::{Case, SET_UP},
    cases,
    consumer::Consumer,
    finding::{Blame, Finding, Step, Stop},
    link::{CONNECT, Link, Peer, RESTART, pause},
    result::{CaseResult, Difference, Outcome},
    verdict::Judgment,
};

/// Pause between a Reply and the first FPDU. Some implementations reply before they can receive.
const SETTLE: Duration = Duration::from_millis(50);

/// Settings of a run.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Address of the peer; with `is_listening`, that of the judge.
    pub address: std::net::SocketAddr,
    /// True if the peer is the initiator, and connects once per case.
    pub is_listening: bool,
    /// Consumer of the peer.
    pub consumer: Consumer,
    /// Rules and names of cases to run; a name may end in `*`. Empty: all.
    pub only: Vec<String>,
    /// Seed of random STags.
    pub seed: u64,
    /// Time limit of a response.
    pub limit: Duration,
    /// File of the capture.
    pub pcap: Option<PathBuf>,
}

/// Names of all cases with their rules.
pub fn list() -> Vec<(String, Vec<&'static str>, Consumer)> {
    cases::all().into_iter().map(|case| (case.name, case.rules, case.needs)).collect()
}

/// Returns true if the case is selected.
fn is_selected(case: &Case, only: &[String]) -> bool {
    let matches = |pattern: &String| match pattern.strip_suffix('*') {
        Some(start) => case.name.starts_with(start),
        None => case.name == *pattern || case.rules.contains(&pattern.as_str()),
    };
    only.is_empty() || only.iter().any(matches)
}

/// Reason for which the case cannot be run, if any.
fn obstacle(case: &Case, settings: &Settings) -> Option<Outcome> {
    if !is_selected(case, &settings.only) {
        return Some(Outcome::NotRun("not selected".into()));
    }
    let reason = match (settings.is_listening, case.is_initiator) {
        (true, true) => return None,
        (true, false) => "requires a responder: run without --listen".into(),
        (false, true) if settings.consumer < Consumer::Flue => {
            "requires an initiator: run with --listen".into()
        }
        _ if case.needs > settings.consumer => {
            format!("requires --consumer {}", case.needs.name())
        }
        _ => return None,
    };
    Some(Outcome::NotObservable(reason))
}

/// Runs the selected cases. `done` is called after each one.
///
/// # Errors
/// The peer is not reachable, a pattern matches no case, the capture cannot be written, or a signal ended the run.
pub fn judge(
    settings: &Settings,
    done: &mut dyn FnMut(&CaseResult),
) -> Result<Judgment, (Failure, Option<Judgment>)> {
    let plain = |failure| (failure, None);
    let all = cases::all();
    for pattern in &settings.only {
        if !all.iter().any(|case| is_selected(case, core::slice::from_ref(pattern))) {
            let text =
                format!("--only {pattern}: no such rule or case: flue judge --list prints all");
            return Err(plain(Failure::usage(text)));
        }
    }
    let stop = Arc::new(AtomicUsize::new(0));
    for signal in [SIGINT, SIGTERM] {
        let number = signal as usize;
        signal_hook::flag::register_usize(signal, Arc::clone(&stop), number)
            .map_err(|error| plain(Failure::work(format!("signal handler: {error}"))))?;
    }
    let peer = Arc::new(open(settings, Arc::clone(&stop)).map_err(plain)?);
    let mut results = BTreeMap::new();
    let mut ready = Vec::new();
    for (at, case) in all.iter().enumerate() {
        match obstacle(case, settings) {
            Some(outcome) => {
                drop(results.insert(at, CaseResult::new(&case.name, &case.rules, outcome)))
            }
            None => ready.push((at, case)),
        }
    }
    // Cases that wait for time limits of the peer run first, at the same time. An initiator connects for one case
    // after the other, and rping exits if a connection fails during its start-up.
    let is_concurrent = !settings.is_listening && settings.consumer == Consumer::Flue;
    let (slow, others): (Vec<_>, Vec<_>) =
        ready.into_iter().partition(|(_, case)| case.is_slow && is_concurrent);
    let ran = thread::scope(|scope| {
        let threads: Vec<_> =
            slow.iter().map(|(at, case)| (*at, scope.spawn(|| run(case, &peer)))).collect();
        let joined = threads.into_iter().map(|(at, thread)| (at, thread.join()));
        joined.collect::<Vec<_>>()
    });
    for (at, result) in ran {
        let failed = |_| plain(Failure::work("a case ended unexpectedly"));
        let result = result.map_err(failed)?;
        done(&result);
        results.insert(at, result);
    }
    let (mut witness, mut failures) = (None, Unreachable::default());
    for (at, case) in others {
        let mut result = match (stop.load(Ordering::Relaxed), failures.reason()) {
            (0, None) => run_with(case, &peer, &mut witness),
            (0, Some(reason)) => {
                CaseResult::new(&case.name, &case.rules, Outcome::NotRun(reason.to_owned()))
            }
            _ => CaseResult::new(&case.name, &case.rules, Outcome::NotRun("interrupted".into())),
        };
        // An earlier case may have ended the program of rping in the middle of this one: a difference must repeat.
        let failed = result.outcome == Outcome::Failed;
        if peer.consumer == Consumer::Rping && failed && await_restart(&peer) {
            let again = run_with(case, &peer, &mut witness);
            if again.outcome == Outcome::Passed {
                result = again;
            }
        }
        failures.note(&result);
        // The program of rping exits if a start-up fails, and is started again. A peer that has crashed is not judged
        // further.
        let may_be_down = case.fails_start() || result.outcome == Outcome::Failed;
        if peer.consumer == Consumer::Rping && may_be_down && !await_restart(&peer) {
            failures.give_up(format!("the peer does not recover from {}", case.name));
        }
        done(&result);
        results.insert(at, result);
    }
    let is_reached =
        results.values().any(|it| matches!(it.outcome, Outcome::Passed | Outcome::Failed));
    let unreachable = results.values().find_map(|it| match &it.outcome {
        Outcome::NotRun(reason) if reason.starts_with(CONNECT) => Some(reason),
        _ => None,
    });
    if let Some(reason) = unreachable.filter(|_| !is_reached) {
        return Err(plain(Failure::work(format!("{}: {reason}", settings.address))));
    }
    let judgment = Judgment::new(results.into_values().collect());
    if let Some(capture) = &peer.capture {
        let mut capture = capture.lock().unwrap_or_else(PoisonError::into_inner);
        if let Err(error) = capture.finish() {
            return Err((Failure::work(format!("--pcap: {error}")), Some(judgment)));
        }
    }
    match stop.load(Ordering::Relaxed) {
        0 => Ok(judgment),
        signal => Err((Failure::interrupted(signal as i32), Some(judgment))),
    }
}

/// Consecutive cases without a connection to the peer.
#[derive(Debug, Default)]
struct Unreachable {
    count: u32,
    last: String,
}

impl Unreachable {
    /// Count after which no more cases are run: the peer may have crashed.
    const COUNT_MAX: u32 = 3;

    fn note(&mut self, result: &CaseResult) {
        match &result.outcome {
            Outcome::NotRun(reason)
                if reason.starts_with(CONNECT) || reason.starts_with(SET_UP) =>
            {
                self.count += 1;
                self.last.clone_from(reason);
            }
            _ if self.reason().is_some() => {}
            _ => self.count = 0,
        }
    }

    fn give_up(&mut self, reason: String) {
        (self.count, self.last) = (Self::COUNT_MAX, reason);
    }

    fn reason(&self) -> Option<&str> {
        (self.count >= Self::COUNT_MAX).then_some(&self.last)
    }
}

/// Opens the capture and the listener, or checks that the peer accepts connections.
fn open(settings: &Settings, stop: Arc<AtomicUsize>) -> Result<Peer, Failure> {
    let Settings { address, is_listening, consumer, seed, limit, ref pcap, .. } = *settings;
    let capture = match pcap {
        Some(path) => {
            let failed = |error| Failure::work(format!("--pcap {}: {error}", path.display()));
            let file = OpenOptions::new().write(true).create(true).truncate(true).open(path);
            Some(Mutex::new(file.and_then(Capture::new).map_err(failed)?))
        }
        None => None,
    };
    let listener = match is_listening {
        true => Some(
            TcpListener::bind(address)
                .map_err(|error| Failure::work(format!("--listen {address}: {error}")))?,
        ),
        false => None,
    };
    let settle = if consumer == Consumer::Flue { Duration::ZERO } else { SETTLE };
    // The consumer of a listening run is unknown.
    let consumer = if is_listening { Consumer::None } else { consumer };
    Ok(Peer { address, consumer, limit, settle, seed, capture, listener, stop })
}

/// Connects a well-behaved client, if the consumer has reports.
fn connect_witness(peer: &Arc<Peer>) -> Step<Option<Box<Link>>> {
    if peer.consumer < Consumer::Flue {
        return Ok(None);
    }
    let mut link = Link::connect(peer, None)?;
    link.establish(b"")?;
    Ok(Some(Box::new(link)))
}

/// Waits until an exchange with the consumer succeeds, or for a limited time. Returns true if it has succeeded.
fn await_restart(peer: &Arc<Peer>) -> bool {
    let deadline = Instant::now() + RESTART.min(peer.limit);
    let exchange = || -> Step {
        let mut link = Link::connect(peer, None)?;
        link.establish(b"")?;
        link.ping()
    };
    loop {
        match exchange() {
            Ok(()) => return true,
            Err(_) if Instant::now() > deadline => return false,
            Err(_) => pause(),
        }
    }
}

fn run(case: &Case, peer: &Arc<Peer>) -> CaseResult {
    run_with(case, peer, &mut None)
}

/// Runs a case with the well-behaved client, which is connected if there is none.
fn run_with(case: &Case, peer: &Arc<Peer>, witness: &mut Option<Box<Link>>) -> CaseResult {
    let began = Instant::now();
    let mut result = CaseResult::new(&case.name, &case.rules, Outcome::Passed);
    if witness.is_none() {
        match connect_witness(peer) {
            Ok(link) => *witness = link,
            Err(stop) => {
                finish(&mut result, Err(stop), Vec::new());
                return result;
            }
        }
    }
    let mut link = match peer.listener {
        Some(_) => Link::detached(peer, peer.address, peer.address),
        None => match case.connect(peer) {
            Ok(link) => link,
            Err(stop) => {
                finish(&mut result, Err(stop), Vec::new());
                return result;
            }
        },
    };
    link.witness = witness.take();
    let mut ended = match peer.listener {
        Some(_) => case.run_detached(&mut link),
        None => case.run(&mut link),
    };
    link.close();
    if ended.is_ok() {
        ended = with_witness(case, &mut link);
    }
    *witness = link.witness.take().filter(|_| ended.is_ok());
    result.met = link.observed.clone();
    finish(&mut result, ended, link.findings);
    if result.outcome != Outcome::Passed {
        result.packets = link.packets.into();
    }
    result.milliseconds = u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX);
    result
}

/// Checks that the other connection works, and the report about the connection of the case.
fn with_witness(case: &Case, link: &mut Link) -> Step {
    if let Some(witness) = &mut link.witness {
        witness.ping().map_err(|stop| match stop {
            Stop::Finding(finding) => Stop::case(format!("another connection: {}", finding.text)),
            skip @ Stop::Skip(_) => skip,
        })?;
    }
    case.check_report(link)
}

/// Converts the findings.
fn finish(result: &mut CaseResult, ended: Step, mut findings: Vec<Finding>) {
    let mut is_complete = true;
    match ended {
        Ok(()) => {}
        Err(Stop::Finding(finding)) => {
            is_complete = false;
            findings.push(finding);
        }
        Err(Stop::Skip(reason)) => {
            is_complete = false;
            result.outcome = Outcome::NotRun(reason);
        }
    }
    for Finding { blame, text } in findings {
        let rules = match blame {
            Blame::Case => result.rules.clone(),
            Blame::Rules(rules) => rules.to_vec(),
            Blame::Choice => Vec::new(),
        };
        let difference = Difference { rules, text };
        if !result.differences.contains(&difference) {
            result.differences.push(difference);
        }
    }
    if is_complete {
        result.met.extend(result.rules.iter().copied());
    }
    for rule in result.differences.iter().flat_map(|it| &it.rules) {
        result.met.remove(rule);
    }
    if !result.differences.is_empty() && result.outcome == Outcome::Passed {
        result.outcome = Outcome::Failed;
    }
}
