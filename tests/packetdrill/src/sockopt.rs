//! Socket options that host stack and target support. Others return ENOPROTOOPT.

use std::os::fd::RawFd;

use host_stack::host::BUFFER_RANGE;
use offload_engine::state::TcpCached;
use rustix::io::Errno;

use crate::{
    info::tcp_info,
    sockets::{Kind, Sockets},
};

/// TCP_CC_INFO, SO_MEMINFO, SIOCOUTQNSD: not in the libc crate for every target.
const TCP_CC_INFO: i32 = 26;
const SO_MEMINFO: i32 = 55;
const SIOCOUTQNSD: u64 = 0x894b;
/// Members of SO_MEMINFO.
const MEMINFO_WORDS: usize = 9;

/// Value of an option that is an int; IP_TOS may be one byte.
fn int(value: &[u8]) -> Result<i32, Errno> {
    match (value.first_chunk::<4>(), value.first()) {
        (Some(word), _) => Ok(i32::from_ne_bytes(*word)),
        (None, Some(byte)) => Ok(i32::from(*byte)),
        (None, None) => Err(Errno::INVAL),
    }
}

fn positive(value: &[u8]) -> Result<u32, Errno> {
    u32::try_from(int(value)?).map_err(|_| Errno::INVAL)
}

/// Converts seconds to milliseconds.
fn seconds(value: &[u8]) -> Result<u32, Errno> {
    match positive(value)? {
        0 => Err(Errno::INVAL),
        seconds => Ok(seconds.saturating_mul(1000)),
    }
}

impl Sockets {
    /// setsockopt(2).
    pub(crate) fn set_option(
        &mut self,
        fd: RawFd,
        level: i32,
        name: i32,
        value: &[u8],
    ) -> Result<(), Errno> {
        let mut tcp = self.get(fd)?.tcp;
        match (level, name) {
            (libc::SOL_SOCKET, _) => self.set_socket_option(fd, name, value, &mut tcp)?,
            (libc::IPPROTO_IP, libc::IP_TOS) | (libc::IPPROTO_IPV6, libc::IPV6_TCLASS) => {
                tcp.tos_or_traffic_class = u8::try_from(int(value)?).map_err(|_| Errno::INVAL)?;
            }
            (libc::IPPROTO_IP, libc::IP_TTL) | (libc::IPPROTO_IPV6, libc::IPV6_UNICAST_HOPS) => {
                tcp.ttl_or_hop_limit = u8::try_from(int(value)?).map_err(|_| Errno::INVAL)?;
            }
            (libc::IPPROTO_TCP, _) => self.set_tcp_option(name, value, &mut tcp)?,
            _ => return Err(Errno::NOPROTOOPT),
        }
        let socket = self.get_mut(fd)?;
        if socket.tcp != tcp {
            socket.tcp = tcp;
            let handle = self.handle(fd).ok();
            if handle.is_some() {
                self.machine.update(handle, tcp);
            }
        }
        Ok(())
    }

    fn set_socket_option(
        &mut self,
        fd: RawFd,
        name: i32,
        value: &[u8],
        tcp: &mut TcpCached,
    ) -> Result<(), Errno> {
        let socket = self.get_mut(fd)?;
        match name {
            // Closed connections never occupy a 4-tuple here.
            libc::SO_REUSEADDR => {}
            libc::SO_KEEPALIVE => tcp.keep_alive_enabled = int(value)? != 0,
            // Linux doubles both for its bookkeeping. flue needs none, but scripts expect the room.
            libc::SO_SNDBUF => socket.send_buffer = (positive(value)? as usize * 2).max(4608),
            libc::SO_RCVBUF => tcp.initial_rcv_wnd = positive(value)?.max(2304),
            libc::SO_LINGER => {
                let on = int(value)? != 0;
                let seconds = positive(value.get(4..).ok_or(Errno::INVAL)?)?;
                socket.linger = on.then_some(seconds);
            }
            _ => return Err(Errno::NOPROTOOPT),
        }
        // Before the node exists, the buffer also determines the window scale.
        if name == libc::SO_RCVBUF && self.machine.core.is_none() {
            let buffer = tcp.initial_rcv_wnd as usize;
            let (least, most) = BUFFER_RANGE.into_inner();
            self.machine.settings.set_receive_buffer(buffer.clamp(least, most));
        }
        Ok(())
    }

    fn set_tcp_option(
        &mut self,
        name: i32,
        value: &[u8],
        tcp: &mut TcpCached,
    ) -> Result<(), Errno> {
        match name {
            libc::TCP_NODELAY => tcp.nagling_enabled = int(value)? == 0,
            libc::TCP_KEEPIDLE => tcp.ka_timeout = seconds(value)?,
            libc::TCP_KEEPINTVL => tcp.ka_interval = seconds(value)?,
            libc::TCP_KEEPCNT => {
                tcp.ka_probe_count = u8::try_from(positive(value)?).map_err(|_| Errno::INVAL)?;
            }
            // Milliseconds; 0 is the default limit, in both Linux and NDIS (RFC 5482 §3).
            libc::TCP_USER_TIMEOUT => tcp.max_rt = Some(positive(value)?),
            libc::TCP_CONGESTION => {
                let name = value.split(|byte| *byte == 0).next().unwrap_or_default();
                let name = str::from_utf8(name).map_err(|_| Errno::INVAL)?;
                let congestion = crate::settings::congestion(name).ok_or(Errno::NOENT)?;
                if self.machine.core.is_some() {
                    // The controller is selected when the connection is offloaded.
                    return Err(Errno::NOPROTOOPT);
                }
                self.machine.settings.congestion = Some(congestion);
            }
            _ => return Err(Errno::NOPROTOOPT),
        }
        Ok(())
    }

