"""The sentences of passages, each with questions that it answers, and questions that look alike and have no answer there.

Kinds: records, lists and attributes from passages.toml, everyday sentences from frames.toml, plain ones from plain.toml,
actions of a grammar, and any sentences at all, to be found by a word.
"""

import dataclasses
import pathlib
import re
import tomllib

from patterns import expand_one, hold
from words import capital, fill, small

DATA = tomllib.loads((pathlib.Path(__file__).parent / "passages.toml").read_text())
RECORDS, LISTS = DATA["record"], DATA["list"]
FRAMES = tomllib.loads((pathlib.Path(__file__).parent / "frames.toml").read_text())
PLAIN = tomllib.loads((pathlib.Path(__file__).parent / "plain.toml").read_text())
REWORDED_SHARE = 0.35  # of the questions that use other words than the text
LIKE_SHARE = 0.4  # of the sentences whose question is asked of something else
COINED_VERBS = 0.25  # of the verbs of actions
# Kinds of passages, and up to which part of those without plain sentences each goes.
KINDS = {"record": 0.26, "alike": 0.38, "attributes": 0.48, "actions": 0.64, "frames": 0.86, "list": 0.95, "search": 1.0}
PLAIN_SHARE = 0.2  # of the passages of the training, so that the prompts of eval.py stay what they were
FULL_NAME = re.compile(  # not what a name begins a sentence with
    r"\b(?!(?:About|At|Behind|Call|For|From|In|Near|Of|On|Send|Since|The|To|While|With|Until) )[A-Z]\w+ [A-Z]\w+")


@dataclasses.dataclass
class Item:
    """One sentence of a passage with a question that it answers."""

    sentence: str
    question: str
    value: str
    names_it: bool = False  # the question names its entity, so it fits no other one
    told: bool = True  # the sentence names its entity, too
    other: str | None = None  # the sentence with another value
    group: str | None = None  # of the frame
    answer: str | None = None  # what to say, where that is not the sentence
    again: tuple | None = None  # another question that it answers, and that value
    parts: tuple = ()  # what the sentence is made of

    def __post_init__(self):
        self.sentence, self.question = capital(self.sentence), capital(self.question)
        self.other, self.answer = self.other and capital(self.other), self.answer or self.sentence


def reworded(rng, question):
    """The question in other words, if there are any for it."""
    if rng.random() > REWORDED_SHARE:
        return question
    for words_there, other in rng.sample(FRAMES["same"], len(FRAMES["same"])):
        found = re.search(rf"(?i)\b{words_there}\b", question)
        if found:
            return question[: found.start()] + other + question[found.end():]
    return question


def record_items(rng, split, record):
    """All facts of one made-up entity, in random order."""
    entity = fill(rng, split, record["entity"])
    items = []
    for fact in rng.sample(record["fact"], len(record["fact"])):
        value, false = fill(rng, split, fact["value"]), fill(rng, split, fact["value"])
        tell = expand_one(rng, rng.choice(fact["tell"]))

        def put(pattern, value=value):
            return fill(rng, split, pattern, e=entity, E=capital(entity), v=value)

        question, again = (reworded(rng, put(hold(rng, fact["ask"], split))) for _ in range(2))
        items.append(Item(put(tell), question, value, entity in question, "{e}" in tell.lower(),
                          put(tell, false) if false != value else None,
                          again=(again, value) if (entity in again) == (entity in question) else None))
    return items


def frame_item(rng, split, frame, names=()):
    """One sentence of a frame; persons may be those that the text speaks of."""
    values = {}
    for slot, pattern in frame["v"].items():
        known = pattern in ("{full_name}", "{person}") and names and rng.random() < 0.6
        values[slot] = rng.choice(names) if known else fill(rng, split, pattern)
    asked_for, also = rng.choice(sorted(frame["ask"])), rng.choice(sorted(frame["ask"]))
    tell = expand_one(rng, rng.choice(frame["tell"]))
    question, again = (reworded(rng, fill(rng, split, hold(rng, frame["ask"][slot], split), **values))
                       for slot in (asked_for, also))
    other = values | {asked_for: fill(rng, split, frame["v"][asked_for])}
    return Item(fill(rng, split, tell, **values), question, values[asked_for], True, True,
                fill(rng, split, tell, **other) if other != values else None, frame.get("group"),
                again=(again, values[also]), parts=tuple(values.values()))


