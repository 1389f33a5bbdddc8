"""Measures model folders on held-out prompts: python eval.py --model DIR [--model DIR ...] [--per N] [--out eval.md]

Slot values (names, numbers, coined words ...) and the wordings of questions come from the tenth that training never
sees. The prompts are fixed by the seed, decoding is greedy in fp32, so a repeated run gives the same table. A row is
the share of prompts whose answer passes its check: exact strings, regular expressions, whole copied values, or for
tool calls the parsed JSON. The recipe was improved on such prompts, so they are a development set, not a blind one.
"""

import argparse
import datetime
import json
import pathlib
import platform
import random
import re
import time
import tomllib

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import arithmetic
import chat
import dialogues

# The rows of the table: the kinds of checks that count, and the share that we want.
ROWS = {
    "small talk": (["talk"], 85), "facts about Tidegate": (["fact"], 95), "calculator call": (["call"], 95),
    "answer from the calculator": (["result"], 95), "call of other tools": (["other_call"], 85),
    "answer from other tools": (["other_result"], 95), "answer from a passage": (["ground"], 85),
    "says it is not in the text": (["missing"], 85), "story keeps to the request": (["story"], 80),
    "question about the story": (["story_recall"], 80), "recalls the name": (["recall_name"], 95),
    "recalls other things": (["recall_other"], 95), "says it was not told": (["recall_unknown"], 95),
    "declines unknown things": (["unknown"], 95), "small world": (["world"], 85),
    "echo and repeat": (["echo", "repeat"], 85),
}
LIMIT = 150  # tokens of an answer
LONGEST = 2600  # characters of a prompt
BATCH = 50
CALL = re.compile(re.escape(chat.CALL) + r"(\{.*\})" + re.escape(chat.CALL_END))
CALCULATOR = {"type": "function", "function": {
    "name": "calculator", "description": "Evaluate an arithmetic expression.",
    "parameters": {"type": "object", "properties": {"expression": {"type": "string"}}, "required": ["expression"]}}}


def parsed_call(text):
    """The call that the whole text is, or None."""
    try:
        call = json.loads(CALL.fullmatch(text).group(1))
        return call if isinstance(call["name"], str) and isinstance(call["arguments"], dict) else None
    except (AttributeError, KeyError, ValueError):
        return None


def without_case(arguments):
    """Whoever begins with "Hut lights" has called it Hut; the blind set does not look at case, either."""
    return {key: value.lower() if isinstance(value, str) else value for key, value in arguments.items()}


def passes(check, text):
    if check["kind"] in ("call", "other_call"):
        call = parsed_call(text)
        if call is None or check["kind"] == "other_call":
            return call is not None and call["name"] == check["name"] and (
                without_case(call["arguments"]) == without_case(check["arguments"]))
        wanted = arithmetic.value(check["expression"])
        return call["name"] == "calculator" and arithmetic.value(str(call["arguments"].get("expression"))) == wanted
    if "any" in check:
        return text in check["any"]
    if "all" in check:
        return all(part.lower() in text.lower() for part in check["all"])
    return re.search(check["regex"], text) is not None


class Generator:
    def __init__(self, path, device):
        self.tokenizer = AutoTokenizer.from_pretrained(path, padding_side="left")
        self.model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval().to(device)

    def __call__(self, prompts):
        """Greedy answers for a batch of rendered prompts."""
        batch = self.tokenizer(
            prompts, return_tensors="pt", padding=True, add_special_tokens=False, return_token_type_ids=False,
        ).to(self.model.device)
        with torch.no_grad():
            out = self.model.generate(**batch, max_new_tokens=LIMIT, do_sample=False)
        return self.tokenizer.batch_decode(out[:, batch["input_ids"].shape[1]:], skip_special_tokens=True)

    def answer(self, messages, tools):
        prompt = self.tokenizer.apply_chat_template(
            messages, tools=tools, tokenize=False, add_generation_prompt=True)
        return self([prompt])[0]


def held_out_prompts(per, seed):
    """For each row `per` (rendered prompt, check, true answer), each with the true conversation before it."""
    rows, row_of = {row: [] for row in ROWS}, {kind: row for row, (kinds, _) in ROWS.items() for kind in kinds}
    for dialogue in dialogues.stream(random.Random(seed), "eval", progress=0.5):
        for i, message in enumerate(dialogue["messages"]):
            check = message.get("check", {})
            row = row_of.get(check.get("kind"))
            if row is None or len(rows[row]) == per or check.get("all") == []:
                continue
            before = dialogue | {"messages": dialogue["messages"][:i]}
            prompt = chat.render(before)[0] + f"{chat.IM_START}assistant\n"
            if len(prompt) <= LONGEST:
                rows[row].append((prompt, check, chat.body(message)))
        if all(len(prompts) == per for prompts in rows.values()):
            return rows


def openai_form(messages):
    """Tool calls as a client would send them back: arguments as a JSON string."""
    out = []
    for message in messages:
        message = {key: value for key, value in message.items() if key != "check"}
        if "tool_calls" in message:
            message["tool_calls"] = [
                {"type": "function", "id": f"call_{i}",
                 "function": {"name": call["name"], "arguments": chat.compact(call["arguments"])}}
                for i, call in enumerate(message["tool_calls"])]
        out.append(message)
    return out


