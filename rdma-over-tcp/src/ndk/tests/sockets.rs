//! An adapter on kernel sockets that only the test polls.

use std::{
    boxed::Box,
    io::{Read, Write},
    net::{Ipv4Addr, TcpListener, TcpStream},
    sync::{Arc, Mutex, MutexGuard},
    thread::yield_now,
    vec,
    vec::Vec,
};

use host_stack::node::Passive;
use offload_engine::time::{Duration, Instant};
use rustix::net::sockopt::set_socket_linger;

use super::sides::LIMITS;
use crate::{
    error::WireError,
    mpa::{Encoder, Slab, startup::Revision},
    ndk::{
        Adapter, AdapterConfig, CoreAccess, Data, DisconnectReason, NtStatus, OpFlags, QpLimits,
        blocking::{Begun, Ended},
    },
    rdmap::{Terminate, terminate_header},
    rnic::Rnic,
    transport::SocketRnic,
};

/// MPA's Reply of revision 1, with CRC and without private data.
const REPLY: &[u8] = b"MPA ID Rep Frame\x40\x01\0\0";

struct Polled(Mutex<SocketRnic>);

impl Polled {
    fn core(&self) -> MutexGuard<'_, SocketRnic> {
        self.0.lock().unwrap()
    }

    fn poll(&self) {
        let mut callbacks = Vec::new();
        let mut core = self.core();
        core.poll(Instant::ZERO).unwrap();
        core.take_callbacks(&mut callbacks);
        drop(core);
        callbacks.into_iter().for_each(|callback| callback());
    }

    fn poll_until<T>(&self, mut look: impl FnMut() -> Option<T>) -> T {
        let deadline = std::time::Instant::now() + Duration::from_secs(60);
        loop {
            self.poll();
            if let Some(found) = look() {
                return found;
            }
            assert!(std::time::Instant::now() < deadline, "not within 60 s");
            yield_now();
        }
    }
}

impl CoreAccess for Polled {
    fn enter(&self, work: &mut dyn FnMut(&mut Rnic, Instant)) {
        work(self.core().rnic(), Instant::ZERO);
    }
}

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

// A Terminate and a reset come together, and a write meets the reset before the Terminate is read.
#[test]
fn a_terminate_before_a_reset_is_read() {
    let config = AdapterConfig { revision: Revision::One, ..AdapterConfig::default() };
    let polled = Arc::new(Polled(Mutex::new(SocketRnic::new(config, Box::new(|| {})).unwrap())));
    let adapter = Adapter::new(polled.clone());
    let (pd, cq) = (adapter.create_pd().unwrap(), adapter.create_cq(8, |_| {}).unwrap());
    let qp = pd.create_qp(&cq, &cq, 0, QpLimits::default()).unwrap();
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let remote = listener.local_addr().unwrap();
    let connector = adapter.create_connector().unwrap();
    let begun = Begun::begin(|done| connector.connect(&qp, None, remote, LIMITS, &[], done));
    polled.poll();
    // The handshake is the kernel's; the Request leaves in one of these polls.
    let peer = std::thread::spawn(move || accept(&listener));
    assert_eq!(polled.poll_until(|| begun.status()), NtStatus::SUCCESS);
    let mut peer = peer.join().unwrap();
    let ended = Ended::default();
    let begun = Begun::begin(|done| connector.complete_connect(Some(ended.event()), done));
    assert_eq!(polled.poll_until(|| begun.status()), NtStatus::SUCCESS);

    let error = WireError::TaggedInvalidStag;
    peer.write_all(&terminate(error)).unwrap();
    set_socket_linger(&peer, Some(Duration::ZERO)).unwrap();
    drop(peer);
    qp.send(1, Data::Inline(&[b"too late"]), OpFlags::NONE).unwrap();
    let reason = polled.poll_until(|| ended.reason());
    assert_eq!(reason, DisconnectReason::terminated(error.number()).0, "{reason:#x}");
}
