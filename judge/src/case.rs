//! Cases: rules, steps, and the expected response of the peer.

use std::sync::Arc;

use crate::{
    consumer::{Change, Consumer, Report},
    expect::Expect,
    finding::{Step, Stop},
    link::{Link, Peer},
    wire::fpdu,
};

/// State of the connection before the first step.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Start {
    /// Connected by TCP.
    Tcp,
    /// The Reply has arrived.
    Reply,
    /// Full Operation.
    Full,
}

/// Start of the reason of a case that is not run because its connection cannot be established.
pub(crate) const SET_UP: &str = "start-up of the case";

type Action = Box<dyn Fn(&mut Link) -> Step + Send + Sync>;

/// One case.
pub(crate) struct Case {
    pub(crate) name: String,
    pub(crate) rules: Vec<&'static str>,
    /// Minimum of the peer's consumer.
    pub(crate) needs: Consumer,
    /// True if the peer is the initiator.
    pub(crate) is_initiator: bool,
    /// True if the case waits for a time limit of the peer.
    pub(crate) is_slow: bool,
    pub(crate) expect: Expect,
    start: Start,
    private: &'static [u8],
    receive_buffer: Option<usize>,
    steps: Vec<Action>,
    /// Reason of the end as reported by the consumer, if it is not that of `expect`.
    reason: Option<u32>,
    changes: Vec<Change>,
    receives: Vec<(&'static str, Option<u32>)>,
    opened: Option<&'static str>,
}

impl Case {
    fn new(name: String, rules: &'static str, needs: Consumer) -> Self {
        Self {
            name,
            rules: rules.split_whitespace().collect(),
            needs,
            is_initiator: false,
            is_slow: false,
            expect: Expect::Alive,
            start: Start::Full,
            private: b"",
            receive_buffer: None,
            steps: Vec::new(),
            reason: None,
            changes: Vec::new(),
            receives: Vec::new(),
            opened: None,
        }
    }

    /// Adds a step.
    pub(crate) fn step(
        &mut self,
        step: impl Fn(&mut Link) -> Step + Send + Sync + 'static,
    ) -> &mut Self {
        self.steps.push(Box::new(step));
        self
    }

    /// Adds a step that sends an FPDU with this segment.
    pub(crate) fn post(
        &mut self,
        make: impl Fn(&mut Link) -> Vec<u8> + Send + Sync + 'static,
    ) -> &mut Self {
        self.step(move |link| {
            let ulpdu = make(link);
            link.post(ulpdu);
            Ok(())
        })
    }

    /// Adds a step that sends octets.
    pub(crate) fn put(
        &mut self,
        make: impl Fn(&mut Link) -> Vec<u8> + Send + Sync + 'static,
    ) -> &mut Self {
        self.step(move |link| {
            let octets = make(link);
            link.put(&octets);
            Ok(())
        })
    }

    /// Adds a step that sends a command and receives its reply.
    pub(crate) fn ask(&mut self, command: &'static [u8]) -> &mut Self {
        self.step(move |link| link.ask(command).map(drop))
    }

    /// Adds a step that sends a FIN.
    pub(crate) fn fin(&mut self) -> &mut Self {
        self.step(|link| {
            link.fin();
            Ok(())
        })
    }

    /// Adds a step that resets the connection.
    pub(crate) fn reset(&mut self) -> &mut Self {
        self.step(|link| {
            link.reset();
            Ok(())
        })
    }

    /// Sets the expected response.
    pub(crate) fn expect(&mut self, expect: Expect) -> &mut Self {
        self.expect = expect;
        self
    }

    /// Expects a Terminate with the DDP header of the last posted segment.
    pub(crate) fn terminates(&mut self, layer: u8, kind: u8, code: u8) -> &mut Self {
        self.expect(Expect::terminate(layer, kind, code))
    }

    /// Expects a Terminate without headers.
    pub(crate) fn terminates_bare(&mut self, layer: u8, kind: u8, code: u8) -> &mut Self {
        self.expect(Expect::bare_terminate(layer, kind, code))
    }

    /// Sets the state before the first step.
    pub(crate) fn start(&mut self, start: Start) -> &mut Self {
        self.start = start;
        self
    }

    /// Sets the private data of the Request.
    pub(crate) fn private(&mut self, private: &'static [u8]) -> &mut Self {
        self.private = private;
        self
    }

    /// Sets the bytes of the receive buffer.
    pub(crate) fn receive_buffer(&mut self, bytes: usize) -> &mut Self {
        self.receive_buffer = Some(bytes);
        self
    }

    /// Marks a case that waits for a time limit of the peer.
    pub(crate) fn slow(&mut self) -> &mut Self {
        self.is_slow = true;
        self
    }

    /// Sets the reason of the end that the consumer reports.
    pub(crate) fn reason(&mut self, reason: u32) -> &mut Self {
        self.reason = Some(reason);
        self
    }

    /// Adds a page that may have changed: page, first octet, number of octets. All other pages must not.
    pub(crate) fn changes(&mut self, page: usize, first: usize, count: usize) -> &mut Self {
        self.changes.push(Change { page, first, count });
        self
    }

    /// Adds the status of the next receive, with its octets if given.
    pub(crate) fn receives(&mut self, status: &'static str, octets: Option<u32>) -> &mut Self {
        self.receives.push((status, octets));
        self
    }

