//! Logs as many lines as the prompt says, each of 100 bytes with a line break in it. The log budget must cut it off,
//! and a line must stay a line.

use tidegate::plugin::log::{Level, write};

kit::misbehave!("floods", |text| {
    for _ in 0..text.parse::<u32>().unwrap_or(0) {
        write(Level::Info, &format!("{:<90}\nforged 789", "line"), &[]);
    }
});
