//! Behaviour of the retriever as a whole, over the SDK's fake folder and storage.

use super::*;
use tidegate_plugin_sdk::host::fake;
use tidegate_plugin_sdk::plugin::configure;
use tidegate_plugin_sdk::testing::{assert_readme_is_true, plugin};

const FERRY: &str = "# The ferry\n\nThe Aurora leaves at 7:45.\n\nA ticket costs 12 euros, and dogs travel free.\n";
const MUSEUM: &str = "The museum is closed on Mondays. Größe: 300 m².\n";

fn ask(retriever: &FolderRetriever, question: &str) -> Vec<Chunk> {
    let query = Query { text: question.into(), top_k: 3, attrs: Attrs::new() };
    retriever.retrieve(&Context::default(), &query).unwrap()
}

fn uris(chunks: &[Chunk]) -> Vec<&str> {
    chunks.iter().filter_map(|chunk| chunk.uri.as_deref()).collect()
}

fn folder() {
    fake::put_file("docs/ferry.md", 1, FERRY.as_bytes());
    fake::put_file("docs/sub/museum.txt", 1, MUSEUM.as_bytes());
    fake::put_file("docs/ferry.png", 1, b"ferry ticket");
    fake::put_file("other/ferry.md", 1, b"A ticket of the other ferry.");
}

#[test]
fn the_readme_names_every_setting() {
    assert_readme_is_true::<FolderRetriever>(include_str!("../README.md"));
}

