"""What a real federation costs, beside the same run in one process.

python benchmarks/federation.py            # all of the following
python benchmarks/federation.py rounds     # four sites with certificates: W2, and the overhead of a round
python benchmarks/federation.py many       # 32 sites in NVFLARE's simulator: 50 rounds, memory of each process
python benchmarks/federation.py large      # parameters of 143 MB, down and up
python benchmarks/federation.py precision  # what float32 changes
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
import sys
import tempfile
import threading
import time
from pathlib import Path
from statistics import median

import psutil
import torch

from anabranch import seeds
from anabranch.engines import train_on
from anabranch.methods.ffm._half import flow_network
from anabranch.recipes import recipe
from anabranch.runs import Notes, RunFolder, train

BASE = ["partition=iid", "groups=[]", "threads=1", "log_every=1", "fused=false", "dopri5=false"]


def config(*changes: str, method: str = "vanilla"):
    return recipe("ffm-2d").config("8gaussians-moons", method, "small", 0, [*BASE, *changes])


def round_times(path: Path) -> list[float]:
    """Seconds of each round but the first."""
    seconds = [record["seconds"] for record in RunFolder(path).metrics()]
    return [after - before for before, after in itertools.pairwise(seconds)]


def w2(rows, nfe: int) -> float:
    return next(row["value"] for row in rows if row["metric"] == "w2" and row["nfe"] == nfe)


def rounds(root: Path) -> bool:
    """Four sites, FedAvg: 400 rounds of ten local steps."""
    settings = config("silos=4", "data.points=2500", "rounds=400", "local_steps=10", "evaluation.nfe=[1,10,100]")
    here = train(settings, root / "here")
    there = train_on("nvflare-poc", settings, root / "there", Notes())
    worst = 0.0
    for nfe in (1, 10, 100):
        ratio = w2(there, nfe) / w2(here, nfe)
        worst = max(worst, abs(ratio - 1))
        print(f"W2 at {nfe} steps: {w2(there, nfe):.4f} with certificates, {w2(here, nfe):.4f} in one process")
    local, remote = median(round_times(root / "here")), median(round_times(root / "there"))
    print(
        f"a round: {1000 * remote:.0f} ms with four sites, {1000 * local:.0f} ms in one process one site after another"
    )
    print(f"overhead of a round, median: {1000 * (remote - local):.0f} ms (limit 250); W2 differs by {worst:.2%} (5 %)")
    return worst <= 0.05 and remote - local <= 0.25


class Memory(threading.Thread):
    """The largest resident memory of every process that runs in a folder, and of all at once."""

    def __init__(self, word: str) -> None:
        super().__init__(daemon=True)
        self.word, self.peak, self.most = word, {}, 0
        self.over = threading.Event()

    def run(self) -> None:
        while not self.over.wait(0.5):
            together = 0
            for process in psutil.process_iter(["cmdline", "memory_info"]):
                command = " ".join(process.info["cmdline"] or [])
                if "nvflare" in command and self.word in command and process.info["memory_info"]:
                    size = process.info["memory_info"].rss
                    together += size
                    site = "--client_name" in command or "simulator_worker" in command
                    self.peak[process.pid] = (site, max(size, self.peak.get(process.pid, (site, 0))[1]))
            self.most = max(self.most, together)


def many(root: Path) -> bool:
    """32 sites, 50 rounds."""
    settings = config("silos=32", "data.points=200", "rounds=50", "evaluation.nfe=[1]", "patience=300")
    memory, begun = Memory("simulator"), time.monotonic()
    memory.start()
    train_on("nvflare-sim", settings, root / "many", Notes())
    memory.over.set()
    sites = sorted(size for site, size in memory.peak.values() if site)
    records = RunFolder(root / "many").metrics()
    print(f"32 sites: {records[-1]['round']} rounds in {time.monotonic() - begun:.0f} s, {len(sites)} site processes")
    print(f"a round: {1000 * median(round_times(root / 'many')):.0f} ms, median")
    print(f"peak memory of a site's process: {sites[0] / 2**20:.0f} to {sites[-1] / 2**20:.0f} MiB")
    print(f"all processes together: {memory.most / 2**30:.1f} GiB (limit 24)")
    answered = {record["answered"] for record in records}
    return records[-1]["round"] == 50 and answered == {32.0} and memory.most < 24 * 2**30


def large(root: Path) -> bool:
    """Two sites, a network of 143 MB."""
    settings = config(
        "silos=2", "data.points=50", "rounds=4", "hidden=4230", "batch=8", "evaluation.nfe=[1]", "evaluation.points=8"
    )
    train_on("nvflare-poc", settings, root / "large", Notes())
    lines = [json.loads(line) for line in (root / "large" / "answers.jsonl").read_text().splitlines()]
    accepted = sum(line.get("kind") == "ffm.gradient.reply" for line in lines)
    size = RunFolder(root / "large").metrics()[-1]["bytes_up"] / 8
    print(f"{accepted} gradients of {size / 1e6:.0f} MB arrived; a round: {median(round_times(root / 'large')):.1f} s")
    return accepted == 8 and size > 142e6


def precision(root: Path) -> bool:
    """How far float32 runs end from each other, in units of the way that training went: 200 rounds, two sites."""
    held = True
    for method in ("vanilla", "lot", "got", "sd"):
        changes = ["silos=2", "data.points=500", "rounds=200", "evaluation.nfe=[1]", "evaluation.points=64"]
        changes += ["semidiscrete.rounds=100", "semidiscrete.noises=65536", "semidiscrete.block=32768"]
        plain, fused = config(*changes, method=method), config(*changes, "fused=true", method=method)
        runs = {"plain": plain, "one pass": fused}
        for name, settings in runs.items():
            train(settings, root / method / name)
        train_on("nvflare-sim", plain, root / method / "NVFLARE", Notes())
        ends = {name: parameters(root / method / name) for name in ("plain", "one pass", "NVFLARE")}
        travelled = (ends["plain"] - start_of(plain)).norm()
        apart = {name: float((ends[name] - ends["plain"]).norm() / travelled) for name in ("one pass", "NVFLARE")}
        print(f"{method}: NVFLARE {apart['NVFLARE']:.1e}, one pass for all silos {apart['one pass']:.1e}")
        held = held and apart["NVFLARE"] == 0
    return held


def parameters(path: Path) -> torch.Tensor:
    checkpoint, _ = RunFolder(path).load_checkpoint()
    values = {name: t for name, t in checkpoint.state.items() if name.startswith("flow/value/")}
    return torch.cat([values[name].flatten() for name in sorted(values)])


def start_of(settings) -> torch.Tensor:
    network = flow_network(settings.settings, 2, seeds.derive(settings.seed, "flow"))
    values = dict(network.named_parameters())
    return torch.cat([values[name].detach().flatten() for name in sorted(values)])


def main() -> None:
    torch.set_num_threads(1)
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    parts = {"rounds": rounds, "many": many, "large": large, "precision": precision}
    held = True
    for name in sys.argv[1:] or parts:
        root = Path(tempfile.mkdtemp(prefix="anabranch-bench-"))
        print(f"== {name}: {parts[name].__doc__}", flush=True)
        held = parts[name](root) and held
        shutil.rmtree(root)
    raise SystemExit(not held)


if __name__ == "__main__":
    main()
