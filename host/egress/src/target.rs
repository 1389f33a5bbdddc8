//! A URL that somebody else wrote, taken apart in one way only. What two parsers could read differently is refused:
//! the text that is checked is the text that is sent.

use crate::error::EgressError;

/// Scheme, host and port, in the one form in which origins are compared.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct TargetOrigin {
    pub(crate) tls: bool,
    /// In lower case; an IPv6 address in its brackets.
    pub(crate) host: String,
    pub(crate) port: u16,
}

impl TargetOrigin {
    /// `scheme://host[:port]`, without the port that the scheme implies: some servers know their name only so.
    pub(crate) fn url(&self) -> String {
        match (self.tls, self.port) {
            (true, 443) => format!("https://{}", self.host),
            (false, 80) => format!("http://{}", self.host),
            (true, port) => format!("https://{}:{port}", self.host),
            (false, port) => format!("http://{}:{port}", self.host),
        }
    }
}

/// The origin and the rest of a URL: path and query, which start with a slash.
pub(crate) fn parse(url: &str) -> Result<(TargetOrigin, String), EgressError> {
    let bad = |why| EgressError::BadTarget { why };
    if !url.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err(bad("it has characters other than printable ASCII"));
    }
    if url.contains(['\\', '#', '`', '"', '<', '>', '^', '{', '|', '}']) {
        return Err(bad("it has characters that URLs do not have, or a fragment"));
    }
    let (tls, rest) = match url.split_once("://") {
        Some(("https", rest)) => (true, rest),
        Some(("http", rest)) => (false, rest),
        _ => return Err(bad("it does not start with http:// or https://")),
    };
    let end = rest.find(['/', '?']).unwrap_or(rest.len());
    let (authority, path) = rest.split_at(end);
    let (host, port) = authority_parts(authority)?;
    let port = match port {
        None if tls => 443,
        None => 80,
        Some(digits) => port_number(digits).ok_or_else(|| bad("its port is no number from 1 to 65535"))?,
    };
    let path = if path.starts_with('/') { path.to_owned() } else { format!("/{path}") };
    Ok((TargetOrigin { tls, host, port }, path))
}

fn authority_parts(authority: &str) -> Result<(String, Option<&str>), EgressError> {
    let bad = |why| EgressError::BadTarget { why };
    if authority.contains('@') {
        return Err(bad("it has a user or a password"));
    }
    if let Some(inner) = authority.strip_prefix('[') {
        let (address, after) = inner.split_once(']').ok_or_else(|| bad("its host is no address"))?;
        let address: std::net::Ipv6Addr = address.parse().map_err(|_| bad("its host is no address"))?;
        let port = match after {
            "" => None,
            after => Some(after.strip_prefix(':').ok_or_else(|| bad("its host is no address"))?),
        };
        return Ok((format!("[{address}]"), port));
    }
    let (host, port) = authority.split_once(':').map_or((authority, None), |(host, port)| (host, Some(port)));
    Ok((host_name(host)?, port))
}

/// A name of letters, digits and hyphens between dots, or an IPv4 address in its usual form. What ends like a number
/// is read as an address by some, in bases and lengths of their own.
fn host_name(host: &str) -> Result<String, EgressError> {
    let bad = |why| EgressError::BadTarget { why };
    let host = host.to_ascii_lowercase();
    let good = |label: &str| {
        (1..=63).contains(&label.len())
            && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    if host.len() > 253 || !host.split('.').all(good) {
        return Err(bad("its host is no name"));
    }
    let last = host.rsplit('.').next().unwrap_or_default();
    let number = last.bytes().all(|byte| byte.is_ascii_digit())
        || last.strip_prefix("0x").is_some_and(|digits| digits.bytes().all(|byte| byte.is_ascii_hexdigit()));
    if number && host.parse::<std::net::Ipv4Addr>().is_err() {
        return Err(bad("its host is an address in an unusual form"));
    }
    Ok(host)
}

fn port_number(digits: &str) -> Option<u16> {
    let plain = (1..=5).contains(&digits.len()) && digits.bytes().all(|byte| byte.is_ascii_digit());
    digits.parse().ok().filter(|port| plain && *port != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_urls_are_taken_apart() {
        let check = |url: &str, origin: &str, path: &str| {
            let (found, rest) = parse(url).unwrap();
            assert_eq!((found.url().as_str(), rest.as_str()), (origin, path), "{url}");
        };
        check("https://API.example.com", "https://api.example.com", "/");
        check("http://h:80/a/b?c=d/e", "http://h", "/a/b?c=d/e");
        check("http://h?q=1", "http://h", "/?q=1");
        check("http://127.0.0.1:8080/x%20y", "http://127.0.0.1:8080", "/x%20y");
        check("http://[0:0::1]:81/", "http://[::1]:81", "/");
    }

    #[test]
    fn what_could_be_read_in_two_ways_is_refused() {
        for url in [
            "",
            "h",
            "//h/",
            "ftp://h/",
            "HTTP://h/",
            "http:/h/",
            "http:h",
            "http:///",
            "http://",
            "http://:80/",
            "http://a@b/",
            "http://a:b@c/",
            "http://h\\@e/",
            "http://h#@e/",
            "http://h /",
            "http://h\t/",
            "http://h\n/",
            "http://h\u{0}/",
            "http://é/",
            "http://a。b/",
            "http://h:0/",
            "http://h:65536/",
            "http://h:+80/",
            "http://h:/",
            "http://h:8 0/",
            "http://2130706433/",
            "http://0x7f000001/",
            "http://0177.0.0.1/",
            "http://127.1/",
            "http://127.0.0.1./",
            "http://h./",
            "http://.h/",
            "http://a..b/",
            "http://-a/",
            "http://a_b/",
            "http://%31/",
            "http://[::1/",
            "http://[::1]x/",
            "http://[fe80::1%25eth0]/",
            "http://[::1]:/",
            "http://1.2.3.4.5/",
            "http://0x7f.1/",
            "http://1/",
            "http://256.1.1.1/",
        ] {
            assert!(parse(url).is_err(), "{url:?}");
        }
    }
}
