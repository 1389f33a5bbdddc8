"""Values: word lists, coined words, numbers, dates, codes; and `fill`, which puts them into a pattern's slots.

"{animal}" is a slot, "{number 2 9000}" one with arguments. Every generator takes (rng, split): with split "eval" it
draws from the tenth that training never sees. Coined words have many shapes, because a name that a user brings is cut
into tokens in ways that no list of names can cover.
"""

import functools
import pathlib
import re
import tomllib

from patterns import expand_one, held_out

_DATA = tomllib.loads((pathlib.Path(__file__).parent / "words.toml").read_text())


class Pool:
    """A list of values of which about a tenth is kept for evaluation."""

    def __init__(self, values, whole=False):
        self.all = [v.strip() for v in values]
        self.train = [v for v in self.all if whole or not held_out(v)]
        self.eval = [v for v in self.all if not whole and held_out(v)] or self.train

    def pick(self, rng, split):
        return rng.choice(self.train if split == "train" else self.eval)


OPEN_POOLS = ("animal", "folk", "place", "object", "color", "food", "job", "hobby", "material", "thing", "trait")
OPEN_SHARE = 0.25


def listed(rng, split, pool):
    """A word of a list, or in training now and then a coined one: a list that is always complete is learned by heart,
    and then a word that is not in it is not copied."""
    if pool in OPEN_POOLS and split == "train" and rng.random() < OPEN_SHARE:
        return coined(rng, split).lower()
    return POOLS[pool].pick(rng, split)


POOLS = {name: Pool(words.split(), name in _DATA["whole"]["slots"]) for name, words in _DATA["pool"].items()}
POOLS["subject"] = Pool(_DATA["subjects"]["list"].replace("\n", " ").split("|"))
SHE = set(_DATA["pronouns"]["she"].split())


# -- coined words --------------------------------------------------------------------------------------------------

_PARTS = {name: text.split() for name, text in _DATA["coined"].items()}
_INVENTORY = sorted({
    word.lower() for pool in POOLS.values() for value in pool.train for word in re.split("[ -]", value)
    if word.isalpha() and len(word) > 3
})


def _followers():
    """Letters that follow two others in names and cities, as often as they do."""
    out = {}
    for pool in ("name", "surname", "city"):
        for value in POOLS[pool].train:
            text = f"^^{value.lower()}$"
            for i in range(2, len(text)):
                out.setdefault(text[i - 2: i], []).append(text[i])
    return out


_FOLLOWERS = _followers()


def _syllables(rng):
    count = rng.randint(2, 3)
    word = "".join(rng.choice(_PARTS["onsets"]) + rng.choice(_PARTS["nuclei"]) for _ in range(count))
    return word + (rng.choice(_PARTS["codas"]) if rng.random() < 0.8 else "")


def _spliced(rng):
    head, tail = rng.choice(_INVENTORY), rng.choice(_INVENTORY)
    return head[: rng.randint(2, len(head) - 1)] + tail[rng.randint(1, len(tail) - 2):]


def _chained(rng):
    word = "^^"
    while not word.endswith("$") and len(word) < 14:
        word += rng.choice(_FOLLOWERS[word[-2:]])
    return word.strip("^$")


def _built(rng):
    return rng.choice(_PARTS["stems"]) + rng.choice(["", "", "a", "o", "i", "u", "e"]) + rng.choice(_PARTS["ends"])


_pieces = []


def practise_pieces(tokenizer):
    """Has words coined of the tokenizer's own pieces from now on, each as likely as any other: more than half of the
    tokens hardly ever come up otherwise, and what was never copied is copied wrong."""
    words = (token.lstrip("\u0120").lower() for token in tokenizer.get_vocab())
    _pieces[:] = sorted({word for word in words if len(word) > 1 and word.isascii() and word.isalpha()})


def _pieced(rng):
    return "".join(rng.choice(_pieces) for _ in range(rng.choice([1, 2, 2, 3])))


PIECED_SHARE = 0.5  # of the coined words in training


def coined(rng, split):
    """A made-up word such as 'Brendou' or 'Marguala'."""
    while True:
        if _pieces and split == "train" and rng.random() < PIECED_SHARE:
            word = _pieced(rng)
        else:
            word = rng.choices((_syllables, _spliced, _chained, _built), (25, 35, 20, 20))[0](rng)
        if 4 <= len(word) <= 12 and held_out(word) == (split == "eval"):
            return word.capitalize()


