//! Rounds: each measures every contestant once, so that other load on the machine affects all of them.
//!
//! Odd rounds follow the order of the catalog, even ones reverse it within each group. A job shared by several groups
//! runs once per round. A contestant with [`FAILURES_MAX`] failures and no success is skipped.

use std::collections::HashMap;

use super::{
    contest::{Group, Job, Metric},
    outcome::{Attempt, Contest, Score},
    process::Fault,
    sample::Sample,
};

/// Failures without a success after which a contestant is skipped.
const FAILURES_MAX: usize = 2;

/// Execution of jobs for the rounds.
pub(super) trait Measure {
    /// Runs a job once.
    fn measure(&mut self, job: &Job) -> Result<Sample, Fault>;
    /// Reports the start or the end of a measurement.
    fn report(&mut self, step: &Step<'_>);
}

/// Progress of the rounds.
#[derive(Debug)]
pub(super) struct Step<'a> {
    /// Measurements done or skipped.
    pub(super) done: usize,
    /// Total number of measurements.
    pub(super) all: usize,
    /// Round, from 1.
    pub(super) round: u32,
    /// Group of the measurement.
    pub(super) group: &'a Group,
    /// Name of the contestant.
    pub(super) name: &'a str,
    /// Value or error; `None` at the start.
    pub(super) result: Option<Result<f64, &'a str>>,
}

/// Number of rounds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Rounds {
    /// Rounds of rows.
    pub(super) rows: u32,
    /// Rounds of points of charts.
    pub(super) points: u32,
}

impl Rounds {
    const fn of(self, group: &Group) -> u32 {
        if group.is_row { self.rows } else { self.points }
    }
}

/// Returns the number of measurements.
pub(super) fn count(groups: &[Group], rounds: Rounds) -> usize {
    groups.iter().map(|it| it.contestants.len() * rounds.of(it) as usize).sum()
}

/// Runs all rounds and adds the samples to `contests`, which correspond to `groups`.
///
/// # Errors
/// The signal that interrupted the rounds; the samples so far are kept.
pub(super) fn run(
    groups: &[Group],
    contests: &mut [Contest],
    rounds: Rounds,
    tool: &mut impl Measure,
) -> Result<(), i32> {
    let all = count(groups, rounds);
    let mut done = 0;
    for round in 1..=rounds.rows.max(rounds.points) {
        let mut shared: HashMap<&Job, Result<Sample, String>> = HashMap::new();
        for (group, contest) in groups.iter().zip(contests.iter_mut()) {
            if round > rounds.of(group) {
                continue;
            }
            for index in turns(group.contestants.len(), round) {
                done += 1;
                let contestant = &group.contestants[index];
                let score = &mut contest.contestants[index];
                if score.absent.is_some() || is_skipped(score) {
                    continue;
                }
                let name = &contestant.name;
                let step = |result| Step { done, all, round, group, name, result };
                let measured = match shared.get(&contestant.job) {
                    Some(measured) => measured.clone(),
                    None => {
                        tool.report(&step(None));
                        let measured = match tool.measure(&contestant.job) {
                            Ok(sample) => Ok(sample),
                            Err(Fault::Failed(why)) => Err(why),
                            Err(Fault::Interrupted(signal)) => return Err(signal),
                        };
                        let result = measured.as_ref().map(|sample| shown(group.metric, sample));
                        tool.report(&step(Some(result.map_err(String::as_str))));
                        shared.insert(&contestant.job, measured.clone());
                        measured
                    }
                };
                let (sample, error) = match measured {
                    Ok(sample) => (sample, None),
                    Err(why) => (Sample::default(), Some(why)),
                };
                score.samples.push(Attempt { round, error, sample });
            }
        }
    }
    Ok(())
}

fn shown(metric: Metric, sample: &Sample) -> f64 {
    sample.figure(metric).unwrap_or(f64::NAN)
}

fn is_skipped(score: &Score) -> bool {
    score.samples.len() >= FAILURES_MAX && score.samples.iter().all(|it| it.error.is_some())
}

