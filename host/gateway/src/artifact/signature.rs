//! Signatures of artifacts, in the form of `cosign`: a signed text that names the manifest's digest, kept as a layer of
//! a manifest of its own under the tag `sha256-DIGEST.sig` (`docs/decisions/0009` says why that form). A bundle, which newer
//! versions of `cosign` make, is read as well (`bundle.rs`), and kept as a layer there in a folder. Layers and annotations
//! of others stay in such manifests.
//!
//! What is signed is the digest of the manifest, which holds those of the config and of the component.

mod layers;
mod taken;

pub use layers::{are_in, layers, manifest, manifest_led_by};
pub use taken::Taken;

use super::bundle;
use super::digest::Digest;
use super::key::{PrivateKey, PublicKey};
use super::manifest::Descriptor;
use anyhow::{Context, bail};
use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use layers::passed_over;
use serde_json::{Value, json};

const PAYLOAD_TYPE: &str = "application/vnd.dev.cosign.simplesigning.v1+json";
const SIGNATURE: &str = "dev.cosignproject.cosign/signature";
/// Which key it was, for people; trust never rests on it.
const KEY: &str = "dev.tidegate.key";
/// The forms that are read: a signed text, and a bundle.
const KINDS: [&str; 2] = [PAYLOAD_TYPE, bundle::TYPE];
/// Of each form: more than one artifact has signers.
pub(super) const MAX_SIGNATURES: usize = 32;
/// What a layer may say of a signature beyond what is read: certificates and log entries are shorter. With more, the manifest of as
/// many as there may be would be longer than one that is read.
const MAX_SAID_BYTES: usize = 16 << 10;

/// Somebody's word for an artifact.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Signature {
    /// The signed text, or the bundle.
    pub payload: Vec<u8>,
    /// As it was found, with what its signer says of it to others.
    layer: Descriptor,
    proof: Proof,
    claimed_key: Option<PublicKey>,
}

/// Where the signature itself is.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Proof {
    /// Beside the text.
    Beside(Vec<u8>),
    /// In the bundle.
    Within,
}

/// What the signatures of an artifact are worth.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// Keys by which it is signed.
    pub good: Vec<PublicKey>,
    /// Keys that are named by signatures which do not fit.
    pub broken: Vec<PublicKey>,
    /// Signatures that name no key and are by none that was given: whose they are, if anybody's, is not known.
    pub unknown: usize,
}

impl Signature {
    /// Signs an artifact.
    pub fn new(key: &PrivateKey, artifact: &Digest, name: &str) -> anyhow::Result<Self> {
        let payload = serde_json::to_vec(&json!({
            "critical": {
                "identity": { "docker-reference": name },
                "image": { "docker-manifest-digest": artifact },
                "type": "cosign container image signature",
            },
            "optional": null,
        }))?;
        let (signed, public) = (key.sign(&payload), key.public());
        let layer = Descriptor::of(PAYLOAD_TYPE, &payload).with(SIGNATURE, BASE64.encode(&signed));
        let layer = layer.with(KEY, public.to_string());
        Ok(Self { payload, layer, proof: Proof::Beside(signed), claimed_key: Some(public) })
    }

    /// A bundle.
    pub fn bundled(payload: Vec<u8>) -> Self {
        let layer = Descriptor::of(bundle::TYPE, &payload);
        Self { payload, layer, proof: Proof::Within, claimed_key: None }
    }

    /// Whether it is a bundle, which belongs beside an artifact and not under the tag.
    pub fn is_bundle(&self) -> bool {
        self.proof == Proof::Within
    }

    /// Whether `key` signed `artifact`.
    fn is_of(&self, key: &PublicKey, artifact: &Digest) -> bool {
        let Proof::Beside(bytes) = &self.proof else { return bundle::is_of(&self.payload, key, artifact) };
        let said: Value = serde_json::from_slice(&self.payload).unwrap_or_default();
        said["critical"]["image"]["docker-manifest-digest"] == artifact.to_string()
            && key.verifies(&self.payload, bytes)
    }