# -- other values --------------------------------------------------------------------------------------------------


def person(rng, split):
    """A first name, in part coined so that names the model never saw are copied as well."""
    if rng.random() < 0.3:
        return coined(rng, split)
    return POOLS[rng.choice(["name", "other_name"])].pick(rng, split)


def full_name(rng, split):
    last = coined(rng, split) if rng.random() < 0.3 else POOLS["surname"].pick(rng, split)
    return f"{person(rng, split)} {last}"


def town(rng, split):
    return coined(rng, split) if rng.random() < 0.5 else POOLS["city"].pick(rng, split)


EVERYDAY = 100  # smaller numbers are words that everybody uses, so none of them is held out


def number(rng, split, low=2, high=9999):
    """An integer, spread over the orders of magnitude between low and high."""
    low, high = int(low), int(high)
    while True:
        top = min(high, 10 ** rng.randint(len(str(low)), len(str(high))))
        n = rng.randint(low, max(low, top))
        if n < EVERYDAY or held_out(f"n{n}") == (split == "eval"):
            return n


def year(rng, split):
    return number(rng, split, 1400, 2080)


def date(rng, split):
    day, month = rng.randint(1, 28), POOLS["month"].pick(rng, split)
    return rng.choice([f"{day} {month} {year(rng, split)}", f"{month} {day}"])


def clock_time(rng, split):
    hour, minute, half = rng.randint(0, 23), rng.randint(0, 59), rng.choice(["am", "pm"])
    return rng.choice([f"{hour % 12 + 1}:{minute:02d} {half}", f"{hour:02d}:{minute:02d}", f"{hour % 12 + 1} {half}"])


def money(rng, split):
    n = number(rng, split, 3, 90000)
    return rng.choice([f"${n}", f"{n} euros", f"{n} dollars", f"${n}.{rng.randint(0, 99):02d}"])


def code(rng, split):
    letters = "".join(rng.choices("ABCDEFGHJKLMNPQRSTUVWXYZ", k=rng.randint(1, 3)))
    n = number(rng, split, 10, 9999)
    return rng.choice([f"{letters}-{n}", f"{letters}{n}", str(number(rng, split, 1000, 999999))])


def email(rng, split):
    return f"{person(rng, split)}@{coined(rng, split)}.{rng.choice(['com', 'org', 'net'])}".lower()


def phone(rng, split):
    return f"{rng.randint(100, 999)}-{number(rng, split, 1000, 9999)}"


def percent(rng, split):
    return f"{rng.randint(1, 99)}{rng.choice(['%', ' percent'])}"


def measure(rng, split, *units):
    return f"{number(rng, split, 2, 4000)} {rng.choice(units)}"


def word(rng, split):
    """One thing of any kind, listed or coined."""
    pool = rng.choice(["animal", "object", "color", "food", "trait", "place", "job"])
    return rng.choice([
        lambda: listed(rng, split, pool), lambda: coined(rng, split), lambda: coined(rng, split).lower(),
        lambda: person(rng, split), lambda: number(rng, split, 1, 99999), lambda: code(rng, split),
    ])()


GENERATORS = {
    "coined": coined, "coined_low": lambda rng, split: coined(rng, split).lower(), "person": person,
    "full_name": full_name, "town": town, "number": number, "year": year, "date": date, "clock_time": clock_time,
    "money": money, "code": code, "email": email, "phone": phone, "percent": percent, "measure": measure, "word": word,
    "grouped": lambda rng, split, low, high: f"{number(rng, split, low, high):,}",
    "digits": lambda rng, split, low, high: rng.randint(int(low), int(high)),
} | {name: functools.partial(listed, pool=name) for name in POOLS}

_SLOT = re.compile(r"\{([A-Za-z_]+)((?: [^{}]+)?)\}")


def fill(rng, split, pattern, **known):
    """Expands the brackets of a pattern and fills its slots; `known` gives the values of slots by name."""
    def value(m):
        if m[1] in known:
            return str(known[m[1]])
        return str(GENERATORS[m[1]](rng, split, *m[2].split()))
    return with_articles(_SLOT.sub(value, expand_one(rng, pattern)))


def with_articles(text):
    return re.sub(r"\b([Aa]) (?=(?!uni|one)[aeiou]|honest)", r"\1n ", text)


def capital(text):
    return text[:1].upper() + text[1:]


def small(text):
    return text[:1].lower() + text[1:]
