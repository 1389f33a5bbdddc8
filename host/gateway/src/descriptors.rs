//! How many files the program may have open: each connection is one, and most systems begin with 1,024 where they would
//! allow many more.

use crate::config::Config;

/// For what is neither a caller's connection nor made for one request: the store, plugins' folders, log collectors.
const OTHERS: u64 = 256;

/// Raises the limit to the most that the system allows; says in the log where that is too low for a config.
pub fn raise(config: &Config) {
    match rlimit::increase_nofile_limit(u64::MAX) {
        Ok(limit) => drop(lacking(limit, config).map(|why| tracing::warn!("{why}"))),
        Err(error) => tracing::warn!("the limit of open files cannot be raised: {error}"),
    }
}

fn lacking(limit: u64, config: &Config) -> Option<String> {
    let server = &config.server;
    // A request has one to its upstream, and plugins have some of their own.
    let stages = config.pipeline.iter().flat_map(|pipeline| &pipeline.stage);
    let http = stages.filter_map(|stage| stage.grants.http.as_ref());
    let [callers, upstreams] = [server.max_connections, server.max_inflight];
    let plugins = http.map(|http| http.to_grant().concurrency).fold(0, usize::saturating_add);
    let wanted = [callers, upstreams, plugins].iter().fold(OTHERS, |sum, files| sum.saturating_add(*files as u64));
    (limit < wanted).then(|| {
        format!(
            "this program may have {limit} files open, fewer than the connections of server.max_connections = {callers}, of \
             server.max_inflight = {upstreams} and of plugins (http.concurrency, {plugins} together) and {OTHERS} others take; \
             raise `LimitNOFILE=` (`ulimit -n`) to {wanted}, or lower these"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_connection_and_some_others_need_a_file() {
        let config =
            |more: &str| Config::parse(&format!("[server]\nmax_connections = 1000\nmax_inflight = 100\n{more}"));
        let plain = config("").unwrap();
        assert_eq!(lacking(1356, &plain), None);
        let why = lacking(1355, &plain).unwrap();
        assert!(why.contains("1355") && why.contains("max_connections = 1000") && why.contains("to 1356"), "{why}");
        let http = "[[pipeline.stage]]\nplugin = \"x\"\ngrants = { http = { origins = [\"https://a.example\"], concurrency = 7 } }\n";
        let with_http = config(&[http, http].concat()).unwrap();
        assert_eq!((lacking(1370, &with_http), lacking(1369, &with_http).is_some()), (None, true));
    }
}
