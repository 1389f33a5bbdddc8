//! What is said to a client whose request never became one: its head did not come in time, or is none that HTTP knows. By
//! itself HTTP/1's implementation says nothing to the first and a bare status to the second; here both read OpenAI's shape
//! and an id, and leave a record.
//!
//! It stands between HTTP/1 and the socket that bounds its waits, so that it speaks through TLS too.

use crate::check;
use crate::ids;
use crate::receive;
use crate::record;
use crate::socket::Activity;
use bytes::{Buf, Bytes};
use hyper::StatusCode;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use tidegate_types::{Fault, Reject, RejectKind};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// The stream of a connection that speaks HTTP/1.
pub(crate) struct LastWords<S> {
    stream: S,
    activity: Arc<Activity>,
    /// How many requests had begun when the last bytes came.
    heard: Option<u64>,
    /// How many requests had begun when HTTP had last written out all that it had taken of answers.
    answered: u64,
    /// What is left to say to a client that was too slow.
    too_slow: Option<Bytes>,
    /// What is left to say for so many bytes of HTTP's own.
    instead: Option<(Bytes, usize)>,
    /// Bytes that a body may have.
    max_body_bytes: usize,
    /// What the head that is heard announced.
    announced: Announced,
}

/// What the lines of a head announce, as they arrive.
#[derive(Default)]
struct Announced {
    /// A body of a length that HTTP takes for none.
    too_much: bool,
    /// The line whose end has not arrived, as far as it counts.
    line: Vec<u8>,
}

impl Announced {
    /// Longer than the line of a length is.
    const MOST_OF_LINE: usize = 128;

    fn hear(&mut self, bytes: &[u8]) {
        let mut from = 0;
        for end in memchr::memchr_iter(b'\n', bytes) {
            self.go_on(&bytes[from..end]);
            self.too_much |= check::announces_too_much(&self.line);
            self.line.clear();
            from = end + 1;
        }
        self.go_on(&bytes[from..]);
    }

    fn go_on(&mut self, part: &[u8]) {
        let room = Self::MOST_OF_LINE - self.line.len();
        self.line.extend_from_slice(&part[..part.len().min(room)]);
    }

    fn forget(&mut self) {
        self.too_much = false;
        self.line.clear();
    }
}

impl<S> LastWords<S> {
    pub(crate) fn new(stream: S, activity: Arc<Activity>, max_body_bytes: usize) -> Self {
        let (heard, answered, too_slow, instead, announced) = (None, 0, None, None, Announced::default());
        Self { stream, activity, heard, answered, too_slow, instead, max_body_bytes, announced }
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncRead for LastWords<S> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if this.too_slow.is_none() {
            let before = buffer.filled().len();
            let outcome = ready!(Pin::new(&mut this.stream).poll_read(cx, buffer));
            let begun = this.activity.begun();
            let timed_out = outcome.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::TimedOut);
            // What HTTP still has to write of an answer is not ended by another in its middle.
            if !timed_out || this.heard != Some(begun) || this.answered != begun {
                if buffer.filled().len() > before {
                    // What was heard before was the head of a request that has begun.
                    if this.heard.replace(begun) != Some(begun) {
                        this.announced.forget();
                    }
                    // What comes while a request runs is its body, which may be long and is none of this.
                    if this.activity.is_idle() {
                        this.announced.hear(&buffer.filled()[before..]);
                    }
                }
                return Poll::Ready(outcome);
            }
            let message = "the request's head did not arrive in time";
            this.too_slow = Some(whole(&Reject::new(RejectKind::RequestTimeout, Fault::Client, message)));
        }
        if let Some(words) = &mut this.too_slow {
            ready!(say(&mut this.stream, cx, words))?;
            ready!(Pin::new(&mut this.stream).poll_flush(cx))?;
        }
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for LastWords<S> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        if this.instead.is_none() {
            let too_large = this.announced.too_much.then_some(this.max_body_bytes);
            this.instead = explained(bytes, too_large).map(|words| (words, bytes.len()));
        }
        let Some((words, instead_of)) = &mut this.instead else {
            return Pin::new(&mut this.stream).poll_write(cx, bytes);
        };
        ready!(say(&mut this.stream, cx, words))?;
        let written = *instead_of;
        this.instead = None;
        Poll::Ready(Ok(written))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let first = slices.iter().find(|slice| !slice.is_empty());
        match first.filter(|head| self.instead.is_some() || is_bare(head)) {
            Some(head) => self.poll_write(cx, head),
            None => Pin::new(&mut self.get_mut().stream).poll_write_vectored(cx, slices),
        }
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        ready!(Pin::new(&mut this.stream).poll_flush(cx))?;
        // HTTP comes to this once nothing is left to write.
        if this.activity.is_idle() {
            this.answered = this.activity.begun();
        }
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(cx)
    }
}

