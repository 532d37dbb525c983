"""Two processes that share silos do what one does: same numbers up to the order of sums, same bytes, same failures."""

import fcntl
import json
import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
import torch

from anabranch.errors import Paused, UsageError
from anabranch.federation import ALONE, RankedEngine, Ranks, Replies, Silo
from anabranch.federation._message import only_numbers
from anabranch.runs import Notes, RunFolder, resume, train
from tests.federation import ranking
from tests.federation.counting import Counted

ROOT = Path(__file__).parents[2]
SECONDS = 120


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The folder in which two processes, started by torchrun, did everything that `ranking` has them do: once."""
    base = tmp_path_factory.getbasetemp()
    base = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    with (base / "ranks.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (base / "ranks").exists():
            two_processes(base / "ranks")
    return base / "ranks"


def two_processes(place):
    with suppress(Paused):
        train(ranking.config_of("entropic", "unlike"), place / "two go on", Notes(pause=lambda *_: True))
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command += ["-m", "tests.federation.ranking", str(place)]
    quiet = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    with subprocess.Popen(command, cwd=ROOT, env={**os.environ, **quiet}, stderr=subprocess.PIPE, text=True) as run:
        try:
            _, said = run.communicate(timeout=SECONDS)
        except subprocess.TimeoutExpired:
            run.terminate()  # torchrun ends its own
            raise
    assert run.returncode == 1, said  # rank 1 ends without a word, at the very end
    assert all((place / f"rank-{number}.json").exists() for number in (0, 1)), said


@pytest.fixture(scope="module")
def seen(folder):
    """What each of the two saw."""
    return [json.loads((folder / f"rank-{number}.json").read_text()) for number in (0, 1)]


@pytest.fixture(scope="module")
def alone():
    """What one process sees."""
    return json.loads(json.dumps(ranking.exchanges(ALONE)))


MEANS = ["fused", "plain", "raises", "not finite", "plain, raises", "two at random", "those of rank 0", "one of rank 1"]


class TestExchanges:
    @pytest.mark.parametrize("name", MEANS)
    def test_both_see_the_same_bits(self, seen, name):
        first, second = (one["exchanges"][name] for one in seen)
        assert first == second

    @pytest.mark.parametrize("name", MEANS)
    def test_a_mean_is_that_of_one_process(self, seen, alone, name):
        two, one = seen[0]["exchanges"][name], alone[name]
        assert two["numbers"] == pytest.approx(one["numbers"], rel=1e-6)
        assert {key: two[key] for key in two if key not in ("numbers", "bits")} == {
            key: one[key] for key in one if key not in ("numbers", "bits")
        }

    def test_who_fails_is_named_wherever_it_is(self, seen):
        for one in seen:
            assert list(one["exchanges"]["raises"]["failures"]) == ["d"]
            assert "the disk is gone" in one["exchanges"]["raises"]["failures"]["d"]
            assert list(one["exchanges"]["not finite"]["failures"]) == ["a"]

    def test_questions_of_their_own_are_answered_bit_by_bit(self, seen, alone):
        assert seen[0]["exchanges"]["asked"] == seen[1]["exchanges"]["asked"] == alone["asked"]
        assert list(alone["asked"]) == ["b", "e"]

    def test_silos_receive_the_answers_of_all(self, seen, alone):
        assert seen[0]["exchanges"]["gathered"] == seen[1]["exchanges"]["gathered"] == alone["gathered"] == [*"abcde"]

    @pytest.mark.parametrize("name", ["memory, True", "memory, False"])
    def test_memory_that_runs_out_on_one_ends_both(self, seen, alone, name):
        assert seen[0]["exchanges"][name] == seen[1]["exchanges"][name] == alone[name]
        assert alone[name].startswith("ExhaustedError: Memory ran out")


def final(path):
    checkpoint, _ = RunFolder(path).load_checkpoint()
    return checkpoint


def assert_same_end(two, one):
    """Parameters, moments and averages up to the order of sums; what is zero but for rounding, by its neighbours."""
    found, wanted = final(two), final(one)
    assert found.round == wanted.round and found.facts["sizes"] == wanted.facts["sizes"]
    assert found.state.keys() == wanted.state.keys()
    assert any(tensor.dtype == torch.float64 and tensor.numel() > 100 for tensor in wanted.state.values())
    largest = {}
    for name, tensor in wanted.state.items():
        largest[family(name)] = max(largest.get(family(name), 0.0), float(tensor.double().abs().max()))
    for name, tensor in wanted.state.items():
        least = 1e-9 * (1.0 if name == GAUGE else largest[family(name)])
        assert torch.allclose(found.state[name].double(), tensor.double(), rtol=1e-9, atol=least), name


GAUGE = "potential/value/stack.6.bias"  # nothing depends on it: its slope is rounding, which Adam makes larger


def family(name):
    """Numbers of one kind: of a network's parameters, or of one of their moments."""
    return name.split("/")[0], name.split("/")[1], name.split("/")[-1] if "/moment/" in name else ""


DELICATE = ["balanced"]  # a point that is twice in a batch makes a tie, which rounding decides
NAMES = [(coupling, division) for division in ranking.DIVISIONS for coupling in ranking.COUPLINGS]


