"""One suite over every coupling: what the training loop may rely on, whichever it runs with."""

import pytest
import torch

from anabranch.coupling import (
    BalancedPotential,
    EntropicPotential,
    GlobalPotential,
    Independent,
    MinibatchOT,
    SemiDiscrete,
)
from anabranch.data import Cloud, Points, shape
from anabranch.errors import UsageError
from anabranch.seeds import generator
from anabranch.transport import SemiDual

SIZE = 48


def holder(count=10):
    x = torch.randn(count, 2, generator=generator(0, "holder")) + torch.tensor([2.0, 0.0])
    return Points(x, torch.arange(count) % 3)


def tilt(x):
    return -2.0 * x[:, 0]


def table():
    data, draws = holder(), generator(1, "table")
    dual = SemiDual.start(data.x, torch.full((len(data),), 1 / len(data)))
    dual.fit(lambda count: torch.randn(count, 2, generator=draws), 600, 512, first=3.0, last=0.02)
    noise = torch.randn(20_000, 2, generator=draws)
    return SemiDiscrete(noise, dual.lookup(noise, average=True).index)


COUPLINGS = {
    "independent": Independent,
    "minibatch exact": MinibatchOT,
    "minibatch sinkhorn": lambda: MinibatchOT("sinkhorn", epsilon=0.05),
    "minibatch exact with replacement": lambda: MinibatchOT(replacement=True),
    "minibatch sinkhorn with replacement": lambda: MinibatchOT("sinkhorn", replacement=True),
    "minibatch within labels": lambda: MinibatchOT(within=True),
    "minibatch sinkhorn within labels": lambda: MinibatchOT("sinkhorn", within=True),
    "potential": lambda: GlobalPotential(tilt, candidates=100),
    "potential by descent": lambda: GlobalPotential(tilt, candidates=100, transform="descent"),
    "entropic": lambda: EntropicPotential(tilt, candidates=100),
    "balanced": lambda: BalancedPotential(tilt, weight=0.4),
    "semidiscrete": table,
}
FRESH = [name for name in COUPLINGS if name != "semidiscrete"]  # those that ask the source for candidates


class Recorder:
    """A source that remembers what it gave away."""

    def __init__(self, source=None):
        self.source = source or shape("gaussian", 2)
        self.given = []

    def points(self, count, draws):
        self.given.append(self.source.points(count, draws))
        return self.given[-1]


@pytest.fixture(scope="module", params=COUPLINGS)
def coupling(request):
    return COUPLINGS[request.param]()


def draw(coupling, seed=0, size=SIZE, data=None, source=None):
    return coupling.draw(
        data or holder(), source or Recorder(), size, generator(seed, "own"), generator(seed, "shared")
    )


def test_pairs_are_aligned_finite_and_of_the_size_asked_for(coupling):
    pairs = draw(coupling)
    assert len(pairs) == SIZE and pairs.x0.shape == pairs.x1.shape == (SIZE, 2)
    assert pairs.index0.shape == pairs.index1.shape == pairs.label.shape == (SIZE,)
    assert pairs.x0.dtype == pairs.x1.dtype == torch.float32 and pairs.index1.dtype == torch.int64
    assert pairs.x0.isfinite().all() and not pairs.x0.requires_grad


def test_points_and_labels_are_those_of_the_indices(coupling):
    data, pairs = holder(), draw(coupling)
    assert torch.equal(pairs.x1, data.x[pairs.index1]) and torch.equal(pairs.label, data.label[pairs.index1])


def test_every_x0_is_the_candidate_of_its_index(coupling):
    source = Recorder()
    pairs = draw(coupling, source=source)
    candidates = coupling.noise if isinstance(coupling, SemiDiscrete) else source.given[0]
    assert torch.equal(pairs.x0, candidates[pairs.index0])


def test_equal_generators_give_equal_pairs_and_others_do_not(coupling):
    one, same, other = draw(coupling, 1), draw(coupling, 1), draw(coupling, 2)
    assert torch.equal(one.x0, same.x0) and torch.equal(one.index1, same.index1)
    assert not torch.equal(one.index1, other.index1)


def test_global_random_state_is_left_alone(coupling):
    before = torch.random.get_rng_state()
    draw(coupling)
    assert torch.equal(before, torch.random.get_rng_state())


def test_every_point_is_drawn_equally_often(coupling):
    hits = torch.zeros(10)
    for seed in range(120):
        hits += torch.bincount(draw(coupling, seed).index1, minlength=10)
    due = hits.sum() / 10
    chi_square = ((hits - due) ** 2 / due).sum()
    # Nine degrees of freedom; a fitted table's own usage error adds to it.
    assert chi_square < (80 if isinstance(coupling, SemiDiscrete) else 40)


def test_a_batch_of_one_is_possible_and_of_none_refused(coupling):
    assert len(draw(coupling, size=1)) == 1
    with pytest.raises(UsageError, match="batch of 0"):
        draw(coupling, size=0)


@pytest.mark.parametrize("name", FRESH)
def test_a_cloud_with_too_few_points_is_refused(name):
    with pytest.raises(UsageError, match="the pool holds 20"):
        draw(COUPLINGS[name](), source=Cloud(torch.randn(20, 2, generator=generator(0))))


@pytest.mark.parametrize("name", ["independent", "minibatch exact", "minibatch sinkhorn"])
def test_without_replacement_every_drawn_x0_is_used_once(name):
    pairs = draw(COUPLINGS[name]())
    assert torch.equal(pairs.index0.sort().values, torch.arange(SIZE))


def test_with_replacement_about_a_third_of_the_batch_is_left_out():
    used = [len(set(draw(MinibatchOT(replacement=True), seed).index0.tolist())) / SIZE for seed in range(40)]
    assert 0.55 < sum(used) / len(used) < 0.72  # 1 − 1/e


def test_balanced_takes_no_candidate_twice():
    pairs = draw(BalancedPotential(tilt, weight=0.4))
    assert len(set(pairs.index0.tolist())) == SIZE


@pytest.mark.parametrize(
    "name", ["independent", "minibatch exact", "minibatch exact with replacement", "minibatch sinkhorn", "semidiscrete"]
)
def test_the_source_marginal_is_right(name):
    """Mean and covariance of x0 over many draws are those of N(0, I)."""
    built = COUPLINGS[name]()
    x0 = torch.cat([draw(built, seed).x0 for seed in range(100)])
    tolerance = 5 / len(x0) ** 0.5
    assert x0.mean(0).abs().max() < tolerance and (x0.T.cov() - torch.eye(2)).abs().max() < 2 * tolerance


def test_semidiscrete_pairs_are_rows_of_its_table():
    built = table()
    pairs = draw(built)
    assert torch.equal(pairs.x0, built.noise[pairs.index0]) and torch.equal(pairs.index1, built.index[pairs.index0])


def test_semidiscrete_refuses_a_table_without_noises():
    for noise, index in [(0, 0), (3, 2)]:
        with pytest.raises(UsageError, match=f"{noise} noises and {index} points"):
            SemiDiscrete(torch.zeros(noise, 2), torch.zeros(index, dtype=torch.long))
