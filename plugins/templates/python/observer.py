"""Counts requests by how they ended."""

import json

from wit_world.imports import metrics

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
                "summary": "Counts requests",
                "config-schema": {"type": "object", "properties": {}, "additionalProperties": False},
                "mutates": False,
                "deterministic": False,
                "metrics": [
                    {"name": "answered", "summary": "Requests that were answered"},
                    {"name": "others", "summary": "Requests that ended in another way"},
                ],
            }
        )

    def configure(self, text):
        global config
        config = {**json.loads(text)}


@logged
class Observer:
    def on_complete(self, ctx, summary):
        metrics.count("answered" if summary.outcome == "answered" else "others", 1)
