//! The rounds: everybody once in each, in turns, so that whatever the machine does meanwhile hits all alike.
//!
//! In odd rounds the order is that of the catalog, in even ones the reverse. A job that two groups share
//! is done once a round. A contestant that has failed [`FAILURES_MAX`] times without a sample is not tried again.

use std::collections::HashMap;

use super::{
    contest::{Group, Job, Metric},
    outcome::{Attempt, Contest, Score},
    process::Fault,
    sample::Sample,
};

/// Tries without a single sample.
const FAILURES_MAX: usize = 2;

/// What the rounds ask of who runs the jobs.
pub(super) trait Measure {
    /// Measures once.
    fn measure(&mut self, job: &Job) -> Result<Sample, Fault>;
    /// Tells that a sample is about to be taken, or has been.
    fn tell(&mut self, step: &Step<'_>);
}

/// Where the rounds are.
#[derive(Debug)]
pub(super) struct Step<'a> {
    /// Samples done or skipped, and all there are.
    pub(super) done: usize,
    /// All there are.
    pub(super) all: usize,
    /// From 1.
    pub(super) round: u32,
    /// The group.
    pub(super) group: &'a Group,
    /// Who.
    pub(super) name: &'a str,
    /// What came of it; none: it begins.
    pub(super) came: Option<Result<f64, &'a str>>,
}

/// How many rounds groups have.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Rounds {
    /// Rows.
    pub(super) rows: u32,
    /// Points of pictures.
    pub(super) points: u32,
}

impl Rounds {
    const fn of(self, group: &Group) -> u32 {
        if group.is_row { self.rows } else { self.points }
    }
}

/// Runs all rounds, and fills in the samples of `contests`, which are those of `groups`.
///
/// # Errors
/// The signal that has ended them; what was measured until then stands.
pub(super) fn run(
    groups: &[Group],
    contests: &mut [Contest],
    rounds: Rounds,
    tool: &mut impl Measure,
) -> Result<(), i32> {
    let all = groups.iter().map(|it| it.contestants.len() * rounds.of(it) as usize).sum();
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
                if score.absent.is_some() || is_hopeless(score) {
                    continue;
                }
                let name = &contestant.name;
                let step = |came| Step { done, all, round, group, name, came };
                let measured = match shared.get(&contestant.job) {
                    Some(measured) => measured.clone(),
                    None => {
                        tool.tell(&step(None));
                        let measured = match tool.measure(&contestant.job) {
                            Ok(sample) => Ok(sample),
                            Err(Fault::Failed(why)) => Err(why),
                            Err(Fault::Interrupted(signal)) => return Err(signal),
                        };
                        let came = measured.as_ref().map(|sample| shown(group.metric, sample));
                        tool.tell(&step(Some(came.map_err(String::as_str))));
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

fn is_hopeless(score: &Score) -> bool {
    score.samples.len() >= FAILURES_MAX && score.samples.iter().all(|it| it.error.is_some())
}

/// The order of a round.
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

    /// Counts, and fails for whom it is told to.
    struct Fake {
        order: Vec<Job>,
        fails: Vec<Job>,
        ends_after: usize,
        told: usize,
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

        fn tell(&mut self, step: &Step<'_>) {
            assert!(step.done <= step.all);
            self.told += 1;
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
        Fake { order: Vec::new(), fails: Vec::new(), ends_after: usize::MAX, told: 0 }
    }

    #[test]
    fn everybody_once_a_round_in_turns() {
        let rounds = Rounds { rows: 2, points: 1 };
        let (groups, contests, fake, ended) = play(&["latency-block"], rounds, fake());
        assert_eq!(ended, Ok(()));
        let [a, b] = &groups[0].contestants[..] else { panic!("two") };
        assert_eq!(fake.order, [&a.job, &b.job, &b.job, &a.job].map(Clone::clone));
        assert!(contests[0].contestants.iter().all(|score| score.samples.len() == 2));
        assert_eq!(fake.told, 8);
    }

    #[test]
    fn a_job_that_two_groups_share_is_done_once_a_round() {
        let rounds = Rounds { rows: 2, points: 1 };
        let (groups, contests, fake, _) = play(&["write-64k", "size-write/65536"], rounds, fake());
        let jobs = groups[0].contestants.len();
        assert_eq!(fake.order.len(), 2 * jobs);
        let first = |contest: &Contest| contest.contestants[0].samples[0].clone();
        assert_eq!(first(&contests[0]), first(&contests[1]));
        assert_eq!(contests[1].contestants[0].samples.len(), 1);
    }

    #[test]
    fn who_fails_is_told_and_given_up_and_the_others_go_on() {
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
    fn a_signal_ends_the_rounds_and_keeps_what_there_is() {
        let rounds = Rounds { rows: 5, points: 5 };
        let (_, contests, _, ended) =
            play(&["latency-block"], rounds, Fake { ends_after: 3, ..fake() });
        assert_eq!(ended, Err(2));
        let counts = contests[0].contestants.iter().map(|score| score.samples.len());
        assert_eq!(counts.sum::<usize>(), 3);
    }
}
