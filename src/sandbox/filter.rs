//! Filter of system calls (seccomp).
//!
//! It permits those that a running node makes; any other returns EPERM, so that its caller reports what failed. Calls
//! of the data path are permitted without a condition: the kernel caches that decision, and runs no program for them.
//! The check of the cache remains, tens of nanoseconds per call.
//!
//! Not permitted are, among others: programs and processes (`execve`, `fork`), files (`open`, `rename`, `mount`), other
//! processes (`ptrace`, `kill`), new devices and interfaces to the kernel (`bpf`, `io_uring_setup`, `keyctl`), and
//! executable memory.

use std::{collections::BTreeMap, env::consts::ARCH};

use libc::{c_int, c_long};
use rustix::io::Errno;
use seccompiler::{
    BackendError, BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition,
    SeccompFilter, SeccompRule, apply_filter,
};

use super::Policy;

/// Calls of every process: memory, threads, time, signals, and use of open descriptors.
const COMMON: &[c_long] = &[
    // Memory.
    libc::SYS_brk,
    libc::SYS_madvise,
    libc::SYS_mlock,
    libc::SYS_mremap,
    libc::SYS_munlock,
    libc::SYS_munmap,
    // Threads.
    libc::SYS_exit,
    libc::SYS_exit_group,
    libc::SYS_futex,
    libc::SYS_getcpu,
    libc::SYS_getpid,
    libc::SYS_gettid,
    libc::SYS_membarrier,
    libc::SYS_prctl,
    libc::SYS_prlimit64,
    libc::SYS_rseq,
    libc::SYS_sched_getaffinity,
    libc::SYS_sched_setaffinity,
    libc::SYS_sched_yield,
    libc::SYS_set_robust_list,
    libc::SYS_set_tid_address,
    // Time.
    libc::SYS_clock_getres,
    libc::SYS_clock_gettime,
    libc::SYS_clock_nanosleep,
    libc::SYS_gettimeofday,
    libc::SYS_nanosleep,
    // Signals.
    libc::SYS_restart_syscall,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigpending,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_rt_sigsuspend,
    libc::SYS_rt_sigtimedwait,
    libc::SYS_sigaltstack,
    // Descriptors.
    libc::SYS_close,
    libc::SYS_close_range,
    libc::SYS_dup,
    libc::SYS_dup3,
    libc::SYS_epoll_create1,
    libc::SYS_epoll_ctl,
    libc::SYS_epoll_pwait,
    libc::SYS_epoll_pwait2,
    libc::SYS_eventfd2,
    libc::SYS_fcntl,
    libc::SYS_fdatasync,
    libc::SYS_fstat,
    libc::SYS_fsync,
    libc::SYS_ftruncate,
    libc::SYS_ioctl,
    libc::SYS_lseek,
    libc::SYS_newfstatat,
    libc::SYS_pipe2,
    libc::SYS_ppoll,
    libc::SYS_pread64,
    libc::SYS_preadv,
    libc::SYS_pwrite64,
    libc::SYS_pwritev,
    libc::SYS_read,
    libc::SYS_readv,
    libc::SYS_statx,
    libc::SYS_write,
    libc::SYS_writev,
    // Sockets that are open, and pairs.
    libc::SYS_getpeername,
    libc::SYS_getsockname,
    libc::SYS_getsockopt,
    libc::SYS_recvfrom,
    libc::SYS_recvmsg,
    libc::SYS_sendmsg,
    libc::SYS_sendto,
    libc::SYS_shutdown,
    libc::SYS_socketpair,
    // Others.
    libc::SYS_getrandom,
    libc::SYS_getresuid,
    libc::SYS_geteuid,
    libc::SYS_getuid,
    libc::SYS_getrusage,
    libc::SYS_sysinfo,
    libc::SYS_times,
    libc::SYS_uname,
];

/// Older forms of the same calls.
#[cfg(target_arch = "x86_64")]
const OLDER: &[c_long] =
    &[libc::SYS_arch_prctl, libc::SYS_dup2, libc::SYS_epoll_wait, libc::SYS_poll, libc::SYS_time];
#[cfg(not(target_arch = "x86_64"))]
const OLDER: &[c_long] = &[];

/// Removal of the control socket, and its clients.
const CONTROL: &[c_long] = &[
    libc::SYS_accept4,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_unlink,
    libc::SYS_unlinkat,
];

/// Use of IP sockets. [`libc::SYS_socket`] has a condition.
const SOCKETS: &[c_long] = &[
    libc::SYS_bind,
    libc::SYS_connect,
    libc::SYS_listen,
    libc::SYS_recvmmsg,
    libc::SYS_sendmmsg,
    libc::SYS_setsockopt,
];

/// Supervision of a program. [`libc::SYS_openat`] has a condition.
const LAUNCHER: &[c_long] = &[
    libc::SYS_getdents64,
    libc::SYS_getpgid,
    libc::SYS_getppid,
    libc::SYS_kill,
    libc::SYS_pidfd_open,
    libc::SYS_pidfd_send_signal,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_readlink,
    libc::SYS_readlinkat,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_rmdir,
    libc::SYS_setpgid,
    libc::SYS_wait4,
    libc::SYS_waitid,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_unlink,
    libc::SYS_unlinkat,
];

