//! Execution of one seed. Its panic is caught with message, location and class, and printed by the runner
//! instead of the panic hook.

use std::{
    cell::{Cell, RefCell},
    fmt,
    panic::{AssertUnwindSafe, PanicHookInfo, catch_unwind, set_hook, take_hook},
    path::{Component, Path},
    sync::Once,
};

use super::Class;

/// Maximum bytes kept of a panic's message.
const TEXT_BYTES_MAX: usize = 8 * 1024;

/// Failure of a seed.
#[derive(Clone, Debug)]
pub(super) struct Failure {
    pub(super) seed: u64,
    pub(super) class: Class,
    /// `file:line` of the panic.
    pub(super) place: String,
    pub(super) text: String,
}

impl Failure {
    /// First line of the message that is not blank.
    pub(super) fn first_line(&self) -> String {
        let line = self.text.lines().find(|line| !line.trim().is_empty()).unwrap_or("no message");
        line.trim().chars().take(160).collect()
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { seed, class, place, text } = self;
        writeln!(f, "seed {seed}: {class}, at {place}")?;
        text.lines().try_for_each(|line| writeln!(f, "    {line}"))
    }
}

/// State of the seed that a thread runs, for the panic hook.
struct RunningSeed {
    seed: u64,
    /// True if the default hook prints as well.
    is_single: bool,
    classes: &'static [(&'static str, Class)],
    failure: Option<Failure>,
}

thread_local! {
    static RUNNING: RefCell<Option<RunningSeed>> = const { RefCell::new(None) };
    static CLASS: Cell<Option<Class>> = const { Cell::new(None) };
}

/// Panics with `text`, and records the class for the runner. In a test without a runner it is an ordinary
/// panic.
///
/// # Panics
/// Always.
#[track_caller]
pub fn fail(class: Class, text: &str) -> ! {
    CLASS.set(Some(class));
    panic!("{class}: {text}")
}

/// Runs `run` for one seed.
pub(super) fn watch<S>(
    seed: u64,
    is_single: bool,
    classes: &'static [(&'static str, Class)],
    run: impl FnOnce() -> S,
) -> Result<S, Failure> {
    install();
    let running = RunningSeed { seed, is_single, classes, failure: None };
    RUNNING.with_borrow_mut(|slot| *slot = Some(running));
    let result = catch_unwind(AssertUnwindSafe(run));
    let running = RUNNING.take();
    result.map_err(|_| {
        running.and_then(|running| running.failure).unwrap_or_else(|| Failure {
            seed,
            class: Class::Other,
            place: "?".into(),
            text: "a panic without a hook".into(),
        })
    })
}

fn install() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let before = take_hook();
        set_hook(Box::new(move |info| {
            if !record_panic(info) {
                before(info);
            }
        }));
    });
}

/// Records the panic. False in a thread that runs no seed, where the default hook must continue.
fn record_panic(info: &PanicHookInfo<'_>) -> bool {
    let class = CLASS.take();
    let Ok(is_noted) = RUNNING.try_with(|slot| {
        let Ok(mut slot) = slot.try_borrow_mut() else { return false };
        let Some(running) = slot.as_mut() else { return false };
        let (file, line) = info.location().map_or(("?", 0), |at| (at.file(), at.line()));
        let class = class.unwrap_or_else(|| by_file(file, running.classes));
        let (seed, place, text) = (running.seed, format!("{file}:{line}"), message(info, class));
        let failure = Failure { seed, class, place, text };
        // During unwinding a second panic aborts the process: this is the last chance to print it.
        if std::thread::panicking()
            && !running.is_single
            && let Some(first) = &running.failure
        {
            super::print(&format!("{first}{failure}"));
        }
        running.failure = Some(failure);
        !running.is_single
    }) else {
        return false;
    };
    is_noted
}

/// Message without the class that [`fail`] prepends.
fn message(info: &PanicHookInfo<'_>, class: Class) -> String {
    let payload = info.payload();
    let text = payload.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| payload.downcast_ref::<&str>().copied()).unwrap_or("no text");
    let text = text.strip_prefix(&format!("{class}: ")).unwrap_or(text);
    text[..text.floor_char_boundary(TEXT_BYTES_MAX)].to_owned()
}

/// Class of a panic without a separate class: that of the file, if the suite has one; `panic` outside of
/// tests.
pub(super) fn by_file(file: &str, classes: &[(&str, Class)]) -> Class {
    if let Some((_, class)) = classes.iter().find(|(end, _)| file.ends_with(end)) {
        return *class;
    }
    let path = Path::new(file);
    let is_test = path.is_relative()
        && path.components().any(|part| part == Component::Normal("tests".as_ref()));
    if is_test { Class::Other } else { Class::Panic }
}
