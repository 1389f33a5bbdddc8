"""Passages with questions, from passages.toml: the answer can only come from the text, or is not in it.

Two questions in five have no answer in their passage. Half of those come in pairs: the same question about the same
passage with the sentence and without it, so that nothing but the sentence decides.
"""

import dataclasses
import pathlib
import tomllib

import words
from patterns import expand_one, hold
from words import capital, fill, small

DATA = tomllib.loads((pathlib.Path(__file__).parent / "passages.toml").read_text())
RECORDS = DATA["record"]
DECLINED = "(?i)(text|passage|context) does not (say|mention|tell)|not in the text"
UNANSWERED_SHARE = 0.38  # of the questions in a chain; the pairs add theirs
QUESTIONS = [1, 2, 3, 3, 4, 5]  # about one passage


@dataclasses.dataclass
class Item:
    """One sentence of a passage with a question that it answers."""

    sentence: str
    question: str
    answer: str
    value: str
    names_it: bool = False  # the question names its entity, so it fits no other one

    def __post_init__(self):
        self.sentence, self.question, self.answer = map(capital, (self.sentence, self.question, self.answer))


def record_items(rng, split, record):
    """All facts of one made-up entity, in random order."""
    entity = fill(rng, split, record["entity"])
    items = []
    for fact in rng.sample(record["fact"], len(record["fact"])):
        value = fill(rng, split, fact["value"])

        def put(pattern):
            return fill(rng, split, pattern, e=entity, E=capital(entity), v=value)

        question = put(hold(rng, fact["ask"], split))
        sentence, answer = put(rng.choice(fact["tell"])), put(rng.choice(fact["say"]))
        items.append(Item(sentence, question, answer, value, entity in question))
    return items


def attribute_items(rng, split):
    """The price of this, the owner of that."""
    items = []
    for _ in range(rng.randint(1, 4)):
        thing = fill(rng, split, rng.choice(DATA["things"]))
        for noun, pattern in rng.sample(sorted(DATA["attributes"].items()), rng.randint(1, 4)):
            value = fill(rng, split, pattern)
            plain = f"the {noun} of {thing} is {value}."
            items.append(Item(
                rng.choice([plain, plain, f"{thing} has the {noun} {value}."]),
                expand_one(rng, f"[what is|what's|tell me|do you know] the {noun} of {thing}?"),
                rng.choice([plain, f"the {noun} is {value}."]), value, True))
    rng.shuffle(items)
    return items


def action_items(rng, split):
    """Who did what, where and when."""
    items = []
    for _ in range(rng.randint(3, 7)):
        who = fill(rng, split, "[{person}|{full_name}|the {folk}|the {trait} {animal}]")
        what = fill(rng, split, "[a|the] [{color}|{trait}|{material}] {object}")
        where = fill(rng, split, "[in the {place}|in {town}|near the {place}]")
        when = fill(rng, split, "[on {day}|in {month}|in {year}|]")
        past, base = rng.choice(DATA["verbs"])
        asks = [
            (f"who {past} {what}?", who, f"{who} {past} {what}."),
            (f"what did {who} {base}?", what, f"{who} {past} {what}."),
            (f"where did {who} {base} {what}?", where, f"{who} {past} {what} {where}."),
            (f"when did {who} {base} {what}?", when, f"{who} {past} {what} {when}."),
        ]
        question, value, answer = rng.choice(asks if when else asks[:3])
        items.append(Item(f"{who} {past} {what} {where} {when}".strip() + ".", question, answer, value, True))
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
        items.append(Item(sentence, question, "The text says: " + sentence, sentence, True))
    return items


