//! `tidegate plugin inspect`: what a plugin is, before anybody runs it.

use super::{InspectArgs, settings, workbench};
use crate::artifact::digest::Digest;
use crate::artifact::reference::Reference;
use crate::artifact::signature::{Verdict, verify};
use crate::artifact::{Artifact, place};
use crate::assemble::HOLDBACK_BYTES;
use crate::assemble::admission::Found;
use crate::bundled;
use crate::terminal::shown;
use anyhow::Context;
use serde_json::{Map, Value, json};
use std::io::Write;
use std::path::Path;
use tidegate_pipeline::holdback::LOOK_BEHIND_BYTES;
use tidegate_sandbox::{Anatomy, Prefilter};

pub(super) fn run(args: &InspectArgs, out: &mut dyn Write) -> anyhow::Result<()> {
    let found = find(args)?;
    let sandbox = workbench::sandbox(Default::default())?;
    let anatomy = sandbox.inspect(found.component()).with_context(|| args.plugin.clone())?;
    let mut report = report(found.component(), &anatomy);
    if let Some(artifact) = found.artifact() {
        artifact.check_claims(&anatomy)?;
        let verdict = verdict(artifact);
        report["artifact"] = json!(artifact.digest());
        report["signed_by"] = json!(verdict.good);
        report["broken_signatures"] = json!(verdict.broken);
        report["unknown_signatures"] = json!(verdict.unknown);
    }
    if args.json {
        writeln!(out, "{report:#}")?;
        return Ok(());
    }
    say(&report, &found.artifact().map(signers).unwrap_or_default(), out)
}

/// The report for people. Whoever made the plugin wrote most of it.
fn say(report: &Value, signers: &[String], out: &mut dyn Write) -> anyhow::Result<()> {
    lines(report).iter().chain(signers).try_for_each(|line| writeln!(out, "{}", shown(line)))?;
    Ok(())
}

/// A file, a folder, what a reference leads to, or a plugin that the program carries.
fn find(args: &InspectArgs) -> anyhow::Result<Found> {
    let path = Path::new(&args.plugin);
    if path.exists() {
        return Found::read(path);
    }
    let Some(reference) = reference(&args.plugin)? else {
        if let Some(component) = bundled::plugin(&args.plugin) {
            return Ok(Found::Bare(component.to_vec()));
        }
        let why = format!(
            "a plugin elsewhere is named with its tag or digest, `oci://HOST/REPOSITORY:TAG`, and shipped are {}",
            bundled::names().join(", ")
        );
        let bytes = std::fs::read(path).with_context(|| format!("cannot read {}; {why}", args.plugin))?;
        return Ok(Found::Bare(bytes));
    };
    let pulled = workbench::runtime()?.block_on(async {
        let access = args.registry.access()?;
        place::pull(&reference, &access, &[]).await
    });
    Ok(Found::Packed(Box::new(pulled?)))
}

/// The reference that a text is. Paths look like some: without a mark, one has a tag or a digest.
fn reference(text: &str) -> anyhow::Result<Option<Reference>> {
    let is_marked = text.contains("://") || text.starts_with("file:");
    match Reference::parse(text) {
        Err(error) if is_marked => Err(error),
        Ok(found) if is_marked || found.tag.is_some() || found.digest.is_some() => Ok(Some(found)),
        _ => Ok(None),
    }
}

fn verdict(artifact: &Artifact) -> Verdict {
    verify(&artifact.signatures, &artifact.digest(), &[])
}

/// A line for each key by which an artifact is signed, or said to be, and one for the signatures that name no key.
pub(super) fn signers(artifact: &Artifact) -> Vec<String> {
    lines_of(&verdict(artifact))
}

fn lines_of(verdict: &Verdict) -> Vec<String> {
    let mut lines: Vec<String> = verdict.good.iter().map(|key| format!("signed by      {key}")).collect();
    if lines.is_empty() {
        lines.push("signed by      nobody".into());
    }
    lines.extend(verdict.broken.iter().map(|key| format!("NOT signed by  {key}, though a signature says so")));
    match verdict.unknown {
        0 => {}
        1 => {
            lines.push("unchecked      1 signature, which names no key: whose it is, if anybody's, is not known".into())
        }
        n => lines.push(format!(
            "unchecked      {n} signatures, which name no key: whose they are, if anybody's, is not known"
        )),
    }
    lines
}

