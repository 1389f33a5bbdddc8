"""A tool that tells the host's time."""

import json

from componentize_py_types import Err
from wit_world.imports import clock
from wit_world.imports.types import Error_Unsupported, ToolDef, ToolHints, ToolOutcome

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
                "summary": "A tool that tells the time",
                "config-schema": {"type": "object", "properties": {}, "additionalProperties": False},
                "mutates": False,
                "deterministic": False,
            }
        )

    def configure(self, text):
        global config
        config = {**json.loads(text)}


@logged
class ToolProvider:
    def list_tools(self, ctx):
        hints = ToolHints(read_only=True, destructive=False, idempotent=True, open_world=False)
        description = "The time now, in milliseconds since 1970."
        return [ToolDef("now", description, '{"type":"object"}', hints, [])]

    def call_tool(self, ctx, call):
        if call.name != "now":
            raise Err(Error_Unsupported(f"no tool `{call.name}`"))
        return ToolOutcome(call.id, str(clock.now_unix_ms()), None, False)