#[test]
fn a_passage_comes_with_its_file_and_place() {
    folder();
    let chunks = ask(&plugin(r#"{"mount":"docs"}"#), "How much is a ticket for the ferry?");
    assert_eq!(uris(&chunks), ["docs/ferry.md"]);
    let (chunk, origin) = (&chunks[0], chunks[0].origin.unwrap());
    assert_eq!(&FERRY[origin.start as usize..origin.end as usize], chunk.text);
    assert!(chunk.text.contains("12 euros") && chunk.score.unwrap() > 0.0);
    assert_eq!((chunk.id.as_str(), chunk.title.as_deref()), ("docs/ferry.md:0", Some("The ferry")));
    assert_eq!(uris(&ask(&plugin(r#"{"mount":"docs"}"#), "GRÖSSE größe")), ["docs/sub/museum.txt"]);
    assert_eq!(ask(&plugin(""), "ticket").len(), 2, "without a mount all of them");
    assert_eq!(ask(&plugin(""), "plane"), []);
}

#[test]
fn unchanged_files_are_not_read_again_by_any_instance() {
    folder();
    ask(&plugin(r#"{"mount":"docs"}"#), "plane");
    assert_eq!(fake::take_reads(), ["docs/ferry.md", "docs/sub/museum.txt"]);
    let second: FolderRetriever = plugin(r#"{"mount":"docs"}"#);
    ask(&second, "plane");
    assert_eq!(fake::take_reads(), [""; 0]);
    fake::put_file("docs/ferry.md", 2, b"The ferry sank.");
    ask(&second, "plane");
    assert_eq!(fake::take_reads(), [""; 0], "the list is fresh enough");
    fake::advance_ms(2000);
    assert_eq!(ask(&second, "sank")[0].text, "The ferry sank.");
    assert_eq!(fake::take_reads(), ["docs/ferry.md", "docs/ferry.md"], "to index and to cite");
}

#[test]
fn a_file_that_is_gone_is_forgotten() {
    folder();
    let retriever: FolderRetriever = plugin(r#"{"mount":"docs"}"#);
    ask(&retriever, "ferry");
    let stored = fake::kv_keys().len();
    fake::remove_file("docs/ferry.md");
    assert_eq!(ask(&retriever, "ferry"), [], "what cannot be read is not cited");
    assert_eq!(ask(&retriever, "ferry"), []);
    assert_eq!(fake::kv_keys().len(), stored - 1);
}

#[test]
fn a_file_that_changed_meanwhile_is_not_cited_wrongly() {
    folder();
    let retriever: FolderRetriever = plugin(r#"{"mount":"docs","refresh_ms":3600000}"#);
    assert_eq!(ask(&retriever, "ferry").len(), 1);
    fake::put_file("docs/ferry.md", 2, FERRY.replace("12 euros", "99 euros").as_bytes());
    assert_eq!(ask(&retriever, "ferry"), []);
    assert!(ask(&retriever, "ferry")[0].text.contains("99 euros"), "it is indexed anew at once");
}

/// As in an image whose files all have one date.
#[test]
fn a_file_that_changed_and_kept_its_size_and_date_is_indexed_anew() {
    folder();
    let retriever: FolderRetriever = plugin(r#"{"mount":"docs","refresh_ms":3600000}"#);
    assert_eq!(ask(&retriever, "ferry").len(), 1);
    fake::put_file("docs/ferry.md", 1, FERRY.replace("12 euros", "99 euros").as_bytes());
    let next: FolderRetriever = plugin(r#"{"mount":"docs"}"#);
    assert_eq!(ask(&next, "ferry"), [], "storage has the old one, which is not cited");
    assert!(ask(&next, "ferry")[0].text.contains("99 euros"));
    assert!(ask(&plugin(r#"{"mount":"docs"}"#), "ferry")[0].text.contains("99 euros"), "so has storage");
    assert_eq!(ask(&retriever, "ferry"), []);
    assert!(ask(&retriever, "ferry")[0].text.contains("99 euros"));
}

#[test]
fn a_large_folder_is_indexed_over_several_questions() {
    for n in 0..5 {
        fake::put_file(&format!("docs/{n}.txt"), 1, format!("needle {n} {}", "hay ".repeat(200)).as_bytes());
    }
    let retriever: FolderRetriever = plugin(r#"{"read_kib":2}"#);
    let found: Vec<usize> = (0..4).map(|_| ask(&retriever, "needle").len()).collect();
    assert_eq!(found, [2, 3, 3, 3], "two files for a question, and three passages are asked for");
    assert!(fake::take_log().iter().any(|(_, line)| line == "3 of 5 files are not indexed yet; they follow"));
}

#[test]
fn a_cold_instance_loads_what_is_stored_with_its_first_question() {
    for n in 0..5 {
        fake::put_file(&format!("docs/{n}.txt"), 1, format!("needle {n} {}", "hay ".repeat(900)).as_bytes());
    }
    ask(&plugin::<FolderRetriever>(""), "plane");
    fake::take_reads();
    fake::put_file("docs/5.txt", 1, "needle".repeat(900).as_bytes());
    fake::put_file("docs/6.txt", 1, "needle".repeat(900).as_bytes());
    let cold: FolderRetriever = plugin(r#"{"read_kib":2}"#);
    let indexed = |question: &str| {
        ask(&cold, question);
        cold.index.borrow().files().len()
    };
    assert_eq!([indexed("plane"), indexed("plane")], [6, 7], "with one that is new, which is read");
    assert_eq!(fake::take_reads(), ["docs/5.txt", "docs/6.txt"]);
}

fn put_large(modified_unix_ms: u64) -> impl Fn(bool) {
    put_large_for(modified_unix_ms, 0)
}

/// A file that may be too large, and what a call does first that is to read it and has so much time.
fn put_large_for(modified_unix_ms: u64, deadline_ms: u32) -> impl Fn(bool) {
    let text = format!("needle {}", "hay ".repeat(30_000));
    fake::put_file("docs/large.txt", modified_unix_ms, text.as_bytes());
    let stamp = record::Stamp { size_bytes: text.len() as u64, modified_unix_ms, passage_bytes: 800 };
    move |is_alone| begun::begin("docs/large.txt", &stamp, begun::Call { is_alone, deadline_ms }).unwrap()
}

#[test]
fn a_file_in_which_calls_end_is_left_out_until_it_changes() {
    folder();
    let config = r#"{"mount":"docs","refresh_ms":0}"#;
    let begin = put_large(1);
    (0..2).for_each(|_| begin(true));
    fake::advance_ms(10_000);
    let retriever: FolderRetriever = plugin(config);
    assert_eq!(uris(&ask(&retriever, "needle")), [""; 0]);
    assert_eq!(uris(&ask(&retriever, "ferry")), ["docs/ferry.md"], "the others are found");
    let lines: Vec<String> = fake::take_log().into_iter().map(|(_, line)| line).collect();
    let expected = "docs/large.txt is left out: calls ended while they indexed its 117 KiB; \
                    raise `limits.cpu_ms` or lower `max_file_kib`";
    assert_eq!(lines, [expected]);
    assert!(!fake::take_reads().contains(&"docs/large.txt".to_owned()));
    let _ = put_large(2);
    assert_eq!(uris(&ask(&retriever, "needle")), ["docs/large.txt"]);
    assert!(fake::kv_keys().iter().all(|key| !key.starts_with("begun/")), "what went well leaves no mark");
}

#[test]
fn a_file_in_which_a_call_ended_is_read_by_one_that_did_nothing_else() {
    folder();
    // After other work, which may have taken the time; and once without, when the caller went away.
    let begin = put_large(1);
    (0..3).for_each(|_| begin(false));
    begin(true);
    fake::advance_ms(10_000);
    let retriever: FolderRetriever = plugin(r#"{"mount":"docs","read_kib":1}"#);
    assert_eq!(
        uris(&ask(&retriever, "needle")),
        ["docs/large.txt"],
        "before the others, of which some may always be new"
    );
    assert_eq!(fake::take_reads()[0], "docs/large.txt");
    assert_eq!(uris(&ask(&retriever, "ferry")), ["docs/ferry.md"]);
}

#[test]
fn a_file_at_which_another_instance_is_at_work_is_waited_for() {
    folder();
    let begin = put_large(1);
    begin(true);
    let retriever: FolderRetriever = plugin(r#"{"mount":"docs"}"#);
    assert_eq!([ask(&retriever, "ferry").len(), ask(&retriever, "needle").len()], [1, 0]);
    assert_eq!(ask(&retriever, "needle").len(), 0, "though nothing else is to be done");
    fake::advance_ms(10_000);
    assert_eq!(ask(&retriever, "needle").len(), 1);
}

/// `limits.wall_ms` may be longer than calls mostly are.
#[test]
fn another_instance_is_waited_for_as_long_as_its_call_had() {
    put_large_for(1, 60_000)(true);
    let retriever: FolderRetriever = plugin("");
    let found = [10_000, 49_999, 10_000].map(|ms| {
        fake::advance_ms(ms);
        ask(&retriever, "needle").len()
    });
    assert_eq!(found, [0, 0, 1]);
}

#[test]
fn the_folder_is_not_listed_for_each_question_that_waits_for_another_instance() {
    folder();
    put_large(1)(true);
    let often: FolderRetriever = plugin(r#"{"mount":"docs"}"#);
    let seldom: FolderRetriever = plugin(r#"{"mount":"docs","refresh_ms":3600000}"#);
    let found = |question: &str| [&often, &seldom].map(|retriever| ask(retriever, question).len());
    assert_eq!(found("ferry"), [1, 1]);
    fake::put_file("docs/new.txt", 1, b"novelty");
    assert_eq!(found("novelty"), [0, 0], "the list is fresh enough");
    fake::advance_ms(2_000);
    assert_eq!(found("novelty"), [1, 0]);
    fake::advance_ms(8_000);
    assert_eq!(found("needle"), [1, 1], "when the mark is over, however seldom the folder is listed");
}

#[test]
fn what_is_left_out_is_said_once() {
    fake::put_file("docs/big.txt", 1, &[b'x'; 2048]);
    fake::put_file("docs/latin.txt", 1, b"caf\xe9");
    fake::put_file("docs/ok.txt", 1, b"ok");
    fake::put_file("docs/one-too-many.txt", 1, b"ok");
    let retriever: FolderRetriever = plugin(r#"{"max_file_kib":1,"max_files":2,"refresh_ms":0}"#);
    assert_eq!(uris(&ask(&retriever, "ok")), ["docs/ok.txt"]);
    ask(&retriever, "ok");
    let lines: Vec<String> = fake::take_log().into_iter().map(|(_, line)| line).collect();
    let expected = [
        "docs/big.txt has 2 KiB and is left out: `max_file_kib` is 1",
        "docs/one-too-many.txt and what is behind it is left out: `max_files` is 2",
        "docs/latin.txt is left out: it is not UTF-8",
    ];
    assert_eq!(lines, expected);
}

#[test]
fn more_text_than_may_be_indexed_is_left_out_and_said() {
    let text = format!("needle {}", "x".repeat(1000));
    for name in ["a", "b", "c"] {
        fake::put_file(&format!("docs/{name}.txt"), 1, text.as_bytes());
    }
    let retriever: FolderRetriever = plugin(r#"{"max_text_kib":2,"refresh_ms":0}"#);
    (0..2).for_each(|_| assert_eq!(uris(&ask(&retriever, "needle")), ["docs/a.txt", "docs/b.txt"]));
    let lines: Vec<String> = fake::take_log().into_iter().map(|(_, line)| line).collect();
    assert_eq!(lines, ["docs/c.txt and what is behind it is left out: `max_text_kib` is 2"]);
}

#[test]
fn a_mount_that_is_not_there_is_said_once() {
    folder();
    let retriever: FolderRetriever = plugin(r#"{"mount":"dosc","refresh_ms":0}"#);
    assert_eq!(ask(&retriever, "ferry"), []);
    ask(&retriever, "ferry");
    let lines: Vec<String> = fake::take_log().into_iter().map(|(_, line)| line).collect();
    assert_eq!(lines, ["`mount` is `dosc`, under which there is no file; mounts with files: docs, other"]);
    ask(&plugin(r#"{"mount":"docs"}"#), "ferry");
    assert_eq!(fake::take_log(), []);
}

#[test]
fn without_room_in_storage_the_index_stays_in_memory() {
    folder();
    fake::limit_kv(10);
    let retriever: FolderRetriever = plugin("");
    assert_eq!(ask(&retriever, "museum").len(), 1);
    assert!(fake::take_log()[0].1.contains("grant more storage"));
}

/// As when kv is full, and under zero retention: each instance would begin with it, and none would know of those before.
#[test]
fn a_large_file_is_not_begun_where_no_mark_is_kept() {
    folder();
    let text = |kib: usize| format!("needle {}", "x".repeat((kib << 10) - 7));
    fake::put_file("docs/a-large.txt", 1, text(300).as_bytes());
    fake::put_file("docs/middling.txt", 1, text(256).as_bytes());
    fake::limit_kv(10);
    let retriever: FolderRetriever = plugin(r#"{"mount":"docs","refresh_ms":0}"#);
    assert_eq!(uris(&ask(&retriever, "ferry")), ["docs/ferry.md"], "those behind it are found");
    assert_eq!(uris(&ask(&retriever, "needle")), ["docs/middling.txt"]);
    assert!(!fake::take_reads().contains(&"docs/a-large.txt".to_owned()), "nothing of it is read");
    let expected =
        "docs/a-large.txt has 300 KiB and is left out: no mark of it is kept, without which 256 KiB are safe: ";
    assert_eq!(fake::take_log().iter().filter(|(_, line)| line.starts_with(expected)).count(), 1);
    // It follows where there is room again.
    fake::limit_kv(1 << 20);
    assert_eq!(ask(&retriever, "needle").len(), 2);
}

#[test]
fn a_config_that_cannot_work_is_refused() {
    for json in [r#"{"extensions":[]}"#, r#"{"extensions":[".md"]}"#, r#"{"passage_bytes":10}"#] {
        assert!(matches!(configure::<FolderRetriever>(json), Err(Error::InvalidConfig(_))), "{json}");
    }
}
