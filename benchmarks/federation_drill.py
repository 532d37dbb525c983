"""A federation under fire: five sites with certificates, 200 rounds, and everything that goes wrong in practice.

Site processes are killed, sites hang, answer with numbers that are not finite, go away and come back, and the server is
killed once. In the end the run must have all its rounds, and the books must agree: every answer that counted stands in
its site's log with the same digest, and what a site logged without its counting belongs to a round in which that site
is named as left out.

    python benchmarks/federation_drill.py [--rounds 200] [--sites 5] [--seed 0]
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path

import psutil
import torch

from anabranch.engines.nvflare import make_trial, site_places, start, stop, train_on_kits
from anabranch.federation import read_log
from anabranch.recipes import recipe
from anabranch.runs import Notes, RunFolder

PATIENCE = 4.0
# Loaded by every Python process of the drill: it changes what a site's answers look like on the wire, when told to.
MISCHIEF = """
import importlib.abc, importlib.util, os, sys, time
from pathlib import Path

class Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name != "anabranch.federation._site":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        load = spec.loader.exec_module

        def exec_module(module):
            load(module)
            honest = module.Site.answer

            def answer(self, data):
                sent = honest(self, data)
                order = Path(os.environ.get("ANABRANCH_SITE", ".")) / "mischief"
                if not order.exists() or len(sent) < 1000:
                    return sent
                what = order.read_text()
                order.unlink()
                if what == "hang":
                    time.sleep(%r)
                return sent[:-4] + b"\\x00\\x00\\xc0\\x7f" if what == "nan" else sent

            module.Site.answer = answer

        spec.loader.exec_module = exec_module
        return spec

sys.meta_path.insert(0, Finder())
""" % (2 * PATIENCE)


class Saboteur(threading.Thread):
    """Does one thing after another while the run goes on."""

    def __init__(self, kits, places, runs, path, seed):
        super().__init__(daemon=True)
        self.kits, self.places, self.runs, self.path = kits, places, runs, path
        self.random = random.Random(seed)
        self.done = Counter()
        self.over = threading.Event()

    def run(self):
        plan = ["nan", "hang", "kill", "nan", "leave", "hang", "server", "nan", "kill", "leave", "nan", "kill"]
        for what in plan:
            if not self._wait_for_rounds(8):
                return
            name = self.random.choice(sorted(self.places))
            print(f"  round {self.round()}: {what} {'' if what == 'server' else name}", flush=True)
            getattr(self, what)(name)
            self.done[what] += 1

    def round(self):
        records = RunFolder(self.path).metrics()
        return records[-1]["round"] if records else 0

    def _wait_for_rounds(self, more):
        begun, deadline = self.round(), time.monotonic() + 240
        while self.round() < begun + more and time.monotonic() < deadline:
            if self.over.wait(0.2):
                return False
        return True

    def nan(self, name):
        (self.places[name] / "mischief").write_text("nan")

    def hang(self, name):
        (self.places[name] / "mischief").write_text("hang")

    def kill(self, name):
        """The site's job process."""
        for process in self._processes(self.kits.sites[name], "worker_process"):
            process.send_signal(signal.SIGKILL)

    def leave(self, name):
        """The site with all its processes; after a while it comes back."""
        for process in self._processes(self.kits.sites[name], ""):
            process.send_signal(signal.SIGKILL)
        time.sleep(5)
        start(self.kits, self.places, self.runs, [name])

    def server(self, name):
        for process in self._processes(self.kits.server, ""):
            process.send_signal(signal.SIGKILL)
        time.sleep(3)
        start(self.kits, self.places, self.runs, ["server"])

    @staticmethod
    def _processes(kit, kind):
        found = []
        for process in psutil.process_iter(["cmdline"]):
            command = " ".join(process.info["cmdline"] or [])
            if f"{kit}" in command.split() and "nvflare" in command and kind in command:
                found.append(process)
        return found


def reconcile(path, sites):
    """Compares the server's book with the sites' logs; gives what does not fit."""
    lines = [json.loads(line) for line in (path / "answers.jsonl").read_text().splitlines()]
    wrong, numbers = [], Counter()
    for name, place in sites.items():
        counted = {_place(line): line["answer"] for line in lines if line.get("accepted") == name}
        left_out = {_place(line) for line in lines if line.get("left_out") == name}
        logged = {}
        for entry in read_log(place / "audit.jsonl"):
            if entry["verdict"] in ("answered", "repeated"):
                logged.setdefault(_place(entry), set()).add(entry["answer"])
        for where, answer in counted.items():
            if answer not in logged.get(where, ()):
                wrong.append(f"{name}: an answer that counted at {where} is not in its log")
        for where in logged.keys() - counted.keys():
            if where not in left_out:
                wrong.append(f"{name}: logged at {where}, never counted, and not named as left out")
        numbers["answers that counted"] += len(counted)
        numbers["logged answers that did not"] += len(logged.keys() - counted.keys())
        numbers["times left out"] += len(left_out)
    return wrong, numbers


def _place(entry):
    return entry["run"], entry["session"], entry["round"], entry["sequence"]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name, default in (("rounds", 200), ("sites", 5), ("seed", 0)):
        parser.add_argument(f"--{name}", type=int, default=default)
    options = parser.parse_args()
    torch.set_num_threads(1)
    root = Path(tempfile.mkdtemp(prefix="anabranch-drill-"))
    (root / "mischief").mkdir()
    (root / "mischief" / "sitecustomize.py").write_text(MISCHIEF)
    os.environ["PYTHONPATH"] = os.pathsep.join([str(root / "mischief"), os.environ.get("PYTHONPATH", "")])
    changes = [f"rounds={options.rounds}", f"silos={options.sites}", "partition=iid", "groups=[]", "data.points=400"]
    changes += ["local_steps=2", "quorum=2", f"patience={PATIENCE}", "reentry=10", "checkpoint_every=10", "log_every=1"]
    changes += ["evaluation.nfe=[1]", "evaluation.points=128", "dopri5=false", "threads=1"]
    config = recipe("ffm-2d").config("8gaussians-moons", "vanilla", "small", options.seed, changes)
    kits = make_trial(root / "federation", config)
    places = site_places(root / "federation" / "sites")
    path, begun = root / "runs" / "drill", time.monotonic()
    try:
        start(kits, places, path.parent)
        saboteur = Saboteur(kits, places, path.parent, path, options.seed)
        saboteur.start()
        train_on_kits(config, path, Notes(say=lambda sentence: print(f"  {sentence}", flush=True)), kits)
        saboteur.over.set()
    finally:
        stop(kits)
    rounds = [record["round"] for record in RunFolder(path).metrics()]
    wrong, numbers = reconcile(path, places)
    if rounds != list(range(1, options.rounds + 1)):
        wrong.append(f"the run has rounds {rounds[:3]} … {rounds[-3:]}, {len(rounds)} in all")
    print(f"{options.rounds} rounds, {options.sites} sites, {time.monotonic() - begun:.0f} s; {dict(saboteur.done)}")
    print("; ".join(f"{number} {what}" for what, number in numbers.items()))
    for sentence in wrong[:20]:
        print(f"WRONG: {sentence}")
    if not wrong:
        print("The run has all its rounds, and the books agree.")
        shutil.rmtree(root)
    raise SystemExit(bool(wrong))


if __name__ == "__main__":
    main()
