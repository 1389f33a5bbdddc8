"""Questions about everyday texts, after the text and before it: python everyday.py --model DIR [--failures FILE]

Fewer and closer to what users bring than the prompts of eval.py; a development set, too.
"""

import argparse
import pathlib
import tomllib

import torch

import chat
from eval import BATCH, Generator

FORMS = {"text first": "{p}\n\n{q}", "with labels": "Context: {p}\n\nQuestion: {q}", "question first": "{q}\n\n{p}"}


def prompts(form):
    """(prompt, question) of all questions in a form."""
    for text in tomllib.loads((pathlib.Path(__file__).parent / "everyday.toml").read_text())["text"]:
        for question in text["questions"]:
            content = form.replace("{p}", text["text"]).replace("{q}", question["ask"])
            dialogue = {"messages": [{"role": "user", "content": content}], "tools": [], "compact": True}
            yield chat.render(dialogue)[0] + f"{chat.IM_START}assistant\n", question


def main():
    args = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    args.add_argument("--model", type=pathlib.Path, required=True)
    args.add_argument("--failures", type=pathlib.Path, help="write the failed questions here")
    args = args.parse_args()
    torch.set_num_threads(1)
    generate, failures = Generator(args.model, "cpu"), []
    for name, form in FORMS.items():
        asked, right = {"in the text": 0, "not in it": 0}, {"in the text": 0, "not in it": 0}
        made = list(prompts(form))
        for at in range(0, len(made), BATCH):
            part = made[at: at + BATCH]
            for (_, question), said in zip(part, generate([prompt for prompt, _ in part])):
                kind = "in the text" if "has" in question else "not in it"
                passed = question.get("has", "does not say").lower() in said.lower()
                asked[kind] += 1
                right[kind] += passed
                if not passed:
                    failures.append(f"[{name}] {question}\n    got {said!r}\n")
        print(f"{name}: " + ", ".join(f"{right[kind]} of {asked[kind]} {kind}" for kind in asked), flush=True)
    if args.failures:
        args.failures.write_text("\n".join(failures))


if __name__ == "__main__":
    main()
