//! Programs of perftest, `cmtime` and `rstream` under `flue run`, on kernel sockets or nodes, and their output.
//!
//! perftest's latency tests report percentiles only for a number of iterations, so all tests get a number: that of the
//! measuring time at [`BYTES_PER_SECOND`] or [`PINGS_PER_SECOND`].

use super::{End, Measured, PORT, Pair, Tools, words};
use crate::{
    contest::Need,
    namespaces::{BRIDGE, KERNELS, NODES, Namespace, PREFIX_LEN},
    process::{Fault, Ready},
    sample::{Latency, Sample},
};

const BYTES_PER_SECOND: f64 = 5e9;
const PINGS_PER_SECOND: f64 = 1e5;
/// Transfers of `rstream` in the measuring time of one second.
const TRANSFERS_PER_SECOND: f64 = 1e4;
/// Bounds on the iterations of a run.
const ITERATIONS: std::ops::RangeInclusive<u64> = 1_000..=1_000_000;
/// Steps of `cmtime` until an id is connected.
const STEPS: [&str; 5] = ["create id", "resolve addr", "resolve route", "create qp", "connect"];

impl Tools<'_> {
    pub(super) fn perftest(&mut self, program: &str, size: u64, on_nodes: bool) -> Measured {
        let pair = self.perftest_pair(program, size, on_nodes)?;
        let ended = self.run_pair(&pair, self.limit())?;
        let sample = perftest_sample(&ended.client.out, size).map_err(|why| ended.fault(&why))?;
        Ok(Sample { cpu: sample.bytes.and_then(|bytes| ended.cpu(bytes)), ..sample })
    }

    pub(super) fn perftest_pair(
        &self,
        program: &str,
        size_bytes: u64,
        on_nodes: bool,
    ) -> Result<Pair, Fault> {
        self.program(Need::Perftest)?;
        let count = match is_latency(program) {
            true => PINGS_PER_SECOND * self.seconds,
            false => BYTES_PER_SECOND * self.seconds / size_bytes as f64,
        };
        let count = (count as u64).clamp(*ITERATIONS.start(), *ITERATIONS.end());
        let mut line = vec![
            "-R".to_owned(),
            "-F".into(),
            "-p".into(),
            PORT.to_string(),
            "-s".into(),
            size_bytes.to_string(),
            "-n".into(),
            count.to_string(),
        ];
        if !is_latency(program) {
            line.push("--report_gbits".into());
        }
        let server_address = if on_nodes { NODES[1] } else { KERNELS[1] };
        Ok(self.verbs_pair(program, &line, Vec::new(), vec![server_address.to_string()], on_nodes))
    }

    pub(super) fn rstream(&mut self, size: u64, on_nodes: bool) -> Measured {
        let pair = self.rstream_pair(size, on_nodes)?;
        let ended = self.run_pair(&pair, self.limit())?;
        let sample = rstream_sample(&ended.client.out).map_err(|why| ended.fault(&why))?;
        let bytes = size * self.transfers();
        Ok(Sample { bytes: Some(bytes), cpu: ended.cpu(bytes), ..sample })
    }

    pub(super) fn rstream_pair(&self, size_bytes: u64, on_nodes: bool) -> Result<Pair, Fault> {
        self.program(Need::Rstream)?;
        let (port, size) = (PORT.to_string(), size_bytes.to_string());
        let count = self.transfers().to_string();
        // One transfer in each direction in turns.
        let line = ["-p", &port, "-S", &size, "-I", "1", "-C", &count].map(str::to_owned);
        let address = (if on_nodes { NODES[1] } else { KERNELS[1] }).to_string();
        let (server, client) = (vec!["-b".into(), address.clone()], vec!["-s".into(), address]);
        Ok(self.verbs_pair("rstream", &line, server, client, on_nodes))
    }

    fn transfers(&self) -> u64 {
        ((TRANSFERS_PER_SECOND * self.seconds) as u64).clamp(*ITERATIONS.start(), *ITERATIONS.end())
    }

    pub(super) fn cmtime(&mut self, connections: u32) -> Measured {
        let pair = self.cmtime_pair(connections)?;
        let ended = self.run_pair(&pair, self.limit())?;
        cmtime_sample(&ended.client.out, connections).map_err(|why| ended.fault(&why))
    }

    pub(super) fn cmtime_pair(&self, connections: u32) -> Result<Pair, Fault> {
        self.program(Need::Cmtime)?;
        let line = ["-p".to_owned(), PORT.to_string(), "-c".into(), connections.to_string()];
        let server = vec!["-b".into(), KERNELS[1].to_string()];
        let client = vec!["-s".into(), KERNELS[1].to_string()];
        Ok(self.verbs_pair("cmtime", &line, server, client, false))
    }

    /// Returns the program at both ends, with additional arguments for each.
    fn verbs_pair(
        &self,
        program: &str,
        line: &[String],
        server: Vec<String>,
        client: Vec<String>,
        on_nodes: bool,
    ) -> Pair {
        let control = format!("/tmp/flue-bench-{}-{}.sock", std::process::id(), self.runs);
        let end = |namespace, options: Vec<String>, added: Vec<String>| {
            let launched = ["run".to_owned()].into_iter().chain(options);
            let program = ["--".to_owned(), program.to_owned()];
            let all = launched.chain(program).chain(line.iter().cloned()).chain(added);
            End::new(namespace, self.namespaces.program(), words(all))
        };
        let on_node = |index: usize, control: &str| {
            let (tap, address) = (["c", "s"][index], NODES[index]);
            let options = format!(
                "--control {control} --tap bench{}{tap} --addr {address}/{PREFIX_LEN} --bridge {BRIDGE} --mtu {}",
                self.runs, self.mtu_bytes
            );
            options.split(' ').map(str::to_owned).collect()
        };
        if on_nodes {
            return Pair {
                server: end(Namespace::Bridge, on_node(1, &control), server),
                client: end(Namespace::Bridge, on_node(0, "none"), client),
                ready: Ready::NodeListening(control.into()),
            };
        }
        let none = || vec!["--control".to_owned(), "none".to_owned()];
        Pair {
            server: end(Namespace::Right, none(), server),
            client: end(Namespace::Left, none(), client),
            ready: Ready::Listening(PORT),
        }
    }
}

