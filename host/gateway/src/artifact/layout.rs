//! A folder that holds artifacts as a registry does: the OCI image layout. `blobs/sha256/` has the bytes by digest,
//! `index.json` the manifests and their tags. Tools for container images read and write it (`skopeo copy oci:...`).
//!
//! Blobs are written before the index that names them, each under another name first: a reader sees the old state or
//! the new one. Who changes a folder holds it (`whole.rs`): of two who add to it, neither loses what the other one adds.

mod index;
#[cfg(test)]
mod tests;

use super::digest::Digest;
use super::key::PublicKey;
use super::manifest::{Descriptor, MANIFEST_TYPE, Manifest};
use super::signature::{self, Signature};
use super::whole::{self, Held};
use super::{Artifact, MAX_DOCUMENT_BYTES};
use anyhow::{Context, bail};
use index::{Index, distinct};
use std::collections::BTreeSet;
use std::fs::{File, Metadata};
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// What makes a folder a layout.
const MARK: &str = "oci-layout";
const MARK_TEXT: &str = "{\"imageLayoutVersion\":\"1.0.0\"}";
const INDEX: &str = "index.json";
const BLOBS: &str = "blobs/sha256";
/// There while a command changes the folder.
const HELD: &str = ".held";
const ELSE: &str = "something else than a packed plugin; name another folder with --output";
/// Of the index, which has some 500 bytes for each artifact.
const MAX_INDEX_BYTES: u64 = 16 << 20;

/// A folder in the OCI layout.
#[derive(Clone, Debug)]
pub struct Layout {
    folder: PathBuf,
}

impl Layout {
    /// A layout that is there.
    pub fn open(folder: &Path) -> anyhow::Result<Self> {
        if !folder.join(MARK).is_file() {
            bail!("{} holds no packed plugin: it has no `{MARK}`; `tidegate plugin pack` makes one", folder.display());
        }
        Ok(Self { folder: folder.to_owned() })
    }

    /// A layout that is there, or a new one; never in a folder that holds something else.
    pub fn open_or_make(folder: &Path) -> anyhow::Result<Self> {
        let layout = Self { folder: folder.to_owned() };
        if folder.join(MARK).is_file() {
            return Ok(layout);
        }
        if !layout.is_begun() {
            bail!("{} is not empty and holds no packed plugin; name another folder", folder.display());
        }
        std::fs::create_dir_all(folder.join(BLOBS)).with_context(|| format!("cannot make {}", folder.display()))?;
        layout.make()?;
        Ok(layout)
    }

    /// Whether it holds nothing but what another command has made so far, or one that broke off, be it nothing at all.
    fn is_begun(&self) -> bool {
        // Of what is no folder, who makes it says so.
        let Ok(mut files) = std::fs::read_dir(&self.folder) else { return true };
        let is_ours = |name: &str| ["blobs", INDEX, MARK, HELD].contains(&name) || whole::is_unfinished(name);
        files.all(|file| file.is_ok_and(|file| is_ours(&file.file_name().to_string_lossy())))
            && (!self.folder.join(INDEX).exists() || self.index().is_ok())
    }

    /// The mark comes last: what has it is whole.
    fn make(&self) -> anyhow::Result<()> {
        let _held = self.hold()?;
        if !self.folder.join(INDEX).exists() {
            self.write_index(&Index::default(), false)?;
        }
        if !self.folder.join(MARK).exists() {
            self.write(MARK, MARK_TEXT.as_bytes())?;
        }
        Ok(())
    }

    /// The file that changes whenever the layout does, even if that is a blob which was damaged and is whole again.
    pub fn index_file(folder: &Path) -> PathBuf {
        folder.join(INDEX)
    }

    /// The artifact of a digest or tag; without either, the only one that has a tag, or the only one at all.
    pub fn read(&self, tag: Option<&str>, digest: Option<&Digest>) -> anyhow::Result<Artifact> {
        self.read_unnamed(tag, digest).with_context(|| self.folder.display().to_string())
    }

