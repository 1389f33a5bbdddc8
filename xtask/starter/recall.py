"""Things to remember, questions about them and about the conversation, and plain copying, from memories.toml."""

import pathlib
import tomllib

import words
from patterns import expand_one
from passages import user
from surface import surface
from words import POOLS, capital, fill

DATA = tomllib.loads((pathlib.Path(__file__).parent / "memories.toml").read_text())
MEMORIES = {memory["id"]: memory for memory in DATA["memory"]}
CORRECTIONS = "[Actually, |No wait, |Sorry, |Correction: ]"
REPEAT_ANSWER = (
    "[repeat that|say that again|please repeat|can you repeat that|could you say that again|once more please"
    "|what did you say|repeat your last answer][, please|]"
)
REPEAT_QUESTION = (
    "[what did I just say?|what did I just ask?|what was my last question?|what was my last message?"
    "|repeat my last message]"
)
ECHO = [
    "repeat after me: {v}", "say: {v}", 'please say "{v}"', "say {v}", "repeat: {v}", "repeat this: {v}",
    "copy this: {v}", "echo {v}", "write {v}", "type this: {v}", "read back: {v}", 'please repeat "{v}"',
]
ECHO_WORDS = [
    "{coined}", "{coined_low}", "{person}", "{coined} {full_name}", "{number 1 99999}", "{code}", "{word}", "{word}",
    "{word}",
]


def _kin_memories():
    for kin in DATA["kin"]["list"].split():
        def named(value):
            return [named(v) for v in value] if isinstance(value, list) else value.replace("{kin}", kin)
        yield kin, {key: named(value) for key, value in DATA["kin"].items() if key != "list"}


MEMORIES |= dict(_kin_memories())


def says(text, **check):
    return {"role": "assistant", "content": text} | ({"check": check} if check else {})


def _stated(rng, text):
    return (capital(text) if rng.random() < 0.8 else text) + rng.choice(["", ".", ".", "!"])


def tell(rng, split, state):
    """The user says something to remember; it may replace what was said before."""
    key = "name" if rng.random() < 0.4 else rng.choice(list(MEMORIES))
    if key == "name" and "name" not in state.told and rng.random() < 0.3:
        return _tell_two(rng, split, state)
    memory = MEMORIES[key]
    value = fill(rng, split, memory["value"])
    text = fill(rng, split, rng.choice(memory["tell"]), v=value)
    if key in state.told and rng.random() < 0.7:
        text = expand_one(rng, CORRECTIONS) + text
    state.told[key] = value
    reply = fill(rng, split, rng.choice(memory["reply"]), v=value, V=capital(value))
    return [user(_stated(rng, text)), says(reply, kind="reply", all=[value])]


def _tell_two(rng, split, state):
    two = rng.choice(DATA["two"])
    values = {key: fill(rng, split, MEMORIES[key]["value"]) for key in two["ids"]}
    state.told |= values
    text = fill(rng, split, rng.choice(two["tell"]), **values)
    reply = fill(rng, split, rng.choice(two["reply"]), **values)
    return [user(_stated(rng, text)), says(reply, kind="reply", all=list(values.values()))]


def recall(rng, split, state):
    """The user asks for something that was told, or was not."""
    known = list(state.told)
    key = rng.choice(known) if known and rng.random() < 0.85 else rng.choice(["name", "name", *MEMORIES])
    memory = MEMORIES[key]
    ask = surface(rng, expand_one(rng, rng.choice(memory["ask"])), loose=False)
    if key not in state.told:
        answer = f"You have not told me {memory['noun']} yet."
        return [user(ask), says(answer, kind="recall_unknown", regex="not told")]
    value = state.told[key]
    kind = "recall_name" if key == "name" else "recall_other"
    return [user(ask), says(fill(rng, split, rng.choice(memory["say"]), v=value), kind=kind, all=[value])]


def about_chat(rng, split, state):
    """The last question or the last answer, once more."""
    asked = next((m["content"] for m in reversed(state.history) if m["role"] == "user"), None)
    said = next((m["content"] for m in reversed(state.history) if m["role"] == "assistant"), None)
    if asked is None:
        ask = expand_one(rng, "what did I [just ask|ask before|say before]?")
        return [user(surface(rng, ask)), says("You have not asked me anything before this.")]
    if said and len(said) < 160 and rng.random() < 0.5:
        return [user(surface(rng, expand_one(rng, REPEAT_ANSWER))), says(said, kind="repeat", all=[said])]
    if len(asked) > 120 or "\n" in asked:
        return recall(rng, split, state)
    ask = user(surface(rng, expand_one(rng, REPEAT_QUESTION)))
    return [ask, says(f"You wrote: {asked}", kind="repeat", all=[asked])]


def echo(rng, split, sentences):
    """Plain copying, of words, coined words, numbers and sentences: what every grounded answer is built on."""
    if rng.random() < 0.12:
        text = rng.choice(sentences)
    else:
        slots = rng.choice(ECHO_WORDS)
        text = " ".join(fill(rng, split, slots) for _ in range(rng.choice([1, 2, 2, 3, 4, 5, 6, 8, 12])))
    return [user(surface(rng, rng.choice(ECHO), loose=False).replace("{v}", text)), says(text, kind="echo", all=[text])]
