"""Short stories that keep to what was asked for, from stories.toml."""

import functools
import pathlib
import re
import tomllib

import words
from patterns import expand_one
from words import POOLS, fill

DATA = tomllib.loads((pathlib.Path(__file__).parent / "stories.toml").read_text())
PLOTS = [plot["lines"] for plot in DATA["plot"]]
TOPIC_PLOTS = [plot["lines"] for plot in DATA["topic_plot"]]
REQUESTS, SHARES = DATA["request"], [request["share"] for request in DATA["request"]]
SHE_KINDS = set(DATA["she_kinds"].split())
VERBS = ["finds", "loses", "builds", "buys", "paints", "steals", "breaks", "carries", "repairs", "sells", "hides"]
OPTIONAL = 0.4  # how often a sentence that may be left out is told


def needs(lines, slot):
    """The sentences for certain have the slot: in each alternative and in no optional one."""
    return any(slot in re.sub(r"\[[^\]]*\]", "", line) for line in lines if not line.startswith("?"))


FRIEND_PLOTS = [plot for plot in PLOTS if needs(plot, "{g}")]
OBJECT_PLOTS = [plot for plot in PLOTS if needs(plot, "{o}")]
PLAIN_PLOTS = [plot for plot in PLOTS if not any("{o}" in line for line in plot)]


def kind_of(rng, split):
    return words.listed(rng, split, rng.choice(["animal", "folk"]))


def topic_of(rng, split):
    listed = expand_one(rng, "[" + "|".join(re.split(r" (?![^\[]*\])", DATA["topics"])) + "]")
    return rng.choice([POOLS["subject"].pick(rng, split), listed])


def wish_of(rng, split):
    return fill(rng, split, "[" + DATA["wishes"] + "]", verb=rng.choice(VERBS))


def name_for(rng, kind):
    """A name that fits the kind, for nobody asked for another one."""
    name = POOLS["name"].pick(rng, "train")
    return name if kind not in SHE_KINDS or name in words.SHE else name_for(rng, kind)


def pronouns(rng, name, kind):
    known = name in POOLS["name"].all or kind in SHE_KINDS
    she = name in words.SHE or kind in SHE_KINDS if known else rng.random() < 0.5
    return ("she", "her") if she else ("he", "his")


def story(rng, split, asked):
    """Tells a story with the asked values of kind, name, place, object and topic; returns (text, all its values)."""
    kind = asked.get("kind") or kind_of(rng, split)
    cast = {"kind": kind, "name": name_for(rng, kind),
            "place": POOLS["place"].pick(rng, split), "object": POOLS["object"].pick(rng, split)} | asked
    friend = POOLS["name"].pick(rng, "train")
    while friend == cast["name"]:
        friend = POOLS["name"].pick(rng, "train")
    cast["beside"] = friend
    he, his = pronouns(rng, cast["name"], kind)
    slots = {"n": cast["name"], "k": cast["kind"], "t": asked.get("trait") or POOLS["trait"].pick(rng, split),
             "p": cast["place"], "o": cast["object"], "f": friend, "g": asked.get("friend") or kind_of(rng, split),
             "s": he, "S": he.capitalize(), "h": his,
             "x": asked.get("topic", ""), "w": asked.get("wish", "")}
    plots = TOPIC_PLOTS if "topic" in asked else OBJECT_PLOTS if "object" in asked else PLAIN_PLOTS
    if "friend" in asked:
        plots = [plot for plot in FRIEND_PLOTS if plot in plots]
    plot = rng.choice(plots)
    opening = DATA["wish_openings" if "wish" in asked else "openings"]
    told = [line.lstrip("?") for line in plot if not line.startswith("?") or rng.random() < OPTIONAL]
    if "ending" in asked:
        told = [*told[:2], DATA["endings"][asked["ending"]]]
    return " ".join(fill(rng, split, line, **slots) for line in [rng.choice(opening), *told]), cast


def request(rng, split):
    """Returns (request, story, its cast, the words that must be in the story)."""
    about = expand_one(rng, rng.choices(REQUESTS, SHARES)[0]["about"])
    makers = {"kind": kind_of, "name": words.person, "topic": topic_of, "wish": wish_of, "friend": kind_of,
              "ending": lambda rng, split: rng.choice(sorted(DATA["endings"]))} | {
                  pool: functools.partial(words.listed, pool=pool) for pool in ("place", "object", "trait")}
    asked = {slot: make(rng, split) for slot, make in makers.items() if "{" + slot + "}" in about}
    about = fill(rng, split, about, **asked)
    ask = fill(rng, split, rng.choice(DATA["asks"]), about="{about}").replace("{about}", about)
    text, cast = story(rng, split, asked)
    if about:
        text = f"This is a story{about}. {text}"
    must = [value for slot, value in asked.items() if slot != "trait"]
    return words.with_articles(ask), words.with_articles(text), cast, must


def question(rng, cast):
    """A question about the story that was just told, and its answer with the word that it must have."""
    name, kind, place = cast["name"], cast["kind"], cast["place"]
    ask, answer, must = rng.choice([
        (f"[who is|who was|what is|what was|tell me who is|who or what is|what kind of being is|what animal or person is] {name}?",
         f"{name} is the {kind} in the story.", kind),
        (f"[who [was|is] the story about?|what was the name of the {kind}?|what was the {kind} called?|what is the {kind} called?"
         f"|what is the {kind}'s name?|[who|what] was the [hero|main character|main person][ of the story| called|]?"
         f"|[do you remember|tell me] the name of the {kind}?|what name does the {kind} have?|how is the {kind} called?|who is the hero?]",
         f"The story is about {name} the {kind}.", name),
        (f"[where does {name} live?|where did {name} live?|where was {name}'s home?|where [did the story take place|does the story take place|does it happen|did it happen|was that|is it set]?"
         f"|where did the {kind} live?|in what place did {name} live?|where does the {kind} live?]", f"In the {place}.", place),
    ])
    return expand_one(rng, ask), answer, must
