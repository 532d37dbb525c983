"""Twenty random kill -9, each ended by resume: the parameters must equal those of an uninterrupted run, to the bit.

    python benchmarks/drill.py [--kills 20] [--method sd] [--seed 0]

Every cycle starts the command line in a process of its own, kills it at a random moment, and resumes, until the run is
finished; then it starts over with a new folder, until all kills are spent.
"""

from __future__ import annotations

import argparse
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

from anabranch.runs import RunFolder

SETTINGS = {
    "flow.rounds": 400,
    "data.points": 400,
    "semidiscrete.rounds": 300,
    "semidiscrete.local_rounds": 300,
    "semidiscrete.count": 512,
    "semidiscrete.noises": 16384,
    "semidiscrete.block": 4096,
    "potential.before": 200,
    "evaluation.points": 256,
    "run.threads": 1,
    "run.checkpoint_every": 25,
}


def command(*words: str) -> subprocess.Popen[bytes]:
    """The command line in a process of its own."""
    line = [sys.executable, "-m", "anabranch", *words]
    return subprocess.Popen(line, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)


def start(folder: Path, method: str) -> subprocess.Popen[bytes]:
    """A new run."""
    changes = [word for key, value in SETTINGS.items() for word in ("--set", f"{key}={value}")]
    return command("train", "ffm-2d", "--method", method, "--out", str(folder), *changes)


def finish(process: subprocess.Popen[bytes]) -> None:
    """Waits for a process that must succeed."""
    _, error = process.communicate()
    if process.returncode:
        raise SystemExit(f"The command failed with {process.returncode}: {error.decode()[-2000:]}")


def parameters(folder: Path) -> dict[str, torch.Tensor]:
    """The server's whole state at the end of a run."""
    checkpoint, warnings = RunFolder(folder).load_checkpoint()
    if checkpoint is None or warnings:
        raise SystemExit(f"{folder} has no sound checkpoint: {warnings}")
    return checkpoint.state


def main() -> None:
    """Runs the drill and says what happened."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--method", default="sd")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    dice = random.Random(options.seed)
    with tempfile.TemporaryDirectory() as scratch:
        started = time.monotonic()
        finish(start(Path(scratch) / "whole", options.method))
        duration = time.monotonic() - started
        wanted = parameters(Path(scratch) / "whole")
        kills, runs = 0, 0
        while kills < options.kills:
            folder, runs = Path(scratch) / f"run-{runs}", runs + 1
            process = start(folder, options.method)
            while True:
                try:
                    # Importing takes a second or two; then any moment, evaluation included.
                    process.wait(timeout=dice.uniform(0.5, 0.6 * duration) if kills < options.kills else None)
                    finish(process)
                    break
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()
                    kills += 1
                    rounds = RunFolder(folder).checkpoints()
                    print(f"kill {kills}: last checkpoint {rounds[-1] if rounds else 'none'}", flush=True)
                    begun = (folder / "config.json").exists()
                    process = command("resume", str(folder)) if begun else start(folder, options.method)
            found = parameters(folder)
            equal = found.keys() == wanted.keys() and all(torch.equal(found[k], wanted[k]) for k in wanted)
            print(f"run {runs}: parameters {'bit-equal' if equal else 'DIFFER'}", flush=True)
            if not equal:
                raise SystemExit("The resumed run differs from the uninterrupted one.")
    print(f"{kills} kills in {runs} runs of {options.method}: every resumed run ended bit-equal.")


if __name__ == "__main__":
    main()
