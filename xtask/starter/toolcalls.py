"""Tools, calls and what to say about their results; from tools.toml and arithmetic.toml.

A `Task` is an offered tool together with one request for it. Each dialogue with tools offers the calculator and a few
tasks, so that the model has to choose by name and description, and to copy names and arguments from the schema.
"""

import dataclasses
import json
import pathlib
import re
import tomllib

import arithmetic
from passages import user
from recall import says
from surface import surface
from words import capital, coined, fill

DATA = tomllib.loads((pathlib.Path(__file__).parent / "tools.toml").read_text())
CHOICE = re.compile(r"\[([^\[\]{}]+)\]")
WRAPS = [
    "{x}", "{x}", "{x}", "{x}", "please {x}", "can you help? {x}", "hey, {x}", "{x}, please", "{x} thanks", "quick one: {x}",
    "I have a request: {x}", "next: {x}", "one more thing, {x}", "{x} (use the tool)", "okay, {x}", "hi! {x}",
]


@dataclasses.dataclass
class Task:
    schema: dict
    ask: str
    arguments: dict
    result: str
    answer: str
    key: str = "result"  # what a tool that answers in JSON calls it


# Optional arguments that a schema may have and that no request asks for.
UNUSED = [
    ("unit", {"type": "string", "enum": ["celsius", "fahrenheit"]}), ("limit", {"type": "integer"}), ("lang", {"type": "string"}),
    ("verbose", {"type": "boolean"}), ("note", {"type": "string", "description": "Optional note"}),
    ("timezone", {"type": "string"}), ("page", {"type": "integer", "description": "Page number"}),
    ("format", {"type": "string", "enum": ["short", "long"]}), ("silent", {"type": "boolean"}),
]
TURNED_SHARE = 0.12
DESCRIBED = ["The {k}", "The {k} to use", "{k}", "Name of the {k}", "The {k}, for example {v}", "{k} of the request"]


def _kind(rng, key, value, pattern):
    """The schema of one argument; a choice of few words may be written as an enum."""
    if isinstance(value, bool):
        shown = {"type": "boolean"}
    else:
        shown = {"type": "string" if isinstance(value, str) else rng.choice(["integer", "number"])}
    choices = CHOICE.fullmatch(pattern)
    if choices and rng.random() < 0.7:
        shown["enum"] = choices[1].split("|")
    if rng.random() < 0.4:
        said = rng.choice(DESCRIBED if isinstance(value, str) and not choices else DESCRIBED[:2])
        if "{v}" in said and (pattern == "" or "{" not in pattern):
            said = DESCRIBED[0]
        example = fill(rng, "train", pattern) if "{v}" in said else ""
        shown["description"] = said.replace("{k}", key.replace("_", " ")).replace("{v}", example)
    return shown


def _schema(rng, name, description, arguments, patterns=None):
    """A tool as a client would offer it; clients differ in what they leave out."""
    properties = {key: _kind(rng, key, value, (patterns or {}).get(key, "")) for key, value in arguments.items()}
    if patterns and rng.random() < 0.2:
        key, shown = rng.choice(UNUSED)
        properties.setdefault(key, dict(shown))
    if rng.random() < 0.2:
        shuffled = rng.sample(sorted(properties), len(properties))
        properties = {key: properties[key] for key in shuffled}
    schema = {"name": name} | ({"description": description} if description else {})
    parameters = {"type": "object", "properties": properties}
    if rng.random() < 0.8:
        parameters["required"] = list(arguments)
    if rng.random() < 0.15:
        parameters["additionalProperties"] = False
    return schema | {"parameters": parameters}


def _renamed(rng, key, taken):
    """Another name for an argument."""
    other = rng.choice(DATA["aliases"].get(key, [key])) if rng.random() < 0.5 else key
    other = fill(rng, "train", "{coined_low}") if rng.random() < 0.04 else other
    return key if other in taken else other


def _cased(rng, split, name):
    """The name in another convention, or in training with its words in another order: tools are not called as they mostly are."""
    if split == "train" and "_" in name and rng.random() < TURNED_SHARE:
        name = "_".join(reversed(name.split("_")))
    kind, parts = rng.random(), name.split("_")
    if kind > 0.2 or len(parts) < 2:
        return name
    return rng.choice([parts[0] + "".join(map(str.capitalize, parts[1:])), "-".join(parts), ".".join(parts),
                       "".join(map(str.capitalize, parts))])


def _times(rng):
    """How often a tool is asked for: reading the schemas is what costs."""
    return rng.choice([1, 1, 2, 2, 3])


def _getter(rng, split):
    """Asks for a property of things."""
    data = DATA["getter"]
    noun, pattern = rng.choice(sorted(DATA["nouns"].items()))
    if rng.random() < 0.3:
        noun = coined(rng, split).lower()
    key, value_pattern = rng.choice(sorted(DATA["subjects_of"].items()))
    slots = {"x": noun, "X": capital(noun), "k": key}
    name = _cased(rng, split, fill(rng, split, rng.choice(data["names"]), **slots))
    description = fill(rng, split, rng.choice(data["descriptions"]), **slots)
    if rng.random() < 0.15:
        key = rng.choice(["input", "value", "q", coined(rng, split).lower()])
    schema = _schema(rng, name, description, {key: fill(rng, split, value_pattern)})
    tasks = []
    for _ in range(_times(rng)):
        value, result = fill(rng, split, value_pattern), fill(rng, split, pattern)
        given = slots | {"v": value, "r": result}
        ask, answer = fill(rng, split, rng.choice(data["asks"]), **given), fill(rng, split, data["say"], **given)
        tasks.append(Task(schema, ask, {key: value}, result, answer, noun))
    return tasks


