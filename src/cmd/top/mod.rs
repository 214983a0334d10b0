//! `flue top`: live view of connections and queue pairs of all nodes of the user.
//!
//! `model` is the state and `view` the drawing, both without a terminal. A thread lists the nodes at each interval,
//! and a thread per request migrates a connection or starts a capture, so that a node that does not reply does not
//! block the keys.

mod model;
mod view;

use std::{
    env,
    io::{self, IsTerminal},
    process,
    sync::mpsc::{self, Receiver, RecvTimeoutError, Sender},
    thread,
    time::{Duration, Instant},
};

use clap::Args;
use ratatui::{
    DefaultTerminal,
    crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers},
};

use signal_hook::consts::SIGHUP;

use self::{
    model::{Model, Sample},
    view::Screen,
};
use crate::{
    cmd::{
        capture, hand_over,
        ss::{
            filter::{Filter, States},
            listing,
        },
    },
    control::{
        client::{self, Nodes},
        message::Destination,
    },
    failure::{Failure, unless_stopped},
    waker::{Waker, parse_interval},
};

/// Interval at which keys, signals and listings are read.
const TICK: Duration = Duration::from_millis(50);
/// Time limit of an offload or upload.
const MOVE_LIMIT: Duration = Duration::from_secs(5);

/// Show connections and queue pairs of running nodes, live
///
/// Nodes on a TAP and programs under "flue run", with data path, throughput, round-trip time and retransmissions. Keys
/// sort, filter, offload or upload the selected connection, and capture its node; ? lists them. NO_COLOR disables
/// colors.
#[derive(Args, Clone, Debug)]
#[command(after_long_help = "Examples:
  flue top
  flue top --interval 0.5 offload offloaded
  flue top --node flue0 dport = :7174")]
pub struct TopArgs {
    /// Filter of connections, as of flue ss
    #[arg(value_name = "FILTER", trailing_var_arg = true)]
    pub filter: Vec<String>,

    /// Interval of the listings, s: 0.1..=3600
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = parse_interval)]
    pub interval: Duration,

    /// Query this node: socket, process id, TAP or program [default: all]
    ///
    /// By default all nodes of the user are queried.
    #[arg(long, value_name = "PATH|PID|TAP|PROGRAM")]
    pub node: Option<String>,
}

/// Terminal in raw mode, restored when it is dropped. A panic restores it too.
struct Display(DefaultTerminal);

impl Display {
    fn open() -> Result<Self, Failure> {
        ratatui::try_init().map(Self).map_err(|error| Failure::work(format!("terminal: {error}")))
    }
}

impl Drop for Display {
    fn drop(&mut self) {
        // A closed terminal cannot be restored.
        let _ = ratatui::try_restore();
    }
}

/// Runs `flue top`.
///
/// # Errors
/// Standard output is not a terminal, the filter is invalid, the requested node was not found, or the
/// terminal failed.
pub fn run(args: &TopArgs) -> Result<(), Failure> {
    let filter = Filter::parse(&args.filter, States::connected())?;
    let is_dumb = env::var_os("TERM").is_none_or(|term| term.is_empty() || term == "dumb");
    let is_terminal = io::stdout().is_terminal();
    if !is_terminal || is_dumb {
        let problem =
            if is_terminal { "terminal without a cursor (TERM)" } else { "not a terminal" };
        return Err(Failure::usage(format!("standard output: {problem}"))
            .with_hint("\"flue ss --interval 1\" prints the connections as text"));
    }
    let nodes = Nodes::parse(args.node.as_deref());
    // Reports a wrong --node before the screen is cleared.
    client::find(&nodes)?;
    let waker = Waker::new();
    let hangup = waker.clone();
    waker.set(move || {
        // The reader of keys does not return from a closed terminal.
        if hangup.signal() == Some(SIGHUP) {
            let _ = ratatui::try_restore();
            process::exit(0);
        }
    });
    waker.catch_signals()?;
    let (samples, listings) = mpsc::sync_channel(1);
    let (stop, stopped) = mpsc::channel::<()>();
    let interval = args.interval;
    let list = move || {
        let mut next = Instant::now();
        while samples.send(sample(&nodes)).is_ok() {
            next = (next + interval).max(Instant::now());
            let left = next.saturating_duration_since(Instant::now());
            if stopped.recv_timeout(left) != Err(RecvTimeoutError::Timeout) {
                return;
            }
        }
    };
    let display = Display::open()?;
    thread::Builder::new()
        .name("flue-top".into())
        .spawn(list)
        .map_err(|error| Failure::work(format!("thread: {error}")))?;
    let is_colored = env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    let interval = format!("{} s", interval.as_secs_f64());
    let screen = Screen { is_colored, interval, ..Screen::default() };
    let mut view = View {
        model: Model::new(filter),
        screen,
        replies: mpsc::channel(),
        is_requesting: false,
        display,
    };
    let ended = view.run(&waker, &listings);
    // The thread may wait for a node; the exit of the process ends it.
    drop(stop);
    unless_stopped(ended)
}

