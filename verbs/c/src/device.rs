//! C interface of devices: list, names, limits, ports and their tables.

use std::{
    env,
    ffi::{c_char, c_int, c_uint},
    os::unix::ffi::OsStrExt as _,
    ptr,
    sync::OnceLock,
};

use flue_verbs_abi::{
    attributes::{
        ibv_device_attr, ibv_device_attr_ex, ibv_gid, ibv_gid_entry, ibv_port_attr,
        ibv_query_device_ex_input,
    },
    enums::{
        IBV_ATOMIC_HCA, IBV_ATOMIC_NONE, IBV_DEVICE_MEM_WINDOW, IBV_DEVICE_MEM_WINDOW_TYPE_2A,
        IBV_DEVICE_RC_RNR_NAK_GEN, IBV_DEVICE_SRQ_RESIZE, IBV_GID_TYPE_IB, IBV_GID_TYPE_ROCE_V2,
        IBV_LINK_LAYER_ETHERNET, IBV_NODE_CA, IBV_NODE_RNIC, IBV_PORT_ACTIVE, IBV_PORT_CM_SUP,
        IBV_PORT_DEVICE_MGMT_SUP, IBV_PORT_IP_BASED_GIDS, IBV_TRANSPORT_IB, IBV_TRANSPORT_IWARP,
        ibv_gid_type, ibv_mtu,
    },
    objects::{ibv_context, ibv_device},
    settings,
};
use flue_verbs_core::{
    address,
    device::Device,
    gid::GidEntry,
    identity::{Identity, PortSpeed},
};
use offload_engine::fault;
use rdma_over_tcp::rnic::Capabilities;

use crate::{
    config,
    guard::{self, Errno},
};

/// Name of the device.
const NAME: &std::ffi::CStr = c"flue0";

/// Size of the memory of the device in bytes. Providers of hardware read after its structure to identify their devices.
const DEVICE_BYTES: usize = 1024;

/// Vendor: a locally administered OUI, "flu".
const VENDOR: u32 = 0x66_6c75;

/// `phys_state` of a link that is up.
const LINK_UP: u8 = 5;

/// Address handles that a process may have; they take no resources of the device.
const ADDRESS_HANDLES_MAX: c_int = 65_536;
/// Code of the time after which a RoCE device acknowledges, as software RoCE drivers report it.
const ACK_DELAY: u8 = 15;

fn identity() -> &'static Identity {
    config::identity()
}

/// Returns the node GUID in network order.
fn guid() -> u64 {
    u64::from_ne_bytes(address::eui64(identity().interface().mac))
}

/// Returns the name of the character device: that of the launcher's files, so that no device of the machine has it.
fn node() -> Vec<u8> {
    let files = env::var_os(settings::FILES).unwrap_or_default();
    settings::node_of(files.as_bytes()).unwrap_or(b"uverbs0").to_owned()
}

fn put(text: &[u8], into: &mut [c_char]) {
    let room = into.len() - 1;
    for (to, from) in into[..room].iter_mut().zip(text) {
        *to = *from as c_char;
    }
}

/// Returns the device, which is never freed.
pub(crate) fn pointer() -> *mut ibv_device {
    static DEVICE: OnceLock<usize> = OnceLock::new();
    let made = DEVICE.get_or_init(|| {
        let mut device = ibv_device::zeroed();
        (device.node_type, device.transport_type) = match config::is_roce() {
            true => (IBV_NODE_CA, IBV_TRANSPORT_IB),
            false => (IBV_NODE_RNIC, IBV_TRANSPORT_IWARP),
        };
        put(NAME.to_bytes(), &mut device.name);
        let node = node();
        put(&node, &mut device.dev_name);
        put(&[&b"/sys/class/infiniband_verbs/"[..], &node].concat(), &mut device.dev_path);
        put(b"/sys/class/infiniband/flue0", &mut device.ibdev_path);
        let memory = Box::leak(vec![0_u64; DEVICE_BYTES / 8].into_boxed_slice());
        let place = memory.as_mut_ptr().cast::<ibv_device>();
        const { assert!(size_of::<ibv_device>() <= DEVICE_BYTES) };
        // SAFETY: there is room, aligned to eight bytes as the structure is.
        unsafe { place.write(device) };
        place as usize
    });
    *made as *mut ibv_device
}

