//! C interface that flue does not implement: additions of later releases of rdma-core to the public interface,
//! and macros for more of them.
//!
//! Each kind of function reports EOPNOTSUPP in its own way. The calling convention of C allows them to ignore their
//! arguments.

/// Defines functions that return EOPNOTSUPP.
macro_rules! status {
    ($($name:ident)*) => {
        $(
            pub(crate) extern "C" fn $name() -> std::ffi::c_int {
                libc::EOPNOTSUPP
            }
        )*
    };
}

/// Defines functions that return -1 and set errno to EOPNOTSUPP.
macro_rules! number {
    ($($name:ident)*) => {
        $(
            pub(crate) extern "C" fn $name() -> std::ffi::c_int {
                crate::guard::set_errno(crate::guard::Errno(libc::EOPNOTSUPP));
                -1
            }
        )*
    };
}

/// Defines functions that return null and set errno to EOPNOTSUPP.
macro_rules! pointer {
    ($($name:ident)*) => {
        $(
            pub(crate) extern "C" fn $name() -> *mut std::ffi::c_void {
                crate::guard::set_errno(crate::guard::Errno(libc::EOPNOTSUPP));
                std::ptr::null_mut()
            }
        )*
    };
}

/// Defines functions that do nothing.
macro_rules! nothing {
    ($($name:ident)*) => {
        $(
            pub(crate) extern "C" fn $name() {}
        )*
    };
}

pub(crate) use {nothing, pointer, status};

status! {
    _ibv_query_comp_cntr_caps
    ibv_dealloc_dmah
    ibv_destroy_comp_cntr
    ibv_inc_comp_cntr
    ibv_inc_err_comp_cntr
    ibv_qp_attach_comp_cntr
    ibv_read_comp_cntr
    ibv_read_err_comp_cntr
    ibv_set_comp_cntr
    ibv_set_err_comp_cntr
}

number! {
    ibv_dm_export_dmabuf_fd
    ibv_export_buf_dmabuf_fd
    rdma_query_addrinfo
    rdma_resolve_addrinfo
    rdma_write_cm_event
    repoll_create
    repoll_ctl
    repoll_wait
}

pointer! {
    ibv_alloc_buf
    ibv_alloc_dmah
    ibv_create_comp_cntr
    ibv_reg_buf_mr
    ibv_reg_mr_ex
}

nothing! {
    ibv_free_buf
}
