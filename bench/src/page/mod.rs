//! HTML page: charts, tables, and instructions to repeat the run. One self-contained file.

mod bars;
mod lines;
mod marks;
mod percentiles;

use std::fmt::Write;

use flue_report::{
    svg::escaped,
    units::{format_bytes, three_digits},
};

use self::{lines::ChartStyle, marks::Width};
use super::{
    contest::{Bound, Metric, Panel},
    outcome::{Contest, Line, Report, Score},
    stats::Summary,
    text::points_of,
};

/// Charts over message size and counts, in the order of the page.
pub(super) const PANELS: [(Panel, &str); 5] = [
    (Panel::Write, "RDMA Write over message size"),
    (Panel::Read, "RDMA Read over message size"),
    (Panel::Send, "Send/Receive over message size"),
    (Panel::Connections, "RDMA Write, 1 MiB, over connections"),
    (Panel::Queues, "RDMA Write, 1 MiB, over TAP queues"),
];

const STYLE: &str = include_str!("style.css");

/// Returns the setup of the run, one line per fact.
pub(super) fn facts(report: &Report) -> Vec<String> {
    facts_of(report).into_iter().map(|(name, value)| format!("{name}: {value}")).collect()
}

fn facts_of(report: &Report) -> Vec<(&'static str, String)> {
    let Report { flue, machine, settings, peers, date, .. } = report;
    let unknown = || "unknown".to_owned();
    let commit = match (&flue.commit, flue.is_changed) {
        (Some(commit), Some(true)) => format!(", commit {commit} with changes"),
        (Some(commit), _) => format!(", commit {commit}"),
        (None, _) => String::new(),
    };
    let cores = machine.cores.map_or_else(unknown, |cores| cores.to_string());
    let memory = machine.memory_bytes.map_or_else(unknown, format_bytes);
    let model = machine.cpu_model.clone().unwrap_or_else(unknown);
    let guest = if machine.is_virtual { ", a virtual machine" } else { "" };
    let governor =
        machine.governor.as_ref().map_or_else(String::new, |it| format!(", governor {it}"));
    let control = settings.congestion_control.unwrap_or("the machine's default");
    let versions: Vec<String> = peers
        .iter()
        .filter(|peer| peer.found)
        .map(|peer| format!("{} ({})", peer.name, peer.detail))
        .collect();
    let peers = if versions.is_empty() { "none found".to_owned() } else { versions.join(", ") };
    vec![
        ("date", date.clone()),
        ("flue", format!("{} ({} build){commit}", flue.version, flue.profile)),
        ("machine", format!("{model}, {cores} CPUs{governor}, {memory}{guest}")),
        ("kernel", format!("{}, congestion control {control}", machine.kernel)),
        (
            "links",
            format!(
                "MTU {}, virtio-net header except in rows for plain frames",
                settings.mtu_bytes
            ),
        ),
        ("peers", peers),
        (
            "samples",
            format!(
                "rounds: {} of {} s, {} for points of charts; each contestant once per round",
                settings.rounds, settings.seconds, settings.plot_rounds
            ),
        ),
    ]
}

/// Returns the whole page.
pub(super) fn html(report: &Report) -> String {
    let mut out = String::with_capacity(256 << 10);
    let title = format!("flue bench, {}", report.date.split('T').next().unwrap_or_default());
    let _ = writeln!(
        out,
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\"/>\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\n<title>{}</title>\n\
         <style>\n{STYLE}</style>\n</head>\n<body>\n<main>",
        escaped(&title)
    );
    head(&mut out, report);
    tiles(&mut out, report);
    goals(&mut out, report);
    sizes(&mut out, report);
    latencies(&mut out, report);
    cpu_time(&mut out, report);
    counts(&mut out, report);
    system_calls(&mut out, report);
    raw(&mut out, report);
    repeat(&mut out, report);
    out.push_str("</main>\n</body>\n</html>\n");
    out
}

fn head(out: &mut String, report: &Report) {
    let machine = report.machine.cpu_model.as_deref().unwrap_or("a machine");
    let cores = report.machine.cores.map_or_else(String::new, |it| format!(", {it} CPUs"));
    let _ = writeln!(
        out,
        "<h1><b>flue</b> compared with other stacks</h1>\n<p>{}{cores}; {}. Client and server share the \
         CPUs, so compare ratios, not absolute figures. Medians; rounds: {} of {} s.</p>",
        escaped(machine),
        escaped(report.date.split('T').next().unwrap_or_default()),
        report.settings.rounds,
        report.settings.seconds
    );
    if let Some(signal) = report.interrupted_by {
        let name = signal_hook::low_level::signal_name(signal).unwrap_or("a signal");
        let _ = writeln!(out, "<p><strong>Ended early, by {name}.</strong></p>");
    }
    if report.flue.profile == "debug" {
        out.push_str(
            "<p><strong>A debug build of flue: its figures are meaningless.</strong></p>\n",
        );
    }
}

