//! `log`: a guest's lines go to `tracing` under the target `plugin`, with the plugin, tenant and request that they
//! belong to. Bytes are capped per call, and per second for all calls of a plugin, of which each tenant has its share
//! (`log_rate.rs`); what goes over is counted and reported in one line, so that a guest can neither flood the log nor fall silent unnoticed. Of a request of which nothing
//! may be kept there is the line, and not what it says. Control characters are escaped: a line stays a line. What counts is
//! what a line takes in the log, escapes and all.

use crate::bindings::tidegate::plugin::log::{Attrs, Host, Level};
use crate::state::HostState;
use metrics::counter;
use std::borrow::Cow;
use std::fmt::Write;
use std::time::Instant;
use tidegate_types::Retention;

/// The least that a line counts for, whatever little it says.
const LINE_BYTES: usize = 64;
/// Fields of a line; it says how many more there were.
const MAX_FIELDS: usize = 64;

/// What a guest may still log in this call.
pub(crate) struct LogBudget {
    cap: usize,
    left: usize,
    dropped_lines: u64,
    dropped_bytes: usize,
}

impl LogBudget {
    pub(crate) fn new(cap: usize) -> Self {
        Self { cap, left: cap, dropped_lines: 0, dropped_bytes: 0 }
    }

    /// Whether a line of this many bytes may be written; counts it either way.
    pub(crate) fn take(&mut self, bytes: usize) -> bool {
        match self.left.checked_sub(bytes) {
            Some(left) => {
                self.left = left;
                true
            }
            None => {
                // Once over, nothing more of this call is logged: lines out of order mislead.
                self.left = 0;
                self.dropped_lines += 1;
                self.dropped_bytes += bytes;
                false
            }
        }
    }

    /// Ends a call: lines and bytes that were dropped, when any were.
    pub(crate) fn refill(&mut self) -> Option<(u64, usize)> {
        let dropped = (self.dropped_lines > 0).then_some((self.dropped_lines, self.dropped_bytes));
        *self = Self::new(self.cap);
        dropped
    }
}

impl Host for HostState {
    fn write(&mut self, level: Level, message: String, fields: Attrs) -> wasmtime::Result<()> {
        self.meter.act()?;
        let bytes = written_bytes(&message) + fields_bytes(&fields);
        if self.may_log(bytes) {
            match self.retention {
                Retention::Kept => self.emit(level, &escape(&message), &join(&fields)),
                Retention::Nothing => self.emit(level, &left_out(bytes), ""),
            }
        }
        Ok(())
    }
}

impl HostState {
    /// Whether a line of this many bytes may be written.
    fn may_log(&mut self, bytes: usize) -> bool {
        let bytes = bytes.max(LINE_BYTES);
        if !self.log.take(bytes) {
            return false;
        }
        let may = self.within_rate(bytes, 1);
        if !may {
            self.count_dropped(1);
        }
        may
    }

    /// Whether the plugin's calls together may log a line of this tenant that stands for so many. What they left out in the
    /// second before is said first, of each tenant.
    fn within_rate(&self, bytes: usize, lines: u64) -> bool {
        let rate = &self.blueprint.log_rate;
        let ruling = rate.take(&self.tenant, bytes, lines, Instant::now());
        for (tenant, left_out) in &ruling.left_out {
            let most = rate.bytes_per_s();
            let message = format!(
                "{left_out} log lines are left out: all calls of this plugin together log more than {most} bytes a second, and \
                 this tenant's more than its share of them"
            );
            self.emit_of(tenant.as_str(), "", Level::Warn, &message, "");
        }
        ruling.is_within
    }

    fn count_dropped(&self, lines: u64) {
        counter!("tidegate_plugin_log_lines_dropped_total", "plugin" => self.blueprint.name.to_string())
            .increment(lines);
    }

    fn emit(&self, level: Level, message: &str, fields: &str) {
        let request = self.request.as_ref().map_or("", |id| id.as_str());
        self.emit_of(self.tenant.as_str(), request, level, message, fields);
    }

    fn emit_of(&self, tenant: &str, request: &str, level: Level, message: &str, fields: &str) {
        let plugin = self.blueprint.name.as_ref();
        macro_rules! event {
            ($level:ident) => {
                tracing::event!(target: "plugin", tracing::Level::$level, plugin, tenant, request, fields, "{message}")
            };
        }
        match level {
            Level::Debug => event!(DEBUG),
            Level::Info => event!(INFO),
            Level::Warn => event!(WARN),
            Level::Error => event!(ERROR),
        }
    }

    /// A line of the host's own about this guest, within the same budget. It may quote the guest.
    pub(crate) fn complain(&mut self, message: &str) {
        let bytes = written_bytes(message);
        if self.may_log(bytes) {
            let left_out = (self.retention == Retention::Nothing).then(|| left_out(bytes));
            self.emit(Level::Warn, left_out.as_deref().unwrap_or(message), "");
        }
    }