    fn read(layer: &Descriptor, payload: Vec<u8>) -> anyhow::Result<Self> {
        if layer.media_type == bundle::TYPE {
            return Ok(Self::bundled(payload));
        }
        let text = layer.annotations.get(SIGNATURE).context("a signature's layer has no signature")?;
        let bytes = BASE64.decode(text).context("a signature is no base64")?;
        // A key that cannot be read is none that is trusted.
        let claimed_key = layer.annotations.get(KEY).and_then(|key| PublicKey::parse(key).ok());
        let mut layer = layer.clone();
        let num_said: usize = layer.annotations.iter().map(|(key, said)| key.len() + said.len()).sum();
        let num_more = if layer.rest.is_empty() { 0 } else { serde_json::to_vec(&layer.rest)?.len() };
        if num_said + num_more > MAX_SAID_BYTES {
            layer.annotations.retain(|key, _| [SIGNATURE, KEY].contains(&key.as_str()));
            layer.rest.clear();
        }
        Ok(Self { payload, layer, proof: Proof::Beside(bytes), claimed_key })
    }
}

/// Checks signatures by the keys that they name and by `trusted`.
pub fn verify(signatures: &[Signature], artifact: &Digest, trusted: &[PublicKey]) -> Verdict {
    let mut verdict = Verdict { good: Vec::new(), broken: Vec::new(), unknown: 0 };
    for signature in signatures {
        let named = signature.claimed_key.as_ref();
        match trusted.iter().chain(named).find(|key| signature.is_of(key, artifact)) {
            Some(key) if !verdict.good.contains(key) => verdict.good.push(*key),
            Some(_) => {}
            None => match named {
                Some(key) => verdict.broken.push(*key),
                None => verdict.unknown += 1,
            },
        }
    }
    verdict
}

/// Refuses an artifact that no trusted key has signed.
pub fn check_trusted(signatures: &[Signature], artifact: &Digest, trusted: &[PublicKey]) -> anyhow::Result<()> {
    let verdict = verify(signatures, artifact, trusted);
    if verdict.good.iter().any(|key| trusted.contains(key)) {
        return Ok(());
    }
    let list = |keys: &[PublicKey]| keys.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
    let remedy = "take an artifact that one of plugins.trusted_keys has signed, sign it (`tidegate plugin sign`), or \
                  name its key there";
    if let Some(key) = verdict.broken.first() {
        bail!("{artifact} has a signature in the name of {key} which is not that key's for this content; {remedy}");
    }
    if !verdict.good.is_empty() {
        bail!("{artifact} is signed by {}, which is none of plugins.trusted_keys; {remedy}", list(&verdict.good));
    }
    let trusted = list(trusted);
    match verdict.unknown {
        0 => bail!("{artifact} is not signed; {remedy} (trusted: {trusted})"),
        1 => bail!("{artifact} has 1 signature, which is by none of plugins.trusted_keys ({trusted}); {remedy}"),
        n => bail!("{artifact} has {n} signatures, which are by none of plugins.trusted_keys ({trusted}); {remedy}"),
    }
}

/// The tag of an artifact's signatures.
pub fn tag(artifact: &Digest) -> String {
    format!("sha256-{}.sig", artifact.hex())
}

/// Whether a tag is one of signatures. A plugin may have any other.
pub fn is_tag(text: &str) -> bool {
    let digits = text.strip_prefix("sha256-").and_then(|text| text.strip_suffix(".sig"));
    digits.is_some_and(|digits| Digest::parse(&format!("sha256:{digits}")).is_ok())
}

/// Whether two layers hold one signature, whatever else they say of it. One with another size could not be read.
fn is_same(one: &Descriptor, other: &Descriptor) -> bool {
    (&one.media_type, &one.digest, one.size) == (&other.media_type, &other.digest, other.size)
        && one.annotations.get(SIGNATURE) == other.annotations.get(SIGNATURE)
}

