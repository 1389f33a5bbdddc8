"""A tiny pattern language, and the split between training and evaluation.

"[hi|hello][ there|]!" stands for every choice of alternatives; brackets may nest. What is held out is decided by a
hash of the text itself, so adding a word or a wording never moves another one across the split.
"""

import functools
import hashlib
import itertools
import re

_INNER = re.compile(r"\[([^\[\]]*)\]")
SHARE = 0.1  # of values and wordings that only evaluation uses


def held_out(text, share=SHARE):
    """True for about `share` of all texts, always for the same ones."""
    digest = hashlib.sha1(text.lower().encode()).digest()
    return int.from_bytes(digest[:4], "big") < share * 2**32


def expand_one(rng, pattern):
    """One random expansion."""
    while (m := _INNER.search(pattern)):
        pattern = pattern[: m.start()] + rng.choice(m.group(1).split("|")) + pattern[m.end():]
    return pattern


@functools.lru_cache(maxsize=None)
def expand_all(pattern):
    """Every expansion, in a fixed order."""
    m = _INNER.search(pattern)
    if not m:
        return (pattern,)
    options = (pattern[: m.start()] + choice + pattern[m.end():] for choice in m.group(1).split("|"))
    return tuple(dict.fromkeys(itertools.chain.from_iterable(map(expand_all, options))))


@functools.lru_cache(maxsize=None)
def _split(patterns):
    """Per pattern the expansions for training, at least one each; and all others."""
    train = [[e for e in expand_all(p) if not held_out(e)] or [expand_all(p)[0]] for p in patterns]
    known = {e for group in train for e in group}
    return train, [e for p in patterns for e in expand_all(p) if e not in known]


def hold(rng, patterns, split):
    """A random expansion from the training part, or from the part kept for evaluation if there is one."""
    train, kept = _split(tuple(patterns))
    if split == "eval" and kept:
        return rng.choice(kept)
    return rng.choice(rng.choice(train))


def has_held_out(patterns):
    return bool(_split(tuple(patterns))[1])