def frame_items(rng, split):
    """Sentences of different frames, and questions of yet other ones, some about the same people."""
    picked, items, groups, used = rng.sample(FRAMES["frame"], len(FRAMES["frame"])), [], set(), []
    count = rng.choice([1, 2, 3, 3, 4, 5, 6, 8])
    for frame in picked:
        if frame.get("group") in groups and frame.get("group"):
            continue
        groups.add(frame.get("group"))
        names = [name for item in items for name in FULL_NAME.findall(item.sentence)] if len(items) >= count else ()
        items.append(frame_item(rng, split, frame, names))
        used.append(frame)
        if len(items) == count + 3:
            break
    told, text = items[:count], " ".join(item.sentence for item in items[:count])
    # What is said of somebody, asked of somebody else.
    like = [frame_item(rng, split, frame) for frame in used[:count] if rng.random() < LIKE_SHARE]
    like = [item for item in like if any(part in item.question and part not in text for part in item.parts if len(part) > 3)]
    return told, items[count:] + like


def _third(base):
    """The form of a verb after he or she."""
    first, *rest = base.split(" ")
    if re.search(r"[^aeiou]y$", first):
        first = first[:-1] + "ie"
    elif re.search(r"(s|sh|ch|x|z|o)$", first):
        first += "e"
    return " ".join([first + "s", *rest])


def _slots(rng, pattern):
    """The pattern without the slots that plain.toml names."""
    while (found := re.search(r"\{(%s)\}" % "|".join(PLAIN["slot"]), pattern)):
        pattern = pattern[: found.start()] + expand_one(rng, PLAIN["slot"][found[1]]) + pattern[found.end():]
    return expand_one(rng, pattern)


def plain_item(rng, split, frame, known=()):
    """A sentence of plain.toml; somebody may be known from another one."""
    values = {slot: fill(rng, split, _slots(rng, pattern)) for slot, pattern in frame["v"].items()}
    if known and "s" in values and rng.random() < 0.3:
        values["s"] = rng.choice(known)
    own = list(values.values())
    if "verb" in frame:
        past, base, participle = _verb(rng, split)
        values |= {"v": base, "vd": past, "vn": participle, "vs": _third(base)}
        own.append(base)
    asked_for, also = (rng.choice(sorted(frame["ask"])) for _ in range(2))
    question, again = (reworded(rng, fill(rng, split, hold(rng, frame["ask"][slot], split), **values))
                       for slot in (asked_for, also))
    tell = fill(rng, split, expand_one(rng, rng.choice(frame["tell"])), **values)
    return Item(tell, question, values[asked_for], True, again=(again, values[also]), parts=tuple(own))


def plain_items(rng, split):
    """Some sentences that share no verb and no noun, and what else could be asked of the same people."""
    items, used, known = [], set(), []
    count = rng.choice([2, 3, 3, 4, 4, 5, 6])
    while len(items) < count + 3:
        frame = rng.choice(PLAIN["frame"])
        item = plain_item(rng, split, frame, known)
        words = {word for part in item.parts if part not in known for word in part.lower().split() if len(word) > 3}
        if words & used or len(item.sentence) > 120:
            continue
        used |= words
        items.append(item)
        if "s" in frame["v"] and len(items) <= count:
            known.append(item.parts[list(frame["v"]).index("s")])
    return merged(rng, items[:count]), items[count:]


