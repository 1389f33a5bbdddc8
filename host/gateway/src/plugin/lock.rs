//! `tidegate plugin lock CONFIG`: pins what the config's plugins are, and shows what a newer one asks for before it is
//! taken. The lock is not written unless all of it can be; what was fetched for it is kept in any case.

use super::{LockArgs, workbench};
use crate::artifact::key::PublicKey;
use crate::artifact::layout::Layout;
use crate::artifact::lock::{Asks, Difference, Entry, Lock};
use crate::artifact::manifest::Claims;
use crate::artifact::reference::Reference;
use crate::artifact::registry::Access;
use crate::artifact::{digest::Digest, place, signature};
use crate::assemble::admission::{self, Found};
use crate::config::{Config, StageConfig};
use anyhow::{Context, bail};
use std::collections::BTreeSet;
use std::io::Write;
use tidegate_sandbox::Sandbox;

pub(super) fn run(args: &LockArgs, out: &mut dyn Write) -> anyhow::Result<()> {
    // Beside one that cannot be read nothing is held. It is read again once nobody else writes: the lock is of what it says then.
    args.overrides.load(&args.config)?;
    let _held = Lock::hold(&args.config)?;
    let config = args.overrides.load(&args.config)?;
    let old = Lock::load(&args.config)?;
    let sandbox = workbench::sandbox_of(&config, Default::default())?;
    let bench = Bench { config: &config, sandbox, known: known(&config, old.as_ref()), args };
    let found = workbench::runtime()?.block_on(bench.find(old.as_ref()))?;
    let report = compare(args, old.as_ref(), &found, out)?;
    if report.changed && !args.upgrade {
        bail!("what is there is not what is locked; if that is wanted, run this with --upgrade");
    }
    if report.widens && !args.allow_more {
        bail!(
            "it asks for more than what was locked, guards less or is older (`+`); if that is wanted, add --allow-more"
        );
    }
    let count = found.len();
    let file = Lock::new(found.into_iter().map(|(entry, _)| entry).collect()).save(&args.config)?;
    writeln!(out, "{}: {count} plugin{}", file.display(), if count == 1 { "" } else { "s" })?;
    Ok(())
}

/// What the sources of a config are looked at with.
struct Bench<'a> {
    config: &'a Config,
    sandbox: Sandbox,
    /// Signatures are looked at by these, be it that they name no key.
    known: Vec<PublicKey>,
    args: &'a LockArgs,
}

/// Keys that are trusted, and behind them those that have signed what is locked: a key that is trusted no more has signed it all
/// the same, and may be anybody's. Whether what it signed may run is asked by the trusted ones alone.
fn known(config: &Config, old: Option<&Lock>) -> Vec<PublicKey> {
    let signers = old.iter().flat_map(|old| &old.plugins).flat_map(|entry| &entry.signed_by);
    let mut seen = BTreeSet::new();
    config.plugins.trusted_keys.iter().chain(signers).copied().filter(|key| seen.insert(*key)).collect()
}

