//! The CUDA kernels as cubins, made without a GPU and without a toolkit on the machine, and what can be seen in
//! them: registers, spills, and whether the instructions are there that a kernel is built around.
//!
//! A `.cu` says what it means by lines such as `// sass attend_split_*: HMMA.16816.F32.BF16 LDGSTS.E.BYPASS.128`.

mod toolkit;

use anyhow::{Context, Result};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use toolkit::Toolkit;

/// Ampere, Hopper, Blackwell.
const ARCHS: [&str; 3] = ["80", "90a", "100"];

/// What ptxas says of one kernel.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Usage {
    kernel: String,
    registers: u32,
    spilled_bytes: u32,
}

/// Compiles all; gives what is wrong with them, one line each.
pub fn compile(root: &Path, out: &Path, say: &mut dyn FnMut(&str)) -> Result<Vec<String>> {
    let toolkit = Toolkit::fetch(&root.join("target/cuda-13.0"), say)?;
    std::fs::create_dir_all(out).with_context(|| format!("cannot create {}", out.display()))?;
    let mut violations = Vec::new();
    for source in sources(&root.join("kernels/cuda"))? {
        let text = std::fs::read_to_string(&source)?;
        let stem = source.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let mut per_kernel: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for arch in ARCHS {
            let cubin = out.join(format!("{stem}.sm_{arch}.cubin"));
            let usages = parse_usage(&toolkit.compile(&source, arch, &cubin)?);
            let sass = parse_sass(&toolkit.disassemble(&cubin)?);
            violations
                .extend(judge(&text, &usages, &sass).into_iter().map(|what| format!("{stem}.cu, sm_{arch}: {what}")));
            for usage in usages {
                per_kernel.entry(usage.kernel).or_default().push(usage.registers.to_string());
            }
        }
        for (kernel, registers) in per_kernel {
            say(&format!("{kernel:<22} registers {} (sm_{})", registers.join("/"), ARCHS.join("/sm_")));
        }
    }
    Ok(violations)
}

fn sources(folder: &Path) -> Result<Vec<PathBuf>> {
    let entries = std::fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()))?;
    let mut paths = entries.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>>>()?;
    paths.retain(|path| path.extension().is_some_and(|e| e == "cu"));
    paths.sort();
    Ok(paths)
}

/// From the log of `ptxas -v`.
fn parse_usage(log: &str) -> Vec<Usage> {
    let mut usages: Vec<Usage> = Vec::new();
    for line in log.lines() {
        if let Some(name) = line.split("Compiling entry function '").nth(1).and_then(|rest| rest.split('\'').next()) {
            usages.push(Usage { kernel: name.to_owned(), ..Usage::default() });
        }
        let Some(usage) = usages.last_mut() else { continue };
        if let Some(registers) = number_before(line, " registers") {
            usage.registers = registers;
        }
        for kind in [" bytes spill stores", " bytes spill loads"] {
            usage.spilled_bytes += number_before(line, kind).unwrap_or(0);
        }
    }
    usages
}

/// The number that ends where `marker` begins.
fn number_before(line: &str, marker: &str) -> Option<u32> {
    let (before, _) = line.split_once(marker)?;
    before.rsplit(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
}

/// Instructions of each function, from the listing of cuobjdump.
fn parse_sass(listing: &str) -> BTreeMap<String, BTreeSet<String>> {
    let mut functions: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    let mut current = String::new();
    for line in listing.lines() {
        if let Some(name) = line.split("Function : ").nth(1) {
            current = name.trim().to_owned();
        }
        let words = line.split_whitespace().map(|word| word.trim_end_matches(';').to_owned());
        functions.entry(current.clone()).or_default().extend(words);
    }
    functions
}

/// What the file's own lines ask for and the compiled kernels lack.
fn judge(text: &str, usages: &[Usage], sass: &BTreeMap<String, BTreeSet<String>>) -> Vec<String> {
    let spilled = usages.iter().filter(|usage| usage.spilled_bytes > 0);
    let mut violations: Vec<String> = spilled
        .map(|usage| format!("{} spills {} bytes; it needs fewer registers", usage.kernel, usage.spilled_bytes))
        .collect();
    for line in text.lines().filter_map(|line| line.strip_prefix("// sass ")) {
        let Some((pattern, wanted)) = line.split_once(": ") else {
            violations.push(format!("`// sass {line}` has no `: `"));
            continue;
        };
        let matches = |name: &str| match pattern.strip_suffix('*') {
            Some(prefix) => name.starts_with(prefix),
            None => name == pattern,
        };
        let mut functions = sass.iter().filter(|(name, _)| matches(name)).peekable();
        if functions.peek().is_none() {
            violations.push(format!("no kernel is named {pattern}"));
        }
        for (name, instructions) in functions {
            let missing = wanted.split_whitespace().filter(|wanted| !instructions.contains(*wanted));
            violations.extend(missing.map(|wanted| format!("{name} has no {wanted}")));
        }
    }
    violations
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOG: &str = "\
ptxas info    : Compiling entry function 'embed' for 'sm_90a'
ptxas info    : Function properties for embed
    0 bytes stack frame, 4 bytes spill stores, 8 bytes spill loads
ptxas info    : Used 22 registers, used 0 barriers
";

    #[test]
    fn registers_and_spills_are_read_from_the_log() {
        assert_eq!(parse_usage(LOG), [Usage { kernel: "embed".into(), registers: 22, spilled_bytes: 12 }]);
    }

    #[test]
    fn a_spill_and_a_missing_instruction_are_named() {
        let sass = parse_sass("\tFunction : embed\n  /*0010*/ LDG.E.128 R4, desc[UR4][R2.64] ;\n");
        let found = judge("// sass emb*: LDG.E.128 HMMA\n// sass gone: X\n", &parse_usage(LOG), &sass);
        assert_eq!(
            found,
            ["embed spills 12 bytes; it needs fewer registers", "embed has no HMMA", "no kernel is named gone"]
        );
    }
}
