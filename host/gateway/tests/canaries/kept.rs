//! A gateway with everything on that could keep something, and all that it has written.

use crate::forms::{count, forms};
use crate::redis::Redis;
use crate::server::Server;
use crate::signal;
use crate::stand_in::StandIn;
use crate::ways::Caller;
use std::fs::File;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::Command;

/// Where a gateway keeps things.
pub struct Kept {
    folder: tempfile::TempDir,
    postgres: Option<Database>,
    redis: Option<Redis>,
}

/// Names the variable that has the database's URL.
const DATABASE: &str = "TIDEGATE_TEST_CANARIES";

impl Kept {
    pub fn in_files() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let saved = folder.path().join("redis");
        std::fs::create_dir(&saved).unwrap();
        Self { redis: Redis::start_in(&saved), postgres: None, folder }
    }

    /// `None`, said loudly, where there is no server.
    pub fn in_postgres() -> Option<Self> {
        Some(Self { postgres: Some(Database::new()?), ..Self::in_files() })
    }

    /// Starts a gateway; its log, with everything switched on, is in the folder too.
    pub fn serve(&self, upstream: &StandIn) -> Server {
        let path = self.folder.path().join("tidegate.toml");
        std::fs::write(&path, self.config(upstream)).unwrap();
        for folder in ["documents", "temp"] {
            std::fs::create_dir_all(self.folder.path().join(folder)).unwrap();
        }
        std::fs::write(self.folder.path().join("documents/tides.txt"), "High water is at noon.").unwrap();
        let log = File::options().create(true).append(true).open(self.folder.path().join("log")).unwrap();
        let mut command = Server::command(&path);
        command.env("RUST_LOG", "trace").env("NO_COLOR", "1").env("TMPDIR", self.folder.path().join("temp"));
        if let Some(database) = &self.postgres {
            command.env(DATABASE, database.url());
        }
        Server::run(command.stderr(log))
    }

    fn config(&self, upstream: &StandIn) -> String {
        let names = ["echo", "namer", "vectors", "breaks", "refuses", "mumbles", "babbles"];
        let models: String = names.map(|name| upstream.model(name)).concat();
        let guest = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/guests/dist/remembers.wasm");
        let limits = "[pipeline.stage.limits]\nwall_ms = 20000\ncpu_ms = 5000\n";
        let place = if self.postgres.is_some() { format!("postgres_env = \"{DATABASE}\"\n") } else { String::new() };
        let shared = self
            .redis
            .as_ref()
            .map_or_else(String::new, |redis| format!("[shared]\nurl = \"{}\"\ndeadline_ms = 2000\n", redis.url()));
        let stage = |plugin: &str, more: &str| format!("[[pipeline.stage]]\nplugin = \"{plugin}\"\n{more}");
        let stages = [
            stage("pii-guard", limits),
            stage(
                "semantic-cache",
                &format!(
                    "on_error = \"open\"\n{limits}[pipeline.stage.grants]\nkv_kib = 4096\nvectors = {{ answers = \"write\" }}\n\
                 models = {{ embedder = \"vectors\" }}\n"
                ),
            ),
            stage(
                "folder-retriever",
                &format!(
                    "config = {{ mount = \"notes\" }}\n{limits}[pipeline.stage.grants]\nkv_kib = 1024\n\
                 documents = {{ notes = {:?} }}\n",
                    self.folder.path().join("documents")
                ),
            ),
            stage(
                "unkept-remembers",
                &format!("file = {guest:?}\nstages = [\"memory\"]\n{limits}[pipeline.stage.grants]\nkv_kib = 64\n"),
            ),
            stage("calculator", limits),
            stage("audit-observer", limits),
        ];
        format!(
            "[server]\nlisten = \"127.0.0.1:0\"\n[plugins]\nkv = \"store\"\n{}{models}[store]\npath = \"data\"\n{place}\
             [store.titles]\nmodel = \"namer\"\n[store.summaries]\nmodel = \"namer\"\nrecent_turns = 1\nfrom_percent = 1\n{shared}\
             [pipeline]\n{}",
            Caller::config(),
            stages.concat()
        )
    }

    /// How often a word is in what the gateway keeps.
    pub fn count(&self, word: &str) -> usize {
        let forms = forms(word);
        match &self.postgres {
            Some(database) => count(&database.dump(), &forms),
            None => in_files(&self.folder.path().join("data"), &forms),
        }
    }

    /// How often it is in the shared Redis, where there is one.
    pub fn count_shared(&self, word: &str) -> Option<usize> {
        let folder = self.folder.path().join("redis");
        self.redis.as_ref().map(|redis| {
            save(redis);
            in_files(&folder, &forms(word))
        })
    }

    /// It is in no file, no table and no key.
    pub fn assert_nowhere(&self, word: &str, when: &str) {
        let forms = forms(word);
        if let Some(redis) = &self.redis {
            save(redis);
        }
        let mut found = Vec::new();
        find(self.folder.path(), &forms, &mut found);
        if let Some(database) = &self.postgres {
            let dump = database.dump();
            assert!(dump.len() > 10_000, "the dump has only {} bytes", dump.len());
            let lines = dump.split(|byte| *byte == b'\n').filter(|line| count(line, &forms) > 0);
            found.extend(lines.map(|line| format!("postgres: {}", String::from_utf8_lossy(line))));
        }
        assert!(found.is_empty(), "{when}:\n{}", found.join("\n"));
    }

    pub fn log_lines(&self) -> usize {
        std::fs::read(self.folder.path().join("log")).unwrap().iter().filter(|byte| **byte == b'\n').count()
    }

    /// As an operator stops it: what is in memory is written down.
    pub fn stop(&self, mut server: Server) {
        signal::send(server.child.id(), "TERM");
        server.child.wait().unwrap();
    }
}

