//! Switch with models of the two stacks, and its individual rules.

use alloc::{vec, vec::Vec};

use bytes::Bytes;
use offload_engine::status::NdisStatus;
use proptest::prelude::*;

use super::*;

fn list(serial: u64, bytes: usize) -> NetBufferList {
    NetBufferList::from_mdl(serial, Bytes::from(vec![0; bytes]))
}

/// Switch in the host that has sent lists 1 to `count` there, of 100 bytes each.
fn in_host(count: u64) -> Switch {
    let mut switch = Switch::opening();
    switch.begin_in_host();
    (1..=count).for_each(|serial| switch.wait(list(serial, 100)));
    assert_eq!(to_host(&mut switch), (1..=count).collect::<Vec<_>>());
    switch
}

const FIN: u64 = 0;
const RST: u64 = u64::MAX;

fn serial(item: SendRequest) -> u64 {
    match item {
        SendRequest::List(list) => list.context,
        SendRequest::Shutdown => FIN,
        SendRequest::Reset => RST,
    }
}

fn to_host(switch: &mut Switch) -> Vec<u64> {
    core::iter::from_fn(|| switch.poll_host()).map(serial).collect()
}

fn to_target(switch: &mut Switch) -> Vec<u64> {
    core::iter::from_fn(|| switch.poll_target()).map(serial).collect()
}

const NONE: [u64; 0] = [];

#[test]
fn returned_requests_precede_later_ones_after_a_refusal() {
    let mut switch = in_host(3);
    switch.shut_down();
    assert_eq!(to_host(&mut switch), [FIN]);
    switch.begin_offload(1, false);
    switch.wait(list(4, 100));
    assert_eq!(to_host(&mut switch), NONE);
    switch.take_returned([list(2, 100), list(3, 100)].into(), false);
    switch.take_returned(NblChain::new(), true);
    switch.begin_in_host();
    // The host stack has list 1 again.
    assert_eq!(switch.outstanding(), 400);
    assert_eq!(to_host(&mut switch), [2, 3, FIN, 4]);
}

#[test]
fn target_is_given_nothing_until_all_late_requests_have_returned() {
    let mut switch = in_host(3);
    switch.shut_down();
    assert_eq!(to_host(&mut switch), [FIN]);
    switch.begin_offload(1, false);
    switch.complete_offload();
    assert!(switch.send([list(4, 100)].into()).is_none());
    for late in [[list(2, 100)], [list(3, 100)]] {
        switch.take_returned(late.into(), false);
        assert_eq!(to_target(&mut switch), NONE);
        assert!(!switch.is_settled());
    }
    switch.take_returned(NblChain::new(), true);
    assert_eq!(to_target(&mut switch), [2, 3, FIN, 4]);
    assert!(switch.is_settled());
    let sent = switch.send([list(5, 100)].into());
    assert_eq!(sent.map_or(0, |chain| chain.len()), 1, "nothing waits before it");
}

#[test]
fn list_beyond_credit_waits() {
    let half = SEND_CREDIT_BYTES / 2;
    let mut switch = in_host(0);
    (1..=3).for_each(|serial| switch.wait(list(serial, half)));
    assert_eq!(to_host(&mut switch), [1, 2]);
    // Part of it was acknowledged before an upload.
    let mut first = list(1, half);
    first.complete(NdisStatus::PENDING, 10);
    first.complete(NdisStatus::SUCCESS, half - 10);
    switch.complete(&first);
    assert_eq!(to_host(&mut switch), [3]);
    assert_eq!(switch.outstanding(), 2 * half);
}

#[test]
fn single_list_may_exceed_credit() {
    let mut switch = in_host(0);
    switch.wait(list(1, SEND_CREDIT_BYTES + 1));
    switch.wait(list(2, 1));
    assert_eq!(to_host(&mut switch), [1]);
}

#[test]
fn uploaded_lists_use_credit() {
    let mut switch = Switch::offloaded();
    switch.begin_upload();
    switch.wait(list(5, 10));
    assert_eq!(to_host(&mut switch), NONE);
    switch.complete_upload(2, SEND_CREDIT_BYTES - 5);
    assert_eq!(to_host(&mut switch), NONE);
    switch.complete(&list(3, 100));
    assert_eq!(to_host(&mut switch), [5]);
}

