"""Configs are checked key by key and come back from JSON as they were."""

import json

import pytest

from anabranch.errors import UsageError
from anabranch.runs import Config, from_dict, from_toml, override


def test_a_config_survives_json():
    config = from_dict({"flow": {"rounds": 7}, "data": {"groups": [[0, 1], [2]]}, "seed": 3})
    assert from_dict(json.loads(json.dumps(config.to_dict()))) == config
    assert config.data.groups == ((0, 1), (2,))


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"flw": {}}, "did you mean 'flow'"),
        ({"flow": {"round": 3}}, "did you mean 'rounds'"),
        ({"flow": {"rounds": "many"}}, "flow.rounds is 'many'; a value of type int"),
        ({"flow": {"rounds": True}}, "flow.rounds is True"),
        ({"flow": {"rounds": 0}}, "must be at least 1"),
        ({"flow": 3}, "must be a section"),
        ({"flow": {"average": 1.0}}, "lies in [0, 1)"),
        ({"coupling": {"name": "minibach"}}, "did you mean 'minibatch'"),
        ({"flow": {"times": [1.0]}}, "flow.times is [1.0]; give a mean and a positive deviation"),
        ({"flow": {"times": [0.0, 0.0]}}, "a positive deviation"),
        ({"flow": {"times": [0.0, float("inf")]}}, "a positive deviation"),
        ({"flow": {"times": "early"}}, "flow.times is 'early'"),
        ({"coupling": {"group": 0}}, "at least one"),
        ({"coupling": {"pool": 0.5}}, "coupling.pool is 0.5; give 1 or more"),
        ({"flow": {"path": "target"}, "coupling": {"name": "minibatch"}}, "ignores x0"),
        ({"semidiscrete": {"count": 0}}, "must be at least 1"),
        ({"seed": 1.5}, "seed is 1.5"),
    ],
)
def test_bad_values_get_a_sentence(values, words):
    with pytest.raises(UsageError, match=None) as error:
        from_dict(values)
    assert words in str(error.value)


def test_whole_numbers_stand_for_floats():
    assert from_dict({"flow": {"rate": 1}}).flow.rate == 1.0
    assert from_dict({"flow": {"times": [0, 1]}}).flow.times == (0.0, 1.0)


def test_bare_keys_belong_to_the_first_section_that_has_them():
    changed = from_dict(override({}, ["rounds=20", "data.points=9", "name=minibatch", "seed=4"]))
    assert (changed.flow.rounds, changed.semidiscrete.rounds) == (20, Config().semidiscrete.rounds)
    assert (changed.data.points, changed.coupling.name, changed.seed) == (9, "minibatch", 4)


@pytest.mark.parametrize(
    ("method", "change", "place"),
    [
        ("lot", "rounds=3", ("flow", "rounds", 3)),
        ("lot", "precision=float64", ("flow", "precision", "float64")),
        ("fedwad", "rounds=3", ("distance", "rounds", 3)),
        ("fedwad", "support=3", ("distance", "support", 3)),
        ("fedflow", "rounds=3", ("federated", "rounds", 3)),
        ("dcfm-a", "rounds=3", ("peers", "rounds", 3)),
        ("dcfm-b", "precision=float64", ("experts", "precision", "float64")),
        ("dcfm-b", "novel=0.5", ("student", "novel", 0.5)),
    ],
)
def test_bare_keys_belong_to_what_the_method_looks_at(method, change, place):
    section, key, value = place
    assert override({"method": method}, [change]) == {"method": method, section: {key: value}}


@pytest.mark.parametrize(("method", "change"), [("lot", "support=7"), ("ddm", "rounds=3"), ("dcfm-a", "novel=1.0")])
def test_a_bare_key_of_what_a_method_does_not_look_at_is_unknown(method, change):
    with pytest.raises(UsageError, match="There is no key"):
        override({"method": method}, [change])


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("rounds", "write key=value"),
        ("rouns=3", "did you mean 'rounds'"),
        ("flow.rouns=3", "did you mean 'rounds'"),
        ("flaw.rounds=3", "did you mean 'flow'"),
        ("method=lot", "choose one with --method"),
    ],
)
def test_bad_changes_get_a_sentence(change, words):
    with pytest.raises(UsageError) as error:
        override({}, [change])
    assert words in str(error.value)