/// Lists one device. Any thread may call it, also before `main`, so it starts nothing.
pub(crate) unsafe extern "C" fn ibv_get_device_list(
    num_devices: *mut c_int,
) -> *mut *mut ibv_device {
    guard::pointer(|| {
        let list = Box::new([pointer(), ptr::null_mut()]);
        if !num_devices.is_null() {
            // SAFETY: the caller passes a valid place or null.
            unsafe { num_devices.write_unaligned(1) };
        }
        Ok(Box::into_raw(list).cast())
    })
}

pub(crate) unsafe extern "C" fn ibv_free_device_list(list: *mut *mut ibv_device) {
    guard::nothing(|| {
        if !list.is_null() {
            // SAFETY: the list is one of `ibv_get_device_list`.
            drop(unsafe { Box::from_raw(list.cast::<[*mut ibv_device; 2]>()) });
        }
    });
}

pub(crate) unsafe extern "C" fn ibv_get_device_name(device: *mut ibv_device) -> *const c_char {
    if device.is_null() {
        return ptr::null();
    }
    // SAFETY: the device is one of the list.
    unsafe { (&raw const (*device).name).cast() }
}

pub(crate) extern "C" fn ibv_get_device_guid(_device: *mut ibv_device) -> u64 {
    guard::value(guid, 0)
}

/// Index of the device in the kernel. A RoCE device has none: UCX queries the kernel about others.
pub(crate) extern "C" fn ibv_get_device_index(_device: *mut ibv_device) -> c_int {
    guard::value(|| if config::is_roce() { -1 } else { 0 }, -1)
}

pub(crate) extern "C" fn ibv_import_device(_cmd_fd: c_int) -> *mut ibv_context {
    guard::pointer(|| Err(Errno(libc::EOPNOTSUPP)))
}

/// Converts a count for a signed member.
fn count(number: u32) -> c_int {
    c_int::try_from(number).unwrap_or(c_int::MAX)
}

fn attributes() -> Result<ibv_device_attr, Errno> {
    let device = config::device()?;
    let limits = device.limits();
    let tables = Capabilities::default();
    let mut attr = ibv_device_attr::zeroed();
    put(env!("CARGO_PKG_VERSION").as_bytes(), &mut attr.fw_ver);
    attr.node_guid = guid();
    attr.sys_image_guid = guid();
    attr.max_mr_size = limits.registration_bytes_max;
    attr.page_size_cap = 4096;
    attr.vendor_id = VENDOR;
    attr.max_qp = count(tables.max_qp_count);
    attr.max_qp_wr = count(limits.send_depth_max.min(limits.receive_depth_max));
    attr.max_sge = count(limits.send_sges_max.min(limits.receive_sges_max));
    attr.max_sge_rd = count(limits.read_sges_max);
    attr.max_cq = count(tables.max_cq_count);
    attr.max_cqe = count(limits.cq_depth_max);
    attr.max_mr = count(tables.max_mr_count);
    attr.max_pd = count(tables.max_pd_count);
    attr.max_qp_rd_atom = count(limits.ird_max);
    attr.max_qp_init_rd_atom = count(limits.ord_max);
    attr.max_res_rd_atom = count(limits.ird_max.saturating_mul(tables.max_qp_count));
    let is_roce = identity().is_roce();
    attr.atomic_cap = match device.has_extensions() || is_roce {
        true => IBV_ATOMIC_HCA,
        false => IBV_ATOMIC_NONE,
    };
    attr.max_srq = count(tables.max_srq_count);
    attr.max_srq_wr = count(limits.srq_depth_max);
    attr.max_srq_sge = count(limits.receive_sges_max);
    attr.max_mw = count(tables.max_mw_count);
    attr.device_cap_flags =
        IBV_DEVICE_SRQ_RESIZE | IBV_DEVICE_MEM_WINDOW | IBV_DEVICE_MEM_WINDOW_TYPE_2A;
    if is_roce {
        attr.device_cap_flags |= IBV_DEVICE_RC_RNR_NAK_GEN;
        attr.max_ah = ADDRESS_HANDLES_MAX;
        attr.local_ca_ack_delay = ACK_DELAY;
    }
    attr.max_pkeys = 1;
    attr.phys_port_cnt = 1;
    Ok(attr)
}

