//! Tables on standard output.

use flue_report::{
    table::{Align, Table, UNKNOWN, cell},
    units::{format_bytes, three_digits},
};

use super::{
    catalog::GOALS_CPU,
    contest::{Bound, Metric, Panel},
    machine::Machine,
    outcome::{Contest, Line, Report},
    stats::Summary,
};

/// Formats a value and its range, such as "67.4 (64.3..69.8)".
fn range(metric: Metric, summary: Option<Summary>) -> String {
    cell(summary.map(|it| {
        let shown = |value| metric.shown(value);
        if it.samples == 1 {
            return shown(it.median);
        }
        format!("{} ({}..{})", shown(it.median), shown(it.min), shown(it.max))
    }))
}

const fn verdict(met: Option<bool>) -> &'static str {
    match met {
        Some(true) => "met",
        Some(false) => "missed",
        None => UNKNOWN,
    }
}

/// Returns the table of goals. Each row and metric begins with flue, and its unit; the peers follow. A stretch goal has
/// a line of its own.
pub(super) fn rows(report: &Report) -> Table {
    use Align::{Left, Right};
    let mut table = Table::new(&[
        ("row", Left),
        ("median (min..max)", Right),
        ("unit/ratio", Right),
        ("goal", Left),
    ]);
    let lines: Vec<_> = report.lines().collect();
    let is_same = |one: &(&Contest, &Line), other: &(&Contest, &Line)| {
        one.0.id == other.0.id && one.1.metric == other.1.metric
    };
    for group in lines.chunk_by(is_same) {
        let [(contest, first), ..] = group else { continue };
        let own = group.iter().find(|(_, line)| line.peer.is_none());
        let row = [
            contest.id.clone(),
            range(first.metric, first.flue),
            first.unit.to_owned(),
            own.map_or_else(String::new, |(_, line)| judged(line, line.goal, line.met)),
        ];
        table.row(row);
        stretch(&mut table, own.map(|(_, line)| *line));
        for (_, line) in group {
            let Some(peer) = &line.peer else { continue };
            table.row([
                format!("  {peer}"),
                range(line.metric, line.other),
                cell(line.ratio.map(|it| three_digits(it.ratio))),
                judged(line, line.goal, line.met),
            ]);
            stretch(&mut table, Some(line));
        }
    }
    table
}

/// Returns the CPU of the absolute goals, and that of the run, if there are such goals.
pub(super) fn cpu_of_goals(report: &Report) -> Option<String> {
    let bounds = |line: &Line| line.goal.into_iter().chain(line.stretch);
    let is_absolute = report.lines().any(|(_, line)| bounds(line).any(Bound::is_absolute));
    let Machine { cpu_model, cores, .. } = &report.machine;
    let count = cell(cores.map(|cores| cores.to_string()));
    let model = cell(cpu_model.clone());
    is_absolute
        .then(|| format!("Goals without a peer: {GOALS_CPU}.\nThis run: {count} CPUs, {model}."))
}

/// Adds the stretch goal of a line.
fn stretch(table: &mut Table, line: Option<&Line>) {
    let Some((line, bound)) = line.and_then(|line| Some((line, line.stretch?))) else { return };
    let (bound, verdict) = (bound.shown(line.metric), verdict(line.stretch_met));
    table.row(["    stretch".into(), bound, String::new(), verdict.into()]);
}

/// Formats a bound and its verdict. The unit of an absolute bound is in the column before.
fn judged(line: &Line, bound: Option<Bound>, met: Option<bool>) -> String {
    bound.map_or_else(String::new, |it| {
        let shown = it.shown(line.metric);
        let shown = if it.is_absolute() { shown.trim_end_matches(line.unit) } else { &shown };
        format!("{} {}", shown.trim_end(), verdict(met))
    })
}

/// Returns the table of a chart: one line per point, one column per contestant.
pub(super) fn points(report: &Report, panel: Panel) -> Option<Table> {
    let points = points_of(report, panel);
    if points.iter().all(|point| point.is_row) {
        return None;
    }
    let names = names_of(&points);
    let head = match panel {
        Panel::Write | Panel::Read | Panel::Send => "size",
        Panel::Connections => "connections",
        Panel::Queues => "queues",
    };
    let mut columns = vec![(head, Align::Right)];
    columns.extend(names.iter().map(|name| (name.as_str(), Align::Right)));
    let mut table = Table::new(&columns);
    for contest in &points {
        let at = contest.at.unwrap_or_default();
        let first = if head == "size" { format_bytes(at) } else { at.to_string() };
        let figures = names.iter().map(|name| {
            let score = contest.contestants.iter().find(|it| it.name == *name);
            cell(
                score
                    .and_then(|it| it.summary(contest.metric))
                    .map(|it| contest.metric.shown(it.median)),
            )
        });
        table.row(std::iter::once(first).chain(figures));
    }
    Some(table)
}

