"""Passages with questions about the sentences of sentences.py: the answer can only come from the text, or is not in it.

Two questions in five have no answer in their passage. Some of those come in pairs: the same question about the same
passage with the sentence and without it, so that nothing but the sentence decides.
"""

import dataclasses
import random
import re

from patterns import expand_one
from sentences import DATA, FRAMES, attribute_items, some_items
from words import capital, fill, small

DECLINED = "(?i)(text|passage|context) does not (say|mention|tell)|not in the text"
UNANSWERED_SHARE = 0.3  # of the questions in a chain; the pairs and short texts add theirs
ENOUGH_SHARE = 0.6  # how often the questions end when all sentences were asked for
QUESTIONS = [2, 3, 4, 5, 6, 7, 8, 9]  # about one passage
AGAIN_SHARE = 0.5  # of the sentences that are asked for with another question, too
CLAIM_SHARE = 0.07  # of the answered questions that ask whether something is so
LED_SHARE = 0.12
HARD_KINDS = (None, None, "actions", "actions", "attributes", "frames", "frames", "plain", "plain")  # None: any
FORMS = DATA["question_forms"]
TEXT_FIRST = [form for form in FORMS if form.index("{p}") < max(form.find("{q}"), form.find("{l}"))]
QUESTION_FIRST = [form for form in FORMS if form not in TEXT_FIRST]
FOLLOWED_SHARE = 0.25  # of the sheets whose questions come after another one
TITLES = "[{coined}|News from {town}|About {subject}|{person}'s notes|Summary|Notice|Our {object}|The {place}|{day}]"


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


def passage(rng, split, sentences, kind=None):
    items, missing = some_items(rng, split, sentences, kind)
    if not items:
        return passage(rng, split, sentences, kind)
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


def asked(rng, split, text, question, forms=FORMS):
    """The user's message that brings the text and asks the first question."""
    form = fill(rng, split, expand_one(rng, rng.choice(forms)), title=fill(rng, split, TITLES),
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


def _single(rng, split, sentences, forms):
    """All questions about a passage with their answers, and how the first of them brings the text along."""
    shown = passage(rng, split, sentences, rng.choice(HARD_KINDS))
    again = [item for item in map(asked_again, shown.items) if item and rng.random() < AGAIN_SHARE]
    turns = [(worded(rng, item.question), answered(item)) for item in shown.items + again]
    gone = rng.sample(shown.missing, min(len(shown.missing), max(1, len(turns) * 2 // 3)))
    turns += [(worded(rng, item.question), declined(rng)) for item in gone]
    rng.shuffle(turns)
    text, seed = shown.text(), rng.random()
    return turns, lambda question: asked(random.Random(seed), split, text, question, forms)


def sheet(rng, split, sentences):
    """Conversations that share a passage and differ in the last question: pools.py packs them into one row."""
    turns, bring = _single(rng, split, sentences, TEXT_FIRST)
    if rng.random() > FOLLOWED_SHARE or len(turns) < 3:
        return [[user(bring(question)), answer] for question, answer in turns]
    (first, reply), *rest = turns
    return [[user(bring(first)), reply, user(_follow(rng, question)), answer] for question, answer in rest]


def question_first(rng, split, sentences):
    """One question, before its text."""
    ((question, answer), *_), bring = _single(rng, split, sentences, QUESTION_FIRST)
    return [user(bring(question)), answer]
