"""Trains the byte-level BPE tokenizer: python tokenizer.py --out MODEL_DIR [--vocab 4096 | --widen MODEL_DIR]

Digits are single tokens, so that numbers are copied digit by digit. The space before a capital is a token of its own:
a name has the same tokens after a space, in quotes and at the start of an answer, so that copying it is only copying.
Small words keep their space, and each token that begins with one has a twin without: in the quotes of a tool call a word
is then in as many pieces as it was in the request. `--widen` gives these twins to a tokenizer that is there.
<tool_call> and its end are tokens of their own, but not special ones: they stay visible in decoded text, where a
gateway looks for them.
"""

import argparse
import itertools
import json
import pathlib
import random

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

import chat
import dialogues
import pools

CAPITALIZED = r"\p{Lu}+\p{Ll}*"
SPACE = "\u0120"  # how byte-level tokens write a space
MARKS = (chat.END, chat.IM_START, chat.IM_END, chat.CALL, chat.CALL_END)


def texts(count, seed):
    """Rendered dialogues of all moments of the training, without the marks."""
    rng = random.Random(seed)
    for progress in (0.1, 0.5, 0.9):
        for dialogue in itertools.islice(dialogues.stream(rng, "train", progress), count // 3):
            text = chat.render(dialogue)[0]
            for mark in MARKS:
                text = text.replace(mark, "\n")
            yield text


def learn(vocab, count, seed):
    marks = [AddedToken(mark, special=True, normalized=False) for mark in MARKS]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Digits(individual_digits=True),
        pre_tokenizers.Split(Regex(CAPITALIZED), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False),
    ])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=vocab, special_tokens=marks, min_frequency=3, show_progress=False,
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator(texts(count, seed), trainer)
    # The trainer makes every added token a special one, which decoding would drop.
    state = json.loads(tokenizer.to_str())
    for token in state["added_tokens"]:
        token["special"] = token["content"] not in (chat.CALL, chat.CALL_END)
    return Tokenizer.from_str(json.dumps(state))


def pieces(word, ranks):
    """What BPE makes of a word."""
    parts = list(word)
    while len(parts) > 1:
        best = min(zip(parts, parts[1:]), key=lambda two: ranks.get(two, len(ranks)))
        if best not in ranks:
            break
        at = next(i for i, two in enumerate(zip(parts, parts[1:])) if two == best)
        parts[at: at + 2] = ["".join(best)]
    return parts


def twinned(tokenizer):
    """The tokenizer with a token without a space beside each that begins with one. Their merges come last, so that
    nothing else is cut in another way than before."""
    state = json.loads(tokenizer.to_str())
    vocab, merges = state["model"]["vocab"], [tuple(pair) for pair in state["model"]["merges"]]
    ranks = {pair: rank for rank, pair in enumerate(merges)}
    for text in sorted(vocab, key=vocab.get):
        parts = pieces(text[1:], ranks) if text.startswith(SPACE) and text[1:].isalpha() else []
        while len(parts) > 1:
            pair = tuple(parts[:2])
            ranks.setdefault(pair, len(ranks))
            vocab.setdefault("".join(pair), len(vocab))
            parts[:2] = ["".join(pair)]
    state["model"]["merges"] = sorted(ranks, key=ranks.get)
    return Tokenizer.from_str(json.dumps(state))


def save(tokenizer, out):
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token=chat.IM_END, pad_token=chat.END, bos_token=None, unk_token=None,
        model_max_length=pools.CONTEXT, clean_up_tokenization_spaces=False)
    fast.chat_template = (pathlib.Path(__file__).parent / "template.jinja").read_text().rstrip("\n")
    out.mkdir(parents=True, exist_ok=True)
    fast.save_pretrained(out, save_jinja_files=False)


def main():
    args = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    args.add_argument("--out", type=pathlib.Path, required=True)
    args.add_argument("--vocab", type=int, default=4096, help="tokens before they have twins")
    args.add_argument("--widen", type=pathlib.Path, help="a model folder whose tokenizer gets twins")
    args.add_argument("--sample", type=int, default=30_000, help="dialogues to learn the merges from")
    args.add_argument("--seed", type=int, default=5)
    args = args.parse_args()
    if args.widen:
        tokenizer = twinned(Tokenizer.from_file(str(args.widen / "tokenizer.json")))
    else:
        tokenizer = twinned(learn(args.vocab, args.sample, args.seed))
    save(tokenizer, args.out)
    sample = list(texts(900, args.seed + 1))
    tokens = sum(len(encoding.ids) for encoding in tokenizer.encode_batch(sample))
    print(f"{tokenizer.get_vocab_size()} tokens, {sum(map(len, sample)) / tokens:.2f} characters a token")


if __name__ == "__main__":
    main()
