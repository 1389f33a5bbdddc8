//! What a guest writes to the log while a case runs, for whoever reads why the case failed: a trap says that a plugin
//! panicked, and only its log says of what.

use std::collections::VecDeque;
use std::fmt::{Debug, Write};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tracing::field::{Field, Visit};
use tracing::{Event, Metadata, Subscriber};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};

/// The newest lines are kept: what fails ends a case, and a stream guard may log for each of some hundred chunkings.
const KEPT: usize = 20;
/// What the sandbox notes of each line beside what the guest said; the same for every line of a test.
const KNOWN: [&str; 3] = ["plugin", "tenant", "request"];

/// Runs `work` and gives the lines of guests that came from this thread meanwhile, `LEVEL text fields`.
pub(super) fn heard<T>(work: impl FnOnce() -> T) -> (T, Vec<String>) {
    let lines = Lines::default();
    let done = tracing::subscriber::with_default(tracing_subscriber::registry().with(lines.clone()), work);
    let kept = lines.lock().told();
    (done, kept)
}

#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Newest>>);

#[derive(Default)]
struct Newest {
    lines: VecDeque<String>,
    before: usize,
}

impl Lines {
    fn lock(&self) -> MutexGuard<'_, Newest> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Newest {
    fn push(&mut self, line: String) {
        if self.lines.len() == KEPT {
            self.lines.pop_front();
            self.before += 1;
        }
        self.lines.push_back(line);
    }

    fn told(&mut self) -> Vec<String> {
        let left_out = (self.before > 0).then(|| format!("({} lines before these are left out)", self.before));
        left_out.into_iter().chain(self.lines.drain(..)).collect()
    }
}

impl<S: Subscriber> Layer<S> for Lines {
    fn enabled(&self, about: &Metadata<'_>, _: Context<'_, S>) -> bool {
        about.target() == "plugin"
    }

    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let mut line = Line::default();
        event.record(&mut line);
        self.lock().push(format!("{:<5} {}{}", event.metadata().level(), line.message, line.fields));
    }
}

/// An event as text.
#[derive(Default)]
struct Line {
    message: String,
    fields: String,
}

impl Visit for Line {
    fn record_str(&mut self, field: &Field, value: &str) {
        match field.name() {
            // The guest's own fields, joined by the sandbox.
            "fields" if !value.is_empty() => self.fields.push_str(&format!(" {value}")),
            "fields" => {}
            _ => self.record_debug(field, &value),
        }
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        // Writing to a string does not fail.
        let _ = match field.name() {
            "message" => write!(self.message, "{value:?}"),
            name if KNOWN.contains(&name) => Ok(()),
            name => write!(self.fields, " {name}={value:?}"),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_lines_of_plugins_are_kept_and_the_rest_counted() {
        let (done, lines) = heard(|| {
            tracing::error!("of the host");
            for number in 0..KEPT + 3 {
                let (plugin, fields) = ("p", if number % 2 == 0 { "" } else { "key=1" });
                tracing::warn!(target: "plugin", plugin, fields, "line {number}");
            }
            tracing::debug!(target: "plugin", bytes = 7, "the last");
            "done"
        });
        assert_eq!((done, lines.len()), ("done", KEPT + 1));
        assert_eq!(lines[..2], ["(4 lines before these are left out)", "WARN  line 4"]);
        assert_eq!(lines[KEPT - 1..], ["WARN  line 22", "DEBUG the last bytes=7"]);
        assert!(lines.contains(&"WARN  line 21 key=1".to_owned()), "{lines:?}");
    }
}
