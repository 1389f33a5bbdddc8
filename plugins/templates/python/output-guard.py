"""Refuses answers that hold a word."""

import json

from wit_world.imports.types import (
    Action_Allow,
    Action_Refuse,
    Part_Reasoning,
    Part_Refusal,
    Part_Text,
    Part_ToolCall,
    Part_ToolOutcome,
    Refusal,
    Verdict,
)

from logged import logged

# What is dear to build is built in `configure`, which the host calls once per instance.
config = {}


@logged
class Meta:
    def describe(self):
        return json.dumps(
            {
                "name": "{{name}}",
                "version": "0.1.0",
                "summary": "Refuses answers that hold a word",
                "config-schema": {"type": "object", "properties": {"word": {"type": "string", "minLength": 1, "default": "forbidden"}}, "additionalProperties": False},
                "mutates": False,
                "deterministic": True,
            }
        )

    def configure(self, text):
        global config
        config = {"word": "forbidden", **json.loads(text)}


def text_of(part):
    """The text of a part that has one: what is said, reasoned or refused, what a tool answered, and what it is called with:
    JSON, whose escapes are not read."""
    if isinstance(part, Part_ToolOutcome):
        return part.value.content
    if isinstance(part, Part_ToolCall):
        return part.value.arguments
    return part.value if isinstance(part, (Part_Text, Part_Reasoning, Part_Refusal)) else ""


@logged
class OutputGuard:
    def inspect_output(self, ctx, output):
        texts = (text_of(part) for message in output.choices for part in message.parts)
        if not any(config["word"] in text for text in texts):
            return Verdict(Action_Allow(), [], [])
        refusal = Refusal("word", "This answer holds a word that is not allowed here.", None)
        return Verdict(Action_Refuse(refusal), [], [])
