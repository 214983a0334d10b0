//! Exported symbols and their versions: the source of the version script and of the exported stubs of the library.
//!
//! Programs are linked with immediate binding: every imported symbol must exist at startup, even if it is never called.
//! The functions of `IBVERBS_1.0` that have a successor in `IBVERBS_1.1` use structures of 2005 and are not exported: a
//! program that binds them does not start.

/// Node of the version tree.
#[derive(Clone, Copy, Debug)]
pub struct Version {
    /// Name in the dynamic section.
    pub name: &'static str,
    /// Version that it extends.
    pub parent: Option<&'static str>,
    /// Names of its symbols.
    pub symbols: &'static [&'static str],
}

/// Exported symbol under one version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Symbol {
    /// Name.
    pub name: &'static str,
    /// Version.
    pub version: &'static str,
    /// True if references without a version bind to it; true for one version of each name.
    pub is_default: bool,
}

/// Version of rdma-core's private interface between libibverbs and its providers.
#[derive(Clone, Copy, Debug)]
pub struct PrivateVersion {
    /// Name in the dynamic section.
    pub name: &'static str,
    /// Function by which a provider of this version registers.
    pub registration: &'static str,
}

macro_rules! private_versions {
    ($($number:literal)*) => {
        [$(PrivateVersion {
            name: concat!("IBVERBS_PRIVATE_", $number),
            registration: concat!("verbs_register_driver_", $number),
        }),*]
    };
}

/// Versions of the private interface, the newest last: 34 of releases 34 to 56, 57 of 57 and 58, 59 of 59 to 63, 64
/// of 64, and 65 of 65. Each has all of [`PRIVATE`], [`PRIVATE_VARIABLE`], and its own registration.
pub const PRIVATE_VERSIONS: [PrivateVersion; 5] = private_versions![34 57 59 64 65];

