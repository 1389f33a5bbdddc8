"""The forward pass for training: what LlamaForCausalLM computes, and faster.

One thread of a Zen 4 core gives 2,400 tokens/s with the model of transformers and 4,500 with this in bf16 with fp32
sums. Not every CPU that has bf16 is faster with it (a virtual Xeon with AVX512-BF16: 1,700 against 2,800 tokens a second
of CPU in fp32), so `fastest` tries both. What it does beside that:
everything between two matrix products is one compiled loop; a layer has one product for q, k and v and one for gate
and up; attention in bf16 is plain products over (rows, heads), because dialogues are short and the fused kernel's backward
pass is slow in bf16 on a CPU, with torch's own softmax between them, because the compiled one is slower; and the last
layer's feed-forward part sees only the positions that have to be predicted.
`python forward.py --model DIR` compares it with transformers.
"""

import argparse
import time

import torch
import torch.nn.functional as F

import pools

dtype = torch.bfloat16  # of the matrix products
CHUNK = 128  # queries that are computed together


def seconds(kind):
    """CPU time of some products as large as the model's."""
    a, b = torch.randn(4096, 256).to(kind), torch.randn(1408, 256).to(kind)
    a @ b.T
    begin = time.process_time()
    for _ in range(3):
        (a @ b.T).T @ a
    return time.process_time() - begin


def fastest():
    """The type in which this machine multiplies fastest."""
    if not torch.cpu._is_avx512_bf16_supported():
        return torch.float32
    return min(torch.bfloat16, torch.float32, key=seconds)


def normed(x, weight, eps):
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * weight


def rotated(x, cos, sin):
    """Halves of a head in turn, without joining them: a compiled loop over a joined tensor is not vectorized."""
    halves = x.unflatten(-1, (2, -1))
    return (halves * cos[..., None, :] + halves.flip(-2) * sin).flatten(-2)


def _before(x, norm, weight, cos, sin, shape, eps):
    """Queries, keys and values (tokens, heads, 64) of the residual stream (tokens, hidden)."""
    heads, kv_heads, size = shape
    joined = (normed(x, norm, eps).to(dtype) @ weight.to(dtype).T).view(-1, heads + 2 * kv_heads, size).float()
    q, k, v = joined.split([heads, kv_heads, kv_heads], 1)
    cos, sin = cos[:, None], torch.stack([-sin, sin], 1)[:, None]
    return rotated(q, cos, sin).to(dtype), rotated(k, cos, sin).to(dtype), v.to(dtype)


def _after(x, attended, out, norm, gate_up, down, eps):
    x = x + (attended @ out.to(dtype).T).float()
    gate, up = (normed(x, norm, eps).to(dtype) @ gate_up.to(dtype).T).chunk(2, -1)
    return x + ((F.silu(gate.float()) * up.float()).to(dtype) @ down.to(dtype).T).float()


class Attention(torch.autograd.Function):
    """Causal attention over (batch, group, width, size) queries and (batch, width, size) keys and values.

    The queries go in chunks, each with the keys up to its end, so that most of what no query may see is never computed.
    """

    @staticmethod
    def forward(ctx, q, k, v):
        batch, group, width, size = q.shape
        ctx.scale, ctx.kept, out = size**-0.5, [], torch.empty_like(q)
        for begin in range(0, width, CHUNK):
            end = min(begin + CHUNK, width)
            hidden = torch.full((end - begin, end), -1e30, dtype=dtype).triu(begin + 1).repeat(group, 1)
            part = q[:, :, begin:end].reshape(batch, -1, size)
            shares = torch.softmax(torch.baddbmm(hidden, part, k[:, :end].mT, alpha=ctx.scale), -1)
            out[:, :, begin:end] = torch.bmm(shares, v[:, :end]).view(batch, group, -1, size)
            ctx.kept.append((begin, end, part, shares))
        ctx.save_for_backward(k, v)
        return out

    @staticmethod
    def backward(ctx, grad):
        k, v = ctx.saved_tensors
        batch, group, _, size = grad.shape
        to_q, to_k, to_v = torch.empty_like(grad), torch.zeros_like(k), torch.zeros_like(v)
        for begin, end, part, shares in reversed(ctx.kept):
            moved = grad[:, :, begin:end].reshape(batch, -1, size)
            to_v[:, :end].baddbmm_(shares.mT, moved)
            scores = torch._softmax_backward_data(torch.bmm(moved, v[:, :end].mT), shares, -1, dtype)
            to_q[:, :, begin:end] = (torch.bmm(scores, k[:, :end]) * ctx.scale).view(batch, group, -1, size)
            to_k[:, :end].baddbmm_(scores.mT, part, alpha=ctx.scale)
        ctx.kept = None
        return to_q, to_k, to_v


