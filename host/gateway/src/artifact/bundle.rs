//! Signatures in the form that `cosign` 3 makes: a sigstore bundle, whose DSSE envelope holds an in-toto statement about the
//! digest of the manifest (cosign's `specs/BUNDLE_SPEC.md`). They are read, not made. What a bundle has of certificates,
//! time stamps and a transparency log is not looked at: a signature counts where a trusted key made it.

use super::digest::Digest;
use super::key::PublicKey;
use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde::Deserialize;
use std::collections::BTreeMap;

/// Of a bundle, and of the artifact that holds one.
pub const TYPE: &str = "application/vnd.dev.sigstore.bundle.v0.3+json";
const STATEMENT_TYPE: &str = "application/vnd.in-toto+json";
/// That somebody signed it. What else may be stated of an artifact (how it was built, what is in it) is no signature.
pub const SIGNED: &str = "https://sigstore.dev/cosign/sign/v1";

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Bundle {
    dsse_envelope: Envelope,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Envelope {
    payload: String,
    payload_type: String,
    signatures: Vec<Signed>,
}

#[derive(Deserialize)]
struct Signed {
    sig: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Statement {
    predicate_type: String,
    subject: Vec<Subject>,
}

#[derive(Deserialize)]
struct Subject {
    digest: BTreeMap<String, String>,
}

/// What a bundle says that it states, signed or not.
pub fn predicate(bundle: &[u8]) -> Option<String> {
    let Bundle { dsse_envelope: envelope } = serde_json::from_slice(bundle).ok()?;
    let statement: Statement = serde_json::from_slice(&BASE64.decode(&envelope.payload).ok()?).ok()?;
    Some(statement.predicate_type)
}

/// The tag of the list of what belongs to an artifact, in registries that answer no questions about that.
pub fn list_tag(artifact: &Digest) -> String {
    format!("sha256-{}", artifact.hex())
}

/// Whether `key` signed `artifact`.
pub(super) fn is_of(bundle: &[u8], key: &PublicKey, artifact: &Digest) -> bool {
    statement(bundle, key).is_some_and(|said| {
        let is_it = |subject: &Subject| subject.digest.get("sha256").is_some_and(|hex| hex == artifact.hex());
        said.predicate_type == SIGNED && said.subject.iter().any(is_it)
    })
}

/// What `key` states, if the bundle is in order and the key's.
fn statement(bundle: &[u8], key: &PublicKey) -> Option<Statement> {
    let Bundle { dsse_envelope: envelope } = serde_json::from_slice(bundle).ok()?;
    let [signed] = envelope.signatures.as_slice() else { return None };
    let payload = BASE64.decode(&envelope.payload).ok()?;
    let signature = BASE64.decode(&signed.sig).ok()?;
    let is_signed = key.verifies(&encoded(&envelope.payload_type, &payload), &signature);
    (is_signed && envelope.payload_type == STATEMENT_TYPE).then(|| serde_json::from_slice(&payload).ok())?
}

/// What is signed of an envelope: DSSE's pre-authentication encoding.
fn encoded(kind: &str, payload: &[u8]) -> Vec<u8> {
    let head = format!("DSSEv1 {} {kind} {} ", kind.len(), payload.len());
    [head.as_bytes(), payload].concat()
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use ring::signature::{ECDSA_P256_SHA256_ASN1_SIGNING, EcdsaKeyPair, KeyPair};
    use serde_json::{Value, json};

    /// The example of DSSE's specification.
    #[test]
    fn what_is_signed_is_what_dsse_says() {
        assert_eq!(
            encoded("http://example.com/HelloWorld", b"hello world"),
            b"DSSEv1 29 http://example.com/HelloWorld 11 hello world"
        );
    }

    /// A bundle as `cosign sign --key` makes it, by a new key on P-256.
    pub fn bundle(statement: &Value) -> (Vec<u8>, PublicKey) {
        let random = ring::rand::SystemRandom::new();
        let pkcs8 = EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_ASN1_SIGNING, &random).unwrap();
        let pair = EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_ASN1_SIGNING, pkcs8.as_ref(), &random).unwrap();
        let payload = statement.to_string().into_bytes();
        let signature = pair.sign(&random, &encoded(STATEMENT_TYPE, &payload)).unwrap();
        let bundle = json!({
            "mediaType": TYPE,
            "verificationMaterial": { "publicKey": { "hint": "hint" }, "tlogEntries": [] },
            "dsseEnvelope": {
                "payload": BASE64.encode(&payload),
                "payloadType": STATEMENT_TYPE,
                "signatures": [{ "sig": BASE64.encode(signature.as_ref()) }],
            },
        });
        let key = PublicKey::P256(pair.public_key().as_ref().try_into().unwrap());
        (bundle.to_string().into_bytes(), key)
    }

    pub fn signed(artifact: &Digest) -> Value {
        json!({
            "_type": "https://in-toto.io/Statement/v1",
            "subject": [{ "digest": { "sha256": artifact.hex() }, "annotations": {} }],
            "predicateType": SIGNED,
            "predicate": {},
        })
    }

    #[test]
    fn a_bundle_counts_for_its_key_and_its_artifact_alone() {
        let (this, other) = (Digest::of(b"this"), Digest::of(b"other"));
        let (good, key) = bundle(&signed(&this));
        assert!(is_of(&good, &key, &this));
        assert!(!is_of(&good, &key, &other));
        assert!(!is_of(&good, &bundle(&signed(&this)).1, &this), "another key's");
    }

    #[test]
    fn a_bundle_that_was_changed_or_states_something_else_does_not_count() {
        let this = Digest::of(b"this");
        let mut built = signed(&this);
        built["predicateType"] = "https://slsa.dev/provenance/v1".into();
        let (attestation, key) = bundle(&built);
        assert!(!is_of(&attestation, &key, &this), "it says how it was built");

        let (good, key) = bundle(&signed(&this));
        let good: Value = serde_json::from_slice(&good).unwrap();
        let changed = |change: fn(&mut Value)| {
            let mut bundle = good.clone();
            change(&mut bundle["dsseEnvelope"]);
            is_of(bundle.to_string().as_bytes(), &key, &this)
        };
        assert!(changed(|_| {}));
        assert!(!changed(|envelope| envelope["payloadType"] = "text/plain".into()));
        assert!(!changed(|envelope| envelope["payload"] = BASE64.encode(b"{}").into()));
        assert!(!changed(|envelope| envelope["signatures"] = json!([])));
        assert!(!changed(|envelope| {
            let one = envelope["signatures"][0].clone();
            envelope["signatures"] = json!([one, one]);
        }));
        assert!(!is_of(b"no JSON", &key, &this));
    }
}
