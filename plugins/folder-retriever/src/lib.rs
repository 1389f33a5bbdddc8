//! A retriever over a folder of text files that the operator mounted: BM25 over passages, with citations.
//!
//! The index is made file by file and kept in storage, so that an unchanged file is not read again; an instance
//! keeps it in memory as well. Read in the order of a question: [`index`] brings the index up to date,
//! [`rank`] finds passages, and their text is read from the files.

mod begun;
pub mod index;
pub mod passages;
pub mod rank;
pub mod record;
mod store;
pub mod tokens;
mod work;

use index::{Bounds, Index};
use serde::Deserialize;
use std::cell::RefCell;
use std::collections::BTreeSet;
use tidegate_plugin_sdk::host::{documents, log};
use tidegate_plugin_sdk::{
    Attrs, Capability, Chunk, Context, Descriptor, Error, Plugin, Query, Retriever, Setting, Span,
};

/// More passages than this are not returned, whatever is asked.
const MAX_PASSAGES: usize = 32;

/// The settings.
#[derive(Debug, Deserialize)]
pub struct Config {
    mount: Option<String>,
    extensions: Vec<String>,
    passage_bytes: u32,
    max_files: usize,
    max_file_kib: u64,
    max_text_kib: u64,
    read_kib: u64,
    refresh_ms: u64,
    stop_words: tokens::StopWords,
}

/// The plugin.
#[derive(Debug)]
pub struct FolderRetriever {
    index: RefCell<Index>,
    stop_words: tokens::StopWords,
}

impl Plugin for FolderRetriever {
    type Config = Config;

    fn describe() -> Descriptor {
        let extensions = ["md", "markdown", "txt", "text", "rst", "org", "adoc"];
        Descriptor::new("folder-retriever", env!("CARGO_PKG_VERSION"), "Finds passages in a folder of text files")
            .setting(Setting::optional_text("mount", "The name of the mounted folder; none means all of them"))
            .setting(Setting::texts("extensions", &extensions, "Files that are looked into, by the end of their names"))
            .setting(Setting::integer("passage_bytes", 800, 100, 8000, "About how long a passage is"))
            .setting(Setting::integer(
                "max_files",
                1000,
                1,
                20_000,
                "Files that are looked into, in the order of their paths",
            ))
            .setting(Setting::integer("max_file_kib", 1024, 1, 16_384, "Larger files are left out"))
            .setting(Setting::integer(
                "max_text_kib",
                16_384,
                1,
                1 << 20,
                "What the files have together; those behind, in the order of their paths, are left out",
            ))
            .setting(Setting::integer(
                "read_kib",
                256,
                1,
                16_384,
                "What is read for one question at most; the rest follows with the next ones",
            ))
            .setting(Setting::integer("refresh_ms", 2000, 0, 3_600_000, "How old the list of files may be"))
            .setting(Setting::choice(
                "stop_words",
                &["english", "none"],
                "english",
                "Words of a question that find nothing",
            ))
            .needs(Capability::Documents, "reads the text files of the folder")
            .needs(Capability::Kv, "keeps its index, so that unchanged files are not read again")
            .metric("files_read", "files whose index was made anew")
    }

    fn configure(config: Config) -> Result<Self, Error> {
        let is_plain = |extension: &String| !extension.is_empty() && !extension.contains(['.', '/']);
        if config.extensions.is_empty() || !config.extensions.iter().all(is_plain) {
            return Err(Error::InvalidConfig("`extensions` needs names such as \"md\", without dots".into()));
        }
        if !(100..=8000).contains(&config.passage_bytes) {
            return Err(Error::InvalidConfig(format!(
                "`passage_bytes` is {}; it is 100 to 8000",
                config.passage_bytes
            )));
        }
        let bounds = Bounds {
            mount: config.mount,
            extensions: config.extensions.iter().map(|e| e.to_lowercase()).collect(),
            passage_bytes: config.passage_bytes,
            max_files: config.max_files,
            max_file_bytes: config.max_file_kib << 10,
            max_text_bytes: config.max_text_kib << 10,
            read_bytes: config.read_kib << 10,
            refresh_ms: config.refresh_ms,
        };
        Ok(Self { index: RefCell::new(Index::new(bounds)), stop_words: config.stop_words })
    }
}

impl Retriever for FolderRetriever {
    fn retrieve(&self, context: &Context, query: &Query) -> Result<Vec<Chunk>, Error> {
        let mut index = self.index.borrow_mut();
        index.refresh(context.deadline_ms)?;
        let terms = tokens::query_terms(&query.text, self.stop_words);
        let wanted = (query.top_k as usize).min(MAX_PASSAGES);
        let found = rank::best(index.files(), &terms, wanted);
        let chunks: Vec<Option<Chunk>> = found.iter().map(|found| chunk(&index, found)).collect();
        let stale: BTreeSet<usize> =
            found.iter().zip(&chunks).filter(|(_, chunk)| chunk.is_none()).map(|(found, _)| found.file).collect();
        index.distrust(&stale);
        Ok(chunks.into_iter().flatten().collect())
    }
}

/// The passage with its text; `None` when the file is no longer what was indexed.
fn chunk(index: &Index, found: &rank::Found) -> Option<Chunk> {
    let file = index.files().get(found.file)?;
    let passage = file.passages.get(found.passage)?;
    let read = documents::read(&file.path, passage.start.into(), passage.end - passage.start);
    let text = match read.map(String::from_utf8) {
        Ok(Ok(text)) if record::fingerprint(&text) == passage.fingerprint => text,
        Ok(_) => return None,
        Err(error) => {
            log::warn(&format!("cannot read {}: {error}", file.path));
            return None;
        }
    };
    Some(Chunk {
        id: format!("{}:{}", file.path, passage.start),
        text,
        uri: Some(file.path.clone()),
        title: Some(file.title.clone()),
        score: Some(found.score),
        origin: Some(Span { start: passage.start, end: passage.end }),
        attrs: Attrs::new(),
    })
}

tidegate_plugin_sdk::export!(FolderRetriever: Retriever);

#[cfg(test)]
mod tests;
