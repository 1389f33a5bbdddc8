"""Things to remember, questions about them and about the conversation, and plain copying, from memories.toml."""

import json
import pathlib
import tomllib

import sentences
from patterns import expand_all, expand_one
from passages import user
from surface import surface
from words import capital, fill, small

DATA = tomllib.loads((pathlib.Path(__file__).parent / "memories.toml").read_text())
MEMORIES = {memory["id"]: memory for memory in DATA["memory"]}
CORRECTIONS = (
    "[Actually, |No wait, |Sorry, |Correction: |Wait, |I was wrong, |Update: |Oops, |I made a mistake, |Forget that, |Hm, no, |It changed: ]"
)
SHORT_CORRECTIONS = [
    "actually it is {v}", "no, it is {v}", "no, {v}", "sorry, I meant {v}", "I mean {v}", "it is {v}, not {o}", "not {o}, {v}",
    "that was wrong, it is {v}", "make that {v}", "correction: {v}", "wait, {v}", "actually {v}", "no wait, it's {v}",
]
# What other assistants say to such a thing. It stands in the conversation, and is not learned.
GIVEN = [
    "Got it.", "Got it!", "Noted.", "Okay.", "OK!", "Thanks for telling me.", "Thank you, I will remember that.", "Good to know!",
    "I'll keep that in mind.", "Sure.", "Understood.", "Great!", "All right.", "I have noted that.", "Nice!", "Sounds good!", "Wonderful.",
    "Okay, noted! Anything else?", "That is interesting!", "Alright, I've saved that.", "Cool!", "How can I help you with that?",
]
GIVEN_SHARE = 0.3
TOLD_SHARE = 0.7  # of the questions for something, once something was told
SHARED_SHARE = 0.12  # of the things told that are about somebody or something else
REMEMBER = [
    "remember this: {s}", "please remember: {s}", "note: {s}", "{s}", "{s}", "by the way, {l}", "just so you know: {s}", "keep this in mind: {s}",
    "I want you to know this: {s}", "for later: {s}", "important: {s}",
]
ABOUT_ME = "[what do you know about me?|what have I told you[ about me| so far|]?|what do you remember about me?|tell me what you know about me]"
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
QUOTED = [
    "write as a JSON list: {v}", "make a JSON array of {v}", "as JSON, please: {v}", "JSON list of these words: {v}",
    "put this in a JSON list: {v}",
]
QUOTED_WORDS = [
    "{color} {object}", "{place}", "{food}", "{coined_low}", "{coined_low} {object}", "the {folk}", "{trait} {animal}", "{subject}",
    "{word}", "{email}", "{coined_low}.[txt|log|csv|toml]",
]
QUOTED_SHARE = 0.4  # of the echoes in training


def _kin_memories():
    for kin in DATA["kin"]["list"].split():
        def named(value):
            return [named(v) for v in value] if isinstance(value, list) else value.replace("{kin}", kin)
        yield kin, {key: named(value) for key, value in DATA["kin"].items() if key != "list"}


def _own_memories():
    own = DATA["own"]
    for keys, pattern in own["of"].items():
        for key in expand_all(keys):
            yield key, {"value": pattern, "noun": own["noun"].replace("{k}", key)} | {
                part: [text.replace("{k}", key) for text in own[part]] for part in ("tell", "reply", "ask", "say")}


def _unheard_of(rng, split):
    """A memory for a thing with a coined name."""
    key = fill(rng, split, "{coined_low}[| number| code| day]")
    return key, {"value": "{word}", "noun": f"your {key}"} | {
        part: [text.replace("{k}", key) for text in DATA["own"][part]] for part in ("tell", "reply", "ask", "say")}


OWN = dict(_own_memories())
MEMORIES |= dict(_kin_memories())
NAMED = list(MEMORIES)
MEMORIES |= OWN


def says(text, **check):
    return {"role": "assistant", "content": text} | ({"check": check} if check else {})


def _stated(rng, text):
    return (capital(text) if rng.random() < 0.8 else text) + rng.choice(["", ".", ".", "!"])


def _reply(rng, text, values):
    """What is said to it, or what somebody else would say."""
    if rng.random() < GIVEN_SHARE:
        return says(rng.choice(GIVEN), kind="given")
    return says(text, kind="reply", all=values)


def tell(rng, split, state):
    """The user says something to remember; it may replace what was said before."""
    dice = rng.random()
    if dice < SHARED_SHARE:
        return _tell_about_others(rng, split, state)
    if dice < 0.25:
        return _tell_many(rng, split, state)
    if state.told and dice < 0.33:
        return _correct(rng, split, state)
    if dice < 0.55:
        key, memory = "name", MEMORIES["name"]
    elif dice < 0.62:
        key, memory = _unheard_of(rng, split)
    else:
        key = rng.choice(rng.choice([NAMED, list(OWN)]))
        memory = MEMORIES[key]
    if key == "name" and "name" not in state.told and rng.random() < 0.3:
        return _tell_two(rng, split, state)
    value = fill(rng, split, memory["value"])
    text = fill(rng, split, rng.choice(memory["tell"]), v=value)
    if key in state.told and rng.random() < 0.7:
        text = expand_one(rng, CORRECTIONS) + text
    _keep(state, key, value, memory)
    reply = fill(rng, split, rng.choice(memory["reply"]), v=value, V=capital(value))
    return [user(_stated(rng, text)), _reply(rng, reply, [value])]


