//! Addresses to listen on: an IP and a port. Names are not looked up: which of its addresses would be meant is not plain.

use serde::{Deserialize, Deserializer, de::Error};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

/// Where a port is not said.
const PORT: u16 = 8080;

/// Reads an address; one that is none is named with the address that it probably means.
pub(crate) fn parse(text: &str) -> Result<SocketAddr, String> {
    text.parse().map_err(|_| format!("`{text}` is no address and port; write it as {}", meant(text)))
}

/// With what is there of an IP and a port.
fn meant(text: &str) -> SocketAddr {
    if let Ok(ip) = text.trim_matches(['[', ']']).parse() {
        return SocketAddr::new(ip, PORT);
    }
    let (host, port) = text.rsplit_once(':').unwrap_or(("", text));
    let ip = host.parse().unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST));
    SocketAddr::new(ip, port.parse().unwrap_or(PORT))
}

/// For serde.
pub(super) fn read<'de, D: Deserializer<'de>>(from: D) -> Result<SocketAddr, D::Error> {
    parse(&String::deserialize(from)?).map_err(Error::custom)
}

/// For serde, where it may be absent.
pub(super) fn read_some<'de, D: Deserializer<'de>>(from: D) -> Result<Option<SocketAddr>, D::Error> {
    read(from).map(Some)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_address_is_named_with_what_it_means() {
        let check = |text: &str, meant: &str| {
            let why = parse(text).unwrap_err();
            assert!(why.starts_with(&format!("`{text}` ")) && why.ends_with(&format!(" write it as {meant}")), "{why}");
            assert!(parse(meant).is_ok(), "{meant}");
        };
        check("8080", "127.0.0.1:8080");
        check(":9000", "127.0.0.1:9000");
        check("localhost:9000", "127.0.0.1:9000");
        check("0.0.0.0", "0.0.0.0:8080");
        check("::1", "[::1]:8080");
        check("0.0.0.0:http", "0.0.0.0:8080");
        check("", "127.0.0.1:8080");
        assert_eq!(parse("127.0.0.1:1").unwrap().port(), 1);
    }
}
