"""Recorded work gives what the function gives: on a CPU by calling it, on a GPU by replaying it."""

import logging

import pytest
import torch

from anabranch.flow import WARM_UP, Recorded

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
    recorded = Recorded(work, torch.device("cpu"))
    for number in range(WARM_UP + 3):
        work.place.fill_(number)
        assert recorded()[0].tolist() == [2.0 * number] * 3
    assert work.calls == WARM_UP + 3 and recorded.stream is None


@ON_GPU
def test_a_gpu_calls_it_a_few_times_and_then_repeats_what_it_did():
    work = Doubling("cuda")
    recorded = Recorded(work, torch.device("cuda"))
    for number in range(WARM_UP + 5):
        work.place.fill_(number)
        assert recorded()[0].tolist() == [2.0 * number] * 3
    assert work.calls == WARM_UP + 1


@ON_GPU
@pytest.mark.parametrize("own", [False, True])
def test_who_seeds_a_generator_gets_the_numbers_of_an_unrecorded_call(own):
    device = torch.device("cuda")
    generator = torch.Generator(device) if own else torch.cuda.default_generators[torch.cuda.current_device()]

    def draw():
        return [torch.rand(5, device=device, generator=generator if own else None)]

    recorded = Recorded(draw, device, [generator] if own else [])
    for number in range(WARM_UP + 3):
        generator.manual_seed(number)
        found = recorded()[0].clone()
        generator.manual_seed(number)
        assert torch.equal(found, draw()[0])


@ON_GPU
def test_what_cannot_be_recorded_is_called_each_time_and_said_once(caplog):
    place = torch.ones(2, device="cuda")

    def waits():
        return [place * float(place.sum())]  # a number that the program waits for

    recorded = Recorded(waits, torch.device("cuda"))
    with caplog.at_level(logging.WARNING):
        for _ in range(WARM_UP + 3):
            assert recorded()[0].tolist() == [2.0, 2.0]
    assert sum("could not be recorded" in record.message for record in caplog.records) == 1
