"""Can a site take part, and at what cost? The estimate is compared with a run."""

from collections import Counter

import pytest

from anabranch.errors import DataError
from anabranch.methods.ffm import PRESETS
from anabranch.runs import from_dict, merged, train
from anabranch.sites import check_site, go_back, kinds_of, withdraw
from anabranch.sites._rehearse import LATENCY, estimate
from anabranch.sites._settings import read_site


def config(lab, method="sd", **changes):
    return from_dict(merged(PRESETS[method], lab.tiny, changes))


def text(table):
    return "\n".join(" | ".join(line) for line in table)


def test_a_sound_site_can_take_part(tmp_path, lab):
    found = check_site(lab.site(tmp_path / "a", "sd", limits={"ffm.lookup": 5000}), config(lab))
    assert found.ok and not found.warnings
    facts, kinds = text(found.facts), text(found.kinds)
    assert "60: 45 to train on, 15 held out" in facts and "dimension | 2" in facts
    assert "port (8002 by default)" in facts and "MB of this check" in facts and "35 rounds" in facts
    assert "how many points the silo trains on" in kinds and "| 5000" in kinds
    assert [line[0] for line in found.kinds[1:]] == list(kinds_of("sd"))


def test_a_table_is_described_by_its_columns(tmp_path, lab):
    found = check_site(lab.site(tmp_path / "a", "vanilla", "rows.csv"), config(lab, "vanilla"))
    assert found.ok and "age (numeric), stay (numeric), ward (categorical)" in text(found.facts)
    assert "tables.summarise" in text(found.costs)


def test_a_check_leaves_the_folder_as_it_is(tmp_path, lab):
    folder = lab.site(tmp_path / "a", "sd")
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    check_site(folder, config(lab))
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize("method", ["vanilla", "got", "sd"])
def test_the_estimate_is_what_a_run_sends(tmp_path, lab, method):
    folder = lab.site(tmp_path / "points", method)
    own = {"data": {"files": [str(folder / "points.npy")], "held_out": 0.25}, "federation": {"fused": False}}
    settings = config(lab, method, **own)
    rows = train(settings, tmp_path / "run")
    costs = estimate(folder, read_site(folder), settings)
    for metric, total in (("bytes_down", "bytes_down"), ("bytes_up", "bytes_up")):
        counted = Counter()
        for cost in costs:
            counted[cost.asked.kind] += getattr(cost, total)
        for row in (row for row in rows if row["metric"] == metric and row["kind"] not in ("done",)):
            kind = row["kind"].removesuffix(".reply")
            assert counted[kind] == pytest.approx(row["value"], rel=0.05), kind  # digits of numbers differ
    assert all(cost.seconds > LATENCY * cost.asked.messages for cost in costs)


@pytest.mark.parametrize(
    ("policy", "changes", "words"),
    [
        ({"kinds": ("join", "keep", "ffm.prepare")}, {}, "asks 'ffm.lookup', which policy.kinds does not list"),
        ({"kinds": ("keep",)}, {}, "does not list 'join'"),
        ({"limits": {"ffm.lookup": 1779}}, {}, "1780 answers to 'ffm.lookup'; policy.limits allows 1779"),
        ({"rounds": 34}, {}, "has 35 rounds; policy.rounds allows 34"),
        ({"smallest_group": 46}, {}, "trains on 45 points"),
        ({"smallest_group": 33}, {}, "flow.batch is 32"),
        ({}, {"coupling": {"group": 46}}, "groups of 46 points or more, and holds 45"),
        ({}, {"flow": {"source": "point.npy"}}, "point.npy"),
    ],
)
def test_what_keeps_a_site_from_taking_part(tmp_path, lab, policy, changes, words):
    found = check_site(lab.site(tmp_path / "a", "sd", **policy), config(lab, **changes))
    assert not found.ok and words in " ".join(found.obstacles)


@pytest.mark.parametrize("policy", [{"limits": {"ffm.lookup": 1780}}, {"rounds": 35}, {"smallest_group": 32}])
def test_limits_that_just_suffice_do(tmp_path, lab, policy):
    assert check_site(lab.site(tmp_path / "a", "sd", **policy), config(lab)).ok


@pytest.mark.parametrize(
    ("policy", "words"),
    [
        ({"limits": {"ffm.potential": 3}}, "line for 'ffm.potential', which policy.kinds does not list"),
        ({"smallest_group": 16}, "of 15 held-out points"),
        ({}, "may look up as often as it likes"),
    ],
)
def test_what_deserves_a_warning(tmp_path, lab, policy, words):
    found = check_site(lab.site(tmp_path / "a", "sd", **policy))
    assert found.ok and words in " ".join(found.warnings)


@pytest.mark.parametrize(
    ("policy", "words"),
    [
        ({"kinds": ("join", "ffm.lokup")}, "policy.kinds: There is no kind of question 'ffm.lokup'; did you mean"),
        ({"kinds": ("join", "done")}, "There is no kind of question 'done'"),
        ({"limits": {"ffm.lokup": 3}}, "policy.limits: There is no kind of question 'ffm.lokup'; did you mean"),
    ],
)
def test_a_misspelt_kind_keeps_a_site_out(tmp_path, lab, policy, words):
    found = check_site(lab.site(tmp_path / "a", "sd", **policy))
    assert not found.ok and words in " ".join(found.obstacles)


def test_nothing_held_out_leaves_nothing_to_count(tmp_path, lab):
    folder = lab.site(tmp_path / "a")
    toml = (folder / "site.toml").read_text().replace("held_out = 0.25", "held_out = 0")
    (folder / "site.toml").write_text(toml)
    found = check_site(folder, config(lab, "vanilla"))
    assert found.ok and "data.held_out is 0" in " ".join(found.warnings)
    assert found.costs[-1][1] == "ffm.histograms" and found.costs[-1][-1] == "refused"


def test_a_secret_that_others_can_read_is_named(tmp_path, lab):
    folder = lab.site(tmp_path / "a")
    assert not check_site(folder).warnings
    (folder / "secret").chmod(0o640)
    assert "chmod 600" in " ".join(check_site(folder).warnings)


def test_a_name_that_no_federation_could_give_is_an_obstacle(tmp_path, lab):
    [obstacle] = check_site(lab.site(tmp_path / "two words")).obstacles
    assert "'two words' cannot be a site's name" in obstacle


def test_a_site_that_has_withdrawn_does_not_take_part(tmp_path, lab):
    folder = lab.site(tmp_path / "a")
    withdraw(folder)
    assert "site return" in " ".join(check_site(folder).obstacles)
    go_back(folder)
    assert check_site(folder).ok


def test_gaps_and_too_many_categories_of_a_table_are_found(tmp_path, lab):
    folder = lab.site(tmp_path / "a", data="rows.csv")
    rows = [f"{number},{'NA' if number == 3 else 'x'}" for number in range(150)]
    (folder / "rows.csv").write_text("\n".join(["age,ward", *rows]))
    found = check_site(folder)
    assert found.ok and "Column 'ward' has a gap" in " ".join(found.warnings)
    assert "row" in " ".join(check_site(folder, config(lab, "vanilla")).obstacles)
    filled = config(lab, "vanilla", data={"missing": "typical"})
    assert check_site(folder, filled).ok
    codes = config(lab, "vanilla", data={"missing": "typical", "categorical": ["age"]})
    assert "150 categories" in " ".join(check_site(folder, codes).obstacles)


def test_unusable_data_is_an_error(tmp_path, lab):
    folder = lab.site(tmp_path / "a")
    (folder / "points.npy").unlink()
    with pytest.raises(DataError, match="cannot be read"):
        check_site(folder)
