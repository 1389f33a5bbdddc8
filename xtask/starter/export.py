"""Writes the current state of a run as a model folder: python export.py --state FILE --tokenizer DIR --out DIR"""

import argparse
import pathlib
import shutil

import torch

import train


def main():
    args = argparse.ArgumentParser(description=__doc__)
    args.add_argument("--state", type=pathlib.Path, required=True)
    args.add_argument("--tokenizer", type=pathlib.Path, required=True, help="folder with the tokenizer's files")
    args.add_argument("--out", type=pathlib.Path, required=True)
    args = args.parse_args()
    state = torch.load(args.state, map_location="cpu")
    args.out.mkdir(parents=True, exist_ok=True)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        if (args.tokenizer / name).resolve() != (args.out / name).resolve():
            shutil.copyfile(args.tokenizer / name, args.out / name)
    train.export(state["model"], train.build(state["vocab"], state["layers"]).config, args.out)
    print(f"{args.out}: step {state['step']}, {state['seen'] / 1e6:.1f} M tokens")


if __name__ == "__main__":
    main()
