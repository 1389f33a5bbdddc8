"""Output tokens a second over HTTP, with as many requests at once as `--at-once` says, until all are answered, or until
shortly before this process is cut off (`TIDEGATE_GPU_SECONDS`).

    serve.py TIDEGATE FOLDER NAME --requests N --at-once N --tokens-in N --tokens-out N
"""

import argparse
import json
import time
from concurrent.futures import ThreadPoolExecutor, wait

from deadline import deadline
from gateway import Gateway


def arguments():
    given = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ["program", "folder", "name"]:
        given.add_argument(name)
    for name in ["requests", "at-once", "tokens-in", "tokens-out"]:
        given.add_argument(f"--{name}", type=int, required=True)
    return given.parse_args()


def prompt(number, words):
    """No two begin alike, so that nothing comes from the prefix cache."""
    return " ".join(f"{(number * 7919 + i * 104729) % 9973}" for i in range(words))


def words_for(gateway, name, tokens):
    """How many words give that many tokens."""
    count = lambda words: gateway.complete(
        {"model": name, "prompt": prompt(0, words), "max_tokens": 1, "temperature": 0})["usage"]["prompt_tokens"]
    guess = max(1, tokens // 4)
    for _ in range(4):
        guess = max(1, round(guess * tokens / count(guess)))
    return guess


def main():
    given = arguments()
    engine = {
        "max_seqs": given.at_once,
        "max_batch_tokens": max(given.at_once, 2048 if given.tokens_in > 500 else 32),
        "max_queued_jobs": given.requests + 1,
    }
    with Gateway(given.program, {given.name: given.folder}, "cuda", engine) as gateway:
        words = words_for(gateway, given.name, given.tokens_in)
        body = lambda i: {"model": given.name, "prompt": prompt(i + 1, words), "max_tokens": given.tokens_out,
                          "temperature": 0}
        before = gateway.generated(given.name)
        start = time.monotonic()
        pool = ThreadPoolExecutor(given.at_once)
        answers = [pool.submit(gateway.stream, body(i)) for i in range(given.requests)]
        _, late = wait(answers, timeout=min(max(deadline() - start, 0), 3600))
        seconds = time.monotonic() - start
        # One that failed ends the part.
        usages = [answer.result() for answer in answers if answer not in late]
        whole = sum(usage["completion_tokens"] for usage in usages)
        report(given, gateway.generated(given.name) - before if late else whole, seconds, usages)
        pool.shutdown(wait=False, cancel_futures=True)


def report(given, tokens, seconds, usages):
    """The row of all requests, or of what was generated until now."""
    if not tokens:
        raise SystemExit("nothing was generated before the time was over")
    each = lambda key: sum(usage[key] for usage in usages) / len(usages) if usages else None
    print(json.dumps({
        "figure": "served", "model": given.name, "size": given.at_once, "context": 0, "by": "tidegate",
        "unit": "tokens/s", "value": tokens / seconds, "seconds": seconds, "requests": len(usages),
        "tokens_in": each("prompt_tokens"), "tokens_out": each("completion_tokens"),
        "whole": len(usages) == given.requests,
    }), flush=True)


if __name__ == "__main__":
    main()
