//! `ucx_perftest` over UCX_TLS=tcp, and its CSV output.
//!
//! It takes a number of iterations instead of a time, so a short run first estimates the number. It reports one latency
//! percentile per run, so a sample consists of three runs, each a third as long.

use super::{End, ExitedPair, Measured, PORT, Pair, Tools, words};
use crate::{
    contest::Need,
    namespaces::{KERNELS, Namespace, VETH},
    process::{Fault, Ready},
    sample::{Latency, Sample},
};

/// Payload bytes of the short run, and bounds on its iterations.
const TRIAL_BYTES: u64 = 32 << 20;
const TRIAL_ITERATIONS: std::ops::RangeInclusive<u64> = 50..=10_000;
/// Bounds on the iterations of a run.
const ITERATIONS: std::ops::RangeInclusive<u64> = 20..=1_000_000_000;
/// Warm-up iterations.
const WARM_UP_ITERATIONS: u64 = 200;
/// Percentiles of the latency.
const RANKS: [&str; 3] = ["50", "99", "99.9"];

impl Tools<'_> {
    pub(super) fn ucx(&mut self, test: &'static str, size_bytes: u64, latency: bool) -> Measured {
        let rate = match self.ucx_rates.get(&(test, size_bytes)) {
            Some(&rate) => rate,
            None => {
                let trial = (TRIAL_BYTES / size_bytes.max(1))
                    .clamp(*TRIAL_ITERATIONS.start(), *TRIAL_ITERATIONS.end());
                let (line, _) = self.ucx_run(test, size_bytes, trial, None)?;
                1e6 / line.overall_us
            }
        };
        let runs = if latency { RANKS.len() } else { 1 };
        // The line reports half the round trip.
        let per_second = if latency { rate / 2.0 } else { rate };
        let count = (per_second * self.seconds / runs as f64) as u64;
        let count = count.clamp(*ITERATIONS.start(), *ITERATIONS.end());
        let ranks: &[&str] = if latency { &RANKS } else { &[] };
        let mut lines = Vec::new();
        let mut sample = Sample::default();
        if latency {
            for rank in ranks {
                lines.push(self.ucx_run(test, size_bytes, count, Some(rank))?.0);
            }
            let ns = |index: usize| lines.get(index).map(|line: &Line| line.percentile_us * 1e3);
            sample.latency_ns = Some(Latency {
                samples: Some(count),
                mean: lines.first().map(|line| line.overall_us * 1e3),
                p50: ns(0),
                p99: ns(1),
                p999: ns(2),
                ..Latency::default()
            });
        } else {
            let (line, ended) = self.ucx_run(test, size_bytes, count, None)?;
            let bytes = line.iterations * size_bytes;
            sample.cpu = ended.cpu((line.iterations + WARM_UP_ITERATIONS) * size_bytes);
            sample.bytes = Some(bytes);
            sample.seconds = Some(line.overall_us * line.iterations as f64 / 1e6);
            sample.bandwidth_bps = Some(size_bytes as f64 * 8.0 / (line.overall_us / 1e6));
            sample.messages_per_second = Some(1e6 / line.overall_us);
            lines.push(line);
        }
        if let Some(line) = lines.first() {
            self.ucx_rates.insert((test, size_bytes), 1e6 / line.overall_us);
        }
        Ok(sample)
    }

    fn ucx_run(
        &mut self,
        test: &'static str,
        size_bytes: u64,
        count: u64,
        rank: Option<&str>,
    ) -> Result<(Line, ExitedPair), Fault> {
        let pair = self.ucx_pair(test, size_bytes, count, rank)?;
        let ended = self.run_pair(&pair, self.limit())?;
        let line = Line::parse(&ended.client.out).map_err(|why| ended.fault(&why))?;
        Ok((line, ended))
    }

    pub(super) fn ucx_pair(
        &self,
        test: &str,
        size_bytes: u64,
        count: u64,
        rank: Option<&str>,
    ) -> Result<Pair, Fault> {
        let program = self.program(Need::Ucx)?;
        let port = PORT.to_string();
        let environment = |device: &str| {
            vec![("UCX_TLS", "tcp".to_owned()), ("UCX_NET_DEVICES", device.to_owned())]
        };
        let mut server = End::new(Namespace::Right, program, words(["-p", &port]));
        server.environment = environment(VETH[1]);
        let (size, count, warm_up) =
            (size_bytes.to_string(), count.to_string(), WARM_UP_ITERATIONS.to_string());
        let address = KERNELS[1].to_string();
        let line = ["-p", &port, &address, "-t", test, "-s", &size, "-n", &count, "-w", &warm_up];
        let mut line = words(line);
        line.extend(words(["-f", "-v"]));
        if let Some(rank) = rank {
            line.extend(words(["-R", rank]));
        }
        let mut client = End::new(Namespace::Left, program, line);
        client.environment = environment(VETH[0]);
        Ok(Pair { server, client, ready: Ready::Listening(PORT) })
    }
}

/// The last line of `ucx_perftest -f -v`.
#[derive(Clone, Copy, PartialEq, Debug)]
struct Line {
    iterations: u64,
    /// Requested percentile of half the round trip, µs.
    percentile_us: f64,
    /// Mean time of an iteration, µs; for latency tests, of half the round trip.
    overall_us: f64,
}

impl Line {
    fn parse(text: &str) -> Result<Self, String> {
        let wrong = || "ucx_perftest: unexpected output".to_owned();
        let line = text.lines().rev().find(|line| !line.trim().is_empty()).ok_or_else(wrong)?;
        let fields: Vec<&str> = line.split(',').collect();
        let [iterations, percentile, _, overall, ..] = fields[..] else { return Err(wrong()) };
        let number = |text: &str| text.trim().parse::<f64>().map_err(|_| wrong());
        let line = Self {
            iterations: iterations.trim().parse().map_err(|_| wrong())?,
            percentile_us: number(percentile)?,
            overall_us: number(overall)?,
        };
        let is_sound = line.iterations > 0 && line.overall_us > 0.0 && line.overall_us.is_finite();
        if is_sound { Ok(line) } else { Err(wrong()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "iterations,99.0_percentile_lat,avg_lat,overall_lat,avg_bw,overall_bw,avg_mr,overall_mr\n\
                        20000,3.840,3.664,3.666,2.08,2.08,272928,272928\n";

    #[test]
    fn last_line_is_parsed() {
        let line = Line::parse(TEXT).unwrap();
        assert_eq!(line, Line { iterations: 20_000, percentile_us: 3.84, overall_us: 3.666 });
    }

    #[test]
    fn invalid_output_is_rejected() {
        let head = TEXT.lines().next().unwrap();
        for text in ["", head, "0,1,1,1,1", "5,1,1,0,0", "5,1", "[1] error: no tcp, no, no, no, no"]
        {
            assert!(Line::parse(text).is_err(), "{text}");
        }
    }
}
