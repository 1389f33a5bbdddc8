"""Runs the blind set: python blind.py --model DIR [--prompts blind.toml] [--failures FILE]

200 prompts by somebody who has not seen the generators, and nothing here was tuned on them; decoding is greedy in
fp32. A prompt has `turns` (earlier answers stand as they are written, `call` is one of the model's tool calls), maybe
`tools` (a JSON list in the OpenAI shape), and what the answer must be:

* `any`, `all`, `none`: regular expressions without case, of which one, every or no one may match; they may be combined
* `value`: a call of the calculator whose expression has this value
* `tool`, `arguments`: a call of this tool with at least these arguments, compared as text without case
"""

import argparse
import json
import pathlib
import re
import tomllib

import torch

import arithmetic
from eval import Generator, parsed_call

ABILITIES = (
    "small-talk", "facts", "calculator-call", "calculator-answer", "other-tool-call", "other-tool-answer", "passage",
    "not-in-text", "story", "recall", "decline", "world",
)


def message_of(turn):
    """A turn as the chat template takes it."""
    message = {"role": turn["role"], "content": turn.get("content", "")}
    if "call" in turn:
        call = json.loads(turn["call"])
        message["tool_calls"] = [{"type": "function", "id": "call_0", "function": call}]
    return message


def same_number(text, wanted):
    try:
        return text is not None and abs(float(text) - float(wanted)) < 1e-6 * max(1.0, abs(float(wanted)))
    except ValueError:
        return False


def called_right(prompt, text):
    call = parsed_call(text)
    if call is None:
        return False
    if "value" in prompt:
        result = arithmetic.value(str(call["arguments"].get("expression")))
        return call["name"] == "calculator" and same_number(result, prompt["value"])
    given = {key: str(value).lower() for key, value in call["arguments"].items()}
    wanted = {key: str(value).lower() for key, value in prompt.get("arguments", {}).items()}
    return call["name"] == prompt["tool"] and wanted.items() <= given.items()


def passes(prompt, text):
    if "value" in prompt or "tool" in prompt:
        return called_right(prompt, text)

    def found(pattern):
        return re.search(pattern, text, re.IGNORECASE) is not None

    return (any(map(found, prompt.get("any", [""]))) and all(map(found, prompt.get("all", [])))
            and not any(map(found, prompt.get("none", []))))


def read(path):
    prompts = tomllib.loads(path.read_text())["prompt"]
    for prompt in prompts:
        if prompt["ability"] not in ABILITIES or not {"any", "all", "none", "value", "tool"} & prompt.keys():
            raise SystemExit(f"{prompt['id']}: unknown ability or no check")
    return prompts


def arguments():
    args = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    args.add_argument("--model", type=pathlib.Path, required=True)
    args.add_argument("--prompts", type=pathlib.Path, default=pathlib.Path(__file__).parent / "blind.toml")
    args.add_argument("--failures", type=pathlib.Path, help="write the failed prompts here")
    return args.parse_args()


def main():
    args = arguments()
    torch.set_num_threads(1)
    generate, failures = Generator(args.model, "cpu"), []
    passed, asked = dict.fromkeys(ABILITIES, 0), dict.fromkeys(ABILITIES, 0)
    for prompt in read(args.prompts):
        tools = json.loads(prompt["tools"]) if "tools" in prompt else None
        text = generate.answer([message_of(turn) for turn in prompt["turns"]], tools)
        right = passes(prompt, text)
        asked[prompt["ability"]] += 1
        passed[prompt["ability"]] += right
        if not right:
            failures.append(f"[{prompt['id']}] {prompt['turns'][-1].get('content')!r}\n    got {text!r}\n")
    print("| ability | right | of |\n|---|---|---|")
    for ability in ABILITIES:
        print(f"| {ability} | {passed[ability]} | {asked[ability]} |")
    right, total = sum(passed.values()), sum(asked.values())
    print(f"| **all** | {right} ({100 * right / total:.1f} %) | {total} |")
    if args.failures:
        args.failures.write_text("\n".join(failures))


if __name__ == "__main__":
    main()
