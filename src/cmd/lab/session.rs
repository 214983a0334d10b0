//! A node process of the lab, around its engine: namespace, orders, reports, and the way from TAP to
//! cable.

use std::{
    io::{BufRead, Write},
    time::Duration,
};

use flue_adapter::OpenLinks;
use host_stack::stream::OffloadState;
use rustix::thread::gettid;

use super::{
    children::{Orders, Reports},
    control::{Negotiated, NodePlan, Order, Report, Side},
};
use crate::{
    failure::Failure,
    namespace,
    net::{Netlink, plumb},
};

/// A node process from its namespace on.
#[derive(Debug)]
pub struct Session<R: BufRead, W: Write> {
    side: Side,
    plan: NodePlan,
    netlink: Netlink,
    orders: Option<Orders<R>>,
    reports: Reports<W>,
    state: Option<OffloadState>,
}

impl<R: BufRead, W: Write> Session<R, W> {
    /// Moves the calling thread to a namespace of its own, unless the nodes share one, reports it, and waits for the
    /// plan.
    ///
    /// # Errors
    /// No namespace, or the lab is gone.
    pub fn open(
        side: Side,
        is_loopback: bool,
        input: R,
        output: W,
    ) -> Result<Self, (Failure, Reports<W>)> {
        let mut reports = Reports::new(output);
        let mut orders = Orders::new(input);
        match Self::first_order(is_loopback, &mut orders, &mut reports) {
            Ok((plan, netlink)) => {
                Ok(Self { side, plan, netlink, orders: Some(orders), reports, state: None })
            }
            Err(failure) => Err((failure, reports)),
        }
    }

    fn first_order(
        is_loopback: bool,
        orders: &mut Orders<R>,
        reports: &mut Reports<W>,
    ) -> Result<(NodePlan, Netlink), Failure> {
        if !is_loopback {
            namespace::enter_below()?;
        }
        // The thread's id: namespaces belong to threads, and the first thread's is the process's.
        let pid = gettid().as_raw_nonzero().get().unsigned_abs();
        reports.send(&Report::Namespace { pid })?;
        match orders.receive()? {
            Order::Start { plan } => Ok((*plan, Netlink::open()?)),
            Order::Connect => Err(Failure::work("order: Connect before Start")),
        }
    }

    /// Which node this is.
    pub const fn side(&self) -> Side {
        self.side
    }

    /// What it has to do.
    pub const fn plan(&self) -> &NodePlan {
        &self.plan
    }

    /// Makes bridge, TAP, and the way between TAP and cable. Frames pass when it returns.
    ///
    /// # Errors
    /// The operation that failed.
    pub fn open_links(&mut self) -> Result<OpenLinks, Failure> {
        let NodePlan { setup, cable, .. } = &self.plan;
        let bridge = setup
            .node
            .bridge
            .as_deref()
            .ok_or_else(|| Failure::work("plan: a node of the lab without a bridge"))?;
        plumb::make_bridge(&mut self.netlink, bridge, setup.node.mtu_bytes)?;
        let links = setup.node.open_links()?;
        let cable = cable.as_deref().ok_or_else(|| Failure::work("plan: a TAP without a cable"))?;
        plumb::make_port(&mut self.netlink, cable, bridge)?;
        self.netlink.wait_forwarding(cable, plumb::FORWARDING_LIMIT)?;
        Ok(links)
    }

    /// Gives the cable the node's addresses, for kernel sockets.
    ///
    /// # Errors
    /// The operation that failed.
    pub fn open_cable(&mut self) -> Result<(), Failure> {
        let NodePlan { setup, cable: Some(cable), .. } = &self.plan else { return Ok(()) };
        for address in &setup.node.addresses {
            self.netlink.add_address(cable, (*address).into())?;
        }
        self.netlink.set_up(cable)?;
        Ok(())
    }

    /// Reports that frames pass, and that the node is ready for the other one.
    ///
    /// # Errors
    /// The lab is gone.
    pub fn linked(&mut self, vnet_header: Option<bool>) -> Result<(), Failure> {
        self.reports.send(&Report::Linked { vnet_header })
    }

    /// B: reports that it listens. A: waits until it may connect. Then gives the orders away: what comes
    /// there now is the end, when the lab lets go of the node.
    ///
    /// # Errors
    /// The lab is gone.
    pub fn listening(&mut self) -> Result<Orders<R>, Failure> {
        let second = || Failure::work("order: a node listens or connects once");
        let mut orders = self.orders.take().ok_or_else(second)?;
        match self.side {
            Side::B => self.reports.send(&Report::Listening)?,
            Side::A => match orders.receive()? {
                Order::Connect => {}
                Order::Start { .. } => return Err(Failure::work("order: Start a second time")),
            },
        }
        Ok(orders)
    }

    /// Where the connection's data path was last.
    pub const fn state(&self) -> Option<OffloadState> {
        self.state
    }

    /// Reports that the connection's data path is there since `at`, from when the node connected or
    /// listened on, if that is news.
    ///
    /// # Errors
    /// The lab is gone.
    pub fn moved(&mut self, state: OffloadState, at: Duration) -> Result<(), Failure> {
        if self.state.replace(state) == Some(state) {
            return Ok(());
        }
        let at_ns = u64::try_from(at.as_nanos()).unwrap_or(u64::MAX);
        self.reports.send(&Report::Moved { state, at_ns })
    }

    /// Reports what was negotiated.
    ///
    /// # Errors
    /// The lab is gone.
    pub fn connected(&mut self, negotiated: Negotiated) -> Result<(), Failure> {
        self.reports.send(&Report::Connected { negotiated })
    }

    /// Reports anything else.
    ///
    /// # Errors
    /// The lab is gone.
    pub fn report(&mut self, report: &Report) -> Result<(), Failure> {
        self.reports.send(report)
    }

    /// Reports how it ended.
    ///
    /// # Errors
    /// The lab is gone, or the failure itself.
    pub fn end(mut self, ended: Result<(), Failure>) -> Result<(), Failure> {
        let report = match ended.clone() {
            Ok(()) => Report::Done,
            Err(failure) => Report::Failed { failure },
        };
        self.reports.send(&report).and(ended)
    }
}

#[cfg(test)]
mod tests;
