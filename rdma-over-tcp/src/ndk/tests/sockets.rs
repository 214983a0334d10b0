//! Adapters on kernel sockets: the tests of this interface that do not need the pipe, and behavior specific to the
//! kernel.

use std::{
    io::{Read, Write},
    net::{Ipv4Addr, TcpListener, TcpStream},
    sync::Arc,
    vec,
    vec::Vec,
};

use offload_engine::time::{Duration, Instant};
use rustix::net::sockopt::set_socket_linger;

use super::{
    bench::Bench,
    kernel::PolledSockets,
    sides::{BUFFER, LIMITS, connected},
};
use crate::{
    error::{EndReason, Loss, WireError},
    mpa::{Encoder, Slab, startup::Revision},
    ndk::{
        Adapter, AdapterConfig, Data, DisconnectReason, Disconnection, NtStatus, OpFlags,
        PendingCall, QpLimits,
    },
    rdmap::{Terminate, terminate_header},
};

/// MPA Reply of revision 1, with CRC and without private data.
const REPLY: &[u8] = b"MPA ID Rep Frame\x40\x01\0\0";

fn terminate(error: WireError) -> Vec<u8> {
    let mut fpdu: Vec<bytes::Bytes> = Vec::new();
    let header = terminate_header(&Terminate::new(error));
    Encoder::new(true, false).encode(&header, &[], &mut Slab::new(), &mut fpdu);
    fpdu.concat()
}

fn accept(listener: &TcpListener) -> TcpStream {
    let (mut peer, _) = listener.accept().unwrap();
    let mut request = vec![0; 20];
    peer.read_exact(&mut request).unwrap();
    assert_eq!((&request[..16], request[17]), (&b"MPA ID Req Frame"[..], 1));
    peer.write_all(REPLY).unwrap();
    peer
}

// A Terminate and a reset arrive together, and a write encounters the reset before the Terminate is read.
#[test]
fn terminate_before_reset_is_read() {
    let config = AdapterConfig { revision: Revision::One, ..AdapterConfig::default() };
    let polled = Arc::new(PolledSockets::new(config));
    let adapter = Adapter::new(polled.clone());
    let (pd, cq) = (adapter.create_pd().unwrap(), adapter.create_cq(8, |_| {}).unwrap());
    let qp = pd.create_qp(&cq, &cq, 0, QpLimits::default()).unwrap();
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let remote = listener.local_addr().unwrap();
    let connector = adapter.create_connector().unwrap();
    let begun = PendingCall::begin(|done| connector.connect(&qp, None, remote, LIMITS, &[], done));
    polled.poll();
    // The kernel performs the handshake; one of these polls sends the Request.
    let peer = std::thread::spawn(move || accept(&listener));
    assert_eq!(polled.poll_until(|| begun.status()), NtStatus::SUCCESS);
    let mut peer = peer.join().unwrap();
    let ended = Disconnection::default();
    let begun = PendingCall::begin(|done| connector.complete_connect(Some(ended.event()), done));
    assert_eq!(polled.poll_until(|| begun.status()), NtStatus::SUCCESS);

    let error = WireError::TaggedInvalidStag;
    peer.write_all(&terminate(error)).unwrap();
    set_socket_linger(&peer, Some(Duration::ZERO)).unwrap();
    drop(peer);
    qp.send(1, Data::Inline(&[b"too late"]), OpFlags::empty()).unwrap();
    let reason = polled.poll_until(|| ended.reason());
    assert_eq!(reason, DisconnectReason::terminated(error.number()).0, "{reason:#x}");
}