/// Writes the headline results.
fn tiles(out: &mut String, report: &Report) {
    let tally = report.tally();
    let mut tiles = Vec::new();
    if tally.met + tally.missed > 0 {
        let all = tally.met + tally.missed;
        let unknown = match tally.unknown {
            0 => "all measured".to_owned(),
            count => format!("{count} not measured"),
        };
        tiles.push((
            "goals met".to_owned(),
            format!("{} <span>of {all}</span>", tally.met),
            unknown,
        ));
    }
    for id in ["write-1m", "read-1m", "send-64b", "latency-write"] {
        let Some(contest) = report.contests.iter().find(|it| it.id == id) else { continue };
        let about = |line: &&Line| line.metric == contest.metric;
        let Some(line) = contest.lines.iter().find(|line| about(line) && line.ratio.is_some())
        else {
            continue;
        };
        let (Some(flue), Some(ratio), Some(beside)) = (line.flue, line.ratio, &line.peer) else {
            continue;
        };
        let figure = format!("{} <span>{}</span>", line.metric.shown(flue.median), line.unit);
        let beside = format!("{} × {}", three_digits(ratio.ratio), escaped(beside));
        tiles.push((escaped(&contest.title), figure, beside));
    }
    if tiles.is_empty() {
        return;
    }
    out.push_str("<div class=\"tiles\">\n");
    for (name, figure, beside) in tiles {
        let _ = writeln!(
            out,
            "<div class=\"tile\"><small>{name}</small><strong>{figure}</strong><small>{beside}</small></div>"
        );
    }
    out.push_str("</div>\n");
}

fn goals(out: &mut String, report: &Report) {
    if let Some(chart) = Width::both(|width| bars::goals(report, width)) {
        out.push_str(
            "<h2>Goals</h2>\n<p>Result relative to the goal: met at the line, better to its right, also for latency \
             and CPU time.</p>\n",
        );
        let _ = writeln!(out, "<div class=\"card\">{chart}</div>");
    }
    if report.contests.iter().any(|it| it.is_row) {
        out.push_str("<details><summary>All rows, with ranges</summary>\n<div class=\"card\">\n");
        rows(out, report);
        out.push_str("</div>\n</details>\n");
    }
}

fn range(metric: Metric, summary: Option<Summary>) -> String {
    let Some(it) = summary else { return "–".into() };
    let shown = |value| metric.shown(value);
    format!(
        "{} <span class=\"dim\">({}..{})</span>",
        shown(it.median),
        shown(it.min),
        shown(it.max)
    )
}

fn rows(out: &mut String, report: &Report) {
    out.push_str(
        "<table><thead><tr><th>name</th><th>work</th><th>unit</th><th class=\"n\">flue</th><th>peer</th>\
         <th class=\"n\"></th><th class=\"n\">ratio</th><th>goal</th><th></th><th>stretch</th><th></th>\
         </tr></thead><tbody>\n",
    );
    let mut last = "";
    for (contest, line) in report.lines() {
        let class = if contest.id == last { " class=\"next\"" } else { "" };
        last = &contest.id;
        let bound = |bound: Option<Bound>| {
            bound.map_or_else(String::new, |it| escaped(&it.shown(line.metric)))
        };
        let verdict = |is_there: bool, met: Option<bool>| match (is_there, met) {
            (false, _) => "<td></td>",
            (true, Some(true)) => "<td class=\"met\">met</td>",
            (true, Some(false)) => "<td class=\"missed\">missed</td>",
            (true, None) => "<td>not measured</td>",
        };
        let other = match &line.peer {
            Some(_) => range(line.metric, line.other),
            None => String::new(),
        };
        let ratio = line.ratio.map_or_else(String::new, |it| three_digits(it.ratio));
        let _ = writeln!(
            out,
            "<tr{class}><td>{}</td><td>{}</td><td>{}</td><td class=\"n\">{}</td><td>{}</td><td class=\"n\">{other}</td>\
             <td class=\"n\">{ratio}</td><td>{}</td>{}<td>{}</td>{}</tr>",
            escaped(&contest.id),
            escaped(&contest.title),
            line.unit,
            range(line.metric, line.flue),
            escaped(line.peer.as_deref().unwrap_or_default()),
            bound(line.goal),
            verdict(line.goal.is_some(), line.met),
            bound(line.stretch),
            verdict(line.stretch.is_some(), line.stretch_met),
        );
    }
    out.push_str("</tbody></table>\n");
}

