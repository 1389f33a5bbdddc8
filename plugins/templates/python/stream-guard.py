"""Replaces one word in what the model says, also where the word comes in pieces."""

import json

from componentize_py_types import Err
from wit_world.exports.stream_guard import Inspection, Redaction, WindowAction_Pass, WindowAction_Redact
from wit_world.imports.types import Error_InvalidConfig, Span

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
                "summary": "Replaces a word in answers",
                "config-schema": {"type": "object", "properties": {"word": {"type": "string", "default": "foo"}, "replacement": {"type": "string", "default": "bar"}}, "additionalProperties": False},
                "mutates": True,
                "deterministic": True,
            }
        )

    def configure(self, text):
        global config
        config = {"word": "foo", "replacement": "bar", **json.loads(text)}
        if not config["word"]:
            raise Err(Error_InvalidConfig("`word` is empty; name one"))
        # It is put into the JSON of a tool call's arguments as it stands.
        if any(character in '"\\' or character < " " for character in config["replacement"]):
            why = "`replacement` has a quote, a backslash or a control character; name another"
            raise Err(Error_InvalidConfig(why))


@logged
class StreamGuard:
    def inspect_window(self, ctx, carry, window):
        # Arguments of a tool call are JSON, whose escapes are not read: in them `"\u0066oo"` is no `foo`. A word that JSON
        # itself writes, such as `true`, would leave none.
        # Spans count in bytes of UTF-8.
        text, word = window.text.encode(), config["word"].encode()
        found, decided = [], window.settled
        while (at := text.find(word, decided)) >= 0:
            decided = at + len(word)
            found.append(Redaction(Span(at, decided), config["replacement"]))
        # The word may begin at the end of the text, and the rest of it may be in the next window.
        safe = len(text)
        if window.ending is None:
            for kept in range(min(len(word) - 1, len(text) - decided), 0, -1):
                if word.startswith(text[-kept:]):
                    safe = len(text) - kept
                    break
        action = WindowAction_Redact(found) if found else WindowAction_Pass()
        return Inspection(action, safe, b"", [], [])
