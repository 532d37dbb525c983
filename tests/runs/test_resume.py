"""Nothing is lost: a run interrupted anywhere ends with the same parameters, to the bit."""

import json
import os
import signal
import time

import pytest
import torch

import anabranch.runs._drive as drive
from anabranch.errors import CheckpointError, RunFolderError
from anabranch.runs import Notes, RunFolder, differences, draw_samples, resume, train
from tests.runs.tiny import tiny

COUPLINGS = ["independent", "minibatch", "potential", "entropic", "balanced", "semidiscrete"]


class Killed(BaseException):
    """Stands for kill -9: nothing of ours runs after it."""


def killer(at: int) -> Notes:
    def stop(progress, federation):
        if progress.round == at:
            raise Killed

    return Notes(stop)


def final_state(path):
    checkpoint, _ = RunFolder(path).load_checkpoint()
    return checkpoint.state


def assert_same_end(first, second):
    one, two = final_state(first), final_state(second)
    assert one.keys() == two.keys()
    assert all(torch.equal(one[name], two[name]) for name in one)


@pytest.mark.parametrize("coupling", COUPLINGS)
def test_killed_and_resumed_runs_end_bit_equal(tmp_path, coupling):
    changes = {"coupling": {"name": coupling, "group": 4 if coupling == "semidiscrete" else 1}}
    changes["potential"] = {"every": 3 if coupling == "potential" else 0}
    config = tiny(**changes)
    rows = train(config, tmp_path / "whole")
    total = RunFolder(tmp_path / "whole").read_json("results.json")["rounds"]
    for at in range(2, total, 7):
        with pytest.raises(Killed):
            (train if at == 2 else lambda c, p, n: resume(p, n))(config, tmp_path / "killed", killer(at))
    again = resume(tmp_path / "killed")
    assert_same_end(tmp_path / "whole", tmp_path / "killed")
    skip = ("seconds", "bytes")  # clocks differ, and so do the bytes of saving more often
    values = [
        [r for r in found if not r["metric"].startswith(skip) and "seconds" not in r["metric"]]
        for found in (rows, again)
    ]
    assert values[0] == values[1]


def test_metrics_after_a_kill_hold_every_round_once(tmp_path):
    config = tiny(run={"log_every": 1})
    with pytest.raises(Killed):
        train(config, tmp_path, killer(8))
    resume(tmp_path)
    assert [record["round"] for record in RunFolder(tmp_path).metrics()] == list(range(1, 13))


def test_a_corrupted_checkpoint_is_passed_over_for_the_one_before(tmp_path):
    config = tiny()
    train(config, tmp_path / "whole")
    with pytest.raises(Killed):
        train(config, tmp_path / "broken", killer(11))
    newest = sorted((tmp_path / "broken" / "checkpoints").iterdir())[-1]
    newest.write_bytes(newest.read_bytes()[:-100])
    said = []
    resume(tmp_path / "broken", Notes(say=said.append))
    assert any("corrupted" in sentence and "one before" in sentence for sentence in said)
    assert_same_end(tmp_path / "whole", tmp_path / "broken")


def test_with_every_checkpoint_corrupted_the_run_starts_over(tmp_path):
    config = tiny()
    train(config, tmp_path / "whole")
    with pytest.raises(Killed):
        train(config, tmp_path / "broken", killer(11))
    for path in (tmp_path / "broken" / "checkpoints").iterdir():
        path.write_bytes(b"not a checkpoint")
    resume(tmp_path / "broken")
    assert_same_end(tmp_path / "whole", tmp_path / "broken")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_saves_and_then_stops(tmp_path, number):
    """So does what schedulers send; both mean afterwards what they meant before."""

    def interrupt(progress, federation):
        if progress.round == 7:
            os.kill(os.getpid(), number)

    before = signal.getsignal(number)

    said = []
    with pytest.raises(KeyboardInterrupt):
        train(tiny(), tmp_path / "stopped", Notes(interrupt, said.append))
    assert RunFolder(tmp_path / "stopped").checkpoints()[-1] == 7 and signal.getsignal(number) is before
    assert any("anabranch resume" in sentence for sentence in said)
    resume(tmp_path / "stopped")
    train(tiny(), tmp_path / "whole")
    assert_same_end(tmp_path / "whole", tmp_path / "stopped")


def test_checkpoints_that_a_killed_process_left_half_written_are_cleared_away(tmp_path):
    with pytest.raises(Killed):
        train(tiny(), tmp_path, killer(6))
    (left := tmp_path / "checkpoints" / ".round-00000007.checkpoint.77.tmp").write_bytes(b"half")
    resume(tmp_path)
    assert not left.exists()


def test_ctrl_c_is_answered_during_the_round_and_a_second_one_stops_it(tmp_path, monkeypatch):
    """The round would take a minute: what is said must not wait for it, and the run goes on from what was saved."""
    said, waited = [], []
    step = drive.FlowServer._train

    def slow(server, number):
        if number == 7 and not waited:
            os.kill(os.getpid(), signal.SIGINT)
            deadline = time.monotonic() + 10
            while not said and time.monotonic() < deadline:
                time.sleep(0.01)
            waited.append(list(said))
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(60)
        return step(server, number)

    monkeypatch.setattr(drive.FlowServer, "_train", slow)
    with pytest.raises(KeyboardInterrupt):
        train(tiny(), tmp_path / "stopped", Notes(say=said.append))
    assert waited == [said] and "this round is finished first" in said[0]
    assert f"'anabranch resume {tmp_path / 'stopped'}' then goes on from round 5" in said[0]
    assert RunFolder(tmp_path / "stopped").checkpoints()[-1] == 5
    resume(tmp_path / "stopped")
    monkeypatch.undo()
    train(tiny(), tmp_path / "whole")
    assert_same_end(tmp_path / "whole", tmp_path / "stopped")


