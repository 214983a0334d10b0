//! `flue perf` under strace.

use std::{
    fs,
    path::{Path, PathBuf},
};

use super::{End, Span, Tools, perf, words};
use crate::{
    contest::{Job, PerfJob, Route},
    namespaces::Namespace,
    process::Fault,
    syscalls::{Calls, Counts, EndCalls, parse},
};

/// Approximate bytes of the long run, and bounds on its messages.
const LONG_BYTES: u64 = 128 << 20;
const LONG_MESSAGES: std::ops::RangeInclusive<u64> = 300..=30_000;
/// Length of the long run, as a multiple of the short one.
const LONG_RUN_FACTOR: u64 = 10;

impl Tools<'_> {
    /// Counts the system calls of the ends of a job that are nodes. strace writes to `scratch`.
    pub(crate) fn count_calls(
        &mut self,
        strace: &Path,
        scratch: &Path,
        id: &str,
        title: &str,
        job: &Job,
    ) -> Option<Result<Calls, Fault>> {
        let Job::Perf(job) = job else { return None };
        let PerfJob { route, client, .. } = job;
        let size_bytes = size_of(client)?;
        let long = (LONG_BYTES / size_bytes).clamp(*LONG_MESSAGES.start(), *LONG_MESSAGES.end());
        let mut run = |count| {
            let span = Span::Iterations(count);
            let mut pair = self.perf_pair(job, &span);
            let (of_client, of_server) =
                (scratch.join("client.strace"), scratch.join("server.strace"));
            if *route != Route::KernelToNode {
                pair.client = self.under_strace(strace, &of_client, pair.client);
            }
            if *route != Route::NodeToKernel {
                pair.server = self.under_strace(strace, &of_server, pair.server);
            }
            let ended = self.run_pair(&pair, self.limit())?;
            let messages = perf::messages(&ended.client.out).map_err(|why| ended.fault(&why))?;
            let server_has_ended = ended.server.is_some();
            let counts = |path: &PathBuf, is_traced: bool| -> Result<Counts, Fault> {
                if !is_traced {
                    return Ok(Counts::new());
                }
                let text = fs::read_to_string(path).map_err(Fault::of("output of strace"))?;
                parse(&text).map_err(Fault::Failed)
            };
            if !server_has_ended {
                return Err(Fault::Failed("server: still running under strace".into()));
            }
            let client = counts(&of_client, *route != Route::KernelToNode)?;
            let server = counts(&of_server, *route != Route::NodeToKernel)?;
            Ok((messages, client, server))
        };
        let both = run((long / LONG_RUN_FACTOR).max(1)).and_then(|short| Ok((short, run(long)?)));
        Some(both.map(|(short, long)| Calls {
            id: id.into(),
            title: title.into(),
            size_bytes,
            messages: long.0.saturating_sub(short.0),
            client: EndCalls::between(&short.1, &long.1),
            server: EndCalls::between(&short.2, &long.2),
            error: None,
        }))
    }

    /// Returns `end` under strace, which writes to `file`. The end is killed when strace exits, and strace when this
    /// process exits.
    fn under_strace(&self, strace: &Path, file: &Path, end: End) -> End {
        let mut line = words(["-c", "-f", "-o"]);
        line.push(file.into());
        line.push("--".into());
        line.push(self.namespaces.program().into());
        line.extend(words(["bench", "join", "--"]));
        line.push(end.program.into());
        line.extend(end.words);
        End {
            namespace: Namespace::Bridge,
            program: strace.into(),
            words: line,
            environment: end.environment,
        }
    }
}

/// Returns the argument of `-s`.
fn size_of(options: &[String]) -> Option<u64> {
    let at = options.iter().position(|option| option == "-s")?;
    options.get(at + 1)?.parse().ok().filter(|&size| size > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn size_is_read_from_options() {
        let options = |line: &str| line.split(' ').map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(size_of(&options("-t 16 -s 64")), Some(64));
        assert_eq!(size_of(&options("-s")), None);
        assert_eq!(size_of(&options("-t 16")), None);
    }
}
