//! The manifest and config of a packed plugin: the wasm community's OCI layout (config
//! `application/vnd.wasm.config.v0+json`, one layer `application/wasm`), whose config also holds what Tidegate knows of
//! the plugin, so that tools read it without running the component.

use super::digest::Digest;
use super::{MAX_COMPONENT_BYTES, MAX_DOCUMENT_BYTES};
use anyhow::{Context, bail};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use tidegate_sandbox::Anatomy;

/// Of a manifest.
pub const MANIFEST_TYPE: &str = "application/vnd.oci.image.manifest.v1+json";
/// Of a list of manifests.
pub const INDEX_TYPE: &str = "application/vnd.oci.image.index.v1+json";
/// Of a wasm artifact's config.
pub const CONFIG_TYPE: &str = "application/vnd.wasm.config.v0+json";
/// Of a component.
pub const COMPONENT_TYPE: &str = "application/wasm";
/// The tag of a manifest in a folder's index.
pub const TAG: &str = "org.opencontainers.image.ref.name";

/// Readers of the format want a time; a real one would make each pack another artifact.
const CREATED: &str = "1970-01-01T00:00:00Z";
const TITLE: &str = "org.opencontainers.image.title";

/// A pointer to bytes by their digest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Descriptor {
    /// What they are.
    pub media_type: String,
    /// Their digest.
    pub digest: Digest,
    /// How many they are.
    pub size: u64,
    /// Whatever else there is to say.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
    /// What others write into it that is not read here.
    #[serde(flatten)]
    pub rest: Map<String, Value>,
}

impl Descriptor {
    /// Describes some bytes.
    pub fn of(media_type: &str, bytes: &[u8]) -> Self {
        Self {
            media_type: media_type.to_owned(),
            digest: Digest::of(bytes),
            size: bytes.len() as u64,
            annotations: BTreeMap::new(),
            rest: Map::new(),
        }
    }

    /// The same with an annotation more.
    pub fn with(mut self, key: &str, value: impl Into<String>) -> Self {
        self.annotations.insert(key.to_owned(), value.into());
        self
    }

    /// Refuses bytes that are not the described ones.
    pub fn check(&self, bytes: &[u8]) -> anyhow::Result<()> {
        let found = Digest::of(bytes);
        if bytes.len() as u64 != self.size {
            bail!("{} should have {} bytes and has {}: it was cut or changed", self.digest, self.size, bytes.len());
        }
        if found != self.digest {
            bail!("{} was changed: what is there has the digest {found}", self.digest);
        }
        Ok(())
    }
}

/// A manifest.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Manifest {
    /// 2.
    pub schema_version: u32,
    /// [`MANIFEST_TYPE`]
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub media_type: String,
    /// What describes the layers.
    pub config: Descriptor,
    /// The content.
    pub layers: Vec<Descriptor>,
    /// Whatever else there is to say.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
    /// What others write into it that is not read here.
    #[serde(flatten)]
    pub rest: Map<String, Value>,
}

impl Manifest {
    /// A manifest of some layers.
    pub fn new(config: Descriptor, layers: Vec<Descriptor>) -> Self {
        let media_type = MANIFEST_TYPE.to_owned();
        Self { schema_version: 2, media_type, config, layers, annotations: BTreeMap::new(), rest: Map::new() }
    }

    /// Reads one that may be anybody's.
    pub fn parse(bytes: &[u8]) -> anyhow::Result<Self> {
        let manifest: Self = serde_json::from_slice(bytes).context("it is no OCI manifest")?;
        if manifest.schema_version != 2 || !["", MANIFEST_TYPE].contains(&manifest.media_type.as_str()) {
            let (version, kind) = (manifest.schema_version, manifest.media_type.escape_debug());
            bail!("it is a manifest of schema {version} and type `{kind}`, not an OCI image manifest");
        }
        Ok(manifest)
    }

    /// Its text.
    pub fn bytes(&self) -> anyhow::Result<Vec<u8>> {
        Ok(serde_json::to_vec(self)?)
    }

