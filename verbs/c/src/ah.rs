//! C interface of address handles of a RoCE device, and of multicast groups, which are not supported. An iWARP device
//! has no address handles: EOPNOTSUPP.
//!
//! A handle contains the addresses of datagrams. Programs also create handles to find out which of the GIDs can be
//! used.

use std::{
    ffi::{c_int, c_void},
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use flue_verbs_abi::{
    attributes::{ibv_ah_attr, ibv_gid},
    enums::IBV_WC_GRH,
    objects::{ibv_ah, ibv_context, ibv_pd, ibv_qp, ibv_wc},
};
use flue_verbs_core::{attributes::AddressVector, gid::Gid, identity::Identity};
use rdma_over_tcp::{
    datagram::ipv4_checksum,
    rnic::{DatagramPath, Destination},
};

use crate::{
    config,
    guard::{self, Errno, copied},
    object::Object,
    pd::PdObject,
};

/// Address handle, with its addresses.
type AhObject = Object<ibv_ah, DatagramPath>;

/// Octets of a global route header.
const GRH_OCTETS: usize = 40;
/// Offset of the IPv4 header in it.
const IPV4_OFFSET: usize = 20;
/// Bits of a queue pair number.
const QP_NUMBER_BITS: u32 = 0xff_ffff;
/// UDP in the protocol of IPv4 and the next header of IPv6: RoCE v2.
const UDP: u8 = 17;

/// Returns the identity of a device with address handles.
fn identity() -> Result<&'static Identity, Errno> {
    let identity = config::identity();
    if identity.is_roce() { Ok(identity) } else { Err(Errno(libc::EOPNOTSUPP)) }
}

/// Converts an address vector of the program.
pub(crate) fn address_vector(given: &ibv_ah_attr) -> AddressVector {
    let ibv_ah_attr { grh, dlid, sl, src_path_bits, static_rate, is_global, port_num } = *given;
    AddressVector {
        dgid: Gid(grh.dgid.raw),
        flow_label: grh.flow_label,
        sgid_index: grh.sgid_index,
        hop_limit: grh.hop_limit,
        traffic_class: grh.traffic_class,
        dlid,
        sl,
        src_path_bits,
        static_rate,
        is_global,
        port: port_num,
    }
}

/// Converts an address vector for the program.
pub(crate) fn shown_vector(vector: &AddressVector) -> ibv_ah_attr {
    let AddressVector {
        dgid,
        flow_label,
        sgid_index,
        hop_limit,
        traffic_class,
        dlid,
        sl,
        src_path_bits,
        static_rate,
        is_global,
        port,
    } = *vector;
    let mut shown = ibv_ah_attr::zeroed();
    shown.grh.dgid.raw = dgid.0;
    shown.grh.flow_label = flow_label;
    shown.grh.sgid_index = sgid_index;
    shown.grh.hop_limit = hop_limit;
    shown.grh.traffic_class = traffic_class;
    (shown.dlid, shown.sl, shown.src_path_bits) = (dlid, sl, src_path_bits);
    (shown.static_rate, shown.is_global, shown.port_num) = (static_rate, is_global, port);
    shown
}

/// Creates a handle.
fn create(pd: *mut ibv_pd, attr: &ibv_ah_attr) -> Result<*mut ibv_ah, Errno> {
    let identity = identity()?;
    // SAFETY: the program passes a pointer to a protection domain.
    let context = unsafe {
        PdObject::of(pd)?;
        (*pd).context
    };
    let path = address_vector(attr).checked(identity)?.datagram_path(identity)?;
    Ok(AhObject::make(ibv_ah { context, pd, handle: 0 }, path).cast())
}

/// Returns the destination of a datagram.
///
/// # Safety
/// The pointer is null or refers to a handle.
pub(crate) unsafe fn destination(ah: *mut ibv_ah, qp: u32, key: u32) -> Result<Destination, Errno> {
    // SAFETY: guaranteed by the caller.
    let path = *unsafe { AhObject::of(ah) }?;
    Ok(Destination { path, qp: qp & QP_NUMBER_BITS, key })
}

