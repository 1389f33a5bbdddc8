"""Sends long prompts to the model with the longest window."""

import json

from wit_world.exports.router import Decision

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
                "summary": "Routes by the length of the prompt",
                "config-schema": {"type": "object", "properties": {"long_tokens": {"type": "integer", "minimum": 1, "maximum": 1000000, "default": 1000}}, "additionalProperties": False},
                "mutates": False,
                "deterministic": True,
            }
        )

    def configure(self, text):
        global config
        config = {"long_tokens": 1000, **json.loads(text)}


@logged
class Router:
    def route(self, ctx, request, candidates):
        long = request.prompt_tokens > config["long_tokens"]
        if long:
            candidates = sorted(candidates, key=lambda candidate: -candidate.context_tokens)
        return Decision([candidate.id for candidate in candidates], "a long prompt" if long else "a short prompt", [])
