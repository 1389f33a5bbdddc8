"""The loss of model folders over held-out dialogues: python loss.py --model DIR [--model DIR ...] [--count N]

To choose among checkpoints and averages (average.py): the loss over the answers of a few hundred dialogues tells closer
models apart than the rates of eval.py do. Each token counts as in training; a line for each kind of answer follows.
"""

import argparse
import collections
import itertools
import pathlib
import random

import torch
import torch.nn.functional as F
from tokenizers import Tokenizer
from transformers import LlamaForCausalLM

import chat
import dialogues

KINDS = ("talk", "fact", "call", "result", "other_call", "other_result", "ground", "missing", "story", "recall_unknown",
         "recall_other", "unknown", "world", "echo")


def kind_at(dialogue, starts):
    """The kind of the answer that each token belongs to."""
    kinds, text, at = [""] * len(starts), chat.render(dialogue)[0], 0
    for message in dialogue["messages"]:
        body = chat.body(message)
        begin = text.index(f"<|im_start|>{message['role']}\n", at)
        at = text.index(body, begin) + len(body)
        for i, start in enumerate(starts):
            if begin <= start < at + len(chat.IM_END):
                kinds[i] = message.get("check", {}).get("kind", "")
    return kinds


def losses(folder, made):
    """(weighted loss, weight) by kind of answer, and of all under the name of all."""
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    model = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    sums = collections.defaultdict(lambda: [0.0, 0.0])
    for dialogue in made:
        text, spans = chat.render(dialogue)
        encoding = tokenizer.encode(text)
        starts = [begin for begin, _ in encoding.offsets]
        counts = [0.0] * len(starts)
        for begin, end, weight in spans:
            counts = [weight if begin <= start < end else count for start, count in zip(starts, counts)]
        ids = torch.tensor([encoding.ids])
        with torch.no_grad():
            each = F.cross_entropy(model(ids).logits[0, :-1], ids[0, 1:], reduction="none")
        for loss, weight, kind in zip(each.tolist(), counts[1:], kind_at(dialogue, starts)[1:]):
            for name in ("all", kind):
                sums[name][0] += loss * weight
                sums[name][1] += weight
    return {name: loss / weight for name, (loss, weight) in sums.items() if weight}


def main():
    args = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    args.add_argument("--model", type=pathlib.Path, action="append", required=True, help="may be given more than once")
    args.add_argument("--count", type=int, default=250, help="dialogues")
    args.add_argument("--seed", type=int, default=4)
    args = args.parse_args()
    torch.set_num_threads(1)
    stream = dialogues.stream(random.Random(args.seed), "eval", progress=0.9)
    made = list(itertools.islice((d for d in stream if len(chat.render(d)[0]) < 2600), args.count))
    for folder in args.model:
        found = losses(folder, made)
        print(f"{found['all']:.4f} {folder}  " + " ".join(f"{k} {found[k]:.2f}" for k in KINDS if k in found), flush=True)


if __name__ == "__main__":
    main()