/// Public versions, each after its parent.
pub const VERSIONS: &[Version] = &[
    Version {
        name: "IBVERBS_1.0",
        parent: None,
        symbols: &[
            "ibv_copy_path_rec_from_kern",
            "ibv_copy_path_rec_to_kern",
            "ibv_copy_qp_attr_from_kern",
            "ibv_create_comp_channel",
            "ibv_destroy_comp_channel",
            "ibv_get_sysfs_path",
            "ibv_rate_to_mult",
            "ibv_read_sysfs_file",
            "mult_to_ibv_rate",
        ],
    },
    Version {
        name: "IBVERBS_1.1",
        parent: Some("IBVERBS_1.0"),
        symbols: &[
            "ibv_ack_async_event",
            "ibv_ack_cq_events",
            "ibv_alloc_pd",
            "ibv_attach_mcast",
            "ibv_close_device",
            "ibv_copy_ah_attr_from_kern",
            "ibv_create_ah",
            "ibv_create_ah_from_wc",
            "ibv_create_cq",
            "ibv_create_qp",
            "ibv_create_srq",
            "ibv_dealloc_pd",
            "ibv_dereg_mr",
            "ibv_destroy_ah",
            "ibv_destroy_cq",
            "ibv_destroy_qp",
            "ibv_destroy_srq",
            "ibv_detach_mcast",
            "ibv_dofork_range",
            "ibv_dontfork_range",
            "ibv_event_type_str",
            "ibv_fork_init",
            "ibv_free_device_list",
            "ibv_get_async_event",
            "ibv_get_cq_event",
            "ibv_get_device_guid",
            "ibv_get_device_list",
            "ibv_get_device_name",
            "ibv_init_ah_from_wc",
            "ibv_modify_qp",
            "ibv_modify_srq",
            "ibv_node_type_str",
            "ibv_open_device",
            "ibv_port_state_str",
            "ibv_query_device",
            "ibv_query_gid",
            "ibv_query_pkey",
            "ibv_query_port",
            "ibv_query_qp",
            "ibv_query_srq",
            "ibv_rate_to_mbps",
            "ibv_reg_mr",
            "ibv_register_driver",
            "ibv_rereg_mr",
            "ibv_resize_cq",
            "ibv_resolve_eth_l2_from_gid",
            "ibv_wc_status_str",
            "mbps_to_ibv_rate",
        ],
    },
    Version { name: "IBVERBS_1.5", parent: Some("IBVERBS_1.1"), symbols: &["ibv_get_pkey_index"] },
    Version { name: "IBVERBS_1.6", parent: Some("IBVERBS_1.5"), symbols: &["ibv_qp_to_qp_ex"] },
    Version { name: "IBVERBS_1.7", parent: Some("IBVERBS_1.6"), symbols: &["ibv_reg_mr_iova"] },
    Version { name: "IBVERBS_1.8", parent: Some("IBVERBS_1.7"), symbols: &["ibv_reg_mr_iova2"] },
    Version {
        name: "IBVERBS_1.9",
        parent: Some("IBVERBS_1.8"),
        symbols: &["ibv_get_device_index"],
    },
    Version {
        name: "IBVERBS_1.10",
        parent: Some("IBVERBS_1.9"),
        symbols: &[
            "ibv_import_device",
            "ibv_import_mr",
            "ibv_import_pd",
            "ibv_query_ece",
            "ibv_set_ece",
            "ibv_unimport_mr",
            "ibv_unimport_pd",
        ],
    },
    Version {
        name: "IBVERBS_1.11",
        parent: Some("IBVERBS_1.10"),
        symbols: &["_ibv_query_gid_ex", "_ibv_query_gid_table"],
    },
    Version { name: "IBVERBS_1.12", parent: Some("IBVERBS_1.11"), symbols: &["ibv_reg_dmabuf_mr"] },
    Version {
        name: "IBVERBS_1.13",
        parent: Some("IBVERBS_1.12"),
        symbols: &["ibv_import_dm", "ibv_is_fork_initialized", "ibv_unimport_dm"],
    },
    Version {
        name: "IBVERBS_1.14",
        parent: Some("IBVERBS_1.13"),
        symbols: &["ibv_query_qp_data_in_order"],
    },
    Version {
        name: "IBVERBS_1.15",
        parent: Some("IBVERBS_1.14"),
        symbols: &["ibv_alloc_dmah", "ibv_dealloc_dmah", "ibv_reg_mr_ex"],
    },
    Version {
        name: "IBVERBS_1.16",
        parent: Some("IBVERBS_1.15"),
        symbols: &["ibv_dm_export_dmabuf_fd", "ibv_query_port_speed"],
    },
    Version {
        name: "IBVERBS_1.17",
        parent: Some("IBVERBS_1.16"),
        symbols: &["ibv_alloc_buf", "ibv_free_buf", "ibv_reg_buf_mr"],
    },
    Version {
        name: "IBVERBS_1.18",
        parent: Some("IBVERBS_1.17"),
        symbols: &[
            "_ibv_query_comp_cntr_caps",
            "ibv_create_comp_cntr",
            "ibv_destroy_comp_cntr",
            "ibv_export_buf_dmabuf_fd",
            "ibv_inc_comp_cntr",
            "ibv_inc_err_comp_cntr",
            "ibv_qp_attach_comp_cntr",
            "ibv_read_comp_cntr",
            "ibv_read_err_comp_cntr",
            "ibv_set_comp_cntr",
            "ibv_set_err_comp_cntr",
        ],
    },
    Version {
        name: "RDMACM_1.0",
        parent: None,
        symbols: &[
            "raccept",
            "rbind",
            "rclose",
            "rconnect",
            "rdma_accept",
            "rdma_ack_cm_event",
            "rdma_bind_addr",
            "rdma_connect",
            "rdma_create_ep",
            "rdma_create_event_channel",
            "rdma_create_id",
            "rdma_create_qp",
            "rdma_create_qp_ex",
            "rdma_create_srq",
            "rdma_create_srq_ex",
            "rdma_destroy_ep",
            "rdma_destroy_event_channel",
            "rdma_destroy_id",
            "rdma_destroy_qp",
            "rdma_destroy_srq",
            "rdma_disconnect",
            "rdma_event_str",
            "rdma_free_devices",
            "rdma_freeaddrinfo",
            "rdma_get_cm_event",
            "rdma_get_devices",
            "rdma_get_dst_port",
            "rdma_get_request",
            "rdma_get_src_port",
            "rdma_getaddrinfo",
            "rdma_join_multicast",
            "rdma_leave_multicast",
            "rdma_listen",
            "rdma_migrate_id",
            "rdma_notify",
            "rdma_reject",
            "rdma_resolve_addr",
            "rdma_resolve_route",
            "rdma_set_option",
            "rfcntl",
            "rgetpeername",
            "rgetsockname",
            "rgetsockopt",
            "riomap",
            "riounmap",
            "riowrite",
            "rlisten",
            "rpoll",
            "rread",
            "rreadv",
            "rrecv",
            "rrecvfrom",
            "rrecvmsg",
            "rselect",
            "rsend",
            "rsendmsg",
            "rsendto",
            "rsetsockopt",
            "rshutdown",
            "rsocket",
            "rwrite",
            "rwritev",
        ],
    },
    Version {
        name: "RDMACM_1.1",
        parent: Some("RDMACM_1.0"),
        symbols: &["rdma_join_multicast_ex"],
    },
    Version {
        name: "RDMACM_1.2",
        parent: Some("RDMACM_1.1"),
        symbols: &["rdma_establish", "rdma_init_qp_attr"],
    },
    Version {
        name: "RDMACM_1.3",
        parent: Some("RDMACM_1.2"),
        symbols: &["rdma_get_remote_ece", "rdma_reject_ece", "rdma_set_local_ece"],
    },
    Version {
        name: "RDMACM_1.4",
        parent: Some("RDMACM_1.3"),
        symbols: &["rdma_query_addrinfo", "rdma_resolve_addrinfo", "rdma_write_cm_event"],
    },
    Version {
        name: "RDMACM_1.5",
        parent: Some("RDMACM_1.4"),
        symbols: &["repoll_create", "repoll_ctl", "repoll_wait"],
    },
];

