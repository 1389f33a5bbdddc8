//! The index in memory, and how it follows the folder.
//!
//! At most once in a while the folder is listed; files that are new or changed come from storage where that has
//! them, as many as there is time for, else they are read, at most so many bytes for one question. What is left is said in
//! the log and follows with the next questions.

use crate::begun::{self, Call, Standing};
use crate::record::{FileIndex, Stamp};
use crate::store;
use crate::work::Work;
use std::collections::{BTreeMap, BTreeSet};
use tidegate_plugin_sdk::Error;
use tidegate_plugin_sdk::host::documents::{self, Entry};
use tidegate_plugin_sdk::host::{clock, log, metrics};

const PAGE: u32 = 500;
/// What the indexes of all files may take, of the 64 MiB that an instance has by default: a file of 1 MiB that is indexed
/// takes some 30 MiB for a while where no word is there twice.
const MAX_INDEX_BYTES: usize = 24 << 20;
/// Bytes of one read: the host's cap is 1 MiB.
const READ_BYTES: u32 = 512 * 1024;

/// What is indexed, and how much at once.
#[derive(Clone, Debug)]
pub struct Bounds {
    /// Only this mount.
    pub mount: Option<String>,
    /// Ends of names, lower case, without dots.
    pub extensions: Vec<String>,
    /// About how long a passage is.
    pub passage_bytes: u32,
    /// More files are left out.
    pub max_files: usize,
    /// Larger files are left out.
    pub max_file_bytes: u64,
    /// What the files have together; those behind are left out.
    pub max_text_bytes: u64,
    /// Read for one question at most, without what comes from storage; one file is always read.
    pub read_bytes: u64,
    /// How old the list of files may be.
    pub refresh_ms: u64,
}

/// When a file is read.
enum Turn {
    Now,
    /// With the next question.
    Next,
    /// When its mark says that nobody is at work on it.
    Waits,
    /// Not before it changes, or its mark is over.
    Never,
}

/// How many files are not indexed yet.
#[derive(Debug, Default, PartialEq, Eq)]
struct Left {
    /// For which this question had no more time: the next one goes on.
    next: usize,
    /// At which another instance may be at work.
    waiting: usize,
}

/// The index.
#[derive(Debug)]
pub struct Index {
    bounds: Bounds,
    /// By path.
    files: Vec<FileIndex>,
    /// When the folder is to be listed again.
    due_ms: Option<u64>,
    /// What was said in the log already.
    said: BTreeSet<String>,
}

impl Index {
    /// An empty index.
    pub fn new(bounds: Bounds) -> Self {
        Self { bounds, files: Vec::new(), due_ms: None, said: BTreeSet::new() }
    }

    /// The files, by path.
    pub fn files(&self) -> &[FileIndex] {
        &self.files
    }

