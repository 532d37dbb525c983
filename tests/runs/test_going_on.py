"""A run that goes on in another way: in smaller passes after memory ran out; and what it notes about itself."""

import pytest
import torch

from anabranch.errors import ExhaustedError, QuorumError, RunFolderError
from anabranch.methods.ffm import FlowHalf, Gradient
from anabranch.report import write_report
from anabranch.runs import (
    Assembly,
    Notes,
    RunFolder,
    _drive,
    _memory,
    build_federation,
    build_silos,
    from_dict,
    merged,
    resume,
    train,
)
from tests.runs.composing import composing
from tests.runs.tiny import TINY, tiny


def parameters(path):
    state = RunFolder(path).load_checkpoint()[0].state
    return torch.cat([state[name].flatten() for name in sorted(state) if name.startswith("average/average.")])


def test_memory_that_runs_out_costs_what_came_after_the_last_checkpoint(tmp_path, monkeypatch):
    train(tiny(), tmp_path / "whole")
    velocity, asked = FlowHalf.velocity, []

    def full_once(self, x, t):
        asked.append(len(x))
        if len(asked) == 8:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return velocity(self, x, t)

    monkeypatch.setattr(FlowHalf, "velocity", full_once)
    with pytest.raises(ExhaustedError, match=r"flow.passes \(1\).*flow.batch \(16\).*anabranch resume"):
        train(tiny(), tmp_path / "cut")
    assert RunFolder(tmp_path / "cut").checkpoints() == [5]
    resume(tmp_path / "cut")
    assert torch.equal(parameters(tmp_path / "cut"), parameters(tmp_path / "whole"))


@pytest.mark.parametrize(
    ("place", "sentence"),
    [
        ("build_silos", r"used; lower data.points \(40\), or have other"),
        ("evaluate", r"'anabranch resume', or the same .* judges it .* fewer samples \(evaluation.points, 64\)\."),
    ],
)
def test_memory_that_runs_out_before_or_after_training_is_said(tmp_path, monkeypatch, place, sentence):
    def full(*asked):
        raise torch.OutOfMemoryError("CUDA out of memory.")

    with monkeypatch.context() as patch, pytest.raises(ExhaustedError, match=sentence):
        patch.setattr(_drive, place, full)
        train(tiny(), tmp_path / "run")
    assert resume(tmp_path / "run") if place == "evaluate" else train(tiny(), tmp_path / "run")


@pytest.mark.parametrize(
    ("data", "device", "sentence"),
    [
        ({}, "cuda", r"lower data.points \(40\), or take run.device = 'cpu', or have"),
        ({"files": ["a.npz"], "target": ""}, "cpu", r"take fewer data.images \(all\), if it is images, or have"),
        ({"files": ["a.csv"], "target": ""}, "cpu", "is used; have other programs"),
    ],
)
def test_what_helps_where_data_does_not_fit(monkeypatch, data, device, sentence):
    monkeypatch.setattr(_memory, "device_of", lambda config: torch.device(device))
    with pytest.raises(ExhaustedError, match=sentence), _memory.spared_data(tiny(data=data)):
        raise torch.OutOfMemoryError("CUDA out of memory.")


@pytest.mark.parametrize(
    ("place", "change", "sentence"),
    [
        ("CompositionServer", {"method": "ddm"}, r"'ddm' was trained.*resume.*experts.batch \(16\) or experts.hidden"),
        ("CompositionServer", {"method": "dcfm-b"}, r"experts.batch \(16\), student.batch \(16\) or experts.hidden"),
        ("compare", {"method": "fedwad"}, r"data sets were compared; lower distance.support \(100\)"),
    ],
)
def test_memory_that_runs_out_beside_flows_is_said(tmp_path, monkeypatch, place, change, sentence):
    def full(*asked):
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory")

    monkeypatch.setattr(_drive, place, full)
    config = tiny(method="fedwad") if place == "compare" else composing(change["method"])
    with pytest.raises(ExhaustedError, match=sentence):
        train(config, tmp_path / "run")


@pytest.mark.parametrize(
    ("network", "sentence"), [("conditional-mlp", r"experts.hidden \(64\)"), ("conditional-unet", "experts.channels")]
)
def test_what_makes_experts_of_images_smaller_goes_by_their_network(network, sentence):
    config = from_dict({"method": "ddm", "experts": {"shape": [1, 8, 8], "network": network, "hidden": 64}})
    with pytest.raises(ExhaustedError, match=sentence), _memory.spared_method(config):
        raise torch.OutOfMemoryError("CUDA out of memory.")


