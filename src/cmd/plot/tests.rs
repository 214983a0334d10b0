use clap::Parser;
use offload_engine::{
    engine::trace::TraceRow,
    frame::FlowKey,
    tcp::{CaState, TraceSample},
    time::{Duration, Instant},
};

use super::*;

/// Sawtooth of 10 s: slow start, two losses, one timeout, one second in the host stack.
fn sawtooth() -> String {
    let flow = FlowKey::new("10.77.0.2:5001".parse().unwrap(), "10.77.0.1:40000".parse().unwrap());
    let mut text = format!("{TRACE_HEADER}\n");
    let (mut cwnd, mut ssthresh, mut delivered) = (14_480.0, None, 0);
    for n in 0..1_000u64 {
        let ca_state = match n {
            300..310 | 600..610 => CaState::Recovery,
            800..820 => CaState::Loss,
            900..905 => CaState::Cwr,
            _ => CaState::Open,
        };
        match n {
            300 | 600 => {
                cwnd *= 0.7;
                ssthresh = Some(cwnd as u64);
            }
            800 => cwnd = 1448.0,
            _ if n < 40 => cwnd *= 1.1,
            _ => cwnd += 1_000.0,
        }
        delivered += cwnd as u64;
        let sample = TraceSample {
            cwnd: cwnd as u64,
            ssthresh,
            srtt: Some(Duration::from_micros(10_000 + 5 * n)),
            rttvar: Some(Duration::from_micros(500)),
            rto: Duration::from_millis(200),
            in_flight: cwnd as u64 * 9 / 10,
            snd_wnd: 4 << 20,
            rcv_wnd: 65_536,
            pacing_rate: None,
            delivered,
            retrans: 0,
            ca_state,
        };
        let time = Instant::from_millis(5_000 + 10 * n);
        // The host stack has the connection for a second.
        let is_uploaded = n == 449;
        if !(450..550).contains(&n) {
            text += &format!("{}\n", TraceRow { time, flow, sample, is_uploaded });
        }
    }
    text
}

#[test]
fn written_trace_is_parsed() {
    let text = sawtooth();
    let connections = parse(&text).unwrap();
    let [connection] = &connections[..] else { panic!("{} connections", connections.len()) };
    assert_eq!(connection.name, "10.77.0.2:5001-10.77.0.1:40000");
    assert_eq!(connection.rows.len(), 900);
    let row = connection.rows[0];
    assert_eq!((row.time, row.cwnd, row.ssthresh), (5.0, Some(15_928.0), None));
    assert_eq!((row.srtt, row.rttvar, row.pacing_rate), (Some(0.01), Some(0.0005), None));
    assert_eq!(connection.rows[305].state, State::Recovery);
    assert_eq!(connection.rows[710].state, State::Loss);
    assert_eq!(connection.rows[802].state, State::Cwr);
    let in_host = connection.rows.iter().filter(|row| row.is_in_host);
    assert_eq!(in_host.map(|row| row.time).collect::<Vec<_>>(), [9.49]);
    // Still being written: the last line is truncated.
    let cut = &text[..text.len() - 20];
    assert_eq!(parse(cut).unwrap()[0].rows.len(), 899);
}

#[test]
fn invalid_trace_is_rejected() {
    let error = |text: &str| parse(text).unwrap_err();
    assert!(error("").contains("time_us"));
    assert!(error("a,b\n1,2\n").contains("expected a trace"));
    let good = sawtooth();
    assert!(error(&good.replacen(",open,", ",asleep,", 1)).contains("line 2: \"asleep\""));
    assert!(error(&good.replacen("\n5000000,", "\nfive,", 1)).contains("line 2: \"five\""));
    assert!(error(&good.replacen("\n5000000,", "\n,", 1)).contains("line 2"));
    let cut = good.replacen(",offloaded\n", "\n", 1);
    assert!(error(&cut).contains("line 2: 14 cells, expected 15"));
    let wrong = good.replacen(",offloaded\n", ",away\n", 1);
    assert!(error(&wrong).contains("line 2: \"away\""));
}

#[test]
fn connections_are_chosen_by_rows_or_name() {
    let row = parse(&sawtooth()).unwrap()[0].rows[0];
    let connection = |name: &str, rows| Connection { name: name.to_owned(), rows: vec![row; rows] };
    let three = || vec![connection("a-b", 2), connection("a-c", 3), connection("d-c", 1)];
    assert_eq!(choose(three(), None).unwrap().name, "a-c");
    assert_eq!(choose(three(), Some("d-")).unwrap().name, "d-c");
    assert!(choose(three(), Some("a-")).unwrap_err().contains("2 connections"));
    assert!(choose(three(), Some("x")).unwrap_err().contains("a-b, a-c, d-c"));
    assert_eq!(choose(Vec::new(), None).unwrap_err(), "trace: no rows");
}

