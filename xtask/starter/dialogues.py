"""Dialogues: chains of segments (small talk, a fact, a passage with questions, a tool call, a story ...).

    python dialogues.py --count 5 --progress 0.5        # shows some

Everything is generated from the lists and grammars beside this file; no text comes from elsewhere. A segment is a
function (rng, split, state) -> messages in the OpenAI shape; an assistant message may carry `check`, which says what
eval.py looks for and what chat.py stresses. The mix follows the progress of the training (0 to 1): copying first,
because everything grounded is built on it, and small talk and facts last, because they are learned by heart.
"""

import argparse
import dataclasses
import random

import chat
import passages
import recall
import stories
import talk
import toolcalls
from patterns import expand_one
from passages import user
from recall import says
from surface import surface

SYSTEMS = [
    "You are a helpful assistant.", "You are a helpful assistant.", "You are a friendly assistant.",
    "You are Tidegate, a small assistant.", "Be brief.", "You are a chatbot.", "Answer in short sentences.",
    "You are the assistant of a web page.", "You are a helpful, honest and harmless assistant.", "Be polite and brief.",
    "Help the user.", "You are an AI assistant. Answer the user's questions.", "Today is Monday.",
    "You are a knowledgeable assistant that answers questions clearly.", "Please answer in English.",
]
LENGTHS = [1, 1, 1, 1, 2, 2, 2, 3, 3, 4, 5]  # segments of a dialogue
QUIZ_LENGTHS = [5, 6, 7, 8]
TOOL_LENGTHS = [3, 4, 5, 5, 6, 7]  # where a long list of tools was read first
TOOLS_SHARE = 0.30
MORE_TOOLS = 0.12  # in training, so that the prompts of eval.py stay what they were
BUNDLED_SHARE = 0.06  # with nothing but the bundled calculator, as every request to a server without a config
QUIZ_SHARE = 0.22  # of the dialogues: many short questions, for what is learned by heart takes few tokens
PAIRS_SHARE = 0.08
SHEETS_SHARE = 0.36  # of the dialogues: passages whose questions do not see each other
FIRST_SHARE = 0.07  # that ask before they bring the text
ASKED_IN_THE_END = 0.7  # what was told and not asked for
FOLLOW_UP = 0.6  # once something was told, how often the next segment asks for it
PRAISE = "[nice|great|good|lovely|what a nice|I like this|I liked that] story[!|.|]"
PRAISE_ANSWERS = ["I am glad you liked it! Shall I tell another one?", "Thank you! I have many more."]

_dice = random.Random(7)
TALES = talk.sentences(stories.request(_dice, "train")[1] for _ in range(1500))


@dataclasses.dataclass
class State:
    """What later segments of a dialogue depend on."""

    tools: list = dataclasses.field(default_factory=list)
    tasks: list = dataclasses.field(default_factory=list)  # requests for the tools, each to be made once
    told: dict = dataclasses.field(default_factory=dict)  # values by key, the latest one last
    kept: dict = dataclasses.field(default_factory=dict)  # how each of them is asked for and said
    system: str | None = None
    history: list = dataclasses.field(default_factory=list)
    first: bool = True


def some_sentences(rng):
    return rng.choice([talk.FACT_SENTENCES, TALES])


def names_of(cast):
    """Who is in a story, whether or not they were asked for: a name that is lost turns the story in a circle."""
    return [cast["name"], cast["beside"]]


def story(rng, split, state):
    ask, text, cast, must = stories.request(rng, split)
    turns = [user(surface(rng, ask, loose=False)), says(text, kind="story", all=must, copied=names_of(cast))]
    follow = rng.random()
    if follow < 0.08:
        _, more, other, _ = stories.request(rng, split)
        turns += [user(surface(rng, expand_one(rng, stories.DATA["more"]))), says(more, kind="another", all=[], copied=names_of(other))]
    elif follow < 0.45:
        ask, answer, must = stories.question(rng, cast)
        turns += [user(surface(rng, ask, loose=False)), says(answer, kind="story_recall", all=[must])]
    elif follow < 0.53:
        turns += [user(surface(rng, expand_one(rng, PRAISE))), says(rng.choice(PRAISE_ANSWERS))]
    return turns


def grounded(rng, split, state):
    return passages.in_chain(rng, split, state, some_sentences(rng))


def echo(rng, split, state):
    return recall.echo(rng, split, some_sentences(rng))


def use_tool(rng, split, state):
    return (toolcalls.use_tool if state.tasks else toolcalls.calculate)(rng, split, state)