/// Returns the points of a chart, in the order of its horizontal axis. A row with the same position as a point is
/// omitted.
pub(super) fn points_of(report: &Report, panel: Panel) -> Vec<&Contest> {
    let mut points: Vec<&Contest> = report
        .contests
        .iter()
        .filter(|it| {
            it.panel == Some(panel) && it.contestants.iter().any(|it| !it.summaries.is_empty())
        })
        .collect();
    points.sort_by_key(|it| (it.at, it.is_row));
    points.dedup_by_key(|it| it.at);
    points
}

/// Returns the contestants of these points, in order of appearance.
pub(super) fn names_of(points: &[&Contest]) -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    for score in points.iter().flat_map(|it| &it.contestants) {
        if !names.contains(&score.name) {
            names.push(score.name.clone());
        }
    }
    names
}

/// Returns the table of system calls: one line per end, and one more for each further call.
pub(super) fn system_calls(report: &Report) -> Option<Table> {
    use Align::{Left, Right};
    let mut table = Table::new(&[
        ("row", Left),
        ("size", Right),
        ("end", Left),
        ("/message", Right),
        ("/MB", Right),
        ("most frequent", Left),
    ]);
    for calls in &report.system_calls {
        for (name, end) in calls.ends() {
            let rates = calls.rates(end);
            let frequent = match &calls.error {
                Some(why) => vec![why.clone()],
                None => end.most_frequent(calls.messages),
            };
            let mut frequent = frequent.into_iter();
            table.row([
                calls.id.clone(),
                format_bytes(calls.size_bytes),
                name.to_owned(),
                cell(rates.map(|(per_message, _)| three_digits(per_message))),
                cell(rates.map(|(_, per_mbyte)| three_digits(per_mbyte))),
                frequent.next().unwrap_or_default(),
            ]);
            for call in frequent {
                table.row([const { String::new() }; 5].into_iter().chain([call]));
            }
        }
    }
    (!report.system_calls.is_empty()).then_some(table)
}

/// Returns a line with the error for each failed contestant.
pub(super) fn failures(report: &Report) -> Vec<String> {
    let mut lines = Vec::new();
    for contest in &report.contests {
        for score in &contest.contestants {
            if let Some(why) = score.error() {
                let failed = score.samples.iter().filter(|it| it.error.is_some()).count();
                let all = score.samples.len();
                let (id, name) = (&contest.id, &score.name);
                lines.push(format!("{id}: {name}: {failed} of {all} samples failed: {why}"));
            }
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::page::tests::report;

    #[test]
    fn tables_fit_80_columns() {
        let report = report("not installed");
        let lines = rows(&report).to_string() + &system_calls(&report).unwrap().to_string();
        for line in lines.lines() {
            assert!(line.chars().count() <= 80, "{line}");
        }
        assert!(lines.lines().any(|line| line.starts_with("  libfabric") && line.contains('≥')));
        assert!(lines.lines().any(|line| line.starts_with("    stretch") && line.contains('≤')));
        assert!(lines.lines().any(|line| line.trim() == "writev 0.400"), "{lines}");
    }

    #[test]
    fn absolute_goals_name_their_cpu() {
        let mut report = report("not installed");
        let note = cpu_of_goals(&report).unwrap();
        assert!(note.contains(GOALS_CPU) && note.contains("This run:"), "{note}");
        assert!(note.lines().all(|line| line.chars().count() <= 80), "{note}");
        for line in report.contests.iter_mut().flat_map(|contest| &mut contest.lines) {
            (line.goal, line.stretch) = (None, None);
        }
        assert_eq!(cpu_of_goals(&report), None);
    }

    #[test]
    fn ranges_need_more_than_one_sample() {
        let one = Summary::of([67.4e9]);
        assert_eq!(range(Metric::BandwidthBps, one), "67.4");
        let more = Summary::of([64.3e9, 67.4e9, 69.8e9]);
        assert_eq!(range(Metric::BandwidthBps, more), "67.4 (64.3..69.8)");
        assert_eq!(range(Metric::BandwidthBps, None), UNKNOWN);
    }
}