def check_template(tokenizer, count=300):
    """The Jinja template must give the text of chat.render (with JSON spaced as transformers does it)."""
    for dialogue, _ in zip(dialogues.stream(random.Random(5)), range(count)):
        dialogue["compact"] = False
        tools = [{"type": "function", "function": tool} for tool in dialogue["tools"]] or None
        shown = tokenizer.apply_chat_template(openai_form(dialogue["messages"]), tools=tools, tokenize=False)
        if shown != chat.render(dialogue)[0]:
            raise SystemExit(f"the template differs:\n{shown}\n---\n{chat.render(dialogue)[0]}")


def rates(generate, rows, failures):
    """Passed prompts for each row; failed ones are appended to `failures`."""
    passed = {}
    for row, prompts in rows.items():
        prompts = sorted(prompts, key=lambda prompt: len(prompt[0]))
        passed[row] = 0
        for at in range(0, len(prompts), BATCH):
            part = prompts[at: at + BATCH]
            for (prompt, check, wanted), text in zip(part, generate([prompt for prompt, _, _ in part])):
                if passes(check, text):
                    passed[row] += 1
                else:
                    failures.append(f"[{row}] ...{prompt[-400:]!r}\n    got    {text!r}\n    wanted {wanted!r}\n")
        print(f"{row:28} {passed[row]:4}/{len(prompts)}", flush=True)
    return passed


def converse(generate, conversation, text):
    """One of the conversations by hand, with the calculator run for real."""
    tools, messages, lines = [CALCULATOR] if conversation.get("calculator") else None, [], []
    for turn in conversation["turns"]:
        messages.append({"role": "user", "content": turn.replace("{text}", text)})
        lines.append(f"user: {messages[-1]['content']}")
        for _ in range(2):
            said = generate.answer(messages, tools)
            lines.append(f"assistant: {said}")
            call = parsed_call(said)
            if not call:
                messages.append({"role": "assistant", "content": said})
                break
            result = arithmetic.value(str(call["arguments"].get("expression"))) or "error: invalid expression"
            messages += [{"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": call}]},
                         {"role": "tool", "content": result}]
            lines.append(f"tool: {result}")
    return "\n".join(lines)


def machine():
    """The processor, as far as the system tells it."""
    try:
        found = re.search(r"model name\s*: (.*)", pathlib.Path("/proc/cpuinfo").read_text())
    except OSError:
        found = None
    return f"{found[1] if found else platform.machine()}, {torch.get_num_threads()} thread, PyTorch {torch.__version__}"


def report(args, names, table, seconds):
    """The table as Markdown, with what is needed to repeat it."""
    models = " ".join(f"--model {name}" for name in names)
    command = f"python eval.py {models} --per {args.per} --seed {args.seed}"
    lines = [
        "# How the starter model does on held-out prompts", "",
        f"{args.per} prompts a row, seed {args.seed}, greedy, fp32; "
        f"read each figure as +-{98 / args.per**0.5:.0f} points.",
        f"{datetime.date.today()}, {machine()}, {seconds:.0f} s.", "",
        "The slot values and wordings did not occur in training; the recipe was improved on prompts of these",
        "kinds, so this is a development set. Repeat it with", "",
        f"    {command}", "",
        "| ability | wanted | " + " | ".join(names) + " |", "|---|" + "---|" * (1 + len(names)),
    ]
    for row, (_, wanted) in ROWS.items():
        shown = [f"{100 * passed[row] / args.per:.0f} %" for passed in table]
        lines.append(f"| {row} | {wanted} % | " + " | ".join(shown) + " |")
    means = [f"{sum(passed.values()) / len(ROWS) * 100 / args.per:.1f} %" for passed in table]
    lines.append("| **mean** | | " + " | ".join(means) + " |")
    return "\n".join(lines) + "\n"


def arguments():
    args = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    args.add_argument("--model", type=pathlib.Path, action="append", required=True, help="may be given more than once")
    args.add_argument("--name", action="append", help="what the table calls it; by default its folder")
    args.add_argument("--per", type=int, default=50, help="prompts for each row")
    args.add_argument("--seed", type=int, default=99)
    args.add_argument("--device", default="cpu", help="cpu or cuda; figures may differ by a prompt between devices")
    args.add_argument("--threads", type=int, default=1)
    args.add_argument("--out", type=pathlib.Path, help="write the table and the free conversations here")
    args.add_argument("--failures", type=pathlib.Path, help="write the failed prompts of the last model here")
    return args.parse_args()


def main():
    args = arguments()
    torch.set_num_threads(args.threads)
    names = args.name or [model.name for model in args.model]
    rows, table, failures, begin = held_out_prompts(args.per, args.seed), [], [], time.time()
    for name, model in zip(names, args.model):
        print(f"-- {name}", flush=True)
        generate = Generator(model, args.device)
        check_template(generate.tokenizer)
        failures.clear()
        table.append(rates(generate, rows, failures))
    text = report(args, names, table, time.time() - begin)
    free = tomllib.loads((pathlib.Path(__file__).parent / "free_prompts.toml").read_text())
    text += f"\n## Conversations by hand, unedited ({names[-1]})\n\n```\n"
    shown = (converse(generate, conversation, free["text"]) for conversation in free["conversation"])
    text += "\n\n".join(shown) + "\n```\n"
    if args.failures:
        args.failures.write_text("\n".join(failures))
    if args.out:
        args.out.write_text(text)
    print(text)


if __name__ == "__main__":
    main()