fn say<S: AsyncWrite + Unpin>(stream: &mut S, cx: &mut Context<'_>, words: &mut Bytes) -> Poll<io::Result<()>> {
    while !words.is_empty() {
        match ready!(Pin::new(&mut *stream).poll_write(cx, words))? {
            0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
            written => words.advance(written),
        }
    }
    Poll::Ready(Ok(()))
}

/// What the implementation says of an answer that it makes by itself; all others have an id.
const EMPTY: &str = "content-length: 0\r\n";

/// Whether HTTP made this head by itself. Nothing else that is written looks so: bodies are JSON and events, where no text
/// has an end of a line.
fn is_bare(head: &[u8]) -> bool {
    let has = |what: &[u8]| head.windows(what.len()).any(|window| window == what);
    head.starts_with(b"HTTP/1.1 4") && head.ends_with(b"\r\n\r\n") && has(EMPTY.as_bytes()) && !has(b"x-request-id")
}

/// The same answer with the reason; another where the reason is a body that is larger than `too_large`.
fn explained(head: &[u8], too_large: Option<usize>) -> Option<Bytes> {
    let head = str::from_utf8(head).ok().filter(|head| is_bare(head.as_bytes()))?;
    if let Some(limit) = too_large {
        return Some(whole(&receive::too_large(limit)));
    }
    let status = head.split(' ').nth(1).and_then(|status| StatusCode::from_bytes(status.as_bytes()).ok())?;
    let reject = match status {
        StatusCode::BAD_REQUEST => {
            let message = "the request's head is not written as HTTP has it";
            Reject::new(RejectKind::Invalid, Fault::Client, message).code("invalid_http")
        }
        _ => check::too_long(),
    };
    let head = head.strip_suffix("\r\n").unwrap_or(head).replacen(EMPTY, "", 1);
    Some(ended(&head, status, &reject))
}

/// A whole answer to who is not heard, after which the connection is closed; with its record.
pub(crate) fn whole(reject: &Reject) -> Bytes {
    let status = StatusCode::from_u16(tidegate_wire::status(reject.kind)).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let mut head = format!("HTTP/1.1 {status}\r\nconnection: close\r\n");
    if let Some(seconds) = reject.retry_after_s {
        head.push_str(&format!("retry-after: {seconds}\r\n"));
    }
    ended(&head, status, reject)
}

