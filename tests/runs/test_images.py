"""Runs on sets of images: who holds them, what the network must fit, and pictures of samples."""

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from anabranch.cli._verbs import app
from anabranch.data import Pixels
from anabranch.engines._trial import write_sites
from anabranch.errors import DataError, UsageError
from anabranch.runs import build_silos, from_dict, resume, train
from anabranch.sites import open_site
from tests.runs.test_resume import Killed, assert_same_end, killer

IMAGES = {"shape": [1, 8, 8], "channels": 4, "multipliers": [1, 2], "blocks": 1, "attention": [], "dropout": 0.0}
QUICK = {
    "method": "vanilla",
    "data": {"target": "digits", "partition": "dirichlet", "images": 120, "held_out": 0.2},
    "flow": {"network": "unet", "rounds": 2, "batch": 8},
    "images": IMAGES,
    "evaluation": {"points": 16, "nfe": [1]},
}


def config(**sections):
    return from_dict({**QUICK, **{name: {**QUICK.get(name, {}), **values} for name, values in sections.items()}})


def test_silos_hold_bytes_and_keep_some_from_training():
    silos, _ = build_silos(config(data={"flip": "random"}))
    assert [type(silo.data) for silo in silos] == [Pixels, Pixels] and silos[0].data.flip == "random"
    held = sum(len(silo.held_out) for silo in silos)
    assert sum(map(len, silos)) + held == 120 and 20 <= held <= 28
    assert float(silos[0].held_out.min()) == -1 and float(silos[0].held_out.max()) == 1


def test_pooled_and_smaller():
    (silo,), _ = build_silos(config(data={"pooled": True, "side": 4, "held_out": 0.0}, images={"shape": [1, 4, 4]}))
    (whole,), _ = build_silos(config(data={"pooled": True, "held_out": 0.0}))
    assert len(silo) == 120 and silo.data.shape == (1, 4, 4)
    averaged = torch.nn.functional.avg_pool2d(whole.data.x.reshape(-1, 1, 8, 8), 2).flatten(1)
    assert float((silo.data.x - averaged).abs().max()) < 0.5 / 127.5 + 1e-6  # a byte is rounded


def test_mirror_images_count_as_points_for_the_training_part():
    silos, _ = build_silos(config(data={"flip": "points"}))
    assert sum(map(len, silos)) == 2 * (120 - sum(len(silo.held_out) for silo in silos))


def test_trains_and_draws_a_sheet(tmp_path):
    train(config(), tmp_path / "run")
    result = CliRunner().invoke(app, ["sample", str(tmp_path / "run"), "--n", "4", "--out", str(tmp_path / "x.png")])
    assert result.exit_code == 0, result.output
    from matplotlib.image import imread

    from anabranch.report import write_report
    from anabranch.runs import RunFolder

    kept = RunFolder(tmp_path / "run").load_arrays("samples.npz")
    assert kept["images_1"].shape == (16, 1, 8, 8) and kept["images_1"].dtype == np.uint8 and len(kept) == 1
    write_report([tmp_path / "run"], tmp_path / "report.html")
    assert min(imread(next((tmp_path / "figures").glob("images-*.png"))).shape[:2]) > 150
    assert min(imread(tmp_path / "x.png").shape[:2]) > 200
    result = CliRunner().invoke(app, ["sample", str(tmp_path / "run"), "--n", "4", "--out", str(tmp_path / "x.npy")])
    assert np.load(tmp_path / "x.npy").shape == (4, 64)


@pytest.mark.parametrize(
    ("sections", "kind", "sentence"),
    [
        ({"images": {"shape": [3, 8, 8]}}, UsageError, r"images of 'digits' are .*write images.shape = \[1, 8, 8\]"),
        ({"data": {"images": 10**6}}, UsageError, "training images"),
        ({"data": {"side": 9}}, UsageError, "can only be made smaller"),
    ],
)
def test_what_does_not_fit_the_set_is_refused(sections, kind, sentence):
    with pytest.raises(kind, match=sentence):
        build_silos(config(**sections))


