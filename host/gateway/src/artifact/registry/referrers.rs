//! What a registry knows to belong to an artifact: the bundles of `cosign` 3. A registry that answers no questions about that
//! keeps the list under a tag (the distribution specification's "referrers", and its fallback).

use super::url::Target;
use super::{Registry, header, is_of_content, refused};
use crate::artifact::MAX_DOCUMENT_BYTES;
use crate::artifact::bundle;
use crate::artifact::digest::Digest;
use crate::artifact::key::PublicKey;
use crate::artifact::manifest::{Descriptor, INDEX_TYPE, MANIFEST_TYPE, Manifest};
use crate::artifact::signature::{MAX_SIGNATURES, Signature, Taken};
use anyhow::{Context, bail};
use serde::Deserialize;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use tidegate_egress::{HeaderMap, HeaderValue, Method};

/// What the statement in a bundle is of, where the list says so.
const PREDICATE: &str = "dev.sigstore.bundle.predicateType";
/// Of a config of which there is nothing to say.
const EMPTY_TYPE: &str = "application/vnd.oci.empty.v1+json";
const EMPTY: &[u8] = b"{}";
/// Bundles of one artifact, where those of known keys are looked for.
const MAX_LOOKED_AT: usize = 256;
/// Of one list. What belongs to an artifact may be as much as its authors like.
const MAX_PAGES: usize = 8;

/// Each read by itself: one that is out of order is nobody's reason to miss the others.
#[derive(Deserialize)]
struct Index {
    manifests: Vec<Value>,
}

/// A part of a list, and what the registry says that the next one is called.
struct Page {
    manifests: Vec<Value>,
    next: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Referrer {
    digest: String,
    #[serde(default)]
    artifact_type: String,
    #[serde(default)]
    annotations: BTreeMap<String, String>,
}

impl Referrer {
    fn is_called_bundle(&self) -> bool {
        self.artifact_type == bundle::TYPE
    }

    /// Whether it may be somebody's signature. What else is stated of an artifact (how it was built, what is in it) may be as
    /// long, and as much, as its authors like. The lists that `cosign` 3.0 writes itself have the config's type for the
    /// artifact's, and do not say what is stated.
    fn may_sign(&self) -> bool {
        let states = self.annotations.get(PREDICATE);
        (self.is_called_bundle() || ["", EMPTY_TYPE].contains(&self.artifact_type.as_str()))
            && states.is_none_or(|predicate| predicate == bundle::SIGNED)
    }
}

impl Registry {
    /// The bundles that belong to an artifact, one by each of the `known` keys first. Whoever may write there may put anything
    /// beside it: what is no bundle, or too large, is passed over with a warning, and while a known key's is missing, more are
    /// looked at than are taken.
    pub(super) async fn bundles(&self, artifact: &Digest, known: &[PublicKey]) -> anyhow::Result<Vec<Signature>> {
        let mut wanted = self.referrers(artifact).await?;
        wanted.retain(Referrer::may_sign);
        wanted.sort_by_key(|one| !one.is_called_bundle());
        let mut bundles = Taken::new(artifact, known);
        for (number, one) in wanted.iter().enumerate() {
            if number == MAX_LOOKED_AT || (number >= MAX_SIGNATURES && !bundles.misses_a_key()) {
                tracing::warn!("{artifact} has {} bundles; the first {number} are looked at", wanted.len());
                break;
            }
            match self.bundle(one).await {
                Ok(found) => found.into_iter().for_each(|found| bundles.add(found)),
                // A list that does not say what it lists may list anything.
                Err(error) if is_of_content(&error) && !one.is_called_bundle() => {}
                Err(error) if is_of_content(&error) => {
                    tracing::warn!("passed over a bundle of {artifact}, {}: {error:#}", one.digest.escape_debug());
                }
                Err(error) => return Err(error.context("a bundle")),
            }
        }
        Ok(bundles.all())
    }