pub(crate) unsafe extern "C" fn ibv_query_device(
    _context: *mut ibv_context,
    attr: *mut ibv_device_attr,
) -> c_int {
    guard::status(|| {
        fault::inject("FLUE_VERBS_TEST_PANIC", |panic| {
            let device = Device::started().expect("started by the test");
            device.with(|_, _| panic());
        });
        // SAFETY: the program passes writable memory for them.
        unsafe { attr.write_unaligned(attributes()?) };
        Ok(())
    })
}

pub(crate) unsafe extern "C" fn query_device_ex(
    _context: *mut ibv_context,
    input: *const ibv_query_device_ex_input,
    attr: *mut ibv_device_attr_ex,
    size: usize,
) -> c_int {
    guard::status(|| {
        // SAFETY: the program passes null or an input.
        if unsafe { input.as_ref() }.is_some_and(|input| input.comp_mask != 0) {
            return Err(Errno(libc::EINVAL));
        }
        if size < size_of::<ibv_device_attr>() {
            return Err(Errno(libc::EINVAL));
        }
        let mut found = ibv_device_attr_ex::zeroed();
        found.orig_attr = attributes()?;
        found.phys_port_cnt_ex = 1;
        let known = size.min(size_of::<ibv_device_attr_ex>());
        // SAFETY: the program passes writable memory of this size.
        unsafe {
            attr.cast::<u8>().write_bytes(0, size);
            ptr::copy_nonoverlapping((&raw const found).cast::<u8>(), attr.cast(), known);
        }
        Ok(())
    })
}

fn check_port(port: u32) -> Result<(), Errno> {
    if port == 1 { Ok(()) } else { Err(Errno(libc::EINVAL)) }
}

/// Writes the attributes up to the size that the program gives.
unsafe fn write_port(port: u8, attr: *mut ibv_port_attr, size: usize) -> Result<(), Errno> {
    check_port(port.into())?;
    let mut found = ibv_port_attr::zeroed();
    found.state = IBV_PORT_ACTIVE;
    let mtu = ibv_mtu(identity().active_mtu().into());
    (found.max_mtu, found.active_mtu) = (mtu, mtu);
    (found.gid_tbl_len, found.port_cap_flags) = match identity().is_roce() {
        true => {
            let entries = c_int::try_from(identity().gids().len()).unwrap_or(c_int::MAX);
            (entries, IBV_PORT_CM_SUP | IBV_PORT_IP_BASED_GIDS)
        }
        false => (1, IBV_PORT_CM_SUP | IBV_PORT_DEVICE_MGMT_SUP),
    };
    found.max_msg_sz = config::device()?.limits().transfer_bytes_max;
    found.pkey_tbl_len = 1;
    found.max_vl_num = 1;
    let PortSpeed { width, speed, effective: _ } = identity().port_speed();
    (found.active_width, found.active_speed) = (width, speed);
    found.phys_state = LINK_UP;
    found.link_layer = IBV_LINK_LAYER_ETHERNET as u8;
    let known = size.min(size_of::<ibv_port_attr>());
    // SAFETY: the caller's memory has this many bytes.
    unsafe {
        attr.cast::<u8>().write_bytes(0, size);
        ptr::copy_nonoverlapping((&raw const found).cast::<u8>(), attr.cast(), known);
    }
    Ok(())
}

