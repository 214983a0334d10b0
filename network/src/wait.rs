//! Wait for a change of a link.

use std::{
    io,
    time::{Duration, Instant},
};

use rustix::{
    event::{PollFd, PollFlags, poll},
    io::Errno,
    time::Timespec,
};

use super::{LinkView, NetError, Netlink, message::Connection};

/// Multicast group of link notifications (RTNLGRP_LINK of rtnetlink.h).
const LINK_NOTIFICATIONS: u32 = 1;

/// Checks the link `name` after each notification until `ready` returns true, for at most `limit`.
pub(super) fn until(
    netlink: &mut Netlink,
    name: &str,
    limit: Duration,
    ready: impl Fn(&LinkView) -> bool,
) -> Result<(), NetError> {
    let failed = |source: io::Error| NetError {
        operation: "wait for link",
        object: name.to_owned(),
        source,
    };
    // Subscribe before the first check: a change between check and wait would otherwise be missed.
    let notifications = Connection::open(&[LINK_NOTIFICATIONS]).map_err(failed)?;
    let deadline = Instant::now() + limit;
    loop {
        if ready(&netlink.link(name)?) {
            return Ok(());
        }
        let left = deadline.saturating_duration_since(Instant::now());
        let timeout = Timespec::try_from(left).map_err(|_| failed(Errno::INVAL.into()))?;
        let mut descriptors = [PollFd::from_borrowed_fd(notifications.descriptor(), PollFlags::IN)];
        match poll(&mut descriptors, Some(&timeout)) {
            Ok(0) => return Err(failed(Errno::TIMEDOUT.into())),
            Ok(_) => while notifications.take_notification().map_err(failed)? {},
            Err(Errno::INTR) => {}
            Err(error) => return Err(failed(error.into())),
        }
    }
}
