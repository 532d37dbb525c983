"""Recorded work gives what the function gives: on a CPU by calling it, on a GPU by replaying it."""

import logging

import pytest
import torch

from anabranch.errors import RecordingError
from anabranch.flow import Recorded

ON_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")


class Doubling:
    """Twice what lies at `place`, and how often it was asked in earnest."""

    def __init__(self, device):
        self.place, self.calls = torch.zeros(3, device=device), 0

    def __call__(self):
        self.calls += 1
        return [2 * self.place]


def test_a_cpu_calls_the_function_each_time():
    work = Doubling("cpu")
    recorded = Recorded(torch.device("cpu"))
    for number in range(Recorded.warm_up + 3):
        work.place.fill_(number)
        assert recorded(work)[0].tolist() == [2.0 * number] * 3
    assert work.calls == Recorded.warm_up + 3 and recorded.stream is None


@ON_GPU
def test_a_gpu_calls_it_a_few_times_and_then_repeats_what_it_did():
    work = Doubling("cuda")
    recorded = Recorded(torch.device("cuda"))
    for number in range(Recorded.warm_up + 5):
        work.place.fill_(number)
        assert recorded(work)[0].tolist() == [2.0 * number] * 3
    assert work.calls == Recorded.warm_up + 1 and recorded.recorded


@ON_GPU
@pytest.mark.parametrize("own", [False, True])
def test_who_seeds_a_generator_gets_the_numbers_of_an_unrecorded_call(own):
    device = torch.device("cuda")
    generator = torch.Generator(device) if own else torch.cuda.default_generators[torch.cuda.current_device()]

    def draw():
        return [torch.rand(5, device=device, generator=generator if own else None)]

    recorded = Recorded(device, [generator] if own else [])
    for number in range(Recorded.warm_up + 3):
        generator.manual_seed(number)
        found = recorded(draw)[0].clone()
        generator.manual_seed(number)
        assert torch.equal(found, draw()[0])


class Full:
    """A graph for which memory does not suffice."""

    def __init__(self, *_, **__):
        pass

    def __enter__(self):
        raise torch.cuda.OutOfMemoryError("CUDA out of memory")

    def __exit__(self, *_):
        return False


@ON_GPU
def test_where_memory_does_not_suffice_calls_go_on_without_and_that_is_said_once(caplog, monkeypatch):
    monkeypatch.setattr(torch.cuda, "graph", Full)
    work = Doubling("cuda")
    recorded = Recorded(torch.device("cuda"))
    with caplog.at_level(logging.WARNING):
        for number in range(Recorded.warm_up + 3):
            work.place.fill_(number)
            assert recorded(work)[0].tolist() == [2.0 * number] * 3
    assert work.calls == Recorded.warm_up + 3 and not recorded.recorded
    assert sum("does not suffice to record" in record.message for record in caplog.records) == 1


class Broken(Full):
    def __enter__(self):
        raise RuntimeError("operation not permitted when stream is capturing")


@ON_GPU
def test_what_cannot_be_recorded_is_an_error_that_says_so(monkeypatch):
    monkeypatch.setattr(torch.cuda, "graph", Broken)
    recorded, work = Recorded(torch.device("cuda")), Doubling("cuda")
    for _ in range(Recorded.warm_up):
        recorded(work)
    with pytest.raises(RecordingError, match=r"not permitted.*flow\.compile is false"):
        recorded(work)
