//! That the tests of this folder can fail: known defects are put into the kernels, and must be caught. And the
//! same tests once more under the address and undefined-behaviour sanitizers.

use std::path::Path;
use std::process::{Command, Output};
use tidegate_emu::{Build, DRIVER, REQUIRE, Replacement};

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
    mutant("attend_prefill.cu", "    __syncthreads();  // all have read this stage\n", "", "ops::attend::several"),
    mutant(
        "sample.cu",
        "  __syncthreads();\n  for (int i = threadIdx.x; i < row.num_prompt + row.num_output",
        "  for (int i = threadIdx.x; i < row.num_prompt + row.num_output",
        "ops::sample",
    ),
    // A tail off by one.
    mutant("attention.cuh", "position + key < end ? 16 : 0", "position + key <= end ? 16 : 0", "ops::attend::contexts"),
    mutant("attention.cuh", "x = at <= last &&", "x = at < last &&", "ops::attend::windows"),
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
    mutant("rope_cache.cu", "const bool in = i < half;", "const bool in = i + 2 < half;", "ops::rope_cache"),
    mutant("rope_cache.cu", "if (head >= num_all ||", "if (head + 1 >= num_all ||", "ops::rope_cache"),
    mutant("embed.cu", "i < a.hidden;", "i + 8 < a.hidden;", "ops::embed"),
    mutant("select.cuh", "c.key == key && c.id <= id", "c.key == key && c.id < id", "ops::sample"),
    // A token that the host does not know, taken from another row.
    mutant("sample.cu", "a.before[~id]", "a.before[0]", "ops::sample"),
    // A wait too few for an asynchronous copy.
    mutant("attend_split.cu", "copy_wait<RING - 2>();", "copy_wait<RING - 1>();", "ops::attend::contexts"),
    // A partial forgotten.
    mutant("attend_split.cu", "span < work.w; span++", "span < work.w - 1; span++", "ops::attend::contexts"),
    // A row past the end of its tile, in the merge of partials.
    mutant("attend_split.cu", "      if (r >= rows.end) break;\n      float4", "      float4", "ops::attend::contexts"),
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

/// What a sanitized build runs with; where the compiler has none, that is said, and fails where nothing may be skipped.
fn runtime() -> Option<String> {
    let runtime = tidegate_emu::sanitizer_runtime();
    if runtime.is_none() {
        assert!(std::env::var_os(REQUIRE).is_none(), "this compiler has no runtime of the address sanitizer");
        tidegate_skipped::skipped!("this compiler has no runtime of the address sanitizer");
    }
    runtime
}

#[test]
fn no_kernel_trips_a_sanitizer() {
    let Ok(libraries) = (Build { sanitized: true, ..Build::default() }).libraries().unwrap() else { return };
    let Some(runtime) = runtime() else { return };
    let output = run(&libraries.cuda, "ops::", Some(&runtime));
    let show = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(output.status.success(), "{}\n{}", show(&output.stdout), show(&output.stderr));
}

/// What the sanitizers say of `tests` with a defect.
fn sanitized(change: Replacement<'_>, tests: &str) -> Option<String> {
    let libraries = (Build { sanitized: true, replacement: Some(change) }).libraries().unwrap().ok()?;
    let output = run(&libraries.cuda, tests, Some(&runtime()?));
    assert!(!output.status.success(), "nothing is said of {change:?}");
    Some(String::from_utf8_lossy(&output.stderr).into_owned())
}

#[test]
fn the_sanitizers_see_an_access_out_of_bounds_and_undefined_behaviour() {
    let from = "for (int i = threadIdx.x * 8; i < a.hidden;";
    let change = Replacement { file: "embed.cu", from, to: "for (int i = threadIdx.x * 8; i <= a.hidden;" };
    let Some(said) = sanitized(change, "ops::embed") else { return };
    assert!(said.contains("AddressSanitizer"), "{said}");
    // The same result on every machine there is, and undefined.
    let from = "const int row = blockIdx.x, head";
    let to = "volatile int most = 2147483647; most += blockIdx.x >= 0 ? 1 : 0; const int row = blockIdx.x, head";
    let said = sanitized(Replacement { file: "rope_cache.cu", from, to }, "ops::rope_cache").unwrap_or_default();
    assert!(said.contains("runtime error: signed integer overflow"), "{said}");
}
