"""Keep and Rewind: what a silo stores it finds again, and nothing else is taken for it."""

import pytest
import torch

from anabranch.data import Pixels
from anabranch.errors import CheckpointError, QuorumError, RunFolderError
from anabranch.federation import Federation, Silo, load, save, write_atomically

STATE = {
    "duals": torch.randn(5, dtype=torch.float64, generator=torch.Generator().manual_seed(0)),
    "bits": torch.tensor([1, 2, 255], dtype=torch.uint8),
    "count": torch.tensor(7),
}


def silos(folder, names="ab"):
    return [Silo(name, torch.zeros(3, 2), folder=folder / name if folder else None) for name in names]


def opened(members, run="run"):
    federation = Federation(members)
    federation.open(run, seed=0)
    return federation


def keep(federation, number, oldest=0):
    federation.start_round(number)
    federation.keep(oldest)


def rewind(members, number):
    """As after a restart: the run is opened again, then every silo goes back."""
    opened(members).rewind(number)


def kept(folder, number):
    """The file in which a silo keeps that round."""
    (found,) = folder.rglob(f"round-{number:08d}.checkpoint")
    return found


def files(folder):
    return sorted(path.name for path in folder.iterdir())


class TestKeepAndRewind:
    def test_the_state_comes_back_to_the_bit(self, tmp_path):
        members = silos(tmp_path)
        federation = opened(members)
        members[0].state = {name: tensor.clone() for name, tensor in STATE.items()}
        keep(federation, 3)
        members[0].state = {"duals": torch.zeros(1)}
        rewind(members, 3)
        found = members[0].state
        assert found.keys() == STATE.keys()
        assert all(torch.equal(found[n], STATE[n]) and found[n].dtype == STATE[n].dtype for n in STATE)

    def test_a_fresh_process_finds_it_too(self, tmp_path):
        members = silos(tmp_path)
        federation = opened(members)
        members[1].state = {"x": torch.ones(2)}
        keep(federation, 3)
        fresh = silos(tmp_path)
        opened(fresh).rewind(3)
        assert torch.equal(fresh[1].state["x"], torch.ones(2)) and fresh[0].state == {}

    def test_each_round_is_kept_by_itself(self, tmp_path):
        members = silos(tmp_path)
        federation = opened(members)
        for number in (1, 2):
            members[0].state = {"x": torch.tensor(number)}
            keep(federation, number)
        for number in (1, 2):
            federation.rewind(number)
            assert int(members[0].state["x"]) == number

    def test_what_can_be_rebuilt_is_forgotten(self, tmp_path):
        members = silos(tmp_path)
        federation = opened(members)
        keep(federation, 1)
        members[0].cache["half"] = object()
        rewind(members, 1)
        assert members[0].cache == {}

    def test_old_rounds_are_forgotten(self, tmp_path):
        federation = opened(silos(tmp_path))
        for number in (9, 10, 11):
            keep(federation, number, oldest=10)
        assert files(kept(tmp_path / "a", 11).parent) == ["round-00000010.checkpoint", "round-00000011.checkpoint"]

    def test_what_a_killed_process_left_half_written_is_cleared_away(self, tmp_path):
        federation = opened(silos(tmp_path))
        keep(federation, 1)
        place = kept(tmp_path / "a", 1).parent
        (place / ".round-00000002.checkpoint.77.tmp").write_bytes(b"half")
        keep(federation, 2)
        assert files(place) == ["round-00000001.checkpoint", "round-00000002.checkpoint"]

    def test_runs_do_not_clear_away_each_others_rounds(self, tmp_path):
        members = silos(tmp_path)
        one = opened(members)
        members[0].state = dict(STATE)
        keep(one, 3)
        other = Federation(members)
        other.open("another", seed=0)
        keep(other, 7, oldest=7)
        one.open(one.run, seed=0)
        assert not members[0].state
        one.rewind(3)
        assert members[0].state.keys() == STATE.keys()

    def test_a_federation_that_does_not_insist_goes_on_without_who_cannot_rewind(self, tmp_path):
        members = silos(tmp_path)
        federation = opened(members)
        keep(federation, 1)
        kept(tmp_path / "a", 1).unlink()
        federation.insist = False
        federation.rewind(1)
        assert "a" not in federation.names and "no readable checkpoint" in federation.absent["a"]
        federation.quorum = len(federation.names) + 1
        with pytest.raises(QuorumError, match="no readable checkpoint"):
            federation.rewind(1)

    def test_who_was_away_goes_on_where_no_state_is_needed(self, tmp_path):
        members = silos(tmp_path)
        federation = opened(members)
        federation.insist = False
        keep(federation, 1)
        kept(tmp_path / "a", 1).unlink()
        federation.rewind(1, needed=False)
        assert federation.names == [silo.name for silo in members] and not federation.absent

    def test_a_checkpoint_that_too_few_silos_kept_is_none(self, tmp_path):
        members = silos(tmp_path)
        federation = opened(members)
        federation.insist, federation.quorum = False, len(members)
        members[0].folder, members[0].state = None, dict(STATE)
        with pytest.raises(QuorumError, match="no folder"):
            keep(federation, 1)

    def test_a_round_that_was_not_kept_is_refused_with_a_sentence(self, tmp_path):
        federation = opened(silos(tmp_path))
        keep(federation, 1)
        with pytest.raises(CheckpointError, match="no readable checkpoint"):
            federation.rewind(2)

    def test_a_silo_without_a_folder_says_that_it_cannot_rewind(self):
        with pytest.raises(CheckpointError, match="'a' has no folder"):
            opened(silos(None)).rewind(1)

    def test_the_state_of_another_silo_is_refused(self, tmp_path):
        keep(opened(silos(tmp_path)), 1)
        kept(tmp_path / "a", 1).replace(kept(tmp_path / "b", 1))
        with pytest.raises(CheckpointError, match="belongs to silo 'a'"):
            opened(silos(tmp_path, "b")).rewind(1)

    def test_the_state_of_other_points_is_refused(self, tmp_path):
        keep(opened(silos(tmp_path, "a")), 1)
        changed = Silo("a", torch.ones(3, 2), folder=tmp_path / "a")
        with pytest.raises(CheckpointError, match="'a' holds other points"):
            opened([changed]).rewind(1)

    @pytest.mark.parametrize("images", [False, True])
    def test_points_are_read_once_however_often_a_state_is_kept(self, tmp_path, monkeypatch, images):
        held = Pixels(torch.zeros(3, 4, dtype=torch.uint8), torch.zeros(3).long(), (1, 2, 2))
        member = Silo("a", held if images else torch.zeros(3, 2), folder=tmp_path / "a")
        read, digest = [], Silo.fingerprint
        monkeypatch.setattr(Silo, "fingerprint", lambda silo: read.append(silo.name) or digest(silo))
        federation = opened([member])
        for number in (1, 2, 3):
            keep(federation, number)
        federation.rewind(3)
        assert read == ["a"]
        (member.data.bytes if images else member.data.x).add_(1)
        with pytest.raises(CheckpointError, match="'a' holds other points"):
            rewind([member], 3)

    @pytest.mark.parametrize("damage", ["cut", "flip", "empty", "garbage"])
    def test_a_damaged_file_is_refused_with_a_sentence(self, tmp_path, damage):
        members = silos(tmp_path)
        members[0].state = dict(STATE)
        federation = opened(members)
        keep(federation, 1)
        path = kept(tmp_path / "a", 1)
        data = path.read_bytes()
        changed = {
            "cut": data[:-3],
            "flip": data[:-1] + bytes([data[-1] ^ 1]),
            "empty": b"",
            "garbage": b"\x80\x04" * 50,
        }
        path.write_bytes(changed[damage])
        with pytest.raises(CheckpointError, match="corrupted"):
            rewind(members, 1)

    def test_a_rewind_is_carried_out_even_at_the_place_of_the_last_answer(self, tmp_path):
        members = silos(tmp_path)
        federation = opened(members)
        keep(federation, 3)
        members[0].state["x"] = torch.ones(1)
        federation.rewind(3)
        assert members[0].state == {}

    def test_a_disk_that_cannot_be_written_is_named(self, tmp_path):
        (tmp_path / "a").write_text("a file where a folder should be")
        with pytest.raises(QuorumError, match="could not be written"):
            keep(opened(silos(tmp_path, "a")), 1)

    def test_the_state_of_another_run_is_refused(self, tmp_path):
        keep(opened(silos(tmp_path), run="one"), 1)
        with pytest.raises(CheckpointError):
            opened(silos(tmp_path), run="two").rewind(1)

    def test_a_silo_that_cannot_store_its_state_says_so(self):
        members = silos(None)
        federation = opened(members)
        members[0].state["x"] = torch.ones(1)
        with pytest.raises(QuorumError, match="'a'"):
            keep(federation, 1)


class TestStore:
    def test_facts_and_tensors_come_back(self, tmp_path):
        save(tmp_path / "deep" / "file", STATE, {"round": 3, "silo": "ä"})
        tensors, facts = load(tmp_path / "deep" / "file")
        assert facts == {"round": 3, "silo": "ä"} and all(torch.equal(tensors[n], STATE[n]) for n in STATE)

    def test_no_temporary_file_is_left(self, tmp_path):
        write_atomically(tmp_path / "x", b"1")
        write_atomically(tmp_path / "x", b"2")
        assert files(tmp_path) == ["x"] and (tmp_path / "x").read_bytes() == b"2"

    def test_a_failed_write_leaves_the_old_file(self, tmp_path, monkeypatch):
        write_atomically(tmp_path / "x", b"old")

        def full(descriptor):
            raise OSError(28, "No space left on device")

        monkeypatch.setattr("os.fsync", full)
        with pytest.raises(RunFolderError, match="No space left"):
            write_atomically(tmp_path / "x", b"new")
        assert files(tmp_path) == ["x"] and (tmp_path / "x").read_bytes() == b"old"