/// Lists the nodes.
fn sample(nodes: &Nodes) -> Sample {
    match client::find(nodes) {
        Ok((controls, _)) => {
            let nodes = listing::query_all(&controls);
            let pids = nodes.iter().filter_map(|listed| Some(listed.node.as_ref()?.pid));
            let programs = pids.filter_map(|pid| Some((pid, client::program_name(pid)?))).collect();
            Sample { nodes, programs, error: None }
        }
        Err(error) => Sample { error: Some(error.message().to_owned()), ..Sample::default() },
    }
}

struct View {
    model: Model,
    screen: Screen,
    /// Replies of nodes to requests of keys.
    replies: (Sender<String>, Receiver<String>),
    /// True while a reply is outstanding.
    is_requesting: bool,
    display: Display,
}

/// The view continues, or ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Next {
    Continue,
    Quit,
}

impl View {
    fn run(&mut self, waker: &Waker, listings: &Receiver<Sample>) -> Result<(), Failure> {
        let failed = |error: io::Error| Failure::work(format!("terminal: {error}"));
        let mut is_changed = true;
        loop {
            waker.interrupted()?;
            match listings.try_recv() {
                Ok(sample) => {
                    self.model.update(sample);
                    is_changed = true;
                }
                Err(mpsc::TryRecvError::Empty) => {}
                Err(mpsc::TryRecvError::Disconnected) => {
                    return Err(Failure::work("listing: thread panicked"));
                }
            }
            if let Ok(message) = self.replies.1.try_recv() {
                self.is_requesting = false;
                self.model.set_message(message);
                is_changed = true;
            }
            if is_changed {
                let Self { display, model, screen, .. } = self;
                display.0.draw(|frame| view::draw(frame, model, screen)).map_err(failed)?;
            }
            is_changed = event::poll(TICK).map_err(failed)?;
            if is_changed
                && let Event::Key(key) = event::read().map_err(failed)?
                && key.kind != KeyEventKind::Release
                && self.handle_key(key) == Next::Quit
            {
                return Ok(());
            }
        }
    }

