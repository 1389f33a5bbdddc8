//! The manifest that holds an artifact's signatures, a layer for each. Whoever may write beside an artifact shall not keep others
//! from it, so of what is there no more counts than is read, and nobody writes more.

use super::super::MAX_DOCUMENT_BYTES;
use super::super::digest::Digest;
use super::super::manifest::{Descriptor, MANIFEST_TYPE, Manifest};
use super::{KINDS, MAX_SIGNATURES, Signature, is_same};
use anyhow::{Context, bail};
use serde_json::json;

const IMAGE_CONFIG_TYPE: &str = "application/vnd.oci.image.config.v1+json";

/// The manifest and config that hold signatures, whose payloads are layers, beside what is `there` already.
pub fn manifest<'a>(
    there: Option<&[u8]>,
    new: impl IntoIterator<Item = &'a Signature>,
) -> anyhow::Result<(Vec<u8>, Vec<u8>)> {
    let mut there = parse(there)?;
    add_layers(&mut there.layers, new.into_iter().map(|new| &new.layer));
    written(there)
}

/// The same with these before what is there besides, which stays as far as there is room: of those that nobody has asked for
/// there may be any number.
pub fn manifest_led_by(first: &[Signature], there: Option<&[u8]>) -> anyhow::Result<(Vec<u8>, Vec<u8>)> {
    let (mut there, mut layers) = (parse(there)?, Vec::new());
    add_layers(&mut layers, first.iter().map(|one| &one.layer));
    let mut num_left_out = 0;
    for layer in std::mem::take(&mut there.layers) {
        let is_read = KINDS.contains(&&*layer.media_type);
        if layers.iter().any(|one| is_same(one, &layer)) {
            continue;
        } else if !is_read || has_room(&layers, &layer) {
            layers.push(layer);
        } else {
            num_left_out += 1;
        }
    }
    if num_left_out > 0 {
        passed_over(num_left_out);
    }
    there.layers = layers;
    written(there)
}

fn parse(there: Option<&[u8]>) -> anyhow::Result<Manifest> {
    let nothing = || Manifest::new(Descriptor::of(IMAGE_CONFIG_TYPE, b""), Vec::new());
    let there = there.map(Manifest::parse).transpose().context("the manifest of its signatures")?;
    Ok(there.unwrap_or_else(nothing))
}

/// Adds those that are not there.
fn add_layers<'a>(layers: &mut Vec<Descriptor>, new: impl IntoIterator<Item = &'a Descriptor>) {
    for new in new {
        if !layers.iter().any(|layer| is_same(layer, new)) {
            layers.push(new.clone());
        }
    }
}

/// A manifest with the config that its layers want, and that.
fn written(there: Manifest) -> anyhow::Result<(Vec<u8>, Vec<u8>)> {
    check_layers(&there.layers)?;
    let digests: Vec<&Digest> = there.layers.iter().map(|layer| &layer.digest).collect();
    let config = serde_json::to_vec(&json!({
        "architecture": "", "os": "", "config": {},
        "rootfs": { "type": "layers", "diff_ids": digests },
    }))?;
    let described = Descriptor::of(IMAGE_CONFIG_TYPE, &config);
    let manifest = Manifest { media_type: MANIFEST_TYPE.into(), config: described, ..there };
    let manifest = manifest.bytes()?;
    if manifest.len() as u64 > MAX_DOCUMENT_BYTES {
        bail!("the manifest of its signatures would have more than {MAX_DOCUMENT_BYTES} bytes");
    }
    Ok((manifest, config))
}

/// Whether a manifest holds signatures, all of these.
pub fn are_in(manifest: &[u8], all: &[&Signature]) -> bool {
    let is_in = |there: &Manifest, one: &Signature| there.layers.iter().any(|layer| is_same(layer, &one.layer));
    Manifest::parse(manifest).is_ok_and(|there| all.iter().all(|one| is_in(&there, one)))
}

/// The layers of a manifest of signatures that are worth fetching. Whoever may write beside an artifact shall not keep others
/// from it: what is too much is passed over.
pub fn layers(manifest: &[u8]) -> anyhow::Result<Vec<Descriptor>> {
    let manifest = Manifest::parse(manifest).context("the manifest of its signatures")?;
    let all: Vec<_> = manifest.layers.into_iter().filter(|layer| KINDS.contains(&&*layer.media_type)).collect();
    let (mut taken, num_all) = (Vec::new(), all.len());
    for layer in all {
        if has_room(&taken, &layer) {
            taken.push(layer);
        }
    }
    if taken.len() < num_all {
        passed_over(num_all - taken.len());
    }
    Ok(taken)
}

/// Whether one more is read behind these.
fn has_room(layers: &[Descriptor], layer: &Descriptor) -> bool {
    layer.size <= MAX_DOCUMENT_BYTES && num_of(layers, &layer.media_type) < MAX_SIGNATURES
}

fn num_of(layers: &[Descriptor], kind: &str) -> usize {
    layers.iter().filter(|layer| layer.media_type == kind).count()
}

pub(super) fn passed_over(count: usize) {
    tracing::warn!(
        "passed over {count} signatures of an artifact: of each form, {MAX_SIGNATURES} of at most {MAX_DOCUMENT_BYTES} bytes \
         are read"
    );
}

/// Nobody shall have to pass over what is written.
fn check_layers(layers: &[Descriptor]) -> anyhow::Result<()> {
    let are_too_many = KINDS.iter().any(|kind| num_of(layers, kind) > MAX_SIGNATURES);
    let mut read = layers.iter().filter(|layer| KINDS.contains(&&*layer.media_type));
    if are_too_many || read.any(|layer| layer.size > MAX_DOCUMENT_BYTES) {
        bail!("it has more than {MAX_SIGNATURES} signatures, or one of more than {MAX_DOCUMENT_BYTES} bytes");
    }
    Ok(())
}
