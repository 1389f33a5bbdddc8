"""What others reach on this device with the same shapes and random weights; left out by name where they are not here.

    peers.py loop CONFIG NAME BATCHES CONTEXT PROMPTS    a plain PyTorch loop: one forward a step, no engine
    peers.py served CONFIG NAME --requests N --at-once N --tokens-in N --tokens-out N
                                                         transformers' continuous batching
"""

import argparse
import importlib.util
import json
import statistics
import sys
import time

try:
    import torch
    import torch.nn.functional as F
except ImportError:
    sys.exit("PyTorch is not installed here")
if not torch.cuda.is_available():
    sys.exit("PyTorch finds no device")

WARM_UP, STEPS, PREFILLS = 3, 16, 3


class Decoder:
    """A Llama or Qwen3 with a contiguous cache, as one would write it down."""

    def __init__(self, config):
        self.heads, self.keys, self.dim = (
            config[key] for key in ["num_attention_heads", "num_key_value_heads", "head_dim"])
        self.eps, self.layers_num = config["rms_norm_eps"], config["num_hidden_layers"]
        hidden, ffn, vocab = config["hidden_size"], config["intermediate_size"], config["vocab_size"]
        matrix = lambda outs, ins: torch.randn(outs, ins, dtype=torch.bfloat16, device="cuda") * ins**-0.5
        ones = lambda width: torch.ones(width, dtype=torch.bfloat16, device="cuda")
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
        half = torch.arange(0, self.dim, 2, device="cuda").float() / self.dim
        self.frequencies = config["rope_theta"] ** -half

    def cache(self, batch, length):
        shape = (self.layers_num, 2, batch, self.keys, length, self.dim)
        return torch.zeros(shape, dtype=torch.bfloat16, device="cuda")

    def rotate(self, x, start):
        angles = torch.arange(start, start + x.shape[2], device="cuda").float()[:, None] * self.frequencies
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


def timed(step):
    torch.cuda.synchronize()
    start = time.perf_counter()
    result = step()
    torch.cuda.synchronize()
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
        cache, tokens = decoder.cache(batch, context + WARM_UP + STEPS), torch.randint(vocab, (batch, 1), device="cuda")
        times = []
        for turn in range(WARM_UP + STEPS):
            tokens, seconds = timed(lambda: decoder.forward(tokens, cache, context + turn))
            times += [seconds] if turn >= WARM_UP else []
        row("decode", name, batch, context, times)
        del cache
    for length in map(int, prompts.split(",")):
        cache, tokens = decoder.cache(1, length), torch.randint(vocab, (1, length), device="cuda")
        times = [timed(lambda: decoder.forward(tokens, cache, 0))[1] for _ in range(1 + PREFILLS)]
        row("prefill", name, length, 0, times[1:])


def served(*given):
    if importlib.util.find_spec("transformers") is None:
        sys.exit("transformers is not installed here")
    from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig

    options = argparse.ArgumentParser()
    for name in ["config", "name"]:
        options.add_argument(name)
    for name in ["requests", "at-once", "tokens-in", "tokens-out"]:
        options.add_argument(f"--{name}", type=int, required=True)
    given = options.parse_args(given)
    raw = json.load(open(given.config))
    config = AutoConfig.for_model(**raw)
    attention = "flash_attention_2" if importlib.util.find_spec("flash_attn") else "sdpa_paged"
    with torch.device("cuda"):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16, attn_implementation=attention).eval()
    # One wave: it computes as many at once as it takes, and a second would only take longer.
    count = given.at_once
    inputs = torch.randint(raw["vocab_size"], (count, given.tokens_in)).tolist()
    generation = lambda tokens: GenerationConfig(
        max_new_tokens=tokens, do_sample=False, eos_token_id=-1, pad_token_id=0)
    model.generate_batch(inputs=inputs[:8], generation_config=generation(8), progress_bar=False)
    start = time.monotonic()
    outputs = model.generate_batch(inputs=inputs, generation_config=generation(given.tokens_out), progress_bar=False)
    seconds = time.monotonic() - start
    tokens = sum(len(output.generated_tokens) for output in outputs.values())
    print(json.dumps({
        "figure": "served", "model": given.name, "size": given.at_once, "context": 0, "by": "transformers",
        "unit": "tokens/s", "value": tokens / seconds, "seconds": seconds, "requests": count, "attention": attention,
    }), flush=True)


if __name__ == "__main__":
    {"loop": loop, "served": served}[sys.argv[1]](*sys.argv[2:])
