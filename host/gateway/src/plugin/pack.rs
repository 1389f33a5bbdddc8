//! `tidegate plugin pack`, `sign` and `key`: from a component to something that others can check.

use super::{KeyCommand, PackArgs, SignArgs, project::Project, workbench};
use crate::artifact::key::{PrivateKey, PublicKey};
use crate::artifact::layout::Layout;
use crate::artifact::reference::Reference;
use crate::artifact::signature::Signature;
use crate::artifact::{Artifact, digest::Digest, place};
use std::io::Write;
use std::path::{Path, PathBuf};

/// How the folder of a packed plugin ends.
const EXTENSION: &str = "oci";

pub(super) fn run(args: &PackArgs, out: &mut dyn Write) -> anyhow::Result<()> {
    let component = component(&args.path, out)?;
    let bytes = workbench::component(&component)?;
    let anatomy = workbench::inspect(&bytes)?;
    let mut artifact = Artifact::pack(bytes, &anatomy)?;
    let key = args.sign.as_deref().map(PrivateKey::load).transpose()?;
    if let Some(key) = &key {
        artifact.signatures.push(signature(&artifact, key)?);
    }
    let folder = args.output.clone().unwrap_or_else(|| packed(&component));
    let tag = artifact.default_tag()?;
    let known = Vec::from_iter(key.map(|key| key.public()));
    Layout::open_or_make(&folder)?.replace(&artifact, &tag, &known)?;
    let about = &anatomy.descriptor;
    writeln!(out, "{}: {} {}", folder.display(), about.name, about.version)?;
    writeln!(out, "artifact       {}", artifact.digest())?;
    writeln!(out, "component      {}", Digest::of(&artifact.component))?;
    Ok(())
}

pub(super) fn sign(args: &SignArgs, out: &mut dyn Write) -> anyhow::Result<()> {
    let (key, reference) = (PrivateKey::load(&args.key)?, Reference::argument(&args.reference)?);
    workbench::runtime()?.block_on(async {
        let access = args.registry.access()?;
        let artifact = place::pull(&reference, &access, &[]).await?;
        place::sign(&artifact, signature(&artifact, &key)?, &reference, &access).await?;
        writeln!(out, "{} is signed by {}", artifact.digest(), key.public())?;
        Ok(())
    })
}

pub(super) fn key(command: &KeyCommand, out: &mut dyn Write) -> anyhow::Result<()> {
    match command {
        KeyCommand::New { file } => say(PrivateKey::make(file)?.public(), out),
        KeyCommand::Show { file, pem: false } => say(PublicKey::load(file)?, out),
        KeyCommand::Show { file, pem: true } => Ok(write!(out, "{}", PublicKey::load(file)?.pem())?),
    }
}

fn say(key: PublicKey, out: &mut dyn Write) -> anyhow::Result<()> {
    writeln!(out, "{key}")?;
    Ok(())
}

fn signature(artifact: &Artifact, key: &PrivateKey) -> anyhow::Result<Signature> {
    let name = artifact.claims.as_ref().map_or("plugin", |claims| &claims.name);
    Signature::new(key, &artifact.digest(), name)
}

/// A file, or what the project in a folder builds.
fn component(path: &Path, out: &mut dyn Write) -> anyhow::Result<PathBuf> {
    let hint = "`tidegate plugin pack DIR` packs that of another folder, `tidegate plugin pack FILE` a component";
    if path.is_dir() { Project::open(path, hint)?.built(out) } else { Ok(path.to_owned()) }
}

/// The folder of a packed plugin of that name, which may have dots.
pub(super) fn folder(name: &str) -> PathBuf {
    format!("{name}.{EXTENSION}").into()
}

/// The folder beside a component into which it is packed.
pub(super) fn packed(component: &Path) -> PathBuf {
    component.with_extension(EXTENSION)
}
