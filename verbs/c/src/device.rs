//! C interface of devices: list, names, limits, ports and their tables.

use std::{
    ffi::{c_char, c_int, c_uint},
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
        IBV_DEVICE_SRQ_RESIZE, IBV_GID_TYPE_IB, IBV_LINK_LAYER_ETHERNET, IBV_MTU_256, IBV_MTU_512,
        IBV_MTU_1024, IBV_MTU_2048, IBV_MTU_4096, IBV_NODE_RNIC, IBV_PORT_ACTIVE, IBV_PORT_CM_SUP,
        IBV_PORT_DEVICE_MGMT_SUP, IBV_TRANSPORT_IWARP, ibv_mtu,
    },
    objects::{ibv_context, ibv_device},
};
use flue_verbs_core::{
    address::{self, Interface},
    device::Device,
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

/// Active width and speed of the port: 1X at 25 Gbit/s. TCP has neither.
const WIDTH: u8 = 1;
const SPEED: u8 = 32;
/// Product of both, in units of 100 Mbit/s.
const EFFECTIVE_SPEED: u64 = 250;
/// `phys_state` of a link that is up.
const LINK_UP: u8 = 5;

fn interface() -> &'static Interface {
    static INTERFACE: OnceLock<Interface> = OnceLock::new();
    INTERFACE.get_or_init(config::interface)
}

/// Returns the node GUID in network order.
fn guid() -> u64 {
    u64::from_ne_bytes(address::eui64(interface().mac))
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
        device.node_type = IBV_NODE_RNIC;
        device.transport_type = IBV_TRANSPORT_IWARP;
        put(NAME.to_bytes(), &mut device.name);
        put(b"uverbs0", &mut device.dev_name);
        put(b"/sys/class/infiniband_verbs/uverbs0", &mut device.dev_path);
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

pub(crate) extern "C" fn ibv_get_device_index(_device: *mut ibv_device) -> c_int {
    0
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
    attr.atomic_cap = if device.has_extensions() { IBV_ATOMIC_HCA } else { IBV_ATOMIC_NONE };
    attr.max_srq = count(tables.max_srq_count);
    attr.max_srq_wr = count(limits.srq_depth_max);
    attr.max_srq_sge = count(limits.receive_sges_max);
    attr.max_mw = count(tables.max_mw_count);
    attr.device_cap_flags =
        IBV_DEVICE_SRQ_RESIZE | IBV_DEVICE_MEM_WINDOW | IBV_DEVICE_MEM_WINDOW_TYPE_2A;
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

/// Returns the largest InfiniBand MTU that fits an interface's.
fn mtu(bytes: u32) -> ibv_mtu {
    match bytes {
        4096.. => IBV_MTU_4096,
        2048.. => IBV_MTU_2048,
        1024.. => IBV_MTU_1024,
        512.. => IBV_MTU_512,
        _ => IBV_MTU_256,
    }
}

fn check_port(port: u32) -> Result<(), Errno> {
    if port == 1 { Ok(()) } else { Err(Errno(libc::EINVAL)) }
}

/// Writes the attributes up to the size that the program gives.
unsafe fn write_port(port: u8, attr: *mut ibv_port_attr, size: usize) -> Result<(), Errno> {
    check_port(port.into())?;
    let mut found = ibv_port_attr::zeroed();
    found.state = IBV_PORT_ACTIVE;
    found.max_mtu = IBV_MTU_4096.min(mtu(interface().mtu));
    found.active_mtu = mtu(interface().mtu);
    found.gid_tbl_len = 1;
    found.port_cap_flags = IBV_PORT_CM_SUP | IBV_PORT_DEVICE_MGMT_SUP;
    found.max_msg_sz = config::device()?.limits().transfer_bytes_max;
    found.pkey_tbl_len = 1;
    found.max_vl_num = 1;
    found.active_width = WIDTH;
    found.active_speed = SPEED;
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
        unsafe { speed.write(EFFECTIVE_SPEED) };
        Ok(())
    })
}

/// Returns the only GID: the hardware address, as other iWARP adapters have it.
fn gid() -> ibv_gid {
    let mut gid = ibv_gid::default();
    gid.raw[..6].copy_from_slice(&interface().mac.0);
    gid
}

fn check_gid(port: u32, index: i64) -> Result<(), Errno> {
    check_port(port)?;
    if index == 0 { Ok(()) } else { Err(Errno(libc::EINVAL)) }
}

pub(crate) unsafe extern "C" fn ibv_query_gid(
    _context: *mut ibv_context,
    port: u8,
    index: c_int,
    into: *mut ibv_gid,
) -> c_int {
    guard::done(|| {
        check_gid(port.into(), index.into())?;
        // SAFETY: the program passes writable memory for it, of any alignment.
        unsafe { into.write_unaligned(gid()) };
        Ok(())
    })
}

pub(crate) unsafe extern "C" fn ibv_query_gid_type(
    _context: *mut ibv_context,
    port: u8,
    index: c_uint,
    into: *mut c_uint,
) -> c_int {
    guard::done(|| {
        check_gid(port.into(), index.into())?;
        // SAFETY: the program passes writable memory for it.
        unsafe { into.write_unaligned(IBV_GID_TYPE_IB.0) };
        Ok(())
    })
}

/// Writes the entry of the table up to the size that the program gives.
unsafe fn write_gid(into: *mut ibv_gid_entry, size: usize) {
    let mut entry = ibv_gid_entry::zeroed();
    entry.gid = gid();
    entry.port_num = 1;
    entry.gid_type = IBV_GID_TYPE_IB.0;
    entry.ndev_ifindex = interface().index;
    let known = size.min(size_of::<ibv_gid_entry>());
    // SAFETY: the caller's memory has this many bytes.
    unsafe {
        into.cast::<u8>().write_bytes(0, size);
        ptr::copy_nonoverlapping((&raw const entry).cast::<u8>(), into.cast(), known);
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
        check_gid(port, index.into())?;
        if flags != 0 {
            return Err(Errno(libc::EINVAL));
        }
        // SAFETY: the program passes writable memory of this size.
        unsafe { write_gid(entry, entry_size) };
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
    if max_entries == 0 || flags != 0 {
        return -(libc::EINVAL as isize);
    }
    let status = guard::status(|| {
        // SAFETY: the program passes writable memory of these sizes.
        unsafe { write_gid(entries, entry_size) };
        Ok(())
    });
    if status == 0 { 1 } else { -(status as isize) }
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
        check_gid(port.into(), index.into())?;
        // SAFETY: the program passes writable memory for it.
        unsafe { pkey.write_unaligned(0) };
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
        if pkey == 0 || pkey == PKEY { Ok(0) } else { Err(Errno(libc::EINVAL)) }
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
