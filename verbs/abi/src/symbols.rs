//! Exported symbols with their versions: the one list from which the version script is made, and against which the
//! exports of the library are tested.
//!
//! Programs are linked with immediate binding: every symbol they import must exist when they start, though they never
//! call it. The old bodies of version 1.0, with structures of 2005, are not offered: nothing on Debian 12 binds
//! them.

/// How early a symbol is needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Tier {
    /// Bound by rping, perftest, qperf, fio, ibv_devices or ibv_devinfo.
    First,
    /// Bound by other programs of rdma-core, libfabric, UCX or pyverbs.
    Second,
    /// rsockets, and what the originals export and none of these binds.
    Third,
}

/// A node of the version tree.
#[derive(Clone, Copy, Debug)]
pub struct Version {
    /// Its name in the dynamic section.
    pub name: &'static str,
    /// The version that it extends.
    pub parent: Option<&'static str>,
    /// Symbols of each tier, from [`Tier::First`] on.
    pub symbols: [&'static [&'static str]; 3],
}

/// One exported symbol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Symbol {
    /// Its name.
    pub name: &'static str,
    /// Its version.
    pub version: &'static str,
    /// How early it is needed.
    pub tier: Tier,
}

/// Numbers of rdma-core's private interface between libibverbs and its providers: 34 from release 34 to 55, 59 in
/// release 60, 64 in release 64. Providers call [`PRIVATE`] in each, and register under the number.
pub const PRIVATE_VERSIONS: [&str; 3] =
    ["IBVERBS_PRIVATE_34", "IBVERBS_PRIVATE_59", "IBVERBS_PRIVATE_64"];