def list_items(rng, split):
    """The lines of a list, each a key and a value; keys that are not in it."""
    shape, mark, items = rng.choice(LISTS), rng.choice([": ", ": ", " - ", " | ", ", ", "\t", " = "]), {}
    for _ in range(rng.randint(4, 10)):
        key, value = fill(rng, split, shape["row"]), fill(rng, split, shape["cell"])
        question = fill(rng, split, hold(rng, shape["ask"], split), k=key)
        items.setdefault(key.lower(), Item(f"{capital(key)}{mark}{value}", question, value, True))
    lines = list(items.values())
    count = rng.randint(2, max(2, len(lines) - 1))
    return lines[:count], lines[count:]


def attribute_items(rng, split):
    """The price of this, the owner of that."""
    items = []
    for _ in range(rng.randint(1, 4)):
        thing = fill(rng, split, rng.choice(DATA["things"]))
        nouns = rng.sample(sorted(DATA["attributes"].items()), rng.randint(1, 4))
        if rng.random() < 0.25:  # a noun that nobody knows: only its letters say which sentence it is
            nouns.append((fill(rng, split, "{coined_low}"), "{word}"))
        for noun, pattern in nouns:
            value, false = fill(rng, split, pattern), fill(rng, split, pattern)
            tell = rng.choice(["the {n} of {t} is {v}.", "the {n} of {t} is {v}.", "{t} has the {n} {v}.", "{t}'s {n} is {v}.",
                               "as {n} of {t} they give {v}."])
            said, wrong = (tell.replace("{n}", noun).replace("{t}", thing).replace("{v}", v) for v in (value, false))
            ask = f"[[what is|what's|tell me|do you know|give me] [the {noun} of {thing}|{thing}'s {noun}]?|[which|what] {noun} does {thing} have?]"
            items.append(Item(said, expand_one(rng, ask), value, True, True, wrong if false != value else None,
                              parts=(thing, noun)))
    rng.shuffle(items)
    return items


def crossed_attributes(rng, told):
    """What is said of one thing, asked of another one that the text speaks of, too."""
    known = {item.parts for item in told}
    for first in told:
        for second in told:
            if (first.parts[0], second.parts[1]) not in known and rng.random() < LIKE_SHARE:
                yield Item("", f"what is the {second.parts[1]} of {first.parts[0]}?", "", True)


def _verb(rng, split):
    """Past, base form and participle of a verb that is listed or coined."""
    if rng.random() < COINED_VERBS:
        base = fill(rng, split, "{coined_low}").rstrip("e")
        return base + "ed", base, base + "ed"
    return rng.choice(DATA["verbs"])


def action_items(rng, split):
    """Who did what, where, when and what for. The verbs are many and often coined, so that a sentence can only be found
    by the words that the question shares with it."""
    items = []
    for _ in range(rng.randint(3, 7)):
        who = fill(rng, split, "[{person}|{full_name}|the {folk}|the {trait} {animal}|the {job}]")
        what = fill(rng, split, "[a|the|{digits 2 20}] [{color} |{trait} |{material} |{coined_low} |]{object}")
        what = what + "s" if what[0].isdigit() else what
        where = fill(rng, split, "[in the {place}|in {town}|near the {place}|behind the {place}]")
        when = fill(rng, split, "[on {day}|in {month}|in {year}|at {clock_time}|]")
        other = fill(rng, split, "[for {person}|for the {folk}|with {person}|with the {job}|||]")
        past, base, passive = _verb(rng, split)
        asks = [
            (f"who {past} {what}?", who), (f"[what did {who} {base}|what was it that {who} {past}]?", what),
            (f"where [did {who} {base} {what}|was it that {who} {past} {what}]?", where),
        ]
        asks += [(f"[when did {who} {base} {what}|when was {what} {passive}]?", when)] if when else []
        asks += [(f"{other.split()[0]} whom did {who} {base} {what}?", other)] if other else []
        (question, value), (again, also) = rng.choices(asks, k=2)
        if rng.random() < 0.2:
            said = f"{what} {'were' if what[0].isdigit() else 'was'} {passive} {where} by {who} {when}"
        else:
            said = rng.choice([f"{who} {past} {what} {where} {when}", f"{where} {who} {past} {what} {when}",
                               f"{when} {who} {past} {what} {where}"])
        items.append(Item(" ".join(f"{said} {other}".split()) + ".", reworded(rng, expand_one(rng, question)), value, True,
                          again=(reworded(rng, expand_one(rng, again)), also), parts=(who, past, base, what)))
    return items