// A process that was stopped resumes with an expired limit of the handshake, and with the Reply in its socket.
#[test]
fn reply_that_arrived_while_stopped_precedes_the_expired_limit() {
    let config = AdapterConfig { revision: Revision::One, ..AdapterConfig::default() };
    let polled = Arc::new(PolledSockets::new(config));
    let adapter = Adapter::new(polled.clone());
    let (pd, cq) = (adapter.create_pd().unwrap(), adapter.create_cq(8, |_| {}).unwrap());
    let qp = pd.create_qp(&cq, &cq, 0, QpLimits::default()).unwrap();
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let remote = listener.local_addr().unwrap();
    let connector = adapter.create_connector().unwrap();
    let begun = PendingCall::begin(|done| connector.connect(&qp, None, remote, LIMITS, &[], done));
    polled.poll();
    let (mut peer, _) = listener.accept().unwrap();
    peer.set_nonblocking(true).unwrap();
    let mut request = [0; 20];
    polled.poll_until(|| peer.peek(&mut request).is_ok_and(|count| count == 20).then_some(()));
    peer.set_nonblocking(false).unwrap();
    peer.read_exact(&mut request).unwrap();
    peer.write_all(REPLY).unwrap();
    polled.set_now(Instant::ZERO + Duration::from_secs(3600));
    // A call of the consumer, which does not read the socket.
    polled.settle();
    assert_eq!(polled.poll_until(|| begun.status()), NtStatus::SUCCESS);
}

// As above, with more sockets ready than one query of the epoll set returns.
#[test]
fn handshakes_completed_while_stopped_precede_their_expired_limits() {
    const COUNT: usize = 200;
    let polled = Arc::new(PolledSockets::new(AdapterConfig::default()));
    let adapter = Adapter::new(polled.clone());
    let (pd, cq) = (adapter.create_pd().unwrap(), adapter.create_cq(8, |_| {}).unwrap());
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    rustix::net::listen(&listener, COUNT as i32).unwrap();
    let remote = listener.local_addr().unwrap();
    let attempts: Vec<_> = (0..COUNT)
        .map(|_| {
            let qp = pd.create_qp(&cq, &cq, 0, QpLimits::default()).unwrap();
            let connector = adapter.create_connector().unwrap();
            let begun =
                PendingCall::begin(|done| connector.connect(&qp, None, remote, LIMITS, &[], done));
            (qp, connector, begun)
        })
        .collect();
    // The kernel performs the handshakes, whose results are not read.
    polled.settle();
    polled.set_now(Instant::ZERO + Duration::from_secs(3600));
    polled.poll();
    let failed = attempts.iter().filter(|(_, _, begun)| begun.status().is_some()).count();
    assert_eq!(failed, 0, "of {COUNT}");
}

// While the connection is busy, posts send full lists only. The rest is sent with the next posts, by the next poll, or
// by a disconnect.
#[test]
fn partial_list_is_sent_with_later_posts() {
    super::kernel::run(|| {
        const MESSAGE: usize = 64 * 1024;
        let mut bench = Bench::new(1);
        let (active, passive) = connected(&mut bench);
        let (source, target) = (active.sge(0, MESSAGE), passive.sge(0, BUFFER));
        let write = |count| {
            for _ in 0..count {
                let data = [source];
                let (to, token) = (target.address, target.token);
                let flags = OpFlags::empty();
                active.qp.write(0, Data::Registered(&data), to, token, flags).unwrap();
            }
        };
        let polled = bench.nodes[0].kernel().unwrap();
        let lists = || active.qp.stats().lists_out;
        let data = [active.sge(0, 20 * MESSAGE)];
        let flags = OpFlags::empty();
        active.qp.write(1, Data::Registered(&data), target.address, target.token, flags).unwrap();
        assert!(!polled.settle(), "a lone message of any length is sent at once");
        assert_eq!(active.outcomes(), [(1, NtStatus::SUCCESS)]);
        let before = lists();
        write(4);
        assert!(polled.settle(), "the connection is busy");
        assert_eq!(lists() - before, 1);
        write(4);
        assert!(polled.settle());
        assert_eq!(lists() - before, 2, "each is full");
        assert!(active.outcomes().len() < 8);
        polled.poll();
        assert_eq!(lists() - before, 3);
        // A disconnect sends the rest.
        write(4);
        polled.poll();
        write(4);
        assert!(polled.settle());
        let connector = active.connector.as_ref().unwrap();
        let ended = PendingCall::begin(|done| connector.disconnect(done));
        let before = lists();
        polled.settle();
        assert_eq!(lists() - before, 1);
        bench.settle();
        assert_eq!(ended.status(), Some(NtStatus::SUCCESS));
        // The first FPDU was the ready-to-receive message.
        assert_eq!(passive.qp.stats().write_segments_placed, active.qp.stats().fpdu_out - 1);
    });
}

