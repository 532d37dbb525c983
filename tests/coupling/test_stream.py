"""Points by number: the same whoever asks for them, and as good as random."""

import pytest
import torch
from scipy import stats

from anabranch.coupling import Noises, SemiDiscrete, Stream
from anabranch.coupling._stream import points_together, uniforms
from anabranch.data import SHAPES, Cloud, Points, shape
from anabranch.seeds import generator

ROWS = 4000


@pytest.fixture(scope="module")
def normal():
    return Stream(shape("gaussian", 200), 2024).points(torch.arange(ROWS)).double()


class TestByNumber:
    def test_the_numbers_are_those_of_splitmix64(self):
        """Its first output from zero is e220a8397b1dcdaf (Vigna's reference), here the start of row one, seed zero."""
        start, words, everything = 0xE220A8397B1DCDAF, [], 2**64 - 1
        for k in (1, 2):
            z = (start + k * 0x9E3779B97F4A7C15) & everything
            z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & everything
            z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & everything
            words.append(z ^ (z >> 31))
        halves = [word >> shift & 0xFFFFFFFF for word in words for shift in (0, 32)]
        expected = [((half >> 9) + 0.5) / 2**23 for half in halves][:3]
        assert uniforms(0, torch.tensor([1]), 3).tolist() == [expected]

    @pytest.mark.parametrize("name", SHAPES)
    def test_a_row_is_what_it_is_whoever_else_is_asked_for(self, name):
        stream, rows = Stream(shape(name), 5), torch.arange(3000) + 2**40
        everything, order = stream.points(rows), torch.randperm(3000, generator=generator(0))
        assert torch.equal(stream.points(rows[order]), everything[order])
        assert torch.equal(stream.points(rows[17:18]), everything[17:18])

    def test_passes_on_a_cpu_change_nothing(self, monkeypatch):
        stream, rows = Stream(shape("gaussian", 7), 5), torch.arange(100)
        together = stream.points(rows)
        monkeypatch.setattr("anabranch.coupling._stream._PASS", 20)
        assert torch.equal(stream.points(rows), together)

    def test_seeds_rows_and_columns_all_matter(self):
        base = uniforms(1, torch.arange(50), 5)
        assert base.unique().numel() == 250
        for other in (uniforms(2, torch.arange(50), 5), uniforms(1, torch.arange(50) + 2**32, 5)):
            assert not torch.isin(other, base).any()
        assert torch.equal(uniforms(1, torch.arange(50), 4), base[:, :4])

    def test_uniform_numbers_stay_off_the_ends(self):
        u = uniforms(3, torch.arange(2000), 1001)
        assert u.dtype == torch.float32 and 0 < u.min() < 1e-5 and 1 - 1e-5 < u.max() < 1

    def test_a_cloud_gives_its_own_points_each_as_often(self):
        cloud = torch.arange(20.0)[:, None].repeat(1, 2)
        found = Stream(Cloud(cloud), 1).points(torch.arange(20_000))[:, 0].long()
        assert stats.chisquare(torch.bincount(found, minlength=20)).pvalue > 0.001


class TestNormal:
    """Bounds are five standard errors or p-values of one in a thousand, for one fixed seed."""

    def test_moments(self, normal):
        many = normal.numel() ** 0.5
        assert abs(normal.mean()) < 5 / many
        assert abs(normal.square().mean() - 1) < 5 * 2**0.5 / many
        assert abs(normal.pow(3).mean()) < 5 * 15**0.5 / many
        assert abs(normal.pow(4).mean() - 3) < 5 * 96**0.5 / many

    def test_covariances_of_columns_and_of_rows(self, normal):
        columns = normal.T @ normal / ROWS - torch.eye(200)
        assert columns.abs().max() < 5.5 * 2**0.5 / ROWS**0.5
        assert abs(columns.square().sum() * ROWS / (200 * 201) - 1) < 0.05  # its expectation, were all independent
        some = normal[:200] @ normal[:200].T / 200 - torch.eye(200)
        assert some.abs().max() < 5.5 * 2**0.5 / 200**0.5

    @pytest.mark.parametrize("power", [1, 2])
    def test_neighbours_know_nothing_of_each_other(self, normal, power):
        x = normal.pow(power)
        x = (x - x.mean()) / x.std()
        for lag in (1, 2, 64):
            for one, other in ((x[lag:], x[:-lag]), (x[:, lag:], x[:, :-lag])):
                assert abs((one * other).mean()) * one.numel() ** 0.5 < 5

    def test_kolmogorov_and_smirnov(self, normal):
        assert stats.kstest(normal.flatten().numpy(), "norm").pvalue > 0.001
        assert stats.kstest(normal[:, 0].numpy(), "norm").pvalue > 0.001
        # Squared lengths of rows, which would betray rows that are alike inside.
        assert stats.kstest(normal.square().sum(1).numpy(), stats.chi2(200).cdf).pvalue > 0.001

    def test_blocks_of_numbers_far_apart_are_strangers(self):
        stream = Stream(shape("gaussian", 200), 9)
        one, other = (stream.points(torch.arange(1000) + block * 2**32).double() for block in (0, 1))
        assert abs((one * other).mean()) * one.numel() ** 0.5 < 5


class TestNoises:
    def noises(self, start=0, seed=3, dtype=torch.float32):
        return Noises(Stream(shape("gaussian", 4), seed), torch.arange(start, start + 60, 2), dtype)

    def test_they_are_the_rows_of_the_stream(self):
        noises = self.noises(dtype=torch.float64)
        everything = noises.stream.points(torch.arange(60)).double()[::2]
        index = torch.tensor([5, 0, 5])
        assert noises[:].dtype == torch.float64
        assert (
            len(noises) == 30 and torch.equal(noises[:], everything) and torch.equal(noises[index], everything[index])
        )

    @pytest.mark.parametrize("seeds", [(3, 3), (3, 4)], ids=["one stream", "two"])
    def test_many_holders_get_what_each_would_get(self, seeds):
        noises = [self.noises(100 * i, seed) for i, seed in enumerate(seeds)]
        index = [torch.tensor([1, 7]), torch.tensor([29])]
        found = points_together(noises, index)
        assert all(torch.equal(part, n[i]) for part, n, i in zip(found, noises, index, strict=True))

    def test_a_table_of_numbers_draws_the_pairs_of_a_table_of_noises(self):
        noises, index = self.noises(), torch.arange(30) % 10
        data = Points(torch.randn(10, 4, generator=generator(0)), torch.arange(10))
        lazy, eager = (
            SemiDiscrete(noise, index).draw(data, shape("gaussian", 4), 16, generator(1), generator(2))
            for noise in (noises, noises[:])
        )
        for name in ("x0", "x1", "index0", "index1", "label"):
            assert torch.equal(getattr(lazy, name), getattr(eager, name))
