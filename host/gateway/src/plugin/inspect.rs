//! `tidegate plugin inspect FILE`: what a component is, before anybody runs it.

use super::{InspectArgs, digest, workbench};
use anyhow::Context;
use serde_json::{Value, json};
use std::io::Write;
use tidegate_sandbox::Anatomy;

pub(super) fn run(args: &InspectArgs, out: &mut dyn Write) -> anyhow::Result<()> {
    let bytes = std::fs::read(&args.file).with_context(|| format!("cannot read {}", args.file.display()))?;
    let sandbox = workbench::sandbox(Default::default())?;
    let anatomy = sandbox.inspect(&bytes).with_context(|| args.file.display().to_string())?;
    let report = report(&bytes, &anatomy);
    if args.json {
        writeln!(out, "{report:#}")?;
        return Ok(());
    }
    for line in lines(&report) {
        writeln!(out, "{line}")?;
    }
    Ok(())
}

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
    json!({
        "name": about.name,
        "version": about.version,
        "summary": about.summary,
        "digest": digest::sha256(bytes),
        "size_bytes": bytes.len(),
        "stages": anatomy.stages.iter().map(|stage| stage.as_str()).collect::<Vec<_>>(),
        "imports": anatomy.imports.iter().map(import).collect::<Vec<_>>(),
        "mutates": about.mutates,
        "deterministic": about.deterministic,
        "metrics": about.metrics,
        "holdback_bytes": about.holdback_bytes,
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
    let granted = |import: &&Value| !import["capability"].is_null();
    let imports: Vec<&Value> = report["imports"].as_array().into_iter().flatten().collect();
    let free: Vec<&str> = imports.iter().filter(|i| !granted(i)).map(|i| short(&i["interface"])).collect();
    lines.push(format!("imports        {}", if free.is_empty() { "nothing".into() } else { free.join(", ") }));
    for import in imports.into_iter().filter(granted) {
        let (line, reason) = (import["grant"].as_str().unwrap_or_default(), import["reason"].as_str());
        lines.push(format!(
            "needs a grant  {}: {line}  # {}",
            short(&import["interface"]),
            reason.unwrap_or("it does not say why; the server would refuse it")
        ));
    }
    lines.push(format!("mutates        {}", yes("mutates")));
    lines.push(format!("deterministic  {}", yes("deterministic")));
    for (name, schema) in report["config_schema"]["properties"].as_object().into_iter().flatten() {
        let default = schema.get("default").map_or("no default".into(), |value| format!("default {value}"));
        let about = schema["description"].as_str().unwrap_or_default();
        lines.push(format!("setting        {name}: {}, {default}. {about}", schema["type"].as_str().unwrap_or("any")));
    }
    lines
}

fn words(list: &Value) -> String {
    list.as_array().into_iter().flatten().filter_map(Value::as_str).collect::<Vec<_>>().join(", ")
}

/// `kv` of `tidegate:plugin/kv@0.1.0`.
fn short(interface: &Value) -> &str {
    let name = interface.as_str().unwrap_or_default();
    name.split('/').nth(1).and_then(|name| name.split('@').next()).unwrap_or(name)
}
