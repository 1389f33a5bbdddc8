//! ed25519 keys. A private one is a PKCS#8 file in PEM, as `openssl` writes and reads it; a public one is a line of a
//! config, `ed25519:` and 64 hex digits.

use super::digest::hex;
use anyhow::{Context, anyhow, bail};
use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use ring::signature::{ED25519, Ed25519KeyPair, KeyPair, UnparsedPublicKey};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::io::Write;
use std::path::Path;

const ALGORITHM: &str = "ed25519:";
/// What stands before the seed in PKCS#8, first version, and before the key in a SubjectPublicKeyInfo (RFC 8410).
const PKCS8: [u8; 16] =
    [0x30, 0x2e, 0x02, 0x01, 0x00, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x04, 0x22, 0x04, 0x20];
const SPKI: [u8; 12] = [0x30, 0x2a, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x03, 0x21, 0x00];
const PRIVATE: &str = "PRIVATE KEY";
const PUBLIC: &str = "PUBLIC KEY";

/// What signs.
pub struct PrivateKey(Ed25519KeyPair);

/// What a signature is checked by.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct PublicKey([u8; 32]);

impl PrivateKey {
    /// Makes a key and writes it to a new file that nobody else can read.
    pub fn make(file: &Path) -> anyhow::Result<Self> {
        use std::os::unix::fs::OpenOptionsExt;
        let mut seed = [0_u8; 32];
        getrandom::fill(&mut seed).context("this machine gives no random numbers")?;
        let key = Ed25519KeyPair::from_seed_unchecked(&seed).map_err(|error| anyhow!("no key comes of it: {error}"))?;
        let mut out = std::fs::OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(file)
            .with_context(|| format!("cannot make {}; a key is never overwritten", file.display()))?;
        out.write_all(pem(PRIVATE, &[&PKCS8[..], &seed].concat()).as_bytes())?;
        out.sync_all()?;
        Ok(Self(key))
    }

    /// Reads a key's file.
    pub fn load(file: &Path) -> anyhow::Result<Self> {
        let text = std::fs::read_to_string(file).with_context(|| {
            format!("cannot read the key {}; `tidegate plugin key new FILE` makes one", file.display())
        })?;
        let der = from_pem(PRIVATE, &text).with_context(|| format!("in {}", file.display()))?;
        let key = Ed25519KeyPair::from_pkcs8_maybe_unchecked(&der);
        Ok(Self(key.map_err(|why| anyhow!("{} holds no ed25519 key: {why}", file.display()))?))
    }

    /// Its other half.
    pub fn public(&self) -> PublicKey {
        let mut bytes = [0_u8; 32];
        bytes.copy_from_slice(self.0.public_key().as_ref());
        PublicKey(bytes)
    }

    /// Signs; the same message gives the same signature.
    pub fn sign(&self, message: &[u8]) -> Vec<u8> {
        self.0.sign(message).as_ref().to_vec()
    }
}

impl PublicKey {
    /// Takes what a config says.
    pub fn parse(text: &str) -> anyhow::Result<Self> {
        let digits = text.strip_prefix(ALGORITHM).unwrap_or_default();
        let byte = |at: usize| digits.get(at..at + 2).and_then(|pair| u8::from_str_radix(pair, 16).ok());
        let bytes: Option<Vec<u8>> = (0..64).step_by(2).map(byte).collect();
        match bytes.and_then(|bytes| bytes.try_into().ok()) {
            Some(bytes) if digits.len() == 64 && digits.bytes().all(|b| b.is_ascii_hexdigit()) => Ok(Self(bytes)),
            _ => bail!(
                "`{}` is no public key: `{ALGORITHM}` and 64 hex digits, which `tidegate plugin key show FILE` prints",
                text.escape_debug()
            ),
        }
    }

    /// Whether the key's owner signed the message.
    pub fn verifies(&self, message: &[u8], signature: &[u8]) -> bool {
        UnparsedPublicKey::new(&ED25519, &self.0).verify(message, signature).is_ok()
    }

    /// As `openssl` takes it.
    pub fn pem(&self) -> String {
        pem(PUBLIC, &[&SPKI[..], &self.0].concat())
    }
}

impl fmt::Display for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{ALGORITHM}{}", hex(&self.0))
    }
}

impl fmt::Debug for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

impl TryFrom<String> for PublicKey {
    type Error = anyhow::Error;

    fn try_from(text: String) -> anyhow::Result<Self> {
        Self::parse(&text)
    }
}

impl From<PublicKey> for String {
    fn from(key: PublicKey) -> Self {
        key.to_string()
    }
}

fn pem(label: &str, der: &[u8]) -> String {
    // Ours have at most 48 bytes: one line of 64 characters.
    format!("-----BEGIN {label}-----\n{}\n-----END {label}-----\n", BASE64.encode(der))
}

fn from_pem(label: &str, text: &str) -> anyhow::Result<Vec<u8>> {
    let (begin, end) = (format!("-----BEGIN {label}-----"), format!("-----END {label}-----"));
    let inner = text.split_once(&begin).and_then(|(_, rest)| rest.split_once(&end)).map(|(inner, _)| inner);
    let inner = inner.with_context(|| format!("there is no `{begin}`: it is no unencrypted PKCS#8 key in PEM"))?;
    let digits: String = inner.split_whitespace().collect();
    BASE64.decode(digits).context("it is no base64")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_signs_what_its_other_half_verifies() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("key.pem");
        let key = PrivateKey::make(&file).unwrap();
        let again = PrivateKey::load(&file).unwrap();
        let signature = again.sign(b"message");
        assert_eq!((key.public(), key.sign(b"message")), (again.public(), signature.clone()));
        let public = PublicKey::parse(&key.public().to_string()).unwrap();
        assert!(public.verifies(b"message", &signature) && !public.verifies(b"massage", &signature));
        assert!(!public.verifies(b"message", &signature[..63]) && !public.verifies(b"message", b""));
    }

    #[test]
    fn a_private_key_is_its_owners_alone_and_never_overwritten() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("key.pem");
        PrivateKey::make(&file).unwrap();
        assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
        let why = format!("{:#}", PrivateKey::make(&file).err().unwrap());
        assert!(why.contains("never overwritten"), "{why}");
    }

    /// The example of RFC 8410 (10.3), with the public key that it gives (10.1).
    #[test]
    fn a_key_of_another_program_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("key.pem");
        let text = "-----BEGIN PRIVATE KEY-----\nMC4CAQAwBQYDK2VwBCIEINTuctv5E1hK1bbY8fdp+K06/nwoy/HU++CXqI9EdVhC\n\
                    -----END PRIVATE KEY-----\n";
        std::fs::write(&file, text).unwrap();
        let public = "-----BEGIN PUBLIC KEY-----\nMCowBQYDK2VwAyEAGb9ECWmEzf6FQbrBZ9w7lshQhqowtrbLDFw4rXAxZuE=\n\
                      -----END PUBLIC KEY-----\n";
        assert_eq!(PrivateKey::load(&file).unwrap().public().pem(), public);
    }

    #[test]
    fn what_is_no_public_key_is_refused() {
        let zeros = "0".repeat(64);
        for wrong in ["", "ed25519:", &zeros, &format!("ed25519:{zeros}00"), &format!("ed25519:+{}", &zeros[1..])] {
            assert!(PublicKey::parse(wrong).is_err(), "{wrong}");
        }
    }
}
