"""What a site knows of the labels of its points."""

import numpy as np
import pytest
from PIL import Image

from anabranch.sites import SiteData, SiteSettings, open_site, write_site


@pytest.mark.parametrize("given", [True, False])
@pytest.mark.parametrize("what", ["x", "images"])
def test_labels_of_an_archive_that_are_all_0_are_labels_all_the_same(tmp_path, what, given):
    write_site(tmp_path / "north", SiteSettings("north", SiteData("data.npz")))
    points = np.zeros((30, 2), np.float32) if what == "x" else np.zeros((30, 4, 4), np.uint8)
    label = {"label": np.zeros(30, dtype=int)} if given else {}
    np.savez(tmp_path / "north" / "data.npz", **{what: points}, **label)
    silo = open_site(tmp_path / "north").silo
    assert silo.labelled is given and not silo.own_classes


def test_classes_of_folders_are_counted_by_the_site_itself(tmp_path, monkeypatch):
    monkeypatch.setenv("ANABRANCH_DATA", str(tmp_path / "cache"))
    write_site(tmp_path / "north", SiteSettings("north", SiteData("folder:pets")))
    for name in ("cats/tom.png", "cats/kit.png", "dogs/rex.png"):
        path = tmp_path / "north" / "pets" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("L", (4, 4)).save(path)
    silo = open_site(tmp_path / "north").silo
    assert silo.labelled and silo.own_classes
