//! Waiting for a link by the kernel's notices.

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

/// Notices about links (RTNLGRP_LINK of rtnetlink.h).
const LINK_NOTICES: u32 = 1;

/// Looks at the link `name` after each notice until `ready` is satisfied, at most for `limit`.
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
    // Listen before looking, or the notice could come between look and wait.
    let notices = Connection::open(&[LINK_NOTICES]).map_err(failed)?;
    let deadline = Instant::now() + limit;
    loop {
        if ready(&netlink.link(name)?) {
            return Ok(());
        }
        let left = deadline.saturating_duration_since(Instant::now());
        let timeout = Timespec::try_from(left).map_err(|_| failed(Errno::INVAL.into()))?;
        let mut descriptors = [PollFd::from_borrowed_fd(notices.descriptor(), PollFlags::IN)];
        match poll(&mut descriptors, Some(&timeout)) {
            Ok(0) => return Err(failed(Errno::TIMEDOUT.into())),
            Ok(_) => while notices.take_notice().map_err(failed)? {},
            Err(Errno::INTR) => {}
            Err(error) => return Err(failed(error.into())),
        }
    }
}
