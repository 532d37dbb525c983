"""From a folder to a site: the same silo as in a simulation, and a sentence for data that cannot be used."""

import numpy as np
import pytest
import torch

from anabranch.data import Points
from anabranch.errors import DataError, UsageError
from anabranch.federation import (
    Clip,
    Envelope,
    Federation,
    Join,
    Noise,
    Refused,
    Silo,
    decode,
    encode_question,
    read_log,
)
from anabranch.methods.tables import agree
from anabranch.runs import build_silos, from_dict
from anabranch.sites import SiteData, SitePrivacy, SiteSettings, go_back, open_site, withdraw, write_site


def simulated(path):
    return build_silos(from_dict({"data": {"files": [str(path)], "held_out": 0.3, "seed": 4}}))[0][0]


def opened(folder, data, **more):
    write_site(folder, SiteSettings(data.stem, SiteData(str(data), held_out=0.3, seed=4, **more)))
    return open_site(folder)


def test_points_are_held_out_as_in_a_simulation(tmp_path, lab):
    data = lab.array(tmp_path / "north.npy")
    site, wanted = opened(tmp_path / "site", data), simulated(data)
    assert torch.equal(site.silo.data.x, wanted.data.x) and torch.equal(site.silo.held_out, wanted.held_out)
    assert (len(site.silo), len(site.silo.held_out)) == (42, 18)


def test_rows_of_a_table_are_held_out_as_in_a_simulation(tmp_path, lab):
    data = lab.table(tmp_path / "north.csv")
    site, wanted = opened(tmp_path / "site", data), simulated(data)
    assert site.silo.held_out is None  # not before the table is encoded
    agree(Federation([site.silo]))
    assert torch.equal(site.silo.data.x, wanted.data.x) and torch.equal(site.silo.held_out, wanted.held_out)
    assert (len(site.silo), len(site.silo.held_out)) == (42, 18)


def test_encoding_again_holds_the_same_rows_out(tmp_path, lab):
    silo = opened(tmp_path / "site", lab.table(tmp_path / "north.csv")).silo
    agree(Federation([silo]))
    first = silo.data.x, silo.held_out
    agree(Federation([silo]))
    assert torch.equal(silo.data.x, first[0]) and torch.equal(silo.held_out, first[1])


def test_holding_out_must_be_said_before_points_come():
    silo = Silo("a", torch.zeros(5, 2))
    with pytest.raises(UsageError, match="already"):
        silo.hold_out(0.5, seed=0)
    with pytest.raises(UsageError, match="lie in"):
        Silo("a", None).hold_out(1.0, seed=0)


def test_too_few_are_left_to_train_on(tmp_path):
    silo = Silo("a", None)
    silo.hold_out(0.5, seed=0)
    with pytest.raises(DataError, match="with 1 held out, holds only 1 point"):
        silo.hold(Points(torch.zeros(2, 2), torch.zeros(2, dtype=torch.long)))


def test_only_the_columns_asked_for_are_held(tmp_path, lab):
    site = opened(tmp_path / "site", lab.table(tmp_path / "north.csv"), columns=("ward", "age"))
    assert site.silo.table.names == ("ward", "age")


def test_guards_are_those_of_a_simulation(tmp_path, lab):
    data = lab.array(tmp_path / "a.npy")
    write_site(tmp_path / "s", SiteSettings("a", SiteData(str(data)), privacy=SitePrivacy(0.1, 2.0, 0.3)))
    gradients = ("ffm.gradient.reply", "ffm.potential.reply")
    wanted = (Clip(2.0, gradients), Noise(0.3, gradients), Noise(0.1, ("ffm.lookup.reply",)))
    assert open_site(tmp_path / "s").postprocessors == wanted


def test_the_folder_is_the_silos_own(tmp_path, lab, monkeypatch):
    secret = 1234567890123456789
    folder = lab.site(tmp_path / "north", secret=secret)
    monkeypatch.chdir(tmp_path)
    site = open_site(folder.relative_to(tmp_path))
    monkeypatch.chdir("/")
    assert (site.silo.name, site.silo.secret, site.silo.folder) == ("north", secret, folder / "state")
    ask = encode_question(Envelope("run", 0, 1, Join(1)))
    assert not isinstance(decode(site.answer(ask)), Refused)
    withdraw(folder)
    assert "withdrawn" in decode(site.answer(ask)).sentence
    go_back(folder)
    assert not isinstance(decode(site.answer(ask)), Refused)
    verdicts = [entry["verdict"] for entry in read_log(folder / "audit.jsonl")]
    assert verdicts == ["answered", "refused", "repeated"]
    assert str(secret) not in (folder / "audit.jsonl").read_text()


def test_the_policy_of_the_file_is_enforced(tmp_path, lab):
    site = open_site(lab.site(tmp_path / "a", kinds=("join",), smallest_group=1000))
    reply = decode(site.answer(encode_question(Envelope("run", 0, 1, Join(1)))))
    assert isinstance(reply, Refused) and "fewer than 1000 points" in reply.sentence


@pytest.mark.parametrize(
    ("name", "content", "more", "error", "words"),
    [
        ("a.csv", None, {}, DataError, "cannot be read"),
        ("a.npy", None, {}, DataError, "cannot be read"),
        ("a.csv", "", {}, DataError, "is empty"),
        ("a.csv", "age,ward\n", {}, DataError, "has 0 rows"),
        ("a.csv", "age,ward\n3,x\n", {}, DataError, "has 1 rows"),
        ("a.csv", "age,ward\n3,x\n4\n", {}, DataError, "Line 3"),
        ("a.csv", "age,ward\n3,x\n4,y\n", {"columns": ("age", "wards")}, UsageError, "did you mean 'ward'"),
        ("a.csv", b"\xff\xfe\x00", {}, DataError, "not CSV text"),
        ("a.npy", b"nothing", {}, DataError, "does not hold plain arrays"),
        ("a.npy", np.zeros((0, 2)), {}, DataError, "holds no points"),
        ("a.npy", np.zeros((1, 2)), {}, DataError, "only 1 point"),
        ("a.npy", np.array([[0.0, 1.0], [np.nan, 2.0], [3.0, 4.0]]), {}, DataError, "not finite, the first in row 2"),
        ("a.npy", np.array([["x", "y"]]), {}, DataError, "real numbers"),
    ],
)
def test_data_that_cannot_be_used_gets_a_sentence(tmp_path, name, content, more, error, words):
    path = tmp_path / name
    if isinstance(content, str):
        path.write_text(content)
    elif isinstance(content, bytes):
        path.write_bytes(content)
    elif content is not None:
        np.save(path, content)
    write_site(tmp_path / "site", SiteSettings("a", SiteData(str(path), **more)))
    with pytest.raises(error, match=words):
        open_site(tmp_path / "site")