def test_own_toml_starts_from_a_preset_and_finds_files_beside_it(tmp_path):
    (tmp_path / "mine.toml").write_text('method = "sd-protected"\n[data]\nfiles = ["a.npy", "b.npy"]\n')
    config = from_toml(tmp_path / "mine.toml")
    assert (config.problem, config.coupling.name, config.coupling.group) == ("mine", "semidiscrete", 20)
    assert config.data.files[0] == str(tmp_path / "a.npy")


def test_another_method_takes_the_place_of_the_files_own(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text('method = "sd"\n[flow]\nrounds = 7\n')
    config = from_toml(path, "lot")
    assert (config.method, config.coupling.name, config.flow.rounds) == ("lot", "minibatch", 7)
    with pytest.raises(UsageError, match="did you mean 'lot'"):
        from_toml(path, "lott")


PETS = """
method = "lot"
[data]
target = "digits"
crop = 0.5
flip = "random"
[flow]
network = "unet"
[images]
shape = [1, 8, 8]
"""


def test_changes_count_before_what_comes_of_them_is_checked(tmp_path):
    """The command of docs/data.md: pictures that another method can only train on with other settings."""
    path = tmp_path / "pets.toml"
    path.write_text(PETS)
    with pytest.raises(UsageError, match="--set flip=points --set crop=1"):
        from_toml(path, "sd")
    config = from_toml(path, "sd", ["flip=points", "crop=1", "seed=3", "flow.rounds=9"])
    assert (config.method, config.data.flip, config.data.crop, config.seed) == ("sd", "points", 1.0, 3)
    path.write_text(PETS.replace('network = "unet"', "rounds = 7"))
    with pytest.raises(UsageError, match="describes a UNet"):
        from_toml(path, changes=["images.channels=32"])
    config = from_toml(path, changes=["network=unet", "evaluation.batches=5"])
    assert (config.flow.rounds, config.evaluation.points, config.evaluation.batches) == (7, 64, 5)  # judged briefly
    path.write_text("flow = 3\n")
    with pytest.raises(UsageError, match="'flow' must be a section"):
        from_toml(path, changes=["rounds=9"])


def test_images_are_judged_briefly_unless_asked_otherwise(tmp_path):
    path = tmp_path / "mine.toml"
    text = '[flow]\nnetwork = "unet"\n[images]\nshape = [1, 8, 8]\n'
    path.write_text(text)
    assert (from_toml(path).evaluation.nfe, from_toml(path).evaluation.points) == ((1, 3, 10), 64)
    path.write_text(text + "[evaluation]\npoints = 5\n")
    assert from_toml(path).evaluation.points == 5 and 100 in from_toml(path).evaluation.nfe


def test_a_section_that_the_network_would_not_look_at_is_refused():
    with pytest.raises(UsageError, match=r"flow.network is 'mlp'.*write network = \"unet\""):
        from_dict({"images": {"shape": [3, 16, 16], "channels": 32}})
    assert from_dict({"images": {"shape": [3, 16, 16]}}).images.shape == (3, 16, 16)  # how samples are shown


@pytest.mark.parametrize("data", [{"flip": "random"}, {"crop": 0.5, "flip": "points"}])
def test_images_that_differ_at_every_draw_are_refused_for_semi_discrete_pairs(data):
    digits = {"target": "digits", **data}
    with pytest.raises(UsageError, match=r"assigns noises to images as they lie.*flip = 'points'"):
        from_dict({"method": "sd", "coupling": {"name": "semidiscrete"}, "data": digits})
    assert from_dict({"method": "lot", "data": digits}).data.target == "digits"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("method = 'sdd'", "did you mean 'sd'"),
        ("method = ['ddm']", "There is no method '['ddm']'"),
        ("[flow", "not valid TOML"),
        (None, "cannot be read"),
    ],
)
def test_bad_toml_gets_a_sentence(tmp_path, text, words):
    path = tmp_path / "mine.toml"
    if text is not None:
        path.write_text(text)
    with pytest.raises(UsageError) as error:
        from_toml(path)
    assert words in str(error.value)