#[test]
fn offloaded_fin_is_reported_once_in_target_only() {
    let mut switch = in_host(0);
    switch.shut_down();
    assert_eq!(to_host(&mut switch), [FIN]);
    switch.begin_offload(0, true);
    switch.complete_offload();
    assert!(!switch.is_settled());
    assert!(!switch.detects_offloaded_fin(|| TcpPhase::FinWait1));
    assert!(switch.detects_offloaded_fin(|| TcpPhase::FinWait2));
    assert!(switch.is_settled());
    assert!(!switch.detects_offloaded_fin(|| TcpPhase::TimeWait));
    switch.begin_upload();
    switch.complete_upload(0, 0);
    switch.begin_offload(0, true);
    switch.begin_in_host();
    assert!(!switch.detects_offloaded_fin(|| TcpPhase::FinWait2), "the host stack reports it");
}

#[test]
fn reset_follows_connection() {
    let mut switch = in_host(1);
    switch.begin_offload(1, false);
    switch.wait(list(2, 100));
    switch.reset();
    assert_eq!(to_host(&mut switch), [RST]);
    switch.complete_offload();
    assert_eq!(to_target(&mut switch), [RST]);
    assert!(switch.is_settled());
    switch.reset();
    assert_eq!((to_host(&mut switch), to_target(&mut switch)), (vec![], vec![]));
    let mut switch = Switch::offloaded();
    switch.reset();
    assert_eq!((to_host(&mut switch), to_target(&mut switch)), (vec![], vec![RST]));
    let mut switch = Switch::opening();
    switch.reset();
    assert_eq!((to_host(&mut switch), to_target(&mut switch)), (vec![RST], vec![]));
}

#[test]
fn unsent_lists_end_after_all_sent_ones() {
    let unsent = |switch: &mut Switch| core::iter::from_fn(|| switch.poll_unsent()).count();
    let mut switch = in_host(2);
    switch.begin_offload(1, false);
    switch.wait(list(3, 100));
    switch.close();
    assert_eq!(unsent(&mut switch), 0);
    switch.take_returned([list(2, 100)].into(), false);
    assert_eq!(unsent(&mut switch), 0);
    switch.complete(&list(1, 100));
    let unsent = core::iter::from_fn(|| switch.poll_unsent()).map(|list| list.context);
    assert_eq!(unsent.collect::<Vec<_>>(), [2, 3]);
    assert_eq!(switch.outstanding(), 0);
}

/// Message of the host stack that the client has not processed.
enum Unread {
    Offloading { unanswered: usize },
    Returned(SendRequest),
    Refused,
    Uploaded { lists: usize, bytes: usize },
    Sent(NetBufferList),
}

/// Owner of the connection according to the host stack.
#[derive(PartialEq)]
enum ModelOwner {
    Host,
    /// An initiate is outstanding.
    Neither,
    Target,
}

/// Client with a switch, host stack and target, each with its unprocessed messages.
struct Model {
    switch: Switch,
    requests: VecDeque<SendRequest>,
    notices: VecDeque<Unread>,
    owner: ModelOwner,
    /// Unacknowledged lists of the connection.
    unacknowledged: VecDeque<NetBufferList>,
    has_fin: bool,
    /// Requests in order of their arrival at the connection.
    got: Vec<u64>,
    completed: Vec<u64>,
    sent: u64,
}

impl Model {
    fn new(switch: Switch, owner: ModelOwner) -> Self {
        Self {
            switch,
            requests: VecDeque::new(),
            notices: VecDeque::new(),
            owner,
            unacknowledged: VecDeque::new(),
            has_fin: false,
            got: Vec::new(),
            completed: Vec::new(),
            sent: 0,
        }
    }

    /// Processes the client's notices and passes on pending requests.
    fn poll_client(&mut self) {
        while let Some(notice) = self.notices.pop_front() {
            match notice {
                Unread::Offloading { unanswered } => {
                    self.switch.begin_offload(unanswered, self.has_fin)
                }
                Unread::Returned(SendRequest::List(list)) => {
                    self.switch.take_returned([list].into(), false)
                }
                Unread::Returned(_) => self.switch.take_returned(NblChain::new(), true),
                Unread::Refused => self.switch.begin_in_host(),
                Unread::Uploaded { lists, bytes } => self.switch.complete_upload(lists, bytes),
                Unread::Sent(list) => {
                    self.switch.complete(&list);
                    self.completed.push(list.context);
                }
            }
            self.pass_requests();
        }
        self.pass_requests();
    }

    fn pass_requests(&mut self) {
        self.requests.extend(core::iter::from_fn(|| self.switch.poll_host()));
        while let Some(item) = self.switch.poll_target() {
            self.get(item);
        }
    }