/// Public versions, each behind its parent.
pub const VERSIONS: &[Version] = &[
    Version {
        name: "IBVERBS_1.0",
        parent: None,
        symbols: [
            &["ibv_create_comp_channel", "ibv_destroy_comp_channel", "ibv_read_sysfs_file"],
            &[],
            &[
                "ibv_copy_path_rec_from_kern",
                "ibv_copy_path_rec_to_kern",
                "ibv_copy_qp_attr_from_kern",
                "ibv_get_sysfs_path",
                "ibv_rate_to_mult",
                "mult_to_ibv_rate",
            ],
        ],
    },
    Version {
        name: "IBVERBS_1.1",
        parent: Some("IBVERBS_1.0"),
        symbols: [
            &[
                "ibv_ack_cq_events",
                "ibv_alloc_pd",
                "ibv_attach_mcast",
                "ibv_close_device",
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
                "ibv_free_device_list",
                "ibv_get_cq_event",
                "ibv_get_device_guid",
                "ibv_get_device_list",
                "ibv_get_device_name",
                "ibv_modify_qp",
                "ibv_open_device",
                "ibv_query_device",
                "ibv_query_gid",
                "ibv_query_pkey",
                "ibv_query_port",
                "ibv_query_qp",
                "ibv_reg_mr",
                "ibv_wc_status_str",
            ],
            &[
                "ibv_ack_async_event",
                "ibv_fork_init",
                "ibv_get_async_event",
                "ibv_modify_srq",
                "ibv_query_srq",
                "ibv_rereg_mr",
                "ibv_resize_cq",
            ],
            &[
                "ibv_copy_ah_attr_from_kern",
                "ibv_dofork_range",
                "ibv_dontfork_range",
                "ibv_event_type_str",
                "ibv_init_ah_from_wc",
                "ibv_node_type_str",
                "ibv_port_state_str",
                "ibv_rate_to_mbps",
                "ibv_register_driver",
                "ibv_resolve_eth_l2_from_gid",
                "mbps_to_ibv_rate",
            ],
        ],
    },
    Version {
        name: "IBVERBS_1.5",
        parent: Some("IBVERBS_1.1"),
        symbols: [&[], &[], &["ibv_get_pkey_index"]],
    },
    Version {
        name: "IBVERBS_1.6",
        parent: Some("IBVERBS_1.5"),
        symbols: [&["ibv_qp_to_qp_ex"], &[], &[]],
    },
    Version {
        name: "IBVERBS_1.7",
        parent: Some("IBVERBS_1.6"),
        symbols: [&[], &[], &["ibv_reg_mr_iova"]],
    },
    Version {
        name: "IBVERBS_1.8",
        parent: Some("IBVERBS_1.7"),
        symbols: [&["ibv_reg_mr_iova2"], &[], &[]],
    },
    Version {
        name: "IBVERBS_1.9",
        parent: Some("IBVERBS_1.8"),
        symbols: [&[], &["ibv_get_device_index"], &[]],
    },
    Version {
        name: "IBVERBS_1.10",
        parent: Some("IBVERBS_1.9"),
        symbols: [
            &[],
            &[
                "ibv_import_device",
                "ibv_import_mr",
                "ibv_import_pd",
                "ibv_query_ece",
                "ibv_set_ece",
                "ibv_unimport_mr",
                "ibv_unimport_pd",
            ],
            &[],
        ],
    },
    Version {
        name: "IBVERBS_1.11",
        parent: Some("IBVERBS_1.10"),
        symbols: [&["_ibv_query_gid_ex"], &["_ibv_query_gid_table"], &[]],
    },
    Version {
        name: "IBVERBS_1.12",
        parent: Some("IBVERBS_1.11"),
        symbols: [&[], &["ibv_reg_dmabuf_mr"], &[]],
    },
    Version {
        name: "IBVERBS_1.13",
        parent: Some("IBVERBS_1.12"),
        symbols: [&[], &["ibv_import_dm", "ibv_is_fork_initialized", "ibv_unimport_dm"], &[]],
    },
    Version {
        name: "IBVERBS_1.14",
        parent: Some("IBVERBS_1.13"),
        symbols: [&[], &["ibv_query_qp_data_in_order"], &[]],
    },
    Version {
        name: "RDMACM_1.0",
        parent: None,
        symbols: [
            &[
                "rdma_accept",
                "rdma_ack_cm_event",
                "rdma_bind_addr",
                "rdma_connect",
                "rdma_create_event_channel",
                "rdma_create_id",
                "rdma_create_qp",
                "rdma_create_qp_ex",
                "rdma_destroy_event_channel",
                "rdma_destroy_id",
                "rdma_destroy_qp",
                "rdma_disconnect",
                "rdma_event_str",
                "rdma_freeaddrinfo",
                "rdma_get_cm_event",
                "rdma_get_src_port",
                "rdma_getaddrinfo",
                "rdma_listen",
                "rdma_reject",
                "rdma_resolve_addr",
                "rdma_resolve_route",
                "rdma_set_option",
                "rpoll",
            ],
            &[
                "rdma_create_ep",
                "rdma_create_srq",
                "rdma_destroy_ep",
                "rdma_free_devices",
                "rdma_get_devices",
                "rdma_get_request",
                "rdma_join_multicast",
                "rdma_leave_multicast",
                "rdma_migrate_id",
            ],
            &[
                "raccept",
                "rbind",
                "rclose",
                "rconnect",
                "rdma_create_srq_ex",
                "rdma_destroy_srq",
                "rdma_get_dst_port",
                "rdma_get_local_addr",
                "rdma_get_peer_addr",
                "rdma_notify",
                "rfcntl",
                "rgetpeername",
                "rgetsockname",
                "rgetsockopt",
                "riomap",
                "riounmap",
                "riowrite",
                "rlisten",
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
        ],
    },
    Version {
        name: "RDMACM_1.1",
        parent: Some("RDMACM_1.0"),
        symbols: [&[], &["rdma_join_multicast_ex"], &[]],
    },
    Version {
        name: "RDMACM_1.2",
        parent: Some("RDMACM_1.1"),
        symbols: [&["rdma_establish", "rdma_init_qp_attr"], &[], &[]],
    },
    Version {
        name: "RDMACM_1.3",
        parent: Some("RDMACM_1.2"),
        symbols: [&[], &["rdma_get_remote_ece", "rdma_set_local_ece"], &["rdma_reject_ece"]],
    },
];

/// Functions of the private interface. A provider that is loaded binds them and calls none but its registration.
pub const PRIVATE: &[&str] = &[
    "__ioctl_final_num_attrs",
    "__verbs_log",
    "_verbs_init_and_alloc_context",
    "execute_ioctl",
    "ibv_cmd_advise_mr",
    "ibv_cmd_alloc_dm",
    "ibv_cmd_alloc_mw",
    "ibv_cmd_alloc_pd",
    "ibv_cmd_attach_mcast",
    "ibv_cmd_close_xrcd",
    "ibv_cmd_create_ah",
    "ibv_cmd_create_counters",
    "ibv_cmd_create_cq",
    "ibv_cmd_create_cq_ex",
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
    "ibv_cmd_destroy_counters",
    "ibv_cmd_destroy_cq",
    "ibv_cmd_destroy_flow",
    "ibv_cmd_destroy_flow_action",
    "ibv_cmd_destroy_qp",
    "ibv_cmd_destroy_rwq_ind_table",
    "ibv_cmd_destroy_srq",
    "ibv_cmd_destroy_wq",
    "ibv_cmd_detach_mcast",
    "ibv_cmd_free_dm",
    "ibv_cmd_get_context",
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
    "ibv_cmd_query_context",
    "ibv_cmd_query_device_any",
    "ibv_cmd_query_mr",
    "ibv_cmd_query_port",
    "ibv_cmd_query_qp",
    "ibv_cmd_query_srq",
    "ibv_cmd_read_counters",
    "ibv_cmd_reg_dm_mr",
    "ibv_cmd_reg_dmabuf_mr",
    "ibv_cmd_reg_mr",
    "ibv_cmd_req_notify_cq",
    "ibv_cmd_rereg_mr",
    "ibv_cmd_resize_cq",
    "ibv_read_ibdev_sysfs_file",
    "verbs_init_cq",
    "verbs_open_device",
    "verbs_set_ops",
    "verbs_uninit_context",
];

/// Registration of a provider, one name for each of [`PRIVATE_VERSIONS`].
pub const REGISTRATIONS: [&str; 3] =
    ["verbs_register_driver_34", "verbs_register_driver_59", "verbs_register_driver_64"];

/// The one variable of the private interface, a `bool`.
pub const PRIVATE_VARIABLE: &str = "verbs_allow_disassociate_destroy";

/// The one function of the private interface that programs call.
pub const PRIVATE_IN_USE: &str = "ibv_query_gid_type";

const TIERS: [Tier; 3] = [Tier::First, Tier::Second, Tier::Third];

/// Every exported symbol, the public ones first.
pub fn symbols() -> impl Iterator<Item = Symbol> {
    let private = |tier| move |name| Symbol { name, version: PRIVATE_VERSIONS[0], tier };
    let public = VERSIONS.iter().flat_map(|version| {
        let tiers = version.symbols.iter().zip(TIERS);
        tiers.flat_map(move |(names, tier)| {
            names.iter().map(move |&name| Symbol { name, version: version.name, tier })
        })
    });
    public
        .chain([PRIVATE_IN_USE].into_iter().map(private(Tier::First)))
        .chain(PRIVATE.iter().copied().map(private(Tier::Third)))
        .chain(REGISTRATIONS.into_iter().map(private(Tier::Third)))
        .chain([PRIVATE_VARIABLE].into_iter().map(private(Tier::Third)))
}

/// Names and parents of all versions, parents first.
pub fn versions() -> impl Iterator<Item = (&'static str, Option<&'static str>)> {
    let public = VERSIONS.iter().map(|version| (version.name, version.parent));
    public.chain(PRIVATE_VERSIONS.into_iter().map(|name| (name, None)))
}
