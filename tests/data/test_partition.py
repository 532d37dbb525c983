"""Partitioners: one contract for all, then what each promises."""

import pytest
import torch

from anabranch.data import PARTITIONERS, by_attribute, by_component, by_shards, dirichlet, iid
from anabranch.errors import AnabranchError, DataError, UsageError
from anabranch.seeds import generator

LABELS = torch.arange(10).repeat(30)[torch.randperm(300, generator=torch.Generator().manual_seed(0))]
CALLS = {
    "component": lambda seed: by_component(LABELS, [[0, 1, 2], [3], [9, 8, 7, 6, 5, 4]]),
    "shards": lambda seed: by_shards(LABELS, 12, 2, generator(seed)),
    "dirichlet": lambda seed: dirichlet(LABELS, 5, 0.5, generator(seed)),
    "iid": lambda seed: iid(len(LABELS), 7, generator(seed)),
    "attribute": lambda seed: by_attribute(LABELS),
}
SEEDED = {"shards", "dirichlet", "iid"}


def skew(partition, labels):
    """Mean over silos of the total variation between the silo's labels and everybody's."""
    overall = labels.bincount(minlength=10) / len(labels)
    shares = [labels[part].bincount(minlength=10) / len(part) for part in partition.values()]
    return sum(float((share - overall).abs().sum() / 2) for share in shares) / len(shares)


def test_every_partitioner_is_under_contract():
    assert set(CALLS) == set(PARTITIONERS)


@pytest.mark.parametrize("name", CALLS)
def test_contract(name):
    partition = CALLS[name](0)
    assert list(partition) == sorted(partition)
    for part in partition.values():
        assert part.dtype == torch.int64 and len(part) > 0 and (part.diff() > 0).all()
    assert torch.equal(torch.cat(list(partition.values())).sort().values, torch.arange(len(LABELS)))
    again = CALLS[name](0)
    assert again.keys() == partition.keys()
    assert all(torch.equal(again[silo], partition[silo]) for silo in partition)
    if name in SEEDED:
        other = CALLS[name](1)
        assert any(not torch.equal(other[silo], partition[silo]) for silo in partition)


def test_names_are_padded_so_that_sorting_keeps_the_order():
    assert list(iid(9, 9, generator(0)))[-1] == "silo-9"
    names = list(iid(10, 10, generator(0)))
    assert names[0] == "silo-01" and names[-1] == "silo-10" and names == sorted(names)


def test_component_gives_each_silo_its_labels():
    partition = CALLS["component"](0)
    assert LABELS[partition["silo-1"]].unique().tolist() == [0, 1, 2]
    assert LABELS[partition["silo-2"]].unique().tolist() == [3]


@pytest.mark.parametrize(("silos", "each"), [(5, 2), (10, 1), (6, 2), (7, 3)])
def test_shards_are_even_and_hold_few_labels(silos, each):
    partition = by_shards(LABELS, silos, each, generator(0))
    sizes = [len(part) for part in partition.values()]
    assert max(sizes) - min(sizes) <= each
    boundaries = 0 if 10 % (silos * each) == 0 else 1
    assert max(len(LABELS[part].unique()) for part in partition.values()) <= each * (1 + boundaries)


def test_shards_do_not_follow_the_order_of_the_data():
    partition = by_shards(torch.zeros(100, dtype=torch.long), 2, 1, generator(0))
    assert partition["silo-1"].diff().max() > 1


def test_small_alpha_is_more_skewed_than_large_alpha():
    skews = [
        sum(skew(dirichlet(LABELS, 4, alpha, generator(seed)), LABELS) for seed in range(5)) / 5
        for alpha in (0.1, 1.0, 10.0, 1000.0)
    ]
    assert skews == sorted(skews, reverse=True)
    assert skews[0] > 0.4 and skews[-1] < 0.05


@pytest.mark.parametrize("alpha", [0.3, 1.0, 4.0])
def test_dirichlet_shares_have_the_closed_form_variance(alpha):
    """A share p of k silos has mean 1/k and variance (1/k)(1 − 1/k) / (kα + 1)."""
    labels = torch.arange(400).repeat_interleave(200)  # 400 independent draws of p
    part = dirichlet(labels, 4, alpha, generator(0))["silo-1"]
    share = labels[part].bincount(minlength=400) / 200
    assert share.mean() == pytest.approx(0.25, abs=0.04)
    assert share.var() == pytest.approx(0.1875 / (4 * alpha + 1), rel=0.2)


def test_tiny_alpha_gives_each_label_to_one_silo():
    labels = torch.arange(40).repeat_interleave(10)
    partition = dirichlet(labels, 3, 1e-4, generator(0))
    held = [len(labels[part].unique()) for part in partition.values()]
    assert sum(held) == 40 and min(held) >= 5


def test_dirichlet_leaves_no_silo_too_small():
    for seed in range(5):
        assert min(map(len, dirichlet(LABELS, 6, 0.2, generator(seed), smallest=15).values())) >= 15


def test_iid_is_even_and_unskewed():
    labels = LABELS.repeat(20)
    partition = iid(len(labels), 7, generator(0))
    sizes = [len(part) for part in partition.values()]
    assert max(sizes) - min(sizes) <= 1 and skew(partition, labels) < 0.05


@pytest.mark.parametrize(
    ("ask", "sentence"),
    [
        (lambda: by_component(LABELS, [[0, 1], [1, 2]]), "Label 1 is in more than one"),
        (lambda: by_component(LABELS, [[0, 1], [2, 3]]), "Label 4 is in no group"),
        (lambda: by_component(LABELS, [list(range(10)), [11]]), "silo-2 would hold no samples"),
        (lambda: by_component(LABELS, [list(range(10)), []]), "silo-2 would hold no samples"),
        (lambda: by_component(LABELS.float(), [[0]]), "one whole number a sample"),
        (lambda: by_component(LABELS[:0], []), "at least one sample"),
        (lambda: by_shards(LABELS, 200, 2, generator(0)), "200 silos with 2 shards each"),
        (lambda: by_shards(LABELS, 2, 0, generator(0)), "every silo needs a shard"),
        (lambda: dirichlet(LABELS, 3, 0.0, generator(0)), "must be positive and finite"),
        (lambda: dirichlet(LABELS, 200, 1.0, generator(0)), "300 samples cannot fill 200 silos"),
        (lambda: dirichlet(LABELS * 0, 5, 1e-3, generator(0)), "In 100 draws with alpha = 0.001"),
        (lambda: iid(3, 4, generator(0)), "cannot fill 4 silos"),
        (lambda: iid(3, 0, generator(0)), "at least one"),
        (lambda: by_attribute([]), "no values"),
        (lambda: by_attribute(["a", " ", "b"]), "Sample 1 has no value"),
    ],
)
def test_impossible_partitions_get_sentences(ask, sentence):
    with pytest.raises(AnabranchError, match=sentence) as caught:
        ask()
    assert isinstance(caught.value, UsageError | DataError)
