#!/usr/bin/env bash
# Everything that needs a GPU, in one command and under ten minutes: proves the kernels and the program on the device,
# measures, and prints one table with the floors beside what was measured.
#
#   BUNDLE/gpu/run.sh BUNDLE OUT [--tiny] [--seconds N]
#
# BUNDLE is what `cargo xtask gpu BUNDLE` makes, on any machine: the program, the checks, the benchmark and this
# folder. OUT gets `rows.jsonl` (each figure as soon as it is known), `table.md` (written anew after each part) and the
# parts' logs; what a run that is cut off has measured is there. Needed here: the driver, the CUDA 13 libraries,
# python3; with PyTorch and transformers their figures are beside ours. `--tiny` is the dry run, for any driver.
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
bundle=$(cd "${1:?a bundle}" && pwd) out=${2:?a folder for the results}
shift 2
size=full seconds=570
while [ $# -gt 0 ]; do
  case $1 in
    --tiny) size=tiny ;;
    --seconds) seconds=$2; shift ;;
    *) echo "unknown option $1" >&2; exit 2 ;;
  esac
  shift
done
mkdir -p "$out/logs"
out=$(cd "$out" && pwd)
work=${TIDEGATE_GPU_WORK:-$out/work}
mkdir -p "$work"
rows=$out/rows.jsonl
: >"$rows"
python=${PYTHON:-python3}
export TIDEGATE_GPU_CACHE=$work/cache/cuda TIDEGATE_FIXTURES=$bundle/fixtures TIDEGATE_TEST_GPU=1
export PYTHONDONTWRITEBYTECODE=1

# Libraries that a toolkit or Python's wheels brought, where the system does not name them.
wheels=$("$python" -c 'import nvidia, os; print(os.path.join(list(nvidia.__path__)[0], "cu13", "lib"))' 2>/dev/null)
for folder in "$wheels" /usr/local/cuda-13*/lib64 /usr/local/cuda/lib64; do
  [ -d "$folder" ] && LD_LIBRARY_PATH=${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}$folder
done
export LD_LIBRARY_PATH=${LD_LIBRARY_PATH:-}

table() { "$python" "$here/table.py" "$rows" "$size" >"$out/table.md.new" && mv "$out/table.md.new" "$out/table.md"; }
finish() {
  rm -rf "${work:?}"/{llama-3.1-8b,qwen3-0.6b,tiny}
  table && cat "$out/table.md"
}
child=
trap 'kill $child 2>/dev/null; exit 130' INT TERM
trap finish EXIT

# part NAME LIMIT COMMAND...: what it prints are rows; one that fails or takes too long says so in the table.
part() {
  local name=$1 limit=$2 left=$((seconds - SECONDS)) code
  shift 2
  # The emulator is slow, and what it runs on may be busy; the whole is bounded in any case.
  [ "$size" = tiny ] && limit=$((limit * 4))
  [ "$left" -lt "$limit" ] && limit=$left
  if [ "$limit" -lt 2 ]; then
    printf '{"part": "%s", "failed": "no time was left"}\n' "$name" >>"$rows"
    return 1
  fi
  printf '%4ss  %s\n' "$SECONDS" "$name" >&2
  # In the background and waited for, so that a signal to this script does not wait for the part.
  TIDEGATE_GPU_SECONDS=$limit timeout --kill-after=5 "$limit" "$@" >>"$rows" 2>"$out/logs/$name.log" &
  child=$!
  wait "$child"
  code=$?
  if [ "$code" -eq 124 ] || [ "$code" -eq 137 ]; then
    printf '{"part": "%s", "failed": "cut off after %s s"}\n' "$name" "$limit" >>"$rows"
  elif [ "$code" -ne 0 ]; then
    "$python" "$here/table.py" --failed "$name" "$code" "$out/logs/$name.log" >>"$rows"
  fi
  table
  return "$code"
}

bench=$bundle/gpu_bench
check=("$python" "$here/check.py")
# What is measured stands in table.py, which must know it too.
eval "$("$python" "$here/table.py" --sizes "$size")"
served=(--requests "$requests" --at-once "$seqs" --tokens-in "$tokens_in" --tokens-out "$tokens_out")
# A dry run shows that the checks can be run here; they are all run by `cargo test`.
kernels=(ops::) models=()
peers=("$python" "$here/peers.py")
[ "$size" = tiny ] && kernels=(ops::embed ops::gated_activation) models=(what_the_kernels) peers+=(--cpu)
IFS=, read -ra shapes <<<"$shapes"

failed=0
part device 60 "$bench" device || exit 1
part kernel-checks 90 "${check[@]}" tests "kernels against the reference" "$bundle/kernel_checks" "${kernels[@]}" || failed=1
part model-checks 90 "${check[@]}" tests "models against the CPU" "$bundle/backend_checks" "${models[@]}" || failed=1
part server-checks 60 "${check[@]}" server "$bundle/tidegate" "$bundle/fixtures" || failed=1
part rates 40 "$bench" rates "$bytes" "$square" || failed=1
for shape in "${shapes[@]}"; do
  part "kernels-$shape" 40 "$bench" kernels "$here/shapes/$shape.json" "$shape" "$batches" "$context" "$prompts" || failed=1
  if part "checkpoint-$shape" 90 "$bench" checkpoint "$here/shapes/$shape.json" "$work/$shape" "$bundle/fixtures/llama"; then
    part "steps-$shape" 100 "$bench" steps "$work/$shape" "$shape" "$batches" "$context" "$prompts" || failed=1
    part "host-$shape" 40 "$bench" host "$work/$shape" "$shape" "$seqs" 40 || failed=1
  fi
done
last=${shapes[-1]}
part served 150 "$python" "$here/serve.py" "$bundle/tidegate" "$work/$last" "$last" "${served[@]}" || failed=1
part steps-deterministic 60 "$bench" steps "$work/$last" "$last" "$batches" "$context" "${prompts%%,*}" --deterministic || failed=1
# Those who are not here do not fail the run.
part pytorch 90 "${peers[@]}" loop "$here/shapes/$last.json" "$last" "$batches" "$context" "$prompts"
part transformers 150 "${peers[@]}" served "$here/shapes/$last.json" "$last" "${served[@]}"
exit "$failed"
