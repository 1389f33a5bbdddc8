//! A client for one repository of an OCI registry (the distribution specification, version 1.1), over the program's own
//! way out ([`tidegate_egress`]): every answer has a bound, no redirect is followed unseen, and credentials go to the
//! registry and to the place of tokens that it names, never to where a redirect leads.
//!
//! Read next: `registry/auth.rs` for who asks, `registry/blobs.rs` for how content travels, `registry/referrers.rs` for
//! signatures of the newer form.

mod auth;
mod blobs;
mod credentials;
mod referrers;
mod retry;
mod url;

pub(crate) use url::certificates;

use super::digest::Digest;
use super::key::PublicKey;
use super::manifest::{INDEX_TYPE, MANIFEST_TYPE, Manifest};
use super::signature::{self, Signature};
use super::{Artifact, MAX_COMPONENT_BYTES, MAX_DOCUMENT_BYTES};
use anyhow::{Context, bail};
use auth::Auth;
use std::path::Path;
use std::time::Duration;
use tidegate_egress::{CertificateDer, Connector, ConnectorConfig, EgressError, HeaderMap, HeaderValue};
use tidegate_egress::{Method, Request, Response};

/// An upload is answered when all of it has arrived.
const ANSWER_WITHIN: Duration = Duration::from_secs(300);

/// How often signatures are added again where others add theirs at the same time.
const MAX_LOOKS: usize = 5;

/// How registries are reached.
#[derive(Clone, Debug, Default)]
pub struct Access {
    plain_http: bool,
    roots: Vec<CertificateDer<'static>>,
}

impl Access {
    /// Reads the certificates that are trusted besides the public ones.
    pub fn new(plain_http: bool, ca: Option<&Path>) -> anyhow::Result<Self> {
        let roots = match ca {
            Some(file) => certificates(file)?,
            None => Vec::new(),
        };
        Ok(Self { plain_http, roots })
    }

    /// Whether a host is spoken to without TLS: where that was asked for, and on this machine, unless a certificate was
    /// named.
    fn is_plain(&self, host: &str) -> bool {
        self.plain_http || (self.roots.is_empty() && url::is_loopback(host))
    }

    fn connector(&self, origin: &str) -> anyhow::Result<Connector> {
        if let Some(host) = origin.strip_prefix("http://")
            && !self.is_plain(host)
        {
            bail!("{origin} would be reached without TLS; --plain-http allows that");
        }
        let config = ConnectorConfig {
            first_byte_timeout: ANSWER_WITHIN,
            max_response_bytes: MAX_COMPONENT_BYTES + 1,
            extra_roots: self.roots.clone(),
            ..ConnectorConfig::new(origin)
        };
        Ok(Connector::new(config)?)
    }
}

/// A repository.
pub struct Registry {
    access: Access,
    connector: Connector,
    /// `scheme://host[:port]`
    origin: String,
    repository: String,
    auth: Auth,
}

impl Registry {
    /// Opens no connection yet.
    pub fn new(host: &str, repository: &str, access: &Access) -> anyhow::Result<Self> {
        let scheme = if access.is_plain(host) { "http" } else { "https" };
        // The one registry whose name is not its address.
        let address = if host == "docker.io" { "registry-1.docker.io" } else { host };
        let origin = url::Target::parse(&format!("{scheme}://{address}"))?.origin;
        Ok(Self {
            access: access.clone(),
            connector: access.connector(&origin)?,
            origin,
            repository: repository.to_owned(),
            auth: Auth::new(host, repository)?,
        })
    }

    /// Takes the artifact of a tag or digest, with its signatures, those of the `known` keys before others.
    pub async fn pull(&self, wanted: &str, known: &[PublicKey]) -> anyhow::Result<Artifact> {
        let absent = || format!("there is no `{wanted}` in {} of {}", self.repository, self.origin);
        let manifest = self.ask_for(wanted, MANIFEST_TYPE).await?.with_context(absent)?;
        let parsed = Manifest::parse(&manifest)?;
        let (about, layer) = parsed.parts()?;
        let config = self.blob(about).await.context("the config")?;
        let component = self.blob(layer).await.context("the component")?;
        let digest = Digest::of(&manifest);
        let mut signatures = self.signatures(&digest).await.context("its signatures")?;
        let bundles = self.bundles(&digest, known).await.context("its signatures")?;
        signature::add(&mut signatures, bundles);
        Artifact::assemble(manifest, config, component, signatures)
    }

