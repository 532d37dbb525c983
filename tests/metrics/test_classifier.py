"""The judge of attributes: it learns, it repeats, it is kept, and it counts right."""

import math

import pytest
import torch

from anabranch.errors import DataError, UsageError
from anabranch.metrics import AttributeClassifier, Conformity, conformity
from anabranch.seeds import generator

MODES = torch.tensor([[-1.0, -1.0], [-1.0, 1.0], [1.0, -1.0], [1.0, 1.0]])


def modes(count, *names):
    """Four Gaussians; the attributes are the signs."""
    x = MODES.repeat(count, 1) + 0.2 * torch.randn(4 * count, 2, generator=generator(0, "modes", *names))
    return x, (MODES > 0).long().repeat(count, 1)


def patches(count, side, *names):
    """Noise with a bright stripe, which lies or stands, in one of three colours."""
    draw = generator(0, "patches", *names)
    codes = torch.stack([torch.randint(0, size, (count,), generator=draw) for size in (2, 3)], dim=1)
    images = -1 + 0.2 * torch.rand(count, 3, side, side, generator=draw)
    for image, (way, colour) in zip(images, codes.tolist(), strict=True):
        place = int(torch.randint(0, side - 1, (), generator=draw))
        stripe = image[colour] if way == 0 else image[colour].T
        stripe[place : place + 2] += 1.5
    return images.flatten(1), codes


@pytest.fixture(scope="module")
def judge():
    return AttributeClassifier.fit(*modes(60, "train"), epochs=30)


def test_points_are_judged_right(judge):
    found = judge.accuracy(*modes(100, "test"))
    assert found.all_right > 0.99 and min(found.each) > 0.99 and judge.sizes == (2, 2)
    assert judge.features(MODES).shape == (4, 128)


@pytest.mark.parametrize("side", [8, 19])
def test_images_are_judged_right_whatever_their_size(side):
    x, codes = patches(300, side, "train")
    found = AttributeClassifier.fit(x, codes, (3, side, side), epochs=6).accuracy(*patches(100, side, "test"))
    assert found.all_right > 0.95, found


def test_large_images_are_halved_until_they_are_small():
    found = AttributeClassifier.fit(torch.zeros(4, 70 * 40), torch.zeros(4, 1).long(), (1, 70, 40), epochs=1)
    strides = [part.stride[0] for part in found.module.body if isinstance(part, torch.nn.Conv2d)]
    assert strides.count(2) == 2 and found.features(torch.zeros(2, 70 * 40)).shape == (2, 128)


def test_digits_are_judged_right():
    pytest.importorskip("sklearn")
    from anabranch.data import load_images

    train, test = (load_images("digits", split) for split in ("train", "test"))
    x, y = (2 * part.points() - 1 for part in (train, test))
    found = AttributeClassifier.fit(x, train.label[:, None], (1, 8, 8), epochs=8)
    assert found.accuracy(y, test.label[:, None]).all_right > 0.95


def test_a_judge_follows_from_its_seed_and_leaves_the_global_state_alone(judge):
    torch.rand(3)  # the state is another than when the first was fitted
    before = torch.get_rng_state()
    again = AttributeClassifier.fit(*modes(60, "train"), epochs=30)
    other = AttributeClassifier.fit(*modes(60, "train"), epochs=30, seed=1)
    assert torch.equal(before, torch.get_rng_state())
    for name, value in judge.tensors().items():
        assert torch.equal(value, again.tensors()[name]), name
    assert not torch.equal(judge.features(MODES), other.features(MODES))


@pytest.mark.parametrize("shape", [None, (3, 8, 8)])
def test_a_judge_is_kept_in_a_file(tmp_path, judge, shape):
    x = MODES
    if shape:
        x, codes = patches(40, 8)
        judge = AttributeClassifier.fit(x, codes, shape, sizes=(2, 5), epochs=1)
    judge.save(tmp_path / "judge.safetensors")
    again = AttributeClassifier.load(tmp_path / "judge.safetensors")
    assert again.sizes == judge.sizes and again.shape == shape and torch.equal(again.features(x), judge.features(x))
    assert torch.equal(again.predict(x), judge.predict(x))


def test_files_that_are_no_judge_are_refused(tmp_path, judge):
    tensors = judge.tensors()
    wrong = {"centre": torch.zeros(3)}, {"judge.sizes": torch.tensor([2])}, {"judge.shape": torch.tensor([1, 2])}
    for change in wrong:
        with pytest.raises(DataError, match="are no judge of attributes"):
            AttributeClassifier.of_tensors(tensors | change)
    with pytest.raises(DataError, match="are no judge of attributes"):
        AttributeClassifier.of_tensors({})
    (tmp_path / "judge").write_bytes(b"nonsense")
    for name in ("judge", "none"):
        with pytest.raises(DataError, match="cannot be read as a judge"):
            AttributeClassifier.load(tmp_path / name)


def test_conformity_counts_what_was_asked_for(judge):
    wanted = torch.tensor([[0, 0], [0, 1], [1, 1], [0, 0]])  # right, right, second wrong, both wrong
    assert conformity(judge, MODES, wanted) == Conformity(0.5, (0.75, 0.5))
    assert conformity(judge, MODES, torch.tensor([0, 1])) == Conformity(0.25, (0.5, 0.5))
    found = conformity(judge, MODES, torch.tensor([0, -1]))
    assert found.all_right == found.each[0] == 0.5 and math.isnan(found.each[1])


def test_samples_that_are_not_finite_show_nothing(judge):
    wanted = torch.tensor([[0, 0], [1, 1]])
    broken = torch.tensor([[-1.0, -1.0], [1.0, math.nan]])
    assert conformity(judge, broken, wanted) == Conformity(0.5, (0.5, 0.5))
    assert conformity(judge, broken.nan_to_num(math.inf), wanted).all_right <= 1


def test_attributes_that_are_not_given_are_left_out():
    x, codes = modes(60, "train")
    hidden = torch.rand(codes.shape, generator=generator(0, "hidden")) < 0.5
    found = AttributeClassifier.fit(x, codes.masked_fill(hidden, -1), epochs=30)
    assert found.accuracy(*modes(50, "test")).all_right > 0.98


def test_one_step_is_enough_to_run():
    x, codes = modes(1)
    assert AttributeClassifier.fit(x, codes, epochs=1).predict(x).shape == (4, 2)


def test_what_cannot_be_learned_is_refused(judge):
    x, codes = modes(5)
    with pytest.raises(UsageError, match=r"give \(n, d\) and \(n, k\)"):
        AttributeClassifier.fit(x, codes[:, 0])
    with pytest.raises(UsageError, match="8 × 8 is the smallest"):
        AttributeClassifier.fit(torch.zeros(20, 16), codes, (1, 4, 4))
    with pytest.raises(UsageError, match=r"sizes are \(2, 1\)"):
        AttributeClassifier.fit(x, codes, sizes=(2, 1))
    with pytest.raises(DataError, match="at least once"):
        AttributeClassifier.fit(x, torch.full_like(codes, -1))
    with pytest.raises(DataError, match="not finite"):
        AttributeClassifier.fit(x / 0, codes)
    with pytest.raises(UsageError, match="epochs"):
        AttributeClassifier.fit(x, codes, epochs=0)
    with pytest.raises(UsageError, match=r"wants rows \(n, 2\)"):
        judge.predict(torch.zeros(3, 5))
    with pytest.raises(UsageError, match="the judge knows 2"):
        conformity(judge, x, torch.zeros(20, 3).long())
