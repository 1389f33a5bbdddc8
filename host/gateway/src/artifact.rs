//! What a plugin is between its author and a server: its component, what it says of itself, and signatures, in the
//! form in which registries keep things (OCI). It is the layout that the wasm community agreed on, signed in cosign's
//! form (`docs/decisions/0009`).
//!
//! Invariant: whoever holds an [`Artifact`] holds bytes that fit their digests, from the manifest down. Whether they are
//! trusted is asked apart from that ([`signature`]), and whether they are those that were reviewed, too ([`lock`]).
//! Read next: `manifest.rs` for the format, `layout.rs` and `registry.rs` for the two places where artifacts are.

pub mod bundle;
pub mod digest;
pub mod key;
pub mod layout;
pub mod lock;
pub mod manifest;
pub mod place;
pub mod reference;
pub mod registry;
pub mod signature;
pub(crate) mod whole;

use anyhow::{Context, bail};
use digest::Digest;
use manifest::{Claims, Descriptor, Manifest};
use signature::Signature;
use tidegate_sandbox::Anatomy;

/// What the sandbox takes at most.
pub const MAX_COMPONENT_BYTES: u64 = tidegate_sandbox::MAX_COMPONENT_BYTES as u64;
/// Of a manifest or a config; ours have a few thousand.
pub const MAX_DOCUMENT_BYTES: u64 = 1 << 20;

/// A packed plugin.
#[derive(Clone, Debug)]
pub struct Artifact {
    /// The manifest as it is written; its digest is the artifact's.
    pub manifest: Vec<u8>,
    /// The config as it is written.
    pub config: Vec<u8>,
    /// The component.
    pub component: Vec<u8>,
    /// What the config says of the component; `None` where another tool packed it.
    pub claims: Option<Claims>,
    /// Signatures of the manifest, none of them checked yet.
    pub signatures: Vec<Signature>,
}

impl Artifact {
    /// Packs a component. The same component gives the same bytes.
    pub fn pack(component: Vec<u8>, anatomy: &Anatomy) -> anyhow::Result<Self> {
        let claims = Claims::of(anatomy);
        let (manifest, config) = manifest::write(&component, anatomy, &claims)?;
        Ok(Self { manifest, config, component, claims: Some(claims), signatures: Vec::new() })
    }

    /// Puts together what was read, once the parts fit their descriptors.
    pub fn assemble(
        manifest: Vec<u8>,
        config: Vec<u8>,
        component: Vec<u8>,
        signatures: Vec<Signature>,
    ) -> anyhow::Result<Self> {
        let parsed = Manifest::parse(&manifest)?;
        let (about, layer) = parsed.parts()?;
        about.check(&config).context("the config")?;
        layer.check(&component).context("the component")?;
        let claims = manifest::claims(&config, layer)?;
        Ok(Self { manifest, config, component, claims, signatures })
    }

    /// What it is known by.
    pub fn digest(&self) -> Digest {
        Digest::of(&self.manifest)
    }

    /// The descriptor of the manifest.
    pub fn descriptor(&self) -> Descriptor {
        Descriptor::of(manifest::MANIFEST_TYPE, &self.manifest)
    }

    /// The tag that it gets where nobody names one and it is alone: its version.
    pub fn default_tag(&self) -> anyhow::Result<String> {
        self.as_tag(self.version_tag()?)
    }

    /// The tag that it gets where nobody names one and other plugins may be beside it.
    pub fn default_tag_among_others(&self) -> anyhow::Result<String> {
        self.as_tag(format!("{}-{}", self.known()?.name, self.version_tag()?))
    }

    fn version_tag(&self) -> anyhow::Result<String> {
        // A tag has no plus sign.
        Ok(self.known()?.version.replace('+', "_"))
    }

    /// Whoever packed it may have written anything: a path, or the tag of another artifact's signatures.
    fn as_tag(&self, said: String) -> anyhow::Result<String> {
        if reference::is_tag(&said) && !signature::is_tag(&said) {
            return Ok(said);
        }
        bail!("the artifact {} says that it is `{}`, which is no tag; name one", self.digest(), said.escape_debug())
    }

    fn known(&self) -> anyhow::Result<&Claims> {
        self.claims.as_ref().context("the artifact does not say its version; name a tag")
    }

    /// Refuses an artifact whose config says something else than its component.
    pub fn check_claims(&self, anatomy: &Anatomy) -> anyhow::Result<()> {
        let Some(claims) = &self.claims else { return Ok(()) };
        let mut real = Claims::of(anatomy);
        if claims.capabilities.keys().eq(&anatomy.imported()) {
            // Packed when imports alone counted. What is shown to an operator is what the component needs.
            real.capabilities.retain(|name, _| claims.capabilities.contains_key(name));
        }
        match claims.difference(&real) {
            Some(key) => bail!(
                "the artifact {} says another `{key}` than its component; do not use it: whoever packed it changed one \
                 of the two",
                self.digest()
            ),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn what_an_artifact_says_of_itself_is_its_tag_only_where_it_is_one() {
        let tags = |name: &str, version: &str| {
            let claims = serde_json::from_value(json!({
                "name": name, "version": version, "summary": "x", "stages": [], "capabilities": {}, "mutates": false,
                "deterministic": true, "holdbackBytes": null, "configSchema": {},
            }));
            let (manifest, config, component) = (Vec::new(), Vec::new(), Vec::new());
            let signatures = Vec::new();
            let artifact = Artifact { manifest, config, component, claims: Some(claims.unwrap()), signatures };
            [artifact.default_tag(), artifact.default_tag_among_others()].map(|tag| tag.ok())
        };
        assert_eq!(tags("hush", "1.0.0+x"), [Some("1.0.0_x".into()), Some("hush-1.0.0_x".into())]);
        let signatures = format!("sha256-{}.sig", "0".repeat(64));
        for version in ["../../other/manifests/1", "", "1 2", "1\n2", &"1".repeat(129)] {
            assert_eq!(tags("hush", version)[0], None, "{version}");
        }
        assert_eq!(tags("hush", &signatures), [None, Some(format!("hush-{signatures}"))]);
        assert_eq!(tags("a/b", "1.0.0"), [Some("1.0.0".into()), None]);
    }
}
