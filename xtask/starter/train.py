"""Trains the starter model on dialogues that are written while it runs.

    python train.py --model MODEL_DIR --state FILE --minutes 120                     # this machine, one thread
    python train.py --model MODEL_DIR --state FILE --tokens 400M --device cuda --batch 32768 --accumulate 1 --workers 8

MODEL_DIR holds the tokenizer; at the end the weights are written beside it (bf16 safetensors, config). The budget is
time, tokens, or whichever of both is used up first; the mix of dialogues and the learning rate follow the part of the
budget that is used (`progress`, 0 to 1). The rate warms up, stays, and falls to nothing in the last `--decay` part.

The state file has everything needed to go on with --resume; it is replaced as a whole, so a killed run loses at most
`--save` minutes. Only what the assistant says counts in the loss. Matrices learn with Muon, the rest with AdamW.
"""

import argparse
import datetime
import json
import os
import pathlib
import signal
import time

import torch
from tokenizers import Tokenizer
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM

import forward
import pools
from muon import Muon

SPACE = "\u0120"  # how byte-level tokens write a space
RESUME_STEPS = 20  # the optimizers' buffers come with the state, so a shorter one is enough


def build(vocab, layers):
    config = LlamaConfig(
        vocab_size=vocab, hidden_size=256, intermediate_size=704, num_hidden_layers=layers,
        num_attention_heads=4, num_key_value_heads=2, head_dim=64, max_position_embeddings=pools.CONTEXT,
        rope_theta=10000.0, rms_norm_eps=1e-5, tie_word_embeddings=True,
        bos_token_id=None, eos_token_id=2, pad_token_id=0,
    )
    return LlamaForCausalLM(config)


def optimizers_of(model, lr):
    matrices = [p for n, p in model.named_parameters() if p.ndim == 2 and "embed" not in n]
    others = [p for n, p in model.named_parameters() if p.ndim != 2 or "embed" in n]
    return [
        Muon(matrices, lr=lr),
        torch.optim.AdamW(others, lr=lr, betas=(0.9, 0.95), weight_decay=0.0, fused=True),
    ]


def loss_of(logits, device, ids, counts, positions, branches):
    """The mean loss of a batch (on the CPU), each token weighted by how much it counts."""
    weights, wanted = counts[:, 1:].flatten(), ids[:, 1:].flatten()
    places = weights.nonzero()[:, 0]  # logits only where they are needed; of a GPU this would have to be waited for
    wanted, weights = wanted[places].long(), weights[places] / weights.sum()
    read = [None if part is None else moved(part[:, :-1], device).long() for part in (ids, positions, branches)]
    places, wanted, weights = (moved(part, device) for part in (places, wanted, weights))
    return forward.CrossEntropy.apply(logits(read[0], places, *read[1:]), wanted, weights)


def moved(part, device):
    """On the device, without waiting for it."""
    return part if device.type == "cpu" else part.contiguous().pin_memory().to(device, non_blocking=True)


def start_from(model, folder, tokenizer):
    """Takes over the weights of a model folder, whose tokenizer may be another one.

    A token that both have keeps its embedding, a new one gets that of the same word after a space, or else the mean
    of its pieces. That is enough: the matrices adapt within a million tokens.
    """
    weights = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32).state_dict()
    before = Tokenizer.from_file(str(folder / "tokenizer.json"))
    known, embeddings = before.get_vocab(), weights["model.embed_tokens.weight"]
    rows = []
    for token in range(tokenizer.get_vocab_size()):
        text = tokenizer.id_to_token(token)
        same = known.get(text, known.get(SPACE + text))
        plain = tokenizer.decode([token], skip_special_tokens=False)
        rows.append(embeddings[[same] if same is not None else before.encode(plain).ids].mean(0))
    weights["model.embed_tokens.weight"] = weights["lm_head.weight"] = torch.stack(rows)
    model.load_state_dict(weights)