    /// The bundle in a manifest, if it holds one in which somebody signs.
    async fn bundle(&self, one: &Referrer) -> anyhow::Result<Option<Signature>> {
        let digest = Digest::parse(&one.digest)?.to_string();
        let found = self.document(&digest, MANIFEST_TYPE).await?.context("it is listed and not there")?;
        let layers = Manifest::parse(&found)?.layers;
        let layer = match layers.as_slice() {
            [layer] if layer.media_type == bundle::TYPE && layer.size <= MAX_DOCUMENT_BYTES => layer,
            _ if !one.is_called_bundle() => return Ok(None),
            [_] => bail!("it holds no bundle, or one of more than {MAX_DOCUMENT_BYTES} bytes"),
            _ => bail!("it has {} layers, not one", layers.len()),
        };
        let content = self.blob(layer).await?;
        let states = bundle::predicate(&content).context("it holds a bundle that states nothing of an artifact")?;
        Ok((states == bundle::SIGNED).then(|| Signature::bundled(content)))
    }

    /// Puts bundles beside an artifact, as `cosign` does, but for those that are there.
    pub(super) async fn attach(&self, artifact: &Descriptor, bundles: &[&Signature]) -> anyhow::Result<()> {
        let there = self.bundles(&artifact.digest, &[]).await?;
        for new in bundles.iter().filter(|new| there.iter().all(|one| one.payload != new.payload)) {
            let attached = self.attach_one(artifact, &new.payload).await;
            attached.with_context(|| format!("cannot put the bundle {} beside it", Digest::of(&new.payload)))?;
        }
        Ok(())
    }

    async fn attach_one(&self, artifact: &Descriptor, bundle: &[u8]) -> anyhow::Result<()> {
        let named = |states| json!({"dev.sigstore.bundle.content": "dsse-envelope", PREDICATE: states});
        let annotations = bundle::predicate(bundle).map_or_else(|| json!({}), named);
        let manifest = serde_json::to_vec(&json!({
            "schemaVersion": 2, "mediaType": MANIFEST_TYPE, "artifactType": bundle::TYPE,
            "config": Descriptor::of(EMPTY_TYPE, EMPTY), "layers": [Descriptor::of(bundle::TYPE, bundle)],
            "subject": artifact, "annotations": annotations,
        }))?;
        self.push_blob(EMPTY).await?;
        self.push_blob(bundle).await?;
        let said = self.push_document(&manifest, MANIFEST_TYPE, &Digest::of(&manifest).to_string()).await?;
        if said.contains_key("oci-subject") {
            return Ok(());
        }
        let mut one = serde_json::to_value(Descriptor::of(MANIFEST_TYPE, &manifest))?;
        one["artifactType"] = bundle::TYPE.into();
        one["annotations"] = annotations;
        self.note(&artifact.digest, one).await
    }

    /// Adds to the list of what belongs to an artifact, which a registry that knows of no such thing does not keep itself. Who
    /// does so at the same moment may lose what they add: the specification has nothing against that.
    async fn note(&self, artifact: &Digest, one: Value) -> anyhow::Result<()> {
        let tag = bundle::list_tag(artifact);
        let there = self.document(&tag, INDEX_TYPE).await.context("the list of what belongs to the artifact")?;
        let mut index = match there {
            Some(bytes) => serde_json::from_slice(&bytes).unwrap_or_default(),
            None => json!({"schemaVersion": 2, "mediaType": INDEX_TYPE, "manifests": []}),
        };
        let listed = index.get_mut("manifests").and_then(Value::as_array_mut);
        let listed = listed.with_context(|| format!("`{tag}` is no OCI index"))?;
        if listed.iter().any(|other| other["digest"] == one["digest"]) {
            return Ok(());
        }
        listed.push(one);
        let index = serde_json::to_vec(&index)?;
        if index.len() as u64 > MAX_DOCUMENT_BYTES {
            bail!("`{tag}` would have more than {MAX_DOCUMENT_BYTES} bytes");
        }
        self.push_document(&index, INDEX_TYPE, &tag).await.map(drop)
    }

    /// What belongs to an artifact, as the registry answers, or by the list under the tag where that is nothing.
    async fn referrers(&self, artifact: &Digest) -> anyhow::Result<Vec<Referrer>> {
        let path = self.path("referrers", &artifact.to_string());
        // Registries that know of no such question say so in many ways, and some lead to a page for people.
        let asked = self.list(&path, |status| matches!(status, 300..=399 | 406)).await?;
        let listed = match asked {
            Some(listed) if !listed.is_empty() => Some(listed),
            _ => self.list(&self.path("manifests", &bundle::list_tag(artifact)), |_| false).await?,
        };
        Ok(listed.into_iter().flatten().filter_map(|one| Referrer::deserialize(one).ok()).collect())
    }

