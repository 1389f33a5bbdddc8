"""Counts the stories that go round in a circle: python circles.py --model DIR [--model DIR ...]

Greedy, in fp32, of the plainest requests and of made ones; a circle is three words in a row that come four times.
"""

import argparse
import collections
import pathlib
import random

import chat
import eval
import stories
from passages import user

PLAIN = [
    "Tell me a story.", "tell me a story", "Tell me a short story", "A story, please", "Can you tell me a story?",
    "write a story", "Tell me a story about a dog.", "Tell me a story about a dragon and a princess", "One more story",
    "Please tell me a story about the sea.", "Tell me a bedtime story", "I want a story",
]
COUNT = 72
BATCH = 36
TIMES = 4  # that three words in a row may come


def requests(seed):
    rng = random.Random(seed)
    made = [stories.request(rng, rng.choice(["train", "eval"]))[0] for _ in range(COUNT - len(PLAIN))]
    for ask in PLAIN + made:
        dialogue = {"messages": [user(ask)], "tools": [], "compact": True}
        yield chat.render(dialogue)[0] + f"{chat.IM_START}assistant\n"


def goes_round(text):
    words = text.split()
    runs = collections.Counter(zip(words, words[1:], words[2:]))
    return max(runs.values(), default=0) >= TIMES


def main():
    args = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    args.add_argument("--model", type=pathlib.Path, action="append", required=True, help="may be given more than once")
    args.add_argument("--seed", type=int, default=3)
    args = args.parse_args()
    prompts = list(requests(args.seed))
    for model in args.model:
        generate = eval.Generator(model, "cpu")
        told = [text for at in range(0, len(prompts), BATCH) for text in generate(prompts[at: at + BATCH])]
        print(f"{model}: {sum(map(goes_round, told))} of {len(told)} go round in a circle", flush=True)


if __name__ == "__main__":
    main()
