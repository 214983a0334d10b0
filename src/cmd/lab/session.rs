//! Environment of a lab node process: namespace, orders, reports, and the path from TAP to cable.

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

/// Session of a node process, from the creation of its namespace on.
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
    /// Moves the calling thread to a namespace of its own (unless the nodes share one), reports it, and waits for the
    /// plan.
    ///
    /// # Errors
    /// No namespace could be created, or the lab has exited.
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
        // The thread id: namespaces are per thread, and the id of the first thread is that of the process.
        let pid = gettid().as_raw_nonzero().get().unsigned_abs();
        reports.send(&Report::Namespace { pid })?;
        match orders.receive()? {
            Order::Start { plan } => Ok((*plan, Netlink::open()?)),
            Order::Connect => Err(Failure::work("order: Connect before Start")),
        }
    }

    /// Returns the side of this node.
    pub const fn side(&self) -> Side {
        self.side
    }

    /// Returns the plan of this node.
    pub const fn plan(&self) -> &NodePlan {
        &self.plan
    }

    /// Creates bridge, TAP, and the path between TAP and cable. Frames are forwarded when it returns.
    ///
    /// # Errors
    /// The operation that failed.
    pub fn open_links(&mut self) -> Result<OpenLinks, Failure> {
        let NodePlan { setup, cable, .. } = &self.plan;
        let bridge =
            setup.node.bridge.as_deref().ok_or_else(|| Failure::work("plan: no bridge"))?;
        plumb::make_bridge(&mut self.netlink, bridge, setup.node.mtu_bytes)?;
        let links = setup.node.open_links()?;
        let cable = cable.as_deref().ok_or_else(|| Failure::work("plan: no cable"))?;
        plumb::make_port(&mut self.netlink, cable, bridge)?;
        self.netlink.wait_forwarding(cable, plumb::FORWARDING_LIMIT)?;
        Ok(links)
    }

    /// Assigns the node's addresses to the cable, for kernel sockets.
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

    /// Reports that frames are forwarded, and that the node is ready.
    ///
    /// # Errors
    /// The lab has exited.
    pub fn linked(&mut self, vnet_header: Option<bool>) -> Result<(), Failure> {
        self.reports.send(&Report::Linked { vnet_header })
    }

    /// B reports that it listens; A waits for the order to connect. Returns the reader of the orders: its next input is
    /// the end, when the lab releases the node.
    ///
    /// # Errors
    /// The lab has exited.
    pub fn listening(&mut self) -> Result<Orders<R>, Failure> {
        let second = || Failure::work("order: second connect or listen");
        let mut orders = self.orders.take().ok_or_else(second)?;
        match self.side {
            Side::B => self.reports.send(&Report::Listening)?,
            Side::A => match orders.receive()? {
                Order::Connect => {}
                Order::Start { .. } => return Err(Failure::work("order: second Start")),
            },
        }
        Ok(orders)
    }

    /// Returns the latest offload state of the connection.
    pub const fn state(&self) -> Option<OffloadState> {
        self.state
    }

    /// Reports the offload state `state`, reached at `at` (time since connect or listen), if it changed.
    ///
    /// # Errors
    /// The lab has exited.
    pub fn moved(&mut self, state: OffloadState, at: Duration) -> Result<(), Failure> {
        if self.state.replace(state) == Some(state) {
            return Ok(());
        }
        let at_ns = u64::try_from(at.as_nanos()).unwrap_or(u64::MAX);
        self.reports.send(&Report::Moved { state, at_ns })
    }

    /// Reports the negotiated parameters.
    ///
    /// # Errors
    /// The lab has exited.
    pub fn connected(&mut self, negotiated: Negotiated) -> Result<(), Failure> {
        self.reports.send(&Report::Connected { negotiated })
    }

    /// Sends any other report.
    ///
    /// # Errors
    /// The lab has exited.
    pub fn report(&mut self, report: &Report) -> Result<(), Failure> {
        self.reports.send(report)
    }

    /// Reports the result of the run.
    ///
    /// # Errors
    /// The lab has exited, or the failure of the run.
    pub fn end(&mut self, ended: Result<(), Failure>) -> Result<(), Failure> {
        let report = match ended.clone() {
            Ok(()) => Report::Done,
            Err(failure) => Report::Failed { failure },
        };
        self.reports.send(&report).and(ended)
    }
}

#[cfg(test)]
mod tests;
