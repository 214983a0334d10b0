//! `flue wire`: connects two TAPs with impairments, for kernels or nodes attached to them.
//!
//! It applies to a cable what netem applies to a qdisc: loss, delay, rate and queue. It is seeded, independent of netem
//! support in the kernel, and the same for kernels and for flue nodes. `ends` opens the TAPs, `pump` runs the wire,
//! `report` prints its statistics.

mod ends;
mod overrides;
mod pump;
mod report;

use std::{fmt, time::Duration};

use clap::Args;
use flue_adapter::{
    Impairment, MTU_DEFAULT_BYTES, MTU_RANGE_BYTES, parse_interface, random_seed, word,
};
use offload_engine::link::VnetMode;
use serde::Serialize;

use self::{ends::EndConfig, overrides::Overrides};
use crate::{
    failure::Failure,
    options::OutputArgs,
    report::Console,
    sandbox::{Policy, SandboxArgs},
    units::IpPrefix,
};

/// Connect two TAPs with loss, delay, rate and queue
///
/// Frames sent by the kernel to TAP_A are delivered to TAP_B, and vice versa. Impairments apply in this order:
/// drop, corruption, duplication, reordering by 1 to 5 later frames, queue and rate (--queue, --rate), delay
/// (--delay, --jitter). Options apply to both directions; --ab and --ba override them for one.
///
/// Rates and queues count the bytes of a frame from its Ethernet header to its end. With drop or rate, GSO
/// packets are segmented to the MTU; a wire with delay only passes them whole.
///
/// Exits after -D, or on SIGINT or SIGTERM, and reports counters and the lateness of frames. On a busy machine,
/// run it with a real-time priority: chrt -r 1 flue wire ...
#[derive(Args, Clone, Debug)]
#[command(after_long_help = "Examples:
  # two kernels, each in its namespace; 100 Mbit/s, 20 ms RTT, loss bursts
  ip netns add left; ip netns add right
  flue wire w0 w1 --netns-a left --addr-a 10.0.0.1/24 \\
      --netns-b right --addr-b 10.0.0.2/24 \\
      --delay 10ms --rate 100mbit --queue 20ms --ab drop=0.1,burst=5 &
  ip netns exec right iperf3 -s -1 &
  ip netns exec left iperf3 -c 10.0.0.2 -t 1

  # two bridges, whose other ports are connected by the wire
  ip link add br0 up type bridge && ip link add br1 up type bridge
  flue wire w2 w3 --bridge-a br0 --bridge-b br1 &

Options of tc-netem(8):
  loss 1%                  --drop 1
  loss gemodel p r         --drop 100*p/(p+r) --burst 1/r
  duplicate 1%             --dup 1
  corrupt 1%               --corrupt 1
  delay 10ms 2ms           --delay 10ms --jitter 2ms (in order)
  rate 100mbit limit 100   --rate 100mbit --queue 100p")]
pub struct WireArgs {
    /// TAP of end A; created if absent
    #[arg(value_name = "TAP_A", value_parser = parse_interface)]
    pub tap_a: String,

    /// TAP of end B; created if absent
    #[arg(value_name = "TAP_B", value_parser = parse_interface)]
    pub tap_b: String,

    /// Override impairments from A to B: drop=1,delay=5ms,...
    #[arg(long, value_name = "SETTINGS", default_value_t, hide_default_value = true)]
    pub ab: Overrides,

    /// Override impairments from B to A
    #[arg(long, value_name = "SETTINGS", default_value_t, hide_default_value = true)]
    pub ba: Overrides,

    /// Seed impairments [default: random, printed]
    #[arg(long, value_name = "N")]
    pub seed: Option<u64>,

    /// Exit after this time, seconds: 1..=604800 [default: on SIGINT]
    #[arg(short = 'D', long, value_name = "SECONDS",
          value_parser = clap::value_parser!(u32).range(1..=604_800))]
    pub duration: Option<u32>,

    /// Print rates at this interval, s: 1..=3600 [default: 1 on a terminal]
    ///
    /// Without a terminal the default is none.
    #[arg(short, long, value_name = "SECONDS",
          value_parser = clap::value_parser!(u16).range(1..=3600))]
    pub interval: Option<u16>,

    /// Network namespace of TAP_A: name or path [default: current]
    ///
    /// Names are those of "ip netns".
    #[arg(long, value_name = "NETNS", help_heading = "Ends")]
    pub netns_a: Option<String>,

    /// Network namespace of TAP_B
    #[arg(long, value_name = "NETNS", help_heading = "Ends")]
    pub netns_b: Option<String>,

    /// Assign this address to TAP_A; repeatable
    #[arg(long, value_name = "IP/PREFIX", conflicts_with = "bridge_a", help_heading = "Ends")]
    pub addr_a: Vec<IpPrefix>,

    /// Assign this address to TAP_B; repeatable
    #[arg(long, value_name = "IP/PREFIX", conflicts_with = "bridge_b", help_heading = "Ends")]
    pub addr_b: Vec<IpPrefix>,

    /// Make TAP_A a port of this bridge
    #[arg(long, value_name = "BRIDGE", value_parser = parse_interface, help_heading = "Ends")]
    pub bridge_a: Option<String>,

    /// Make TAP_B a port of this bridge
    #[arg(long, value_name = "BRIDGE", value_parser = parse_interface, help_heading = "Ends")]
    pub bridge_b: Option<String>,

    /// Set the MTU, bytes: 1280..=65521
    #[arg(long, value_name = "BYTES", default_value_t = MTU_DEFAULT_BYTES, help_heading = "Ends",
          value_parser = clap::value_parser!(u16).range(MTU_RANGE_BYTES))]
    pub mtu: u16,

    /// Use a virtio-net header: GSO packets of up to 64 KiB
    #[arg(long, value_enum, value_name = "WHEN", default_value_t, help_heading = "Ends")]
    pub vnet: VnetMode,

    /// Impairments of both directions.
    #[command(flatten)]
    pub impairment: Impairment,

    /// Rights of the process.
    #[command(flatten)]
    pub sandbox: SandboxArgs,

    /// Log events on standard error
    #[arg(short, long, conflicts_with = "quiet", help_heading = "Output")]
    pub verbose: bool,

    /// Output format.
    #[command(flatten)]
    pub output: OutputArgs,
}

