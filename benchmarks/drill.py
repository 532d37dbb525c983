"""Twenty random kill -9, each ended by resume: the parameters must equal those of an uninterrupted run, to the bit.

    python benchmarks/drill.py [--kills 20] [--method sd] [--seed 0]

Every cycle starts the command line in a process of its own and kills it a moment after it has passed a random round, so
that every phase is hit; then it resumes. A finished run is compared, and a new one begun, until all kills are spent.
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
    "run.log_every": 1,
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


def last_round(folder: Path) -> int:
    """How far the run in the folder has got."""
    records = RunFolder(folder).metrics()
    return records[-1]["round"] if records else 0


def outlives(process: subprocess.Popen[bytes], folder: Path, target: int, grace: float) -> bool:
    """Waits until the run has passed the target round and `grace` seconds more; False when it ended before."""
    while last_round(folder) < target:
        if process.poll() is not None:
            return False
        time.sleep(0.02)
    try:
        process.wait(timeout=grace)
    except subprocess.TimeoutExpired:
        return True
    return False


def main() -> None:
    """Runs the drill and says what happened."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--method", default="sd")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    dice = random.Random(options.seed)
    with tempfile.TemporaryDirectory() as scratch:
        finish(start(Path(scratch) / "whole", options.method))
        wanted, total = parameters(Path(scratch) / "whole"), last_round(Path(scratch) / "whole")
        kills, runs = 0, 0
        while kills < options.kills:
            folder, runs = Path(scratch) / f"run-{runs}", runs + 1
            process = start(folder, options.method)
            while kills < options.kills and (now := last_round(folder)) < total:
                # The last round may be drawn too: that kill hits the evaluation.
                if not outlives(process, folder, dice.randint(now, total), dice.uniform(0, 0.05)):
                    break
                process.kill()
                process.wait()
                kills += 1
                rounds = RunFolder(folder).checkpoints()
                print(f"kill {kills}: at round {last_round(folder)}, saved {rounds[-1] if rounds else 0}", flush=True)
                begun = (folder / "config.json").exists()
                process = command("resume", str(folder)) if begun else start(folder, options.method)
            finish(process)
            found = parameters(folder)
            equal = found.keys() == wanted.keys() and all(torch.equal(found[k], wanted[k]) for k in wanted)
            print(f"run {runs}: parameters {'bit-equal' if equal else 'DIFFER'}", flush=True)
            if not equal:
                raise SystemExit("The resumed run differs from the uninterrupted one.")
    print(f"{kills} kills in {runs} runs of {options.method}: every resumed run ended bit-equal.")


if __name__ == "__main__":
    main()