/// Writes bandwidth and message rate over message size.
fn sizes(out: &mut String, report: &Report) {
    let panels = [Panel::Write, Panel::Read, Panel::Send];
    let points: Vec<_> = panels.iter().map(|panel| points_of(report, *panel)).collect();
    let mut charts = String::new();
    for (points, (_, title)) in points.iter().zip(PANELS) {
        // A chart needs two points.
        if points.len() < 2 {
            continue;
        }
        for (metric, is_log, what) in [
            (Metric::BandwidthBps, false, "bandwidth"),
            (Metric::MessagesPerSecond, true, "message rate (logarithmic)"),
        ] {
            let label = format!("{title}: {what}");
            let style = ChartStyle {
                across: "message size, bytes",
                metric,
                is_log,
                in_bytes: true,
                label: &label,
            };
            if let Some(chart) = Width::both(|width| lines::chart(points, &style, width)) {
                card(&mut charts, &label, &chart);
            }
        }
    }
    if !charts.is_empty() {
        let _ = writeln!(
            out,
            "<h2>Message size</h2>\n<p>flue uses TAPs on one bridge, with CRC; the others use a veth pair. Kernel TCP \
             is a byte stream, written in chunks of the message size. Vertical bars show the range of the \
             rounds. Lines join neighboring sizes only.</p>\n<div class=\"pair\">\n{charts}</div>"
        );
    }
}

fn card(out: &mut String, title: &str, chart: &str) {
    let _ = writeln!(out, "<div class=\"card\"><h3>{}</h3>{chart}</div>", escaped(title));
}

fn latencies(out: &mut String, report: &Report) {
    let mut charts = String::new();
    for contest in report.contests.iter().filter(|it| it.metric == Metric::LatencyP50Ns) {
        if let Some(chart) = Width::both(|width| percentiles::chart(contest, width)) {
            card(&mut charts, &contest.title, &chart);
        }
    }
    if !charts.is_empty() {
        let _ = writeln!(
            out,
            "<h2>Latency</h2>\n<p>Medians of the rounds. The number is p50; smaller markers are higher percentiles \
             and the maximum. Hover for values. UCX reports p50, p99 and p99.9 only. The TAP's floor \
             is the round trip of a frame without any protocol.</p>\n<div class=\"pair\">\n{charts}</div>"
        );
    }
}

fn cpu_time(out: &mut String, report: &Report) {
    let is_large = |contest: &&Contest| {
        contest.is_row && contest.metric == Metric::BandwidthBps && contest.id != "connections-100"
    };
    let contests: Vec<&Contest> = report.contests.iter().filter(is_large).collect();
    if let Some(chart) = Width::both(|width| bars::cpu_time(&contests, width)) {
        let _ = writeln!(
            out,
            "<h2>CPU time</h2>\n<p>Of both ends, user and system, for 10⁹ bytes. Polling counts as CPU time. UCX \
             does not report its own: its figure covers the processes from start to end.</p>\n\
             <div class=\"card\">{chart}</div>"
        );
    }
}

fn counts(out: &mut String, report: &Report) {
    let mut charts = String::new();
    for (panel, title) in &PANELS[3..] {
        let points = points_of(report, *panel);
        if points.len() < 2 {
            continue;
        }
        let across = if *panel == Panel::Connections { "connections" } else { "queues" };
        let metric = Metric::BandwidthBps;
        let style = ChartStyle { across, metric, is_log: false, in_bytes: false, label: title };
        if let Some(chart) = Width::both(|width| lines::chart(&points, &style, width)) {
            card(&mut charts, title, &chart);
        }
    }
    if !charts.is_empty() {
        let _ = writeln!(
            out,
            "<h2>Connections and queues</h2>\n<p>Total bandwidth of all connections.</p>\n<div class=\"pair\">\n\
             {charts}</div>"
        );
    }
}

