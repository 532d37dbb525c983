"""A run that goes on in another way: in smaller passes after memory ran out; and what it notes about itself."""

import pytest
import torch

from anabranch.errors import ExhaustedError, RunFolderError
from anabranch.methods.ffm import FlowHalf
from anabranch.report import write_report
from anabranch.runs import Notes, RunFolder, from_dict, merged, resume, train
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
        ("build_silos", r"used; lower data.points \(40\), or take run.device = 'cpu', or have other"),
        ("evaluate", r"'anabranch resume' judges it .* fewer samples \(evaluation.points, 64\)\."),
    ],
)
def test_memory_that_runs_out_before_or_after_training_is_said(tmp_path, monkeypatch, place, sentence):
    from anabranch.runs import _drive

    def full(*asked):
        raise torch.OutOfMemoryError("CUDA out of memory.")

    with monkeypatch.context() as patch, pytest.raises(ExhaustedError, match=sentence):
        patch.setattr(_drive, place, full)
        train(tiny(), tmp_path / "run")
    assert resume(tmp_path / "run") if place == "evaluate" else train(tiny(), tmp_path / "run")


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
