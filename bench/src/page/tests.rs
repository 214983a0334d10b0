use super::*;
use crate::{
    catalog,
    contest::{Group, System},
    installed::Peer,
    machine::{Build, Machine},
    outcome::{Attempt, Settings},
    pace::ResampleCounts,
    sample::{Covers, Cpu, Latency, Sample},
    syscalls::{Calls, EndCalls},
};

/// Returns realistic values, which grow with the size and differ from round to round.
fn sample(system: System, at: u64, round: u32) -> Sample {
    let speed = match system {
        System::Flue => 60e9,
        System::Libfabric => 67e9,
        System::Kernel => 85e9,
        System::Ucx => 8e9,
        _ => 10e9,
    } * (0.9 + 0.05 * f64::from(round));
    let bandwidth = speed * at as f64 / (at as f64 + 30_000.0);
    let p50 = 3e11 / speed * 1e3;
    let cpu = Cpu {
        user_seconds: 0.4,
        system_seconds: 1.2,
        bytes: 5_000_000_000,
        covers: Covers::Measurement,
    };
    Sample {
        seconds: Some(1.0),
        bytes: Some((bandwidth / 8.0) as u64),
        bandwidth_bps: Some(bandwidth),
        messages_per_second: Some(bandwidth / 8.0 / at as f64),
        latency_ns: Some(Latency {
            samples: Some(1_000),
            p50: Some(p50),
            p90: Some(p50 * 1.1),
            p99: Some(p50 * 1.5),
            p999: (system != System::Ucx).then_some(p50 * 4.0),
            max: Some(p50 * 50.0),
            ..Latency::default()
        }),
        cpu: Some(cpu),
        ..Sample::default()
    }
}

/// Returns a report with failures and missing peers. `untrusted` replaces all text of external origin.
pub(crate) fn report(untrusted: &str) -> Report {
    report_of(&catalog::groups(false), untrusted)
}

fn report_of(groups: &[Group], untrusted: &str) -> Report {
    let contests = groups.iter().map(|group| {
        let scores = group.contestants.iter().map(|contestant| {
            let system = contestant.system;
            let absent = (system == System::Iperf3).then(|| untrusted.to_owned());
            let mut score = Score::new(contestant, untrusted.to_owned(), absent);
            let at = group.point.map_or(64, |(_, at)| at);
            for round in 1..=3 {
                let fails = system == System::Smoltcp || (system == System::Ucx && round == 2);
                let error = fails.then(|| untrusted.to_owned());
                let sample = if fails { Sample::default() } else { sample(system, at, round) };
                score.samples.push(Attempt { round, error, sample });
            }
            score
        });
        let mut contest = Contest::new(group, scores.collect());
        contest.summarize(group);
        contest
    });
    let end = EndCalls { by_name: [("readv".to_owned(), 90), ("writev".to_owned(), 40)].into() };
    let calls = |error| Calls {
        id: "write-64b".into(),
        title: "RDMA Write".into(),
        size_bytes: 64,
        messages: 100,
        client: end.clone(),
        server: EndCalls::default(),
        error,
    };
    Report {
        flue: Build {
            version: "0.1.0",
            commit: Some("0123abc"),
            is_changed: Some(true),
            profile: "release",
        },
        date: "2026-11-22T02:11:05Z".into(),
        command: vec!["flue".into(), untrusted.into()],
        machine: Machine {
            cpu_model: Some(untrusted.into()),
            cores: Some(2),
            memory_bytes: Some(1 << 33),
            kernel: untrusted.into(),
            governor: None,
            is_virtual: true,
        },
        settings: Settings {
            rounds: 3,
            plot_rounds: 3,
            seconds: 1.0,
            quick: false,
            mtu_bytes: 1500,
            vnet_header: true,
            crc: true,
            congestion_control: Some("reno"),
        },
        namespaces: vec!["net:[1]".into()],
        peers: vec![
            Peer { name: "UCX", found: true, detail: untrusted.into(), package: "ucx-utils" },
            Peer { name: "iperf3", found: false, detail: untrusted.into(), package: "iperf3" },
        ],
        interrupted_by: None,
        resampled: ResampleCounts::default(),
        contests: contests.collect(),
        system_calls: vec![calls(None), calls(Some(untrusted.into()))],
    }
}

/// Checks that every element of a page is closed in order, attributes are quoted, and `<` and `&` are escaped. Returns
/// the number of elements by name.
fn elements(page: &str) -> std::collections::BTreeMap<String, usize> {
    const VOID: [&str; 1] = ["meta"];
    let mut open: Vec<String> = Vec::new();
    let mut seen = std::collections::BTreeMap::new();
    let mut rest = page.strip_prefix("<!DOCTYPE html>").expect("document type");
    while let Some(at) = rest.find('<') {
        check_text(&rest[..at]);
        let end = rest[at..].find('>').expect("end of tag") + at;
        let tag = &rest[at + 1..end];
        rest = &rest[end + 1..];
        if let Some(name) = tag.strip_prefix('/') {
            assert_eq!(open.pop().as_deref(), Some(name), "matching end tag");
            continue;
        }
        let (tag, closes) = tag.strip_suffix('/').map_or((tag, false), |tag| (tag, true));
        let name = tag.split_whitespace().next().expect("tag name").to_owned();
        assert_eq!(tag.matches('"').count() % 2, 0, "{tag}");
        *seen.entry(name.clone()).or_default() += 1;
        if name == "style" {
            rest = rest.split_once("</style>").expect("end of style").1;
        } else if !closes {
            assert!(!VOID.contains(&name.as_str()), "{tag}");
            open.push(name);
        }
    }
    assert!(open.is_empty(), "unclosed: {open:?}");
    seen
}