    fn handle_key(&mut self, key: KeyEvent) -> Next {
        if key.modifiers.contains(KeyModifiers::CONTROL) {
            return if key.code == KeyCode::Char('c') { Next::Quit } else { Next::Continue };
        }
        if self.screen.input.is_some() {
            self.edit_filter(key.code);
            return Next::Continue;
        }
        if self.screen.is_help {
            self.screen.is_help = false;
            return if key.code == KeyCode::Char('q') { Next::Quit } else { Next::Continue };
        }
        let height = self.display.0.size().map_or(24, |size| size.height);
        let page = isize::try_from(view::table_rows(height)).unwrap_or(1).max(1);
        match key.code {
            KeyCode::Char('q') => return Next::Quit,
            KeyCode::Char('?') => self.screen.is_help = true,
            KeyCode::Char('/') => self.screen.input = Some(String::new()),
            KeyCode::Char('s') => self.model.sort_by_next(),
            KeyCode::Char('r') => self.model.reverse(),
            KeyCode::Char('p') => self.model.toggle_pause(),
            KeyCode::Char('o') => self.migrate(Destination::Target),
            KeyCode::Char('u') => self.migrate(Destination::Host),
            KeyCode::Char('c') => self.toggle_capture(),
            KeyCode::Up | KeyCode::Char('k') => self.model.select(-1),
            KeyCode::Down | KeyCode::Char('j') => self.model.select(1),
            KeyCode::PageUp => self.model.select(-page),
            KeyCode::PageDown => self.model.select(page),
            KeyCode::Home => self.model.select(isize::MIN),
            KeyCode::End => self.model.select(isize::MAX),
            KeyCode::Esc => self.model.clear_message(),
            _ => {}
        }
        Next::Continue
    }

    /// Handles a key while the filter is edited. Enter applies it; Escape keeps the previous one.
    fn edit_filter(&mut self, key: KeyCode) {
        let Some(text) = &mut self.screen.input else { return };
        match key {
            KeyCode::Char(letter) => text.push(letter),
            KeyCode::Backspace => drop(text.pop()),
            KeyCode::Esc => self.screen.input = None,
            KeyCode::Enter => {
                match Filter::parse(std::slice::from_ref(text), States::connected()) {
                    Ok(filter) => {
                        self.model.set_filter(filter);
                        self.model.clear_message();
                        self.screen.input = None;
                    }
                    Err(failure) => {
                        self.model.set_message(failure.message);
                        self.screen.input = None;
                    }
                }
            }
            _ => {}
        }
    }

    /// Migrates the selected connection.
    fn migrate(&mut self, to: Destination) {
        self.keep_selection();
        let Some((_, entry)) = self.model.selected() else { return };
        let (control, record) = (entry.control.clone(), entry.row.record.clone());
        let verb = if to == Destination::Target { "offload" } else { "upload" };
        let name = format!("{}: {verb}", model::ends(entry));
        self.request(&name, move || {
            let moved = hand_over::hand_over(&control, &record, to, MOVE_LIMIT);
            moved.map_or_else(|failure| failure.message, |it| hand_over::describe(&it))
        });
    }

    /// Stops the capture of the selected node, or starts one to a file in the working directory.
    fn toggle_capture(&mut self) {
        self.keep_selection();
        let Some((_, entry)) = self.model.selected() else { return };
        let control = entry.control.clone();
        let is_running = entry.capture.as_ref().is_some_and(|it| it.is_running);
        let verb = if is_running { "end of the capture" } else { "capture" };
        let name = format!("{} (pid {}): {verb}", entry.node, entry.pid);
        self.request(&name, move || {
            let report = match is_running {
                true => client::capture(&control, None).map_err(Failure::from),
                false => capture::start(&control, None),
            };
            report.map_or_else(|failure| failure.message, |it| capture::describe(&it))
        });
    }

    /// Keeps the selection on its connection from now on: the next key is for the same one.
    fn keep_selection(&mut self) {
        self.model.select(0);
    }

    /// Sends a request to a node on a thread, one at a time. It returns the message.
    fn request(&mut self, name: &str, request: impl FnOnce() -> String + Send + 'static) {
        if self.is_requesting {
            self.model.set_message("the previous request is pending");
            return;
        }
        let sender = self.replies.0.clone();
        let run = move || {
            // The view may have ended.
            let _ = sender.send(request());
        };
        match thread::Builder::new().name("flue-request".into()).spawn(run) {
            Ok(_) => {
                self.is_requesting = true;
                self.model.set_message(format!("{name} requested"));
            }
            Err(error) => self.model.set_message(format!("{name}: {error}")),
        }
    }
}