// A peer's reset is detected while a message waits for its receive and no data is read.
#[test]
fn reset_is_detected_while_data_is_refused() {
    super::kernel::run(|| {
        let receive_wait = Duration::from_secs(100);
        let mut bench = Bench::with(1, AdapterConfig { receive_wait, ..AdapterConfig::default() });
        let (active, passive) = connected(&mut bench);
        active.send(1, 0, 100);
        // More than is kept after the waiting message.
        active.send(2, 0, BUFFER);
        bench.settle();
        assert_eq!(active.connector.as_ref().unwrap().close(|| {}), NtStatus::SUCCESS);
        bench.settle();
        let reset = DisconnectReason::new(Some(EndReason::Lost(Loss::Reset)));
        assert_eq!(passive.log.take(), [("disconnect event", NtStatus(reset.0))]);
    });
}

/// Defines a test over kernel sockets for each of these tests. Excluded are tests that delay, cut or corrupt the pipe,
/// or inspect it. Also excluded are tests that expect a Terminate to fail a Send or Write: here it completes once the
/// kernel has its bytes.
macro_rules! over_kernel_sockets {
    ($($module:ident: $($test:ident)*;)*) => {
        $(mod $module {
            $(#[test]
            fn $test() {
                super::super::kernel::run(super::super::$module::$test);
            })*
        })*
    };
}

over_kernel_sockets! {
    connections:
        connection_data
        posts_inside_the_completion
        private_data_limits
        read_limits_are_exact
        reject_and_retry
        active_side_aborts
        peer_aborts_before_reply
        misuse
        disconnect
        flush_on_peer_close
        abortive_close
        flush
        pause
        overrun_does_not_affect_other_queues
        overrun_terminates_connections
        disconnect_inside_the_event
        ready_to_receive;
    errors:
        remote_read_violations
        empty_accesses_are_not_checked
        receive_too_short
        invalidation_refused
        local_protection
        sink_without_local_write;
    extensions:
        operations
        solicited_immediate_data
        violations
        refused_posts
        one_side_allows_extensions
        immediate_data_without_a_receive
        atomics_concurrent_with_local_ones;
    invalidation:
        fast_register_and_remote_invalidate
        read_with_local_invalidate
        read_does_not_invalidate_foreign_region;
    lifetimes:
        close_inside_the_own_completion
        stale_handles
        close_of_a_connected_queue_pair
        endpoint_reuse
        creation_limits
        close_after_disconnect;
    operations:
        send_all_sizes
        write_all_sizes
        read_all_sizes
        multiple_entries
        inline_data
        deferred_requests_keep_their_order
        order_and_silence
        reads_beyond_the_limit_wait
        no_reads_allowed
        read_fence
        solicited_events
        deferred_requests
        post_limits;
    startup:
        connector_over_backlog_is_rejected
        unanswered_connector_times_out
        causes_of_failed_accepts;
    waits:
        messages_wait_in_order
        receive_wait_times_out
        data_before_fin_is_delivered
        disconnect_event_overtakes_waiting_messages
        disconnect_does_not_wait_for_receives
        disconnect_ends_receive_wait;
    endpoints:
        shared_endpoints
        management;
    objects:
        overrun_fails_idle_queue_pairs;
}
