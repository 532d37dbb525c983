"""What one question may cost, by what a silo computes on."""

import pytest
import torch

from anabranch.errors import RefusedError
from anabranch.federation import Means, Silo
from anabranch.federation import _means as means

GIB = 2**30


def on_a_gpu(monkeypatch, memory):
    """A silo that believes to compute on a GPU with so many bytes."""
    monkeypatch.setattr(Silo, "device", torch.device("cuda"))
    monkeypatch.setattr(means, "memory_of", lambda device: memory)
    return Silo("a", torch.zeros(4, 2))


def test_a_cpu_is_careful_and_a_gpu_follows_its_memory():
    assert Means.of(torch.device("cpu")) == Means(2**30, 2**44)
    assert Means.of_gpu(80 * GIB) == Means(10 * 2**30, 2**54)
    assert Means.of_gpu(2 * GIB).numbers == 2**30  # never less than a CPU


@pytest.mark.parametrize(("memory", "numbers", "affordable"), [(24, 3, True), (24, 4, False), (80, 10, True)])
def test_numbers_that_fill_half_of_a_gpu_are_the_most(monkeypatch, memory, numbers, affordable):
    silo = on_a_gpu(monkeypatch, memory * GIB)
    if affordable:
        silo.affords("this", numbers * 2**30, 2**54)
        return
    sentence = r"it would take 4.3e\+09 numbers, and one question may take 3.2e\+09 on its GPU"
    with pytest.raises(RefusedError, match=sentence):
        silo.affords("this", numbers * 2**30)


def test_time_is_bounded_on_a_gpu_too(monkeypatch):
    with pytest.raises(RefusedError, match="multiplications"):
        on_a_gpu(monkeypatch, 80 * GIB).affords("this", work=2**54 + 1)


def test_a_silo_may_set_bounds_of_its_own(monkeypatch):
    silo = on_a_gpu(monkeypatch, 80 * GIB)
    silo.most_numbers = 10
    with pytest.raises(RefusedError):
        silo.affords("this", 11)
    silo.affords("this", 10, 2**50)