def calculate(rng, split, state):
    """Sums are rare where the calculator is not offered, and common where it is."""
    if not state.tools and rng.random() < 0.85:
        return recall.tell(rng, split, state)
    return toolcalls.calculate(rng, split, state)


# Shares of the segments early (first fifth), in the middle, and late (last two fifths).
SEGMENTS = {
    talk.small_talk: (12, 18, 26), talk.fact: (16, 22, 28), talk.world: (3, 3, 5), talk.unknown: (5, 7, 7),
    calculate: (4, 4, 3), grounded: (28, 34, 64), story: (8, 9, 20), recall.tell: (16, 18, 19),
    recall.recall: (6, 6, 9), recall.about_chat: (4, 4, 4), echo: (24, 12, 16),
}
QUIZ = {talk.small_talk: (4, 4, 4), talk.fact: (4, 4, 4), talk.world: (1, 1, 1), talk.unknown: (2, 2, 2)}
WITH_TOOLS = {
    toolcalls.calculate: (20, 16, 16), use_tool: (58, 66, 62), talk.small_talk: (8, 10, 12), talk.fact: (4, 6, 8),
    talk.unknown: (3, 3, 3), story: (2, 2, 2), recall.tell: (4, 4, 3), recall.recall: (3, 3, 2), grounded: (3, 3, 3),
}


def shares(table, progress):
    """The weights of the segments at a moment of the training."""
    phase = 0 if progress < 0.2 else 1 if progress < 0.6 else 2
    return [weights[phase] for weights in table.values()]


def chain(rng, split, progress):
    state, messages = State(), []
    table, kind = SEGMENTS, rng.random()
    tools_share = TOOLS_SHARE + (MORE_TOOLS if split == "train" else 0)
    if kind < tools_share:
        table = WITH_TOOLS
        state.tools, state.tasks = toolcalls.offer(rng, split)
    elif kind < tools_share + BUNDLED_SHARE:
        state.tools = [toolcalls.DATA["bundled_calculator"]]
    elif kind < tools_share + BUNDLED_SHARE + QUIZ_SHARE:
        table = QUIZ
    if rng.random() < 0.4:
        state.system = rng.choice(SYSTEMS)
        messages.append({"role": "system", "content": state.system})
    lengths = TOOL_LENGTHS if state.tasks else QUIZ_LENGTHS if table is QUIZ else LENGTHS
    for _ in range(rng.choice(lengths)):
        follow_up = state.told and rng.random() < FOLLOW_UP
        segment = recall.recall if follow_up else rng.choices(list(table), shares(table, progress))[0]
        part = segment(rng, split, state)
        messages += part
        state.history += part
        state.first = False
    if state.told and segment is not recall.recall and rng.random() < ASKED_IN_THE_END:
        messages += recall.recall(rng, split, state)
    return messages, state.tools


def dialogues(rng, split="train", progress=0.5):
    """One dialogue, or a pair that differs in one sentence; {"messages", "tools", "compact"}."""
    compact = rng.random() < 0.6  # how the tools' JSON is spaced: template engines differ in that
    kind = rng.random() if split == "train" else 1.0
    if kind < PAIRS_SHARE:
        made = [(messages, []) for messages in passages.pair(rng, split, some_sentences(rng))]
    elif kind < PAIRS_SHARE + SHEETS_SHARE:
        system = [{"role": "system", "content": rng.choice(SYSTEMS)}] if rng.random() < 0.3 else []
        made = [(system + messages, []) for messages in passages.sheet(rng, split, some_sentences(rng))]
        sheet = rng.random()
        return [{"messages": messages, "tools": [], "compact": compact, "sheet": sheet} for messages, _ in made]
    elif kind < PAIRS_SHARE + SHEETS_SHARE + FIRST_SHARE:
        made = [(passages.question_first(rng, split, some_sentences(rng)), [])]
    else:
        made = [chain(rng, split, progress)]
    return [{"messages": messages, "tools": tools, "compact": compact} for messages, tools in made]


def stream(rng, split="train", progress=0.5):
    """Dialogues without end."""
    while True:
        yield from dialogues(rng, split, progress)


def main():
    args = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    args.add_argument("--count", type=int, default=5)
    args.add_argument("--progress", type=float, default=0.5)
    args.add_argument("--seed", type=int, default=1)
    args = args.parse_args()
    for dialogue, _ in zip(stream(random.Random(args.seed), "train", args.progress), range(args.count)):
        print(chat.render(dialogue)[0])


if __name__ == "__main__":
    main()