    /// The config and the component of a plugin; sizes that cannot be are refused before anything is fetched.
    pub fn parts(&self) -> anyhow::Result<(&Descriptor, &Descriptor)> {
        let [layer] = self.layers.as_slice() else {
            bail!("it has {} layers; a plugin has one, of type `{COMPONENT_TYPE}`", self.layers.len())
        };
        for (part, wanted, limit) in
            [(&self.config, CONFIG_TYPE, MAX_DOCUMENT_BYTES), (layer, COMPONENT_TYPE, MAX_COMPONENT_BYTES)]
        {
            if part.media_type != wanted {
                bail!("it holds `{}` where a plugin has `{wanted}`", part.media_type.escape_debug());
            }
            if part.size > limit {
                bail!("its `{wanted}` has {} bytes; at most {limit}", part.size);
            }
        }
        Ok((&self.config, layer))
    }
}

/// What a plugin is and asks for: in the config of its artifact, and in the lock.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Claims {
    /// The plugin's name for itself.
    pub name: String,
    /// Its version.
    pub version: String,
    /// A line about it.
    pub summary: String,
    /// The stages that it exports.
    pub stages: Vec<String>,
    /// The capabilities that it needs, and what for.
    pub capabilities: BTreeMap<String, String>,
    /// It may change what it sees.
    pub mutates: bool,
    /// The same input gives the same output.
    pub deterministic: bool,
    /// Text that it may withhold.
    pub holdback_bytes: Option<u32>,
    /// Schema of its config.
    pub config_schema: Value,
}

impl Claims {
    /// What a component really is.
    pub fn of(anatomy: &Anatomy) -> Self {
        let about = &anatomy.descriptor;
        let reason = |name: &str| about.capabilities.get(name).cloned().unwrap_or_default();
        Self {
            name: about.name.clone(),
            version: about.version.clone(),
            summary: about.summary.clone(),
            stages: anatomy.stages.iter().map(|stage| stage.as_str().to_owned()).collect(),
            capabilities: anatomy.needs().into_keys().map(|name| (name.to_owned(), reason(name))).collect(),
            mutates: about.mutates,
            deterministic: about.deterministic,
            holdback_bytes: about.holdback_bytes,
            config_schema: about.config_schema.clone(),
        }
    }

    /// The first thing that is not the same.
    pub fn difference(&self, other: &Self) -> Option<&'static str> {
        let parts = [
            ("name", self.name == other.name),
            ("version", self.version == other.version),
            ("summary", self.summary == other.summary),
            ("stages", self.stages == other.stages),
            ("capabilities", self.capabilities == other.capabilities),
            ("mutates", self.mutates == other.mutates),
            ("deterministic", self.deterministic == other.deterministic),
            ("holdbackBytes", self.holdback_bytes == other.holdback_bytes),
            ("configSchema", self.config_schema == other.config_schema),
        ];
        parts.into_iter().find(|(_, same)| !same).map(|(key, _)| key)
    }
}

/// The part of a wasm config that is read again.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct WasmConfig {
    layer_digests: Vec<Digest>,
    tidegate: Option<Claims>,
}

/// Manifest and config of a component.
pub(super) fn write(component: &[u8], anatomy: &Anatomy, claims: &Claims) -> anyhow::Result<(Vec<u8>, Vec<u8>)> {
    let title = format!("{}.wasm", claims.name);
    let layer = Descriptor::of(COMPONENT_TYPE, component).with(TITLE, title);
    let imports: Vec<&str> = anatomy.imports.iter().map(|import| import.interface.as_str()).collect();
    let config = json!({
        "created": CREATED,
        "architecture": "wasm",
        // The format's word for a component; it says nothing of WASI, which plugins do not have.
        "os": "wasip2",
        "layerDigests": [layer.digest],
        "component": { "exports": anatomy.exports, "imports": imports, "target": null },
        "tidegate": claims,
    });
    let config = serde_json::to_vec(&config)?;
    if config.len() as u64 > MAX_DOCUMENT_BYTES {
        bail!("the config schema makes the artifact's config {} bytes; at most {MAX_DOCUMENT_BYTES}", config.len());
    }
    let mut manifest = Manifest::new(Descriptor::of(CONFIG_TYPE, &config), vec![layer]);
    for (key, value) in [("title", &claims.name), ("version", &claims.version), ("description", &claims.summary)] {
        manifest.annotations.insert(format!("org.opencontainers.image.{key}"), value.clone());
    }
    Ok((manifest.bytes()?, config))
}