impl Bench<'_> {
    /// An entry for each source, and what it is of.
    async fn find(&self, old: Option<&Lock>) -> anyhow::Result<Vec<(Entry, Found)>> {
        let access = self.args.registry.access()?;
        let mut all: Vec<(Entry, Found)> = Vec::new();
        for stage in self.config.pipeline.iter().flat_map(|pipeline| &pipeline.stage) {
            let Some(source) = admission::source(stage) else { continue };
            if let Some((entry, _)) = all.iter_mut().find(|(entry, _)| entry.source == source) {
                entry.stage_names.push(stage.plugin.clone());
                continue;
            }
            let locked = old.and_then(|old| old.entry(&source));
            let one = self.look(stage, &source, locked, &access).await;
            all.push(one.with_context(|| format!("`{}` from {source}", stage.plugin))?);
        }
        Ok(all)
    }

    async fn look(
        &self,
        stage: &StageConfig,
        source: &str,
        locked: Option<&Entry>,
        access: &Access,
    ) -> anyhow::Result<(Entry, Found)> {
        let found = match &stage.file {
            Some(file) => Found::read(file)?,
            None => self.packed(source, locked, access).await?,
        };
        found.check_trusted(&self.config.plugins.trusted_keys)?;
        let anatomy = self.sandbox.inspect(found.component()).context("it is no plugin")?;
        let mut entry = Entry {
            name: anatomy.descriptor.name.clone(),
            version: anatomy.descriptor.version.clone(),
            source: source.to_owned(),
            stage_names: vec![stage.plugin.clone()],
            component: Digest::of(found.component()),
            artifact: None,
            signed_by: Vec::new(),
            asks: Asks::of(&Claims::of(&anatomy)),
        };
        if let Some(artifact) = found.artifact() {
            artifact.check_claims(&anatomy)?;
            entry.signed_by = signature::verify(&artifact.signatures, &artifact.digest(), &self.known).good;
            // The store may have them in another order than where they are from.
            entry.signed_by.sort_unstable();
            entry.artifact = Some(artifact.digest());
        }
        self.keep(&entry, &found)?;
        Ok((entry, found))
    }

    /// In an upgrade what the tag leads to now; else what is locked, wherever the tag leads now.
    async fn packed(&self, source: &str, locked: Option<&Entry>, access: &Access) -> anyhow::Result<Found> {
        let mut reference = Reference::parse(source)?;
        let pinned = locked.filter(|_| !self.args.upgrade).and_then(|entry| entry.artifact.as_ref());
        if let Some(digest) = pinned {
            if let Some(found) = self.stored(digest) {
                return Ok(found);
            }
            reference.digest = Some(digest.clone());
        }
        Ok(Found::Packed(Box::new(place::pull(&reference, access, &self.known).await?)))
    }

    /// Puts what was pulled into the store, where nobody looks for it by anything but its digest: what comes after it may fail.
    fn keep(&self, entry: &Entry, found: &Found) -> anyhow::Result<()> {
        let Some(artifact) = found.artifact().filter(|_| entry.is_pulled()) else { return Ok(()) };
        // One tag each: two of one component may differ in what they say of it.
        let store = Layout::open_or_make(&Lock::store(&self.args.config))?;
        store.add(artifact, artifact.digest().hex(), &self.known)
    }

    /// What was pulled before. Where no trusted key has signed that, there may be new signatures where it is from.
    fn stored(&self, digest: &Digest) -> Option<Found> {
        let store = Layout::open(&Lock::store(&self.args.config)).ok()?;
        let found = Found::Packed(Box::new(store.read(None, Some(digest)).ok()?));
        found.check_trusted(&self.config.plugins.trusted_keys).is_ok().then_some(found)
    }
}

#[derive(Default)]
struct Report {
    changed: bool,
    widens: bool,
}

/// Says what is new, what is gone and what has changed.
fn compare(
    args: &LockArgs,
    old: Option<&Lock>,
    found: &[(Entry, Found)],
    out: &mut dyn Write,
) -> anyhow::Result<Report> {
    let mut report = Report::default();
    let now = Lock::new(found.iter().map(|(entry, _)| entry.clone()).collect());
    let is_found = |old: &Entry| now.entry(&old.source).is_some();
    for (new, _) in found {
        let before = old.map(|old| old.before(new, &now)).unwrap_or_default();
        if let Some(locked) = old.and_then(|old| old.entry(&new.source)) {
            report.same_source(locked, new, out)?;
        } else if before.iter().all(|before| is_found(before)) {
            // Beside what is where it was, all of it is new.
            say("new     ", &about(new), &new.from_nothing(), out)?;
        }
        for before in before {
            if !is_found(before) || before.difference(new).widens {
                report.other_source(before, new, out)?;
            }
        }
    }
    for gone in old.iter().flat_map(|old| &old.plugins) {
        if !is_found(gone) {
            writeln!(out, "gone     {} is not in {} any more", gone.source, args.config.display())?;
        }
    }
    Ok(report)
}

impl Report {
    /// What the config says is what it said, and leads elsewhere perhaps.
    fn same_source(&mut self, locked: &Entry, new: &Entry, out: &mut dyn Write) -> anyhow::Result<()> {
        let difference = locked.difference(new);
        if is_same(locked, new) && difference.lines.is_empty() {
            writeln!(out, "same     {}", about(new))?;
            return Ok(());
        }
        self.changed |= !is_same(locked, new);
        self.widens |= difference.widens;
        let what = format!("{} (was {} {})", about(new), locked.version, locked.component);
        say("changed ", &what, &difference, out)
    }

    /// Whoever wrote another source into the config wants another plugin; but perhaps not all that it asks for.
    fn other_source(&mut self, before: &Entry, new: &Entry, out: &mut dyn Write) -> anyhow::Result<()> {
        let difference = before.difference(new);
        self.widens |= difference.widens;
        let what = format!("{} (was {} from {}, {})", about(new), before.version, before.source, before.component);
        say("moved   ", &what, &difference, out)
    }
}

fn is_same(locked: &Entry, new: &Entry) -> bool {
    (&locked.component, &locked.artifact) == (&new.component, &new.artifact)
}

fn say(word: &str, what: &str, difference: &Difference, out: &mut dyn Write) -> anyhow::Result<()> {
    writeln!(out, "{word} {what}")?;
    difference.lines.iter().try_for_each(|line| writeln!(out, "         {line}"))?;
    Ok(())
}

fn about(entry: &Entry) -> String {
    format!("{} {} from {}, {}", entry.name, entry.version, entry.source, entry.component)
}
