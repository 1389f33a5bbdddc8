//! What commands print. Whoever reads it may have read enough (`| head`): that ends a command, and nobody needs to be told.

use std::error::Error;
use std::fmt;
use std::io::{self, ErrorKind, Stdout, Write};

/// Standard output, of which is known when nobody reads it any more ([`is_unread`]).
pub fn stdout() -> impl Write {
    Marked(io::stdout())
}

/// Whether a command has ended for that. Other pipes break too, such as the one to a server.
pub fn is_unread(error: &anyhow::Error) -> bool {
    let mut causes = error.chain().filter_map(|cause| cause.downcast_ref::<io::Error>());
    causes.any(|cause| cause.get_ref().is_some_and(|inner| inner.is::<Unread>()))
}

struct Marked(Stdout);

impl Write for Marked {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes).map_err(mark)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush().map_err(mark)
    }
}

fn mark(error: io::Error) -> io::Error {
    if error.kind() == ErrorKind::BrokenPipe { io::Error::new(ErrorKind::BrokenPipe, Unread) } else { error }
}

#[derive(Debug)]
struct Unread;

impl fmt::Display for Unread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("nobody reads standard output any more")
    }
}

impl Error for Unread {}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::Context;

    #[test]
    fn a_broken_pipe_is_standard_outputs_only_where_that_says_so() {
        let failed = |error: io::Error| Err::<(), _>(error).context("while it printed").unwrap_err();
        let broken = || io::Error::from(ErrorKind::BrokenPipe);
        assert!(is_unread(&failed(mark(broken()))));
        assert!(!is_unread(&failed(broken())), "of a connection");
        assert!(!is_unread(&failed(mark(ErrorKind::StorageFull.into()))));
    }
}
