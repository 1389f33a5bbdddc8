"""Answers that do not depend on the conversation: small talk, facts, a little of the world, declining."""

import pathlib
import re
import tomllib

from passages import user
from patterns import expand_one, has_held_out, hold
from recall import says
from surface import surface
from words import fill

HERE = pathlib.Path(__file__).parent
FACTS = tomllib.loads((HERE / "facts.toml").read_text())["fact"]
TALK = tomllib.loads((HERE / "smalltalk.toml").read_text())["talk"]
RIGHT = {talk["id"]: talk["answer"] for talk in TALK}
WORLD = tomllib.loads((HERE / "world.toml").read_text())
UNKNOWN = tomllib.loads((HERE / "unknown.toml").read_text())

TOPIC_ASKS = (
    "[what is|what's|what are|explain|tell me about|describe|how does|can you explain|what do you know about"
    "|please explain|what exactly is|tell me more about|give me a short explanation of|I want to know about|define"
    "|what can you tell me about|help me understand|I have a question about|do you know|could you explain"
    "|in simple words, what is|what is the point of|why is there|what do you mean by|who needs|when do I use"
    "|how do I use|why do I need]"
)
TOPIC_TAILS = [
    "", "", "", "", "", "", " and why does it matter?", " in Tidegate?", " and how does it work?", " good for?",
    " for?", " in one sentence?", " to a beginner", " briefly", " here?",
]
TOPIC_SHORT = "{x}[?|| please| in short|, what is that?|, how does that work?]"
MORE = (
    "[tell me more|can you say that in other words?|say it differently|explain more|go on|more details please"
    "|in other words?|more]"
)
TAKES_TAIL = ("what is ", "what's", "what are", "explain", "describe")
IS_QUESTION = ("what", "can", "who", "when", "why", "how", "do ", "could", "in ")


def right_answers(talk):
    """All that is right to say to it."""
    return [*talk["answer"], *(answer for other in talk.get("also", []) for answer in RIGHT[other])]


def small_talk(rng, split, state):
    pool = [talk for talk in TALK if has_held_out(tuple(talk["ask"]))] if split == "eval" else TALK
    talk = rng.choice(pool)
    turns = [user(surface(rng, hold(rng, talk["ask"], split))),
             says(rng.choice(talk["answer"]), kind="talk", id=talk["id"], any=right_answers(talk))]
    if talk.get("follow") and rng.random() < 0.5:
        asks, answers = rng.choice(talk["follow"])
        turns += [user(surface(rng, hold(rng, [asks], split))), says(rng.choice(answers))]
    return turns


def _finish(rng, ask):
    """The end of a question that began with one of TOPIC_ASKS."""
    if ask.startswith("how does"):
        return ask + " work?"
    tail = rng.choice(TOPIC_TAILS) if ask.startswith(TAKES_TAIL) else ""
    return ask + (tail or ("?" if ask.startswith(IS_QUESTION) else rng.choice(["", ".", "!"])))


def _fact_question(rng, item, split):
    asks = item["ask"]
    if not item.get("topic") or rng.random() < 0.5 and (split == "train" or has_held_out(tuple(asks))):
        return hold(rng, asks, split)
    if split == "train" and rng.random() < 0.12:
        return fill(rng, split, TOPIC_SHORT, x=rng.choice(item["topic"]))
    return _finish(rng, hold(rng, [f"{TOPIC_ASKS} {topic}" for topic in item["topic"]], split))


def fact(rng, split, state):
    item = rng.choice(FACTS)
    answer = rng.choice(item["answer"])
    turns = [user(surface(rng, _fact_question(rng, item, split))),
             says(answer, kind="fact", id=item["id"], regex=item["check"])]
    other = [text for text in item["answer"] if text != answer]
    if other and rng.random() < 0.08:
        turns += [user(surface(rng, expand_one(rng, MORE))), says(rng.choice(other))]
    return turns


CAPITAL_ASKS = (
    "[what is|what's|tell me|do you know|name|give me|which city is|what city is|can you tell me|I need] the capital"
    " [city |]of {x}?"
)
CAPITAL_SHORT = (
    "[capital of {x}|{x}, capital|{x}'s capital|which city is {x}'s capital|what is {x}'s capital|what capital does {x} have]?"
)
OPPOSITE_ASKS = (
    "[[what is|what's|tell me|do you know|name|give me] the [opposite|contrary] of {x}?|what is the reverse of {x}?"
    "|{x} is the opposite of what?|opposite of {x}?]"
)
SOUND_ASKS = (
    "[what [sound|noise] does a {x} make|what does [a|the] {x} say|how does a {x} [sound|go]|what is the sound of a {x}"
    "|what do {x}s say]?"
)


def world(rng, split, state):
    kind, names = rng.random(), {name: sorted(table.items()) for name, table in WORLD.items()}
    if kind < 0.4:
        country, must = rng.choice(names["capital"])
        asks = CAPITAL_ASKS if rng.random() < 0.7 else CAPITAL_SHORT
        ask, answer = asks.replace("{x}", country), f"The capital of {country} is {must.rstrip('.')}."
    elif kind < 0.5:
        word, must = rng.choice(names["opposite"])[::rng.choice([1, -1])]
        ask, answer = OPPOSITE_ASKS.replace("{x}", word), f"The opposite of {word} is {must}."
    elif kind < 0.56:
        animal, must = rng.choice(names["sound"])
        ask, answer = SOUND_ASKS.replace("{x}", animal), f"A {animal} says {must}."
    else:
        ask, answer = rng.choice(names["qa"])
        must = answer
    return [user(surface(rng, fill(rng, split, ask))), says(fill(rng, split, answer), kind="world", all=[must])]


def unknown(rng, split, state):
    """Things that a tiny model must not make up."""
    if rng.random() < 0.45:
        topic = fill(rng, split, rng.choice(UNKNOWN["topics"]))
        if rng.random() < 0.8:
            ask = _finish(rng, f"{expand_one(rng, TOPIC_ASKS)} {topic}")
        else:
            ask = fill(rng, split, rng.choice(UNKNOWN["asks"]), x=topic)
        answer = rng.choice(UNKNOWN["about"]).replace("{x}", topic)
    else:
        ask, answer = fill(rng, split, rng.choice(UNKNOWN["questions"])), rng.choice(UNKNOWN["plain"])
    ask = surface(rng, ask, loose=rng.random() < 0.4)
    return [user(ask), says(answer, kind="unknown", regex="(?i)(do not know|cannot|beyond me|sorry)")]


def sentences(texts):
    """The single sentences of some texts, for passages and copying."""
    return [part.strip() + "." for text in texts for part in re.split(r"\. ", text.rstrip(".")) if '"' not in part and " " in part.strip()]


FACT_SENTENCES = sentences(answer for item in FACTS for answer in item["answer"])