/// The interfaces of first looks, and what a guard says then.
const FIRST_LOOKS: [(&str, &str); 2] = [
    ("prompt-glance", "that there is nothing to say of a prompt"),
    ("stream-glance", "how much of a stream may leave"),
];

/// Everything that is known of a component, as JSON.
pub fn report(bytes: &[u8], anatomy: &Anatomy) -> Value {
    let about = &anatomy.descriptor;
    let import = |import: &tidegate_sandbox::Import| {
        let reason = import.capability.and_then(|name| about.capabilities.get(name));
        json!({
            "interface": import.interface,
            "capability": import.capability,
            "grant": import.capability.map(|_| import.config_line),
            "reason": reason,
        })
    };
    let need = |(name, grant): (&str, &str)| json!({ "capability": name, "grant": grant, "reason": about.capabilities.get(name) });
    let exports = |name: &str| {
        let of_any_line = format!("tidegate:plugin/{name}@");
        anatomy.exports.iter().any(|export| export.starts_with(&of_any_line))
    };
    json!({
        "name": about.name,
        "version": about.version,
        "summary": about.summary,
        "digest": Digest::of(bytes),
        "size_bytes": bytes.len(),
        "stages": anatomy.stages.iter().map(|stage| stage.as_str()).collect::<Vec<_>>(),
        "imports": anatomy.imports.iter().map(import).collect::<Vec<_>>(),
        "needs": anatomy.needs().into_iter().map(need).collect::<Vec<_>>(),
        "mutates": about.mutates,
        "deterministic": about.deterministic,
        "metrics": about.metrics.iter().map(|(name, summary)| json!({ "name": name, "summary": summary })).collect::<Vec<_>>(),
        "holdback_bytes": about.holdback_bytes,
        "look_behind_bytes": about.look_behind_bytes,
        "glances": FIRST_LOOKS.iter().filter(|(name, _)| exports(name)).map(|(name, _)| name).collect::<Vec<_>>(),
        "prefilter": about.prefilter.as_ref().map(Prefilter::said),
        "unknown_keys": about.unknown_keys,
        "config_schema": about.config_schema,
    })
}

fn lines(report: &Value) -> Vec<String> {
    let text = |key: &str| report[key].as_str().unwrap_or_default();
    let yes = |key: &str| if report[key] == true { "yes" } else { "no" };
    let mut lines = vec![
        format!("{} {}: {}", text("name"), text("version"), text("summary")),
        format!("digest         {}", text("digest")),
        format!("size           {} bytes", report["size_bytes"]),
        format!("stages         {}", words(&report["stages"])),
    ];
    if let Some(artifact) = report["artifact"].as_str() {
        lines.insert(2, format!("artifact       {artifact}"));
    }
    let imports = report["imports"].as_array().into_iter().flatten();
    let free: Vec<&str> = imports.filter(|i| i["capability"].is_null()).map(|i| short(&i["interface"])).collect();
    lines.push(format!("imports        {}", if free.is_empty() { "nothing".into() } else { free.join(", ") }));
    for need in report["needs"].as_array().into_iter().flatten() {
        let text = |key: &str| need[key].as_str();
        let reason = text("reason").unwrap_or("it does not say why; the server would refuse it");
        let (name, line) = (text("capability").unwrap_or_default(), text("grant").unwrap_or_default());
        lines.push(format!("needs a grant  {name}: {line}  # {reason}"));
    }
    lines.push(format!("mutates        {}", yes("mutates")));
    lines.push(format!("deterministic  {}", yes("deterministic")));
    if let Some(bytes) = report["holdback_bytes"].as_u64() {
        let more = if bytes > HOLDBACK_BYTES as u64 {
            format!("; a server gives {HOLDBACK_BYTES}, more needs limits.holdback_bytes = {bytes}")
        } else {
            String::new()
        };
        lines.push(format!("withholds      at most {bytes} bytes of a stream{more}"));
    }
    if let Some(bytes) = report["look_behind_bytes"].as_u64() {
        let most = bytes.min(LOOK_BEHIND_BYTES as u64);
        lines.push(format!("sees again     at most {most} bytes of what has left, and its last character"));
    }
    if let prefilter @ Value::Object(_) = &report["prefilter"] {
        let classes = prefilter["classes"].as_object().into_iter().flat_map(|classes| classes.keys());
        let classes: Vec<&str> = classes.map(String::as_str).collect();
        lines.push(format!(
            "not asked      about text of {}, as its {} states say, of which at most {} bytes wait",
            classes.join(", "),
            prefilter["states"].as_object().map_or(0, Map::len),
            prefilter["run-bytes"]
        ));
    }
    let glances = report["glances"].as_array().into_iter().flatten();
    for (_, what) in FIRST_LOOKS.iter().filter(|(name, _)| glances.clone().any(|glance| glance == name)) {
        lines.push(format!("first look     it says at a glance {what}"));
    }
    let unknown = words(&report["unknown_keys"]);
    if !unknown.is_empty() {
        lines.push(format!("unknown keys   {unknown}: this version does nothing with them"));
    }
    lines.extend(metrics(&report["metrics"]));
    lines.extend(settings::lines(&report["config_schema"]));
    lines
}

