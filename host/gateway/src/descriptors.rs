//! How many files the program may have open: each connection is one, and most systems begin with 1,024 where they would
//! allow many more.

/// For what is no caller's connection: connections to upstreams, the store, plugins' folders.
const OTHERS: u64 = 256;

/// Raises the limit to the most that the system allows; says in the log where that is too low for `connections`.
pub fn raise(connections: usize) {
    match rlimit::increase_nofile_limit(u64::MAX) {
        Ok(limit) => drop(lacking(limit, connections).map(|why| tracing::warn!("{why}"))),
        Err(error) => tracing::warn!("the limit of open files cannot be raised: {error}"),
    }
}

fn lacking(limit: u64, connections: usize) -> Option<String> {
    let wanted = (connections as u64).saturating_add(OTHERS);
    (limit < wanted).then(|| {
        format!(
            "this program may have {limit} files open, fewer than the connections of server.max_connections = {connections} \
             and {OTHERS} others take; raise `LimitNOFILE=` (`ulimit -n`) to {wanted}, or lower max_connections"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_connection_and_some_others_need_a_file() {
        assert_eq!(lacking(1256, 1000), None);
        let why = lacking(1255, 1000).unwrap();
        assert!(why.contains("1255") && why.contains("max_connections = 1000") && why.contains("to 1256"), "{why}");
        assert!(lacking(u64::MAX, usize::MAX).is_none());
    }
}
