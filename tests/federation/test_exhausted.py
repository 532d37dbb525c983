"""Memory that runs out is nobody's failure: it ends a run in one process, and is one site's refusal elsewhere."""

import pytest
import torch

from anabranch.errors import ExhaustedError, out_of_memory
from anabranch.federation import Refused, decode
from tests.federation.adding import question, site
from tests.federation.counting import QUESTION, behave, opened, three


def full(asked):
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")


@pytest.mark.parametrize("fused", [True, False])
def test_it_ends_the_round(fused):
    silos = three()
    behave(silos[1], full)
    with pytest.raises(ExhaustedError, match=r"Memory ran out while silos answered 'test.federation.count'"):
        opened(silos, fused=fused).mean(QUESTION)


def test_a_site_says_so_and_quotes_nothing(monkeypatch):
    asked = site()

    def answer(self, envelope):
        raise torch.OutOfMemoryError("CUDA out of memory on the machine of Ada")

    monkeypatch.setattr(type(asked.silo), "answer", answer)
    reply = decode(asked.answer(question()))
    assert isinstance(reply, Refused) and reply.sentence.startswith("Site 'a': Memory ran out")
    assert "Ada" not in reply.sentence


@pytest.mark.parametrize(
    ("error", "found"),
    [
        (torch.OutOfMemoryError("x"), True),
        (MemoryError(), True),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes"), True),
        (RuntimeError("shapes do not fit"), False),
        (ValueError("out of memory"), False),
    ],
)
def test_it_is_told_from_other_errors(error, found):
    assert out_of_memory(error) is found
