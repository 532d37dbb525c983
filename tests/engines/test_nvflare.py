"""NVFLARE: with real processes, the same run as in this process, to the bit; and what a missing or bad site does."""

import json

import psutil
import pytest
import torch

from anabranch.engines import resume_on_its_engine, train_on
from anabranch.engines._trial import write_sites
from anabranch.engines.nvflare._drive import _how_to_go_on, train_on_kits
from anabranch.engines.nvflare._trial import on_own_kits
from anabranch.errors import UsageError
from anabranch.federation import read_log
from anabranch.runs import Notes, RunFolder, from_toml

METHODS = ["vanilla", "lot", "got", "sd"]
IMAGES = """
method = "lot"

[data]
target = "digits"
partition = "iid"
silos = 2
images = 60
flip = "random"
crop = 0.5

[flow]
network = "unet"
batch = 8
rounds = 2

[images]
shape = [1, 8, 8]
channels = 8
multipliers = [1, 2]
blocks = 1
attention = [4]

[federation]
fused = false

[evaluation]
nfe = [1]
points = 16
dopri5 = false

[run]
threads = 1
"""


def equal(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def accounts(path):
    """For every site: answers that it logged, and answers that the server counted."""
    lines = [json.loads(line) for line in (path / "answers.jsonl").read_text().splitlines()]
    logged = {site.name: list(read_log(site / "audit.jsonl")) for site in (path / "sites").iterdir()}
    counted = {name: [line for line in lines if line.get("accepted") == name] for name in logged}
    return logged, counted


def alive(path):
    return [p for p in psutil.process_iter(["cmdline"]) if any(str(path) in part for part in p.info["cmdline"] or [])]


@pytest.mark.parametrize("method", METHODS)
def test_the_simulator_ends_with_the_parameters_of_one_process(bench, tmp_path, method):
    config = bench.config(method)
    rows = train_on("nvflare-sim", config, tmp_path / "run", Notes())
    assert equal(bench.parameters(tmp_path / "run"), bench.local(config, tmp_path / "local"))
    assert any(row["metric"] == "w2" and row["value"] > 0 for row in rows)
    logged, counted = accounts(tmp_path / "run")
    for name, entries in logged.items():
        assert [e["answer"] for e in entries if e["verdict"] == "answered"] == [e["answer"] for e in counted[name]]
    assert not alive(tmp_path)


def test_a_flow_of_images_ends_there_with_the_same_parameters(bench, tmp_path):
    (tmp_path / "images.toml").write_text(IMAGES)
    config = from_toml(tmp_path / "images.toml")
    train_on("nvflare-sim", config, tmp_path / "run", Notes())
    assert equal(bench.parameters(tmp_path / "run"), bench.local(config, tmp_path / "local"))
    assert not alive(tmp_path)


def test_a_federation_with_certificates_ends_with_the_parameters_of_one_process(bench, tmp_path):
    configs = {method: bench.config(method) for method in METHODS}
    for method, config in configs.items():
        write_sites(config, tmp_path / method / "sites")
    # One federation for all methods: its sites answer what the sum of the methods asks.
    from anabranch.sites import kinds_of, read_site

    root = tmp_path / "sites"
    (tmp_path / "vanilla" / "sites").rename(root)
    for site in root.iterdir():
        text = (site / "site.toml").read_text()
        kinds = sorted({kind for method in METHODS for kind in kinds_of(method)})
        start, end = text.index("kinds = ["), text.index("]\n", text.index("kinds = ["))
        (site / "site.toml").write_text(text[:start] + "kinds = " + json.dumps(kinds)[:-1] + text[end:])
        assert set(read_site(site).policy.kinds) == set(kinds)
    with on_own_kits(tmp_path / "federation", root, tmp_path / "server") as kits:
        for method, config in configs.items():
            train_on_kits(config, tmp_path / "runs" / method, Notes(), kits)
            local = bench.local(config, tmp_path / "local" / method)
            assert equal(bench.parameters(tmp_path / "runs" / method), local), method
    assert not alive(tmp_path)


def test_an_interrupted_run_goes_on_where_it_was(bench, tmp_path):
    class Enough(Exception):
        pass

    def stop(progress, federation):
        if progress.round == 12:
            raise Enough

    config = bench.config("lot", "run.checkpoint_every=5")
    with pytest.raises(Enough):
        train_on("nvflare-sim", config, tmp_path / "run", Notes(stop))
    assert not RunFolder(tmp_path / "run").finished and not alive(tmp_path)
    resume_on_its_engine(tmp_path / "run", Notes())
    assert equal(bench.parameters(tmp_path / "run"), bench.local(config, tmp_path / "local"))


def test_a_site_whose_data_is_missing_is_left_out_by_name(bench, tmp_path):
    config = bench.config("vanilla")
    write_sites(config, tmp_path / "run" / "sites")
    (tmp_path / "run" / "sites" / "silo-2" / "site.toml").write_text('name = "silo-2"\n[data]\nfile = "nothing.npz"\n')
    said = []
    train_on("nvflare-sim", config, tmp_path / "run", Notes(say=said.append))
    lines = [json.loads(line) for line in (tmp_path / "run" / "answers.jsonl").read_text().splitlines()]
    assert {line["left_out"] for line in lines if "left_out" in line} == {"silo-2"}
    assert any("nothing.npz" in line.get("why", "") for line in lines)
    assert RunFolder(tmp_path / "run").finished


class TestHowToGoOn:
    """Where an interrupted run's last checkpoint is, by who can see it."""

    def test_a_server_on_another_machine(self, tmp_path):
        sentence = _how_to_go_on(tmp_path / "nowhere" / "run", tmp_path / "run")
        assert sentence.startswith(f"The last checkpoint is with the server, not in {tmp_path / 'run'}; 'anabranch")

    def test_a_run_of_its_own_server_is_here(self, tmp_path):
        (tmp_path / "checkpoints").mkdir()
        assert "There was no checkpoint yet" in _how_to_go_on(tmp_path, tmp_path)
        (tmp_path / "checkpoints" / "round-00000003.checkpoint").touch()
        assert _how_to_go_on(tmp_path, tmp_path).startswith(f"The last checkpoint is in {tmp_path}; 'anabranch resume")


class TestRunFolder:
    def test_a_job_names_a_folder_by_a_plain_name(self, tmp_path, monkeypatch):
        from anabranch.engines.nvflare._coordinator import run_folder

        monkeypatch.setenv("ANABRANCH_RUNS", str(tmp_path))
        assert run_folder("study") == tmp_path / "study"
        for name in ("../elsewhere", "/etc", "a/b", "..", ".hidden", ""):
            with pytest.raises(UsageError, match="plain name"):
                run_folder(name)

    def test_a_server_that_was_told_no_place_says_so(self, monkeypatch):
        from anabranch.engines.nvflare._coordinator import run_folder

        monkeypatch.delenv("ANABRANCH_RUNS", raising=False)
        with pytest.raises(UsageError, match="ANABRANCH_RUNS"):
            run_folder("study")


class TestBadInput:
    def test_an_unknown_engine_is_refused(self, bench, tmp_path):
        with pytest.raises(UsageError, match="did you mean 'nvflare'"):
            train_on("nvflar", bench.config("lot"), tmp_path, Notes())

    def test_a_missing_extra_is_named(self, bench, tmp_path, monkeypatch):
        from anabranch.engines import _choose

        monkeypatch.setattr(_choose, "find_spec", lambda name: None)
        with pytest.raises(UsageError, match=r"pip install \"anabranch\[nvflare\]\""):
            train_on("nvflare-sim", bench.config("lot"), tmp_path, Notes())

    def test_the_federation_must_be_named_for_nvflare_alone(self, bench, tmp_path):
        for engine, federation in (("nvflare", None), ("local", tmp_path)):
            with pytest.raises(UsageError, match="--federation"):
                train_on(engine, bench.config("lot"), tmp_path / "run", Notes(), federation)

    def test_a_folder_without_kits_is_refused(self, bench, tmp_path):
        with pytest.raises(UsageError, match="holds no kits"):
            train_on("nvflare", bench.config("lot"), tmp_path / "run", Notes(), tmp_path)

    def test_guards_are_the_sites_own(self, bench, tmp_path):
        config = bench.config("lot", "gradient_clip=1.0")
        with pytest.raises(UsageError, match="the site's own setting"):
            train_on("nvflare", config, tmp_path / "run", Notes(), tmp_path)

    def test_pooled_data_cannot_be_federated(self, bench, tmp_path):
        with pytest.raises(UsageError, match="leaves nothing to federate"):
            train_on("nvflare-sim", bench.config("icfm"), tmp_path / "run", Notes())
