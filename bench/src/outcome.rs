//! Results of a run: the body of the document "flue.bench/1", the source of tables and page.
//!
//! Values are in base units: bit/s, messages/s, ns, s/GB. A value that was not measured is null.

use std::collections::BTreeMap;

use serde::Serialize;

use super::{
    contest::{Bound, Contestant, Group, Metric, Panel, System},
    installed::Peer,
    machine::{Build, Machine},
    pace::ResampleCounts,
    sample::Sample,
    stats::{Ratio, Summary},
    syscalls::Calls,
};

/// Name of the document.
pub(super) const NAME: &str = "bench";

/// One measurement of a contestant.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub(super) struct Attempt {
    /// Round, from 1.
    pub(super) round: u32,
    /// Reason of the failure.
    pub(super) error: Option<String>,
    /// Measured values.
    #[serde(flatten)]
    pub(super) sample: Sample,
}

/// Contestant and its measurements.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub(super) struct Score {
    /// Name within the group.
    pub(super) name: String,
    /// Software under test.
    pub(super) system: System,
    /// Command line of the measuring process.
    pub(super) command: String,
    /// Reason why no measurement was attempted.
    pub(super) absent: Option<String>,
    /// Medians and ranges of the metrics with samples.
    pub(super) summaries: BTreeMap<Metric, Summary>,
    /// All measurements.
    pub(super) samples: Vec<Attempt>,
}

impl Score {
    /// Creates a score without measurements.
    pub(super) fn new(contestant: &Contestant, command: String, absent: Option<String>) -> Self {
        Self {
            name: contestant.name.clone(),
            system: contestant.system,
            command,
            absent,
            summaries: BTreeMap::new(),
            samples: Vec::new(),
        }
    }

    /// Returns the values of a metric by round.
    pub(super) fn figures(&self, metric: Metric) -> Vec<(u32, f64)> {
        let figure = |it: &Attempt| Some((it.round, it.sample.figure(metric)?));
        self.samples.iter().filter_map(figure).collect()
    }

    /// Returns median and range of a metric.
    pub(super) fn summary(&self, metric: Metric) -> Option<Summary> {
        self.summaries.get(&metric).copied()
    }

    /// Returns the most recent error.
    pub(super) fn error(&self) -> Option<&str> {
        self.samples.iter().rev().find_map(|attempt| attempt.error.as_deref())
    }

    fn summarize(&mut self) {
        const ALL: [Metric; 6] = [
            Metric::BandwidthBps,
            Metric::MessagesPerSecond,
            Metric::ConnectionsPerSecond,
            Metric::LatencyP50Ns,
            Metric::LatencyP99Ns,
            Metric::CpuSecondsPerGbyte,
        ];
        let summary = |metric| {
            let figures = self.figures(metric);
            Some((metric, Summary::of(figures.into_iter().map(|(_, figure)| figure))?))
        };
        self.summaries = ALL.into_iter().filter_map(summary).collect();
    }
}

/// Line of the table: flue compared with a peer, or with an absolute bound.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub(super) struct Line {
    /// Metric of the line.
    pub(super) metric: Metric,
    /// Unit for display.
    pub(super) unit: &'static str,
    /// Median and range of flue.
    pub(super) flue: Option<Summary>,
    /// Name of the peer; null for an absolute bound.
    pub(super) peer: Option<String>,
    /// Median and range of the peer.
    pub(super) other: Option<Summary>,
    /// Median of flue divided by that of the peer.
    #[serde(flatten)]
    pub(super) ratio: Option<Ratio>,
    /// Bound of the goal.
    pub(super) goal: Option<Bound>,
    /// True if the goal is met; null if it was not measured.
    pub(super) met: Option<bool>,
    /// Degree to which the goal is met: 1 exactly, more if better.
    pub(super) progress: Option<f64>,
    /// Bound of the stretch goal.
    pub(super) stretch: Option<Bound>,
    /// True if the stretch goal is met.
    pub(super) stretch_met: Option<bool>,
}

/// Group and its results.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub(super) struct Contest {
    /// Name of the group.
    pub(super) id: String,
    /// Description of the workload.
    pub(super) title: String,
    /// Main metric.
    pub(super) metric: Metric,
    /// True for a row of the table of goals.
    pub(super) is_row: bool,
    /// Chart that contains the group as a point.
    pub(super) panel: Option<Panel>,
    /// Position on the chart's horizontal axis: bytes, connections or queues.
    pub(super) at: Option<u64>,
    /// Scores of flue, then of its peers.
    pub(super) contestants: Vec<Score>,
    /// Lines of the table.
    pub(super) lines: Vec<Line>,
}

