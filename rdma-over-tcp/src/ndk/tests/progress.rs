//! Automatic progress: frequent consumer calls take no lock of the node.

use std::{
    sync::{Arc, mpsc},
    thread,
};

use offload_engine::{sync::locks_taken, time::Duration};

use crate::ndk::{AdapterConfig, CqNotify, NdkResult, NdkResultEx, Pair};

/// Timeout of events that should occur immediately; reached only in a failure.
const LIMIT: Duration = Duration::from_secs(60);

// NDK-CQ-1, -4: a poll of an empty queue and an arm do not block while another thread holds the node. Only an arm takes
// a lock, that of the queue.
#[test]
fn polls_and_arms_take_no_lock_of_the_node() {
    let Pair { adapters, nodes } = Pair::open(AdapterConfig::default()).unwrap();
    let cq = Arc::new(adapters[0].create_cq(8, |_| {}).unwrap());
    let (sender, receiver) = mpsc::channel();
    let of_consumer = cq.clone();
    let consumer = nodes[0].with(|_, _, _| {
        let consumer = thread::spawn(move || {
            let before = locks_taken();
            assert_eq!(of_consumer.poll(&mut [NdkResult::default(); 4]), 0);
            assert_eq!(of_consumer.poll_ex(&mut [NdkResultEx::default(); 4]), 0);
            let polled = locks_taken();
            let arms = [CqNotify::Errors, CqNotify::Solicited, CqNotify::Any, CqNotify::Any];
            arms.into_iter().for_each(|notify| of_consumer.arm(notify));
            sender.send([polled - before, locks_taken() - polled]).unwrap();
        });
        // This thread holds the node until here: a call that waits for it sends no result.
        let locks = receiver.recv_timeout(LIMIT).expect("polls and arms do not wait for the node");
        if cfg!(debug_assertions) {
            assert_eq!(locks, [0, 4]);
        }
        consumer
    });
    consumer.join().unwrap();
}
