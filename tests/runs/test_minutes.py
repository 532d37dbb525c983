"""Training that ends by the clock, is saved by it, and is looked at while it stands."""

import math
import time

import pytest
import torch

import anabranch.runs._clock as clock_module
import anabranch.runs._drive as drive
from anabranch.errors import Paused, UsageError
from anabranch.federation import Ranks, ServerOptimizer
from anabranch.runs import Clock, Looks, Notes, RunFolder, from_dict, resume, train
from tests.runs.tiny import tiny


class Hands:
    """A clock for tests: it goes on by itself by `step` seconds a reading, and when it is told to."""

    def __init__(self, step=0.0):
        self.now, self.step = 100.0, step

    def monotonic(self):
        self.now += self.step
        return self.now


@pytest.fixture
def hands(monkeypatch):
    found = Hands()
    monkeypatch.setattr(clock_module, "time", found)
    return found


def ten_seconds_a_round(hands, **more):
    return Notes(progress=lambda progress, federation: setattr(hands, "now", hands.now + 10), **more)


def test_a_clock_counts_what_is_not_stopped(hands):
    clock = Clock(earlier=5.0)
    hands.now += 2
    with clock.stopped() as seconds:
        hands.now += 1000
        assert clock.seconds == seconds == 7.0
    hands.now += 3
    assert clock.seconds == 10.0


def test_training_ends_once_its_minutes_are_over(tmp_path, hands):
    said = []
    config = tiny(run={"minutes": 1.0, "log_every": 1}, flow={"schedule": "constant"})
    train(config, tmp_path, ten_seconds_a_round(hands, say=said.append))
    results = RunFolder(tmp_path).read_json("results.json")
    # Ten seconds come with the note of a round, so the sixty are seen at the end of the seventh.
    assert results["rounds"] == 7 and RunFolder(tmp_path).checkpoints()[-1] == 7
    assert "1 minutes of training are over, after round 7 of 12." in said
    assert [record["round"] for record in RunFolder(tmp_path).metrics()] == list(range(1, 8))


def test_what_comes_before_the_flow_is_finished_and_counts(tmp_path, hands):
    config = tiny(run={"minutes": 1.0}, coupling={"name": "semidiscrete"})  # 30 rounds of duals and 2 blocks
    train(config, tmp_path, ten_seconds_a_round(hands))
    assert RunFolder(tmp_path).read_json("results.json")["rounds"] == 33  # one of the flow


def test_with_time_to_spare_all_rounds_are_done(tmp_path):
    train(tiny(run={"minutes": 99.0}), tmp_path)
    assert RunFolder(tmp_path).read_json("results.json")["rounds"] == 12


def rates(monkeypatch):
    """The rate of every step of the flow, as it is aimed at."""
    found, rate_at = [], ServerOptimizer.rate_at

    def noted(self, step, spent=0.0):
        found.append(rate_at(self, step, spent))
        return found[-1]

    monkeypatch.setattr(ServerOptimizer, "rate_at", noted)
    return found


def falling(*shares):
    """Half a cosine's values."""
    return [pytest.approx(0.5 * (1 + math.cos(math.pi * share))) for share in shares]


def test_a_falling_rate_ends_with_the_minutes(tmp_path, hands, monkeypatch):
    found = rates(monkeypatch)
    config = tiny(run={"minutes": 1.0}, flow={"schedule": "cosine", "rate": 1.0, "rounds": 10**6})
    train(config, tmp_path, ten_seconds_a_round(hands))
    # Ten seconds come with the note of a round, so a step knows of all rounds but the one before it.
    assert found == falling(0, 0, *(ten / 6 for ten in range(1, 6)))


def test_a_falling_rate_has_the_time_that_is_left_to_the_flow(tmp_path, hands, monkeypatch):
    found = rates(monkeypatch)
    flow = {"schedule": "cosine", "rate": 1.0, "rounds": 10**6}
    config = tiny(run={"minutes": 6.0}, coupling={"name": "semidiscrete"}, flow=flow)  # 30 + 2 rounds before it
    train(config, tmp_path, ten_seconds_a_round(hands))
    assert found == falling(0, *(ten / 5 for ten in range(1, 5)))  # 310 seconds are over when it begins