    /// Forgets files that are not what was indexed, whatever their size and date say; the next question reads them again.
    pub fn distrust(&mut self, stale: &BTreeSet<usize>) {
        if stale.is_empty() {
            return;
        }
        let (kept, distrusted): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.files).into_iter().enumerate().partition(|(idx, _)| !stale.contains(idx));
        self.files = kept.into_iter().map(|(_, file)| file).collect();
        let paths: Vec<String> = distrusted.into_iter().map(|(_, file)| file.path).collect();
        self.forget(&paths);
        self.due_ms = None;
    }

    /// Follows the folder, in a call that had so much time when it came.
    ///
    /// # Errors
    /// When it cannot be listed; a file that cannot be read is left out.
    pub fn refresh(&mut self, deadline_ms: u32) -> Result<(), Error> {
        let now = clock::monotonic_ms();
        if self.due_ms.is_some_and(|due| now < due) {
            return Ok(());
        }
        let listed = self.list()?;
        let known: BTreeMap<String, FileIndex> =
            std::mem::take(&mut self.files).into_iter().map(|file| (file.path.clone(), file)).collect();
        let (unchanged, gone) = sort_out(known, &listed);
        self.forget(&gone);
        // Both are in the order of paths.
        let is_new = |path: &String| unchanged.binary_search_by(|file| file.path.cmp(path)).is_err();
        let wanted: Vec<(String, Stamp)> = listed.into_iter().filter(|(path, _)| is_new(path)).collect();
        self.files = unchanged;
        let left = self.add(wanted, now, deadline_ms);
        self.files.sort_by(|a, b| a.path.cmp(&b.path));
        // While others are at work, a list for each question would say nothing new; an hour would be too long.
        let most_ms = if left.waiting > 0 { begun::AT_WORK_MS } else { u64::MAX };
        self.due_ms = (left.next == 0).then(|| now + self.bounds.refresh_ms.min(most_ms));
        Ok(())
    }

    /// The files to index, within bounds.
    fn list(&mut self) -> Result<Vec<(String, Stamp)>, Error> {
        let mut listed = Vec::new();
        let mut mounts: BTreeSet<String> = BTreeSet::new();
        let mut after: Option<String> = None;
        let mut text_bytes = 0;
        loop {
            let page = documents::list(after.as_deref(), PAGE)?;
            let Some(last) = page.last() else {
                self.say_where_the_mount_is_none(&mounts);
                return Ok(listed);
            };
            after = Some(last.path.clone());
            for entry in page {
                if !mounts.contains(mount(&entry.path)) {
                    mounts.insert(mount(&entry.path).to_owned());
                }
                if !self.takes(&entry) {
                    continue;
                }
                if listed.len() == self.bounds.max_files {
                    let (max, path) = (self.bounds.max_files, &entry.path);
                    self.say(format!("{path} and what is behind it is left out: `max_files` is {max}"));
                    return Ok(listed);
                }
                text_bytes += entry.size_bytes;
                if text_bytes > self.bounds.max_text_bytes {
                    let (max, path) = (self.bounds.max_text_bytes >> 10, &entry.path);
                    self.say(format!("{path} and what is behind it is left out: `max_text_kib` is {max}"));
                    return Ok(listed);
                }
                let (size_bytes, modified_unix_ms) = (entry.size_bytes, entry.modified_unix_ms);
                let passage_bytes = self.bounds.passage_bytes;
                listed.push((entry.path, Stamp { size_bytes, modified_unix_ms, passage_bytes }));
            }
        }
    }

    /// A name that is misspelt would find nothing for ever.
    fn say_where_the_mount_is_none(&mut self, mounts: &BTreeSet<String>) {
        if let Some(wanted) = self.bounds.mount.clone().filter(|wanted| !mounts.contains(wanted)) {
            let have: Vec<&str> = mounts.iter().map(String::as_str).collect();
            let have = if have.is_empty() { "none".to_owned() } else { have.join(", ") };
            self.say(format!("`mount` is `{wanted}`, under which there is no file; mounts with files: {have}"));
        }
    }

    fn takes(&mut self, entry: &Entry) -> bool {
        let name = entry.path.rsplit('/').next().unwrap_or_default();
        let extension = name.rsplit_once('.').map(|(_, extension)| extension.to_lowercase());
        let is_text = extension.is_some_and(|extension| self.bounds.extensions.contains(&extension));
        if !is_text || self.bounds.mount.as_ref().is_some_and(|wanted| wanted != mount(&entry.path)) {
            return false;
        }
        let fits = entry.size_bytes <= self.bounds.max_file_bytes;
        if !fits {
            let (path, have, max) = (&entry.path, entry.size_bytes >> 10, self.bounds.max_file_bytes >> 10);
            self.say(format!("{path} has {have} KiB and is left out: `max_file_kib` is {max}"));
        }
        fits
    }

    /// Adds files from storage or from the folder, as far as one question may; returns what is left. Files in which a call ended
    /// come first, since they are read by a call that has done nothing else; the others in the order of their paths, from a
    /// different one on with time: a new instance that has no time for all of them finds others than the last one did.
    fn add(&mut self, mut wanted: Vec<(String, Stamp)>, since_ms: u64, deadline_ms: u32) -> Left {
        let suspects = begun::suspects(&wanted);
        let first = (clock::now_unix_ms() / 1000) as usize % wanted.len().max(1);
        wanted.rotate_left(first);
        wanted.sort_by_key(|(path, _)| !suspects.contains(path));
        let index_bytes = self.files.iter().map(FileIndex::memory_bytes).sum();
        let (mut work, mut left) = (Work::new(since_ms, deadline_ms, index_bytes), Left::default());
        for (path, stamp) in &wanted {
            match self.add_one(path, stamp, &mut work, deadline_ms) {
                Turn::Now | Turn::Never => {}
                Turn::Next => left.next += 1,
                Turn::Waits => left.waiting += 1,
            }
        }
        let count = left.next + left.waiting;
        if count > 0 {
            log::info(&format!("{count} of {} files are not indexed yet; they follow", self.files.len() + count));
        }
        left
    }

    fn add_one(&mut self, path: &str, stamp: &Stamp, work: &mut Work, deadline_ms: u32) -> Turn {
        if !work.has_time() {
            return Turn::Next;
        }
        if work.index_bytes >= MAX_INDEX_BYTES {
            let remedy = "mount less, or lower `max_files` or `max_text_kib`";
            self.say(format!("{path} is left out: the index takes {} MiB already; {remedy}", MAX_INDEX_BYTES >> 20));
            return Turn::Never;
        }
        let before = self.files.len();
        let turn = match self.stored(path, stamp) {
            Some(file) => {
                self.files.push(file);
                work.loaded += 1;
                Turn::Now
            }
            None => self.turn(path, stamp, work),
        };
        if self.files.len() == before && matches!(turn, Turn::Now) {
            work.read_bytes += self.read(path, stamp, Call { is_alone: work.is_none(), deadline_ms });
        }
        work.index_bytes +=
            self.files.get(before..).unwrap_or_default().iter().map(FileIndex::memory_bytes).sum::<usize>();
        turn
    }

    /// When a file is read of which nothing is stored.
    fn turn(&mut self, path: &str, stamp: &Stamp, work: &Work) -> Turn {
        let fits = work.read_bytes == 0 || work.read_bytes + stamp.size_bytes <= self.bounds.read_bytes;
        match begun::standing(path, stamp) {
            Standing::TooLarge => {
                let (kib, remedy) = (stamp.size_bytes >> 10, "raise `limits.cpu_ms` or lower `max_file_kib`");
                self.say(format!("{path} is left out: calls ended while they indexed its {kib} KiB; {remedy}"));
                Turn::Never
            }
            Standing::UnderWay => Turn::Waits,
            Standing::New if fits => Turn::Now,
            Standing::Suspect if work.is_none() => Turn::Now,
            Standing::New | Standing::Suspect => Turn::Next,
        }
    }

    fn stored(&mut self, path: &str, stamp: &Stamp) -> Option<FileIndex> {
        store::load(path, stamp).unwrap_or_else(|error| {
            self.say(format!("storage is not used: {error}"));
            None
        })
    }

    /// Reads a file, which has a mark meanwhile in case that the call ends in it: without one each instance would begin with it
    /// again, so that a large one is left out where none can be kept.
    fn read(&mut self, path: &str, stamp: &Stamp, call: Call) -> u64 {
        let begun = begun::begin(path, stamp, call);
        if let Err(error) = &begun
            && stamp.size_bytes > begun::UNMARKED_BYTES
        {
            let (have, most) = (stamp.size_bytes >> 10, begun::UNMARKED_BYTES >> 10);
            let why = format!("no mark of it is kept, without which {most} KiB are safe");
            self.say(format!("{path} has {have} KiB and is left out: {why}: {error}"));
            return 0;
        }
        let bytes = self.read_marked(path, stamp);
        if let Err(error) = begun.and_then(|()| begun::end(path, stamp)) {
            self.say(format!("storage is not used: {error}"));
        }
        bytes
    }

    /// Bytes that were read: none of a file that cannot be, which would keep those behind it out for ever.
    fn read_marked(&mut self, path: &str, stamp: &Stamp) -> u64 {
        let text = match read_all(path, stamp.size_bytes).map(String::from_utf8) {
            Ok(Ok(text)) => text,
            Ok(Err(_)) => {
                self.say(format!("{path} is left out: it is not UTF-8"));
                String::new()
            }
            Err(error) => {
                self.say(format!("{path} is left out: {error}"));
                return 0;
            }
        };
        metrics::count("files_read", 1);
        let file = FileIndex::new(path, stamp.clone(), &text);
        if let Err(error) = store::save(&file) {
            self.say(format!("the index is kept in memory only: {error}; grant more storage (`kv_kib`)"));
        }
        self.files.push(file);
        stamp.size_bytes.max(1)
    }

    fn forget(&mut self, gone: &[String]) {
        for path in gone {
            if let Err(error) = store::remove(path) {
                self.say(format!("storage is not used: {error}"));
            }
        }
    }

    /// Each thing once for an instance.
    fn say(&mut self, what: String) {
        if self.said.len() < 1000 && self.said.insert(what.clone()) {
            log::warn(&what);
        }
    }
}

