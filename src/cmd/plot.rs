//! `flue plot`: draws a trace of `--tcp-trace` as SVG.
//!
//! One connection in three panels over one time axis: windows and bytes in flight, RTT, rate. Colored bands in the
//! background mark the time in the host stack, fast recovery, recovery after a retransmission timeout, and responses to
//! ECN.

mod draw;
#[cfg(test)]
mod tests;

use std::{fs, path::PathBuf};

use clap::Args;
use offload_engine::engine::trace::TRACE_HEADER;
use serde::Serialize;

use crate::{failure::Failure, options::OutputArgs, report::Console};

/// Draw a congestion control trace as SVG
///
/// The trace is a file written with --tcp-trace. Three panels: congestion window, slow start threshold and bytes in
/// flight; smoothed RTT; delivery rate, and pacing rate if the connection is paced.
#[derive(Args, Clone, Debug)]
#[command(after_long_help = "Examples:
  flue lab -q --drop 0.1 --delay 1ms --tcp-trace tcp.csv
  flue plot tcp.csv")]
pub struct PlotArgs {
    /// Trace to draw
    #[arg(value_name = "FILE.csv")]
    pub file: PathBuf,

    /// Write this file [default: name of the trace, ending in .svg]
    #[arg(short = 'o', long = "output", value_name = "FILE.svg")]
    pub picture: Option<PathBuf>,

    /// Draw the connection whose name contains this text
    ///
    /// Default: the connection with the most rows.
    #[arg(long, value_name = "TEXT")]
    pub connection: Option<String>,

    /// Set the width of the picture, pixels: 320..=4000
    #[arg(long, value_name = "PIXELS", default_value_t = 1200,
          value_parser = clap::value_parser!(u16).range(320..=4000))]
    pub width: u16,

    /// Output options.
    #[command(flatten)]
    pub output: OutputArgs,
}

/// The `result` object of the JSON document.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct PlotResult {
    /// Path of the SVG file.
    pub file: PathBuf,
    /// Name of the connection.
    pub connection: String,
    /// Number of its rows.
    pub rows: usize,
}

/// Columns of a row that are drawn, in seconds and bytes.
#[derive(Clone, Copy, PartialEq, Debug)]
struct Row {
    time: f64,
    cwnd: Option<f64>,
    ssthresh: Option<f64>,
    srtt: Option<f64>,
    rttvar: Option<f64>,
    in_flight: f64,
    pacing_rate: Option<f64>,
    delivered: f64,
    state: State,
    /// True if the connection was uploaded with this row.
    is_in_host: bool,
}

/// Congestion state of the sender.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    /// Open or disorder.
    OpenOrDisorder,
    Cwr,
    Recovery,
    Loss,
}

/// One connection of a trace.
#[derive(Clone, PartialEq, Debug)]
struct Connection {
    name: String,
    rows: Vec<Row>,
}

/// Runs `flue plot`.
///
/// # Errors
/// The trace cannot be read, is invalid, or does not contain the connection; or the SVG cannot be written.
pub fn run(args: &PlotArgs, console: &mut Console<'_>) -> Result<(), Failure> {
    let shown = args.file.display();
    let text = fs::read_to_string(&args.file)
        .map_err(|error| Failure::work(format!("{shown}: {error}")))?;
    let connections = parse(&text).map_err(|error| Failure::work(format!("{shown}: {error}")))?;
    let connection = choose(connections, args.connection.as_deref())
        .map_err(|error| Failure::usage(format!("{shown}: {error}")))?;
    let file = args.picture.clone().unwrap_or_else(|| args.file.with_extension("svg"));
    fs::write(&file, draw::draw(&connection, args.width))
        .map_err(|error| Failure::work(format!("{}: {error}", file.display())))?;
    let drawn = PlotResult { file, connection: connection.name, rows: connection.rows.len() };
    console.print(format_args!(
        "{}: {} rows of {}",
        drawn.file.display(),
        drawn.rows,
        drawn.connection
    ));
    console.result(&drawn);
    Ok(())
}