def test_rounds_that_end_sooner_than_the_minutes_lead_the_rate(tmp_path, monkeypatch):
    found = rates(monkeypatch)
    train(tiny(run={"minutes": 99.0}, flow={"schedule": "cosine", "rate": 1.0}), tmp_path)
    assert found == falling(*(step / 12 for step in range(12)))


def test_a_run_that_is_continued_has_the_minutes_that_are_left(tmp_path, hands):
    def kill(progress, federation):
        hands.now += 10
        if progress.round == 4:
            raise KeyboardInterrupt

    config = tiny(run={"minutes": 1.0, "log_every": 1, "checkpoint_every": 1})
    with pytest.raises(KeyboardInterrupt):
        train(config, tmp_path, Notes(progress=kill))
    hands.now += 1e6  # the night
    resume(tmp_path, ten_seconds_a_round(hands))
    # A record is written before its note takes ten seconds: round 3 says 20, and what the fourth took is lost with it.
    assert RunFolder(tmp_path).read_json("results.json")["rounds"] == 8


def test_what_passed_between_two_lines_of_the_log_counts_where_a_run_goes_on(tmp_path, hands):
    def pausing(progress, federation):
        return progress.round == 4

    config = tiny(run={"minutes": 1.0, "log_every": 1000, "checkpoint_every": 1})
    with pytest.raises(Paused):
        train(config, tmp_path, ten_seconds_a_round(hands, pause=pausing))
    assert RunFolder(tmp_path).metrics()[-1]["seconds"] == 40.0  # as of the checkpoint
    hands.now += 1e6  # the night
    resume(tmp_path, ten_seconds_a_round(hands))
    assert RunFolder(tmp_path).read_json("results.json")["rounds"] == 7  # as without the night


def test_every_phase_has_its_own_seconds_however_seldom_rounds_are_logged(tmp_path, hands):
    config = tiny(run={"log_every": 1000}, coupling={"name": "semidiscrete"})  # 30 rounds of duals and 2 blocks
    rows = train(config, tmp_path, ten_seconds_a_round(hands))
    seconds = {row["metric"]: row["value"] for row in rows if row["metric"].endswith("_seconds")}
    # A line is written before its note takes ten seconds, so that the first phase seems to have one round less.
    assert seconds == {"fit_seconds": 290.0, "assign_seconds": 20.0, "flow_seconds": 120.0}
    edges = [(r["round"], r["phase"]) for r in RunFolder(tmp_path).metrics() if r["round"] in (1, 30, 31, 32, 33, 44)]
    assert edges == [(1, "duals"), (30, "duals"), (31, "assign"), (32, "assign"), (33, "flow"), (44, "flow")]