/// The mount that a path is in.
fn mount(path: &str) -> &str {
    path.split('/').next().unwrap_or_default()
}

/// Known files that are as listed, and paths of those that are listed no more.
fn sort_out(known: BTreeMap<String, FileIndex>, listed: &[(String, Stamp)]) -> (Vec<FileIndex>, Vec<String>) {
    let listed: BTreeMap<&str, &Stamp> = listed.iter().map(|(path, stamp)| (path.as_str(), stamp)).collect();
    let gone = known.keys().filter(|path| !listed.contains_key(path.as_str())).cloned().collect();
    let unchanged = known.into_values().filter(|file| listed.get(file.path.as_str()) == Some(&&file.stamp));
    (unchanged.collect(), gone)
}

/// At most the size that was listed: a file that grows meanwhile is read again later.
fn read_all(path: &str, size_bytes: u64) -> Result<Vec<u8>, Error> {
    let mut bytes = Vec::new();
    loop {
        let have = bytes.len() as u64;
        let want = size_bytes.saturating_sub(have).min(READ_BYTES.into()) as u32;
        let piece = if want == 0 { Vec::new() } else { documents::read(path, have, want)? };
        if piece.is_empty() {
            return Ok(bytes);
        }
        bytes.extend(piece);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_plugin_sdk::host::fake;

    fn index() -> Index {
        Index::new(Bounds {
            mount: None,
            extensions: vec!["txt".into()],
            passage_bytes: 800,
            max_files: 10,
            max_file_bytes: 1 << 20,
            max_text_bytes: 1 << 24,
            read_bytes: 2048,
            refresh_ms: 0,
        })
    }

    fn wanted(names: &[&str]) -> Vec<(String, Stamp)> {
        let stamp = Stamp { size_bytes: 1500, modified_unix_ms: 1, passage_bytes: 800 };
        names.iter().map(|name| (format!("docs/{name}.txt"), stamp.clone())).collect()
    }

    fn paths(index: &Index) -> Vec<&str> {
        index.files().iter().map(|file| file.path.as_str()).collect()
    }

    #[test]
    fn a_file_that_cannot_be_read_keeps_none_behind_it_out() {
        fake::put_file("docs/b.txt", 1, &[b'x'; 1500]);
        let mut index = index();
        // The first was listed, and is not there any more.
        assert_eq!(index.add(wanted(&["a", "b"]), 0, 0), Left::default(), "nothing is left for the next question");
        assert_eq!(paths(&index), ["docs/b.txt"]);
    }

    #[test]
    fn without_time_one_file_is_loaded_and_not_the_same_by_each_instance() {
        let names = ["a", "b", "c"];
        for name in names {
            fake::put_file(&format!("docs/{name}.txt"), 1, &[b'x'; 1500]);
        }
        let mut first = index();
        let left: Vec<usize> = (0..3).map(|_| first.add(wanted(&names), 0, 0).next).collect();
        assert_eq!(left[2], 0, "all are stored");
        // The clock of tests stands still: a call that came a second ago, and had one and a half.
        let late = || {
            fake::advance_ms(1000);
            let mut index = index();
            let left = index.add(wanted(&names), clock::monotonic_ms() - 1000, 1500);
            (paths(&index).join(" "), left.next)
        };
        let loaded: BTreeSet<(String, usize)> = (0..3).map(|_| late()).collect();
        assert_eq!(loaded, names.map(|name| (format!("docs/{name}.txt"), 2)).into());
        let mut index = index();
        assert_eq!(index.add(wanted(&names), clock::monotonic_ms() - 1000, 2000), Left::default(), "half is left");
    }

    #[test]
    fn the_indexes_of_all_files_are_bounded_and_what_is_left_out_is_said() {
        fake::put_file("docs/a.txt", 1, &[b'x'; 1500]);
        let mut index = index();
        let mut work = Work::new(0, 0, MAX_INDEX_BYTES);
        let (path, stamp) = wanted(&["a"]).remove(0);
        assert!(matches!(index.add_one(&path, &stamp, &mut work, 0), Turn::Never));
        let expected = "docs/a.txt is left out: the index takes 24 MiB already; \
                        mount less, or lower `max_files` or `max_text_kib`";
        assert_eq!((paths(&index), fake::take_log().remove(0).1.as_str()), (vec![], expected));
        work.index_bytes = MAX_INDEX_BYTES - 1;
        assert!(matches!(index.add_one(&path, &stamp, &mut work, 0), Turn::Now));
        assert!(work.index_bytes > MAX_INDEX_BYTES, "what came is counted");
    }
}