/// Size of the attributes in the oldest ABI, in bytes: up to `flags`.
const PORT_BYTES: usize = 48;

pub(crate) unsafe extern "C" fn ibv_query_port(
    _context: *mut ibv_context,
    port: u8,
    attr: *mut ibv_port_attr,
) -> c_int {
    // SAFETY: the program passes writable memory for them.
    guard::status(|| unsafe { write_port(port, attr, PORT_BYTES) })
}

pub(crate) unsafe extern "C" fn query_port(
    _context: *mut ibv_context,
    port: u8,
    attr: *mut ibv_port_attr,
    size: usize,
) -> c_int {
    // SAFETY: the program passes writable memory of this size.
    guard::status(|| unsafe { write_port(port, attr, size) })
}

pub(crate) unsafe extern "C" fn ibv_query_port_speed(
    _context: *mut ibv_context,
    port: u32,
    speed: *mut u64,
) -> c_int {
    guard::status(|| {
        check_port(port)?;
        // SAFETY: the program passes writable memory for it.
        unsafe { speed.write(identity().port_speed().effective) };
        Ok(())
    })
}

/// GID of an iWARP device: the hardware address, as other iWARP adapters have it.
fn hardware_gid() -> ibv_gid {
    let mut gid = ibv_gid::default();
    gid.raw[..6].copy_from_slice(&identity().interface().mac.0);
    gid
}

/// Returns the entries of the GID table; `None`: the address of the entry was removed.
fn gids() -> Vec<Option<ibv_gid_entry>> {
    let entry = |index: usize, gid: ibv_gid, gid_type: ibv_gid_type, interface: u32| {
        let mut entry = ibv_gid_entry::zeroed();
        entry.gid = gid;
        entry.gid_index = index as u32;
        entry.port_num = 1;
        entry.gid_type = gid_type.0;
        entry.ndev_ifindex = interface;
        entry
    };
    if !identity().is_roce() {
        let interface = identity().interface().index;
        return vec![Some(entry(0, hardware_gid(), IBV_GID_TYPE_IB, interface))];
    }
    let current = identity().current_gids().into_iter().enumerate();
    let shown = |(index, found): (usize, Option<GidEntry>)| {
        let GidEntry { gid, interface } = found?;
        Some(entry(index, ibv_gid { raw: gid.0 }, IBV_GID_TYPE_ROCE_V2, interface))
    };
    current.map(shown).collect()
}

/// Returns an entry of the GID table; `None`: it is empty.
///
/// # Errors
/// `EINVAL`: another port, or an index beyond the table.
fn gid(port: u32, index: i64) -> Result<Option<ibv_gid_entry>, Errno> {
    check_port(port)?;
    let index = usize::try_from(index).map_err(|_| Errno(libc::EINVAL))?;
    gids().get(index).copied().ok_or(Errno(libc::EINVAL))
}

pub(crate) unsafe extern "C" fn ibv_query_gid(
    _context: *mut ibv_context,
    port: u8,
    index: c_int,
    into: *mut ibv_gid,
) -> c_int {
    guard::done(|| {
        let found = gid(port.into(), index.into())?;
        // SAFETY: the program passes writable memory for it, of any alignment.
        unsafe { into.write_unaligned(found.map_or_else(ibv_gid::default, |entry| entry.gid)) };
        Ok(())
    })
}

/// Type of a GID in the numbering of sysfs: that of RoCE v2.
const SYSFS_TYPE_ROCE_V2: c_uint = 1;

