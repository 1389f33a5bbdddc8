"""Pools of encoded dialogues, written while the training runs, and their batches.

A pool is a few thousand dialogues for one moment of the training; its seed is the pool's number, so a run can be
repeated. Batches hold dialogues of like length, right-padded: with plain causal attention no dialogue sees another.
"""

import itertools
import multiprocessing
import random

import numpy as np
import torch
from tokenizers import Tokenizer

import chat
import dialogues
import words

CONTEXT = 1024
POOL = 2048  # dialogues; about 350 thousand tokens
AHEAD = 2  # pools that each worker prepares before they are asked for
WIDTHS = 32  # batches are as wide as a multiple of this: rows that vectors fill are worth 6 % of padding
MERGE = 8192  # tokens of a batch for which one pool is enough: of fewer dialogues, few have like lengths


def encode(tokenizer, texts):
    """Token ids and how much each counts, 0 where it is not the assistant's; what is beyond the context is cut."""
    out = []
    for (text, spans), encoding in zip(texts, tokenizer.encode_batch([text for text, _ in texts])):
        starts = np.array([begin for begin, _ in encoding.offsets])
        counts = np.zeros(len(starts), np.float32)
        for begin, end, weight in spans:
            counts[(starts >= begin) & (starts < end)] = weight
        out.append((np.array(encoding.ids[:CONTEXT], np.int16), counts[:CONTEXT]))
    return out


def write(tokenizer, seed, number, progress):
    rng = random.Random(seed * 1_000_003 + number)
    made = itertools.islice(dialogues.stream(rng, "train", progress), POOL)
    return encode(tokenizer, [chat.render(dialogue) for dialogue in made])


def groups(pool, batch, rng):
    """Index lists of at most `batch` tokens each, padding included, in random order."""
    out, group = [], []
    for i in sorted(range(len(pool)), key=lambda i: len(pool[i][0])):
        if group and (len(group) + 1) * len(pool[i][0]) > batch:
            out.append(group)
            group = []
        group.append(i)
    out.append(group)
    rng.shuffle(out)
    return out


def tensors(pool, group):
    longest = max(len(pool[i][0]) for i in group)
    width = -(-(longest - 1) // WIDTHS) * WIDTHS + 1  # of the last token nothing is predicted, so no step reads it
    ids = torch.zeros(len(group), width, dtype=torch.long)
    counts = torch.zeros(len(group), width)
    for row, i in enumerate(group):
        n = len(pool[i][0])
        ids[row, :n] = torch.from_numpy(pool[i][0].astype(np.int64))
        counts[row, :n] = torch.from_numpy(pool[i][1])
    return ids, counts


_tokenizer = None  # of a worker process


def _start(path):
    global _tokenizer
    _tokenizer = Tokenizer.from_file(path)
    words.practise_pieces(_tokenizer)


def _work(task):
    return write(_tokenizer, *task)


class Source:
    """Pools by number; with workers, the next ones are written while the current one is learned."""

    def __init__(self, tokenizer_file, seed, workers, batch):
        self.seed, self.batch, self.ready, self.workers = seed, batch, {}, None
        self.merge = max(1, batch // MERGE)
        if workers:
            context = multiprocessing.get_context("spawn")  # a forked process must not inherit a CUDA context
            self.workers = context.Pool(workers, _start, (str(tokenizer_file),))
            self.ahead = max(AHEAD * workers, 2 * self.merge)
        else:
            self.tokenizer = Tokenizer.from_file(str(tokenizer_file))
            words.practise_pieces(self.tokenizer)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.workers:
            self.workers.terminate()

    def _pool(self, number, progress):
        if not self.workers:
            return write(self.tokenizer, self.seed, number, progress)
        for later in range(number, number + self.ahead):
            if later not in self.ready:
                self.ready[later] = self.workers.apply_async(_work, ((self.seed, later, progress),))
        return self.ready.pop(number).get()

    def batches(self, number, progress):
        """The batches of the pools that belong to a number."""
        pool = []
        for one in range(number * self.merge, (number + 1) * self.merge):
            pool += self._pool(one, progress)
        for group in groups(pool, self.batch, random.Random(number)):
            yield tensors(pool, group)
