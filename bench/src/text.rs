//! The tables on standard output.

use flue_report::{
    table::{Align, Table, UNKNOWN, cell},
    units::{format_bytes, three_digits},
};

use super::{
    contest::{Metric, Panel},
    outcome::{Contest, Line, Report},
    stats::Summary,
};

/// "67.4 (64.3..69.8)".
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

/// The table of goals.
pub(super) fn rows(report: &Report) -> Table {
    use Align::{Left, Right};
    let mut table = Table::new(&[
        ("row", Left),
        ("unit", Left),
        ("flue median (min..max)", Right),
        ("peer", Left),
        ("median (min..max)", Right),
        ("ratio", Right),
        ("goal", Left),
        ("", Left),
        ("stretch", Left),
        ("", Left),
    ]);
    for (contest, line) in report.lines() {
        let Line {
            metric,
            unit,
            flue,
            peer,
            other,
            ratio,
            goal,
            met,
            progress: _,
            stretch,
            stretch_met,
        } = line;
        let bound = |bound: &Option<super::contest::Bound>| {
            bound.map_or_else(String::new, |bound| bound.shown(*metric))
        };
        let judged = |bound: bool, met| if bound { verdict(met).to_owned() } else { String::new() };
        table.row([
            contest.id.clone(),
            (*unit).to_owned(),
            range(*metric, *flue),
            peer.clone().unwrap_or_default(),
            peer.as_ref().map_or_else(String::new, |_| range(*metric, *other)),
            peer.as_ref()
                .map_or_else(String::new, |_| cell(ratio.map(|it| three_digits(it.ratio)))),
            bound(goal),
            judged(goal.is_some(), *met),
            bound(stretch),
            judged(stretch.is_some(), *stretch_met),
        ]);
    }
    table
}

/// The table of a chart: a line for each point, a column for each contestant.
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

/// The points of a chart, in the order of its horizontal axis. A row with the same position as a point is left out.
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

/// The contestants of these points, in order of appearance.
pub(super) fn names_of(points: &[&Contest]) -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    for score in points.iter().flat_map(|it| &it.contestants) {
        if !names.contains(&score.name) {
            names.push(score.name.clone());
        }
    }
    names
}

/// The table of system calls.
pub(super) fn system_calls(report: &Report) -> Option<Table> {
    use Align::{Left, Right};
    let mut table = Table::new(&[
        ("row", Left),
        ("message", Right),
        ("end", Left),
        ("calls/message", Right),
        ("calls/MB", Right),
        ("most frequent, per message", Left),
    ]);
    for calls in &report.system_calls {
        for (name, end) in calls.ends() {
            let rates = calls.rates(end);
            let what = match &calls.error {
                Some(why) => why.clone(),
                None => end.most_frequent(calls.messages),
            };
            table.row([
                calls.id.clone(),
                format_bytes(calls.size_bytes),
                name.to_owned(),
                cell(rates.map(|(per_message, _)| three_digits(per_message))),
                cell(rates.map(|(_, per_mbyte)| three_digits(per_mbyte))),
                what,
            ]);
        }
    }
    (!report.system_calls.is_empty()).then_some(table)
}

/// A line for each contestant that failed, with the error.
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

    #[test]
    fn ranges_need_more_than_one_sample() {
        let one = Summary::of([67.4e9]);
        assert_eq!(range(Metric::BandwidthBps, one), "67.4");
        let more = Summary::of([64.3e9, 67.4e9, 69.8e9]);
        assert_eq!(range(Metric::BandwidthBps, more), "67.4 (64.3..69.8)");
        assert_eq!(range(Metric::BandwidthBps, None), UNKNOWN);
    }
}