    /// Passes a request to the connection, in either stack.
    fn get(&mut self, item: SendRequest) {
        match item {
            SendRequest::List(list) => {
                self.got.push(list.context);
                self.unacknowledged.push_back(list);
            }
            SendRequest::Shutdown => {
                self.got.push(FIN);
                self.has_fin = true;
            }
            SendRequest::Reset => unreachable!("none was requested"),
        }
    }

    fn host_takes_requests(&mut self) {
        while let Some(item) = self.requests.pop_front() {
            match self.owner {
                ModelOwner::Host => {
                    self.get(item);
                    let bytes = self.unacknowledged.iter().map(NetBufferList::data_length);
                    assert!(bytes.sum::<usize>() <= SEND_CREDIT_BYTES);
                }
                ModelOwner::Neither | ModelOwner::Target => {
                    self.notices.push_back(Unread::Returned(item))
                }
            }
        }
    }

    /// Begins or completes an initiate.
    fn step_initiate(&mut self, is_refused: bool) {
        match self.owner {
            ModelOwner::Host => {
                let unanswered = self.unacknowledged.len();
                self.notices.push_back(Unread::Offloading { unanswered });
                self.owner = ModelOwner::Neither;
            }
            ModelOwner::Neither if is_refused => {
                self.poll_client();
                self.host_takes_requests();
                self.notices.push_back(Unread::Refused);
                self.owner = ModelOwner::Host;
            }
            ModelOwner::Neither => {
                self.poll_client();
                self.owner = ModelOwner::Target;
                self.switch.complete_offload();
                self.pass_requests();
            }
            ModelOwner::Target => {}
        }
    }

    fn upload(&mut self) {
        if self.owner == ModelOwner::Target {
            self.poll_client();
            self.switch.begin_upload();
            self.host_takes_requests();
            let lists = self.unacknowledged.len();
            let bytes = self.unacknowledged.iter().map(NetBufferList::data_length).sum();
            self.notices.push_back(Unread::Uploaded { lists, bytes });
            self.owner = ModelOwner::Host;
        }
    }

    /// Acknowledges a list.
    fn acknowledge(&mut self) {
        // The target completes no list before the client has processed its notices.
        if self.owner == ModelOwner::Neither {
            return;
        }
        let Some(list) = self.unacknowledged.pop_front() else { return };
        match self.owner {
            ModelOwner::Target => {
                self.poll_client();
                self.switch.complete(&list);
                self.completed.push(list.context);
            }
            ModelOwner::Host | ModelOwner::Neither => self.notices.push_back(Unread::Sent(list)),
        }
    }

    fn send(&mut self, bytes: usize) {
        self.sent += 1;
        if let Some(chain) = self.switch.send([list(self.sent, bytes)].into()) {
            chain.into_iter().for_each(|list| self.get(SendRequest::List(list)));
        }
        self.pass_requests();
    }
}

proptest! {
    // CH-SND-2: the connection receives each request once and in order over any migrations, and each completes once.
    #[test]
    fn requests_keep_their_order_over_any_moves(
        begins_offloaded: bool,
        actions in prop::collection::vec((0u8..8, 1usize..SEND_CREDIT_BYTES / 3), 1..200),
    ) {
        let mut model = match begins_offloaded {
            true => Model::new(Switch::offloaded(), ModelOwner::Target),
            false => Model::new(in_host(0), ModelOwner::Host),
        };
        for (action, bytes) in actions {
            match action {
                0 | 1 => model.send(bytes),
                2 => model.poll_client(),
                3 => model.host_takes_requests(),
                4 => model.step_initiate(false),
                5 => model.step_initiate(true),
                6 => model.upload(),
                _ => model.acknowledge(),
            }
        }
        model.switch.shut_down();
        let mut moves = 0;
        while model.completed.len() as u64 != model.sent || !model.has_fin {
            model.poll_client();
            model.host_takes_requests();
            model.step_initiate(moves % 3 == 0);
            model.acknowledge();
            if moves % 5 == 0 {
                model.upload();
            }
            moves += 1;
            prop_assert!(moves < 2_000, "stuck");
        }
        prop_assert_eq!(&model.got, &(1..=model.sent).chain([FIN]).collect::<Vec<_>>());
        prop_assert_eq!(&model.completed, &(1..=model.sent).collect::<Vec<_>>());
        prop_assert_eq!(model.switch.outstanding(), 0);
    }
}