@dataclasses.dataclass
class Passage:
    items: list  # their sentences are in the text
    missing: list  # their sentences are not
    extra: str | None = None  # a sentence that belongs to nothing
    joiner: str = " "

    def text(self, without=None):
        lines = [item.sentence for item in self.items if item is not without]
        if self.extra:
            lines.insert(len(lines) // 2, self.extra)
        return self.joiner.join(lines)


def passage(rng, split, sentences):
    kind = rng.random()
    record = rng.choice(RECORDS)
    if kind < 0.36:
        items, others = record_items(rng, split, record), record_items(rng, split, rng.choice(RECORDS))
        same = [item for item in record_items(rng, split, record) if item.names_it]
        # The right question about the wrong thing is the hardest one to decline.
        others = same if same and rng.random() < 0.4 else [item for item in others if item.names_it]
    elif kind < 0.48:  # two of a kind: only questions that name the thing have an answer
        pair = [record_items(rng, split, record)[:3] for _ in range(2)]
        items = [item for part in pair for item in part if item.names_it]
        others = [item for item in record_items(rng, split, record) if item.names_it]
    elif kind < 0.68:
        items, others = attribute_items(rng, split), attribute_items(rng, split)
    elif kind < 0.90:
        items, others = action_items(rng, split), action_items(rng, split)
    else:
        items, others = search_items(rng, sentences), attribute_items(rng, split)
    if not items:
        return passage(rng, split, sentences)
    count = min(len(items), rng.choice([1, 2, 3, 3, 4, 4, 5, 6, 7]))
    extra = rng.choice(sentences) if rng.random() < 0.15 else None
    missing = (items[count:] or others) + others[:1] or attribute_items(rng, split)
    return Passage(items[:count], missing, extra, rng.choice([" ", " ", " ", " ", "\n", "\n- "]))


def asked(rng, text, question, form):
    """The user's message that brings the text and asks the first question."""
    return form.replace("{l}", small(question)).replace("{q}", question).replace("{p}", text)


def answered(item):
    return {"role": "assistant", "content": item.answer, "check": {"kind": "ground", "all": [item.value]}}


def declined(rng):
    return {"role": "assistant", "content": rng.choice(DATA["unanswered"]),
            "check": {"kind": "missing", "regex": DECLINED}}


def user(text):
    return {"role": "user", "content": text}


def in_chain(rng, split, state, sentences):
    """A passage, in the user's message or in the system's, with some questions: reading is what costs, so ask often."""
    shown = passage(rng, split, sentences)
    text, out = shown.text(), []
    in_system = state.first and not state.system and not state.tools and rng.random() < 0.3
    if in_system:
        out.append({"role": "system", "content": rng.choice(DATA["system_forms"]).replace("{p}", text)})
    left, gone = rng.sample(shown.items, len(shown.items)), rng.sample(shown.missing, len(shown.missing))
    for turn in range(rng.choice(QUESTIONS)):
        missing = gone and (not left or rng.random() < UNANSWERED_SHARE)
        item = gone.pop() if missing else left.pop() if left else None
        if item is None:
            break
        question = item.question if rng.random() < 0.8 else small(item.question)
        if turn == 0 and not in_system:
            question = asked(rng, text, question, rng.choice(DATA["question_forms"]))
        elif rng.random() < 0.15:
            question = rng.choice(["And ", "Also, ", "Then, "]) + small(question)
        out += [user(question), declined(rng) if missing else answered(item)]
    return out


def pair(rng, split, sentences):
    """Two conversations that differ in one sentence: one has the answer and one has not."""
    shown = passage(rng, split, sentences)
    while len(shown.items) < 2:
        shown = passage(rng, split, sentences)
    item, form = rng.choice(shown.items), rng.choice(DATA["question_forms"])
    question = item.question if rng.random() < 0.8 else small(item.question)
    others = [other for other in shown.items if other is not item]
    others = rng.sample(others, rng.randint(0, min(2, len(others))))
    more = [turn for other in others for turn in (user(other.question), answered(other))]
    return [
        [user(asked(rng, shown.text(), question, form)), answered(item), *more],
        [user(asked(rng, shown.text(without=item), question, form)), declined(rng), *more],
    ]