pub(crate) unsafe extern "C" fn ibv_create_ah(
    pd: *mut ibv_pd,
    attr: *mut ibv_ah_attr,
) -> *mut ibv_ah {
    // SAFETY: guaranteed by the program.
    guard::pointer(|| create(pd, &unsafe { copied(attr) }.ok_or(Errno(libc::EINVAL))?))
}

/// Addresses in a global route header.
struct RouteHeader {
    source: IpAddr,
    destination: IpAddr,
    hop_limit: u8,
    traffic_class: u8,
    flow_label: u32,
}

impl RouteHeader {
    /// Parses the header that precedes a datagram: that of IPv6, or that of IPv4 at its end. `None`: not RoCE v2.
    fn parse(octets: &[u8; GRH_OCTETS]) -> Option<Self> {
        let (_, v4) = octets.split_at(IPV4_OFFSET);
        if v4[0] == 0x45 && ipv4_checksum(v4) == 0 {
            let address = |at: usize| {
                let octets = v4[at..].first_chunk().copied().unwrap_or_default();
                IpAddr::from(Ipv4Addr::from_octets(octets))
            };
            let header = Self {
                source: address(12),
                destination: address(16),
                hop_limit: v4[8],
                traffic_class: v4[1],
                flow_label: 0,
            };
            return (v4[9] == UDP).then_some(header);
        }
        let address = |at: usize| {
            let octets = octets[at..].first_chunk().copied().unwrap_or_default();
            IpAddr::from(Ipv6Addr::from_octets(octets))
        };
        let first = u32::from_be_bytes([octets[0], octets[1], octets[2], octets[3]]);
        let header = Self {
            source: address(8),
            destination: address(24),
            hop_limit: octets[7],
            traffic_class: (first >> 20) as u8,
            flow_label: first & 0xf_ffff,
        };
        (first >> 28 == 6 && octets[6] == UDP).then_some(header)
    }
}

/// Returns the attributes of a handle for a reply to a datagram.
fn reply_attributes(
    identity: &Identity,
    port: u8,
    wc: &ibv_wc,
    grh: Option<&[u8; GRH_OCTETS]>,
) -> Result<ibv_ah_attr, Errno> {
    let mut attr = ibv_ah_attr::zeroed();
    (attr.dlid, attr.sl, attr.src_path_bits) = (wc.slid, wc.sl, wc.dlid_path_bits);
    attr.port_num = port;
    if wc.wc_flags & IBV_WC_GRH == 0 {
        return Ok(attr);
    }
    let header = grh.and_then(RouteHeader::parse).ok_or(Errno(libc::EINVAL))?;
    let own = Gid::of(header.destination);
    let entries = identity.current_gids();
    let index = entries.iter().flatten().position(|entry| entry.gid == own);
    let index = index.and_then(|index| u8::try_from(index).ok()).ok_or(Errno(libc::EINVAL))?;
    attr.is_global = 1;
    attr.grh.dgid.raw = Gid::of(header.source).0;
    attr.grh.sgid_index = index;
    attr.grh.hop_limit = header.hop_limit;
    attr.grh.traffic_class = header.traffic_class;
    attr.grh.flow_label = header.flow_label;
    Ok(attr)
}

/// As [`reply_attributes`], with pointers of the program.
///
/// # Safety
/// Each pointer is null or valid.
unsafe fn reply_to(port: u8, wc: *mut ibv_wc, grh: *mut c_void) -> Result<ibv_ah_attr, Errno> {
    let identity = identity()?;
    // SAFETY: guaranteed by the caller.
    let (wc, grh) =
        unsafe { (copied(wc).ok_or(Errno(libc::EINVAL))?, copied(grh.cast::<[u8; GRH_OCTETS]>())) };
    reply_attributes(identity, port, &wc, grh.as_ref())
}

pub(crate) unsafe extern "C" fn ibv_create_ah_from_wc(
    pd: *mut ibv_pd,
    wc: *mut ibv_wc,
    grh: *mut c_void,
    port: u8,
) -> *mut ibv_ah {
    // SAFETY: guaranteed by the program.
    guard::pointer(|| create(pd, &unsafe { reply_to(port, wc, grh) }?))
}

