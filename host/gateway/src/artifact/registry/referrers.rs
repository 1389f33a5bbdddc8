//! What a registry knows to belong to an artifact: the bundles of `cosign` 3. A registry that answers no questions about that
//! keeps the list under a tag (the distribution specification's "referrers", and its fallback).

use super::{Refused, Registry, header, refused};
use crate::artifact::MAX_DOCUMENT_BYTES;
use crate::artifact::bundle;
use crate::artifact::digest::Digest;
use crate::artifact::manifest::{INDEX_TYPE, Manifest};
use crate::artifact::signature::{self, MAX_SIGNATURES, Signature};
use anyhow::{Context, bail};
use serde::Deserialize;
use serde_json::Value;
use std::collections::BTreeMap;
use tidegate_egress::{EgressError, HeaderMap, HeaderValue, Method};

/// What the statement in a bundle is of, where the list says so.
const PREDICATE: &str = "dev.sigstore.bundle.predicateType";

/// Each read by itself: one that is out of order is nobody's reason to miss the others.
#[derive(Deserialize)]
struct Index {
    manifests: Vec<Value>,
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
    /// Whether it may be somebody's signature. What else is stated of an artifact (how it was built, what is in it) may be as
    /// long, and as much, as its authors like.
    fn may_sign(&self) -> bool {
        let states = self.annotations.get(PREDICATE);
        self.artifact_type == bundle::TYPE && states.is_none_or(|predicate| predicate == bundle::SIGNED)
    }
}

impl Registry {
    /// The bundles that belong to an artifact. Whoever may write there may put anything beside it: what is no bundle, or too
    /// large, is passed over with a warning.
    pub(super) async fn bundles(&self, artifact: &Digest) -> anyhow::Result<Vec<Signature>> {
        let listed = match self.list(&self.path("referrers", &artifact.to_string())).await? {
            Some(index) => Some(index),
            None => self.list(&self.path("manifests", &bundle::list_tag(artifact))).await?,
        };
        let all = listed.into_iter().flat_map(|index| index.manifests);
        let mut wanted: Vec<Referrer> = all.filter_map(|one| Referrer::deserialize(one).ok()).collect();
        wanted.retain(Referrer::may_sign);
        if wanted.len() > MAX_SIGNATURES {
            tracing::warn!("{artifact} has {} bundles; the first {MAX_SIGNATURES} are looked at", wanted.len());
        }
        let mut bundles = Vec::new();
        for one in wanted.iter().take(MAX_SIGNATURES) {
            match self.bundle(&one.digest).await {
                Ok(found) => bundles.extend(found),
                Err(error) if is_of_content(&error) => {
                    tracing::warn!("passed over a bundle of {artifact}, {}: {error:#}", one.digest.escape_debug());
                }
                Err(error) => return Err(error.context("a bundle")),
            }
        }
        Ok(bundles)
    }

    /// What a manifest holds of bundles: one.
    async fn bundle(&self, manifest: &str) -> anyhow::Result<Vec<Signature>> {
        let manifest = Digest::parse(manifest)?;
        let found = self.manifest(&manifest.to_string()).await?.context("it is listed and not there")?;
        let layers = Manifest::parse(&found)?.layers;
        let [layer] = layers.as_slice() else { bail!("it has {} layers, not one", layers.len()) };
        if layer.media_type != bundle::TYPE || layer.size > MAX_DOCUMENT_BYTES {
            bail!("it holds no bundle, or one of more than {MAX_DOCUMENT_BYTES} bytes");
        }
        signature::read(&layers, vec![self.blob(layer).await?])
    }

    /// A list; `None` where the registry has none, or knows of no such thing.
    async fn list(&self, path: &str) -> anyhow::Result<Option<Index>> {
        let headers = HeaderMap::from_iter([("accept".parse()?, HeaderValue::from_static(INDEX_TYPE))]);
        let mut answer = self.send(Method::GET, path, headers, Vec::new()).await?;
        match answer.status.as_u16() {
            200 => {}
            400 | 404 | 405 | 501 => return Ok(None),
            _ => return Err(refused("does not give the list of signatures", answer).await),
        }
        if header(&answer.headers, "content-type").split(';').next().unwrap_or_default().trim() != INDEX_TYPE {
            return Ok(None);
        }
        let read = answer.collect(MAX_DOCUMENT_BYTES).await.context("the list of signatures");
        let read =
            read.and_then(|bytes| serde_json::from_slice(&bytes).context("the list of signatures is no OCI index"));
        match read {
            Ok(index) => Ok(Some(index)),
            Err(error) if is_of_content(&error) => {
                tracing::warn!("passed over {path}: {error:#}");
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }
}

/// Whether it is a matter of what is there, and not of the registry or of the way to it, which may have it the next time.
fn is_of_content(error: &anyhow::Error) -> bool {
    match (error.downcast_ref::<EgressError>(), error.downcast_ref::<Refused>()) {
        (Some(EgressError::TooLarge { .. }), _) => true,
        (Some(_), _) => false,
        (None, Some(refused)) => refused.status == 404,
        (None, None) => true,
    }
}
