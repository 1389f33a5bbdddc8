//! `tidegate plugin push` and `pull`: between folders and registries.

use super::{PullArgs, PushArgs, pack, project::Project, workbench};
use crate::artifact::Artifact;
use crate::artifact::layout::Layout;
use crate::artifact::place;
use crate::artifact::reference::{PlaceName, Reference};
use anyhow::{Context, bail};
use std::io::Write;
use std::path::{Path, PathBuf};
use tidegate_sandbox::Anatomy;

pub(super) fn push(args: &PushArgs, out: &mut dyn Write) -> anyhow::Result<()> {
    let artifact = match &args.from {
        Some(folder) => Layout::open(folder)?.read(None, None)?,
        None => of_project(&Project::open(Path::new("."), "`--from DIR` names a packed plugin")?)?,
    };
    looked_at(&artifact)?;
    let target = Reference::argument(&args.reference)?;
    let pushed = workbench::runtime()?.block_on(async {
        let access = args.registry.access()?;
        place::push(&artifact, &target, &access).await
    })?;
    let count = artifact.signatures.len();
    writeln!(out, "pushed {pushed} ({count} signature{})", if count == 1 { "" } else { "s" })?;
    Ok(())
}

/// What a project has packed, provided that it is what it has built: what others get is what its tests have seen.
fn of_project(project: &Project) -> anyhow::Result<Artifact> {
    let component = project.component();
    let folder = pack::packed(&component);
    let artifact = Layout::open(&folder)?.read(None, None)?;
    let built = workbench::component(&component).with_context(|| {
        let folder = folder.display();
        format!("what {folder} was packed of is not there: `tidegate plugin build` builds it, or push with `--from {folder}`")
    })?;
    if built != artifact.component {
        let (folder, component) = (folder.display(), component.display());
        bail!("{folder} holds another component than {component}; `tidegate plugin pack` packs that");
    }
    Ok(artifact)
}

pub(super) fn pull(args: &PullArgs, out: &mut dyn Write) -> anyhow::Result<()> {
    let source = Reference::argument(&args.reference)?;
    let artifact = workbench::runtime()?.block_on(async {
        let access = args.registry.access()?;
        place::pull(&source, &access, &[]).await
    })?;
    let anatomy = looked_at(&artifact)?;
    let folder = args.output.clone().unwrap_or_else(|| default_folder(&source, &anatomy.descriptor.name));
    let tag = source.tag.clone().map_or_else(|| artifact.default_tag(), Ok)?;
    Layout::open_or_make(&folder)?.replace(&artifact, &tag, &[])?;
    writeln!(out, "{}: {} {}", folder.display(), anatomy.descriptor.name, anatomy.descriptor.version)?;
    writeln!(out, "artifact       {}", artifact.digest())?;
    super::inspect::signers(&artifact).iter().try_for_each(|line| writeln!(out, "{line}"))?;
    Ok(())
}

/// What is in it. It runs where nothing is granted, before anybody relies on what its config says.
fn looked_at(artifact: &Artifact) -> anyhow::Result<Anatomy> {
    let anatomy = workbench::inspect(&artifact.component)?;
    artifact.check_claims(&anatomy)?;
    Ok(anatomy)
}

/// `hush.oci`, by the repository's last part, else by the plugin's own name.
fn default_folder(source: &Reference, name: &str) -> PathBuf {
    let name = match &source.place {
        PlaceName::Registry { repository, .. } => repository.rsplit('/').next().unwrap_or(name),
        PlaceName::Folder(_) => name,
    };
    pack::folder(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_has_the_whole_name_of_its_repository_or_plugin() {
        let check = |reference: &str, expected: &str| {
            let folder = default_folder(&Reference::parse(reference).unwrap(), "hush");
            assert_eq!(folder, Path::new(expected), "{reference}");
        };
        check("oci://ghcr.io/you/mine:1.0", "mine.oci");
        check("oci://ghcr.io/you/acme.filter:1.0", "acme.filter.oci");
        check("file:mirror", "hush.oci");
    }
}