/// Returns the order of contestants in a round.
fn turns(contestants: usize, round: u32) -> Vec<usize> {
    let mut turns: Vec<usize> = (0..contestants).collect();
    if round.is_multiple_of(2) {
        turns.reverse();
    }
    turns
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalog::groups as catalog;

    /// Fake that counts the jobs, and fails selected ones.
    struct Fake {
        order: Vec<Job>,
        fails: Vec<Job>,
        ends_after: usize,
        reports: usize,
    }

    impl Measure for Fake {
        fn measure(&mut self, job: &Job) -> Result<Sample, Fault> {
            if self.order.len() == self.ends_after {
                return Err(Fault::Interrupted(2));
            }
            self.order.push(job.clone());
            if self.fails.contains(job) {
                return Err(Fault::Failed("it said nothing".into()));
            }
            Ok(Sample { bandwidth_bps: Some(self.order.len() as f64), ..Sample::default() })
        }

        fn report(&mut self, step: &Step<'_>) {
            assert!(step.done <= step.all);
            self.reports += 1;
        }
    }

    fn play(
        names: &[&str],
        rounds: Rounds,
        mut fake: Fake,
    ) -> (Vec<Group>, Vec<Contest>, Fake, Result<(), i32>) {
        let mut groups = catalog(true);
        groups.retain(|group| names.contains(&group.id.as_str()));
        let mut contests: Vec<Contest> = groups
            .iter()
            .map(|group| {
                let scores = group.contestants.iter();
                let scores = scores.map(|it| Score::new(it, String::new(), None)).collect();
                Contest::new(group, scores)
            })
            .collect();
        let ended = run(&groups, &mut contests, rounds, &mut fake);
        (groups, contests, fake, ended)
    }

    fn fake() -> Fake {
        Fake { order: Vec::new(), fails: Vec::new(), ends_after: usize::MAX, reports: 0 }
    }

    #[test]
    fn each_round_measures_all_in_alternating_order() {
        let rounds = Rounds { rows: 2, points: 1 };
        let (groups, contests, fake, ended) = play(&["latency-block"], rounds, fake());
        assert_eq!(ended, Ok(()));
        let [a, b] = &groups[0].contestants[..] else { panic!("two") };
        assert_eq!(fake.order, [&a.job, &b.job, &b.job, &a.job].map(Clone::clone));
        assert!(contests[0].contestants.iter().all(|score| score.samples.len() == 2));
        assert_eq!(fake.reports, 8);
    }

    #[test]
    fn shared_job_runs_once_per_round() {
        let rounds = Rounds { rows: 2, points: 1 };
        let (groups, contests, fake, _) = play(&["write-64k", "size-write/65536"], rounds, fake());
        let jobs = groups[0].contestants.len();
        assert_eq!(fake.order.len(), 2 * jobs);
        let first = |contest: &Contest| contest.contestants[0].samples[0].clone();
        assert_eq!(first(&contests[0]), first(&contests[1]));
        assert_eq!(contests[1].contestants[0].samples.len(), 1);
    }

    #[test]
    fn failing_contestant_is_skipped_and_others_continue() {
        let all = catalog(true);
        let group = all.iter().find(|group| group.id == "latency-block").unwrap();
        let fails = vec![group.contestants[1].job.clone()];
        let rounds = Rounds { rows: 5, points: 5 };
        let (_, contests, _, ended) = play(&["latency-block"], rounds, Fake { fails, ..fake() });
        assert_eq!(ended, Ok(()));
        let [flue, peer] = &contests[0].contestants[..] else { panic!("two") };
        assert_eq!((flue.samples.len(), peer.samples.len()), (5, FAILURES_MAX));
        assert_eq!(peer.error(), Some("it said nothing"));
        assert_eq!(flue.error(), None);
    }

    #[test]
    fn signal_ends_rounds_and_keeps_samples() {
        let rounds = Rounds { rows: 5, points: 5 };
        let (_, contests, _, ended) =
            play(&["latency-block"], rounds, Fake { ends_after: 3, ..fake() });
        assert_eq!(ended, Err(2));
        let counts = contests[0].contestants.iter().map(|score| score.samples.len());
        assert_eq!(counts.sum::<usize>(), 3);
    }
}
