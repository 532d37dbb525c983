"""site.toml: what is read is what was written, and every mistake gets a sentence."""

import stat

import pytest

from anabranch.errors import DataError, UsageError
from anabranch.sites import (
    SiteData,
    SitePolicy,
    SitePrivacy,
    SiteSettings,
    go_back,
    kinds_of,
    new_settings,
    read_site,
    withdraw,
    write_site,
)
from anabranch.sites._folder import read_secret, secret_is_exposed
from anabranch.sites._write import site_toml

START = 'name = "north"\n[data]\nfile = "a.csv"\n'


def reading(folder, text):
    (folder / "site.toml").write_text(text)
    return read_site(folder)


def test_what_was_written_is_read_again(tmp_path):
    settings = SiteSettings(
        'n"o\\r\x7fth é',
        SiteData("dir with space/a.csv", ("age", 'odd "column"'), 0.125, 7),
        SitePolicy(("join", "ffm.lookup"), 77, 3, {"ffm.lookup": 9, "join": 0}),
        SitePrivacy(0.05, 1e-05, 3.0),
    )
    write_site(tmp_path / "new" / "site", settings)
    assert read_site(tmp_path / "new" / "site") == settings
    assert sum("#" in line for line in site_toml(settings).splitlines()) > 10  # the comments teach


def test_defaults_need_only_a_name_and_a_file(tmp_path):
    assert reading(tmp_path, START) == SiteSettings("north", SiteData("a.csv"))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("name = ", "not valid TOML"),
        ('name = "north"', "does not say 'data'"),
        ('[data]\nfile = "a.csv"', "does not say 'name'"),
        ('name = 3\n[data]\nfile = "a.csv"', "type str"),
        ('name = "a/b"\n[data]\nfile = "a.csv"', "cannot be a site's name"),
        ('name = "a"\ndata = "a.csv"', "must be a section"),
        (START + "colums = []", "did you mean 'columns'"),
        (START + "[polisy]", "did you mean 'policy'"),
        (START + "held_out = 1.0", "a share lies in"),
        (START + "held_out = nan", "a share lies in"),
        (START + "seed = 0.5", "type int"),
        ('name = "a"\n[data]\nfile = "a.xlsx"', "ends in .csv, .npy, .npz"),
        ('name = "a"\n[data]\nfile = "a.npy"\ncolumns = ["x"]', "only .csv files"),
        (START + "[policy]\nrounds = 0", "answers nothing"),
        (START + "[policy]\nsmallest_group = 0", "one or more"),
        (START + '[policy.limits]\n"ffm.lookup" = -1', "zero or more"),
        (START + '[policy.limits]\n"ffm.lookup" = "many"', "type int"),
        (START + "[privacy]\nlookup_noise = -0.5", "zero or more"),
        (START + "[privacy]\ngradient_noise = inf", "zero or more"),
        (START + "[privacy]\nlookup_limit = 5", "no key in"),
        (START + "[privacy]\nprivacy_budget = 1.0", "nothing adds up yet"),
        (START + "[policy.limits]\nprivacy_budget = 1", "nothing adds up yet"),
        ("privacy_budget = 1.0\n" + START, "nothing adds up yet"),
    ],
)
def test_mistakes_get_a_sentence(tmp_path, text, words):
    with pytest.raises(UsageError, match=words):
        reading(tmp_path, text)


def test_a_folder_without_site_toml_is_none(tmp_path):
    with pytest.raises(UsageError, match="site init"):
        read_site(tmp_path)
    for verb in (withdraw, go_back):
        with pytest.raises(UsageError, match="no site's folder"):
            verb(tmp_path)


def test_an_existing_site_is_not_overwritten(tmp_path, lab):
    folder = lab.site(tmp_path / "a")
    before = read_secret(folder), (folder / "site.toml").read_text()
    with pytest.raises(UsageError, match=r"site\.toml already; edit that"):
        write_site(folder, read_site(folder))
    (folder / "site.toml").unlink()
    with pytest.raises(UsageError, match=r"secret already, .* remove it"):
        write_site(folder, SiteSettings("a", SiteData("a.csv")))
    assert read_secret(folder) == before[0]


class TestSecret:
    def test_it_is_drawn_once_and_for_the_owner_alone(self, tmp_path):
        first = read_secret(tmp_path)
        assert first == read_secret(tmp_path) and 0 <= first < 2**63
        assert stat.S_IMODE((tmp_path / "secret").stat().st_mode) == 0o600
        (tmp_path / "b").mkdir()
        assert read_secret(tmp_path / "b") != first

    def test_others_that_can_read_it_are_noticed(self, tmp_path):
        read_secret(tmp_path)
        assert not secret_is_exposed(tmp_path)
        (tmp_path / "secret").chmod(0o644)
        assert secret_is_exposed(tmp_path)

    @pytest.mark.parametrize("text", ["", "swordfish", "-3", "9" * 20, "9" * 5000, "٣"])
    def test_another_file_in_its_place_is_refused_and_not_quoted(self, tmp_path, text):
        (tmp_path / "secret").write_text(text)
        with pytest.raises(DataError, match="holds no secret") as caught:
            read_secret(tmp_path)
        assert not text or text not in str(caught.value).replace(str(tmp_path), "")  # a path may have such digits

    def test_a_secret_out_of_range_is_refused_and_not_quoted(self, tmp_path):
        with pytest.raises(UsageError, match="63 bits") as caught:
            write_site(tmp_path / "a", SiteSettings("a", SiteData("a.csv")), secret=2**63 + 12345)
        assert "12345" not in str(caught.value)


class TestNewSettings:
    def test_a_site_for_distances_answers_what_they_ask_and_no_more(self, tmp_path):
        policy = new_settings(tmp_path / "a", tmp_path / "x.npy", method="fedwad").policy
        assert policy.kinds == tuple(kinds_of("fedwad")) and policy.limits == {"fedwad.interpolate": 1000}
        assert not any(kind.startswith("ffm.") for kind in policy.kinds) and policy.smallest_part == 4

    def test_data_inside_the_folder_is_named_from_there(self, tmp_path):
        inside = new_settings(tmp_path / "a", tmp_path / "a" / "deep" / "x.npy")
        outside = new_settings(tmp_path / "a", tmp_path / "x.npy")
        assert inside.data.file == "deep/x.npy" and outside.data.file == str((tmp_path / "x.npy").resolve())
        assert inside.name == "a"

    @pytest.mark.parametrize(("method", "limit"), [("sd-protected", 6_000_000), ("sd", 20_000_000), ("lot", None)])
    def test_limits_leave_room_for_one_run(self, tmp_path, method, limit):
        found = new_settings(tmp_path, tmp_path / "x.csv", "north", method)
        assert found.policy.limits.get("ffm.lookup") == limit
        assert found.policy.kinds == kinds_of(method, tables=True)
