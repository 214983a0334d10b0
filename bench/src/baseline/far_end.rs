//! Far end of a run, on a dedicated thread.

use std::thread::{self, JoinHandle};

use flue_report::failure::Failure;

use super::{
    Common,
    measure::{End, bind},
};

/// Thread of the far end.
#[derive(Debug)]
pub(super) struct FarEnd<T> {
    thread: JoinHandle<Result<T, Failure>>,
}

impl<T: Send + 'static> FarEnd<T> {
    /// Starts `work` on a new thread, bound to its CPU of `--cpus`.
    pub(super) fn start(
        common: &Common,
        work: impl FnOnce() -> Result<T, Failure> + Send + 'static,
    ) -> Result<Self, Failure> {
        let common = common.clone();
        let bound = move || {
            bind(&common, End::Far)?;
            work()
        };
        let thread = thread::Builder::new().name("far-end".into()).spawn(bound);
        let thread =
            thread.map_err(|error| Failure::work(format!("start the far end: {error}")))?;
        Ok(Self { thread })
    }

    /// Returns true if the thread has ended, with or without an error.
    pub(super) fn is_finished(&self) -> bool {
        self.thread.is_finished()
    }

    /// Waits until the thread has exited; returns its result.
    pub(super) fn join(self) -> Result<T, Failure> {
        let panicked = |_| Err(Failure::work("far end: thread panicked"));
        self.thread.join().unwrap_or_else(panicked)
    }
}
