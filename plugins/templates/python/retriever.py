"""Finds passages that share a word with the question. Put your own search in its place."""

import json
import re

from wit_world.exports.retriever import Chunk

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
                "summary": "Finds passages by their words",
                "config-schema": {"type": "object", "properties": {}, "additionalProperties": False},
                "mutates": False,
                "deterministic": True,
            }
        )

    def configure(self, text):
        global config
        config = {**json.loads(text)}


PASSAGES = {"ferry": "The ferry leaves at nine.", "lighthouse": "The lighthouse was built of granite."}


def words(text):
    """Words of four letters and more, in lower case."""
    return set(re.findall(r"\w{4,}", text.lower()))


@logged
class Retriever:
    def retrieve(self, ctx, query):
        asked = words(query.text)
        scores = {name: float(len(asked & words(text))) for name, text in PASSAGES.items()}
        best = sorted((name for name in PASSAGES if scores[name] > 0), key=lambda name: -scores[name])
        return [Chunk(name, PASSAGES[name], None, None, scores[name], None, []) for name in best[: query.top_k]]
