"""Checks that pass or fail, as rows of the table.

    check.py tests TITLE PROGRAM [FILTER...]    one of our test programs, on the device
    check.py server TIDEGATE FIXTURES           the program over HTTP: greedy answers are the CPU's, alone and together
"""

import json
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from gateway import Gateway

MODELS = ["llama", "mistral", "qwen3"]
PROMPTS = [
    "the tide",
    "a ship that sails at night keeps its lamp lit and its crew awake",
    "one two three four five six seven eight nine ten eleven twelve thirteen fourteen",
    "water",
]


def report(title, passed, failed, names):
    print(json.dumps({"check": title, "passed": passed, "failed": failed, "names": names}), flush=True)
    sys.exit(1 if failed or not passed else 0)


def tests(title, program, *filters):
    done = subprocess.run([program, *filters], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    print(done.stdout, file=sys.stderr)
    result = re.search(r"test result: \w+\. (\d+) passed; (\d+) failed", done.stdout)
    if result is None:
        sys.exit(f"{program} ended with {done.returncode} and no result")
    # What needs the stand-ins of a device is for `cargo test`.
    if re.search("NOT TESTED: (?!needs the stand-ins)", done.stdout):
        sys.exit(f"{program} has skipped what it was to check")
    names = re.findall(r"^test (\S+) \.\.\. FAILED", done.stdout, re.MULTILINE)
    report(title, int(result[1]), int(result[2]), names)


def answers(program, fixtures, backend):
    models = {name: Path(fixtures) / name for name in MODELS}
    # Steps so small that prompts go in pieces.
    engine = {"kv_cache_mib": 1, "max_batch_tokens": 24, "max_seqs": 6}
    request = lambda model, prompt: {"model": model, "prompt": prompt, "max_tokens": 16, "temperature": 0}
    requests = [request(model, prompt) for model in MODELS for prompt in PROMPTS]
    with Gateway(program, models, backend, engine) as gateway:
        text = lambda body: gateway.complete(body)["choices"][0]["text"]
        alone = [text(body) for body in requests]
        with ThreadPoolExecutor(len(requests)) as pool:
            return requests, alone, list(pool.map(text, requests))


def server(program, fixtures):
    requests, expected, _ = answers(program, fixtures, "cpu")
    _, alone, together = answers(program, fixtures, "cuda")
    wrong = []
    for request, want, *found in zip(requests, expected, alone, together):
        for how, text in zip(["alone", "beside others"], found):
            if text != want:
                wrong.append(f"{request['model']}, {request['prompt'][:12]!r}, {how}")
                print(f"{wrong[-1]}: {text!r} instead of {want!r}", file=sys.stderr)
    report("answers over HTTP are the CPU's", 2 * len(requests) - len(wrong), len(wrong), wrong)


if __name__ == "__main__":
    {"tests": tests, "server": server}[sys.argv[1]](*sys.argv[2:])
