//! The commands, one module each.

pub mod capture;
pub mod completions;
pub mod doctor;
pub mod hand_over;
pub mod judge;
pub mod lab;
pub mod man_pages;
pub mod metrics;
pub mod nc;
pub mod perf;
pub mod playground;
pub mod plot;
pub mod rping;
pub mod run;
pub mod serve;
pub mod ss;
pub mod top;
pub mod wire;
pub mod wireshark_profile;