/// A line for each metric, or one that there is none.
fn metrics(list: &Value) -> Vec<String> {
    let text = |metric: &Value, key: &str| metric[key].as_str().unwrap_or_default().to_owned();
    let told = list.as_array().into_iter().flatten();
    let lines: Vec<String> =
        told.map(|metric| format!("metrics        {}: {}", text(metric, "name"), text(metric, "summary"))).collect();
    if lines.is_empty() { vec!["metrics        none".into()] } else { lines }
}

fn words(list: &Value) -> String {
    list.as_array().into_iter().flatten().filter_map(Value::as_str).collect::<Vec<_>>().join(", ")
}

/// `kv` of `tidegate:plugin/kv@0.1.0`.
fn short(interface: &Value) -> &str {
    let name = interface.as_str().unwrap_or_default();
    name.split('/').nth(1).and_then(|name| name.split('@').next()).unwrap_or(name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::artifact::key::PublicKey;

    #[test]
    fn what_a_plugin_says_of_itself_is_shown_and_not_obeyed() {
        let hidden = "\u{1b}[2Jall is well\nsigned by      everybody";
        let report = json!({
            "name": "hush", "version": "1.0.0", "summary": hidden,
            "needs": [{"capability": "kv", "grant": "kv_kib = 1", "reason": hidden}],
            "metrics": [{"name": "hushed", "summary": hidden}],
            "config_schema": {"properties": {"word": {"description": hidden}, hidden: {}}},
        });
        let mut out = Vec::new();
        say(&report, &["signed by      nobody".to_owned()], &mut out).unwrap();
        let said = String::from_utf8(out).unwrap();
        assert_eq!(said.lines().filter(|line| line.starts_with("signed by")).count(), 1, "{said:?}");
        assert_eq!(said.matches("\\u{1b}[2Jall is well\\nsigned by").count(), 5, "{said}");
        assert!(!said.contains('\u{1b}'), "{said:?}");
    }

    #[test]
    fn what_no_key_has_verified_is_nobodys_signature() {
        let key = PublicKey::parse(&format!("ed25519:{}", "ab".repeat(32))).unwrap();
        let check = |good: &[PublicKey], broken: &[PublicKey], unknown, expected: &[&str]| {
            let lines = lines_of(&Verdict { good: good.to_vec(), broken: broken.to_vec(), unknown });
            assert!(lines.len() == expected.len(), "{lines:?}");
            for (line, expected) in lines.iter().zip(expected) {
                assert!(line.starts_with(expected), "{line}");
            }
        };
        check(&[], &[], 0, &["signed by      nobody"]);
        check(&[], &[], 1, &["signed by      nobody", "unchecked      1 signature, which names no key"]);
        check(&[], &[key], 0, &["signed by      nobody", "NOT signed by  ed25519:abab"]);
        check(&[key], &[], 2, &["signed by      ed25519:abab", "unchecked      2 signatures, which name no key"]);
    }

    #[test]
    fn a_text_is_a_reference_where_it_is_marked_or_has_a_tag_or_a_digest() {
        let check = |text: &str, expected: Option<&str>| {
            assert_eq!(reference(text).unwrap().map(|found| found.to_string()).as_deref(), expected, "{text}");
        };
        check("ghcr.io/you/hush:1", Some("oci://ghcr.io/you/hush:1"));
        check("oci://ghcr.io/you/hush", Some("oci://ghcr.io/you/hush"));
        check("file:mirror", Some("file:mirror"));
        check("file:mirror:1.0.0", Some("file:mirror:1.0.0"));
        check("./mirror:1", Some("file:./mirror:1"));
        check("my.dist/hush.wasm", None);
        check("./mirror", None);
        check("hush.wasm", None);
        assert!(reference("oci://ghcr.io").is_err());
    }
}