def _keep(state, key, value, memory):
    state.told.pop(key, None)  # the latest one is the last one
    state.told[key] = value
    state.kept[key] = memory


def _correct(rng, split, state):
    """Another value for what was told last, without saying again what it is."""
    key = list(state.told)[-1]
    memory, old = state.kept[key], state.told[key]
    if "value" not in memory:
        return tell(rng, split, state)
    value = fill(rng, split, memory["value"])
    _keep(state, key, value, memory)
    text = fill(rng, split, rng.choice(SHORT_CORRECTIONS), v=value, o=old)
    said = fill(rng, split, rng.choice(memory["say"]), v=value)
    return [user(_stated(rng, text)), _reply(rng, f"Thank you for the correction. {said}", [value])]


def _tell_about_others(rng, split, state):
    """A sentence about somebody or something; the answer will be the sentence."""
    item = sentences.frame_item(rng, split, rng.choice(sentences.FRAMES["frame"]))
    said = item.sentence if rng.random() < 0.8 else item.sentence.rstrip(".")
    text = rng.choice(REMEMBER).replace("{l}", small(said)).replace("{s}", said)
    _keep(state, item.sentence, item.value, {"ask": [item.question.replace("[", "(")], "say": [item.sentence]})
    return [user(capital(text)), _reply(rng, f"I will remember that. {item.sentence}", [item.value])]


def _tell_many(rng, split, state):
    """Two or three things at once."""
    keys = rng.sample(list(OWN), rng.choice([2, 2, 3]))
    values = [fill(rng, split, OWN[key]["value"]) for key in keys]
    parts = [f"my {key} is {value}" for key, value in zip(keys, values)]
    text = rng.choice([", ".join(parts[:-1]) + " and " + parts[-1], ". ".join(map(capital, parts)), "; ".join(parts),
                       ", ".join(parts)])
    text = rng.choice(["", "", "remember this: ", "some things about me: ", "please note: "]) + text
    for key, value in zip(keys, values):
        _keep(state, key, value, OWN[key])
    said = " and ".join(f"your {key} is {value}" for key, value in zip(keys, values))
    return [user(_stated(rng, text)), _reply(rng, f"I will remember that {said}.", values)]


def _tell_two(rng, split, state):
    two = rng.choice(DATA["two"])
    values = {key: fill(rng, split, MEMORIES[key]["value"]) for key in two["ids"]}
    for key, value in values.items():
        _keep(state, key, value, MEMORIES[key])
    text = fill(rng, split, rng.choice(two["tell"]), **values)
    reply = fill(rng, split, rng.choice(two["reply"]), **values)
    return [user(_stated(rng, text)), _reply(rng, reply, list(values.values()))]


def recall(rng, split, state):
    """The user asks for something that was told, or was not."""
    known = list(state.told)
    if known and rng.random() < 0.05:
        said = [capital(fill(rng, split, state.kept[key]["say"][0], v=state.told[key])) for key in known[:3]]
        return [user(surface(rng, expand_one(rng, ABOUT_ME))), says(" ".join(said), kind="recall_all", all=said)]
    key = rng.choice(known) if known and rng.random() < TOLD_SHARE else rng.choice(["name", "name", *MEMORIES])
    memory = state.kept.get(key) or MEMORIES[key]
    ask = surface(rng, expand_one(rng, rng.choice(memory["ask"])), loose=False)
    if key not in state.told:
        answer = f"You have not told me {memory['noun']} yet."
        return [user(ask), says(answer, kind="recall_unknown", regex="not told")]
    value = state.told[key]
    kind = "recall_name" if key == "name" else "recall_other"
    return [user(ask), says(capital(fill(rng, split, rng.choice(memory["say"]), v=value)), kind=kind, all=[value])]


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


def _quoted(rng, split):
    """Words from the middle of a sentence to between quotes: there they are other tokens, as in the arguments of a call."""
    slots = rng.choice(QUOTED_WORDS)
    words = list(dict.fromkeys(fill(rng, split, slots) for _ in range(rng.choice([2, 3, 4, 5, 6, 8]))))
    ask = rng.choice(QUOTED).replace("{v}", rng.choice([", ", ", ", " and "]).join(words))
    text = json.dumps(words, separators=rng.choice([(", ", ": "), (",", ":")]))
    return [user(surface(rng, ask, loose=False)), says(text, kind="quoted", all=[text], copied=words)]


def echo(rng, split, sentences):
    """Plain copying, of words, coined words, numbers and sentences: what every grounded answer is built on."""
    if split == "train" and rng.random() < QUOTED_SHARE:
        return _quoted(rng, split)
    if rng.random() < 0.12:
        text = rng.choice(sentences)
    else:
        slots = rng.choice(ECHO_WORDS)
        text = " ".join(fill(rng, split, slots) for _ in range(rng.choice([1, 2, 2, 3, 4, 5, 6, 8, 12])))
    return [user(surface(rng, rng.choice(ECHO), loose=False).replace("{v}", text)), says(text, kind="echo", all=[text])]
