"""What is asked for is what is measured, and what cannot be is refused in a sentence."""

import pytest
import torch

from anabranch.bench.images import Case, cases_of, parts_of, pixels_of, work_of
from anabranch.errors import UsageError


def test_the_papers_work_is_its_network_and_its_silos():
    work = work_of("cpu", "paper")
    assert [case.name for case in work.cases] == ["3x128", "32x32"]
    assert work.network["channels"] == 128
    assert not work.of_the_paper  # on a CPU no limit holds
    assert work.computed == "float32"


def test_got_descends_five_steps_and_moves_its_potential_every_step():
    settings = work_of("cpu", "paper").settings("got", Case(3, 128))
    assert (settings.coupling.name, settings.coupling.transform) == ("potential", "descent")
    assert settings.coupling.descent_steps == 5
    assert (settings.potential.before, settings.potential.every) == (0, 1)


def test_silos_and_batches_stand_side_by_side():
    usual = (Case(3, 128), Case(32, 32))
    assert cases_of([], [], usual) == usual
    assert cases_of([5], [], usual) == (Case(5, 128),)
    assert cases_of([], [8, 4], usual) == (Case(3, 8), Case(3, 4))
    with pytest.raises(UsageError, match="Give as many of both"):
        cases_of([1, 2], [3], usual)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"precision": "float8"}, "no precision 'float8'"),
        ({"methods": ("lott",)}, "did you mean 'lot'"),
        ({"steps": 0}, "0 was given for steps"),
        ({"loss_steps": 3}, "four or more"),
        ({"channels": 17}, "even number of channels"),
    ],
)
def test_what_cannot_be_measured_is_refused(change, words):
    with pytest.raises(UsageError, match=words):
        work_of("cpu", **change)


def test_a_case_needs_a_silo_and_an_image():
    with pytest.raises(UsageError, match="0 silos"):
        Case(0, 8)


def test_devices_and_scales_go_by_their_names():
    with pytest.raises(UsageError, match="no device 'tpu'"):
        work_of("tpu")
    with pytest.raises(UsageError, match="no scale 'large'"):
        work_of("cpu", "large")


def test_a_gpu_that_is_not_there_is_refused(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(UsageError, match="take 'auto' or 'cpu'"):
        work_of("cuda")
    assert work_of("auto").device.type == "cpu"


def test_parts_go_by_their_names_each_once():
    assert parts_of([]) == ["step", "sampling"]
    assert parts_of(["loss", "loss-ours"]) == ["loss-ours", "loss-sequential"]
    with pytest.raises(UsageError, match="no part 'stepp'; did you mean 'step'"):
        parts_of(["stepp"])


def test_made_up_images_are_bytes_of_every_silo_that_differ():
    work = work_of("cpu")
    found = pixels_of(work, Case(2, 8))
    assert all(held.bytes.dtype == torch.uint8 and len(held) == work.held // 2 for held in found.values())
    first, second = (held.bytes.float() for held in found.values())
    assert not torch.equal(first, second)
    assert 40 < first.std() < 80  # of 256 levels, as photographs have
    neighbours = (first.reshape(-1, *work.images.shape).diff(dim=-1)).std()
    assert neighbours < first.std()  # smooth
    again = pixels_of(work, Case(2, 8))
    assert all(torch.equal(again[name].bytes, held.bytes) for name, held in found.items())
