//! That the tests of this folder can fail: known defects are put into the kernels, and must be caught. And the
//! same tests once more under the address and undefined-behaviour sanitizers.

use std::path::Path;
use std::process::{Command, Output};
use tidegate_emu::{Build, DRIVER, Replacement};

/// A defect, and the tests that must catch it.
struct Mutant {
    change: Replacement<'static>,
    tests: &'static str,
}

const fn mutant(file: &'static str, from: &'static str, to: &'static str, tests: &'static str) -> Mutant {
    Mutant { change: Replacement { file, from, to }, tests }
}

const MUTANTS: &[Mutant] = &[
    // A barrier less.
    mutant(
        "common.cuh",
        "  if (lane == 0) partial[warp] = x;\n  __syncthreads();\n",
        "  if (lane == 0) partial[warp] = x;\n",
        "ops::add_rms_norm",
    ),
    mutant("attend_prefill.cu", "    __syncthreads();  // all have read this stage\n", "", "ops::attend"),
    mutant(
        "sample.cu",
        "  __syncthreads();\n  for (int i = threadIdx.x; i < row.num_prompt + row.num_output",
        "  for (int i = threadIdx.x; i < row.num_prompt + row.num_output",
        "ops::sample",
    ),
    // A tail off by one.
    mutant("attention.cuh", "position + key < end ? 16 : 0", "position + key <= end ? 16 : 0", "ops::attend"),
    mutant("attention.cuh", "x = at <= last &&", "x = at < last &&", "ops::attend"),
    mutant("attention.cuh", "oldest = last - a.window;", "oldest = last - a.window - 1;", "ops::attend::windows"),
    mutant(
        "add_rms_norm.cu",
        "    if (i >= a.width) break;\n    kept[c] = load8(residual + i);",
        "    if (i + 8 >= a.width) break;\n    kept[c] = load8(residual + i);",
        "ops::add_rms_norm",
    ),
    mutant(
        "gated_activation.cu",
        "count = a.rows * per_row;",
        "count = a.rows * per_row - 1;",
        "ops::gated_activation",
    ),
    mutant("select.cuh", "c.key == key && c.id <= id", "c.key == key && c.id < id", "ops::sample"),
    // A token that the host does not know, taken from another row.
    mutant("sample.cu", "a.before[~id]", "a.before[0]", "ops::sample"),
    // A wait too few for an asynchronous copy.
    mutant("attend_split.cu", "copy_wait<RING - 2>();", "copy_wait<RING - 1>();", "ops::attend"),
    // A partial forgotten.
    mutant("attend_split.cu", "span < work.w; span++", "span < work.w - 1; span++", "ops::attend"),
    // A field of the argument out of place.
    mutant("embed.cu", "  int hidden;\n", "  int unused[2];\n  int hidden;\n", "ops::embed"),
];

fn run(library: &Path, tests: &str, preload: Option<&str>) -> Output {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args([tests, "--test-threads", "1"]).env(DRIVER, library);
    if let Some(preload) = preload {
        // Rust's own allocations live to the end of the process.
        command.env("LD_PRELOAD", preload).env("ASAN_OPTIONS", "detect_leaks=0");
    }
    command.output().unwrap()
}

#[test]
fn every_known_defect_is_caught() {
    for mutant in MUTANTS {
        let build = Build { replacement: Some(mutant.change), ..Build::default() };
        let Ok(libraries) = build.libraries().unwrap() else { return };
        let output = run(&libraries.cuda, mutant.tests, None);
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(!text.contains("running 0 tests"), "no test is named {}", mutant.tests);
        assert!(!output.status.success(), "{:?} is not caught:\n{text}", mutant.change);
    }
}

#[test]
fn no_kernel_trips_a_sanitizer() {
    let Ok(libraries) = (Build { sanitized: true, ..Build::default() }).libraries().unwrap() else { return };
    let Some(runtime) = tidegate_emu::sanitizer_runtime() else {
        eprintln!("SKIPPED: this compiler has no runtime of the address sanitizer");
        return;
    };
    let output = run(&libraries.cuda, "ops::", Some(&runtime));
    let show = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(output.status.success(), "{}\n{}", show(&output.stdout), show(&output.stderr));
}

#[test]
fn the_sanitizers_see_an_access_out_of_bounds() {
    let from = "for (int i = threadIdx.x * 8; i < a.hidden;";
    let change = Replacement { file: "embed.cu", from, to: "for (int i = threadIdx.x * 8; i <= a.hidden;" };
    let Ok(libraries) = (Build { sanitized: true, replacement: Some(change) }).libraries().unwrap() else { return };
    let Some(runtime) = tidegate_emu::sanitizer_runtime() else { return };
    let output = run(&libraries.cuda, "ops::embed", Some(&runtime));
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(text.contains("AddressSanitizer"), "{text}");
}