/// Functions of the private interface. Programs call `ibv_query_gid_type` and `ibv_wr_opcode_str`; providers bind the
/// others and do not call them.
pub const PRIVATE: &[&str] = &[
    "__ioctl_final_num_attrs",
    "__verbs_log",
    "_verbs_init_and_alloc_context",
    "execute_ioctl",
    "ibv_cmd_advise_mr",
    "ibv_cmd_alloc_dm",
    "ibv_cmd_alloc_dmah",
    "ibv_cmd_alloc_mw",
    "ibv_cmd_alloc_pd",
    "ibv_cmd_attach_mcast",
    "ibv_cmd_close_xrcd",
    "ibv_cmd_create_ah",
    "ibv_cmd_create_comp_cntr",
    "ibv_cmd_create_counters",
    "ibv_cmd_create_cq",
    "ibv_cmd_create_cq_ex",
    "ibv_cmd_create_cq_ex2",
    "ibv_cmd_create_flow",
    "ibv_cmd_create_flow_action_esp",
    "ibv_cmd_create_qp",
    "ibv_cmd_create_qp_ex",
    "ibv_cmd_create_qp_ex2",
    "ibv_cmd_create_rwq_ind_table",
    "ibv_cmd_create_srq",
    "ibv_cmd_create_srq_ex",
    "ibv_cmd_create_wq",
    "ibv_cmd_dealloc_mw",
    "ibv_cmd_dealloc_pd",
    "ibv_cmd_dereg_mr",
    "ibv_cmd_destroy_ah",
    "ibv_cmd_destroy_comp_cntr",
    "ibv_cmd_destroy_counters",
    "ibv_cmd_destroy_cq",
    "ibv_cmd_destroy_flow",
    "ibv_cmd_destroy_flow_action",
    "ibv_cmd_destroy_qp",
    "ibv_cmd_destroy_rwq_ind_table",
    "ibv_cmd_destroy_srq",
    "ibv_cmd_destroy_wq",
    "ibv_cmd_detach_mcast",
    "ibv_cmd_export_dmabuf_fd",
    "ibv_cmd_free_dm",
    "ibv_cmd_free_dmah",
    "ibv_cmd_get_context",
    "ibv_cmd_inc_comp_cntr",
    "ibv_cmd_inc_err_comp_cntr",
    "ibv_cmd_modify_cq",
    "ibv_cmd_modify_flow_action_esp",
    "ibv_cmd_modify_qp",
    "ibv_cmd_modify_qp_ex",
    "ibv_cmd_modify_srq",
    "ibv_cmd_modify_wq",
    "ibv_cmd_open_qp",
    "ibv_cmd_open_xrcd",
    "ibv_cmd_poll_cq",
    "ibv_cmd_post_recv",
    "ibv_cmd_post_send",
    "ibv_cmd_post_srq_recv",
    "ibv_cmd_qp_attach_comp_cntr",
    "ibv_cmd_query_comp_cntr_caps",
    "ibv_cmd_query_context",
    "ibv_cmd_query_device",
    "ibv_cmd_query_device_any",
    "ibv_cmd_query_mr",
    "ibv_cmd_query_port",
    "ibv_cmd_query_port_speed",
    "ibv_cmd_query_qp",
    "ibv_cmd_query_srq",
    "ibv_cmd_read_comp_cntr",
    "ibv_cmd_read_counters",
    "ibv_cmd_read_err_comp_cntr",
    "ibv_cmd_reg_dm_mr",
    "ibv_cmd_reg_dmabuf_mr",
    "ibv_cmd_reg_mr",
    "ibv_cmd_reg_mr_ex",
    "ibv_cmd_req_notify_cq",
    "ibv_cmd_rereg_mr",
    "ibv_cmd_resize_cq",
    "ibv_cmd_set_comp_cntr",
    "ibv_cmd_set_err_comp_cntr",
    "ibv_dmabuf_heap_alloc",
    "ibv_dmabuf_heap_cc_shared_init",
    "ibv_dmabuf_heap_destroy",
    "ibv_dmabuf_heap_free",
    "ibv_query_gid_type",
    "ibv_read_ibdev_sysfs_file",
    "ibv_wr_opcode_str",
    "verbs_init_cq",
    "verbs_open_device",
    "verbs_set_ops",
    "verbs_uninit_context",
];

/// Variable of the private interface, a `bool`.
pub const PRIVATE_VARIABLE: &str = "verbs_allow_disassociate_destroy";

/// Returns every exported symbol under each of its versions, the public ones first.
pub fn symbols() -> impl Iterator<Item = Symbol> {
    let public = VERSIONS.iter().flat_map(|version| {
        let symbol = |&name| Symbol { name, version: version.name, is_default: true };
        version.symbols.iter().map(symbol)
    });
    let newest = PRIVATE_VERSIONS[PRIVATE_VERSIONS.len() - 1].name;
    let private = PRIVATE_VERSIONS.iter().flat_map(move |version| {
        let symbol =
            move |is_default| move |&name| Symbol { name, version: version.name, is_default };
        let shared = PRIVATE.iter().chain([&PRIVATE_VARIABLE]).map(symbol(version.name == newest));
        shared.chain([&version.registration].into_iter().map(symbol(true)))
    });
    public.chain(private)
}

/// Returns names and parents of all versions, parents first.
pub fn versions() -> impl Iterator<Item = (&'static str, Option<&'static str>)> {
    let public = VERSIONS.iter().map(|version| (version.name, version.parent));
    public.chain(PRIVATE_VERSIONS.iter().map(|version| (version.name, None)))
}