    /// Puts an artifact under a tag. Signatures go before that, so that who pulls the tag finds them.
    pub async fn push(&self, artifact: &Artifact, tag: &str) -> anyhow::Result<()> {
        self.auth.will_push();
        let digest = artifact.digest();
        let (bundles, signatures): (Vec<_>, Vec<_>) = artifact.signatures.iter().partition(|one| one.is_bundle());
        if !signatures.is_empty() {
            self.push_signatures(&digest, &signatures).await?;
        }
        self.push_blob(&artifact.config).await.context("the config")?;
        self.push_blob(&artifact.component).await.context("the component")?;
        if !bundles.is_empty() {
            // What they belong to has to be there.
            self.push_document(&artifact.manifest, MANIFEST_TYPE, &digest.to_string()).await?;
            self.attach(&artifact.descriptor(), &bundles).await?;
        }
        self.push_document(&artifact.manifest, MANIFEST_TYPE, tag).await.map(drop)
    }

    /// Adds signatures to those that are there. A registry takes the last manifest that it gets, whatever that was made from:
    /// so what is there is looked at once more right before it is replaced, and right after. Of two who write at the same
    /// moment one sees then what the other one has done, unless the way of one is much the longer.
    pub async fn push_signatures(&self, artifact: &Digest, new: &[&Signature]) -> anyhow::Result<()> {
        self.auth.will_push();
        let tag = signature::tag(artifact);
        let mut there = self.signatures_there(&tag).await?;
        for one in new {
            self.push_blob(&one.payload).await.context("a signature")?;
        }
        for _ in 0..MAX_LOOKS {
            let (manifest, config) = signature::manifest(there.as_deref(), new.iter().copied())?;
            self.push_blob(&config).await.context("a signature")?;
            let now = self.signatures_there(&tag).await?;
            if now != there {
                there = now;
                continue;
            }
            self.push_document(&manifest, MANIFEST_TYPE, &tag).await?;
            there = self.signatures_there(&tag).await?;
            if there.as_deref().is_some_and(|there| signature::are_in(there, new)) {
                return Ok(());
            }
        }
        bail!(
            "others have written the signatures (`{tag}`) each of the {MAX_LOOKS} times that these were added; the registry may \
             not have them: do it again"
        )
    }

    async fn signatures_there(&self, tag: &str) -> anyhow::Result<Option<Vec<u8>>> {
        self.document(tag, MANIFEST_TYPE).await.context("the signatures that are there")
    }

    /// Those under the tag of signatures. What is none, or cannot be had, is passed over.
    async fn signatures(&self, artifact: &Digest) -> anyhow::Result<Vec<Signature>> {
        let there = match self.document(&signature::tag(artifact), MANIFEST_TYPE).await {
            Ok(None) => return Ok(Vec::new()),
            Ok(Some(manifest)) => signature::layers(&manifest),
            Err(error) if is_of_content(&error) => Err(error),
            Err(error) => return Err(error),
        };
        let layers = there.unwrap_or_else(|error| {
            tracing::warn!("passed over the signatures of {artifact}: {error:#}");
            Vec::new()
        });
        let mut signatures = Vec::new();
        for layer in &layers {
            match self.blob(layer).await.and_then(|payload| signature::read(layer, payload)) {
                Ok(signature) => signatures.push(signature),
                Err(error) if is_of_content(&error) => {
                    tracing::warn!("passed over a signature of {artifact}, {}: {error:#}", layer.digest);
                }
                Err(error) => return Err(error),
            }
        }
        Ok(signatures)
    }

    /// A manifest, or a list of them, by tag or digest; `None` where there is none.
    async fn document(&self, wanted: &str, kind: &'static str) -> anyhow::Result<Option<Vec<u8>>> {
        Ok(self.ask_for(wanted, kind).await?.ok())
    }

    /// The same; where there is none, what the registry says to that.
    async fn ask_for(&self, wanted: &str, kind: &'static str) -> anyhow::Result<anyhow::Result<Vec<u8>>> {
        // To whom takes no list, registries say of one that there is nothing.
        let takes = if kind == MANIFEST_TYPE { format!("{MANIFEST_TYPE}, {INDEX_TYPE}") } else { kind.to_owned() };
        let headers = HeaderMap::from_iter([("accept".parse()?, takes.parse()?)]);
        let mut answer = self.send(Method::GET, &self.path("manifests", wanted), headers, Vec::new()).await?;
        match answer.status.as_u16() {
            200 => {}
            404 => return Ok(Err(refused("does not give the manifest", answer).await)),
            _ => return Err(refused("does not give the manifest", answer).await),
        }
        match header(&answer.headers, "content-type").split(';').next().unwrap_or_default().trim() {
            said if said == kind => {}
            INDEX_TYPE => bail!("`{wanted}` is a list of artifacts, and a plugin is one; name its digest"),
            other => bail!("`{wanted}` came as `{}`, and should be `{kind}`", other.escape_debug()),
        }
        let bytes = answer.collect(MAX_DOCUMENT_BYTES).await.context("the manifest")?;
        check_digest(&bytes, wanted, header(&answer.headers, "docker-content-digest"))?;
        Ok(Ok(bytes))
    }