/// Condition on arguments of a call: in each, the bits of a mask have a value.
struct Condition {
    call: c_long,
    /// Number of the argument, mask, and value.
    arguments: Vec<(u8, c_int, c_int)>,
}

impl Condition {
    fn new(call: c_long, arguments: &[(u8, c_int, c_int)]) -> Self {
        Self { call, arguments: arguments.to_vec() }
    }

    fn rule(&self) -> Result<SeccompRule, BackendError> {
        let conditions = self.arguments.iter().map(|&(argument, mask, value)| {
            let [mask, value] = [mask, value].map(|bits| u64::from(bits.cast_unsigned()));
            let compare = SeccompCmpOp::MaskedEq(mask);
            SeccompCondition::new(argument, SeccompCmpArgLen::Dword, compare, value)
        });
        SeccompRule::new(conditions.collect::<Result<_, _>>()?)
    }
}

/// Bits in which the address families of IPv4 (2) and IPv6 (10) are equal, with all higher bits.
const FAMILY_MASK: c_int = !(libc::AF_INET ^ libc::AF_INET6);
/// Flags of open(2) by which a file is created or changed.
const WRITE_FLAGS: c_int = libc::O_ACCMODE | libc::O_CREAT | libc::O_TRUNC;

/// Returns the conditions of a policy.
fn conditions(policy: Policy<'_>) -> Vec<Condition> {
    let own = rustix::process::getpid().as_raw_nonzero().get();
    let mut conditions = vec![
        // A thread, not a process.
        Condition::new(libc::SYS_clone, &[(0, libc::CLONE_THREAD, libc::CLONE_THREAD)]),
        // No file or socket, and no code.
        Condition::new(
            libc::SYS_mmap,
            &[(2, libc::PROT_EXEC, 0), (3, libc::MAP_ANONYMOUS, libc::MAP_ANONYMOUS)],
        ),
        Condition::new(libc::SYS_mprotect, &[(2, libc::PROT_EXEC, 0)]),
        // abort(3), and signals that the process raises.
        Condition::new(libc::SYS_tgkill, &[(0, !0, own)]),
    ];
    match policy {
        Policy::Node { .. } => {
            // The packet socket that recycles pages (offload-engine/src/link/packet.rs), by the length of its address.
            // Of the other sockets, those of a pair can be bound to a short path, which Landlock refuses.
            let address_bytes = size_of::<libc::sockaddr_ll>() as c_int;
            conditions.push(Condition::new(libc::SYS_bind, &[(2, !0, address_bytes)]));
        }
        Policy::Sockets { .. } => {
            conditions.push(Condition::new(libc::SYS_socket, &[(0, FAMILY_MASK, libc::AF_INET)]));
        }
        Policy::Launcher => {
            conditions.push(Condition::new(libc::SYS_openat, &[(2, WRITE_FLAGS, libc::O_RDONLY)]));
        }
    }
    conditions
}

/// Returns the calls without a condition.
fn calls(policy: Policy<'_>) -> impl Iterator<Item = c_long> {
    let own: &[&[c_long]] = match policy {
        Policy::Node { .. } => &[COMMON, OLDER, CONTROL],
        Policy::Sockets { .. } => &[COMMON, OLDER, CONTROL, SOCKETS],
        Policy::Launcher => &[COMMON, OLDER, LAUNCHER],
    };
    own.iter().copied().flatten().copied()
}

fn denied(errno: Errno) -> SeccompAction {
    SeccompAction::Errno(errno.raw_os_error().unsigned_abs())
}

/// Returns the programs of the filter, in the order of their installation.
fn programs(policy: Policy<'_>) -> Result<[BpfProgram; 2], BackendError> {
    let architecture = ARCH.try_into()?;
    let mut rules: BTreeMap<_, Vec<_>> = calls(policy).map(|call| (call, Vec::new())).collect();
    // Denied by the other program.
    rules.insert(libc::SYS_clone3, Vec::new());
    for condition in conditions(policy) {
        rules.entry(condition.call).or_default().push(condition.rule()?);
    }
    let permitted =
        SeccompFilter::new(rules, denied(Errno::PERM), SeccompAction::Allow, architecture)?;
    // Its flags are in memory, which a filter cannot read. The C library uses clone(2) instead, after this error only.
    let absent = BTreeMap::from([(libc::SYS_clone3, Vec::new())]);
    let absent =
        SeccompFilter::new(absent, SeccompAction::Allow, denied(Errno::NOSYS), architecture)?;
    Ok([absent.try_into()?, permitted.try_into()?])
}

/// Applies the filter of a policy to the calling thread.
///
/// # Errors
/// The kernel or the architecture does not support the filter.
pub(super) fn apply(policy: Policy<'_>) -> Result<(), String> {
    let programs = programs(policy).map_err(|error| error.to_string())?;
    // The second program denies the installation of another one.
    programs.iter().try_for_each(|it| apply_filter(it)).map_err(|error| error.to_string())
}

/// Applies the filter of a node in a thread.
///
/// # Errors
/// The kernel or the architecture does not support the filter.
pub fn kernel_support() -> Result<String, String> {
    let applied = std::thread::spawn(|| apply(Policy::Node { control: None })).join();
    applied.map_err(|_| "the thread panicked".to_owned())??;
    Ok("filter of system calls supported".into())
}
