//! Progress of a command on standard error: a bar on a terminal, otherwise a line every [`LINE_INTERVAL`].
//!
//! A command that takes less than that prints no line. `-q` and `--json` print nothing.

use std::{
    io::{self, Write},
    time::{Duration, Instant},
};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::Style;

/// Shortest time between two lines.
pub const LINE_INTERVAL: Duration = Duration::from_secs(5);

/// Bar of at most 24 columns; the text is truncated to the width of the terminal.
const TEMPLATE: &str = "{percent:>3} % {bar:24} {wide_msg} {eta:>4} left";

/// Progress of a command. Dropping it removes the bar.
pub struct Progress {
    output: Output,
    /// Work of the whole command, in any unit.
    total: u64,
    /// Time of the last line, or the start.
    line_at: Instant,
}

enum Output {
    Bar(ProgressBar),
    Lines(Box<dyn Write>),
    None,
}

impl std::fmt::Debug for Progress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Progress").field("total", &self.total).finish_non_exhaustive()
    }
}

impl Progress {
    /// Creates the progress of a command that starts at `now`, with `total` units of work.
    pub fn new(now: Instant, total: u64, style: Style) -> Self {
        let target = ProgressDrawTarget::stderr();
        let output = match target.is_hidden() {
            _ if style.quiet || style.json => Output::None,
            true => Output::Lines(Box::new(io::stderr())),
            false => {
                let bar = ProgressBar::with_draw_target(Some(total), target);
                let style = ProgressStyle::with_template(TEMPLATE).expect("template is valid");
                Output::Bar(bar.with_style(style.progress_chars("=> ")))
            }
        };
        Self { output, total, line_at: now }
    }

    /// Shows that `done` units are done; `text` is the current step.
    pub fn update(&mut self, now: Instant, done: u64, text: &str) {
        match &mut self.output {
            Output::Bar(bar) => {
                bar.set_position(done);
                bar.set_message(text.to_owned());
            }
            Output::Lines(out) if now - self.line_at >= LINE_INTERVAL => {
                self.line_at = now;
                let percent = done.saturating_mul(100) / self.total.max(1);
                // A write error on standard error cannot be reported.
                let _ = writeln!(out, "{percent:3} %  {text}");
            }
            Output::Lines(_) | Output::None => {}
        }
    }

    /// Prints other output of the terminal by `print`, above the bar.
    pub fn above(&self, print: impl FnOnce()) {
        match &self.output {
            Output::Bar(bar) => bar.suspend(print),
            Output::Lines(_) | Output::None => print(),
        }
    }

    /// Removes the bar.
    pub fn clear(&self) {
        if let Output::Bar(bar) = &self.output {
            bar.finish_and_clear();
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.clear();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;

    #[derive(Clone, Default)]
    struct Shared(Arc<Mutex<Vec<u8>>>);

    impl Write for Shared {
        fn write(&mut self, octets: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().write(octets)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn lines_keep_their_distance() {
        let (start, lines) = (Instant::now(), Shared::default());
        let output = Output::Lines(Box::new(lines.clone()));
        let mut progress = Progress { output, total: 2_000, line_at: start };
        for millis in 0..11_000 {
            let text = format!("step {millis}");
            progress.update(start + Duration::from_millis(millis), millis / 10, &text);
        }
        drop(progress);
        let text = String::from_utf8(lines.0.lock().unwrap().clone()).unwrap();
        assert_eq!(text, " 25 %  step 5000\n 50 %  step 10000\n");
    }

    #[test]
    fn quiet_and_json_print_nothing() {
        for style in
            [Style { quiet: true, ..Style::default() }, Style { json: true, ..Style::default() }]
        {
            assert!(matches!(Progress::new(Instant::now(), 1, style).output, Output::None));
        }
    }
}