def test_a_folder_of_another_run_is_refused(tmp_path):
    train(tiny(), tmp_path)
    with pytest.raises(RunFolderError, match=r'holds another run: method is "vanilla" there and "lot" now, coupling'):
        train(tiny(method="lot", coupling={"name": "minibatch"}), tmp_path)


def test_of_many_settings_that_differ_the_first_are_named_and_the_others_counted():
    old = {"seed": 0, "flow": {"rounds": 1, "rate": 0.1}, "data": {"files": ["a" * 80], "points": 3}, "same": 1}
    new = {"seed": 1, "flow": {"rounds": 2}, "data": {"files": ["b" * 80], "points": 4}, "same": 1}
    text = differences(old, new)
    assert text.startswith("seed is 0 there and 1 now, flow.rounds is 1 there and 2 now, flow.rate is 0.1 there and")
    assert text.endswith("and not set now, 2 more settings differ")
    assert len(differences({"files": ["a" * 80]}, {"files": ["b" * 80]})) < 160


def test_two_runs_in_one_folder_are_refused(tmp_path):
    with RunFolder(tmp_path).locked(), pytest.raises(RunFolderError, match="Another process is running"):
        train(tiny(), tmp_path)


def test_a_folder_that_cannot_be_written_is_refused(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(RunFolderError, match="cannot be written"):
        train(tiny(), tmp_path / "file" / "run")


def test_a_full_disk_gets_a_sentence_and_the_run_can_go_on(tmp_path, monkeypatch):
    import anabranch.federation._store as store

    real, calls = store.os.fsync, []

    def full(descriptor):
        calls.append(descriptor)
        if len(calls) > 8:
            raise OSError(28, "No space left on device")
        real(descriptor)

    monkeypatch.setattr(store.os, "fsync", full)
    with pytest.raises(Exception, match=r"No space left on device|could not be written"):
        train(tiny(), tmp_path / "full")
    monkeypatch.undo()
    resume(tmp_path / "full")
    train(tiny(), tmp_path / "whole")
    assert_same_end(tmp_path / "whole", tmp_path / "full")


def test_a_finished_run_is_not_run_again(tmp_path, monkeypatch):
    rows = train(tiny(), tmp_path)
    monkeypatch.setattr(drive, "_restore", lambda *_: pytest.fail("ran again"))
    assert train(tiny(), tmp_path) == rows


def test_sampling_needs_a_checkpoint(tmp_path):
    RunFolder(tmp_path).begin(tiny())
    with pytest.raises(CheckpointError, match="no checkpoint yet"):
        draw_samples(tmp_path, 3, 1)
    with pytest.raises(RunFolderError, match="no run folder"):
        resume(tmp_path / "nowhere")


def test_a_silo_that_cannot_rewind_says_so(tmp_path):
    with pytest.raises(Killed):
        train(tiny(), tmp_path, killer(11))
    for path in (tmp_path / "silos" / "silo-1").rglob("*.checkpoint"):
        path.unlink()
    with pytest.raises(CheckpointError, match="no readable checkpoint"):
        resume(tmp_path)


def test_the_run_folder_holds_what_happened(tmp_path):
    train(tiny(), tmp_path)
    environment = json.loads((tmp_path / "environment.json").read_text())
    assert environment["torch"] == torch.__version__.split("+")[0] or environment["torch"] == torch.__version__
    assert RunFolder(tmp_path).config() == tiny()
    assert RunFolder(tmp_path).metrics()[-1]["round"] == 12
    assert RunFolder(tmp_path).load_arrays("samples.npz")["generated_1"].shape == (64, 2)


def test_sampling_needs_no_data(tmp_path, monkeypatch):
    import anabranch.runs._drive as runs

    train(tiny(), tmp_path)
    monkeypatch.setattr(runs, "build_silos", lambda *_: pytest.fail("looked at the data"))
    assert draw_samples(tmp_path, 3, 1).x1.shape == (3, 2)


def test_changed_data_is_noticed(tmp_path):
    import numpy as np

    from anabranch.runs import from_dict

    np.save(tmp_path / "a.npy", np.random.default_rng(0).normal(size=(50, 2)))
    config = from_dict({"data": {"files": [str(tmp_path / "a.npy")]}, "flow": {"rounds": 12, "batch": 8}})
    with pytest.raises(Killed):
        train(config, tmp_path / "run", killer(8))
    np.save(tmp_path / "a.npy", np.random.default_rng(1).normal(size=(50, 2)))
    with pytest.raises(CheckpointError, match="other points than when it stored"):
        resume(tmp_path / "run")


def test_a_folder_where_nothing_was_trained_can_be_used_again(tmp_path):
    bad = tiny(data={"files": [str(tmp_path / "missing.npy")]})
    with pytest.raises(Exception, match=r"missing\.npy"):
        train(bad, tmp_path / "run")
    assert train(tiny(), tmp_path / "run")


def test_a_checkpoint_of_another_run_is_named(tmp_path):
    import shutil

    train(tiny(), tmp_path / "one")
    with pytest.raises(Killed):
        train(tiny(seed=5), tmp_path / "two", killer(8))
    shutil.rmtree(tmp_path / "two" / "checkpoints")
    shutil.copytree(tmp_path / "one" / "checkpoints", tmp_path / "two" / "checkpoints")
    with pytest.raises(CheckpointError, match="belongs to the run"):
        resume(tmp_path / "two")


def test_a_run_says_when_guards_turn_fusing_off(tmp_path):
    said = []
    train(tiny(privacy={"gradient_clip": 1.0}), tmp_path, Notes(say=said.append))
    assert any("cannot share one pass" in sentence for sentence in said)