    fn read_unnamed(&self, tag: Option<&str>, digest: Option<&Digest>) -> anyhow::Result<Artifact> {
        let number = |about: std::io::Result<Metadata>| about.ok().map(|about| about.ino());
        loop {
            // Open until it is compared: the number of a file that is open is not given anew.
            let file = File::open(self.folder.join(INDEX));
            let index = self.index()?;
            let read = self.read_of(&index, tag, digest);
            // Who replaces what is there removes it, and that may be what the index led to when it was read, signatures too. It may
            // be as it was again, and was another in between.
            let is_as_it_was =
                number(file.and_then(|file| file.metadata())) == number(self.folder.join(INDEX).metadata());
            if is_as_it_was && self.index()? == index {
                return read;
            }
        }
    }

    fn read_of(&self, index: &Index, tag: Option<&str>, digest: Option<&Digest>) -> anyhow::Result<Artifact> {
        let found = index.find(tag, digest)?;
        let manifest = self.document(found)?;
        let parsed = Manifest::parse(&manifest)?;
        let (config, component) = parsed.parts()?;
        let (config, component) = (self.blob(config)?, self.blob(component)?);
        let signatures = self.signatures(index, &found.digest);
        Artifact::assemble(manifest, config, component, signatures)
    }

    /// Adds an artifact under a tag; what had the tag stays, by its digest. Signatures that are there already stay, and those
    /// that it brings have the room beside them, but for those of the `known` keys, which come first.
    pub fn add(&self, artifact: &Artifact, tag: &str, known: &[PublicKey]) -> anyhow::Result<()> {
        let _held = self.hold()?;
        let mut index = self.index()?;
        let is_written = self.put(artifact, tag, known, &mut index)?;
        self.write_index(&index, is_written)
    }

    /// Adds a signature to an artifact that is there.
    pub fn sign(&self, artifact: &Artifact, new: Signature) -> anyhow::Result<()> {
        let _held = self.hold()?;
        let (mut index, digest) = (self.index()?, artifact.digest());
        index.find(None, Some(&digest)).context("it was taken out of there meanwhile")?;
        let there = self.manifest_of_signatures(&index, &digest)?;
        let made = signature::manifest(there.as_deref(), [&new])?;
        let is_written = self.put_signatures(&digest, &[new], made, &mut index)?;
        self.write_index(&index, is_written)
    }

    /// Makes an artifact the only one, in the place of the only one. If that is the same, its signatures stay, as with
    /// [`Self::add`]. A folder that holds more, or what is no plugin, is left alone.
    pub fn replace(&self, artifact: &Artifact, tag: &str, known: &[PublicKey]) -> anyhow::Result<()> {
        let _held = self.hold()?;
        self.check_replaceable()?;
        let mut index = self.index()?;
        index.keep_signatures_alone(&artifact.digest());
        let is_written = self.put(artifact, tag, known, &mut index)?;
        self.write_index(&index, is_written)?;
        self.prune(&index)
    }

    fn hold(&self) -> anyhow::Result<Held> {
        Held::wait(&self.folder.join(HELD))
    }

    fn check_replaceable(&self) -> anyhow::Result<()> {
        let folder = self.folder.display();
        self.check_lies_here()?;
        let index = self.index().with_context(|| folder.to_string())?;
        if index.has_others() {
            bail!("{folder} holds {ELSE}");
        }
        let artifacts = distinct(index.artifacts());
        if artifacts.len() > 1 {
            bail!(
                "{folder} holds more than one plugin, and this would leave one; `tidegate plugin push file:{folder}` adds \
                 to it, or name another folder with --output"
            );
        }
        for one in artifacts {
            let parts = self.document(one).and_then(|manifest| Manifest::parse(&manifest)?.parts().map(drop));
            parts.with_context(|| format!("{folder} holds {ELSE}"))?;
        }
        Ok(())
    }

