"""Passages with questions, from passages.toml: the answer can only come from the text, or is not in it.

Two questions in five have no answer in their passage. Some of those come in pairs: the same question about the same
passage with the sentence and without it, so that nothing but the sentence decides.
"""

import dataclasses
import pathlib
import random
import re
import tomllib

import words
from patterns import expand_one, hold
from words import capital, fill, small

DATA = tomllib.loads((pathlib.Path(__file__).parent / "passages.toml").read_text())
RECORDS, LISTS = DATA["record"], DATA["list"]
FRAMES = tomllib.loads((pathlib.Path(__file__).parent / "frames.toml").read_text())
DECLINED = "(?i)(text|passage|context) does not (say|mention|tell)|not in the text"
UNANSWERED_SHARE = 0.3  # of the questions in a chain; the pairs and short texts add theirs
ENOUGH_SHARE = 0.6  # how often the questions end when all sentences were asked for
QUESTIONS = [2, 3, 4, 4, 5, 6, 7]  # about one passage
AGAIN_SHARE = 0.5  # of the sentences that are asked for with another question, too
REWORDED_SHARE = 0.35  # of the questions that use other words than the text
CLAIM_SHARE = 0.07  # of the answered questions that ask whether something is so
LED_SHARE = 0.12
TITLES = "[{coined}|News from {town}|About {subject}|{person}'s notes|Summary|Notice|Our {object}|The {place}|{day}]"


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
                again=(again, values[also]))


def frame_items(rng, split):
    """Sentences of different frames, and questions of yet other ones, some about the same people."""
    picked, items, groups = rng.sample(FRAMES["frame"], len(FRAMES["frame"])), [], set()
    count = rng.choice([1, 2, 3, 3, 4, 5, 6, 8])
    for frame in picked:
        if frame.get("group") in groups and frame.get("group"):
            continue
        groups.add(frame.get("group"))
        names = re.findall(r"[A-Z]\w+ [A-Z]\w+", " ".join(item.sentence for item in items)) if len(items) >= count else ()
        items.append(frame_item(rng, split, frame, names))
        if len(items) == count + 3:
            break
    return items[:count], items[count:]


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
            items.append(Item(said, expand_one(rng, ask), value, True, True, wrong if false != value else None))
    rng.shuffle(items)
    return items


def action_items(rng, split):
    """Who did what, where and when."""
    items = []
    for _ in range(rng.randint(3, 7)):
        who = fill(rng, split, "[{person}|{full_name}|the {folk}|the {trait} {animal}|the {job}]")
        what = fill(rng, split, "[a|the|{digits 2 20}] [{color}|{trait}|{material}|{coined_low}] {object}")
        what = what + "s" if what[0].isdigit() else what
        where = fill(rng, split, "[in the {place}|in {town}|near the {place}|behind the {place}]")
        when = fill(rng, split, "[on {day}|in {month}|in {year}|at {clock_time}|]")
        past, base = rng.choice(DATA["verbs"])
        asks = [
            (f"who {past} {what}?", who), (f"[what did {who} {base}|what was it that {who} {past}]?", what),
            (f"where did {who} {base} {what}?", where), (f"when did {who} {base} {what}?", when),
        ]
        (question, value), (again, also) = rng.choices(asks if when else asks[:3], k=2)
        whole = rng.choice([f"{who} {past} {what} {where} {when}", f"{where} {who} {past} {what} {when}",
                            f"{when} {who} {past} {what} {where}"]).strip() + "."
        items.append(Item(whole, reworded(rng, expand_one(rng, question)), value, True,
                          again=(reworded(rng, expand_one(rng, again)), also)))
    return items


def search_items(rng, sentences):
    """Any sentences at all: find the one that mentions a word and repeat it."""
    items, seen = [], set()
    for sentence in rng.sample(sentences, rng.randint(3, 6)):
        names = [name.strip(".,!?:;\"'") for name in sentence.split()]
        names = [name for name in names if len(name) > 3 and name.lower() not in seen]
        if not names or sentence in seen:
            continue
        word = rng.choice(names)
        seen.update(name.lower() for name in names)
        seen.add(sentence)
        question = fill(rng, "train", rng.choice(DATA["search_forms"]), word=word)
        items.append(Item(sentence, question, sentence, True))
    return items


@dataclasses.dataclass
class Passage:
    items: list  # their sentences are in the text
    missing: list  # their sentences are not
    extra: dict = dataclasses.field(default_factory=dict)  # sentences that answer nothing, by what they stand before
    joiner: str = " "

    def text(self, without=None):
        lines = []
        for at, item in enumerate(self.items):
            lines += self.extra.get(at, [])
            if item.sentence not in lines and (without is None or item.sentence != without.sentence):
                lines.append(item.sentence)
        lines += self.extra.get(len(self.items), [])
        if "#" in self.joiner:
            return "\n".join(self.joiner.replace("#", str(at)) + line for at, line in enumerate(lines, 1))
        lead = self.joiner.lstrip("\n") if self.joiner.startswith("\n") else ""
        return lead + self.joiner.join(lines)


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


def _kind_of_items(rng, split, sentences):
    """(sentences of the text, questions that it does not answer)."""
    kind, record = rng.random(), rng.choice(RECORDS)
    if kind < 0.26:
        items, others = record_items(rng, split, record), record_items(rng, split, rng.choice(RECORDS))
        same = [item for item in record_items(rng, split, record) if item.names_it]
        # The right question about the wrong thing is the hardest one to decline.
        others = same if same and rng.random() < 0.4 else [item for item in others if item.names_it]
        count = rng.choice([1, 2, 3, 3, 4, 4, 5, 6, 7])
        return merged(rng, items[:count]), items[count:] + others[:1]
    if kind < 0.38:  # some of a kind: only questions that name the thing have an answer
        alike = [record_items(rng, split, record)[:3] for _ in range(rng.choice([2, 2, 3]))]
        items = [item for part in alike for item in part if item.names_it and item.told]
        return items, [item for item in record_items(rng, split, record) if item.names_it]
    if kind < 0.48:
        return attribute_items(rng, split)[:rng.randint(2, 7)], attribute_items(rng, split)
    if kind < 0.60:
        return action_items(rng, split), action_items(rng, split)
    if kind < 0.86:
        return frame_items(rng, split)
    if kind < 0.95:
        return list_items(rng, split)
    return search_items(rng, sentences), attribute_items(rng, split)


