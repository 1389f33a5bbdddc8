//! Content digests as registries write them. One that was parsed is safe as a file's name.

use anyhow::bail;
use ring::digest::{SHA256, digest};
use serde::{Deserialize, Serialize};
use std::fmt::{self, Write};

const ALGORITHM: &str = "sha256:";

/// `sha256:` and 64 hexadecimal digits in lower case.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Digest(String);

impl Digest {
    /// The digest of some bytes.
    pub fn of(bytes: &[u8]) -> Self {
        Self(format!("{ALGORITHM}{}", hex(digest(&SHA256, bytes).as_ref())))
    }

    /// Takes a digest that somebody else wrote.
    pub fn parse(text: &str) -> anyhow::Result<Self> {
        let digits = text.strip_prefix(ALGORITHM).unwrap_or_default();
        let hexadecimal = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
        if digits.len() != 64 || !digits.bytes().all(hexadecimal) {
            bail!("`{}` is no digest: `sha256:` and 64 hex digits in lower case", text.escape_debug());
        }
        Ok(Self(text.to_owned()))
    }

    /// The digits alone.
    pub fn hex(&self) -> &str {
        &self.0[ALGORITHM.len()..]
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl TryFrom<String> for Digest {
    type Error = anyhow::Error;

    fn try_from(text: String) -> anyhow::Result<Self> {
        Self::parse(&text)
    }
}

impl From<Digest> for String {
    fn from(digest: Digest) -> Self {
        digest.0
    }
}

/// In lower case.
pub(super) fn hex(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len() * 2);
    for byte in bytes {
        // A string takes every write.
        let _ = write!(text, "{byte:02x}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_digest_of_nothing_is_the_known_one() {
        let known = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
        assert_eq!(Digest::of(b"").to_string(), known);
        assert_eq!(Digest::parse(known).unwrap(), Digest::of(b""));
    }

    #[test]
    fn what_could_name_another_file_is_no_digest() {
        let known = Digest::of(b"").to_string();
        for wrong in ["", "sha256:", "sha256:../../etc/passwd", &known[..70], &known.to_uppercase(), &known[7..]] {
            assert!(Digest::parse(wrong).is_err(), "{wrong}");
        }
    }
}