def test_a_run_whose_minutes_were_over_trains_no_further(tmp_path, hands, monkeypatch):
    config = tiny(run={"minutes": 1.0})
    evaluated = drive._evaluated
    monkeypatch.setattr(drive, "_evaluated", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        train(config, tmp_path, ten_seconds_a_round(hands))
    before = RunFolder(tmp_path).load_checkpoint()[0]
    monkeypatch.setattr(drive, "_evaluated", evaluated)
    resume(tmp_path)
    after = RunFolder(tmp_path).load_checkpoint()[0]
    assert after.round == before.round == RunFolder(tmp_path).read_json("results.json")["rounds"]


def test_a_checkpoint_after_so_many_minutes(tmp_path, hands):
    saved = []

    def note(progress, federation):
        hands.now += 10
        saved.append(RunFolder(tmp_path).checkpoints()[-1:])

    train(tiny(run={"checkpoint_minutes": 0.5, "checkpoint_every": 100}), tmp_path, Notes(progress=note))
    assert saved == [[]] * 3 + [[3]] * 3 + [[6]] * 3 + [[9]] * 3


def test_looks_come_at_their_marks_and_cost_no_time(tmp_path, hands):
    seen = []

    def look(mark, server, progress, seconds):
        hands.now += 5000
        seen.append((mark, progress.round, seconds))

    notes = ten_seconds_a_round(hands, looks=Looks([15.0, 200.0, 30.0, 31.0], look))
    train(tiny(run={"log_every": 1}), tmp_path, notes)
    assert seen == [(15.0, 2, 20.0), (30.0, 3, 30.0), (31.0, 4, 40.0)]
    assert RunFolder(tmp_path).metrics()[-1]["seconds"] == 110.0  # twelve rounds, the last one's note to come


def test_the_look_at_the_end_is_at_the_round_that_ends_it(tmp_path, hands):
    """Also where the minutes are over between two looks at the clock in one round."""
    seen = []
    looks = Looks([30.0, 60.0], lambda mark, server, progress, seconds: seen.append((mark, progress.round)))
    train(tiny(run={"minutes": 1.0}), tmp_path, ten_seconds_a_round(hands, looks=looks))
    ended = RunFolder(tmp_path).read_json("results.json")["rounds"]
    assert seen == [(30.0, 3), (60.0, ended)]


def test_looks_by_rounds_count_those_of_the_flow(tmp_path):
    """A method that fits something first has trained its flow as long as another where it is looked at."""
    seen = []

    def look(mark, server, progress, seconds):
        seen.append((mark, progress.round, progress.phase))

    config = tiny(coupling={"name": "semidiscrete"})  # 30 rounds of duals and 2 blocks
    train(config, tmp_path, Notes(looks=Looks([12, 1, 5, 13], look, "rounds")))
    assert seen == [(1, 33, "flow"), (5, 37, "flow"), (12, 44, "flow")]


def test_looks_by_rounds_that_were_taken_are_not_taken_again(tmp_path):
    seen = []
    looks = Looks([3, 4, 5, 12], lambda mark, server, progress, seconds: seen.append(mark), "rounds")

    def kill(progress, federation):
        if progress.round == 5:
            raise SystemExit

    with pytest.raises(SystemExit):
        train(tiny(run={"checkpoint_every": 4}), tmp_path, Notes(progress=kill, looks=looks))
    assert seen == [3, 4]
    resume(tmp_path, Notes(looks=looks))
    assert seen == [3, 4, 5, 12]


def test_processes_that_stand_by_count_as_the_one_that_looks():
    """They would wait for each other at different rounds."""
    looks = Notes(looks=Looks([3, 5], lambda *_: 1 / 0, "rounds")).of(Ranks(1, 2)).looks
    assert (looks.after, looks.unit) == ([3, 5], "rounds")
    looks.look(3, None, None, 0.0)  # by rank 0 alone


def test_a_look_changes_nothing(tmp_path):
    seen = []

    def look(mark, server, progress, seconds):
        seen.append(server.velocity()(torch.randn(5, 2), torch.tensor(0.5)))

    train(tiny(), tmp_path / "unseen")
    train(tiny(), tmp_path / "seen", Notes(looks=Looks([1e-9, 2e-9], look)))
    one, two = (RunFolder(tmp_path / name).load_checkpoint()[0].state for name in ("unseen", "seen"))
    assert len(seen) == 2 and all(torch.equal(one[name], two[name]) for name in one)


def test_a_look_is_taken_before_its_round_is_saved(tmp_path):
    """So that a run that is continued from a checkpoint has been looked at at all marks before it."""
    found = []
    looks = Looks([1e-9], lambda mark, server, progress, seconds: found.append(RunFolder(tmp_path).checkpoints()))
    train(tiny(run={"checkpoint_every": 1}), tmp_path, Notes(looks=looks))
    assert found == [[]]


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"run": {"minutes": -1.0}}, "run.minutes is -1.0"),
        ({"run": {"checkpoint_minutes": float("inf")}}, "run.checkpoint_minutes is inf"),
        ({"run": {"minutes": 1.0}, "method": "fedwad"}, "run.minutes ends the training of one flow"),
    ],
)
def test_minutes_that_cannot_be_are_refused(values, words):
    with pytest.raises(UsageError, match=words):
        from_dict(values)


def test_the_clock_is_a_clock():
    clock = Clock()
    time.sleep(0.01)
    assert 0.01 <= clock.seconds < 5
