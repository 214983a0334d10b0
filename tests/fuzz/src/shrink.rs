//! Reduction of a failing script to the operations that the failure needs.

use std::panic;

use crate::{
    model::run,
    script::{Op, Setup},
};

/// Class of a run's failure: the start of the panic message, without its numbers. `None` if the run passes.
pub fn failure(setup: &Setup, ops: &[Op]) -> Option<String> {
    let panic = panic::catch_unwind(|| run(setup, ops)).err()?;
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("?");
    let parts: Vec<_> = text.split([':', '\n', '{']).take(2).collect();
    Some(parts.concat().chars().filter(|it| !it.is_ascii_digit()).collect())
}

/// Removes the operations that the same failure does not need. A script that passes is unchanged.
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
