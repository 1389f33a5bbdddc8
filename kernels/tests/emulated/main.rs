//! Every kernel against `device::reference`, run by the emulator on the CPU; and proofs that this catches defects.
#![allow(unsafe_code, reason = "views of plain numbers as bytes")]
#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stdout, reason = "helpers of tests")]

mod numbers;
mod ops;
mod proofs;
mod rig;