/// Returns the connections of a trace, in order of first appearance.
fn parse(text: &str) -> Result<Vec<Connection>, String> {
    let mut lines = text.lines();
    let header = lines.next().unwrap_or_default();
    let names: Vec<&str> = header.split(',').collect();
    let columns = Columns::find(&names).map_err(|column| {
        format!("column {column:?}: missing, expected a trace ({TRACE_HEADER})")
    })?;
    let mut connections: Vec<Connection> = Vec::new();
    for (index, line) in lines.enumerate() {
        let cells: Vec<&str> = line.split(',').collect();
        if cells.len() != names.len() {
            // Incomplete last line of a trace that is still being written.
            if index + 2 == text.lines().count() && !text.ends_with('\n') {
                break;
            }
            return Err(format!(
                "line {}: {} cells, expected {}",
                index + 2,
                cells.len(),
                names.len()
            ));
        }
        let row = columns.read(&cells).map_err(|error| format!("line {}: {error}", index + 2))?;
        let name = cells[columns.connection];
        match connections.iter_mut().find(|connection| connection.name == name) {
            Some(connection) => connection.rows.push(row),
            None => connections.push(Connection { name: name.to_owned(), rows: vec![row] }),
        }
    }
    Ok(connections)
}

/// Returns the requested connection, or the one with the most rows.
fn choose(connections: Vec<Connection>, asked: Option<&str>) -> Result<Connection, String> {
    let names: Vec<_> = connections.iter().map(|connection| connection.name.clone()).collect();
    let mut found: Vec<_> = connections
        .into_iter()
        .filter(|connection| asked.is_none_or(|asked| connection.name.contains(asked)))
        .collect();
    match (asked, found.len()) {
        (_, 1) => Ok(found.remove(0)),
        (None, 2..) => Ok(found.swap_remove(most_rows(&found))),
        (None, _) => Err("trace: no rows".to_owned()),
        (Some(asked), 0) => {
            Err(format!("connection {asked:?}: not found, expected one of {}", names.join(", ")))
        }
        (Some(asked), count) => {
            Err(format!("connection {asked:?}: matches {count} connections, expected one"))
        }
    }
}

fn most_rows(connections: &[Connection]) -> usize {
    let rows = connections.iter().map(|connection| connection.rows.len()).enumerate();
    rows.max_by_key(|(_, rows)| *rows).map_or(0, |(index, _)| index)
}

/// Indices of the columns.
struct Columns {
    time: usize,
    connection: usize,
    cwnd: usize,
    ssthresh: usize,
    srtt: usize,
    rttvar: usize,
    in_flight: usize,
    pacing_rate: usize,
    delivered: usize,
    state: usize,
    offload_state: usize,
}

impl Columns {
    /// Finds the columns by name. The error is the name of a missing column.
    fn find(names: &[&str]) -> Result<Self, &'static str> {
        let find = |wanted| names.iter().position(|name| *name == wanted).ok_or(wanted);
        Ok(Self {
            time: find("time_us")?,
            connection: find("connection")?,
            cwnd: find("cwnd")?,
            ssthresh: find("ssthresh")?,
            srtt: find("srtt_us")?,
            rttvar: find("rttvar_us")?,
            in_flight: find("in_flight")?,
            pacing_rate: find("pacing_rate")?,
            delivered: find("delivered")?,
            state: find("ca_state")?,
            offload_state: find("offload_state")?,
        })
    }

    fn read(&self, cells: &[&str]) -> Result<Row, String> {
        let number = |index: usize| match cells[index] {
            "" => Ok(None),
            cell => match cell.parse::<u64>() {
                Ok(number) => Ok(Some(number as f64)),
                Err(_) => Err(format!("{cell:?}: expected a number")),
            },
        };
        let known =
            |index: usize| number(index)?.ok_or_else(|| "empty cell, expected a number".to_owned());
        let seconds = |index: usize| number(index).map(|micros| micros.map(|micros| micros / 1e6));
        Ok(Row {
            time: known(self.time)? / 1e6,
            cwnd: number(self.cwnd)?,
            ssthresh: number(self.ssthresh)?,
            srtt: seconds(self.srtt)?,
            rttvar: seconds(self.rttvar)?,
            in_flight: known(self.in_flight)?,
            pacing_rate: number(self.pacing_rate)?,
            delivered: known(self.delivered)?,
            state: match cells[self.state] {
                "open" | "disorder" => State::OpenOrDisorder,
                "cwr" => State::Cwr,
                "recovery" => State::Recovery,
                "loss" => State::Loss,
                other => return Err(format!("{other:?}: expected a congestion state")),
            },
            is_in_host: match cells[self.offload_state] {
                "offloaded" => false,
                "in_host" => true,
                other => return Err(format!("{other:?}: expected offloaded or in_host")),
            },
        })
    }
}
