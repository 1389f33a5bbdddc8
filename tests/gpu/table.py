"""The table of a run: every figure that was to be measured, with its floor, or with why it is not there.

    table.py ROWS SIZE                  the table so far
    table.py --sizes SIZE               what is measured, as assignments of the shell
    table.py --failed PART CODE LOG     a row that says that a part failed
"""

import json
import sys
from pathlib import Path

import roofline

SIZES = {
    "full": {
        "shapes": ["qwen3-0.6b", "llama-3.1-8b"], "batches": [1, 32, 128], "context": 1024, "prompts": [2048, 8192],
        "bytes": 4 << 30, "square": 8192, "seqs": 256, "requests": 512, "tokens_in": 1000, "tokens_out": 1000,
    },
    "tiny": {
        "shapes": ["tiny"], "batches": [1, 4], "context": 40, "prompts": [30, 50],
        "bytes": 65536, "square": 32, "seqs": 4, "requests": 6, "tokens_in": 20, "tokens_out": 6,
    },
}
# The first figures to reach, for Llama: the share of the floor, and others in words.
GOALS = {"decode": 0.60, "prefill": 0.55}


class Run:
    def __init__(self, path, size):
        self.rows = [json.loads(line) for line in Path(path).read_text().splitlines() if line.strip()]
        self.size = SIZES[size]
        self.tiny = size == "tiny"

    def find(self, **wanted):
        fits = lambda row: all(row.get(key) == value for key, value in wanted.items())
        return next((row for row in reversed(self.rows) if fits(row)), None)

    def value(self, **wanted):
        row = self.find(**wanted)
        return row.get("value") if row else None

    def why_not(self, part, **wanted):
        """In words: what a part said of a figure, or what became of the part."""
        row = self.find(**wanted)
        if row and "skipped" in row:
            return f"not measured: {row['skipped']}"
        failed = self.find(part=part)
        return f"not measured: {failed['failed']}" if failed else "not measured yet"

    def machine(self):
        bandwidth = self.value(figure="bandwidth")
        rate = self.value(figure="matrix rate")
        return roofline.Machine(bandwidth, rate) if bandwidth and rate else None


def number(value):
    if value is None:
        return ""
    return f"{value:.0f}" if value >= 1000 else f"{value:.2f}" if value >= 1 else f"{value:.4f}"


def line(*cells):
    return "| " + " | ".join(cells) + " |"


def head(run):
    device = next((row for row in run.rows if "device" in row), {})
    name = device.get("device", "no device")
    yield f"Device: {name}, {device.get('memory_mib', '?')} MiB."
    if name == "cuemu" or run.tiny:
        yield ""
        yield "**A dry run.** Tiny shapes" + (", through the emulator" if name == "cuemu" else "") + ": these figures say"
        yield "that the script works, and nothing about a GPU."
    rates = [("bandwidth", "GB/s, a copy in both directions", 1e9)]
    # Floors are made of the first one.
    rates += [(f"matrix rate{kind}", "TFLOP/s", 1e12) for kind in ["", ", f16", ", FP8"]]
    for figure, unit, scale in rates:
        value = run.value(figure=figure)
        yield f"\n{figure}: " + (f"{value / scale:.4g} {unit}" if value else run.why_not("rates", figure=figure))
    yield ""


def checks(run):
    yield line("check", "passed", "failed")
    yield "|---|---|---|"
    titles = {
        "kernels against the reference": "kernel-checks", "models against the CPU": "model-checks",
        "answers over HTTP are the CPU's": "server-checks",
    }
    for title, part in titles.items():
        row = run.find(check=title)
        if row:
            yield line(title, str(row["passed"]), ", ".join([str(row["failed"]), *row["names"]]))
        else:
            yield line(title, run.why_not(part).replace("measured", "checked"), "")
    yield ""


def timed(run, model, machine, figure, size, context, floor):
    """A row of a step's time in milliseconds."""
    wanted = {"figure": figure, "model": model, "size": size, "context": context, "by": "tidegate"}
    value = run.value(**wanted)
    floor_ms = sum(floor(machine).values()) * 1e3 if machine else None
    share = floor_ms / value if value and floor_ms else None
    goal = GOALS.get(figure) if model == "llama-3.1-8b" else None  # of the larger shape only
    loop = run.value(**(wanted | {"by": "pytorch"}))
    what = f"{figure}, {size} sequences, context {context}" if figure.startswith("decode") else f"{figure}, {size} tokens"
    return line(
        f"{model}: {what} (ms)", number(floor_ms) or "no rates", number(value) or run.why_not(f"steps-{model}", **wanted),
        number(share), f">= {goal}" if goal else "",
        number(loop) or run.why_not("pytorch", **(wanted | {"by": "pytorch"})), "",
    )