fn system_calls(out: &mut String, report: &Report) {
    if report.system_calls.is_empty() {
        return;
    }
    out.push_str(
        "<h2>System calls</h2>\n<p>Of flue, counted by strace: a long run minus a short one, so that startup and \
         shutdown cancel out. Tracing slows both ends down, so batch sizes differ from those of an untraced run. \
         A polling end also reads without data.</p>\n<div class=\"card\"><table>\
         <thead><tr><th>work</th><th class=\"n\">message</th><th>end</th><th class=\"n\">calls/message</th>\
         <th class=\"n\">calls/MB</th>\
         <th>most frequent, per message</th>\
         </tr></thead><tbody>\n",
    );
    for calls in &report.system_calls {
        for (index, (name, end)) in calls.ends().into_iter().enumerate() {
            let rates = calls.rates(end);
            let number = |value: Option<f64>| value.map_or_else(|| "–".into(), three_digits);
            let what =
                calls.error.clone().unwrap_or_else(|| end.most_frequent(calls.messages).join(", "));
            let class = if index > 0 { " class=\"next\"" } else { "" };
            let _ = writeln!(
                out,
                "<tr{class}><td>{}</td><td class=\"n\">{}</td><td>{name}</td><td class=\"n\">{}</td>\
                 <td class=\"n\">{}</td><td>{}</td></tr>",
                escaped(&calls.title),
                format_bytes(calls.size_bytes),
                number(rates.map(|it| it.0)),
                number(rates.map(|it| it.1)),
                escaped(&what)
            );
        }
    }
    out.push_str("</tbody></table></div>\n");
}

/// Writes the table of all samples.
fn raw(out: &mut String, report: &Report) {
    out.push_str(
        "<h2>All samples</h2>\n<details><summary>Table</summary>\n<div class=\"card\"><table><thead><tr><th>work\
         </th><th>contestant</th><th class=\"n\">Gbit/s</th><th class=\"n\">M/s</th><th class=\"n\">p50 µs</th>\
         <th class=\"n\">p99 µs</th><th class=\"n\">s/GB</th><th>samples by round</th></tr></thead><tbody>\n",
    );
    for contest in &report.contests {
        for score in &contest.contestants {
            raw_row(out, contest, score);
        }
    }
    out.push_str("</tbody></table></div>\n</details>\n");
}

fn raw_row(out: &mut String, contest: &Contest, score: &Score) {
    let median = |metric: Metric| {
        score.summary(metric).map_or_else(|| "–".into(), |it| metric.shown(it.median))
    };
    let p99 = score.samples.iter().filter_map(|it| it.sample.latency_ns?.p99);
    let p99 =
        Summary::of(p99).map_or_else(|| "–".into(), |it| Metric::LatencyP50Ns.shown(it.median));
    let samples: Vec<String> = match &score.absent {
        Some(why) => vec![escaped(why)],
        None => score
            .samples
            .iter()
            .map(|it| match (&it.error, it.sample.figure(contest.metric)) {
                (Some(why), _) => format!("<span class=\"missed\">{}</span>", escaped(why)),
                (None, Some(figure)) => contest.metric.shown(figure),
                (None, None) => "–".into(),
            })
            .collect(),
    };
    let _ = writeln!(
        out,
        "<tr><td title=\"{}\">{}</td><td>{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td>\
         <td class=\"n\">{p99}</td><td class=\"n\">{}</td><td>{}</td></tr>",
        escaped(&score.command),
        escaped(&contest.id),
        escaped(&score.name),
        median(Metric::BandwidthBps),
        median(Metric::MessagesPerSecond),
        median(Metric::LatencyP50Ns),
        median(Metric::CpuSecondsPerGbyte),
        samples.join(" ")
    );
}

fn repeat(out: &mut String, report: &Report) {
    out.push_str("<h2>This run</h2>\n<div class=\"card\"><dl>\n");
    for (name, value) in facts_of(report) {
        let _ = writeln!(out, "<dt>{name}</dt><dd>{}</dd>", escaped(&value));
    }
    for peer in report.peers.iter().filter(|peer| !peer.found) {
        let (name, why, package) = (peer.name, escaped(&peer.detail), peer.package);
        let _ = writeln!(out, "<dt>{name}</dt><dd>skipped: {why}; Debian package: {package}</dd>");
    }
    let _ = writeln!(
        out,
        "<dt>command</dt><dd><code>{}</code></dd>\n</dl></div>",
        escaped(&report.command.join(" "))
    );
}

#[cfg(test)]
pub(crate) mod tests;