    /// getsockopt(2): the whole value; the caller truncates it to the buffer.
    pub(crate) fn option(&mut self, fd: RawFd, level: i32, name: i32) -> Result<Vec<u8>, Errno> {
        let socket = self.get(fd)?;
        let (tcp, send_buffer) = (socket.tcp, socket.send_buffer);
        let value = match (level, name) {
            (libc::SOL_SOCKET, libc::SO_ERROR) => {
                let status = self.status(fd).ok();
                let error = status.and_then(|status| self.take_error(fd, status));
                error.map_or(0, Errno::raw_os_error)
            }
            (libc::SOL_SOCKET, libc::SO_SNDBUF) => clamp(send_buffer),
            (libc::SOL_SOCKET, libc::SO_RCVBUF) => clamp(tcp.initial_rcv_wnd as usize),
            (libc::SOL_SOCKET, libc::SO_KEEPALIVE) => i32::from(tcp.keep_alive_enabled),
            (libc::SOL_SOCKET, SO_MEMINFO) => return Ok(self.memory_info(fd)),
            (libc::IPPROTO_IP, libc::IP_TOS) => i32::from(tcp.tos_or_traffic_class),
            (libc::IPPROTO_TCP, libc::TCP_INFO) => return self.tcp_info(fd),
            // No information beyond TCP_INFO.
            (libc::IPPROTO_TCP, TCP_CC_INFO) => return Ok(Vec::new()),
            (libc::IPPROTO_TCP, libc::TCP_NODELAY) => i32::from(!tcp.nagling_enabled),
            (libc::IPPROTO_TCP, libc::TCP_KEEPIDLE) => clamp(tcp.ka_timeout as usize / 1000),
            (libc::IPPROTO_TCP, libc::TCP_KEEPINTVL) => clamp(tcp.ka_interval as usize / 1000),
            (libc::IPPROTO_TCP, libc::TCP_KEEPCNT) => i32::from(tcp.ka_probe_count),
            (libc::IPPROTO_TCP, libc::TCP_USER_TIMEOUT) => {
                clamp(tcp.max_rt.unwrap_or_default() as usize)
            }
            (libc::IPPROTO_TCP, libc::TCP_MAXSEG) => {
                let handle = self.handle(fd).ok();
                let info = handle.and_then(|handle| self.machine.info(handle));
                // RFC 9293 §3.7.1: 536 until the peer has sent an MSS.
                info.map_or(536, |info| clamp(info.snd_mss))
            }
            _ => return Err(Errno::NOPROTOOPT),
        };
        Ok(value.to_ne_bytes().to_vec())
    }

    /// Queued bytes, as in SIOCINQ, SIOCOUTQ and SIOCOUTQNSD.
    pub(crate) fn ioctl(&mut self, fd: RawFd, request: u64) -> Result<i32, Errno> {
        if self.get(fd)?.kind != Kind::Fresh {
            self.status(fd).map_err(|_| Errno::INVAL)?;
        }
        match request {
            libc::FIONREAD => Ok(clamp(self.unread(fd))),
            libc::TIOCOUTQ => {
                let status = self.status(fd).and_then(|status| Ok((self.handle(fd)?, status)));
                let count = status.map(|(handle, status)| self.unacknowledged(handle, status));
                Ok(clamp(count.unwrap_or(0)))
            }
            SIOCOUTQNSD => {
                let snapshot =
                    self.handle(fd).ok().and_then(|handle| self.machine.info_snapshot(handle));
                Ok(clamp(snapshot.map_or(0, |snapshot| snapshot.unsent() as usize)))
            }
            _ => Err(Errno::NOTTY),
        }
    }

    fn tcp_info(&mut self, fd: RawFd) -> Result<Vec<u8>, Errno> {
        let handle = self.handle(fd)?;
        let status = self.status(fd)?;
        let snapshot = self.machine.info_snapshot(handle);
        Ok(tcp_info(&status, snapshot.as_ref()))
    }

    /// RMEM_ALLOC, RCVBUF, WMEM_ALLOC, SNDBUF, FWD_ALLOC, WMEM_QUEUED, OPTMEM, BACKLOG, DROPS.
    fn memory_info(&mut self, fd: RawFd) -> Vec<u8> {
        let unread = self.unread(fd);
        let queued = self.status(fd).map_or(0, |status| status.unacknowledged);
        let (receive_buffer, send_buffer) = self
            .get(fd)
            .map_or((0, 0), |socket| (socket.tcp.initial_rcv_wnd as usize, socket.send_buffer));
        let words: [usize; MEMINFO_WORDS] =
            [unread, receive_buffer, queued, send_buffer, 0, queued, 0, 0, 0];
        words.iter().flat_map(|word| clamp(*word).to_ne_bytes()).collect()
    }
}

fn clamp(value: usize) -> i32 {
    i32::try_from(value).unwrap_or(i32::MAX)
}
