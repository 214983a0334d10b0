//! A failing script, cut down to what the failure needs.

use std::panic;

use crate::{
    model::run,
    script::{Op, Setup},
};

/// How a run fails: the beginning of what the panic says, without its numbers. `None`: it does not.
pub fn failure(setup: &Setup, ops: &[Op]) -> Option<String> {
    let panic = panic::catch_unwind(|| run(setup, ops)).err()?;
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("?");
    let parts: Vec<_> = text.split([':', '\n', '{']).take(2).collect();
    Some(parts.concat().chars().filter(|it| !it.is_ascii_digit()).collect())
}

/// Leaves out what the same failure does not need. A script that does not fail stays as it is.
pub fn shrink(setup: &Setup, mut ops: Vec<Op>) -> Vec<Op> {
    let hook = panic::take_hook();
    panic::set_hook(Box::new(|_| {}));
    let first = failure(setup, &ops);
    let mut chunk = if first.is_some() { ops.len().div_ceil(2) } else { 0 };
    while chunk > 0 {
        let mut at = 0;
        while at < ops.len() {
            let mut fewer = ops.clone();
            fewer.drain(at..ops.len().min(at + chunk));
            if failure(setup, &fewer) == first {
                ops = fewer;
            } else {
                at += chunk;
            }
        }
        chunk /= 2;
    }
    panic::set_hook(hook);
    ops
}