class TestTraining:
    @pytest.mark.parametrize(("coupling", "division"), [name for name in NAMES if name[0] not in DELICATE])
    def test_two_end_where_one_does(self, folder, tmp_path, coupling, division):
        """Those of silos of different sizes were paused and resumed on the way."""
        rows = train(ranking.config_of(coupling, division), tmp_path)
        shared = folder / f"{coupling}, {division}"
        assert_same_end(shared, tmp_path)
        if division != ranking.PAUSED:  # which is to join, and to be saved, once more
            assert final(shared).facts["ledger"] == final(tmp_path).facts["ledger"]
        found = RunFolder(shared).read_json("results.json")["rows"]
        assert [row["metric"] for row in found] == [row["metric"] for row in rows]
        for row, wanted in zip(found, rows, strict=True):
            if "seconds" not in row["metric"] and (division != ranking.PAUSED or "bytes" not in row["metric"]):
                assert row["value"] == pytest.approx(wanted["value"], rel=1e-6, abs=1e-9), row["metric"]

    @pytest.mark.parametrize(("coupling", "division"), NAMES)
    def test_both_servers_are_the_same_to_the_bit(self, seen, coupling, division):
        name = f"{coupling}, {division}"
        first, second = (one["training"]["states"][name] for one in seen)
        assert first[: len(second)] == second and len(second) >= 3  # rank 0 alone looks once more, to judge
        assert [bool(one["training"]["rows"][name]) for one in seen] == [True, False]

    def test_sizes_differ_where_they_should(self, folder):
        sizes = final(folder / "independent, unlike").facts["sizes"].values()
        assert len(set(sizes)) == len(sizes) == 3

    def test_every_round_is_logged_once(self, folder):
        for coupling in ranking.COUPLINGS:
            rounds = [record["round"] for record in RunFolder(folder / f"{coupling}, unlike").metrics()]
            assert rounds == sorted(set(rounds))

    def test_one_goes_on_where_two_stopped(self, folder, tmp_path):
        resume(folder / "one goes on")
        train(ranking.config_of("semidiscrete", "unlike"), tmp_path)
        assert_same_end(folder / "one goes on", tmp_path)

    def test_two_go_on_where_one_stopped(self, folder, tmp_path):
        train(ranking.config_of("entropic", "unlike"), tmp_path)
        assert_same_end(folder / "two go on", tmp_path)

    def test_rank_0_has_the_clock_and_looks_alone(self, folder, seen):
        assert [one["looked"] for one in seen] == [[1], []]
        assert [one["clock"] for one in seen] == [2.5, 2.5]
        assert RunFolder(folder / "looked").read_json("results.json")["rounds"] == 1

    def test_rounds_that_are_looked_at_are_the_same_for_all_and_rank_0_looks(self, seen):
        assert [one["counted"] for one in seen] == [[2, 5], []]

    def test_whoever_is_interrupted_all_stop_and_are_saved(self, folder, seen):
        assert [one["interrupted"] for one in seen] == [True, True]
        assert RunFolder(folder / "interrupted").checkpoints() == [ranking.INTERRUPTED]


class TestProcesses:
    def test_only_rank_0_prints_and_writes_the_report(self, folder, seen):
        assert [one["typed"]["code"] for one in seen] == [0, 0]
        assert "Report:" in seen[0]["typed"]["out"] and not seen[1]["typed"]["out"]
        assert (folder / "own" / "report.html").exists()

    def test_what_cannot_be_shared_is_refused(self, seen):
        assert seen[0]["refused"] == seen[1]["refused"] == [2, 2]

    def test_who_has_left_has_no_threads_of_the_exchange(self, seen):
        """One that is at work while the interpreter ends aborts it."""
        for before, after in (one["left"] for one in seen):
            assert after == before

    def test_one_that_ends_is_missed_at_once(self, seen):
        parted = seen[0]["parted"]
        assert "Rank 0 of 2 cannot reach another one" in parted["said"] and "anabranch resume" in parted["said"]
        assert parted["seconds"] < 5


class TestRanks:
    def test_every_silo_has_one_holder(self):
        names = [f"silo-{number}" for number in range(11)]
        shares = [Ranks(number, 4).share(names) for number in range(4)]
        assert sorted(name for share in shares for name in share) == sorted(names)
        assert {len(share) for share in shares} == {2, 3}

    def test_more_processes_than_silos_are_refused(self):
        with pytest.raises(UsageError, match="3 processes were started for 2 silos"):
            RankedEngine([Silo(name, torch.zeros(4, 2)) for name in "ab"], Ranks(0, 3))

    def test_a_process_without_a_gpu_of_its_own_is_refused(self, monkeypatch):
        monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
        assert Ranks(3, 4, local=1).device(torch.device("cuda")) == torch.device("cuda", 1)
        assert Ranks(3, 4, local=2).device(torch.device("cpu")) == torch.device("cpu")
        with pytest.raises(UsageError, match="Rank 3 has no GPU of its own: there are 2"):
            Ranks(3, 4, local=2).device(torch.device("cuda"))

    def test_without_torchrun_nothing_is_joined(self):
        code = (
            "import os, sys; os.environ['WORLD_SIZE'] = '4'\n"  # as other programs may set it
            "from anabranch.federation import ALONE, Ranks\n"
            "assert Ranks.here() is ALONE and ALONE.sum([]) == [] and ALONE.decided(True) and ALONE.speaks()\n"
            "ALONE.wait(); ALONE.leave()\n"
            "import torch; assert not torch.distributed.is_initialized()"
        )
        subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)

    def test_replies_survive_their_packing(self):
        reply = ranking.weigh(ranking.silos()[1], ranking.QUESTION)
        replies = Replies({"b": reply}, {"a": "It “failed”."}, {"a"})
        again = Replies.unpack(replies.pack(), torch.device("cpu"))
        assert ranking.digest(again.answers["b"]) == ranking.digest(reply)
        assert (again.failures, again.unsound) == (replies.failures, replies.unsound)

    def test_what_holds_more_than_numbers_is_no_sum(self):
        assert only_numbers(ranking.weigh(ranking.silos()[1], ranking.QUESTION))
        assert not only_numbers(Counted(torch.zeros(2), 1))
