//! Trace of congestion control: one row of CSV after a connection was processed, if its state has changed since its
//! last row, and one when it is uploaded.
//!
//! Disabled unless an output is set. The cost of a disabled trace is one check whenever a connection is processed. Rows
//! are written on the engine's thread, into any buffer of the output. An output that fails is closed, and the error is
//! logged.

use core::fmt;
use std::{
    boxed::Box,
    io::{self, Write},
};

use super::Engine;
use crate::{
    frame::FlowKey,
    tcp::{CaState, TraceSample},
    time::{Duration, Instant},
};

/// Header line with the names of the columns. Units are bytes where none is named. An empty cell is unknown.
pub const TRACE_HEADER: &str = "time_us,connection,cwnd,ssthresh,srtt_us,rttvar_us,rto_us,in_flight,\
                                snd_wnd,rcv_wnd,pacing_rate,delivered,retrans,ca_state,offload_state";

/// Row: one connection at one time. Its text is a line of CSV without line terminator.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TraceRow {
    /// Time, on the node's clock.
    pub time: Instant,
    /// Flow of the connection.
    pub flow: FlowKey,
    /// Sample.
    pub sample: TraceSample,
    /// True in the last row before the host stack has the connection, false in all others.
    pub is_uploaded: bool,
}

impl fmt::Display for TraceRow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { time, flow, sample, is_uploaded } = self;
        let TraceSample {
            cwnd,
            ssthresh,
            srtt,
            rttvar,
            rto,
            in_flight,
            snd_wnd,
            rcv_wnd,
            pacing_rate,
            delivered,
            retrans,
            ca_state,
        } = *sample;
        // An unlimited congestion window has no value to plot.
        let cwnd = Cell((cwnd != u64::MAX).then_some(cwnd));
        let (ssthresh, pacing_rate) = (Cell(ssthresh), Cell(pacing_rate));
        let micros =
            |duration: Option<Duration>| Cell(duration.map(|duration| duration.as_micros()));
        let (srtt, rttvar, rto) = (micros(srtt), micros(rttvar), micros(Some(rto)));
        let state = match ca_state {
            CaState::Open => "open",
            CaState::Disorder => "disorder",
            CaState::Cwr => "cwr",
            CaState::Recovery => "recovery",
            CaState::Loss => "loss",
        };
        let offload_state = if *is_uploaded { "in_host" } else { "offloaded" };
        write!(
            f,
            "{},{}-{},{cwnd},{ssthresh},{srtt},{rttvar},{rto},{in_flight},{snd_wnd},{rcv_wnd},\
             {pacing_rate},{delivered},{retrans},{state},{offload_state}",
            time.as_micros(),
            flow.local(),
            flow.remote()
        )
    }
}

/// Number, or an empty cell.
struct Cell<T>(Option<T>);

impl<T: fmt::Display> fmt::Display for Cell<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.as_ref().map_or(Ok(()), |value| value.fmt(f))
    }
}

/// Output of the rows. Dropping it flushes the buffer.
pub(super) struct Trace(Option<Box<dyn Write + Send>>);

impl Trace {
    /// Creates a trace and writes the header.
    pub(super) fn new(mut output: Box<dyn Write + Send>) -> io::Result<Self> {
        writeln!(output, "{TRACE_HEADER}")?;
        Ok(Self(Some(output)))
    }

    pub(super) fn write(&mut self, row: &TraceRow) {
        let written = self.0.as_mut().map_or(Ok(()), |output| writeln!(output, "{row}"));
        self.end_on_error(written);
    }

    pub(super) fn flush(&mut self) {
        let flushed = self.0.as_mut().map_or(Ok(()), |output| output.flush());
        self.end_on_error(flushed);
    }

    /// Closes the output at its first error, so that the error is logged once.
    fn end_on_error(&mut self, result: io::Result<()>) {
        if let Err(error) = result {
            // The output has its name, and reports the error.
            tracing::debug!(%error, "TCP trace stopped: write error");
            self.0 = None;
        }
    }
}

impl Drop for Trace {
    fn drop(&mut self) {
        self.flush();
    }
}

impl Engine {
    /// Writes a row for the connection if there is a trace and the state has changed.
    #[inline]
    pub(super) fn trace(&mut self, now: Instant, slot: usize) {
        if self.trace.is_some() {
            self.trace_slot(now, slot, false);
        }
    }

    /// Writes the last row of a connection before its upload.
    pub(super) fn trace_upload(&mut self, now: Instant, slot: usize) {
        self.trace_slot(now, slot, true);
    }

    #[cold]
    fn trace_slot(&mut self, now: Instant, slot: usize, is_uploaded: bool) {
        let Some(trace) = &mut self.trace else { return };
        let Some(offloaded) = self.connections.slot(slot) else { return };
        let sample = offloaded.tcp.trace_sample();
        if is_uploaded || offloaded.last_sample.as_deref() != Some(&sample) {
            match &mut offloaded.last_sample {
                Some(last) => **last = sample,
                none => *none = Some(Box::new(sample)),
            }
            trace.write(&TraceRow { time: now, flow: offloaded.flow, sample, is_uploaded });
        }
    }
}