def export(weights, config, path):
    """Writes a folder that Hugging Face readers, and Tidegate, can load."""
    copy = LlamaForCausalLM(config).to(torch.bfloat16)
    copy.load_state_dict(weights)
    copy.config.dtype = torch.bfloat16
    copy.generation_config = GenerationConfig(
        eos_token_id=config.eos_token_id, pad_token_id=config.pad_token_id, do_sample=False, max_new_tokens=200)
    copy.save_pretrained(path)
    (path / "model.safetensors").chmod(0o644)  # it is written for the owner only
    # Most readers look for rope_theta at the top level.
    written = json.loads((path / "config.json").read_text())
    written["rope_theta"] = config.rope_parameters["rope_theta"]
    (path / "config.json").write_text(json.dumps(written, indent=2) + "\n")


class Run:
    """The model, its optimizers, and how far the run has come."""

    def __init__(self, args, tokenizer):
        self.args, self.device = args, torch.device(args.device)
        torch.manual_seed(args.seed)
        self.model = build(tokenizer.get_vocab_size(), args.layers).to(self.device)
        if self.device.type == "cpu":
            forward.dtype = forward.fastest()
        print(f"products in {forward.dtype}", flush=True)
        self.logits = forward.Forward(self.model).logits
        self.optimizers = optimizers_of(self.model, args.lr)
        self.step, self.seen, self.pool, self.spent = 0, 0, 0, 0.0
        self.warm_from, self.warm_steps, self.stopped = 0, args.warm_up, False
        if args.resume:
            self.load()
        elif args.init:
            start_from(self.model, args.init, tokenizer)
        self.begin = time.time() - self.spent
        if args.until:
            args.minutes = self.spent / 60 + minutes_until(args.until)

    def load(self):
        state = torch.load(self.args.state, map_location=self.device)
        self.model.load_state_dict(state["model"])
        for optimizer, saved in zip(self.optimizers, state["optimizers"]):
            optimizer.load_state_dict(saved)
        for key in ("step", "seen", "pool", "spent"):
            setattr(self, key, state[key])
        self.warm_from, self.warm_steps = self.step, RESUME_STEPS

    def save(self):
        state = {
            "model": self.model.state_dict(), "optimizers": [o.state_dict() for o in self.optimizers],
            "step": self.step, "seen": self.seen, "pool": self.pool, "spent": time.time() - self.begin,
            "layers": self.args.layers, "vocab": self.model.config.vocab_size,
        }
        beside = f"{self.args.state}.new"
        torch.save(state, beside)
        os.replace(beside, self.args.state)

    def progress(self):
        """The part of the budget that is used, 0 to 1."""
        parts = [0.0]
        if self.args.minutes:
            parts.append((time.time() - self.begin) / (60 * self.args.minutes))
        if self.args.tokens:
            parts.append(self.seen / self.args.tokens)
        return min(1.0, max(parts))

    def rate(self, progress):
        """The share of the full learning rate: up, constant, down."""
        up = (self.step - self.warm_from + 1) / self.warm_steps
        down = (1 - progress) / self.args.decay if self.args.decay else 1.0
        return min(1.0, up, max(0.01, down))

    def learn(self, batches, progress):
        """One step with the mean gradient of some batches; returns the mean loss."""
        loss = 0.0
        for batch in batches:
            part = loss_of(self.logits, self.device, *batch) / len(batches)
            part.backward()
            loss += part.detach()
            self.seen += batch[0].numel()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        scale = self.rate(progress)
        for optimizer, share in zip(self.optimizers, (1.0, 0.5)):
            for group in optimizer.param_groups:
                group["lr"] = self.args.lr * scale * share
            optimizer.step()
            optimizer.zero_grad()
        self.step += 1
        return loss


def together(batches, count):
    """Lists of `count` batches; what is left over in the end is left out."""
    return zip(*[iter(batches)] * count)