/// Validated configuration of a wire.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct WireConfig {
    /// End A.
    pub a: EndConfig,
    /// End B.
    pub b: EndConfig,
    /// Largest IP packet, bytes.
    pub mtu_bytes: u16,
    /// Use of virtio-net headers.
    pub vnet: VnetMode,
    /// Impairments from A to B.
    pub a_to_b: Impairment,
    /// Impairments from B to A.
    pub b_to_a: Impairment,
    /// Seed of the random number generator.
    #[serde(serialize_with = "flue_adapter::seed::serialize")]
    pub seed: u64,
    /// Duration of the run, seconds.
    pub duration_s: Option<u32>,
    /// Reporting interval, seconds.
    pub interval_s: Option<u16>,
}

impl WireArgs {
    /// Validates the combination of options and fills in defaults.
    ///
    /// # Errors
    /// [`Failure::usage`] with the option and its limit.
    pub fn resolve(&self) -> Result<WireConfig, Failure> {
        if (&self.tap_a, &self.netns_a) == (&self.tap_b, &self.netns_b) {
            return Err(Failure::usage(format!(
                "TAP_B {}: same as TAP_A, expected another TAP",
                self.tap_b
            )));
        }
        let direction = |name: &str, overrides: &Overrides| {
            let settings = overrides.applied_to(&self.impairment);
            settings.check().map(|()| settings).map_err(|error| Failure::from(error).at(name))
        };
        let end =
            |tap: &String, netns: &Option<String>, bridge: &Option<String>, addresses: &[_]| {
                EndConfig {
                    tap: tap.clone(),
                    netns: netns.as_deref().map(ends::namespace_path),
                    bridge: bridge.clone(),
                    addresses: addresses.to_vec(),
                }
            };
        let on_a_terminal = rustix::termios::isatty(std::io::stdout()) && !self.output.json;
        Ok(WireConfig {
            a: end(&self.tap_a, &self.netns_a, &self.bridge_a, &self.addr_a),
            b: end(&self.tap_b, &self.netns_b, &self.bridge_b, &self.addr_b),
            mtu_bytes: self.mtu,
            vnet: self.vnet,
            a_to_b: direction("--ab", &self.ab)?,
            b_to_a: direction("--ba", &self.ba)?,
            seed: self.seed.map_or_else(random_seed, Ok)?,
            duration_s: self.duration,
            interval_s: self.interval.or(if on_a_terminal { Some(1) } else { None }),
        })
    }
}

impl WireConfig {
    fn duration(&self) -> Option<Duration> {
        self.duration_s.map(|seconds| Duration::from_secs(seconds.into()))
    }

    fn interval(&self) -> Option<Duration> {
        self.interval_s.map(|seconds| Duration::from_secs(seconds.into()))
    }
}

/// Formats the effective configuration as lines of `key: value`, as printed at startup.
impl fmt::Display for WireConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { a, b, mtu_bytes, vnet, a_to_b, b_to_a, seed, duration_s, interval_s: _ } = self;
        writeln!(f, "end A: {a}")?;
        writeln!(f, "end B: {b}")?;
        writeln!(f, "mtu {mtu_bytes} bytes, vnet {}", word(*vnet))?;
        writeln!(f, "A to B: {a_to_b}")?;
        writeln!(f, "B to A: {b_to_a}")?;
        match duration_s {
            Some(seconds) => writeln!(f, "duration: {seconds} s")?,
            None => writeln!(f, "duration: until interrupted")?,
        }
        write!(f, "seed: {seed}")
    }
}

/// Runs `flue wire`.
///
/// # Errors
/// A TAP could not be opened or was removed, or the options are inconsistent.
pub fn run(args: &WireArgs, console: &mut Console<'_>) -> Result<(), Failure> {
    let config = args.resolve()?;
    console.config(&config);
    let stop = pump::Stop::on_signals()?;
    let mut a = ends::open(&config.a, config.mtu_bytes, config.vnet)?;
    let mut b = ends::open(&config.b, config.mtu_bytes, config.vnet)?;
    let (a_to_b, b_to_a) =
        (config.a_to_b.on_a_link(config.seed), config.b_to_a.on_a_link(config.seed));
    let wire = offload_engine::link::Wire::new(a.take_link(), b.take_link(), a_to_b, b_to_a)
        .map_err(|error| Failure::usage(format!("impairment: {error}")))?;
    console.step(format_args!("joined: {} and {}", a.describe(), b.describe()));
    // With `--json`, -v makes this event available to a caller that waits for readiness.
    tracing::info!("joined");
    args.sandbox.enter(Policy::Node { control: None });
    let mut run = pump::Run::new(wire, stop)?;
    let ended = run.until_stopped(&config, console);
    report::summary(&run.wire, run.elapsed(), [a.dropped(), b.dropped()], console);
    ended
}

#[cfg(test)]
mod tests;
