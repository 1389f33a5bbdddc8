"""Floors: the least time that a step can take, from bytes moved and products computed.

Not a measurement. Bandwidth and matrix rate are arguments (`--bandwidth` in bytes/s, `--matrix-rate` in FLOP/s);
the defaults are what an H200 was measured to do in other programs: a copy, counting both directions, and a large
bf16 product. Activations that stay in the second-level cache, launches and the host are taken as free.
"""

import argparse
import json
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Model:
    """Sizes of a decoder; all weights, activations and the cache in bf16, the residual stream and logits in f32."""

    name: str
    layers: int
    hidden: int
    ffn: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int

    @property
    def qkv(self):
        return (self.heads + 2 * self.kv_heads) * self.head_dim

    @property
    def matrices(self):
        """Inputs and outputs of each layer's products."""
        attention = self.heads * self.head_dim
        return [(self.hidden, self.qkv), (attention, self.hidden), (self.hidden, 2 * self.ffn), (self.ffn, self.hidden)]


def shape(name):
    """A model of `shapes/`."""
    config = json.loads((Path(__file__).parent / "shapes" / f"{name}.json").read_text())
    keys = ["num_hidden_layers", "hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads"]
    return Model(name, *(config[key] for key in keys), config["head_dim"], config["vocab_size"])


@dataclass(frozen=True)
class Machine:
    bandwidth: float
    matrix_rate: float

    def floor(self, moved, computed):
        """Seconds for bytes and FLOPs that overlap."""
        return max(moved / self.bandwidth, computed / self.matrix_rate)


def products(model, machine, rows, wanted):
    """All matrix products of a step: each matrix is read once."""
    one = lambda ins, outs, rows: machine.floor(2 * (ins * outs + rows * (ins + outs)), 2 * ins * outs * rows)
    return model.layers * sum(one(i, o, rows) for i, o in model.matrices) + one(model.hidden, model.vocab, wanted)


def attention_decode(model, machine, rows, context):
    moved = rows * context * 2 * model.kv_heads * model.head_dim * 2
    return model.layers * machine.floor(moved, 4 * rows * context * model.heads * model.head_dim)


def attention_prefill(model, machine, tokens):
    computed = 2 * tokens * tokens * model.heads * model.head_dim  # the causal half
    return model.layers * machine.floor(tokens * model.qkv * 2, computed)


def small_kernels(model, machine, rows, wanted):
    """Seconds of each kernel over a step, by the bytes that it moves."""
    per = {
        "embed": rows * model.hidden * 6,
        "add_rms_norm": (2 * model.layers * rows + wanted) * model.hidden * 12,
        "rope_cache": model.layers * rows * model.qkv * 4,
        "gated_activation": model.layers * rows * model.ffn * 6,
        "sample": wanted * model.vocab * 4,
    }
    return {name: moved / machine.bandwidth for name, moved in per.items()}


def decode(model, machine, rows, context):
    """Seconds of a step by part."""
    parts = {"products": products(model, machine, rows, rows), "attention": attention_decode(model, machine, rows, context)}
    return parts | small_kernels(model, machine, rows, rows)


def prefill(model, machine, tokens):
    """Seconds of a prompt by part."""
    parts = {"products": products(model, machine, tokens, 1), "attention": attention_prefill(model, machine, tokens)}
    return parts | small_kernels(model, machine, tokens, 1)


def served(model, machine, at_once, tokens_in, tokens_out):
    """Output tokens a second where `at_once` sequences always run: each decodes over a past between its prompt and
    its whole, and its prompt is computed between the others' steps, some thousand tokens at a time."""
    step = sum(decode(model, machine, at_once, tokens_in + tokens_out / 2).values())
    chunk = max(1, 2048 // tokens_in) * tokens_in
    prompt = sum(prefill(model, machine, chunk).values()) * tokens_in / chunk
    return 1 / (step / at_once + prompt / tokens_out)


def steps(model, machine):
    """(what, seconds by part) of the table in docs/gpu.md."""
    for rows in (1, 32, 128, 256):
        yield f"decode, {rows} sequences, context 1024", decode(model, machine, rows, 1024)
    for tokens in (2048, 8192):
        yield f"prefill, {tokens} tokens", prefill(model, machine, tokens)


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--bandwidth", type=float, default=4.3e12)
    arguments.add_argument("--matrix-rate", type=float, default=790e12)
    given = arguments.parse_args()
    machine = Machine(given.bandwidth, given.matrix_rate)
    columns = ["products", "attention", "embed", "add_rms_norm", "rope_cache", "gated_activation", "sample"]
    for model in map(shape, ["llama-3.1-8b", "qwen3-0.6b"]):
        print(f"\n{model.name}; milliseconds\n")
        print("| step | sum |", " | ".join(columns), "|")
        print("|---" * (len(columns) + 2) + "|")
        for what, parts in steps(model, machine):
            cells = [f"{parts[column] * 1e3:.3f}" for column in columns]
            print(f"| {what} | {sum(parts.values()) * 1e3:.2f} |", " | ".join(cells), "|")


if __name__ == "__main__":
    main()