impl Contest {
    /// Creates the results of a group before `summarize`.
    pub(super) fn new(group: &Group, contestants: Vec<Score>) -> Self {
        Self {
            id: group.id.clone(),
            title: group.title.clone(),
            metric: group.metric,
            is_row: group.is_row,
            panel: group.point.map(|(panel, _)| panel),
            at: group.point.map(|(_, at)| at),
            contestants,
            lines: Vec::new(),
        }
    }

    /// Computes medians, ratios and verdicts from the samples so far.
    pub(super) fn summarize(&mut self, group: &Group) {
        for score in &mut self.contestants {
            score.summarize();
        }
        self.lines = self.compare(group);
    }

    /// Returns a line for each goal, and one for each contestant to which no goal of the main metric refers.
    fn compare(&self, group: &Group) -> Vec<Line> {
        let mut lines: Vec<Line> = Vec::new();
        for goal in &group.goals {
            lines.push(self.line(goal.metric, goal.peer.as_deref(), goal.goal, goal.stretch));
        }
        for other in self.contestants.iter().skip(1) {
            let is_listed = lines.iter().any(|line| {
                line.metric == self.metric && line.peer.as_deref() == Some(&other.name)
            });
            if !is_listed {
                lines.push(self.line(self.metric, Some(&other.name), None, None));
            }
        }
        if lines.is_empty() {
            lines.push(self.line(self.metric, None, None, None));
        }
        // The main metric first; within a metric, goals first.
        lines.sort_by_key(|line| (line.metric != self.metric, line.goal.is_none()));
        lines
    }

    fn line(
        &self,
        metric: Metric,
        peer: Option<&str>,
        goal: Option<Bound>,
        stretch: Option<Bound>,
    ) -> Line {
        let flue = self.contestants.first();
        let other = peer.and_then(|name| self.contestants.iter().find(|it| it.name == name));
        let median = |score: Option<&Score>| Some(score?.summary(metric)?.median);
        let (own, others) = (median(flue), median(other));
        // A relative bound has no verdict if the peer was not measured.
        let is_met = |bound: Option<Bound>| bound?.is_met(own?, others);
        let ratio = flue
            .zip(other)
            .and_then(|(flue, other)| Ratio::of(&flue.figures(metric), &other.figures(metric)));
        Line {
            metric,
            unit: metric.unit().0,
            flue: flue.and_then(|it| it.summary(metric)),
            peer: peer.map(str::to_owned),
            other: other.and_then(|it| it.summary(metric)),
            ratio,
            goal,
            met: is_met(goal),
            progress: goal.and_then(|goal| goal.progress(own?, others)),
            stretch,
            stretch_met: is_met(stretch),
        }
    }
}

/// Settings of the run.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub(super) struct Settings {
    /// Rounds of rows.
    pub(super) rounds: u32,
    /// Rounds of the points of charts.
    pub(super) plot_rounds: u32,
    /// Length of one measurement, seconds.
    pub(super) seconds: f64,
    /// True if the number of points was reduced.
    pub(super) quick: bool,
    /// MTU of all links, bytes.
    pub(super) mtu_bytes: u16,
    /// True if TAPs have the virtio-net header, except in rows for plain frames.
    pub(super) vnet_header: bool,
    /// True if FPDUs carry a CRC.
    pub(super) crc: bool,
    /// Congestion control of kernel sockets; null: the machine's default.
    pub(super) congestion_control: Option<&'static str>,
}

/// Body of the document of a run.
#[derive(Serialize)]
pub(super) struct Body<'a> {
    /// Settings of the run.
    pub(super) config: &'a Settings,
    /// Results of the run.
    pub(super) result: &'a Report,
}

/// Results of a run.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub(super) struct Report {
    /// Build of flue.
    pub(super) flue: Build,
    /// Start of the run, UTC.
    pub(super) date: String,
    /// Command line of the run.
    pub(super) command: Vec<String>,
    /// Properties of the machine.
    pub(super) machine: Machine,
    /// Settings of the run, the configuration of the document.
    #[serde(skip)]
    pub(super) settings: Settings,
    /// Network namespaces of the run, as named in /proc. They no longer exist.
    pub(super) namespaces: Vec<String>,
    /// External programs.
    pub(super) peers: Vec<Peer>,
    /// Signal that ended the run early.
    pub(super) interrupted_by: Option<i32>,
    /// Samples taken in a slow phase of the machine.
    pub(super) resampled: ResampleCounts,
    /// Results by group.
    pub(super) contests: Vec<Contest>,
    /// System calls of flue, if they were counted.
    pub(super) system_calls: Vec<Calls>,
}