@pytest.mark.parametrize(
    ("sections", "sentence"),
    [
        ({"data": {"flip": "up"}}, "way of flipping images 'up'"),
        ({"data": {"side": -1}}, "neither can be negative"),
        ({"data": {"target": "moons"}}, "are for images, and data.target is 'moons'"),
        ({"data": {"target": "x.npz", "attributes": ["town"], "flip": "random"}}, "have attributes: they are taken as"),
        ({"run": {"device": "tpu"}}, "device 'tpu'"),
    ],
)
def test_settings_that_cannot_be_are_refused(sections, sentence):
    with pytest.raises(UsageError, match=sentence):
        config(**sections)


class TestArchives:
    """Images in `.npz` files, as `anabranch sample` writes them."""

    @pytest.fixture
    def files(self, tmp_path):
        random = np.random.default_rng(0)
        for name, shape in (("north", (8, 8)), ("south", (8, 8)), ("wide", (4, 16))):
            np.savez(tmp_path / f"{name}.npz", images=random.integers(0, 256, (40, *shape), dtype=np.uint8))
        np.savez(tmp_path / "rows.npz", x=random.standard_normal((40, 64)))
        np.savez(tmp_path / "town.npz", images=np.zeros((40, 8, 8), np.uint8), town=np.arange(40) % 3)
        return lambda *names: [str(tmp_path / f"{name}.npz") for name in names]

    def test_are_bytes_that_are_mirrored_cropped_drawn_and_made_smaller(self, files):
        data = {
            "files": files("north", "south"),
            "images": 20,
            "side": 4,
            "flip": "random",
            "crop": 0.5,
            "held_out": 0.2,
        }
        silos, _ = build_silos(config(data=data, images={"shape": [1, 4, 4]}))
        assert [silo.name for silo in silos] == ["north", "south"]
        for silo in silos:
            assert (silo.data.shape, silo.data.flip, silo.data.crop) == ((1, 4, 4), "random", 0.5)
            assert len(silo.data.bytes) == 16 and len(silo.held_out) == 4
        whole = config(data={"files": files("north"), "images": 0, "held_out": 0.0})
        assert np.array_equal(
            build_silos(whole)[0][0].data.bytes.numpy(), np.load(files("north")[0])["images"].reshape(40, 64)
        )

    def test_one_is_divided_by_an_attribute(self, files):
        data = {"target": files("town")[0], "partition": "attribute", "attribute": "town", "images": 0, "held_out": 0.0}
        assert [(silo.name, len(silo), silo.data.shape) for silo in build_silos(config(data=data))[0]] == [
            ("0", 14, (1, 8, 8)),
            ("1", 13, (1, 8, 8)),
            ("2", 13, (1, 8, 8)),
        ]

    def test_each_archive_has_a_draw_of_its_own(self, files, tmp_path):
        np.savez(tmp_path / "again.npz", images=np.load(files("north")[0])["images"])
        first, second = build_silos(config(data={"files": files("north", "again"), "images": 20, "held_out": 0.0}))[0]
        assert not torch.equal(first.data.bytes, second.data.bytes)

    def test_of_those_that_are_divided_by_an_attribute_none_is_drawn(self, files):
        data = {"target": files("town")[0], "partition": "attribute", "attribute": "town", "images": 20}
        with pytest.raises(UsageError, match="whose values are of all; leave one of the two out"):
            build_silos(config(data=data))

    @pytest.mark.parametrize(
        ("names", "kind", "sentence"),
        [
            (("wide",), UsageError, r"images of the silos are \[1, 4, 16\]; write images.shape = \[1, 4, 16\]"),
            (("north", "wide"), DataError, "Images of 'north' are 1 x 8 x 8 .* those of 'wide' 1 x 4 x 16"),
            (("north", "rows"), DataError, "Silo 'north' holds images, 'rows' points without a shape"),
        ],
    )
    def test_of_another_shape_are_refused(self, files, names, kind, sentence, tmp_path):
        """As many numbers, in other rows: nothing else would notice."""
        settings = config(data={"files": files(*names), "images": 0})
        with pytest.raises(kind, match=sentence):
            build_silos(settings)
        if len(names) > 1:
            with pytest.raises(kind, match=sentence):
                write_sites(settings, tmp_path / "sites")

    @pytest.mark.parametrize("other", ["wide", "rows"])
    def test_of_another_shape_have_a_distance(self, files, other, tmp_path):
        """A distance compares numbers, of which there are as many."""
        data = {"files": files("north", other), "images": 0, "flip": "none"}
        compared = from_dict({"method": "fedwad", "data": data, "distance": {"rounds": 2, "support": 10}})
        (found,) = [row["value"] for row in train(compared, tmp_path / "run") if row["metric"] == "distance"]
        assert found > 0
        for name in write_sites(compared, tmp_path / "sites"):
            (held,) = (tmp_path / "sites").glob(f"{name}*/data.npz")
            assert np.load(held).files[0] == ("x" if name == "rows" else "images")

    @pytest.mark.parametrize(
        ("images", "sentence"),
        [
            (np.zeros((40, 0, 8), np.uint8), r"'odd.npz' holds images of shape \(40, 0, 8\): none has a pixel"),
            (np.zeros((0, 8, 8), np.uint8), "'odd.npz' holds no images"),
            (np.zeros((1, 8, 8), np.uint8), "Silo 'odd' holds 1 image; .*at least [23] are needed"),
        ],
    )
    @pytest.mark.parametrize("held_out", [0.0, 0.2])
    def test_without_pixels_or_with_too_few_of_them_are_refused_by_name(self, tmp_path, images, sentence, held_out):
        np.savez(tmp_path / "odd.npz", images=images)
        with pytest.raises(DataError, match=sentence):
            build_silos(config(data={"files": [str(tmp_path / "odd.npz")], "images": 0, "held_out": held_out}))

    def test_two_are_too_few_where_one_is_held_out(self, tmp_path):
        np.savez(tmp_path / "odd.npz", images=np.zeros((2, 8, 8), np.uint8))
        chosen = {"files": [str(tmp_path / "odd.npz")], "images": 0, "held_out": 0.2}
        with pytest.raises(DataError, match=r"Silo 'odd' holds 2 images; with data\.held_out at least 3 are needed"):
            build_silos(config(data=chosen))

    def test_rows_are_not_mirrored(self, files):
        with pytest.raises(DataError, match=r"holds no array 'images', and data\.images"):
            build_silos(config(data={"files": files("rows"), "images": 0, "flip": "random"}))
        with pytest.raises(UsageError, match=r"are for images, and what data\.files name is none"):
            config(data={"files": ["a.csv", "b.csv"]})


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_there_is_said():
    with pytest.raises(UsageError, match="there is no GPU here"):
        build_silos(config(run={"device": "cuda"}))