def passage(rng, split, sentences):
    items, missing = _kind_of_items(rng, split, sentences)
    if not items:
        return passage(rng, split, sentences)
    extra = {}
    if items[0].sentence.endswith("."):
        for _ in range(rng.choice([0, 0, 0, 1, 1, 2, 3])):
            line = fill(rng, split, rng.choice(FRAMES["filler"])) if rng.random() < 0.85 else rng.choice(sentences)
            extra.setdefault(rng.randint(0, len(items)), []).append(line)
        joiner = rng.choice([" "] * 8 + ["\n", "\n- ", "\n* ", "#. ", "\n\n"])
    else:
        joiner = rng.choice(["\n", "\n", "\n- ", "; ", "\n* "])
        joiner = "\n" if joiner == "; " and items[0].sentence.count(", ") else joiner
    return Passage(items, missing or attribute_items(rng, split), extra, joiner)


def asked(rng, split, text, question):
    """The user's message that brings the text and asks the first question."""
    form = fill(rng, split, expand_one(rng, rng.choice(DATA["question_forms"])), title=fill(rng, split, TITLES),
                p="{p}", q="{q}", l="{l}").replace("«", "[").replace("»", "]")
    return form.replace("{l}", small(question)).replace("{q}", question).replace("{p}", text)


def worded(rng, question):
    """The question as it is typed."""
    if rng.random() < LED_SHARE:
        question = expand_one(rng, rng.choice(DATA["leads"])).replace("{l}", small(question))
    question = question if rng.random() < 0.75 else small(question)
    return question.rstrip("?") if rng.random() < 0.1 else question


def answered(item):
    return {"role": "assistant", "content": item.answer, "check": {"kind": "ground", "all": [item.value]}}


def claimed(rng, item):
    """Whether something is so: yes or no, and what the text says."""
    true = rng.random() < 0.5
    said = (item.sentence if true else item.other).rstrip(".")
    said = small(said) if re.match(r"(It|Its|The|There|A|On|In|You|Members|Guests|To|Please) ", said) else said
    ask = expand_one(rng, rng.choice(DATA["claims"])).replace("{s}", said)
    text = ("Yes. " if true else "No. ") + item.answer
    return [user(capital(ask)), {"role": "assistant", "content": text, "check": {"kind": "claim", "all": [text]}}]


def declined(rng):
    return {"role": "assistant", "content": rng.choice(DATA["unanswered"]),
            "check": {"kind": "missing", "regex": DECLINED}}


def user(text):
    return {"role": "user", "content": text}


def asked_again(item):
    """The item with its other question, or None."""
    if not item.again or capital(item.again[0]) == item.question:
        return None
    return dataclasses.replace(item, question=item.again[0], value=item.again[1], again=None)


def _follow(rng, question):
    """A later question about the same text."""
    return rng.choice(["And ", "Also, ", "Then, ", "Okay, ", "Thanks. "]) + small(question) if rng.random() < 0.15 else question


def in_chain(rng, split, state, sentences):
    """A passage, in the user's message or in the system's, with some questions: reading is what costs, so ask often."""
    shown = passage(rng, split, sentences)
    text, out = shown.text(), []
    in_system = state.first and not state.system and not state.tools and rng.random() < 0.3
    if in_system:
        form = expand_one(rng, rng.choice(DATA["system_forms"])).replace("«", "[").replace("»", "]")
        out.append({"role": "system", "content": form.replace("{p}", text)})
    again = [asked_again(item) for item in shown.items if rng.random() < AGAIN_SHARE]
    left, gone = shown.items + [item for item in again if item], list(shown.missing)
    rng.shuffle(left)
    rng.shuffle(gone)
    for turn in range(rng.choice(QUESTIONS)):
        missing = gone and (not left or rng.random() < UNANSWERED_SHARE)
        item = gone.pop() if missing else left.pop() if left else None
        if item is None or (turn and missing and not left and rng.random() < ENOUGH_SHARE):
            break
        if not missing and item.other and rng.random() < CLAIM_SHARE:
            ask, answer = claimed(rng, item)
            question = ask["content"]
        else:
            question, answer = worded(rng, item.question), declined(rng) if missing else answered(item)
        if turn == 0 and not in_system:
            question = asked(rng, split, text, question)
        elif turn:
            question = _follow(rng, question)
        out += [user(question), answer]
    return out


def pair(rng, split, sentences):
    """Two conversations that differ in one sentence: one has the answer and one has not."""
    shown = passage(rng, split, sentences)
    while len({item.sentence for item in shown.items}) < 2:
        shown = passage(rng, split, sentences)
    item = rng.choice(shown.items)
    question, seed = worded(rng, item.question), rng.random()
    others = [other for other in shown.items if other.sentence != item.sentence]
    others = rng.sample(others, rng.randint(0, min(2, len(others))))
    more = [turn for other in others for turn in (user(other.question), answered(other))]

    def brought(text):
        return user(asked(random.Random(seed), split, text, question))

    return [
        [brought(shown.text()), answered(item), *more],
        [brought(shown.text(without=item)), declined(rng), *more],
    ]
