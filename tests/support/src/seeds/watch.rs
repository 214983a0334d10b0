//! One seed: its panic is caught with message, place and class, and printed by the runner, not by the panic hook.

use std::{
    cell::{Cell, RefCell},
    fmt,
    panic::{AssertUnwindSafe, PanicHookInfo, catch_unwind, set_hook, take_hook},
    path::{Component, Path},
    sync::Once,
};

use super::Class;

/// Bytes of a panic's message that are kept.
const TEXT_BYTES_MAX: usize = 8 * 1024;

/// Why a seed failed.
#[derive(Clone, Debug)]
pub(super) struct Failure {
    pub(super) seed: u64,
    pub(super) class: Class,
    /// `file:line` of the panic.
    pub(super) place: String,
    pub(super) text: String,
}

impl Failure {
    /// The first line of the message that says something.
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

/// What the hook knows of the seed that a thread runs.
struct Watched {
    seed: u64,
    /// The default hook prints as well.
    is_single: bool,
    classes: &'static [(&'static str, Class)],
    failure: Option<Failure>,
}

thread_local! {
    static WATCHED: RefCell<Option<Watched>> = const { RefCell::new(None) };
    static CLASS: Cell<Option<Class>> = const { Cell::new(None) };
}

/// Panics with `text`, and tells the runner the class. In a test without a runner it is a panic like any other.
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
    let watched = Watched { seed, is_single, classes, failure: None };
    WATCHED.with_borrow_mut(|slot| *slot = Some(watched));
    let result = catch_unwind(AssertUnwindSafe(run));
    let watched = WATCHED.take();
    result.map_err(|_| {
        watched.and_then(|watched| watched.failure).unwrap_or_else(|| Failure {
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
            if !note(info) {
                before(info);
            }
        }));
    });
}

/// Returns whether that was all there is to do: false in a thread that runs no seed.
fn note(info: &PanicHookInfo<'_>) -> bool {
    let class = CLASS.take();
    let Ok(is_noted) = WATCHED.try_with(|slot| {
        let Ok(mut slot) = slot.try_borrow_mut() else { return false };
        let Some(watched) = slot.as_mut() else { return false };
        let (file, line) = info.location().map_or(("?", 0), |at| (at.file(), at.line()));
        let class = class.unwrap_or_else(|| by_file(file, watched.classes));
        let (seed, place, text) = (watched.seed, format!("{file}:{line}"), message(info, class));
        let failure = Failure { seed, class, place, text };
        // While the first unwinds, a second one ends the process: nobody else will tell.
        if std::thread::panicking()
            && !watched.is_single
            && let Some(first) = &watched.failure
        {
            super::print(&format!("{first}{failure}"));
        }
        watched.failure = Some(failure);
        !watched.is_single
    }) else {
        return false;
    };
    is_noted
}

/// The message, without the class that [`fail`] puts before it.
fn message(info: &PanicHookInfo<'_>, class: Class) -> String {
    let payload = info.payload();
    let text = payload.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| payload.downcast_ref::<&str>().copied()).unwrap_or("no text");
    let text = text.strip_prefix(&format!("{class}: ")).unwrap_or(text);
    text[..text.floor_char_boundary(TEXT_BYTES_MAX)].to_owned()
}

/// The class of a panic that has not said its class: of the file, if the suite knows one; `panic` outside of tests.
pub(super) fn by_file(file: &str, classes: &[(&str, Class)]) -> Class {
    if let Some((_, class)) = classes.iter().find(|(end, _)| file.ends_with(end)) {
        return *class;
    }
    let path = Path::new(file);
    let is_test = path.is_relative()
        && path.components().any(|part| part == Component::Normal("tests".as_ref()));
    if is_test { Class::Other } else { Class::Panic }
}
