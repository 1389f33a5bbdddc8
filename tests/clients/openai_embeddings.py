"""The `openai` package asks a running gateway for vectors, and holds them against those of transformers.

Usage: openai_embeddings.py BASE_URL MODEL EXPECTED_JSON
"""

import json
import math
import sys

import openai

base_url, model, expected = sys.argv[1:]
client = openai.OpenAI(base_url=base_url, api_key="unused", max_retries=0)
with open(expected) as file:
    EXPECTED = json.load(file)
TEXTS = [entry["text"] for entry in EXPECTED["texts"]]


def near(found, vector):
    assert len(found) == len(vector) and all(math.isclose(a, b, abs_tol=1e-4) for a, b in zip(found, vector)), found


def vectors():
    # Without `encoding_format` the package asks for base64, and reads it.
    for encoding in ({}, {"encoding_format": "float"}, {"encoding_format": "base64"}):
        answer = client.embeddings.create(model=model, input=TEXTS, **encoding)
        assert answer.model == model and answer.usage.prompt_tokens == answer.usage.total_tokens > len(TEXTS), answer.usage
        assert [entry.index for entry in answer.data] == list(range(len(TEXTS)))
        if encoding.get("encoding_format") != "base64":
            for entry, text in zip(answer.data, EXPECTED["texts"]):
                near(entry.embedding, text["lasttoken"])


def shapes():
    for given in (TEXTS[0], [TEXTS[0]], EXPECTED["texts"][0]["tokens"], [EXPECTED["texts"][0]["tokens"]]):
        (entry,) = client.embeddings.create(model=model, input=given, dimensions=EXPECTED["dimensions"]).data
        near(entry.embedding, EXPECTED["texts"][0]["truncated"])


def errors():
    try:
        client.embeddings.create(model=model, input="x", dimensions=10_000)
        raise AssertionError("more numbers than there are")
    except openai.BadRequestError as error:
        assert error.param == "dimensions", error
    try:
        client.chat.completions.create(model=model, messages=[{"role": "user", "content": "Hello!"}])
        raise AssertionError("a model that makes vectors answered")
    except openai.BadRequestError as error:
        assert error.code == "unsupported_model", error


for check in (vectors, shapes, errors):
    check()
    print("ok", check.__name__)