fn is_latency(program: &str) -> bool {
    program.ends_with("_lat")
}

/// Parses the only line of the table: the one that begins with the size.
fn perftest_sample(text: &str, size_bytes: u64) -> Result<Sample, String> {
    let line = text.lines().rev().find_map(|line| {
        let fields: Result<Vec<f64>, _> = line.split_whitespace().map(str::parse).collect();
        fields.ok().filter(|fields| fields.first() == Some(&(size_bytes as f64)))
    });
    let samples = |count: f64| Some(count as u64);
    match line.as_deref() {
        // Size, iterations, peak and average in Gbit/s, million messages per second.
        Some([_, count, _, gbits, rate]) if *gbits > 0.0 => Ok(Sample {
            bandwidth_bps: Some(gbits * 1e9),
            messages_per_second: Some(rate * 1e6),
            bytes: Some(*count as u64 * size_bytes),
            ..Sample::default()
        }),
        // Size, iterations, minimum, maximum, median, mean, deviation, 99 % and 99.9 %, in µs.
        Some([_, count, min, max, median, mean, _, p99, p999]) if *median > 0.0 => Ok(Sample {
            latency_ns: Some(Latency {
                samples: samples(*count),
                min: Some(min * 1e3),
                max: Some(max * 1e3),
                p50: Some(median * 1e3),
                mean: Some(mean * 1e3),
                p99: Some(p99 * 1e3),
                p999: Some(p999 * 1e3),
                p90: None,
            }),
            ..Sample::default()
        }),
        _ => Err("perftest: unexpected output".to_owned()),
    }
}