/// Number of goals by verdict.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct VerdictCounts {
    /// Goals met.
    pub(super) met: usize,
    /// Goals missed.
    pub(super) missed: usize,
    /// Goals not measured.
    pub(super) unknown: usize,
}

impl Report {
    /// Returns the lines of all rows, each with its group.
    pub(super) fn lines(&self) -> impl Iterator<Item = (&Contest, &Line)> {
        let rows = self.contests.iter().filter(|contest| contest.is_row);
        rows.flat_map(|contest| contest.lines.iter().map(move |line| (contest, line)))
    }

    /// Counts the goals by verdict.
    pub(super) fn tally(&self) -> VerdictCounts {
        let mut tally = VerdictCounts::default();
        for (_, line) in self.lines().filter(|(_, line)| line.goal.is_some()) {
            match line.met {
                Some(true) => tally.met += 1,
                Some(false) => tally.missed += 1,
                None => tally.unknown += 1,
            }
        }
        tally
    }

    /// Returns the groups in which flue itself failed, with the error.
    pub(super) fn own_failures(&self) -> Vec<(&str, &str)> {
        let scores = self.contests.iter().flat_map(|contest| {
            contest.contestants.iter().map(|score| (contest.id.as_str(), score))
        });
        let own = scores.filter(|(_, score)| score.system == System::Flue);
        own.filter_map(|(id, score)| Some((id, score.error()?))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{catalog, contest::Goal};

    fn sampled(contestant: &Contestant, bandwidths: &[f64]) -> Score {
        let mut score = Score::new(contestant, String::new(), None);
        for (round, &bandwidth) in (1..).zip(bandwidths) {
            let sample = Sample { bandwidth_bps: Some(bandwidth), ..Sample::default() };
            score.samples.push(Attempt { round, error: None, sample });
        }
        score
    }

    fn contest(flue: &[f64], peer: &[f64], goal: Option<Bound>) -> Contest {
        let mut group = catalog::groups(true).into_iter().next().unwrap();
        group.contestants.truncate(2);
        let name = Some(group.contestants[1].name.clone());
        group.goals = vec![Goal { metric: Metric::BandwidthBps, peer: name, goal, stretch: goal }];
        let scores =
            vec![sampled(&group.contestants[0], flue), sampled(&group.contestants[1], peer)];
        let mut contest = Contest::new(&group, scores);
        contest.summarize(&group);
        contest
    }

    #[test]
    fn verdict_uses_medians() {
        let goal = Some(Bound::RatioAtLeast(0.75));
        let contest = contest(&[60e9, 90e9, 66e9], &[80e9, 80e9, 88e9], goal);
        let [line] = &contest.lines[..] else { panic!("{:?}", contest.lines) };
        assert_eq!(line.flue.unwrap().median, 66e9);
        assert_eq!(line.other.unwrap().median, 80e9);
        let ratio = line.ratio.unwrap();
        assert_eq!(ratio.ratio, 66.0 / 80.0);
        assert_eq!((ratio.min, ratio.max), (0.75, 1.125));
        assert_eq!((line.met, line.stretch_met), (Some(true), Some(true)));
        assert!((line.progress.unwrap() - 1.1).abs() < 1e-9);
    }

    #[test]
    fn missing_peer_has_no_verdict() {
        let contest = contest(&[60e9], &[], Some(Bound::RatioAtLeast(0.75)));
        let [line] = &contest.lines[..] else { panic!("{:?}", contest.lines) };
        assert_eq!((line.met, line.progress), (None, None));
        assert!(line.flue.is_some() && line.other.is_none() && line.ratio.is_none());
    }

    #[test]
    fn contestants_without_a_goal_are_compared_too() {
        for group in catalog::groups(true) {
            let scores = group.contestants.iter().map(|it| sampled(it, &[1e9])).collect();
            let mut contest = Contest::new(&group, scores);
            contest.summarize(&group);
            for other in &group.contestants[1..] {
                let listed =
                    contest.lines.iter().filter(|it| it.peer.as_ref() == Some(&other.name));
                assert!(listed.count() > 0, "{}: {}", group.id, other.name);
            }
        }
    }
}
