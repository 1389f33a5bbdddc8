"""What others reach on this device with the same shapes and random weights; left out by name where they are not here.

    peers.py [--cpu] loop CONFIG NAME BATCHES CONTEXT PROMPTS    a plain PyTorch loop: one forward a step, no engine
    peers.py [--cpu] served CONFIG NAME --requests N --at-once N --tokens-in N --tokens-out N
                                                                 transformers' continuous batching

`--cpu` takes the CPU where PyTorch finds no device: for a dry run, whose figures mean nothing. `TIDEGATE_GPU_SECONDS`
is what this process has; `served` then gives the rate of what was generated until shortly before.
"""

import argparse
import importlib.util
import json
import os
import statistics
import sys
import time
import traceback

from deadline import deadline

try:
    import torch
    import torch.nn.functional as F
except ImportError:
    sys.exit("PyTorch is not installed here")
CPU = "--cpu" in sys.argv
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
if DEVICE == "cpu" and not CPU:
    sys.exit("PyTorch finds no device")

WARM_UP, STEPS, PREFILLS = 3, 16, 3


class Decoder:
    """A Llama or Qwen3 with a contiguous cache, as one would write it down."""

    def __init__(self, config):
        self.heads, self.keys, self.dim = (
            config[key] for key in ["num_attention_heads", "num_key_value_heads", "head_dim"])
        self.eps, self.layers_num = config["rms_norm_eps"], config["num_hidden_layers"]
        hidden, ffn, vocab = config["hidden_size"], config["intermediate_size"], config["vocab_size"]
        matrix = lambda outs, ins: torch.randn(outs, ins, dtype=torch.bfloat16, device=DEVICE) * ins**-0.5
        ones = lambda width: torch.ones(width, dtype=torch.bfloat16, device=DEVICE)
        normed = lambda: ones(self.dim) if config["model_type"] == "qwen3" else None
        self.layers = [
            {
                "norm1": ones(hidden), "norm2": ones(hidden), "q_norm": normed(), "k_norm": normed(),
                "qkv": matrix((self.heads + 2 * self.keys) * self.dim, hidden),
                "o": matrix(hidden, self.heads * self.dim), "gate_up": matrix(2 * ffn, hidden), "down": matrix(hidden, ffn),
            }
            for _ in range(self.layers_num)
        ]
        self.table, self.norm = matrix(vocab, hidden), ones(hidden)
        self.head = self.table if config["tie_word_embeddings"] else matrix(vocab, hidden)
        half = torch.arange(0, self.dim, 2, device=DEVICE).float() / self.dim
        self.frequencies = config["rope_theta"] ** -half

    def cache(self, batch, length):
        shape = (self.layers_num, 2, batch, self.keys, length, self.dim)
        return torch.zeros(shape, dtype=torch.bfloat16, device=DEVICE)

    def rotate(self, x, start):
        angles = torch.arange(start, start + x.shape[2], device=DEVICE).float()[:, None] * self.frequencies
        cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
        a, b = x.chunk(2, dim=-1)
        return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1)

    @torch.inference_mode()
    def forward(self, tokens, cache, start):
        batch, length = tokens.shape
        norm = lambda x, weight: F.rms_norm(x, weight.shape, weight, self.eps)
        x = self.table[tokens]
        for layer, kept in zip(self.layers, cache):
            qkv = F.linear(norm(x, layer["norm1"]), layer["qkv"]).view(batch, length, -1, self.dim).transpose(1, 2)
            q, k, v = qkv.split([self.heads, self.keys, self.keys], dim=1)
            if layer["q_norm"] is not None:
                q, k = norm(q, layer["q_norm"]), norm(k, layer["k_norm"])
            kept[0, :, :, start : start + length] = self.rotate(k, start)
            kept[1, :, :, start : start + length] = v
            past = kept[:, :, :, : start + length]
            mixed = F.scaled_dot_product_attention(
                self.rotate(q, start), past[0], past[1], is_causal=length > 1, enable_gqa=True)
            x = x + F.linear(mixed.transpose(1, 2).reshape(batch, length, -1), layer["o"])
            gate, up = F.linear(norm(x, layer["norm2"]), layer["gate_up"]).chunk(2, dim=-1)
            x = x + F.linear(F.silu(gate) * up, layer["down"])
        return F.linear(norm(x[:, -1], self.norm), self.head).argmax(-1, keepdim=True)


def wait():
    if DEVICE == "cuda":
        torch.cuda.synchronize()


def timed(step):
    wait()
    start = time.perf_counter()
    result = step()
    wait()
    return result, time.perf_counter() - start


def row(figure, name, size, context, times):
    print(json.dumps({
        "figure": figure, "model": name, "size": size, "context": context, "by": "pytorch", "unit": "ms",
        "value": statistics.median(times) * 1e3, "samples": len(times),
    }), flush=True)