def crossed_actions(rng, told):
    """What somebody did not do, but somebody else did."""
    done = {part for item in told for part in (item.parts[:2], item.parts[1::2])}
    for first in told:
        who, past, base, what = first.parts
        other = rng.choice(told).parts
        if (who, other[1]) not in done:
            yield Item("", f"what did {who} {other[2]}?", "", True)
        if (past, other[3]) not in done:
            yield Item("", f"who {past} {other[3]}?", "", True)


def search_items(rng, sentences):
    """Any sentences at all: find the one that mentions a word and repeat it."""
    items, seen, picked = [], set(), rng.sample(sentences, rng.randint(3, 6))
    for sentence in picked:
        names = [name.strip(".,!?:;\"'") for name in sentence.split()]
        names = [name for name in names if len(name) > 3 and name.lower() not in seen]
        if not names or sentence in seen:
            continue
        word = rng.choice(names)
        seen.update(name.lower() for name in names)
        seen.add(sentence)
        others = " ".join(other for other in picked if other != sentence).lower()
        if word.lower() in others:
            word = next((name for name in names if name.lower() not in others), word)
        question = fill(rng, "train", rng.choice(DATA["search_forms"]), word=word)
        items.append(Item(sentence, question, sentence, True))
    return items


def merged(rng, items):
    """Two sentences in one: the answer is the whole of it, for either question."""
    if len(items) > 1 and rng.random() < 0.35:
        first, second = items[:2]
        if first.sentence.endswith(".") and re.match(r"(It|Its|The|There|A|On|In|You|Members|Guests|To|Please) ", second.sentence):
            both = first.sentence[:-1] + rng.choice([", and ", "; ", ", and ", " and "]) + small(second.sentence)
            for item in (first, second):
                item.sentence = item.answer = both
                item.other = None
    return items


def some_kind(rng, split):
    if split == "train" and rng.random() < PLAIN_SHARE:
        return "plain"
    at = rng.random()
    return next(kind for kind, end in KINDS.items() if at < end)


def some_items(rng, split, sentences, kind=None):
    """(sentences of the text, questions that it does not answer)."""
    kind = kind or some_kind(rng, split)
    if kind == "plain":
        return plain_items(rng, split)
    record = rng.choice(RECORDS)
    if kind == "record":
        items, others = record_items(rng, split, record), record_items(rng, split, rng.choice(RECORDS))
        same = [item for item in record_items(rng, split, record) if item.names_it]
        # The right question about the wrong thing is the hardest one to decline.
        others = same if same and rng.random() < 0.4 else [item for item in others if item.names_it]
        count = rng.choice([1, 2, 3, 3, 4, 4, 5, 6, 7])
        return merged(rng, items[:count]), items[count:] + others[:1]
    if kind == "alike":  # some of a kind: only questions that name the thing have an answer
        alike = [record_items(rng, split, record)[:3] for _ in range(rng.choice([2, 2, 3]))]
        items = [item for part in alike for item in part if item.names_it and item.told]
        return items, [item for item in record_items(rng, split, record) if item.names_it]
    if kind == "attributes":
        told = attribute_items(rng, split)[:rng.randint(2, 7)]
        return told, attribute_items(rng, split)[:3] + list(crossed_attributes(rng, told))
    if kind == "actions":
        told = action_items(rng, split)
        return told, action_items(rng, split)[:3] + list(crossed_actions(rng, told))[:4]
    if kind == "frames":
        return frame_items(rng, split)
    if kind == "list":
        return list_items(rng, split)
    return search_items(rng, sentences), attribute_items(rng, split)
