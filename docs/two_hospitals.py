"""Makes docs/two-hospitals.md by running every command in it. Run it again when a command's output has changed.

python docs/two_hospitals.py
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

PAGE = Path(__file__).with_name("two-hospitals.md")
DATA = """
import os

import numpy as np

for name, seed, age, smokers in (("north", 1, 58, 0.35), ("south", 2, 41, 0.15)):
    os.mkdir(name)
    random = np.random.default_rng(seed)
    years = np.clip(random.normal(age, 11, 600), 18, 95)
    smoker = random.random(600) < smokers
    pressure = 95 + 0.55 * years + 9 * smoker + random.normal(0, 7, 600)
    rows = [f"{y:.0f},{p:.0f},{'yes' if s else 'no'}" for y, p, s in zip(years, pressure, smoker)]
    open(f"{name}/patients.csv", "w").write("\\n".join(["age,pressure,smoker", *rows]) + "\\n")
"""
STUDY = """\
method = "sd-protected"
data.target = "tables at sites"

[flow]
rounds = 600

[semidiscrete]
rounds = 300
noises = 262144

[federation]
quorum = 2

[evaluation]
nfe = [1, 3, 10]
"""
TEXT = """\
# Two hospitals and a coordinator

Two hospitals, `north` and `south`, hold tables of their patients. A coordinator wants one generative model of both, and
may see neither table. Every command below was run, and its output is what it printed; three shells on one machine stand
for three institutions. The two tables are made up: 600 rows each of age, blood pressure, and whether the patient
smokes.

All three have installed the package: `pip install "anabranch[nvflare]"`, the same version everywhere.

## The coordinator makes keys

{provision}

Each folder under `federation/kits` goes to one institution, over a channel that you trust: it holds a private key. The
name `localhost` would be the server's host name, and the server's two ports must be reachable from outside. Sites open
outbound connections only.

A site's kit says that no job may bring code along: a job names one class of the installed package, and nothing else is
let in. So a site's policy, which that package enforces, does not depend on the coordinator's honesty. Only whoever
holds the kit `admin` may submit jobs.

## Each hospital says what it holds and what it answers

{init}

`site.toml` is meant to be read and changed. It names the data, lists what is answered, how often at most, and over how
many points at least:

{policy}

Before anything is connected, a hospital can see what it would be asked. The study is a small file that the coordinator
has sent around:

{study}

{check}

## Everybody starts

The coordinator starts the server, each hospital its site:

{start}

{status}

## The coordinator trains

{train}

The server half ran on the server; `train` submitted the job, waited, and fetched the run folder. It is the same folder
as that of a simulation: `anabranch report`, `sample` and `export` work on it.

{sample}

{export}

## A hospital looks at what it answered

Every question and answer stands in the site's own log, with a digest of every message. The lines are chained: changing
one shows.

{log}

A hospital can withdraw at any time. From the next question on it answers nothing; a run goes on without it while the
quorum holds.

{withdraw}

## The end

{stop}

## When something goes wrong

- A site that raises, hangs, dies or answers nonsense is left out of that round, by name. The weights of the others are
  scaled to sum to one. Below `federation.quorum` the run stops with a sentence.
- A site that has been away comes back with the next job: after `federation.reentry` seconds the coordinator ends the
  job at a checkpoint and starts the next one with everybody who is present. Nobody needs to do anything.
- When the server is killed, start it again: the run goes on from its last checkpoint.
- `anabranch resume runs/study` continues a run whose `train` was ended.
"""


class Shell:
    """Runs commands in one folder and shows them as a reader would see them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        binaries = Path(sys.executable).parent
        self.environment = {**os.environ, "PATH": f"{binaries}{os.pathsep}{os.environ['PATH']}", "COLUMNS": "120"}

    def run(self, *commands: str) -> str:
        shown = []
        for command in commands:
            if command.endswith(" &"):
                log = (self.folder / "background.log").open("a")
                subprocess.Popen(
                    command[:-2], shell=True, cwd=self.folder, env=self.environment, stdout=log, stderr=log
                )
                time.sleep(8)
                shown.append(f"$ {command}")
                continue
            print(f"$ {command}", flush=True)
            done = subprocess.run(
                command, shell=True, cwd=self.folder, env=self.environment, capture_output=True, text=True, check=False
            )
            if done.returncode:
                raise SystemExit(f"{command} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
            progress = [line for line in re.split(r"[\r\n]+", done.stderr) if "100%" in line][-1:]
            shown.append("\n".join([f"$ {command}", *progress, done.stdout.rstrip()]).rstrip())
        text = "\n".join(line.rstrip() for line in "\n".join(shown).splitlines())
        return f"```console\n{text.replace(f'{self.folder}/', '')}\n```"


def main() -> None:
    folder = Path(tempfile.mkdtemp(prefix="hospitals-")).resolve()
    shell = Shell(folder)
    subprocess.run([sys.executable, "-c", DATA], cwd=folder, check=True)
    (folder / "study.toml").write_text(STUDY)
    try:
        parts = {
            "provision": shell.run("anabranch federation provision federation --sites north,south"),
            "init": shell.run(
                *(f"anabranch site init {name} --data {name}/patients.csv" for name in ("north", "south"))
            ),
        }
        written = (folder / "north" / "site.toml").read_text().replace(f"{folder}/", "")
        parts["policy"] = f"```toml\n{written[written.index('name =') :].rstrip()}\n```"
        parts["study"] = f"```toml\n# study.toml\n{STUDY.rstrip()}\n```"
        parts["check"] = shell.run("anabranch site check north --recipe study.toml")
        parts["start"] = shell.run(
            "anabranch federation start federation --only server",
            "anabranch site start north --kit federation/kits/north &",
            "anabranch site start south --kit federation/kits/south &",
        )
        parts["status"] = shell.run("anabranch federation status federation")
        parts["train"] = shell.run(
            "anabranch train study.toml --engine nvflare --federation federation --out runs/study"
        )
        parts["sample"] = shell.run("anabranch sample runs/study --n 5 --out samples.csv", "cat samples.csv")
        parts["export"] = shell.run("anabranch export runs/study --out model", "ls model")
        parts["log"] = shell.run("anabranch site log north --last 3")
        parts["withdraw"] = shell.run("anabranch site withdraw south", "anabranch site return south")
        parts["stop"] = shell.run("anabranch federation stop federation")
        PAGE.write_text(TEXT.format(**parts))
    finally:
        subprocess.run(
            ["anabranch", "federation", "stop", "federation"], cwd=folder, env=shell.environment, capture_output=True
        )
        shutil.rmtree(folder)
    print(f"Wrote {PAGE.name}.")


if __name__ == "__main__":
    main()
