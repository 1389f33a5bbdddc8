//! Taking artifacts from where they are and putting them there, be it a folder or a registry.

use super::Artifact;
use super::key::PublicKey;
use super::layout::Layout;
use super::reference::{PlaceName, Reference};
use super::registry::{Access, Registry};
use super::signature::Signature;
use anyhow::{Context, bail};

/// What a reference leads to, with its signatures: those of the `known` keys are found among as many others as a registry may
/// hold beside it.
pub async fn pull(reference: &Reference, access: &Access, known: &[PublicKey]) -> anyhow::Result<Artifact> {
    let artifact = match &reference.place {
        PlaceName::Folder(folder) => Layout::open(folder)?.read(reference.tag.as_deref(), reference.digest.as_ref()),
        PlaceName::Registry { host, repository } => {
            let wanted = reference.wanted()?;
            Registry::new(host, repository, access)?.pull(&wanted, known).await
        }
    };
    let artifact = artifact.with_context(|| format!("cannot take {reference}"))?;
    match &reference.digest {
        Some(digest) if *digest != artifact.digest() => bail!("{reference} led to {}", artifact.digest()),
        _ => Ok(artifact),
    }
}

/// Puts an artifact and its signatures under a reference's tag, else under its version, in a folder with its name in
/// front; answers the exact reference.
pub async fn push(artifact: &Artifact, reference: &Reference, access: &Access) -> anyhow::Result<Reference> {
    if reference.digest.is_some() {
        bail!("{reference} names a digest, which follows from the content; push to a tag");
    }
    let tag = match (&reference.tag, &reference.place) {
        (Some(tag), _) => tag.clone(),
        // A repository is one plugin's; a folder may be several's.
        (None, PlaceName::Registry { .. }) => artifact.default_tag()?,
        (None, PlaceName::Folder(_)) => artifact.default_tag_among_others()?,
    };
    match &reference.place {
        PlaceName::Folder(folder) => Layout::open_or_make(folder)?.add(artifact, &tag, &[]),
        PlaceName::Registry { host, repository } => Registry::new(host, repository, access)?.push(artifact, &tag).await,
    }
    .with_context(|| format!("cannot push to {reference}"))?;
    Ok(Reference { place: reference.place.clone(), tag: Some(tag), digest: Some(artifact.digest()) })
}

/// Puts a signature beside an artifact that was taken from there.
pub async fn sign(
    artifact: &Artifact,
    signature: Signature,
    reference: &Reference,
    access: &Access,
) -> anyhow::Result<()> {
    match &reference.place {
        PlaceName::Folder(folder) => Layout::open(folder)?.sign(artifact, signature),
        PlaceName::Registry { host, repository } => {
            Registry::new(host, repository, access)?.push_signatures(&artifact.digest(), &[&signature]).await
        }
    }
    .with_context(|| format!("cannot sign {reference}"))
}
