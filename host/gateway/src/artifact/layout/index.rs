//! The index of a folder: its manifests, and which tag each has. Others write it too, with tools and keys of their own: what is
//! not read here stays as it was.

use crate::artifact::digest::Digest;
use crate::artifact::manifest::{Descriptor, INDEX_TYPE, TAG};
use crate::artifact::signature;
use anyhow::{Context, bail};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use std::collections::BTreeSet;

/// The index of a folder.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
#[serde(from = "Written", into = "Written")]
pub(super) struct Index {
    pub(super) manifests: Vec<Descriptor>,
    /// Entries that cannot be read here, such as by a digest of another kind.
    others: Vec<Value>,
    schema_version: u32,
    media_type: String,
    rest: Map<String, Value>,
}

/// As it is in the file.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Written {
    schema_version: u32,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    media_type: String,
    manifests: Vec<Value>,
    #[serde(flatten)]
    rest: Map<String, Value>,
}

impl From<Written> for Index {
    fn from(written: Written) -> Self {
        let Written { schema_version, media_type, manifests: all, rest } = written;
        let (mut manifests, mut others) = (Vec::new(), Vec::new());
        for one in all {
            match Descriptor::deserialize(&one) {
                Ok(one) => manifests.push(one),
                Err(_) => others.push(one),
            }
        }
        Self { manifests, others, schema_version, media_type, rest }
    }
}

impl From<Index> for Written {
    fn from(index: Index) -> Self {
        let Index { manifests, others, schema_version, media_type, rest } = index;
        let manifests = manifests.iter().map(|one| json!(one)).chain(others).collect();
        Self { schema_version, media_type, manifests, rest }
    }
}

impl Default for Index {
    fn default() -> Self {
        let (manifests, others, media_type) = (Vec::new(), Vec::new(), INDEX_TYPE.into());
        Self { manifests, others, schema_version: 2, media_type, rest: Map::new() }
    }
}

impl Index {
    /// All but signatures; one with several tags comes with each.
    pub(super) fn artifacts(&self) -> impl Iterator<Item = &Descriptor> {
        self.manifests.iter().filter(|one| !signature::is_tag(name(one)))
    }

    /// Whether it has entries that cannot be read here.
    pub(super) fn has_others(&self) -> bool {
        !self.others.is_empty()
    }

    /// The manifest of an artifact's signatures.
    pub(super) fn signatures(&self, artifact: &Digest) -> Option<&Descriptor> {
        let tag = signature::tag(artifact);
        self.manifests.iter().find(|one| name(one) == tag)
    }

    /// The entry of a digest or tag; without either, the only one that has a tag, or the only one at all.
    pub(super) fn find(&self, tag: Option<&str>, digest: Option<&Digest>) -> anyhow::Result<&Descriptor> {
        let there = || {
            // Tags are whatever somebody wrote: nothing of them steers a terminal.
            let all = self.artifacts().map(|one| format!("{} ({})", one.digest, name(one).escape_debug()));
            format!("it holds: {}", all.collect::<Vec<_>>().join(", "))
        };
        if let Some(digest) = digest {
            return self
                .artifacts()
                .find(|one| one.digest == *digest)
                .with_context(|| format!("there is no {digest}; {}", there()));
        }
        if let Some(tag) = tag {
            return self
                .artifacts()
                .find(|one| name(one) == tag)
                .with_context(|| format!("there is no `{tag}`; {}", there()));
        }
        let tagged = distinct(self.artifacts().filter(|one| !name(one).is_empty()));
        let all = if tagged.is_empty() { distinct(self.artifacts()) } else { tagged };
        match all[..] {
            [only] => Ok(only),
            [] => bail!("it holds no plugin"),
            _ => bail!(
                "it holds more than one plugin; name a tag or a digest or, where a folder alone can be named, take the \
                 wanted one into a folder of its own (`tidegate plugin pull file:DIR:TAG --output FOLDER`); {}",
                there()
            ),
        }
    }

    /// Forgets what it holds but the signatures of an artifact.
    pub(super) fn keep_signatures_alone(&mut self, artifact: &Digest) {
        let tag = signature::tag(artifact);
        self.manifests.retain(|one| one.annotations.get(TAG) == Some(&tag));
    }

    /// Forgets the signatures of an artifact.
    pub(super) fn forget_signatures(&mut self, artifact: &Digest) {
        let tag = signature::tag(artifact);
        self.manifests.retain(|one| one.annotations.get(TAG) != Some(&tag));
    }