    /// Sets the status of the Accept.
    pub(crate) fn opened(&mut self, status: &'static str) -> &mut Self {
        self.opened = Some(status);
        self
    }

    /// Connects as the case requires.
    pub(crate) fn connect(&self, peer: &Arc<Peer>) -> Step<Link> {
        Link::connect(peer, self.receive_buffer)
    }

    /// True if the connection fails before it is established.
    pub(crate) fn fails_start(&self) -> bool {
        self.start == Start::Reply && self.expect != Expect::Alive
    }

    /// Runs the steps of a case without a connection to the peer, which connects itself.
    pub(crate) fn run_detached(&self, link: &mut Link) -> Step {
        self.steps.iter().try_for_each(|step| step(link))
    }

    /// Runs the case on a new connection. The findings are in the link.
    pub(crate) fn run(&self, link: &mut Link) -> Step {
        // The rules of the start-up have cases of their own.
        self.set_up(link).map_err(|stop| match stop {
            Stop::Finding(finding) => Stop::Skip(format!("{SET_UP}: {}", finding.text)),
            skip @ Stop::Skip(_) => skip,
        })?;
        for step in &self.steps {
            step(link)?;
        }
        self.expect.check(link)
    }

    fn set_up(&self, link: &mut Link) -> Step {
        match self.start {
            Start::Tcp => Ok(()),
            Start::Reply => {
                link.request(self.private);
                link.await_acceptance()
            }
            Start::Full => {
                link.establish(self.private)?;
                link.await_consumer()
            }
        }
    }

    /// Compares the report of the consumer with the expected values.
    pub(crate) fn check_report(&self, link: &mut Link) -> Step {
        let Some(number) = link.number else { return Ok(()) };
        let reason = self.reason.or_else(|| self.expect.reason());
        let is_over = |report: &Report| {
            let is_opened = matches!(report.opened.as_deref(), None | Some("SUCCESS"));
            reason.is_none() || report.ended.is_some() || !is_opened
        };
        let report = link.report_when(number, is_over)?;
        let mut differences = Vec::new();
        if !is_over(&report) {
            differences.push("the consumer is not informed of the end".to_owned());
        }
        if report.changes != self.changes {
            let [found, expected] = [&report.changes, &self.changes].map(|it| listed(it));
            differences.push(format!("changed pages {found}: expected {expected}"));
        }
        let is_opened = report.opened.as_deref() == Some("SUCCESS");
        if is_over(&report) && is_opened && reason.is_some() && report.ended != reason {
            let [ended, expected] = [report.ended, reason].map(Option::unwrap_or_default);
            differences.push(format!("reason {ended:#x} of the end: expected {expected:#x}"));
        }
        if self.opened.is_some() && report.opened.as_deref() != self.opened {
            let [found, expected] =
                [report.opened.as_deref(), self.opened].map(|it| it.unwrap_or("none"));
            differences.push(format!("status {found} of Accept: expected {expected}"));
        }
        let mut found = report.receives.iter();
        let are_received = self.receives.iter().all(|(status, octets)| {
            found.next().is_some_and(|found| {
                found.0 == *status && octets.is_none_or(|octets| octets == found.1)
            })
        });
        if !are_received {
            let found = report.receives.iter().map(|(status, octets)| format!("{status} {octets}"));
            let found = found.collect::<Vec<_>>().join(", ");
            let expected = self.receives.iter().map(|(status, _)| *status);
            let expected = expected.collect::<Vec<_>>().join(", ");
            differences.push(format!("receives {found}: expected {expected}"));
        }
        for difference in differences {
            link.find(crate::finding::Blame::Case, format!("report of the consumer: {difference}"));
        }
        Ok(())
    }
}

/// Returns the changes as text.
fn listed(changes: &[Change]) -> String {
    let texts = changes
        .iter()
        .map(|Change { page, first, count }| format!("{page} ({count} octets from {first})"));
    let text = texts.collect::<Vec<_>>().join(", ");
    if text.is_empty() { "none".into() } else { text }
}

/// Table of cases.
#[derive(Default)]
pub(crate) struct Cases(pub(crate) Vec<Case>);

impl Cases {
    /// Adds a case with its rules.
    pub(crate) fn add(
        &mut self,
        name: impl Into<String>,
        rules: &'static str,
        needs: Consumer,
    ) -> &mut Case {
        self.0.push(Case::new(name.into(), rules, needs));
        let last = self.0.len() - 1;
        &mut self.0[last]
    }

    /// Adds a case of an initiator: the peer connects to the judge.
    pub(crate) fn add_initiator(
        &mut self,
        name: &str,
        rules: &'static str,
        run: impl Fn(&mut Link) -> Step + Send + Sync + 'static,
    ) -> &mut Case {
        let case = self.add(format!("initiator-{name}"), rules, Consumer::Flue);
        case.is_initiator = true;
        case.step(run)
    }
}

/// Sends several FPDUs in one write.
pub(crate) fn put_all<'a>(link: &mut Link, ulpdus: impl IntoIterator<Item = &'a Vec<u8>>) {
    let octets: Vec<u8> = ulpdus.into_iter().flat_map(|it| fpdu(it)).collect();
    link.put(&octets);
}
