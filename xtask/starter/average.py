"""Averages the weights of model folders: python average.py --out DIR DIR=0.5 DIR=0.3 DIR=0.2

It pays for checkpoints that share an ancestor (of one run, or before and after a fine-tuning), and costs no training.
The other files are those of the first folder.
"""

import argparse
import pathlib
import shutil

import torch
from safetensors.torch import load_file, save_file


def part(text):
    folder, share = text.rsplit("=", 1)
    return pathlib.Path(folder), float(share)


def main():
    args = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    args.add_argument("--out", type=pathlib.Path, required=True)
    args.add_argument("parts", type=part, nargs="+", help="FOLDER=SHARE; the shares add up to 1")
    args = args.parse_args()
    if abs(sum(share for _, share in args.parts) - 1) > 1e-6:
        raise SystemExit("the shares do not add up to 1")
    total = {}
    for folder, share in args.parts:
        for name, weights in load_file(folder / "model.safetensors").items():
            total[name] = share * weights.float() + total.get(name, 0)
    args.out.mkdir(parents=True, exist_ok=True)
    for path in args.parts[0][0].iterdir():
        if path.name != "model.safetensors":
            shutil.copyfile(path, args.out / path.name)
    weights = {name: weight.to(torch.bfloat16) for name, weight in total.items()}
    save_file(weights, args.out / "model.safetensors", metadata={"format": "pt"})


if __name__ == "__main__":
    main()