/// Parses the only line of the table, whose last columns are Gbit/s and microseconds per transfer.
fn rstream_sample(text: &str) -> Result<Sample, String> {
    let line = text.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or_default();
    let mut figures = line.split_whitespace().rev().map(str::parse::<f64>);
    match (figures.next(), figures.next()) {
        (Some(Ok(micros)), Some(Ok(gbits))) if micros > 0.0 => Ok(Sample {
            bandwidth_bps: Some(gbits * 1e9),
            messages_per_second: Some(1e6 / micros),
            ..Sample::default()
        }),
        _ => Err("rstream: unexpected output".to_owned()),
    }
}

/// Parses the total times of the steps until the ids are connected.
fn cmtime_sample(text: &str, connections: u32) -> Result<Sample, String> {
    let total_ms = |step: &str| {
        text.lines().find_map(|line| {
            let (name, figures) = line.split_once(':')?;
            let first = figures.split_whitespace().next()?;
            (name.trim() == step).then(|| first.parse::<f64>().ok())?
        })
    };
    let spent_ms: Option<f64> = STEPS.into_iter().map(total_ms).sum();
    let seconds = spent_ms.filter(|ms| *ms > 0.0).ok_or("cmtime: unexpected output")? / 1e3;
    Ok(Sample {
        seconds: Some(seconds),
        connections_per_second: Some(f64::from(connections) / seconds),
        ..Sample::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contest::Metric;

    const BANDWIDTH: &str = "---------------\n \
         #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]\n \
         65536      2000             20.10              18.40  \t\t   0.035095\n---------------\n";
    const LATENCY: &str = " #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    \
         t_stdev[usec]   99% percentile[usec]   99.9% percentile[usec] \n \
         2       1000          3.02           35.10        3.55      \t       3.71        \t0.90\t\t5.20  \
         \t\t14.31  \n";
    const CONNECTIONS: &str = "step              total ms     max ms     min us  us / conn\n\
                               create id    :       1.00       0.03       0.00       5.00\n\
                               resolve addr :       2.00       0.20      10.00      10.00\n\
                               resolve route:       1.00       0.20      10.00       7.50\n\
                               create qp    :       6.00       0.10      20.00      30.00\n\
                               connect      :      40.00      29.27    4095.00     280.00\n\
                               disconnect   :      27.79      17.08     221.00     138.97\n\
                               destroy      :       1.00       0.03       0.00       5.00\n";

    #[test]
    fn perftest_table_is_parsed() {
        let sample = perftest_sample(BANDWIDTH, 65_536).unwrap();
        assert_eq!(sample.figure(Metric::BandwidthBps), Some(18.4e9));
        assert_eq!(sample.bytes, Some(2_000 * 65_536));
        let sample = perftest_sample(LATENCY, 2).unwrap();
        assert_eq!(sample.figure(Metric::LatencyP50Ns), Some(3550.0));
    }

    #[test]
    fn rstream_table_is_parsed() {
        let text = "name      bytes   xfers   iters   total       time     Gb/sec    usec/xfer\n\
                    custom    64      10k     1       1.2m        0.05s      0.20       2.50\n";
        let sample = rstream_sample(text).unwrap();
        assert_eq!(sample.figure(Metric::MessagesPerSecond), Some(400e3));
        assert_eq!(sample.figure(Metric::BandwidthBps), Some(0.2e9));
    }

    #[test]
    fn cmtime_steps_are_summed() {
        let sample = cmtime_sample(CONNECTIONS, 200).unwrap();
        assert_eq!(sample.figure(Metric::ConnectionsPerSecond), Some(4_000.0));
    }

    #[test]
    fn other_output_is_rejected() {
        let zeros = " 65536      2000             0.00              0.00  \t\t   0.0";
        for text in ["", "no device found", zeros] {
            assert!(perftest_sample(text, 65_536).is_err(), "{text}");
            assert!(cmtime_sample(text, 10).is_err(), "{text}");
            assert!(rstream_sample(text).is_err() || text == zeros, "{text}");
        }
        assert!(perftest_sample(BANDWIDTH, 64).is_err());
        let without_one = CONNECTIONS.replace("create qp", "create q");
        assert!(cmtime_sample(&without_one, 200).is_err());
    }
}
