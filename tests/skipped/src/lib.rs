//! Says what was not tested on this machine, and why. Past libtest, which shows to nobody what a passing test prints.

use std::fmt::Arguments;
use std::io::Write;

/// Says that something was not tested, in a line of standard error; takes what `format!` does.
#[macro_export]
macro_rules! skipped {
    ($($what:tt)*) => { $crate::tell(::std::format_args!($($what)*)) };
}

/// What [`skipped!`] calls.
pub fn tell(what: Arguments<'_>) {
    // libtest takes what the printing macros write, not what is written to the stream. Where that is closed, nobody reads.
    drop(writeln!(std::io::stderr(), "NOT TESTED: {what}"));
}