/// The signature of a layer and what was found under its digest.
pub fn read(layer: &Descriptor, payload: Vec<u8>) -> anyhow::Result<Signature> {
    layer.check(&payload)?;
    Signature::read(layer, payload)
}

/// Signatures that are `there` and new ones, as many as there is room for: one by each of the `known` keys first, then what is
/// there, which stays as it is, with all that is said of it.
pub fn merged(there: Vec<Signature>, new: &[Signature], artifact: &Digest, known: &[PublicKey]) -> Vec<Signature> {
    let mut taken = Taken::new(artifact, known);
    there.into_iter().chain(new.iter().cloned()).for_each(|one| taken.add(one));
    taken.all()
}

/// Adds those that are not there, as many as there is room for. Those of one form take no room of the other's.
pub fn add(signatures: &mut Vec<Signature>, new: impl IntoIterator<Item = Signature>) {
    let num_left_out = fill(signatures, new);
    if num_left_out > 0 {
        passed_over(num_left_out);
    }
}

/// The same; says of how many there was no room.
fn fill(signatures: &mut Vec<Signature>, new: impl IntoIterator<Item = Signature>) -> usize {
    let mut num_left_out = 0;
    for new in new {
        if signatures.iter().any(|one| is_same(&one.layer, &new.layer)) {
            continue;
        }
        if signatures.iter().filter(|one| one.is_bundle() == new.is_bundle()).count() == MAX_SIGNATURES {
            num_left_out += 1;
        } else {
            signatures.push(new);
        }
    }
    num_left_out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::artifact::MAX_DOCUMENT_BYTES;
    use crate::artifact::manifest::Manifest;

    fn key() -> PrivateKey {
        let folder = tempfile::tempdir().unwrap();
        PrivateKey::make(&folder.path().join("key.pem")).unwrap()
    }

    fn why(signatures: &[Signature], artifact: &Digest, trusted: &[PublicKey]) -> String {
        format!("{:#}", check_trusted(signatures, artifact, trusted).unwrap_err())
    }

    #[test]
    fn only_a_trusted_keys_word_for_this_very_content_counts() {
        let (ours, theirs) = (key(), key());
        let (this, other) = (Digest::of(b"this"), Digest::of(b"other"));
        let signed = [Signature::new(&ours, &this, "hush").unwrap()];
        let trusted = [ours.public()];
        assert!(check_trusted(&signed, &this, &trusted).is_ok());
        assert!(why(&[], &this, &trusted).contains("is not signed"));
        assert!(why(&signed, &this, &[theirs.public()]).contains(&format!("is signed by {}", ours.public())));
        let transplanted = why(&signed, &other, &trusted);
        assert!(transplanted.contains("not that key's for this content"), "{transplanted}");
        let mut forged = Signature::new(&theirs, &this, "hush").unwrap();
        forged.claimed_key = Some(ours.public());
        let forged = why(&[forged], &this, &trusted);
        assert!(forged.contains("not that key's") && forged.contains(&ours.public().to_string()), "{forged}");
    }

    #[test]
    fn a_second_signer_is_enough_and_an_unnamed_one_is_found() {
        let (ours, theirs) = (key(), key());
        let this = Digest::of(b"this");
        let mut of_cosign = Signature::new(&ours, &this, "hush").unwrap();
        of_cosign.claimed_key = None;
        let mut all = vec![Signature::new(&theirs, &this, "hush").unwrap()];
        add(&mut all, [of_cosign.clone(), of_cosign.clone()]);
        assert_eq!(all.len(), 2);
        assert!(check_trusted(&all, &this, &[ours.public()]).is_ok());
        assert_eq!(verify(&[of_cosign], &this, &[]).unknown, 1);
    }

    /// As cosign makes them: P-256, and no annotation of ours.
    #[test]
    fn a_signature_of_cosigns_kind_counts_where_its_key_is_trusted() {
        use ring::signature::{ECDSA_P256_SHA256_ASN1_SIGNING, EcdsaKeyPair, KeyPair};
        let random = ring::rand::SystemRandom::new();
        let pkcs8 = EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_ASN1_SIGNING, &random).unwrap();
        let pair = EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_ASN1_SIGNING, pkcs8.as_ref(), &random).unwrap();
        let this = Digest::of(b"this");
        let mut signature = Signature::new(&key(), &this, "hush").unwrap();
        signature.proof = Proof::Beside(pair.sign(&random, &signature.payload).unwrap().as_ref().to_vec());
        signature.claimed_key = None;
        let trusted = [PublicKey::P256(pair.public_key().as_ref().try_into().unwrap())];
        assert!(check_trusted(&[signature.clone()], &this, &trusted).is_ok());
        assert!(check_trusted(&[signature.clone()], &Digest::of(b"other"), &trusted).is_err());
        assert!(
            why(&[signature], &this, &[key().public()])
                .contains("has 1 signature, which is by none of plugins.trusted_keys")
        );
    }

    #[test]
    fn signatures_survive_their_manifest_and_a_changed_payload_does_not() {
        let this = Digest::of(b"this");
        let (payload, of_cosign) = bundle::tests::bundle(&bundle::tests::signed(&this));
        let bundled = Signature::bundled(payload);
        let all = [Signature::new(&key(), &this, "a").unwrap(), bundled];
        assert!(check_trusted(&all, &this, &[of_cosign]).is_ok());
        assert!(check_trusted(&all, &Digest::of(b"other"), &[of_cosign]).is_err());
        let (manifest, _) = manifest(None, &all).unwrap();
        let layers = layers(&manifest).unwrap();
        for (layer, one) in layers.iter().zip(&all) {
            assert_eq!(read(layer, one.payload.clone()).unwrap(), *one);
            let mut changed = one.payload.clone();
            changed[0] ^= 1;
            assert!(read(layer, changed).is_err());
        }
    }

    #[test]
    fn what_others_say_in_the_manifest_stays_in_it() {
        let this = Digest::of(b"this");
        let mut theirs = Signature::new(&key(), &this, "a").unwrap();
        theirs.layer = theirs.layer.with("dev.sigstore.cosign/certificate", "theirs");
        let strange = Descriptor::of("text/x", b"strange").with("of", "somebody");
        let mut there = Manifest::new(Descriptor::of("c", b"c"), vec![theirs.layer.clone(), strange]);
        there.annotations.insert("by".into(), "them".into());
        there.rest.insert("artifactType".into(), "theirs".into());
        let ours = Signature::new(&key(), &this, "a").unwrap();
        let (bytes, config) = manifest(Some(&there.bytes().unwrap()), [&theirs, &ours, &ours]).unwrap();
        let made = Manifest::parse(&bytes).unwrap();
        assert_eq!((&made.annotations, &made.rest), (&there.annotations, &there.rest));
        assert_eq!(made.layers, [&there.layers[..], &[ours.layer]].concat());
        assert!(made.config.check(&config).is_ok());
    }

    #[test]
    fn no_more_signatures_are_made_than_are_read() {
        let this = Digest::of(b"this");
        let many: Vec<Signature> = (0..=MAX_SIGNATURES).map(|_| Signature::new(&key(), &this, "a").unwrap()).collect();
        let (full, _) = manifest(None, &many[1..]).unwrap();
        assert!(layers(&full).is_ok());
        assert!(format!("{:#}", manifest(Some(&full), &many[..1]).unwrap_err()).contains("more than 32 signatures"));
    }

    #[test]
    fn what_leads_a_manifest_is_in_it_whatever_else_was_there() {
        let this = Digest::of(b"this");
        let of_many = |count: usize| -> Vec<Signature> {
            (0..count).map(|_| Signature::new(&key(), &this, "a").unwrap()).collect()
        };
        let (first, many) = (of_many(2), of_many(MAX_SIGNATURES));
        // Of those that cannot be read, too, only what has room stays; what is none of ours stays in any case.
        let strange = Descriptor::of("text/x", b"strange");
        let said = many.iter().map(|one| one.layer.clone()).chain([strange.clone()]).collect();
        let there = Manifest::new(Descriptor::of("c", b"c"), said).bytes().unwrap();
        let (bytes, config) = manifest_led_by(&first, Some(&there)).unwrap();
        let made = Manifest::parse(&bytes).unwrap();
        let layers: Vec<_> = first.iter().chain(&many[..30]).map(|one| one.layer.clone()).chain([strange]).collect();
        assert_eq!(made.layers, layers);
        assert!(made.config.check(&config).is_ok());
        assert_eq!(manifest_led_by(&first, None).unwrap(), manifest(None, &first).unwrap());
    }

    #[test]
    fn what_known_keys_signed_comes_first_and_what_is_there_before_what_anybody_brings() {
        let this = Digest::of(b"this");
        let of = |key: &PrivateKey| Signature::new(key, &this, "a").unwrap();
        let many = |count: usize| (0..count).map(|_| of(&key())).collect::<Vec<_>>();
        let (ours, theirs) = (key(), key());
        let known = [ours.public(), theirs.public()];
        let (ours, theirs) = (of(&ours), of(&theirs));
        let (worthless, others) = (many(MAX_SIGNATURES), many(MAX_SIGNATURES));
        let with = |one: &Signature| [&worthless[1..], std::slice::from_ref(one)].concat();
        // Nobody's bring nothing with them.
        assert_eq!(merged(with(&ours), &others, &this, &[]), with(&ours));
        assert_eq!(
            merged(vec![ours.clone()], &worthless, &this, &[]),
            [std::slice::from_ref(&ours), &worthless[..31]].concat()
        );
        // Those of known keys come wherever they are, and each once, lest one be in the other's way.
        let all = merged(with(&theirs), &with(&ours), &this, &known);
        assert_eq!((all.len(), &all[..2]), (MAX_SIGNATURES, &[ours.clone(), theirs.clone()][..]));
        assert_eq!(all[2..], worthless[1..31]);
        let [ours, theirs] = [(); 2].map(|()| bundle::tests::bundle(&bundle::tests::signed(&this)));
        let known = [ours.1, theirs.1];
        let said: Vec<_> =
            (0..MAX_SIGNATURES).map(|n| Signature::bundled([&ours.0[..], &vec![b' '; n]].concat())).collect();
        let theirs = Signature::bundled(theirs.0);
        let all = merged(vec![theirs.clone()], &said, &this, &known);
        assert_eq!((all.len(), &all[0], &all[1]), (MAX_SIGNATURES, &said[0], &theirs));
    }

    #[test]
    fn a_signature_comes_once_whatever_is_said_of_it_and_not_with_more_than_fits() {
        let this = Digest::of(b"this");
        let ours = Signature::new(&key(), &this, "a").unwrap();
        let mut said = ours.clone();
        said.layer = said.layer.with("dev.sigstore.cosign/certificate", "c".repeat(MAX_SAID_BYTES));
        let (bytes, _) = manifest(None, [&ours, &said]).unwrap();
        assert_eq!(Manifest::parse(&bytes).unwrap().layers, std::slice::from_ref(&ours.layer));
        let mut all = vec![said.clone()];
        add(&mut all, [ours.clone()]);
        assert_eq!(all.len(), 1);
        // Of one who says too much only the signature is taken, so that all that there may be fit into a manifest.
        assert_eq!(read(&said.layer, said.payload).unwrap(), ours);
        let mut said = ours.clone();
        said.layer.rest.insert("data".into(), "d".repeat(MAX_SAID_BYTES).into());
        assert_eq!(read(&said.layer, said.payload).unwrap(), ours);
        let mut there = Manifest::new(Descriptor::of("c", b"c"), vec![ours.layer.clone()]);
        there.annotations.insert("by".into(), "t".repeat(MAX_DOCUMENT_BYTES as usize - 900));
        let other = Signature::new(&key(), &this, "a").unwrap();
        let why = manifest(Some(&there.bytes().unwrap()), [&other]).unwrap_err().to_string();
        assert!(why.contains("would have more than 1048576 bytes"), "{why}");
    }
}