/// What a config says of its component.
pub(super) fn claims(config: &[u8], layer: &Descriptor) -> anyhow::Result<Option<Claims>> {
    let config: WasmConfig = serde_json::from_slice(config).context("its config is no wasm config")?;
    if config.layer_digests.as_slice() != std::slice::from_ref(&layer.digest) {
        bail!("its config is of another component than its manifest");
    }
    Ok(config.tidegate)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn why(outcome: anyhow::Result<()>) -> String {
        format!("{:#}", outcome.unwrap_err())
    }

    /// The range of 32-bit floats, as libraries for schemas write it.
    #[test]
    fn a_schema_is_the_same_when_it_is_read_again() {
        let said: serde_json::Value = serde_json::from_str("{\"maximum\": 3.4028234663852886e+38}").unwrap();
        assert_eq!(serde_json::from_str::<serde_json::Value>(&said.to_string()).unwrap(), said);
    }

    #[test]
    fn a_descriptor_knows_its_bytes() {
        let descriptor = Descriptor::of(COMPONENT_TYPE, b"abc");
        assert!(descriptor.check(b"abc").is_ok());
        assert!(why(descriptor.check(b"ab")).contains("should have 3 bytes and has 2"));
        assert!(why(descriptor.check(b"abd")).contains("was changed"));
    }

    #[test]
    fn a_manifest_is_written_with_all_that_was_read_and_no_more() {
        let text = |kind: &str, rest: &str| {
            let empty = Digest::of(b"");
            format!(
                "{{\"schemaVersion\":2,{kind}\"config\":{{\"mediaType\":\"c\",\"digest\":\"{empty}\",\"size\":0}},\
                 \"layers\":[{{\"mediaType\":\"l\",\"digest\":\"{empty}\",\"size\":0{rest}}}]{rest}}}"
            )
        };
        let kind = format!("\"mediaType\":\"{MANIFEST_TYPE}\",");
        let ours = Manifest::new(Descriptor::of("c", b""), vec![Descriptor::of("l", b"")]);
        assert_eq!(String::from_utf8(ours.bytes().unwrap()).unwrap(), text(&kind, ""));
        for theirs in [text(&kind, ",\"artifactType\":\"t\",\"data\":[1,{\"b\":2,\"a\":3}]"), text("", "")] {
            let read = Manifest::parse(theirs.as_bytes()).unwrap();
            assert_eq!(String::from_utf8(read.bytes().unwrap()).unwrap(), theirs);
        }
    }

    #[test]
    fn a_manifest_of_something_else_is_refused_before_its_parts_are_fetched() {
        let config = || Descriptor::of(CONFIG_TYPE, b"{}");
        let layer = || Descriptor::of(COMPONENT_TYPE, b"abc");
        let refused = |config: Descriptor, layers: Vec<Descriptor>| {
            let manifest = Manifest::parse(&Manifest::new(config, layers).bytes().unwrap()).unwrap();
            format!("{:#}", manifest.parts().unwrap_err())
        };
        assert!(refused(config(), vec![]).contains("0 layers"));
        assert!(refused(config(), vec![layer(), layer()]).contains("2 layers"));
        assert!(refused(Descriptor::of("text/html", b""), vec![layer()]).contains("`text/html` where a plugin has"));
        assert!(refused(config(), vec![Descriptor { size: 1 << 40, ..layer() }]).contains("at most 67108864"));
        assert!(refused(Descriptor { size: 1 << 40, ..config() }, vec![layer()]).contains("at most 1048576"));
        let index = br#"{"schemaVersion": 2, "mediaType": "application/vnd.oci.image.index.v1+json", "manifests": []}"#;
        assert!(Manifest::parse(index).is_err());
    }
}
