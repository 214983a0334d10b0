//! What a run has found: the document "flue-bench/1", of which table and page are made.
//!
//! Figures stand in base units: bit/s, messages/s, ns, s/GB. What was not measured is null.

use std::collections::BTreeMap;

use serde::Serialize;

use super::{
    contest::{Bound, Contestant, Group, Metric, Panel, System},
    found::Peer,
    machine::{Build, Machine},
    sample::Sample,
    stats::{Ratio, Summary},
    syscalls::Calls,
};

/// The document's name and version. The number grows when a key changes its meaning or goes away.
pub(super) const SCHEMA: &str = "flue-bench/1";

/// Of what one sample came.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub(super) struct Attempt {
    /// From 1.
    pub(super) round: u32,
    /// Why there is no sample.
    pub(super) error: Option<String>,
    /// The sample.
    #[serde(flatten)]
    pub(super) sample: Sample,
}

/// A contestant, and how it did.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub(super) struct Score {
    /// Its name within the group.
    pub(super) name: String,
    /// Whose program.
    pub(super) system: System,
    /// The command line of who measured.
    pub(super) command: String,
    /// Why it did not take part.
    pub(super) absent: Option<String>,
    /// Medians and ranges, of what it has.
    pub(super) summaries: BTreeMap<Metric, Summary>,
    /// All of it.
    pub(super) samples: Vec<Attempt>,
}

impl Score {
    /// Nobody's yet.
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

    /// The figures by round.
    pub(super) fn figures(&self, metric: Metric) -> Vec<(u32, f64)> {
        let figure = |it: &Attempt| Some((it.round, it.sample.figure(metric)?));
        self.samples.iter().filter_map(figure).collect()
    }

    /// What they came to.
    pub(super) fn summary(&self, metric: Metric) -> Option<Summary> {
        self.summaries.get(&metric).copied()
    }

    /// The last reason for which there is no sample.
    pub(super) fn error(&self) -> Option<&str> {
        self.samples.iter().rev().find_map(|attempt| attempt.error.as_deref())
    }

    fn sum_up(&mut self) {
        const ALL: [Metric; 4] = [
            Metric::BandwidthBps,
            Metric::MessagesPerSecond,
            Metric::LatencyP50Ns,
            Metric::CpuSecondsPerGbyte,
        ];
        let summary = |metric| {
            let figures = self.figures(metric);
            Some((metric, Summary::of(figures.into_iter().map(|(_, figure)| figure))?))
        };
        self.summaries = ALL.into_iter().filter_map(summary).collect();
    }
}

/// flue beside another, or by itself.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub(super) struct Line {
    /// Of which figure.
    pub(super) metric: Metric,
    /// What it is counted in.
    pub(super) unit: &'static str,
    /// flue's.
    pub(super) flue: Option<Summary>,
    /// Beside whom; null for a bound by itself.
    pub(super) beside: Option<String>,
    /// The other's.
    pub(super) other: Option<Summary>,
    /// flue in units of the other: the quotient of the medians.
    #[serde(flatten)]
    pub(super) ratio: Option<Ratio>,
    /// Good enough.
    pub(super) goal: Option<Bound>,
    /// Whether it is; null when it was not measured.
    pub(super) met: Option<bool>,
    /// How far: 1 is just so.
    pub(super) progress: Option<f64>,
    /// Better still.
    pub(super) stretch: Option<Bound>,
    /// Whether it is.
    pub(super) stretch_met: Option<bool>,
}

/// A group, and how everybody did.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub(super) struct Contest {
    /// The group's name.
    pub(super) id: String,
    /// What the work is.
    pub(super) title: String,
    /// The figure it is about.
    pub(super) metric: Metric,
    /// It is one of the table of goals.
    pub(super) is_row: bool,
    /// The picture it is a point of.
    pub(super) panel: Option<Panel>,
    /// Where on that picture's axis: bytes, connections or queues.
    pub(super) at: Option<u64>,
    /// flue, and then the others.
    pub(super) contestants: Vec<Score>,
    /// What is told of it.
    pub(super) lines: Vec<Line>,
}

impl Contest {
    /// Of a group, before anything was measured.
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

    /// Medians, ratios and verdicts, of the samples so far.
    pub(super) fn sum_up(&mut self, group: &Group) {
        for score in &mut self.contestants {
            score.sum_up();
        }
        self.lines = self.judged(group);
    }

    /// A line for each goal, and one for each other contestant that none speaks of, by the group's figure.
    fn judged(&self, group: &Group) -> Vec<Line> {
        let mut lines: Vec<Line> = Vec::new();
        for goal in &group.goals {
            lines.push(self.line(goal.metric, goal.beside.as_deref(), goal.goal, goal.stretch));
        }
        for other in self.contestants.iter().skip(1) {
            let is_told = lines.iter().any(|line| {
                line.metric == self.metric && line.beside.as_deref() == Some(&other.name)
            });
            if !is_told {
                lines.push(self.line(self.metric, Some(&other.name), None, None));
            }
        }
        if lines.is_empty() {
            lines.push(self.line(self.metric, None, None, None));
        }
        // What the group is about first; of it, goals first.
        lines.sort_by_key(|line| (line.metric != self.metric, line.goal.is_none()));
        lines
    }