    /// A list, page by page; `None` where the registry has none, or says with a status of these, too, that it knows of no
    /// such thing.
    async fn list(&self, path: &str, means_none: fn(u16) -> bool) -> anyhow::Result<Option<Vec<Value>>> {
        let Some(mut page) = self.page(path, means_none).await? else { return Ok(None) };
        let mut all = std::mem::take(&mut page.manifests);
        for _ in 1..MAX_PAGES {
            let Some(next) = page.next.as_deref().and_then(|next| self.here(path, next)) else { return Ok(Some(all)) };
            let Some(more) = self.page(&next, means_none).await? else {
                tracing::warn!("the list of {path} breaks off at {next}");
                return Ok(Some(all));
            };
            page = more;
            all.append(&mut page.manifests);
        }
        if page.next.is_some() {
            tracing::warn!("the list of {path} has more than {MAX_PAGES} pages; what is on the others is passed over");
        }
        Ok(Some(all))
    }

    /// The path of a list's next page. Another host is not asked: it would be told who asks.
    fn here(&self, path: &str, next: &str) -> Option<String> {
        let target = Target::location(&self.origin, next).ok().filter(|target| target.origin == self.origin);
        if target.is_none() {
            tracing::warn!("the list of {path} goes on elsewhere, at {}, which is passed over", next.escape_debug());
        }
        target.map(|target| target.path)
    }

    async fn page(&self, path: &str, means_none: fn(u16) -> bool) -> anyhow::Result<Option<Page>> {
        let headers = HeaderMap::from_iter([("accept".parse()?, HeaderValue::from_static(INDEX_TYPE))]);
        let mut answer = self.send(Method::GET, path, headers, Vec::new()).await?;
        match answer.status.as_u16() {
            200 => {}
            400 | 404 | 405 | 501 => return Ok(None),
            other if means_none(other) => return Ok(None),
            _ => return Err(refused("does not give the list of signatures", answer).await),
        }
        if header(&answer.headers, "content-type").split(';').next().unwrap_or_default().trim() != INDEX_TYPE {
            return Ok(None);
        }
        let mut links = answer.headers.get_all("link").iter().filter_map(|value| value.to_str().ok());
        let next = links.find_map(next_page).map(str::to_owned);
        let read = answer.collect(MAX_DOCUMENT_BYTES).await.context("the list of signatures");
        let read = read.and_then(|bytes| {
            serde_json::from_slice::<Index>(&bytes).context("the list of signatures is no OCI index")
        });
        match read {
            Ok(index) => Ok(Some(Page { manifests: index.manifests, next })),
            Err(error) if is_of_content(&error) => {
                tracing::warn!("passed over {path}: {error:#}");
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }
}

/// Where a `Link` header (RFC 8288) leads with `rel="next"`. No URL has an angle bracket in it.
fn next_page(links: &str) -> Option<&str> {
    let is_next = |params: &str| {
        params.split([';', ',']).filter_map(|param| param.split_once('=')).any(|(name, value)| {
            name.trim().eq_ignore_ascii_case("rel") && value.trim().trim_matches('"').eq_ignore_ascii_case("next")
        })
    };
    let mut links = links.split('<').skip(1).filter_map(|link| link.split_once('>'));
    links.find(|(_, params)| is_next(params)).map(|(url, _)| url)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_next_page_is_the_link_that_says_so() {
        let check = |links: &str, expected: Option<&str>| assert_eq!(next_page(links), expected, "{links}");
        check("</v2/x?n=1,2&last=a>; rel=\"next\"", Some("/v2/x?n=1,2&last=a"));
        check("<https://h/x>;title=\"more\"; REL=Next", Some("https://h/x"));
        check("</first>; rel=\"first\", </second>; rel=\"next\"", Some("/second"));
        for none in ["", "</x>", "</x>; rel=\"prev\"", "/x; rel=next", "</x; rel=next", "</x>; real=next"] {
            check(none, None);
        }
    }
}
