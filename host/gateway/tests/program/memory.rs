//! What the program holds while many clients are there at once. It is a process of its own here, so that its memory is.

use super::{Server, read_all, streamed_text, write};
use serde_json::json;

const STREAMS: usize = 200;
/// Of one stream, while all are there: its connection, its request, what waits of its answer.
const KIB_EACH: usize = 512;

/// The most memory that the server has had so far.
fn peak_kib(server: &Server) -> usize {
    let status = std::fs::read_to_string(format!("/proc/{}/status", server.child.id())).unwrap();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")?.trim().strip_suffix(" kB")).unwrap();
    peak.parse().unwrap()
}

#[test]
fn two_hundred_streams_at_once_hold_bounded_memory_and_those_after_them_no_more() {
    let folder = tempfile::tempdir().unwrap();
    let config = write(folder.path(), "tidegate.toml", "[pipeline]\n");
    let server = Server::start(&["serve", "--listen", "127.0.0.1:0", "--config", config.to_str().unwrap()]);
    let questions = ["What is Tidegate?", "Hello!", "What is a stream guard?", "Who are you?"];
    let ask = |i: usize| server.ask(questions[i % questions.len()], json!({"stream": true, "max_tokens": 24}));
    let alone: Vec<String> = (0..questions.len()).map(|i| streamed_text(&read_all(ask(i)))).collect();
    let round = || {
        let sockets: Vec<_> = (0..STREAMS).map(ask).collect();
        for (i, socket) in sockets.into_iter().enumerate() {
            assert_eq!(streamed_text(&read_all(socket)), alone[i % questions.len()], "stream {i}");
        }
        peak_kib(&server)
    };
    let (before, first) = (peak_kib(&server), round());
    let second = round();
    println!("{before} KiB before, {first} with {STREAMS} streams at once, {second} with as many again");
    assert!(first.saturating_sub(before) < STREAMS * KIB_EACH, "from {before} to {first} KiB");
    assert!(second.saturating_sub(first) < STREAMS * KIB_EACH / 4, "from {first} to {second} KiB");
}