    /// Puts a manifest, or a list of them, under a tag or its digest; gives what the registry says to that.
    async fn push_document(&self, document: &[u8], kind: &'static str, name: &str) -> anyhow::Result<HeaderMap> {
        let headers = HeaderMap::from_iter([("content-type".parse()?, HeaderValue::from_static(kind))]);
        let answer = self.send(Method::PUT, &self.path("manifests", name), headers, document.to_vec()).await?;
        match answer.status.as_u16() {
            201 | 200 => Ok(answer.headers),
            _ => Err(refused("does not take the manifest", answer).await),
        }
    }

    fn path(&self, what: &str, which: &str) -> String {
        format!("/v2/{}/{what}/{which}", self.repository)
    }

    /// Sends a request; where credentials are asked for, once more with them.
    async fn send(&self, method: Method, path: &str, headers: HeaderMap, body: Vec<u8>) -> anyhow::Result<Response> {
        let mut request = Request { method, path: path.to_owned(), headers, body: body.into() };
        self.auth.sign(&mut request.headers);
        let answer = retry::send(&self.connector, &request).await?;
        if answer.status.as_u16() != 401 {
            return Ok(answer);
        }
        self.auth.authenticate(&answer.headers, &self.access, &self.origin).await?;
        self.auth.sign(&mut request.headers);
        let answer = retry::send(&self.connector, &request).await?;
        if answer.status.as_u16() == 401 {
            return Err(refused("does not take the credentials", answer).await);
        }
        Ok(answer)
    }
}

/// What a registry says that content is must be what it is.
fn check_digest(bytes: &[u8], wanted: &str, said: &str) -> anyhow::Result<()> {
    let found = Digest::of(bytes).to_string();
    for other in [wanted, said].into_iter().filter(|other| other.starts_with("sha256:")) {
        if other != found {
            bail!("the manifest has the digest {found}, and should have {}", other.escape_debug());
        }
    }
    Ok(())
}

fn header<'a>(headers: &'a HeaderMap, name: &str) -> &'a str {
    headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default()
}

/// What a registry says instead of doing what it was asked.
async fn refused(what: &str, mut answer: Response) -> anyhow::Error {
    let body = answer.collect(16 << 10).await.unwrap_or_default();
    let said: serde_json::Value = serde_json::from_slice(&body).unwrap_or_default();
    let first = &said["errors"][0];
    let words =
        [first["code"].as_str(), first["message"].as_str()].into_iter().flatten().collect::<Vec<_>>().join(": ");
    // Somebody else's words: short, and nothing that steers a terminal.
    let words: String = words.chars().filter(|c| !c.is_control()).take(200).collect();
    let hint = match answer.status.as_u16() {
        401 | 403 => {
            "; credentials come from TIDEGATE_REGISTRY_HOST, _USER and _PASSWORD, or from docker's config.json"
        }
        _ => "",
    };
    let later = match header(&answer.headers, "retry-after") {
        seconds if seconds.parse::<u32>().is_ok() => format!("; it may in {seconds} s"),
        _ => String::new(),
    };
    let joint = if words.is_empty() { "" } else { ", " };
    let said = format!("the registry {what} ({}{joint}{words}){hint}{later}", answer.status);
    Refused { status: answer.status.as_u16(), said }.into()
}

/// That a registry did not do what it was asked.
#[derive(Debug)]
struct Refused {
    status: u16,
    said: String,
}

impl std::fmt::Display for Refused {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.said)
    }
}

impl std::error::Error for Refused {}

/// Whether it is a matter of what is there, and not of the registry or of the way to it, which may have it the next time. With
/// 400 registries refuse to give what they take for no manifest.
fn is_of_content(error: &anyhow::Error) -> bool {
    match (error.downcast_ref::<EgressError>(), error.downcast_ref::<Refused>()) {
        (Some(EgressError::TooLarge { .. }), _) => true,
        (Some(_), _) => false,
        (None, Some(refused)) => matches!(refused.status, 400 | 404 | 406),
        (None, None) => true,
    }
}