    fn line(
        &self,
        metric: Metric,
        beside: Option<&str>,
        goal: Option<Bound>,
        stretch: Option<Bound>,
    ) -> Line {
        let flue = self.contestants.first();
        let other = beside.and_then(|name| self.contestants.iter().find(|it| it.name == name));
        let median = |score: Option<&Score>| Some(score?.summary(metric)?.median);
        let (own, others) = (median(flue), median(other));
        // A bound beside somebody who did not take part is nobody's.
        let kept = |bound: Option<Bound>| bound?.is_kept(own?, others);
        let ratio = flue
            .zip(other)
            .and_then(|(flue, other)| Ratio::of(&flue.figures(metric), &other.figures(metric)));
        Line {
            metric,
            unit: metric.unit().0,
            flue: flue.and_then(|it| it.summary(metric)),
            beside: beside.map(str::to_owned),
            other: other.and_then(|it| it.summary(metric)),
            ratio,
            goal,
            met: kept(goal),
            progress: goal.and_then(|goal| goal.progress(own?, others)),
            stretch,
            stretch_met: kept(stretch),
        }
    }
}

/// What was asked for, and what the place is like.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub(super) struct Settings {
    /// Rounds of rows.
    pub(super) rounds: u32,
    /// Rounds of the points of pictures.
    pub(super) plot_rounds: u32,
    /// How long a sample is measured.
    pub(super) seconds: f64,
    /// Fewer points.
    pub(super) quick: bool,
    /// Largest IP packet of all links, bytes.
    pub(super) mtu_bytes: u16,
    /// TAPs have the virtio-net header, where a row does not say otherwise.
    pub(super) vnet_header: bool,
    /// FPDUs carry a CRC.
    pub(super) crc: bool,
    /// Of the kernels; null: the machine's default.
    pub(super) congestion_control: Option<&'static str>,
}

/// The document.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub(super) struct Report {
    /// [`SCHEMA`].
    pub(super) schema: &'static str,
    /// This program.
    pub(super) flue: Build,
    /// When the run began, UTC.
    pub(super) date: String,
    /// As it was called.
    pub(super) command: Vec<String>,
    /// The machine.
    pub(super) machine: Machine,
    /// What was asked for.
    pub(super) settings: Settings,
    /// The namespaces it was in, as /proc calls them. They are gone.
    pub(super) namespaces: Vec<String>,
    /// Other programs.
    pub(super) peers: Vec<Peer>,
    /// It was ended before it was done, by this signal.
    pub(super) interrupted_by: Option<i32>,
    /// How everybody did.
    pub(super) contests: Vec<Contest>,
    /// System calls of flue, where they were counted.
    pub(super) system_calls: Vec<Calls>,
}

/// Goals by verdict.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Tally {
    /// Met.
    pub(super) met: usize,
    /// Missed.
    pub(super) missed: usize,
    /// Not measured, here.
    pub(super) unknown: usize,
}

impl Report {
    /// The lines of the rows, with their contests.
    pub(super) fn lines(&self) -> impl Iterator<Item = (&Contest, &Line)> {
        let rows = self.contests.iter().filter(|contest| contest.is_row);
        rows.flat_map(|contest| contest.lines.iter().map(move |line| (contest, line)))
    }

    /// How many goals are met.
    pub(super) fn tally(&self) -> Tally {
        let mut tally = Tally::default();
        for (_, line) in self.lines().filter(|(_, line)| line.goal.is_some()) {
            match line.met {
                Some(true) => tally.met += 1,
                Some(false) => tally.missed += 1,
                None => tally.unknown += 1,
            }
        }
        tally
    }

    /// Groups in which flue itself has failed, with the reason.
    pub(super) fn own_failures(&self) -> Vec<(&str, &str)> {
        let contests = self.contests.iter();
        contests.filter_map(|it| Some((it.id.as_str(), it.contestants.first()?.error()?))).collect()
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
        let beside = Some(group.contestants[1].name.clone());
        group.goals = vec![Goal { metric: Metric::BandwidthBps, beside, goal, stretch: goal }];
        let scores =
            vec![sampled(&group.contestants[0], flue), sampled(&group.contestants[1], peer)];
        let mut contest = Contest::new(&group, scores);
        contest.sum_up(&group);
        contest
    }

    #[test]
    fn a_line_is_judged_by_medians() {
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
    fn without_a_peer_there_is_no_verdict() {
        let contest = contest(&[60e9], &[], Some(Bound::RatioAtLeast(0.75)));
        let [line] = &contest.lines[..] else { panic!("{:?}", contest.lines) };
        assert_eq!((line.met, line.progress), (None, None));
        assert!(line.flue.is_some() && line.other.is_none() && line.ratio.is_none());
    }

    #[test]
    fn who_has_no_goal_is_compared_all_the_same() {
        for group in catalog::groups(true) {
            let scores = group.contestants.iter().map(|it| sampled(it, &[1e9])).collect();
            let mut contest = Contest::new(&group, scores);
            contest.sum_up(&group);
            for other in &group.contestants[1..] {
                let told =
                    contest.lines.iter().filter(|it| it.beside.as_ref() == Some(&other.name));
                assert!(told.count() > 0, "{}: {}", group.id, other.name);
            }
        }
    }
}