    /// What comes from elsewhere, as an archive does, may lead anywhere: what lies there is not ours to remove.
    fn check_lies_here(&self) -> anyhow::Result<()> {
        let mut parts = ["blobs", BLOBS].map(|part| self.folder.join(part)).into_iter();
        match parts.find(|part| part.is_symlink()) {
            Some(link) => bail!("{} is a symbolic link, and nothing is replaced in what that leads to", link.display()),
            None => Ok(()),
        }
    }

    /// Writes what an artifact consists of and its signatures, beside those that are there, and notes the manifests. Says whether
    /// something of it was not there.
    fn put(&self, artifact: &Artifact, tag: &str, known: &[PublicKey], index: &mut Index) -> anyhow::Result<bool> {
        let mut is_written = self.write_blobs([&artifact.config, &artifact.component, &artifact.manifest])?;
        index.tag(artifact.descriptor(), tag);
        let digest = artifact.digest();
        let all = signature::merged(self.signatures(index, &digest), &artifact.signatures, &digest, known);
        if self.layers_of_signatures(index, &digest).is_err() {
            // What is damaged can be had again only by adding it, so it must not be in the way of that.
            index.forget_signatures(&digest);
        }
        if !all.is_empty() {
            let there = self.manifest_of_signatures(index, &digest)?;
            let made = signature::manifest_led_by(&all, there.as_deref())?;
            is_written |= self.put_signatures(&digest, &all, made, index)?;
        }
        Ok(is_written)
    }

    /// Writes signatures, and the manifest and config that were made of them and of what is there. Says whether something of it
    /// was not there.
    fn put_signatures(
        &self,
        artifact: &Digest,
        signatures: &[Signature],
        (manifest, config): (Vec<u8>, Vec<u8>),
        index: &mut Index,
    ) -> anyhow::Result<bool> {
        let blobs = signatures.iter().map(|one| &one.payload).chain([&config, &manifest]);
        let is_written = self.write_blobs(blobs)?;
        let made = Descriptor::of(MANIFEST_TYPE, &manifest);
        if index.signatures(artifact).is_none_or(|there| there.digest != made.digest) {
            // Older ones are among the new.
            index.forget_signatures(artifact);
            index.tag(made, &signature::tag(artifact));
        }
        Ok(is_written)
    }

    /// Those that are there. What is none, or is damaged, is passed over.
    fn signatures(&self, index: &Index, artifact: &Digest) -> Vec<Signature> {
        let layers = self.layers_of_signatures(index, artifact).unwrap_or_else(|error| {
            tracing::warn!("{}: passed over the signatures of {artifact}: {error:#}", self.folder.display());
            Vec::new()
        });
        let read = |layer| self.blob(layer).and_then(|payload| signature::read(layer, payload));
        let warn = |layer: &Descriptor, error| {
            let folder = self.folder.display();
            tracing::warn!("{folder}: passed over a signature of {artifact}, {}: {error:#}", layer.digest);
        };
        layers.iter().filter_map(|layer| read(layer).map_err(|error: anyhow::Error| warn(layer, error)).ok()).collect()
    }

    fn layers_of_signatures(&self, index: &Index, artifact: &Digest) -> anyhow::Result<Vec<Descriptor>> {
        let manifest = self.manifest_of_signatures(index, artifact)?;
        manifest.map_or_else(|| Ok(Vec::new()), |manifest| signature::layers(&manifest))
    }

    fn manifest_of_signatures(&self, index: &Index, artifact: &Digest) -> anyhow::Result<Option<Vec<u8>>> {
        index.signatures(artifact).map(|one| self.document(one)).transpose()
    }