fn check_text(text: &str) {
    for (at, _) in text.match_indices('&') {
        let mut entity = text[at..].chars().take(7);
        assert!(entity.any(|it| it == ';'), "{}", &text[at..]);
    }
}

#[test]
fn page_is_well_formed_and_self_contained() {
    let page = html(&report("plain words"));
    let elements = elements(&page);
    // Goals; three sizes, twice each; nine latencies; CPU time; connections, queues. Each in two widths.
    assert_eq!(elements["svg"], 2 * (1 + 6 + 9 + 1 + 2));
    assert!(elements["title"] > 100, "values have tooltips");
    for word in ["http:", "https:", "src=", "<script", "@import", "url(", "<link", "NaN", "inf"] {
        assert!(!page.contains(word), "{word}");
    }
    for word in ["iperf3", "goal ≥ 0.75 ×", "RDMA Write over message size", "readv 0.900"] {
        assert!(page.contains(word), "{word}");
    }
}

/// Returns the attribute of each element that has it, as numbers.
fn numbers(page: &str, attribute: &str) -> Vec<f64> {
    let separator = format!(" {attribute}=\"");
    let pieces = page.split(&separator).skip(1);
    pieces.filter_map(|it| it.split(['"', ' ']).next()?.parse().ok()).collect()
}

// A window of 400 pixels has 354 within its margins: a wider chart would be scaled down, with its text.
#[test]
fn narrow_charts_fit_a_window_of_400_pixels() {
    let page = html(&report("plain words"));
    let narrow: Vec<&str> = page.split("<div class=\"narrow\"><svg").skip(1).collect();
    assert_eq!(narrow.len(), 1 + 6 + 9 + 1 + 2);
    for chart in narrow {
        let (chart, _) = chart.split_once("</svg>").unwrap();
        let (_, size) = chart.split_once("viewBox=\"0 0 ").unwrap();
        assert_eq!(size.split(' ').next(), Some("354"));
        for attribute in ["x", "x1", "x2", "cx"] {
            let places = numbers(chart, attribute);
            assert!(places.iter().all(|it| (0.0..=354.0).contains(it)), "{attribute} {places:?}");
        }
    }
}

#[test]
fn rows_are_named_by_their_work() {
    let page = html(&report("plain words"));
    let (charts, _) = page.split_once("<h2>All samples").unwrap();
    assert!(charts.contains(">RDMA Write, 1 MiB, CRC on<"), "a chart has the work");
    assert!(!charts.contains(">write-1m</text>"), "no chart has the name of a row");
    assert!(charts.contains("<td>write-1m</td><td>RDMA Write, 1 MiB, CRC on</td>"), "legend");
}

// Four sizes, 64 B to 1 MiB: a line would suggest values in between.
#[test]
fn distant_sizes_are_not_joined() {
    let lines = |quick| {
        let page = html(&report_of(&catalog::groups(quick), "plain words"));
        let (_, sizes) = page.split_once("<h2>Message size").unwrap();
        let (sizes, _) = sizes.split_once("<h2>").unwrap();
        assert!(sizes.contains("<circle"), "the points are drawn");
        sizes.matches("<path class=\"line ").count()
    };
    assert_eq!(lines(true), 0);
    assert_eq!(lines(false), 3 * 2 * 2 * 4);
}

#[test]
fn text_from_outside_is_escaped() {
    let untrusted = "</td><script>alert('1')</script><a href=\"http://example.org\">&\u{0}";
    let page = html(&report(untrusted));
    elements(&page);
    assert!(!page.contains("<script") && !page.contains("<a ") && !page.contains('\0'));
    assert!(page.contains("&lt;script&gt;"));
}

#[test]
fn run_without_results_has_a_page() {
    let mut empty = report("x");
    for contest in &mut empty.contests {
        for score in &mut contest.contestants {
            score.samples.clear();
        }
    }
    let groups = catalog::groups(false);
    for (contest, group) in empty.contests.iter_mut().zip(&groups) {
        contest.summarize(group);
    }
    empty.interrupted_by = Some(2);
    let elements = elements(&html(&empty));
    assert!(!elements.contains_key("svg"));
    let tally = empty.tally();
    assert_eq!((tally.met, tally.missed), (0, 0));
    assert!(tally.unknown > 10);
}

#[test]
fn facts_are_lines() {
    let facts = facts(&report("a machine"));
    assert!(facts.iter().any(|it| it.contains("MTU 1500")));
    assert!(facts.iter().any(|it| it.contains("congestion control reno")));
    assert!(facts.iter().all(|it| !it.contains('\n')));
}

/// Writes the page of these tests to the file in the environment variable, for viewing.
#[test]
fn page_is_written_for_viewing() {
    let Some(path) = std::env::var_os("FLUE_BENCH_PAGE") else { return };
    std::fs::write(path, html(&report("a machine"))).expect("page is written");
}
