"""The `openai` package against a gateway whose key may send one request a minute.

Usage: limits_client.py BASE_URL MODEL KEY
"""

import sys

import openai

base_url, model, key = sys.argv[1:]
client = openai.OpenAI(base_url=base_url, api_key=key, max_retries=0)
question = [{"role": "user", "content": "Hello!"}]

answer = client.chat.completions.with_raw_response.create(model=model, messages=question)
assert answer.headers["x-ratelimit-limit-requests"] == "1", answer.headers
assert answer.headers["x-ratelimit-remaining-requests"] == "0", answer.headers
assert int(answer.headers["x-ratelimit-remaining-tokens"]) > 0, answer.headers
assert answer.parse().choices[0].message.content

try:
    client.chat.completions.create(model=model, messages=question)
    raise AssertionError("a second request was let in")
except openai.RateLimitError as error:
    assert error.status_code == 429 and error.code == "rate_limit_exceeded" and error.type == "requests", error
    assert "limit 1" in error.message, error
    headers = error.response.headers
    assert int(headers["retry-after"]) >= 1 and int(headers["retry-after-ms"]) >= 1, headers
    assert headers["x-ratelimit-reset-requests"].endswith("s"), headers
print("ok limits")