pub(crate) unsafe extern "C" fn ibv_query_gid_type(
    _context: *mut ibv_context,
    port: u8,
    index: c_uint,
    into: *mut c_uint,
) -> c_int {
    guard::done(|| {
        let found = gid(port.into(), index.into())?;
        let is_v2 = found.is_some_and(|entry| entry.gid_type == IBV_GID_TYPE_ROCE_V2.0);
        // SAFETY: the program passes writable memory for it.
        unsafe { into.write_unaligned(if is_v2 { SYSFS_TYPE_ROCE_V2 } else { 0 }) };
        Ok(())
    })
}

/// Writes an entry of the table up to the size that the program gives.
unsafe fn write_gid(entry: &ibv_gid_entry, into: *mut ibv_gid_entry, size: usize) {
    let known = size.min(size_of::<ibv_gid_entry>());
    // SAFETY: the caller's memory has this many bytes.
    unsafe {
        into.cast::<u8>().write_bytes(0, size);
        ptr::copy_nonoverlapping(ptr::from_ref(entry).cast::<u8>(), into.cast(), known);
    }
}

pub(crate) unsafe extern "C" fn _ibv_query_gid_ex(
    _context: *mut ibv_context,
    port: u32,
    index: u32,
    entry: *mut ibv_gid_entry,
    flags: u32,
    entry_size: usize,
) -> c_int {
    guard::status(|| {
        let found = gid(port, index.into())?;
        if flags != 0 {
            return Err(Errno(libc::EOPNOTSUPP));
        }
        let found = found.ok_or(Errno(libc::ENODATA))?;
        // SAFETY: the program passes writable memory of this size.
        unsafe { write_gid(&found, entry, entry_size) };
        Ok(())
    })
}

pub(crate) unsafe extern "C" fn _ibv_query_gid_table(
    _context: *mut ibv_context,
    entries: *mut ibv_gid_entry,
    max_entries: usize,
    flags: u32,
    entry_size: usize,
) -> isize {
    let mut count = 0;
    let status = guard::status(|| {
        if flags != 0 {
            return Err(Errno(libc::EOPNOTSUPP));
        }
        let found: Vec<_> = gids().into_iter().flatten().collect();
        if found.len() > max_entries {
            return Err(Errno(libc::EINVAL));
        }
        for (at, entry) in found.iter().enumerate() {
            // SAFETY: the program passes writable memory of these sizes.
            unsafe { write_gid(entry, entries.wrapping_byte_add(at * entry_size), entry_size) };
        }
        count = found.len() as isize;
        Ok(())
    });
    if status == 0 { count } else { -(status as isize) }
}

/// Default partition.
const PKEY: u16 = 0xffff;

pub(crate) unsafe extern "C" fn ibv_query_pkey(
    _context: *mut ibv_context,
    port: u8,
    index: c_int,
    pkey: *mut u16,
) -> c_int {
    guard::done(|| {
        check_port(port.into())?;
        if index != 0 {
            return Err(Errno(libc::EINVAL));
        }
        let found = if identity().is_roce() { PKEY } else { 0 };
        // SAFETY: the program passes writable memory for it.
        unsafe { pkey.write_unaligned(found) };
        Ok(())
    })
}

pub(crate) extern "C" fn ibv_get_pkey_index(
    _context: *mut ibv_context,
    port: u8,
    pkey: u16,
) -> c_int {
    guard::number(|| {
        check_port(port.into())?;
        let is_known = pkey == PKEY || pkey == 0 && !identity().is_roce();
        if is_known { Ok(0) } else { Err(Errno(libc::EINVAL)) }
    })
}

pub(crate) extern "C" fn ibv_get_sysfs_path() -> *const c_char {
    c"/sys".as_ptr()
}

pub(crate) extern "C" fn ibv_read_sysfs_file(
    _directory: *const c_char,
    _file: *const c_char,
    _buffer: *mut c_char,
    _size: usize,
) -> c_int {
    guard::done(|| Err(Errno(libc::ENOENT)))
}
