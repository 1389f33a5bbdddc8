"""Remembers what its callers say their name is."""

import json
import re

from wit_world.exports.memory import Item
from wit_world.imports import kv
from wit_world.imports.types import Part_Text, Role_User

from logged import logged


@logged
class Meta:
    def describe(self):
        return json.dumps(
            {
                "name": "{{name}}",
                "version": "0.1.0",
                "summary": "Remembers what callers say their name is",
                "config-schema": {"type": "object", "properties": {}, "additionalProperties": False},
                "mutates": False,
                "deterministic": False,
                "capabilities": [{"name": "kv", "reason": "The names are kept there"}],
            }
        )

    def configure(self, text):
        pass


def key(ctx):
    """Storage is the tenant's, or its project's; its callers are kept apart here."""
    return f"name/{ctx.caller}"


def item(name):
    return Item("name", f"The user's name is {name}.", None, [])


@logged
class Memory:
    def recall(self, ctx, question):
        known = kv.get(key(ctx))
        return [] if known is None else [item(known.decode())]

    def remember(self, ctx, exchange):
        said = [message for message in exchange.messages if isinstance(message.role, Role_User)]
        texts = [part.value for message in said for part in message.parts if isinstance(part, Part_Text)]
        names = [found.group(1) for text in texts if (found := re.search(r"my name is (\w+)", text, re.IGNORECASE))]
        if not names:
            return []
        kv.set(key(ctx), names[0].encode(), None)
        return [item(names[0])]

    def forget(self, ctx, ids):
        if "name" not in ids or kv.get(key(ctx)) is None:
            return 0
        kv.delete(key(ctx))
        return 1
