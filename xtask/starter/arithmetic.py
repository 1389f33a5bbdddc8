"""Arithmetic questions, the expression that a calculator should get, and the answer; from arithmetic.toml."""

import dataclasses
import pathlib
import re
import tomllib

import words
from words import capital, fill

DATA = tomllib.loads((pathlib.Path(__file__).parent / "arithmetic.toml").read_text())
WORDS_SHARE = 0.15  # of the sums that are said in words, numbers included
FUNCTIONS = {"sqrt": lambda x: x**0.5}


@dataclasses.dataclass
class Problem:
    question: str
    expression: str
    result: str
    answer: str  # with {r} where the result goes


def value(expression):
    """The result as a calculator would print it, or None when there is none."""
    if not re.fullmatch(r"(?:[\d.()+*/^ -]|sqrt)+", expression) or re.search(r"\^\s*\d{3}", expression):
        return None
    try:
        result = eval(expression.replace("^", "**"), {"__builtins__": {}}, FUNCTIONS)
    except (ArithmeticError, SyntaxError, TypeError):
        return None
    if isinstance(result, complex) or abs(result) > 1e15:
        return None
    return str(int(result)) if result == int(result) else f"{result:.6f}".rstrip("0").rstrip(".")


def spelled(n):
    """A number below 100 in words."""
    units, tens = DATA["units"].split(), DATA["tens"].split()
    if n < 20:
        return units[n]
    return tens[n // 10 - 2] + (f"-{units[n % 10]}" if n % 10 else "")


def _in_words(text):
    """The same with every number below 100 as a word; longer ones stay."""
    return re.sub(r"(?<![\d.,])\d{1,2}(?![\d.,])", lambda m: spelled(int(m[0])), text)


def _operand(rng, split):
    if rng.random() < 0.12:
        return f"{words.number(rng, split, 1, 999)}.{rng.randint(1, 99)}"
    return str(words.number(rng, split, 2, rng.choice([20, 100, 100, 1000, 1000, 100000])))


def _chain(rng, a, b, c):
    first, second = rng.choices("+-*/", k=2)
    tight = rng.choice([f"{a}{first}{b}{second}{c}", f"({a}{first}{b}){second}{c}", f"{a}{first}({b}{second}{c})"])
    return tight, tight if rng.random() < 0.5 else re.sub(r"([-+*/])", r" \1 ", tight)


def _sum(rng, split):
    """An expression and how it is said."""
    a, b, c = (_operand(rng, split) for _ in range(3))
    kind = rng.random()
    if kind < 0.7:
        two = rng.choice(DATA["two"])
        return f"{a}{two['operator']}{b}", fill(rng, split, rng.choice(two["forms"]), a=a, b=b)
    if kind < 0.8:
        return _chain(rng, a, b, c)
    form = rng.choice(DATA["form"])
    slots = {"a": a, "b": b, "c": c, "n": words.number(rng, split, 2, 99), "p": rng.randint(2, 9),
             "q": rng.randint(1, 99)}
    return fill(rng, split, form["expression"], **slots), fill(rng, split, form["say"], **slots)


def _word_problem(rng, split):
    form = rng.choice(DATA["problem"])
    a, b = words.number(rng, split, 2, 2000), words.number(rng, split, 2, 300)
    if form["expression"] in ("{a}-{b}", "{a}/{b}") and a < b:
        a, b = b, a
    slots = {"a": a, "b": b, "t": words.POOLS["thing"].pick(rng, split),
             "n": words.POOLS["name"].pick(rng, split), "m": words.POOLS["name"].pick(rng, split)}
    expression = fill(rng, split, form["expression"], **slots)
    return Problem(fill(rng, split, form["ask"], **slots), expression, value(expression),
                   fill(rng, split, form["say"], r="{r}", **slots))


def problem(rng, split):
    if rng.random() < 0.2:
        return _word_problem(rng, split)
    while True:
        expression, said = _sum(rng, split)
        result = value(expression)
        if result is not None:
            break
    if rng.random() < WORDS_SHARE and re.fullmatch(r"[a-z\d ]+", said):
        said = _in_words(said)
    order = said.startswith(("add ", "subtract ", "multiply ", "divide "))
    question = fill(rng, split, rng.choice(DATA["orders" if order else "frames"]), x=said)
    if "=" not in question and rng.random() < 0.8:
        question += "?" if rng.random() < 0.85 else rng.choice([".", " please"])
    answer = "The result is {r}." if order else rng.choice(DATA["answers"]).replace("{X}", capital(said))
    return Problem(question, expression, result, answer)