fn in_files(folder: &Path, forms: &[Vec<u8>]) -> usize {
    let mut found = Vec::new();
    find(folder, forms, &mut found);
    found.len()
}

/// Notes each file that has a word, with the first lines.
fn find(folder: &Path, forms: &[Vec<u8>], found: &mut Vec<String>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            find(&path, forms, found);
            continue;
        }
        // A file of the database may be gone since it was listed.
        let Ok(bytes) = std::fs::read(&path) else { continue };
        if count(&bytes, forms) > 0 {
            let lines = bytes.split(|byte| *byte == b'\n').filter(|line| count(line, forms) > 0);
            let first = lines.map(|line| String::from_utf8_lossy(&line[..line.len().min(2000)]).into_owned()).take(20);
            found.push(format!("{}: {}", path.display(), first.collect::<Vec<_>>().join("\n")));
        }
    }
}

/// Has the server write all that it holds into its folder.
fn save(redis: &Redis) {
    let mut socket = TcpStream::connect(redis.url().strip_prefix("redis://").unwrap()).unwrap();
    socket.write_all(b"SAVE\r\n").unwrap();
    let mut heard = [0; 5];
    socket.read_exact(&mut heard).unwrap();
    assert_eq!(&heard, b"+OK\r\n");
}

/// A Postgres database of a test's own, dropped with this.
struct Database {
    server: String,
    name: String,
}

impl Database {
    fn new() -> Option<Self> {
        let Ok(server) = std::env::var("TIDEGATE_TEST_POSTGRES") else {
            tidegate_skipped::skipped!("on Postgres: canaries, since TIDEGATE_TEST_POSTGRES names no server");
            return None;
        };
        let database = Self { server, name: format!("tidegate_canaries_{}", std::process::id()) };
        database.run("CREATE DATABASE", "");
        Some(database)
    }

    fn run(&self, verb: &str, more: &str) {
        let statement = format!("{verb} {} {more}", self.name);
        let psql = Command::new("psql").arg(&self.server).args(["-qc", &statement]).status();
        assert!(psql.unwrap().success(), "{statement}");
    }

    fn url(&self) -> String {
        format!("{}/{}", self.server.rsplit_once('/').unwrap().0, self.name)
    }

    /// All tables, as text.
    fn dump(&self) -> Vec<u8> {
        let dump = Command::new("pg_dump").args(["--inserts", "--dbname", &self.url()]).output().unwrap();
        assert!(dump.status.success(), "{}", String::from_utf8_lossy(&dump.stderr));
        dump.stdout
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        self.run("DROP DATABASE", "WITH (FORCE)");
    }
}