    /// Removes blobs that no manifest of the index leads to, and those that are not whole. What has another name is nobody's
    /// blob.
    fn prune(&self, index: &Index) -> anyhow::Result<()> {
        let mut kept = BTreeSet::new();
        for one in &index.manifests {
            let manifest = Manifest::parse(&self.document(one)?)?;
            let parts = manifest.layers.iter().chain([&manifest.config, one]);
            kept.extend(parts.map(|part| part.digest.hex().to_owned()));
        }
        let blobs = self.folder.join(BLOBS);
        let unread = || format!("cannot read {}", blobs.display());
        for file in std::fs::read_dir(&blobs).with_context(unread)? {
            let file = file.with_context(unread)?;
            let name = file.file_name();
            let name = name.to_string_lossy();
            if is_blob(&name) && !kept.contains(name.as_ref()) {
                let why = || format!("cannot remove {}, to which nothing leads any more", file.path().display());
                std::fs::remove_file(file.path()).with_context(why)?;
            }
        }
        Ok(())
    }

    fn index(&self) -> anyhow::Result<Index> {
        let file = self.folder.join(INDEX);
        let bytes = self.bytes(&file, MAX_INDEX_BYTES)?;
        if bytes.len() as u64 > MAX_INDEX_BYTES {
            let file = file.display();
            bail!(
                "{file} has more than {MAX_INDEX_BYTES} bytes; take entries that nobody needs out of its `manifests`"
            );
        }
        serde_json::from_slice(&bytes).with_context(|| format!("`{INDEX}` is no OCI index"))
    }

    /// Never one that could not be read again. `anew`: even if it is what it was.
    fn write_index(&self, index: &Index, anew: bool) -> anyhow::Result<()> {
        let bytes = serde_json::to_vec(index)?;
        if bytes.len() as u64 > MAX_INDEX_BYTES {
            let (file, bytes) = (self.folder.join(INDEX), bytes.len());
            let file = file.display();
            bail!("{file} would have {bytes} bytes, and has at most {MAX_INDEX_BYTES}; name another folder");
        }
        if anew { whole::write_anew(&self.folder.join(INDEX), &bytes) } else { self.write(INDEX, &bytes).map(drop) }
    }

    /// A manifest, which the index names.
    fn document(&self, descriptor: &Descriptor) -> anyhow::Result<Vec<u8>> {
        if descriptor.size > MAX_DOCUMENT_BYTES {
            bail!("the manifest {} has {} bytes; at most {MAX_DOCUMENT_BYTES}", descriptor.digest, descriptor.size);
        }
        let bytes = self.blob(descriptor)?;
        descriptor.check(&bytes).context("the manifest")?;
        Ok(bytes)
    }

    fn blob(&self, descriptor: &Descriptor) -> anyhow::Result<Vec<u8>> {
        self.bytes(&self.blob_file(&descriptor.digest), descriptor.size)
    }

    fn blob_file(&self, digest: &Digest) -> PathBuf {
        self.folder.join(BLOBS).join(digest.hex())
    }

    /// One byte more than the limit, so that who checks the size sees that it is wrong.
    fn bytes(&self, file: &Path, limit: u64) -> anyhow::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        let open = std::fs::File::open(file).and_then(|open| open.take(limit + 1).read_to_end(&mut bytes));
        open.with_context(|| format!("cannot read {}", file.display()))?;
        Ok(bytes)
    }

    /// Says whether one of them was not there, or was damaged.
    fn write_blobs<'b>(&self, all: impl IntoIterator<Item = &'b Vec<u8>>) -> anyhow::Result<bool> {
        let mut is_written = false;
        for bytes in all {
            is_written |= self.write(&format!("{BLOBS}/{}", Digest::of(bytes).hex()), bytes)?;
        }
        Ok(is_written)
    }

    fn write(&self, name: &str, bytes: &[u8]) -> anyhow::Result<bool> {
        whole::write(&self.folder.join(name), bytes)
    }
}

/// Whether a file among the blobs is one by its name, or was to become one.
fn is_blob(name: &str) -> bool {
    Digest::parse(&format!("sha256:{name}")).is_ok() || whole::is_unfinished(name)
}
