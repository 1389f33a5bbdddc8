#!/usr/bin/env python3
"""Times our CPU engine and llama.cpp on the same model, in the same run, in turns.

The model has the shape of Qwen2.5-0.5B with all of its vocabulary (494 M parameters, bf16, tied embeddings) and
random weights. llama.cpp comes from PyPI's `llama-cpp-python`, which compiles it for this machine:

    python -m venv VENV && CMAKE_ARGS=-DGGML_NATIVE=ON VENV/bin/pip install llama-cpp-python gguf numpy
    VENV/bin/python llama_peer.py make MODEL.gguf
    VENV/bin/python llama_peer.py compare MODEL.gguf OURS --threads 1 2 --rounds 3

OURS is the built example `cpu_bench` of `tidegate-device`. llama.cpp runs as its best setting for this case: flash
attention on, weights read into memory in huge pages rather than mapped. One thread is compared by the CPU time of
the computing thread (another job on the machine hardly changes it), more threads by the wall. Each cell is the
median over the rounds; ratio is ours over llama.cpp's.

`--json` prints the same as JSON, too. Exit status 0 whatever the figures: a benchmark, not a test.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time

LAYERS, HEADS, KV_HEADS, HIDDEN, FFN, VOCAB = 24, 14, 2, 896, 4864, 151936
HEAD_DIM = HIDDEN // HEADS
CONTEXT, STEPS, REPEATS = 128, 32, 3
WHATS = ["decode1", "decode4", "decode8", "decode16", "prefill512"]


def make(path):
    """Writes the model as GGUF."""
    import gguf
    import numpy as np

    rng = np.random.default_rng(1)
    writer = gguf.GGUFWriter(path, "qwen2")
    writer.add_context_length(4096)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(FFN)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_freq_base(10000.0)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_BF16)
    writer.add_vocab_size(VOCAB)
    writer.add_tokenizer_model("no_vocab")

    def matrix(name, rows, cols):
        values = rng.uniform(-1, 1, (rows, cols)).astype(np.float32) * (3 / cols) ** 0.5
        raw = gguf.quants.quantize(values, gguf.GGMLQuantizationType.BF16)
        writer.add_tensor(name, raw, raw_dtype=gguf.GGMLQuantizationType.BF16)

    def vector(name, count, mean, spread):
        writer.add_tensor(name, (mean + spread * rng.uniform(-1, 1, count)).astype(np.float32))

    matrix("token_embd.weight", VOCAB, HIDDEN)
    vector("output_norm.weight", HIDDEN, 1, 0.2)
    for i in range(LAYERS):
        for name in ("attn_norm", "ffn_norm"):
            vector(f"blk.{i}.{name}.weight", HIDDEN, 1, 0.2)
        for name, rows in (("q", HIDDEN), ("k", KV_HEADS * HEAD_DIM), ("v", KV_HEADS * HEAD_DIM)):
            matrix(f"blk.{i}.attn_{name}.weight", rows, HIDDEN)
            vector(f"blk.{i}.attn_{name}.bias", rows, 0, 0.5)
        matrix(f"blk.{i}.attn_output.weight", HIDDEN, HIDDEN)
        matrix(f"blk.{i}.ffn_gate.weight", FFN, HIDDEN)
        matrix(f"blk.{i}.ffn_up.weight", FFN, HIDDEN)
        matrix(f"blk.{i}.ffn_down.weight", HIDDEN, FFN)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


class Llama:
    """llama.cpp through its C interface: no sampling, no tokenizer, as in its own llama-bench."""

    def __init__(self, path, threads):
        import llama_cpp

        self.api = llama_cpp
        llama_cpp.llama_backend_init()
        model_params = llama_cpp.llama_model_default_params()
        if hasattr(model_params, "load_mode"):
            model_params.load_mode = llama_cpp.LLAMA_LOAD_MODE_NONE
        else:
            model_params.use_mmap = False
        self.model = llama_cpp.llama_model_load_from_file(path.encode(), model_params)
        params = llama_cpp.llama_context_default_params()
        params.n_ctx = 16 * 1024
        params.n_batch = params.n_ubatch = 512
        params.n_seq_max = 16
        params.n_threads = params.n_threads_batch = threads
        params.flash_attn_type = llama_cpp.LLAMA_FLASH_ATTN_TYPE_ENABLED
        self.context = llama_cpp.llama_init_from_model(self.model, params)
        self.batch = llama_cpp.llama_batch_init(512, 0, 1)
        self.random = 1

    def clear(self):
        self.api.llama_memory_clear(self.api.llama_get_memory(self.context), True)

    def run(self, rows):
        """Computes rows of (sequence, position, wants logits)."""
        for i, (seq, pos, logits) in enumerate(rows):
            self.random = (self.random * 1103515245 + 12345) % 2**31
            self.batch.token[i] = self.random % VOCAB
            self.batch.pos[i] = pos
            self.batch.n_seq_id[i] = 1
            self.batch.seq_id[i][0] = seq
            self.batch.logits[i] = logits
        self.batch.n_tokens = len(rows)
        status = self.api.llama_decode(self.context, self.batch)
        if status != 0:
            raise RuntimeError(f"llama_decode returned {status}")
        self.api.llama_synchronize(self.context)

    def prompt(self, seq, length):
        self.run([(seq, pos, pos == length - 1) for pos in range(length)])

    def measure(self, what):
        """Tokens a second by the wall and by the CPU time of this thread, after a prompt that is not counted."""
        times = []
        self.clear()
        self.prompt(0, CONTEXT)
        for _ in range(REPEATS):
            self.clear()
            if what.startswith("decode"):
                batch = int(what.removeprefix("decode"))
                for seq in range(batch):
                    self.prompt(seq, CONTEXT)
                start = time.perf_counter(), time.thread_time()
                for step in range(STEPS):
                    self.run([(seq, CONTEXT + step, True) for seq in range(batch)])
                tokens = batch * STEPS
            else:
                tokens = int(what.removeprefix("prefill"))
                start = time.perf_counter(), time.thread_time()
                self.prompt(0, tokens)
            times.append((time.perf_counter() - start[0], time.thread_time() - start[1]))
        wall = statistics.median(t[0] for t in times)
        cpu = statistics.median(t[1] for t in times)
        return {"what": what, "wall": tokens / wall, "cpu": tokens / cpu}


def measure_llama(path, threads, whats):
    """One line of JSON for each measurement; the body of the child process."""
    llama = Llama(path, threads)
    for what in whats:
        print(json.dumps(llama.measure(what)), flush=True)


def lines(command, env=None):
    out = subprocess.run(command, env=env, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    rows = [json.loads(line) for line in out.stdout.splitlines() if line.startswith("{")]
    return {row["what"]: row for row in rows}


def compare(args):
    env = dict(os.environ, GLIBC_TUNABLES="glibc.malloc.hugetlb=1", OMP_WAIT_POLICY="active")
    results = []
    for threads in args.threads:
        clock = "cpu" if threads == 1 else "wall"
        ours, theirs = [], []
        for _ in range(args.rounds):
            child = [sys.executable, os.path.abspath(__file__), "llama", args.gguf, str(threads), *args.what]
            theirs.append(lines(child, env))
            ours.append(lines([args.ours, str(threads), "auto", ",".join(args.what)]))
        for what in args.what:
            a = statistics.median(r[what][clock] for r in ours)
            b = statistics.median(r[what][clock] for r in theirs)
            results.append({"what": what, "threads": threads, "clock": clock, "ours": a, "llama": b, "ratio": a / b})
    print(f"{'':12} {'threads':>7} {'clock':>5} {'ours t/s':>9} {'llama.cpp':>9} {'ratio':>6}")
    for r in results:
        numbers = f"{r['ours']:>9.1f} {r['llama']:>9.1f} {r['ratio']:>6.2f}"
        print(f"{r['what']:12} {r['threads']:>7} {r['clock']:>5} {numbers}")
    if args.json:
        print(json.dumps(results, indent=2))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    maker = commands.add_parser("make", help="write the model")
    maker.add_argument("gguf")
    comparer = commands.add_parser("compare", help="time both")
    comparer.add_argument("gguf")
    comparer.add_argument("ours", help="the built example cpu_bench")
    comparer.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    comparer.add_argument("--rounds", type=int, default=3)
    comparer.add_argument("--what", nargs="+", default=WHATS)
    comparer.add_argument("--json", action="store_true", help="print that, too")
    child = commands.add_parser("llama", help="time llama.cpp alone")
    child.add_argument("gguf")
    child.add_argument("threads", type=int)
    child.add_argument("what", nargs="+")
    args = parser.parse_args()
    if args.command == "make":
        make(args.gguf)
    elif args.command == "compare":
        compare(args)
    else:
        measure_llama(args.gguf, args.threads, args.what)


if __name__ == "__main__":
    main()