def loop(path, name, batches, context, prompts):
    config = json.load(open(path))
    decoder, context = Decoder(config), int(context)
    vocab = config["vocab_size"]
    for batch in map(int, batches.split(",")):
        # The cache holds zeros: what is read is not faster for it.
        cache, tokens = decoder.cache(batch, context + WARM_UP + STEPS), torch.randint(vocab, (batch, 1), device=DEVICE)
        times = []
        for turn in range(WARM_UP + STEPS):
            tokens, seconds = timed(lambda: decoder.forward(tokens, cache, context + turn))
            times += [seconds] if turn >= WARM_UP else []
        row("decode", name, batch, context, times)
        del cache
    for length in map(int, prompts.split(",")):
        cache, tokens = decoder.cache(1, length), torch.randint(vocab, (1, length), device=DEVICE)
        times = [timed(lambda: decoder.forward(tokens, cache, 0))[1] for _ in range(1 + PREFILLS)]
        row("prefill", name, length, 0, times[1:])


def random_model(path):
    """The shapes with random weights, and the size of the vocabulary."""
    from transformers import AutoConfig, AutoModelForCausalLM

    raw = json.load(open(path))
    # Without flash attention it is torch's own, which transformers pages by itself.
    attention = "flash_attention_2" if importlib.util.find_spec("flash_attn") and DEVICE == "cuda" else "sdpa"
    with torch.device(DEVICE):
        config = AutoConfig.for_model(**raw)
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16, attn_implementation=attention)
    return model.eval(), raw["vocab_size"]


def batching(model, given):
    """transformers' manager with the settings that it makes for such a load by itself."""
    from transformers import GenerationConfig

    settings = {}
    if importlib.util.find_spec("transformers.generation.continuous_batching.utils"):
        from transformers.generation.continuous_batching import utils

        if hints := getattr(utils, "WorkloadHints", None):
            settings["workload_hints"] = hints(given.tokens_in, given.tokens_out, given.at_once)
    if DEVICE == "cpu":
        # It would take most of the machine's memory.
        from transformers import ContinuousBatchingConfig

        settings["continuous_batching_config"] = ContinuousBatchingConfig(num_blocks=16, max_batch_tokens=64)
    # No token ends a sequence.
    generation = GenerationConfig(
        max_new_tokens=given.tokens_out, do_sample=False, eos_token_id=-1, pad_token_id=0)
    return model.init_continuous_batching(generation_config=generation, **settings)


def generate(manager, inputs, max_new_tokens, until):
    """Tokens that were generated, by when at the latest, and whether that was all."""
    manager.add_requests(inputs, max_new_tokens=max_new_tokens)
    done, tokens = 0, 0
    while done < len(inputs) and time.monotonic() < until:
        output = manager.get_result(timeout=0.5)
        if output is None:
            if not manager.is_running():
                sys.exit("transformers' generation ended before its requests did; its log says why")
            continue
        if output.error is not None:
            sys.exit(f"transformers failed a request: {output.error}")
        done, tokens = done + 1, tokens + len(output.generated_tokens)
    return tokens, done == len(inputs)


def cut_off(manager):
    """What the requests that are not finished have generated."""
    manager.stop(block=True, timeout=5, hard_stop=True)
    tokens = 0
    while (output := manager.get_result(timeout=0)) is not None:
        tokens += len(output.generated_tokens)
    return tokens


def served(*given):
    if importlib.util.find_spec("transformers") is None:
        sys.exit("transformers is not installed here")
    options = argparse.ArgumentParser()
    for name in ["config", "name"]:
        options.add_argument(name)
    for name in ["requests", "at-once", "tokens-in", "tokens-out"]:
        options.add_argument(f"--{name}", type=int, required=True)
    given = options.parse_args(given)
    model, vocab = random_model(given.config)
    # One wave: it computes as many at once as it takes, and a second would only take longer.
    inputs = torch.randint(vocab, (given.at_once, given.tokens_in), device="cpu").tolist()
    manager = batching(model, given)
    if hasattr(manager, "warmup"):
        manager.warmup()
    manager.start()
    # Other prompts, so that none of the measured ones is in its prefix cache.
    generate(manager, [tokens[::-1] for tokens in inputs[:8]], 8, float("inf"))
    start = time.monotonic()
    tokens, whole = generate(manager, inputs, given.tokens_out, deadline())
    seconds = time.monotonic() - start
    attention = model.config._attn_implementation
    if whole:
        manager.stop(block=True, timeout=5)
    else:
        tokens += cut_off(manager)
    if not tokens:
        sys.exit("nothing was generated before the time was over")
    print(json.dumps({
        "figure": "served", "model": given.name, "size": given.at_once, "context": 0, "by": "transformers",
        "unit": "tokens/s", "value": tokens / seconds, "seconds": seconds, "requests": len(inputs),
        "attention": attention, "whole": whole,
    }), flush=True)


if __name__ == "__main__":
    what, *rest = [argument for argument in sys.argv[1:] if argument != "--cpu"]
    code = 1
    try:
        {"loop": loop, "served": served}[what](*rest)
        code = 0
    except SystemExit as why:
        print(why, file=sys.stderr)
    except Exception:
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    # Without waiting for the thread in which transformers may still generate.
    os._exit(code)