def figures(run):
    size, machine = run.size, run.machine()
    yield line("figure", "floor", "measured", "floor/measured", "goal", "PyTorch loop", "transformers")
    yield "|---" * 7 + "|"
    for model in size["shapes"]:
        shape = roofline.shape(model)
        for rows in size["batches"]:
            floor = lambda machine: roofline.decode(shape, machine, rows, size["context"])
            yield timed(run, model, machine, "decode", rows, size["context"], floor)
        for tokens in size["prompts"]:
            yield timed(run, model, machine, "prefill", tokens, 0, lambda m: roofline.prefill(shape, m, tokens))
        yield host(run, model)
    yield served(run, size["shapes"][-1], machine)
    yield ""


def host(run, model):
    wanted = {"figure": "host time of a step", "model": model, "size": run.size["seqs"], "by": "tidegate"}
    value = run.value(**wanted)
    measured = number(value * 1e3) if value else run.why_not(f"host-{model}", **wanted)
    return line(f"{model}: host's time of a step, {run.size['seqs']} sequences (us)", "", measured, "", "" if run.tiny else "<= 200", "", "")


def served(run, model, machine):
    size, wanted = run.size, {"figure": "served", "model": model}
    args = size["seqs"], size["tokens_in"], size["tokens_out"]
    floor = roofline.served(roofline.shape(model), machine, *args) if machine else None
    value = run.value(**wanted, by="tidegate")
    name = f"{model}: served, {args[1]} in, {args[2]} out, {args[0]} at once (output tokens/s)"
    return line(
        name, number(floor) or "no rates", rate(run.find(**wanted, by="tidegate")) or run.why_not("served", **wanted, by="tidegate"),
        number(value / floor if value and floor else None), "" if run.tiny else ">= 6000; >= 2x transformers", "",
        against(value, run.find(**wanted, by="transformers")) or run.why_not("transformers", **wanted, by="transformers"),
    )


def rate(row):
    """A served rate, and whether it is that of all requests."""
    if not row or not row.get("value"):
        return ""
    return number(row["value"]) + ("" if row["whole"] else f" (the first {row['seconds']:.0f} s)")


def against(ours, row):
    """Another's served rate, with what it computes attention by, and how many times it ours is."""
    theirs = rate(row)
    times = f"; ours is {ours / row['value']:.2f} times that" if theirs and ours else ""
    return f"{theirs}, {row['attention']}{times}" if theirs else ""


def kernels(run):
    """Each kernel by itself, one launch."""
    machine = run.machine()
    yield line("one launch (us)", "step", "floor", "measured", "floor/measured")
    yield "|---" * 5 + "|"
    found = [row for row in run.rows if row.get("figure") == "kernel"]
    for row in found:
        floor = machine.floor(row["bytes"], row["flops"]) * 1e6 if machine else None
        share = number(floor / row["value"] if floor else None)
        yield line(f"{row['model']}: {row['kernel']}", row["step"], number(floor), number(row["value"]), share)
    for model in run.size["shapes"]:
        if not any(row["model"] == model for row in found):
            yield line(model, "", "", run.why_not(f"kernels-{model}"), "")
    yield ""


def deterministic(run):
    model = run.size["shapes"][-1]
    yield line("cost of `--deterministic`", "best (ms)", "fixed (ms)", "times")
    yield "|---" * 4 + "|"
    cases = [("decode", rows, run.size["context"]) for rows in run.size["batches"]]
    for figure, size, context in [*cases, ("prefill", run.size["prompts"][0], 0)]:
        wanted = {"model": model, "size": size, "context": context, "by": "tidegate"}
        best, fixed = run.value(figure=figure, **wanted), run.value(figure=f"{figure}, deterministic", **wanted)
        why = run.why_not("steps-deterministic", figure=f"{figure}, deterministic", **wanted)
        yield line(f"{model}: {figure}, {size}", number(best), number(fixed) or why, number(fixed / best if best and fixed else None))


def failed(part, code, log):
    """The reason is the last line that the part said."""
    said = [text for text in Path(log).read_text(errors="replace").splitlines() if text.strip()]
    return json.dumps({"part": part, "failed": said[-1].strip() if said else f"ended with {code}"})


def main():
    match sys.argv[1:]:
        case ["--sizes", size]:
            for key, value in SIZES[size].items():
                words = ",".join(map(str, value)) if isinstance(value, list) else value
                print(f"{key}={words}")
        case ["--failed", part, code, log]:
            print(failed(part, code, log))
        case [path, size]:
            run = Run(path, size)
            for section in [head, checks, figures, kernels, deterministic]:
                print("\n".join(section(run)))
        case _:
            sys.exit(__doc__)


if __name__ == "__main__":
    main()