def test_a_run_may_go_on_with_a_lower_quorum_until_it_is_finished(tmp_path):
    def simulated(config, folder):
        silos, _ = build_silos(config, folder.path)
        answer = silos[0].answer

        def failing(envelope):
            if isinstance(envelope.question, Gradient) and envelope.round > 7:
                raise RuntimeError("gone")
            return answer(envelope)

        silos[0].answer = failing
        return Assembly(build_federation(config, silos))

    def settings(quorum):
        return tiny(federation={"fused": False, "quorum": quorum})

    with pytest.raises(QuorumError, match="go on without them, with a lower quorum"):
        train(settings(2), tmp_path, assemble=simulated)
    for other in (0, 9):
        with pytest.raises(RunFolderError, match=rf"another run: federation\.quorum is 2 there and {other} now"):
            train(settings(other), tmp_path, assemble=simulated)
    assert RunFolder(tmp_path).config() == settings(2)
    rows = train(settings(1), tmp_path, assemble=simulated)
    lines = RunFolder(tmp_path).metrics()
    answered = {line["round"]: line["answered"] for line in lines if line["round"] > 5}
    assert answered == dict.fromkeys(range(8, 13), 1)  # where one failed
    with pytest.raises(RunFolderError, match=r"another run: federation\.quorum is 1 there and 2 now"):
        train(settings(2), tmp_path, assemble=simulated)
    assert train(settings(1), tmp_path) == rows
    train(settings(2), tmp_path / "done")
    with pytest.raises(RunFolderError, match=r"quorum is 2 there and 1 now\. .* that run is finished\."):
        train(settings(1), tmp_path / "done")


def test_a_network_that_is_too_large_is_said(tmp_path, monkeypatch):
    from anabranch.methods.ffm import _server

    def full(*asked):
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory")

    monkeypatch.setattr(_server, "flow_network", full)
    with pytest.raises(ExhaustedError, match=r"Memory ran out in the phase 'flow'.*flow.hidden"):
        train(tiny(), tmp_path / "run")


def test_it_may_go_on_in_smaller_passes_but_not_as_another_run(tmp_path):
    train(tiny(), tmp_path / "whole")

    class Stop(Exception):
        pass

    def stop(progress, federation):
        if progress.round == 7:
            raise Stop

    with pytest.raises(Stop):
        train(tiny(), tmp_path / "cut", Notes(progress=stop))
    with pytest.raises(RunFolderError, match=r"flow.batch is 16 there and 8 now"):
        train(tiny(flow={"batch": 8}), tmp_path / "cut")
    train(tiny(flow={"passes": 3, "compile": False}), tmp_path / "cut")
    assert RunFolder(tmp_path / "cut").config().flow.passes == 3
    torch.testing.assert_close(parameters(tmp_path / "cut"), parameters(tmp_path / "whole"), rtol=1e-4, atol=1e-5)
    train(tiny(flow={"passes": 2}), tmp_path / "cut")  # finished is finished
    assert RunFolder(tmp_path / "cut").config().flow.passes == 3


@pytest.mark.parametrize("value", [True, False, "auto"])
def test_compiling_is_a_choice_of_three(value):
    assert from_dict(merged(TINY, {"flow": {"compile": value}})).flow.compile is value or value == "auto"


def test_half_precision_on_a_cpu_is_noted_once_in_the_log_and_in_the_report(tmp_path):
    said = []
    config = from_dict(
        merged(
            TINY,
            {
                "data": {"target": "digits", "images": 40, "partition": "iid", "groups": [], "side": 4},
                "flow": {"source": "gaussian", "network": "unet", "precision": "bfloat16", "rounds": 3, "batch": 4},
                "images": {"shape": [1, 4, 4], "channels": 4, "multipliers": [1], "blocks": 1, "attention": []},
                "run": {"log_every": 1},
            },
        )
    )
    train(config, tmp_path / "run", Notes(say=said.append))
    assert sum("bfloat16" in sentence for sentence in said) == 1
    noted = [record.get("notes", []) for record in RunFolder(tmp_path / "run").metrics()]
    assert len(noted[0]) == 1 and not any(noted[1:])
    page = write_report([tmp_path / "run"], tmp_path / "report.html").read_text()
    assert page.count("they are computed in float32") == 1