/// Ends a head with what is alike in all of them, and adds the body.
fn ended(head: &str, status: StatusCode, reject: &Reject) -> Bytes {
    let id = ids::request_id(None, &ids::unique());
    record::without_request(&id, status, reject);
    let body = tidegate_wire::error_body(reject);
    let length = body.len();
    let more = format!("content-type: application/json\r\nx-request-id: {id}\r\ncontent-length: {length}\r\n\r\n");
    [head.as_bytes(), more.as_bytes(), &body].concat().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_answer_that_http_made_alone_gets_a_body() {
        let bare = "HTTP/1.1 400 Bad Request\r\nconnection: close\r\ncontent-length: 0\r\ndate: x\r\n\r\n";
        let said = explained(bare.as_bytes(), None).unwrap();
        let said = str::from_utf8(&said).unwrap();
        assert!(said.starts_with("HTTP/1.1 400 Bad Request\r\nconnection: close\r\ndate: x\r\ncontent-type"), "{said}");
        assert!(said.contains("\r\nx-request-id: req_") && said.ends_with("\"code\":\"invalid_http\"}}"), "{said}");
        let ours = bare.replace("date: x", "x-request-id: y");
        let begun = &bare[..bare.len() - 2];
        for other in [&ours, begun, &bare.replace("400", "200"), "data: {}\n\n", ""] {
            assert!(explained(other.as_bytes(), Some(9)).is_none(), "{other}");
        }
        let said = explained(bare.as_bytes(), Some(9)).unwrap();
        assert!(said.starts_with(b"HTTP/1.1 413"), "{said:?}");
    }

    #[test]
    fn a_length_is_heard_in_however_many_pieces_a_head_arrives() {
        let head = |length: &str| format!("POST /x HTTP/1.1\r\nhost: a\r\nContent-Length: {length}\r\nx: 1\r\n\r\n");
        for (head, too_much) in [(head("99999999999999999999"), true), (head("9999999999999999999"), false)] {
            for cut in 0..head.len() {
                let mut announced = Announced::default();
                let (first, second) = head.as_bytes().split_at(cut);
                announced.hear(first);
                announced.hear(second);
                assert_eq!(announced.too_much, too_much, "cut at {cut}");
            }
        }
    }

    #[test]
    fn what_the_head_of_an_answered_request_announced_says_nothing_of_the_next() {
        let mut cx = Context::from_waker(std::task::Waker::noop());
        for (is_answered, status) in [(false, "HTTP/1.1 413"), (true, "HTTP/1.1 400")] {
            let activity = Arc::new(Activity::default());
            let says = b"content-length: 99999999999999999999\r\n";
            let mut words = LastWords::new(Slow { says, told: Vec::new() }, Arc::clone(&activity), 9);
            assert!(Pin::new(&mut words).poll_read(&mut cx, &mut ReadBuf::new(&mut [0; 64])).is_ready());
            if is_answered {
                drop(activity.request());
            }
            words.stream.says = b"GET /\r\n";
            assert!(Pin::new(&mut words).poll_read(&mut cx, &mut ReadBuf::new(&mut [0; 64])).is_ready());
            let bare = b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n";
            assert!(Pin::new(&mut words).poll_write(&mut cx, bare).is_ready());
            assert!(words.stream.told.starts_with(status.as_bytes()), "{:?}", str::from_utf8(&words.stream.told));
        }
    }

    /// Says what it has to say, and then nothing for too long.
    struct Slow {
        says: &'static [u8],
        told: Vec<u8>,
    }

    impl AsyncRead for Slow {
        fn poll_read(mut self: Pin<&mut Self>, _: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
            let says = std::mem::take(&mut self.says);
            buffer.put_slice(says);
            Poll::Ready(if says.is_empty() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(()) })
        }
    }

    impl AsyncWrite for Slow {
        fn poll_write(mut self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
            self.told.extend_from_slice(bytes);
            Poll::Ready(Ok(bytes.len()))
        }

        fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }

        fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }
    }

    /// The last of an answer is taken from its body before it is written.
    #[test]
    fn nothing_is_said_in_the_middle_of_an_answer_that_is_not_written_yet() {
        let mut cx = Context::from_waker(std::task::Waker::noop());
        for is_written in [false, true] {
            let activity = Arc::new(Activity::default());
            let mut words = LastWords::new(Slow { says: b"GET /li", told: Vec::new() }, Arc::clone(&activity), 9);
            let running = activity.request();
            let read = |words: &mut LastWords<Slow>, cx: &mut Context<'_>| {
                Pin::new(words).poll_read(cx, &mut ReadBuf::new(&mut [0; 16]))
            };
            assert!(matches!(read(&mut words, &mut cx), Poll::Ready(Ok(()))));
            assert!(Pin::new(&mut words).poll_flush(&mut cx).is_ready(), "of what came before the last");
            drop(running);
            assert!(!is_written || Pin::new(&mut words).poll_flush(&mut cx).is_ready());
            assert!(
                matches!(read(&mut words, &mut cx), Poll::Ready(Err(error)) if error.kind() == io::ErrorKind::TimedOut)
            );
            assert_eq!(words.stream.told.starts_with(b"HTTP/1.1 408"), is_written);
            assert!(is_written || words.stream.told.is_empty());
        }
    }
}
