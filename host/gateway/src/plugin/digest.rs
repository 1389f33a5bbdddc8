//! Content digests as registries write them.

use ring::digest::{SHA256, digest};
use std::fmt::Write;

/// `sha256:` and 64 hexadecimal digits.
pub(super) fn sha256(bytes: &[u8]) -> String {
    let mut text = String::from("sha256:");
    for byte in digest(&SHA256, bytes).as_ref() {
        // A string takes every write.
        let _ = write!(text, "{byte:02x}");
    }
    text
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_digest_of_nothing_is_the_known_one() {
        let known = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
        assert_eq!(super::sha256(b""), known);
    }
}