    /// Ends a call: says what the budget cut off.
    pub(crate) fn settle_log(&mut self) {
        let cap = self.blueprint.limits.log_bytes;
        if let Some((lines, bytes)) = self.log.refill() {
            self.count_dropped(lines);
            let message = format!("{lines} log lines of {bytes} bytes are over this call's log_bytes = {cap}");
            if self.within_rate(message.len(), lines) {
                self.emit(Level::Warn, &message, "");
            }
        }
    }
}

/// Stands for a line of a request of which nothing may be kept.
fn left_out(bytes: usize) -> String {
    format!("{bytes} bytes are left out, since nothing of this request may be kept")
}

/// A guest's words without the characters that would begin another line, or colour it.
pub fn escape(text: &str) -> Cow<'_, str> {
    if !text.contains(char::is_control) {
        return Cow::Borrowed(text);
    }
    let mut escaped = String::with_capacity(text.len() + 8);
    for character in text.chars() {
        if character.is_control() {
            escaped.extend(character.escape_default());
        } else {
            escaped.push(character);
        }
    }
    Cow::Owned(escaped)
}

/// Bytes of what a plugin said that stand in a line of the host's own; the plugin's lines, which have a budget, may be longer.
const MAX_SAID_BYTES: usize = 1024;

/// A guest's words as a part of one line of the log, however long they are and whatever is in them.
pub fn for_line(said: &str) -> Cow<'_, str> {
    let escaped = escape(said);
    if escaped.len() <= MAX_SAID_BYTES {
        return escaped;
    }
    let end = escaped.floor_char_boundary(MAX_SAID_BYTES);
    Cow::Owned(format!("{}... ({} bytes more)", &escaped[..end], escaped.len() - end))
}

/// What an escaped text takes in a log that quotes it: as JSON does, or as a field of a line is.
fn written_bytes(text: &str) -> usize {
    let bytes = |character: char| match character {
        '\'' => 1,
        '"' | '\\' => 2,
        _ if character.is_control() => 1 + character.escape_default().len(),
        // Of what is not seen a field has the number.
        _ => character.len_utf8().max(character.escape_debug().len()),
    };
    text.chars().map(bytes).sum()
}

/// What the fields that are written take, each with `=` and a space.
fn fields_bytes(fields: &Attrs) -> usize {
    let bytes = |(key, value): &(String, String)| written_bytes(key) + written_bytes(value) + 2;
    fields.iter().take(MAX_FIELDS).map(bytes).sum()
}

fn join(fields: &Attrs) -> String {
    let mut joined = String::new();
    for (key, value) in fields.iter().take(MAX_FIELDS) {
        let space = if joined.is_empty() { "" } else { " " };
        let _ = write!(joined, "{space}{}={}", escape(key), escape(value));
    }
    let left_out = fields.len().saturating_sub(MAX_FIELDS);
    if left_out > 0 {
        let _ = write!(joined, " ({left_out} more fields are left out)");
    }
    joined
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_plugin_says_is_part_of_one_line() {
        assert_eq!(for_line("not today"), "not today");
        assert_eq!(for_line("no\nWARN forged"), "no\\nWARN forged");
        let long = for_line(&"é".repeat(1 << 20)).into_owned();
        assert!(long.len() < 1100 && long.ends_with("... (2096128 bytes more)"), "{long}");
    }

    #[test]
    fn a_line_over_the_budget_is_counted_and_ends_the_calls_log() {
        let mut budget = LogBudget::new(10);
        assert!(budget.take(6));
        assert!(!budget.take(5));
        assert!(!budget.take(1), "nothing follows a dropped line");
        assert_eq!(budget.refill(), Some((2, 6)));
        assert_eq!(budget.refill(), None);
        assert!(budget.take(10));
    }

    #[test]
    fn control_characters_cannot_forge_a_line() {
        assert_eq!(escape("plain"), "plain");
        assert_eq!(escape("a\nERROR b\u{1b}[31m"), "a\\nERROR b\\u{1b}[31m");
    }

    #[test]
    fn what_counts_is_what_a_line_takes_in_the_log() {
        for text in ["plain", "a\nb", "\u{1b}\u{0}", "\"quoted\" \\", "é\u{85}"] {
            let quoted = serde_json::to_string(&escape(text)).unwrap();
            assert_eq!(written_bytes(text), quoted.len() - 2, "{quoted}");
        }
        assert_eq!(written_bytes("it's\u{200b}"), format!("{:?}", "it's\u{200b}").len() - 2);
        let fields: Attrs = vec![(String::new(), String::new()); 3];
        assert_eq!((fields_bytes(&fields), join(&fields).as_str()), (6, "= = ="));
    }

    #[test]
    fn a_line_has_so_many_fields_and_says_how_many_more_there_were() {
        let fields: Attrs = (0..1000).map(|n| (n.to_string(), String::new())).collect();
        let joined = join(&fields);
        assert!(joined.ends_with(" 63= (936 more fields are left out)"), "{joined}");
        assert_eq!(fields_bytes(&fields), fields_bytes(&fields[..MAX_FIELDS].to_vec()));
        assert_eq!(join(&fields[..MAX_FIELDS].to_vec()), joined.split(" (").next().unwrap());
    }
}
