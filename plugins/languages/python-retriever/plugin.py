"""Finds passages of the config by their words, ranked by Okapi BM25 (k1 = 1.2, b = 0.75)."""

import json
import math
import re
from collections import Counter

from componentize_py_types import Err
from wit_world.exports.retriever import Chunk
from wit_world.imports.types import Error_InvalidConfig

K1, B = 1.2, 0.75


def words(text):
    return re.findall(r"\w+", text.lower())


class Index:
    """Built once per instance, in `configure`."""

    def __init__(self, passages):
        self.passages = passages
        self.counts = [Counter(words(passage["text"])) for passage in passages]
        self.lengths = [sum(count.values()) for count in self.counts]
        # Not 0 where no passage has a word.
        self.mean = max(sum(self.lengths) / len(self.lengths), 1)
        holders = Counter(word for count in self.counts for word in count)
        total = len(passages)
        self.idf = {word: math.log(1 + (total - n + 0.5) / (n + 0.5)) for word, n in holders.items()}

    def score(self, at, asked):
        count, norm = self.counts[at], K1 * (1 - B + B * self.lengths[at] / self.mean)
        return sum(self.idf[word] * count[word] * (K1 + 1) / (count[word] + norm) for word in asked if word in count)


index = None


class Meta:
    def describe(self):
        passage = {
            "type": "object",
            "properties": {"id": {"type": "string"}, "text": {"type": "string"}},
            "required": ["id", "text"],
            "additionalProperties": False,
        }
        schema = {
            "type": "object",
            "properties": {"passages": {"type": "array", "items": passage}},
            "required": ["passages"],
            "additionalProperties": False,
        }
        return json.dumps(
            {
                "name": "word-retriever",
                "version": "0.1.0",
                "summary": "Finds passages of its config by their words",
                "config-schema": schema,
                "mutates": False,
                "deterministic": True,
            }
        )

    def configure(self, config):
        global index
        passages = json.loads(config)["passages"]
        if not passages:
            raise Err(Error_InvalidConfig("`passages` is empty"))
        index = Index(passages)


class Retriever:
    def retrieve(self, ctx, query):
        asked = set(words(query.text))
        scored = sorted(((index.score(at, asked), -at) for at in range(len(index.passages))), reverse=True)
        found = [(score, index.passages[-at]) for score, at in scored[: query.top_k] if score > 0]
        return [Chunk(passage["id"], passage["text"], None, None, score, None, []) for score, passage in found]
