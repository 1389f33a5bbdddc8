//! Content by digest, both ways. A download may lead elsewhere (registries keep blobs in object storage): then it is
//! asked for there without credentials, and what comes must still have the digest.

use super::url::Target;
use super::{Registry, header, refused, retry};
use crate::artifact::digest::Digest;
use crate::artifact::manifest::Descriptor;
use anyhow::{Context, bail};
use tidegate_egress::{HeaderMap, HeaderValue, Method, Request, Response};

const MAX_REDIRECTS: usize = 3;

impl Registry {
    /// The bytes of a descriptor.
    pub(super) async fn blob(&self, wanted: &Descriptor) -> anyhow::Result<Vec<u8>> {
        let path = self.path("blobs", &wanted.digest.to_string());
        let mut answer = self.send(Method::GET, &path, HeaderMap::new(), Vec::new()).await?;
        let mut origin = self.origin.clone();
        for _ in 0..MAX_REDIRECTS {
            if !answer.status.is_redirection() {
                break;
            }
            let target = Target::location(&origin, header(&answer.headers, "location"))?;
            if origin.starts_with("https://") && target.origin.starts_with("http://") {
                bail!("{origin} led to {}, which is not encrypted; its own origin is", target.origin);
            }
            answer = self.follow(&target).await.with_context(|| format!("{origin} led to {}", target.origin))?;
            origin = target.origin;
        }
        if answer.status.is_redirection() {
            bail!("{origin} led elsewhere more than {MAX_REDIRECTS} times for {}", wanted.digest);
        }
        if answer.status.as_u16() != 200 {
            return Err(refused("does not give the content", answer).await.context(wanted.digest.to_string()));
        }
        let bytes = answer.collect(wanted.size).await?;
        wanted.check(&bytes)?;
        Ok(bytes)
    }

    async fn follow(&self, target: &Target) -> anyhow::Result<Response> {
        let mut request = Request {
            method: Method::GET,
            path: target.path.clone(),
            headers: HeaderMap::new(),
            body: Default::default(),
        };
        if target.origin == self.origin {
            self.auth.sign(&mut request.headers);
            return Ok(retry::send(&self.connector, &request).await?);
        }
        Ok(retry::send(&self.access.connector(&target.origin)?, &request).await?)
    }

    /// Puts bytes, where they are not there already.
    pub(super) async fn push_blob(&self, bytes: &[u8]) -> anyhow::Result<()> {
        let digest = Digest::of(bytes).to_string();
        let there = self.send(Method::HEAD, &self.path("blobs", &digest), HeaderMap::new(), Vec::new()).await?;
        // It is there too where it is elsewhere: nobody is led to what is not.
        if there.status.as_u16() == 200 || there.status.is_redirection() {
            return Ok(());
        }
        let answer = self.send(Method::POST, &self.path("blobs", "uploads/"), HeaderMap::new(), Vec::new()).await?;
        if answer.status.as_u16() != 202 {
            return Err(refused("does not take content", answer).await);
        }
        let target = Target::location(&self.origin, header(&answer.headers, "location"))?;
        if target.origin != self.origin {
            bail!("{} sends uploads to {}; only its own origin gets them", self.origin, target.origin);
        }
        let path = target.with("digest", &digest).path;
        let kind = HeaderValue::from_static("application/octet-stream");
        let headers = HeaderMap::from_iter([("content-type".parse()?, kind)]);
        let answer = self.send(Method::PUT, &path, headers, bytes.to_vec()).await?;
        match answer.status.as_u16() {
            201 => Ok(()),
            _ => Err(refused("does not take the content", answer).await),
        }
    }
}
