//! Keys. Ours are ed25519: a private one is a PKCS#8 file in PEM, as `openssl` writes and reads it; a public one is a
//! line of a config, `ed25519:` and 64 hex digits. To check what `cosign` signs, its P-256 keys are public keys too.

use super::digest::hex;
use anyhow::{Context, anyhow, bail};
use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use ring::signature::{ECDSA_P256_SHA256_ASN1, ED25519, Ed25519KeyPair, KeyPair, UnparsedPublicKey};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::io::Write;
use std::path::Path;

const ED25519_NAME: &str = "ed25519:";
const P256_NAME: &str = "ecdsa-p256:";
/// What stands before the seed in PKCS#8, first version, and before a key in a SubjectPublicKeyInfo (RFC 8410, 5480).
const PKCS8: [u8; 16] =
    [0x30, 0x2e, 0x02, 0x01, 0x00, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x04, 0x22, 0x04, 0x20];
const ED25519_SPKI: [u8; 12] = [0x30, 0x2a, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x03, 0x21, 0x00];
const P256_SPKI: [u8; 26] = [
    0x30, 0x59, 0x30, 0x13, 0x06, 0x07, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01, 0x06, 0x08, 0x2a, 0x86, 0x48, 0xce,
    0x3d, 0x03, 0x01, 0x07, 0x03, 0x42, 0x00,
];
const PRIVATE: &str = "PRIVATE KEY";
const PUBLIC: &str = "PUBLIC KEY";

/// What signs.
pub struct PrivateKey(Ed25519KeyPair);

/// What a signature is checked by.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum PublicKey {
    /// As `tidegate plugin key new` makes it.
    Ed25519([u8; 32]),
    /// As `cosign generate-key-pair` makes it: an uncompressed point.
    P256([u8; 65]),
}

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
        let written =
            out.write_all(pem(PRIVATE, &[&PKCS8[..], &seed].concat()).as_bytes()).and_then(|()| out.sync_all());
        if let Err(error) = written {
            // Half of a key would be in the way of the next attempt.
            let _ = std::fs::remove_file(file);
            return Err(error).with_context(|| format!("cannot write the key {}", file.display()));
        }
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
        PublicKey::Ed25519(bytes)
    }

    /// Signs; the same message gives the same signature.
    pub fn sign(&self, message: &[u8]) -> Vec<u8> {
        self.0.sign(message).as_ref().to_vec()
    }
}

impl PublicKey {
    /// Takes what a config says.
    pub fn parse(text: &str) -> anyhow::Result<Self> {
        let ed25519 = text.strip_prefix(ED25519_NAME).and_then(unhex).map(Self::Ed25519);
        match ed25519.or_else(|| text.strip_prefix(P256_NAME).and_then(unhex).map(Self::P256)) {
            Some(key) => Ok(key),
            None => bail!(
                "`{}` is no public key: `{ED25519_NAME}` and 64 hex digits, or `{P256_NAME}` and 130, which `tidegate \
                 plugin key show FILE` prints",
                text.escape_debug()
            ),
        }
    }

    /// The public half of a private key's file, or what a public key's file holds.
    pub fn load(file: &Path) -> anyhow::Result<Self> {
        let text = std::fs::read_to_string(file).with_context(|| format!("cannot read the key {}", file.display()))?;
        if !text.contains(&format!("BEGIN {PUBLIC}")) {
            return Ok(PrivateKey::load(file)?.public());
        }
        let der = from_pem(PUBLIC, &text).with_context(|| format!("in {}", file.display()))?;
        let ed25519 = der.strip_prefix(&ED25519_SPKI).and_then(|key| key.try_into().ok()).map(Self::Ed25519);
        let p256 = || der.strip_prefix(&P256_SPKI).and_then(|key| key.try_into().ok()).map(Self::P256);
        ed25519.or_else(p256).with_context(|| format!("{} holds no ed25519 or P-256 key", file.display()))
    }

    /// Whether the key's owner signed the message.
    pub fn verifies(&self, message: &[u8], signature: &[u8]) -> bool {
        match self {
            Self::Ed25519(key) => UnparsedPublicKey::new(&ED25519, key).verify(message, signature),
            Self::P256(key) => UnparsedPublicKey::new(&ECDSA_P256_SHA256_ASN1, key).verify(message, signature),
        }
        .is_ok()
    }

    /// As `openssl` takes it.
    pub fn pem(&self) -> String {
        match self {
            Self::Ed25519(key) => pem(PUBLIC, &[&ED25519_SPKI[..], key].concat()),
            Self::P256(key) => pem(PUBLIC, &[&P256_SPKI[..], key].concat()),
        }
    }
}

/// Exactly `N` bytes.
fn unhex<const N: usize>(digits: &str) -> Option<[u8; N]> {
    if digits.len() != 2 * N || !digits.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return None;
    }
    let byte = |at: usize| u8::from_str_radix(digits.get(at..at + 2)?, 16).ok();
    let bytes: Option<Vec<u8>> = (0..2 * N).step_by(2).map(byte).collect();
    bytes?.try_into().ok()
}

impl fmt::Display for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ed25519(key) => write!(f, "{ED25519_NAME}{}", hex(key)),
            Self::P256(key) => write!(f, "{P256_NAME}{}", hex(key)),
        }
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
    let mut text = BASE64.encode(der);
    for line in (1..text.len().div_ceil(64)).rev() {
        text.insert(line * 64, '\n');
    }
    format!("-----BEGIN {label}-----\n{text}\n-----END {label}-----\n")
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

    /// Made with `openssl ecparam -name prime256v1 -genkey` and `openssl dgst -sha256 -sign`, as cosign signs.
    #[test]
    fn a_p256_key_checks_what_openssl_signed() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("cosign.pub");
        let text = "-----BEGIN PUBLIC KEY-----\nMFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAE4JyenffKx2OLMNCYYx5Q4JGJBFNN\n\
                    jwfA1FHac7kyST27YYMrrlD6hofgh01vmuDquLOl3cgOqMS8KUj9MRPhmQ==\n-----END PUBLIC KEY-----\n";
        let signature = BASE64
            .decode("MEYCIQDdWgOfCfsqjOlWEjm1qU4tErlrK6jtsKx21NxEJi4fnwIhAJH4nRFeNJkI06CrEAq3I0s46VQmzuhQhwfVNo1HFylj")
            .unwrap();
        std::fs::write(&file, text).unwrap();
        let key = PublicKey::load(&file).unwrap();
        assert_eq!(key.pem(), text);
        assert_eq!(PublicKey::parse(&key.to_string()).unwrap(), key);
        assert!(key.verifies(b"message", &signature) && !key.verifies(b"massage", &signature));
        std::fs::write(&file, text.replace("MFkw", "MFkx")).unwrap();
        assert!(PublicKey::load(&file).is_err());
    }

    #[test]
    fn what_is_no_public_key_is_refused() {
        let zeros = "0".repeat(64);
        for wrong in ["", "ed25519:", &zeros, &format!("ed25519:{zeros}00"), &format!("ed25519:+{}", &zeros[1..])] {
            assert!(PublicKey::parse(wrong).is_err(), "{wrong}");
        }
    }
}