def train(run, source):
    """Learns until the budget is used up or the run is told to stop; the state is written in both cases."""
    args, losses, saved = run.args, [], time.time()
    shown = (time.time(), run.seen)
    signal.signal(signal.SIGTERM, lambda *_: setattr(run, "stopped", True))
    while run.progress() < 1 and not run.stopped:
        run.pool += 1
        mix = args.mix_from + (1 - args.mix_from) * run.progress()
        for batches in together(source.batches(run.pool, mix), args.accumulate):
            progress = run.progress()
            losses.append(run.learn(batches, progress))
            if len(losses) == args.show:
                speed = (run.seen - shown[1]) / (time.time() - shown[0])
                loss = torch.stack(losses).mean()
                print(f"{progress:6.1%} step {run.step} tokens {run.seen / 1e6:.2f} M loss {loss:.4f} "
                      f"rate {run.rate(progress):.2f} tokens/s {speed:.0f}", flush=True)
                losses, shown = [], (time.time(), run.seen)
            if time.time() - saved > 60 * args.save:
                run.save()
                saved = time.time()
            if progress >= 1 or run.stopped:
                break
    run.save()


def minutes_until(clock):
    """Minutes from now to the next HH:MM of the local clock."""
    now = datetime.datetime.now()
    hour, minute = map(int, clock.split(":"))
    then = now.replace(hour=hour, minute=minute, second=0, microsecond=0)
    if then <= now:
        then += datetime.timedelta(days=1)
    return (then - now).total_seconds() / 60


def count(text):
    """A number such as 400M or 65536."""
    scale = {"K": 10**3, "M": 10**6, "G": 10**9}.get(text[-1].upper(), 1)
    return int(float(text.rstrip("KMGkmg")) * scale)


def arguments():
    args = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    args.add_argument("--model", type=pathlib.Path, required=True, help="folder of the tokenizer and the weights")
    args.add_argument("--state", type=pathlib.Path, required=True, help="file for the full-precision state")
    args.add_argument("--init", type=pathlib.Path, help="start from the weights of this model folder")
    args.add_argument("--resume", action="store_true", help="go on from the state file")
    args.add_argument("--minutes", type=float, help="budget of time, earlier runs of this state included")
    args.add_argument("--until", help="budget of time: run until this HH:MM")
    args.add_argument("--tokens", type=count, help="budget of tokens, e.g. 400M")
    args.add_argument("--mix-from", type=float, default=0.0, help="the progress that the mix of dialogues begins with")
    args.add_argument("--decay", type=float, default=0.4, help="part of the budget in which the learning rate falls")
    args.add_argument("--warm-up", type=int, default=100, help="steps in which the learning rate rises")
    args.add_argument("--device", default="cpu", help="cpu or cuda")
    args.add_argument("--threads", type=int, default=1, help="threads of the CPU; two that meet in every operator lose")
    args.add_argument("--workers", type=int, default=0, help="processes that write dialogues; 0: the trainer does it")
    args.add_argument("--batch", type=count, default=4096, help="tokens in a batch, padding included")
    args.add_argument("--accumulate", type=int, default=2, help="batches for one step; small ones fit a CPU's caches")
    args.add_argument("--layers", type=int, default=8)
    args.add_argument("--lr", type=float, default=5e-3, help="for the matrices; half of it for embeddings and norms")
    args.add_argument("--save", type=float, default=10, help="minutes between two writes of the state")
    args.add_argument("--show", type=int, default=50, help="steps between two lines of progress")
    args.add_argument("--seed", type=int, default=1)
    args = args.parse_args()
    if not (args.minutes or args.until or args.tokens):
        raise SystemExit("a budget is missing: --minutes, --until or --tokens")
    return args


def main():
    args = arguments()
    torch.set_num_threads(args.threads)
    torch.set_float32_matmul_precision("high")
    tokenizer_file = args.model / "tokenizer.json"
    run = Run(args, Tokenizer.from_file(str(tokenizer_file)))
    with pools.Source(tokenizer_file, args.seed, args.workers, args.batch) as source:
        train(run, source)
    if run.stopped:
        raise SystemExit("stopped; go on with --resume")
    export({k: v.cpu() for k, v in run.model.state_dict().items()}, run.model.config, args.model)
    print(f"{run.step} steps, {run.seen / 1e6:.1f} M tokens, {(time.time() - run.begin) / 60:.1f} minutes", flush=True)


if __name__ == "__main__":
    main()