@torch.compile
def _log_sums(logits):
    return torch.logsumexp(logits.float(), -1)


@torch.compile
def _shares(logits, sums, counts):
    return (torch.exp(logits.float() - sums[:, None]) * counts[:, None]).to(logits.dtype)


class CrossEntropy(torch.autograd.Function):
    """The sum of the losses, each times its count; torch's own kernels for it took a sixth of a step."""

    @staticmethod
    def forward(ctx, logits, wanted, counts):
        sums = _log_sums(logits)
        losses = sums - logits.gather(-1, wanted[:, None])[:, 0].float()
        ctx.save_for_backward(logits, wanted, counts, sums, losses)
        return (losses * counts).sum()

    @staticmethod
    def backward(ctx, grad):
        logits, wanted, counts, sums, losses = ctx.saved_tensors
        counts = counts * grad
        out = _shares(logits, sums, counts)
        out.scatter_(-1, wanted[:, None], (torch.expm1(-losses) * counts).to(out.dtype)[:, None])
        return out, None, None


class Forward:
    def __init__(self, model):
        config = self.config = model.config
        self.model = model
        self.shape = (config.num_attention_heads, config.num_key_value_heads, config.head_dim)
        self.before, self.after = torch.compile(_before), torch.compile(_after)
        theta, size = config.rope_parameters["rope_theta"], config.head_dim
        angles = torch.outer(torch.arange(config.max_position_embeddings).float(),
                             1 / theta ** (torch.arange(0, size, 2) / size))
        self.cos, self.sin = angles.cos().to(model.device), angles.sin().to(model.device)

    def attend(self, q, k, v, rows, width, mask):
        heads, kv_heads, size = self.shape
        group = heads // kv_heads
        # In fp32 two to three times as fast as the products below.
        if q.is_cuda or dtype == torch.float32 or mask is not None:
            q, k, v = (t.view(rows, width, -1, size).transpose(1, 2) for t in (q, k, v))
            k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
            out = F.scaled_dot_product_attention(q, k, v, mask, is_causal=mask is None)
            return out.transpose(1, 2).reshape(rows * width, -1)
        q = q.view(rows, width, kv_heads, group, size).permute(0, 2, 3, 1, 4).reshape(-1, group, width, size)
        k, v = (t.view(rows, width, kv_heads, size).transpose(1, 2).reshape(-1, width, size) for t in (k, v))
        out = Attention.apply(q, k, v)
        return out.view(rows, kv_heads, group, width, size).permute(0, 3, 1, 2, 4).reshape(rows * width, -1)

    def logits(self, ids, places, positions=None, branches=None):
        """Of the token after each of `places`, which are positions in the flattened ids."""
        (rows, width), model, eps = ids.shape, self.model.model, self.config.rms_norm_eps
        x = F.embedding(ids.reshape(-1), model.embed_tokens.weight)
        positions = torch.arange(width, device=x.device).repeat(rows) if positions is None else positions.flatten()
        cos, sin = self.cos[positions], self.sin[positions]
        mask = None
        if branches is not None:
            mask = torch.zeros(1, dtype=dtype, device=x.device).where(pools.seen(branches), -torch.inf)
        for layer in model.layers:
            part, mlp = layer.self_attn, layer.mlp
            joined = torch.cat([part.q_proj.weight, part.k_proj.weight, part.v_proj.weight])
            q, k, v = self.before(x, layer.input_layernorm.weight, joined, cos, sin, self.shape, eps)
            attended = self.attend(q, k, v, rows, width, mask)
            if layer is model.layers[-1]:
                x, attended = x.index_select(0, places), attended.index_select(0, places)
            gate_up = torch.cat([mlp.gate_proj.weight, mlp.up_proj.weight])
            x = self.after(x, attended, part.o_proj.weight, layer.post_attention_layernorm.weight, gate_up,
                           mlp.down_proj.weight, eps)
        x = normed(x, model.norm.weight, eps).to(dtype)
        return x @ self.model.lm_head.weight.to(dtype).T


def main():
    from transformers import LlamaForCausalLM

    args = argparse.ArgumentParser(description="Compares the logits with those of transformers.")
    args.add_argument("--model", required=True)
    model = LlamaForCausalLM.from_pretrained(args.parse_args().model, dtype=torch.float32)
    ids = torch.randint(5, model.config.vocab_size, (3, 50), generator=torch.Generator().manual_seed(1))
    places = torch.arange(0, ids.numel(), 3)
    with torch.no_grad():
        wanted = model(ids).logits.flatten(0, 1)[places]
        got = Forward(model).logits(ids, places).float()
    print(f"largest difference {(got - wanted).abs().max():.3f} in logits up to {wanted.abs().max():.1f}")


if __name__ == "__main__":
    main()