    /// Gives an artifact a tag, which changes nothing where it alone has that. Whatever had it before stays without, as in a
    /// registry: others may have pinned it.
    pub(super) fn tag(&mut self, descriptor: Descriptor, tag: &str) {
        let mut tagged = self.manifests.iter().filter(|one| name(one) == tag);
        if tagged.next().is_some_and(|one| is_same(one, &descriptor)) && tagged.next().is_none() {
            return;
        }
        let descriptor = self.take(&descriptor, tag).unwrap_or(descriptor);
        for old in &mut self.manifests {
            if old.annotations.get(TAG).is_some_and(|found| found == tag) {
                old.annotations.remove(TAG);
            }
        }
        self.manifests.push(descriptor.with(TAG, tag));
        // An entry without a tag is for what has no other, or for what somebody says in it.
        let (named, unnamed): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.manifests).into_iter().partition(|one| one.annotations.contains_key(TAG));
        let is_needed = |one: &Descriptor| says_more(one) || named.iter().all(|other| other.digest != one.digest);
        let kept: Vec<_> = unnamed.into_iter().filter(is_needed).collect();
        // Behind what they are of, be they written anew or not.
        let (signatures, artifacts): (Vec<_>, Vec<_>) = named.into_iter().partition(|one| signature::is_tag(name(one)));
        self.manifests = [artifacts, signatures, kept].concat();
    }

    /// The entry that an artifact has already with this tag or without any: others may have written more into it.
    fn take(&mut self, wanted: &Descriptor, tag: &str) -> Option<Descriptor> {
        let at = self.manifests.iter().position(|one| is_same(one, wanted) && ["", tag].contains(&name(one)))?;
        Some(self.manifests.remove(at))
    }
}

/// Whether two entries are of one content, whatever else they say of it.
fn is_same(one: &Descriptor, other: &Descriptor) -> bool {
    (&one.media_type, &one.digest, one.size) == (&other.media_type, &other.digest, other.size)
}

fn says_more(one: &Descriptor) -> bool {
    !one.annotations.is_empty() || !one.rest.is_empty()
}

/// An entry's tag; empty where it has none.
fn name(one: &Descriptor) -> &str {
    one.annotations.get(TAG).map(String::as_str).unwrap_or_default()
}

/// Each digest once, by its first entry.
pub(super) fn distinct<'a>(all: impl Iterator<Item = &'a Descriptor>) -> Vec<&'a Descriptor> {
    let mut seen = BTreeSet::new();
    all.filter(|one| seen.insert(one.digest.hex())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::artifact::manifest::MANIFEST_TYPE;

    fn read(index: &Value) -> Index {
        serde_json::from_value(index.clone()).unwrap()
    }

    fn described(content: &str) -> Descriptor {
        Descriptor::of(MANIFEST_TYPE, content.as_bytes())
    }

    #[test]
    fn what_others_wrote_into_it_stays_in_it() {
        let mut theirs = json!(described("theirs").with(TAG, "1").with("by", "them"));
        theirs["platform"] = json!({"os": "linux", "architecture": "wasm"});
        theirs["artifactType"] = "text/x".into();
        theirs["data"] = "dGhlaXJz".into();
        theirs["urls"] = json!(["https://example.com"]);
        let strange = json!({"mediaType": MANIFEST_TYPE, "digest": "sha512:abc", "size": 3});
        let all = json!([strange, theirs, 7]);
        let before = json!({"schemaVersion": 2, "manifests": all, "annotations": {"by": "them"}, "subject": strange});
        let mut index = read(&before);
        assert!(index.has_others());
        index.tag(described("ours"), "2");
        // The same again under its tag is what it was, and where.
        index.tag(described("theirs"), "1");
        let now = json!(index);
        let ours = json!(described("ours").with(TAG, "2"));
        assert_eq!(now["manifests"], json!([theirs, ours, strange, 7]));
        for key in ["schemaVersion", "mediaType", "annotations", "subject"] {
            assert_eq!(now.get(key), before.get(key), "{key}");
        }
        // Who loses the tag keeps the rest.
        index.tag(described("ours"), "1");
        theirs["annotations"].as_object_mut().unwrap().remove(TAG);
        assert!(json!(index)["manifests"].as_array().unwrap().contains(&theirs));
    }
    #[test]
    fn only_the_tag_of_signatures_is_theirs() {
        let mut index = Index::default();
        let of_signatures = signature::tag(&Digest::of(b"theirs"));
        let no_digest = format!("sha256-{}.sig", "x".repeat(64));
        for tag in ["1.sig", "sha256-ab.sig", no_digest.as_str(), of_signatures.as_str()] {
            index.tag(described(tag), tag);
        }
        let found: Vec<_> = index.artifacts().map(name).collect();
        assert_eq!(found, ["1.sig", "sha256-ab.sig", &no_digest]);
        assert_eq!(index.find(Some("1.sig"), None).unwrap().digest, described("1.sig").digest);
    }
    #[test]
    fn tags_of_others_are_shown_and_not_obeyed() {
        let mut index = Index::default();
        for tag in ["1", "\u{1b}[2Jall is well\nsigned by      everybody"] {
            index.tag(described(tag), tag);
        }
        for (tag, digest) in [(None, None), (Some("2"), None), (None, Some(Digest::of(b"")))] {
            let said = index.find(tag, digest.as_ref()).unwrap_err().to_string();
            assert!(said.contains("(\\u{1b}[2Jall is well\\nsigned by      everybody)"), "{said:?}");
            assert!(!said.contains(['\u{1b}', '\n']), "{said:?}");
        }
    }
}