pub(crate) unsafe extern "C" fn ibv_init_ah_from_wc(
    _context: *mut ibv_context,
    port: u8,
    wc: *mut ibv_wc,
    grh: *mut c_void,
    attr: *mut ibv_ah_attr,
) -> c_int {
    guard::done(|| {
        // SAFETY: guaranteed by the program, which passes writable memory for the attributes.
        unsafe { attr.write_unaligned(reply_to(port, wc, grh)?) };
        Ok(())
    })
}

pub(crate) unsafe extern "C" fn ibv_destroy_ah(ah: *mut ibv_ah) -> c_int {
    guard::status(|| {
        identity()?;
        // SAFETY: the program passes a pointer to a handle, which it no longer uses.
        unsafe {
            AhObject::of(ah)?;
            AhObject::remove(ah);
        }
        Ok(())
    })
}

pub(crate) extern "C" fn ibv_attach_mcast(
    _qp: *mut ibv_qp,
    _gid: *const ibv_gid,
    _lid: u16,
) -> c_int {
    guard::status(|| Err(Errno(libc::EOPNOTSUPP)))
}

pub(crate) extern "C" fn ibv_detach_mcast(
    _qp: *mut ibv_qp,
    _gid: *const ibv_gid,
    _lid: u16,
) -> c_int {
    guard::status(|| Err(Errno(libc::EOPNOTSUPP)))
}

pub(crate) extern "C" fn ibv_resolve_eth_l2_from_gid(
    _context: *mut ibv_context,
    _attr: *mut ibv_ah_attr,
    _mac: *mut u8,
    _vlan: *mut u16,
) -> c_int {
    guard::done(|| {
        identity()?;
        Err(Errno(libc::EHOSTUNREACH))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the header of an IPv4 datagram with a right checksum.
    fn ipv4() -> [u8; GRH_OCTETS] {
        let mut octets = [0; GRH_OCTETS];
        let header = [0x45, 7, 0, 60, 0, 1, 0, 0, 64, UDP, 0, 0, 10, 0, 0, 2, 10, 0, 0, 1];
        octets[IPV4_OFFSET..].copy_from_slice(&header);
        let checksum = ipv4_checksum(&header);
        octets[IPV4_OFFSET + 10..IPV4_OFFSET + 12].copy_from_slice(&checksum.to_be_bytes());
        octets
    }

    #[test]
    fn ipv4_header_is_recognized_by_its_checksum() {
        let Some(found) = RouteHeader::parse(&ipv4()) else { panic!("an IPv4 header") };
        assert_eq!(found.source, IpAddr::from([10, 0, 0, 2]));
        assert_eq!(found.destination, IpAddr::from([10, 0, 0, 1]));
        assert_eq!((found.hop_limit, found.traffic_class), (64, 7));
        let mut wrong = ipv4();
        wrong[IPV4_OFFSET + 8] ^= 1;
        assert!(RouteHeader::parse(&wrong).is_none());
    }

    #[test]
    fn ipv6_header_of_another_protocol_is_refused() {
        let mut octets = [0; GRH_OCTETS];
        octets[..8].copy_from_slice(&[0x61, 0x23, 0x45, 0x67, 0, 0, UDP, 9]);
        octets[8..24].copy_from_slice(&Ipv6Addr::LOCALHOST.octets());
        octets[39] = 2;
        let Some(found) = RouteHeader::parse(&octets) else { panic!("an IPv6 header") };
        assert_eq!(found.source, IpAddr::from(Ipv6Addr::LOCALHOST));
        assert_eq!(found.destination, "::2".parse::<IpAddr>().unwrap());
        assert_eq!((found.traffic_class, found.flow_label, found.hop_limit), (0x12, 0x3_4567, 9));
        // RoCE v1.
        octets[6] = 0x1b;
        assert!(RouteHeader::parse(&octets).is_none());
    }
}