@pytest.mark.parametrize("flip", ["random", "points"])
def test_sites_of_a_trial_hold_the_same_bytes_and_mirror_them_alike(tmp_path, flip):
    settings = config(data={"flip": flip})
    write_sites(settings, tmp_path)
    for silo in build_silos(settings)[0]:
        held = open_site(tmp_path / silo.name).silo.data
        assert held.bytes.cpu().equal(silo.data.bytes.cpu()) and len(held) == len(silo.data) and held.flip == flip


@pytest.mark.parametrize("coupling", ["minibatch", "potential", "balanced", "semidiscrete"])
def test_a_run_that_was_killed_ends_bit_equal(tmp_path, coupling):
    """With dropout, mirror images and a potential of convolutions, which two dimensions do not have."""
    settings = config(
        data={"flip": "points" if coupling == "semidiscrete" else "random"},
        flow={"rounds": 6},
        images={"dropout": 0.2},
        coupling={"name": coupling, "candidates": 8},
        potential={"network": "cnn-potential", "before": 1, "every": 1, "batch": 8},
        semidiscrete={"rounds": 6, "count": 16, "noises": 64, "block": 16},
        run={"checkpoint_every": 2},
    )
    train(settings, tmp_path / "whole")
    with pytest.raises(Killed):
        train(settings, tmp_path / "killed", killer(5))
    resume(tmp_path / "killed")
    assert_same_end(tmp_path / "killed", tmp_path / "whole")