def _values(rng, split, patterns):
    """Arguments by name; a pattern says with its first character what is no text."""
    values = {}
    for key, pattern in patterns.items():
        text = fill(rng, split, pattern)
        values[key] = int(text[1:]) if text.startswith("#") else text == "?true" if text.startswith("?") else text
    return values


def _action(rng, split):
    """Asks for things to be done."""
    data = rng.choice(DATA["action"])
    made = {"v": fill(rng, split, data.get("verb", "")), "o": fill(rng, split, data.get("object", ""))}
    made["V"] = capital(made["v"])
    known, names = data["arguments"], {}
    for key in known:
        names[key] = _renamed(rng, key, known.keys() | set(names.values()))
    name = _cased(rng, split, fill(rng, split, rng.choice(data["names"]), **made))
    description = fill(rng, split, data["description"], **made) if rng.random() < 0.93 else ""
    example = _values(rng, split, known)
    schema = _schema(rng, name, description, {names[key]: example[key] for key in known},
                     {names[key]: pattern for key, pattern in known.items()})
    tasks = []
    for _ in range(_times(rng)):
        arguments, result = _values(rng, split, known), fill(rng, split, data.get("result", "[ok|done|success]"))
        slots = made | arguments | {"r": result}
        ask, answer = fill(rng, split, rng.choice(data["asks"]), **slots), fill(rng, split, data["say"], **slots)
        given = {names[key]: arguments[key] for key in known}
        order = {key: given[key] for key in schema["parameters"]["properties"] if key in given}
        tasks.append(Task(schema, ask, order, result, answer))
    return tasks


def tasks_of_one(rng, split):
    return _getter(rng, split) if rng.random() < 0.3 else _action(rng, split)


def offer(rng, split):
    """The tools of a dialogue, in random order, and the tasks among them; the calculator is mostly there."""
    tasks = [task for _ in range(rng.choice([1, 2, 2, 3, 3])) for task in tasks_of_one(rng, split)]
    schemas = {t.schema["name"]: t.schema for t in tasks}
    if rng.random() < 0.85 or not schemas:
        description = rng.choice(DATA["calculator_descriptions"])
        schemas["calculator"] = _schema(rng, "calculator", description, {"expression": ""})
    tools = list(schemas.values())
    rng.shuffle(tools)
    rng.shuffle(tasks)
    return tools, [t for t in tasks if schemas[t.schema["name"]] is t.schema]


def called(name, arguments, check):
    return {"role": "assistant", "content": "", "tool_calls": [{"name": name, "arguments": arguments}], "check": check}


def returned(content):
    return {"role": "tool", "content": content}


def _fields(rng, split, wanted):
    """A result of several fields, which the answer reads out."""
    nouns = rng.sample(sorted(DATA["nouns"].items()), rng.randint(2, 4))
    values = {key: fill(rng, split, pattern) for key, pattern in nouns}
    values = {key: int(value) if value.isdigit() else value for key, value in values.items()}
    if wanted.key != "result" and rng.random() < 0.6:
        values |= {wanted.key: wanted.result}
    if rng.random() < 0.4:
        values = dict(list(wanted.arguments.items())[:1]) | values
    said = ", ".join(f"{key.replace('_', ' ')} {value}" for key, value in values.items())
    return [returned(json.dumps(values, separators=rng.choice([(", ", ": "), (",", ":")]))),
            says(f"Here is the result: {said}.", kind="other_result", all=[str(value) for value in values.values()])]


def use_tool(rng, split, state):
    """A request for one of the offered tools, the call, the result and the answer."""
    wanted = state.tasks.pop()
    name = wanted.schema["name"]
    ask = rng.choice(WRAPS).replace("{x}", wanted.ask) if split == "train" else wanted.ask
    turns = [user(surface(rng, ask, loose=False)),
             called(name, wanted.arguments, {"kind": "other_call", "name": name, "arguments": wanted.arguments})]
    if rng.random() < 0.06:
        error = rng.choice(["not found", "access denied", "timeout", "not available"])
        content = rng.choice([f"error: {error}", json.dumps({"error": error})])
        return turns + [returned(content), says(f"That did not work: {error}.", kind="tool_error", all=[error])]
    if rng.random() < 0.25:
        return turns + _fields(rng, split, wanted)
    content = rng.choice([wanted.result, json.dumps({rng.choice(["result", wanted.key]): wanted.result})])
    must = [wanted.result] if wanted.result in wanted.answer else []
    return turns + [returned(content), says(capital(wanted.answer), kind="other_result", all=must)]


def calculate(rng, split, state):
    """With the calculator: a call, its result, and the answer. Without: the model asks for it."""
    problem = arithmetic.problem(rng, split)
    ask = user(surface(rng, problem.question, loose=False))
    if not any(tool["name"] == "calculator" for tool in state.tools):
        return [ask, says(arithmetic.DATA["too_hard"], kind="too_hard", regex="calculator tool")]
    check = {"kind": "call", "expression": problem.expression}
    turns = [ask, called("calculator", {"expression": problem.expression}, check)]
    if rng.random() < 0.06:
        error = rng.choice(arithmetic.DATA["errors"])
        content = rng.choice([f"error: {error}", json.dumps({"error": error})])
        answer = arithmetic.DATA["error_answer"].replace("{error}", error)
        return turns + [returned(content), says(answer, kind="tool_error", all=[error])]
    # What the tool says counts, even where it is not what the model might expect.
    result = problem.result if rng.random() < 0.75 else fill(rng, split, "{number 1 99999}[||.{digits 1 999}]")
    as_json = rng.choice([json.dumps({"result": result}), f'{{"result":{result}}}', f"= {result}"])
    content = result if rng.random() < 0.6 else as_json
    return turns + [returned(content), says(problem.answer.replace("{r}", result), kind="result", all=[result])]
