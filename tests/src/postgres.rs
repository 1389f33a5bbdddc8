//! A database of a test's own on the Postgres that it may use.

use crate::Gateway;
use std::net::SocketAddr;

/// A Postgres database of a test's own, dropped with this.
pub struct Database {
    server: String,
    name: String,
}

impl Database {
    /// `None`, said loudly, where there is no server.
    pub fn new(test: &str) -> Option<Self> {
        let Ok(server) = std::env::var("TIDEGATE_TEST_POSTGRES") else {
            tidegate_skipped::skipped!("on Postgres: {test}, since TIDEGATE_TEST_POSTGRES names no server");
            return None;
        };
        let database = Self { server, name: format!("tidegate_{test}_{}", std::process::id()) };
        database.run("CREATE DATABASE", "");
        Some(database)
    }

    fn run(&self, verb: &str, more: &str) {
        psql(&self.server, &format!("{verb} {} {more}", self.name));
    }

    /// Runs statements within it.
    pub fn inside(&self, statements: &str) {
        psql(&self.url(), statements);
    }

    pub fn url(&self) -> String {
        let (base, _) = self.server.rsplit_once('/').unwrap();
        format!("{base}/{}", self.name)
    }

    /// The login, and the host and port, of `scheme://user@host:port/database`.
    fn parts(&self) -> (&str, &str) {
        let (base, _) = self.server.rsplit_once('/').unwrap();
        base.rsplit_once('@').unwrap()
    }

    /// Where its server listens.
    pub fn address(&self) -> String {
        self.parts().1.to_owned()
    }

    /// Its URL by way of something that listens at `address` before the server.
    pub fn url_by(&self, address: SocketAddr) -> String {
        format!("{}@{address}/{}", self.parts().0, self.name)
    }

    /// A gateway that keeps what lasts here.
    pub async fn gateway(&self, config: &str, folder: &std::path::Path) -> Gateway {
        let store = format!("[store]\npath = {:?}\n", folder.display().to_string());
        let mut config = tidegate::config::Config::parse(&format!("{config}{store}[pipeline]\n")).unwrap();
        config.store.as_mut().unwrap().postgres = Some(self.url());
        Gateway::start_with(config).await
    }
}

fn psql(url: &str, statements: &str) {
    let psql = std::process::Command::new("psql").arg(url).args(["-qc", statements]).status();
    assert!(psql.unwrap().success(), "{statements}");
}

impl Drop for Database {
    fn drop(&mut self) {
        self.run("DROP DATABASE", "WITH (FORCE)");
    }
}