#[derive(Parser)]
struct Line {
    #[command(flatten)]
    plot: PlotArgs,
}

// The default SVG path is next to the trace; the chart has three panels and a legend of its contents only.
#[test]
fn chart_has_three_panels_and_legend() {
    let directory = std::env::temp_dir().join(format!("flue-plot-{}", std::process::id()));
    fs::create_dir_all(&directory).unwrap();
    let trace = directory.join("tcp.csv");
    fs::write(&trace, sawtooth()).unwrap();
    let args = Line::try_parse_from(["plot", &trace.display().to_string()]).unwrap().plot;
    let mut out = Vec::new();
    let style = crate::report::Style::default();
    let mut console = Console::on("plot", style, Box::new(&mut out), Box::new(std::io::sink()));
    run(&args, &mut console).unwrap();
    drop(console);
    let output = String::from_utf8(out).unwrap();
    assert!(output.contains("tcp.svg: 900 rows of 10.77.0.2:5001-10.77.0.1:40000"), "{output}");
    let svg = fs::read_to_string(directory.join("tcp.svg")).unwrap();
    fs::remove_dir_all(&directory).unwrap();
    assert!(svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>"));
    for word in [
        "windows, KiB",
        "round trip, ms",
        "rate, Mbit/s",
        "cwnd",
        "ssthresh",
        "in flight",
        "delivered",
        "fast recovery",
        "RTO recovery",
        "ECN response",
        "in the host stack",
    ] {
        assert!(svg.contains(word), "{word:?} is not in the picture");
    }
    assert!(!svg.contains("pacing"), "nothing was paced");
}

// A trace of one row, or of a node without a congestion window, is drawn too.
#[test]
fn minimal_trace_is_drawn() {
    let text = sawtooth();
    let one = text.lines().take(2).collect::<Vec<_>>().join("\n") + "\n";
    let svg = draw::draw(&parse(&one).unwrap()[0], 1200);
    assert!(!svg.contains("NaN") && svg.contains("in flight"));
    let mut connection = parse(&text).unwrap().remove(0);
    for row in &mut connection.rows {
        (row.cwnd, row.ssthresh, row.srtt, row.rttvar) = (None, None, None, None);
    }
    let svg = draw::draw(&connection, 1200);
    assert!(!svg.contains("cwnd") && svg.contains("in flight"));
}

/// Returns the range of the numbers of an attribute.
fn range(svg: &str, attribute: &str) -> (f64, f64) {
    let separator = format!(" {attribute}=\"");
    let numbers = svg.split(&separator).skip(1);
    let numbers = numbers.map(|it| it.split('"').next().unwrap().parse::<f64>().unwrap());
    numbers.fold((f64::MAX, f64::MIN), |(least, most), it| (least.min(it), most.max(it)))
}

// The text has the same size in each, and everything is within the picture.
#[test]
fn chart_has_requested_width() {
    let connection = parse(&sawtooth()).unwrap().remove(0);
    for width in [320, 400, 1200, 4000] {
        let svg = draw::draw(&connection, width);
        assert!(svg.contains(&format!("width=\"{width}\"")) && svg.contains("font: 14px"));
        for attribute in ["x", "x1", "x2"] {
            let (least, most) = range(&svg, attribute);
            assert!(least >= 0.0 && most <= f64::from(width), "{width}: {attribute} {most}");
        }
        let height = range(&svg[..svg.find('>').unwrap()], "height").1;
        assert!(range(&svg, "y").1 < height, "{width}");
    }
}

// Slow start ends far above the rest: the axis covers the rest, and the title has the highest value.
#[test]
fn short_peak_is_cut_off() {
    let mut connection = parse(&sawtooth()).unwrap().remove(0);
    let plain = draw::draw(&connection, 1200);
    assert!(!plain.contains("cut off"));
    for row in &mut connection.rows[30..40] {
        row.cwnd = Some(1024.0 * 1024.0 * 50.0);
    }
    let svg = draw::draw(&connection, 1200);
    assert!(svg.contains("windows, KiB (cut off; highest: 51200)"), "{svg}");
}

// A trace of a fast connection has a row every few microseconds.
#[test]
fn svg_of_long_trace_is_small() {
    let mut connection = parse(&sawtooth()).unwrap().remove(0);
    let row = connection.rows[0];
    connection.rows = (0..200_000u32)
        .map(|n| Row {
            time: f64::from(n) * 1e-4,
            cwnd: Some(f64::from(20_000 + n * 7919 % 90_000)),
            in_flight: f64::from(n * 7907 % 60_000),
            srtt: Some(f64::from(100 + n % 97) * 1e-6),
            ..row
        })
        .collect();
    let bytes = draw::draw(&connection, 1200).len();
    assert!(bytes < 150_000, "{bytes} bytes");
}
