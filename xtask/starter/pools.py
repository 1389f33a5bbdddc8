"""Pools of encoded dialogues, written while the training runs, and their batches.

A pool is a few thousand dialogues for one moment of the training; its seed is the pool's number, so a run can be
repeated. Batches hold dialogues of like length, right-padded: with plain causal attention no dialogue sees another.

The dialogues of a sheet begin alike, so they are one row: what they share once, then the rest of each (a branch), which
sees what is shared and itself. Of most answers there only the beginning is learned: which sentence it is, not its copy.
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
CUT_SHARE, CUT = 0.7, 7  # of the answers in a sheet, and the tokens that are left of them
SHEET = 448  # tokens of a sheet at most, where one branch is shorter
AHEAD = 2  # tasks that each worker prepares before they are asked for
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


def alone(row):
    """A dialogue as a row: (ids, counts, position and branch of each token)."""
    ids, counts = row
    return ids, counts, np.arange(len(ids)), np.zeros(len(ids), np.int64)


def packed(rows, rng):
    """The rows of a sheet in one."""
    first = rows[0][0]
    longest = min(len(ids) for ids, _ in rows)
    shared = min([longest, *(int(np.argmax(ids[:longest] != first[:longest])) for ids, _ in rows[1:])])
    parts = [(first[:shared], rows[0][1][:shared], np.arange(shared), np.zeros(shared, np.int64))]
    for branch, (ids, counts) in enumerate(rows, 1):
        end, answer = len(ids), shared + int(np.argmax(counts[shared:] > 0))
        if rng.random() < CUT_SHARE:
            end = min(end, answer + CUT)
        if branch > 1 and sum(len(part[0]) for part in parts) + end - shared > SHEET:
            break
        parts.append((ids[shared:end], counts[shared:end], np.arange(shared, end), np.full(end - shared, branch)))
    return tuple(map(np.concatenate, zip(*parts)))


def write(tokenizer, seed, number, progress):
    rng = random.Random(seed * 1_000_003 + number)
    made = list(itertools.islice(dialogues.stream(rng, "train", progress), POOL))
    rows = zip(made, encode(tokenizer, [chat.render(dialogue) for dialogue in made]))
    out = []
    for sheet, group in itertools.groupby(rows, lambda row: row[0].get("sheet")):
        group = [row for _, row in group]
        out += [packed(group, rng)] if sheet and len(group) > 1 else map(alone, group)
    return out


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


def padded(pool, group):
    """(ids, counts, positions, branches) of a batch; the last are None where no dialogue branches."""
    longest = max(len(pool[i][0]) for i in group)
    width = -(-(longest - 1) // WIDTHS) * WIDTHS + 1  # of the last token nothing is predicted, so no step reads it
    shape = (len(group), width)
    ids, branches = np.zeros(shape, np.int16), np.zeros(shape, np.int16)
    counts, positions = np.zeros(shape, np.float32), np.tile(np.arange(width, dtype=np.int16), (len(group), 1))
    for row, i in enumerate(group):
        n = len(pool[i][0])
        ids[row, :n], counts[row, :n], positions[row, :n], branches[row, :n] = pool[i]
    return ids, counts, positions, branches if branches.any() else None


def write_batches(tokenizer, seed, number, progress, batch):
    """The batches of the pools that belong to a number: several pools where a batch is large."""
    merge, pool = max(1, batch // MERGE), []
    for one in range(number * merge, (number + 1) * merge):
        pool += write(tokenizer, seed, one, progress)
    return [padded(pool, group) for group in groups(pool, batch, random.Random(number))]


def seen(branches):
    """What each token sees (rows, 1, width, width): what is shared and its own branch, up to itself."""
    one, other = branches[:, None, :, None], branches[:, None, None, :]
    return ((other == 0) | (other == one)).tril()


_tokenizer = None  # of a worker process


def _start(path):
    global _tokenizer
    _tokenizer = Tokenizer.from_file(path)
    words.practise_pieces(_tokenizer)


def _work(task):
    return write_batches(_tokenizer, *task)


class Source:
    """Batches by the number of their pools; with workers, the next ones are written while the current one is learned."""

    def __init__(self, tokenizer_file, seed, workers, batch):
        self.seed, self.batch, self.ready, self.workers = seed, batch, {}, None
        if workers:
            context = multiprocessing.get_context("spawn")  # a forked process must not inherit a CUDA context
            self.workers = context.Pool(workers, _start, (str(tokenizer_file),))
            self.ahead = AHEAD * workers
        else:
            self.tokenizer = Tokenizer.from_file(str(tokenizer_file))
            words.practise_pieces(self.tokenizer)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.workers:
            self.workers.terminate()

    def _written(self, number, progress):
        if not self.workers:
            return write_batches(self.tokenizer, self.seed, number, progress, self.batch)
        for later in range(number, number + self.ahead):
            if later not in self.ready:
                self.ready[later] = self.workers.apply_async(_work, ((self.seed, later, progress, self.batch),))
        return self.ready.pop(number).get()

    def batches(self, number, progress):
        """Small integers on the CPU; what computes with them widens them."""
        for batch in self._written(number, progress):
            yield [part if part is None else torch.from_numpy(part) for part in batch]
