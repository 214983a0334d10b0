//! Automatic progress: what consumers do all the time costs nobody a lock of the node.

use std::{
    sync::{Arc, mpsc},
    thread,
};

use offload_engine::{sync::locks_taken, time::Duration};

use crate::ndk::{AdapterConfig, CqNotify, NdkResult, NdkResultEx, Pair};

/// How long what comes at once may take: a failure's time.
const LIMIT: Duration = Duration::from_secs(60);

// NDK-CQ-1, -4: a poll of an empty queue and an arm go on while another thread has the node, and take no lock but the
// queue's own, and that for an arm alone.
#[test]
fn polls_and_arms_take_no_lock_of_the_node() {
    let Pair { adapters, nodes } = Pair::open(AdapterConfig::default()).unwrap();
    let cq = Arc::new(adapters[0].create_cq(8, |_| {}).unwrap());
    let (tell, told) = mpsc::channel();
    let of_consumer = cq.clone();
    let consumer = nodes[0].with(|_, _, _| {
        let consumer = thread::spawn(move || {
            let before = locks_taken();
            assert_eq!(of_consumer.poll(&mut [NdkResult::default(); 4]), 0);
            assert_eq!(of_consumer.poll_ex(&mut [NdkResultEx::default(); 4]), 0);
            let polled = locks_taken();
            let arms = [CqNotify::Errors, CqNotify::Solicited, CqNotify::Any, CqNotify::Any];
            arms.into_iter().for_each(|notify| of_consumer.arm(notify));
            tell.send([polled - before, locks_taken() - polled]).unwrap();
        });
        // The node is this thread's until here: who waits for it does not tell.
        let locks = told.recv_timeout(LIMIT).expect("no poll and no arm waits for the node");
        if cfg!(debug_assertions) {
            assert_eq!(locks, [0, 4]);
        }
        consumer
    });
    consumer.join().unwrap();
}
