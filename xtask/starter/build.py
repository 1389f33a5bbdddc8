"""One run from nothing: tokenizer, training, model folder, evaluation.

    python build.py --work DIR --tokens 600M --device cuda --batch 32768 --accumulate 1 --workers 12

DIR/model is the result and DIR/eval.md its figures. The run can be stopped and started again with the same command:
a tokenizer that is there is kept, and a state that is there is resumed. Other options go to train.py.
"""

import argparse
import pathlib
import subprocess
import sys

HERE = pathlib.Path(__file__).parent


def run(script, *options):
    subprocess.run([sys.executable, HERE / script, *map(str, options)], check=True)


def main():
    args = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    args.add_argument("--work", type=pathlib.Path, required=True, help="folder outside the repository")
    args.add_argument("--device", default="cpu", help="cpu or cuda")
    args.add_argument("--per", type=int, default=200, help="prompts for each row of the evaluation")
    args, training = args.parse_known_args()
    model, state = args.work / "model", args.work / "state.pt"
    if not (model / "tokenizer.json").exists():
        run("tokenizer.py", "--out", model)
    resume = ["--resume"] if state.exists() else []
    run("train.py", "--model", model, "--state", state, "--device", args.device, *resume, *training)
    run("eval.py", "--model", model, "--device", args.device, "--per", args.per,
        "--out", args.work / "eval.md", "--failures", args.work / "failures.txt")


if __name__ == "__main__":
    main()
