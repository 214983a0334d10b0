//! Limits and properties of devices, ports, queue pairs and queues.
//!
//! These structures have no pointer to an object of the library.

use core::ffi::{c_char, c_int, c_uint};

use crate::enums::{ibv_atomic_cap, ibv_mig_state, ibv_mtu, ibv_port_state, ibv_qp_state};

/// Global identifier of a port: 16 octets in network order. Aligned like the C union, whose halves are `__be64`.
#[repr(C, align(8))]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ibv_gid {
    /// C member `raw`.
    pub raw: [u8; 16],
}

c_structs! {
    /// One entry of a port's GID table.
    ibv_gid_entry {
        gid: ibv_gid,
        gid_index: u32,
        port_num: u32,
        gid_type: u32,
        ndev_ifindex: u32,
    }

    /// Limits and identity of a device.
    ibv_device_attr {
        fw_ver: [c_char; 64],
        /// Network order.
        node_guid: u64,
        /// Network order.
        sys_image_guid: u64,
        max_mr_size: u64,
        page_size_cap: u64,
        vendor_id: u32,
        vendor_part_id: u32,
        hw_ver: u32,
        max_qp: c_int,
        max_qp_wr: c_int,
        device_cap_flags: c_uint,
        max_sge: c_int,
        max_sge_rd: c_int,
        max_cq: c_int,
        max_cqe: c_int,
        max_mr: c_int,
        max_pd: c_int,
        max_qp_rd_atom: c_int,
        max_ee_rd_atom: c_int,
        max_res_rd_atom: c_int,
        max_qp_init_rd_atom: c_int,
        max_ee_init_rd_atom: c_int,
        atomic_cap: ibv_atomic_cap,
        max_ee: c_int,
        max_rdd: c_int,
        max_mw: c_int,
        max_raw_ipv6_qp: c_int,
        max_raw_ethy_qp: c_int,
        max_mcast_grp: c_int,
        max_mcast_qp_attach: c_int,
        max_total_mcast_qp_attach: c_int,
        max_ah: c_int,
        max_fmr: c_int,
        max_map_per_fmr: c_int,
        max_srq: c_int,
        max_srq_wr: c_int,
        max_srq_sge: c_int,
        max_pkeys: u16,
        local_ca_ack_delay: u8,
        phys_port_cnt: u8,
    }

    /// Input of `query_device_ex`; no bit of the mask is defined.
    ibv_query_device_ex_input {
        comp_mask: u32,
    }

    /// On-demand paging.
    ibv_odp_caps {
        general_caps: u64,
        per_transport_caps: [u32; 3],
    }

    /// TCP segmentation of raw packets.
    ibv_tso_caps {
        max_tso: u32,
        supported_qpts: u32,
    }

    /// Receive-side scaling of raw packets.
    ibv_rss_caps {
        supported_qpts: u32,
        max_rwq_indirection_tables: u32,
        max_rwq_indirection_table_size: u32,
        rx_hash_fields_mask: u64,
        rx_hash_function: u8,
    }

    /// Rate limits of queue pairs.
    ibv_packet_pacing_caps {
        qp_rate_limit_min: u32,
        qp_rate_limit_max: u32,
        supported_qpts: u32,
    }

    /// Tag matching.
    ibv_tm_caps {
        max_rndv_hdr_size: u32,
        max_num_tags: u32,
        flags: u32,
        max_ops: u32,
        max_sge: u32,
    }

    /// Moderation of completion events.
    ibv_cq_moderation_caps {
        max_cq_count: u16,
        /// Microseconds.
        max_cq_period: u16,
    }

    /// Atomic operations over PCI.
    ibv_pci_atomic_caps {
        fetch_add: u16,
        swap: u16,
        compare_swap: u16,
    }

    /// Extended limits of a device.
    ibv_device_attr_ex {
        orig_attr: ibv_device_attr,
        comp_mask: u32,
        odp_caps: ibv_odp_caps,
        completion_timestamp_mask: u64,
        /// Kilohertz.
        hca_core_clock: u64,
        device_cap_flags_ex: u64,
        tso_caps: ibv_tso_caps,
        rss_caps: ibv_rss_caps,
        max_wq_type_rq: u32,
        packet_pacing_caps: ibv_packet_pacing_caps,
        raw_packet_caps: u32,
        tm_caps: ibv_tm_caps,
        cq_mod_caps: ibv_cq_moderation_caps,
        max_dm_size: u64,
        pci_atomic_caps: ibv_pci_atomic_caps,
        xrc_odp_caps: u32,
        phys_port_cnt_ex: u32,
    }

    /// Properties of a port. The symbol `ibv_query_port` writes the first 48 octets only.
    ibv_port_attr {
        state: ibv_port_state,
        max_mtu: ibv_mtu,
        active_mtu: ibv_mtu,
        gid_tbl_len: c_int,
        port_cap_flags: u32,
        max_msg_sz: u32,
        bad_pkey_cntr: u32,
        qkey_viol_cntr: u32,
        pkey_tbl_len: u16,
        lid: u16,
        sm_lid: u16,
        lmc: u8,
        max_vl_num: u8,
        sm_sl: u8,
        subnet_timeout: u8,
        init_type_reply: u8,
        active_width: u8,
        active_speed: u8,
        phys_state: u8,
        link_layer: u8,
        flags: u8,
        port_cap_flags2: u16,
    }

    /// Global route of an address handle.
    ibv_global_route {
        dgid: ibv_gid,
        flow_label: u32,
        sgid_index: u8,
        hop_limit: u8,
        traffic_class: u8,
    }

    /// Address of the destination of a datagram.
    ibv_ah_attr {
        grh: ibv_global_route,
        dlid: u16,
        sl: u8,
        src_path_bits: u8,
        static_rate: u8,
        is_global: u8,
        port_num: u8,
    }

    /// Depths of a queue pair. Creation writes back the actual values.
    ibv_qp_cap {
        max_send_wr: u32,
        max_recv_wr: u32,
        max_send_sge: u32,
        max_recv_sge: u32,
        max_inline_data: u32,
    }

    /// State and properties of a queue pair.
    ibv_qp_attr {
        qp_state: ibv_qp_state,
        cur_qp_state: ibv_qp_state,
        path_mtu: ibv_mtu,
        path_mig_state: ibv_mig_state,
        qkey: u32,
        rq_psn: u32,
        sq_psn: u32,
        dest_qp_num: u32,
        qp_access_flags: c_uint,
        cap: ibv_qp_cap,
        ah_attr: ibv_ah_attr,
        alt_ah_attr: ibv_ah_attr,
        pkey_index: u16,
        alt_pkey_index: u16,
        en_sqd_async_notify: u8,
        sq_draining: u8,
        max_rd_atomic: u8,
        max_dest_rd_atomic: u8,
        min_rnr_timer: u8,
        port_num: u8,
        timeout: u8,
        retry_cnt: u8,
        rnr_retry: u8,
        alt_port_num: u8,
        alt_timeout: u8,
        rate_limit: u32,
    }

    /// Depth of a shared receive queue, and the limit below which it raises an event.
    ibv_srq_attr {
        max_wr: u32,
        max_sge: u32,
        srq_limit: u32,
    }

    /// Moderation of one completion queue's events.
    ibv_moderate_cq {
        cq_count: u16,
        /// Microseconds.
        cq_period: u16,
    }

    /// Input of `modify_cq`.
    ibv_modify_cq_attr {
        attr_mask: u32,
        moderate: ibv_moderate_cq,
    }

    /// Input of `start_poll`; no bit of the mask is defined.
    ibv_poll_cq_attr {
        comp_mask: u32,
    }

    /// Tag of a matched receive.
    ibv_wc_tm_info {
        tag: u64,
        r#priv: u32,
    }

    /// Enhanced connection establishment.
    ibv_ece {
        vendor_id: u32,
        options: u32,
        comp_mask: u32,
    }

    /// Input of `alloc_td`.
    ibv_td_init_attr {
        comp_mask: u32,
    }

    /// Raw clock of a device.
    ibv_values_ex {
        comp_mask: u32,
        raw_clock: libc::timespec,
    }
}

assert_layout!(ibv_gid, 16);
assert_layout!(ibv_gid_entry, 32);
assert_layout!(
    ibv_device_attr, 232, max_mr_size: 80, vendor_id: 96, max_qp: 108, device_cap_flags: 116, max_mw: 176,
    max_srq: 212, max_pkeys: 224, phys_port_cnt: 227,
);
assert_layout!(ibv_device_attr_ex, 400, comp_mask: 232, phys_port_cnt_ex: 396);
assert_layout!(ibv_port_attr, 52, link_layer: 46, flags: 47, port_cap_flags2: 48);
assert_layout!(ibv_ah_attr, 32);
assert_layout!(ibv_qp_cap, 20);
assert_layout!(
    ibv_qp_attr, 144, qp_access_flags: 32, cap: 36, ah_attr: 56, max_rd_atomic: 126, port_num: 129, rate_limit: 136,
);
assert_layout!(ibv_srq_attr, 12);
