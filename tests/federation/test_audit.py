"""A site's log: every answer is in it, it survives crashes, and a change shows."""

import hashlib
import threading

import pytest

from anabranch.errors import DataError
from anabranch.federation import AuditLog, Keep, read_log
from tests.federation.adding import question, site


class TestAuditLog:
    def test_every_question_is_logged_with_the_hash_of_its_answer(self, tmp_path):
        one = site(log=AuditLog(tmp_path / "log"))
        sent = [
            one.answer(question()),
            one.answer(question()),
            one.answer(question(Keep(0), round=99)),
            one.answer(b"?"),
        ]
        entries = list(read_log(tmp_path / "log"))
        assert [entry["verdict"] for entry in entries] == ["answered", "repeated", "refused", "refused"]
        assert [entry["answer"] for entry in entries] == [hashlib.sha256(data).hexdigest() for data in sent]
        first = entries[0]
        assert (first["kind"], first["round"], first["sequence"]) == ("test.site.add", 1, 1)
        assert first["shapes"] == {"total": "float32 (2,)"} and first["bytes_out"] == len(sent[0])

    def test_the_log_goes_on_after_a_restart(self, tmp_path):
        for number in range(3):
            log = AuditLog(tmp_path / "log")
            log.add(number=number)
            log.close()
        assert [entry["number"] for entry in read_log(tmp_path / "log")] == [0, 1, 2]

    def test_half_a_line_left_by_a_crash_is_dropped(self, tmp_path):
        log = AuditLog(tmp_path / "log")
        log.add(number=0)
        log.close()
        with (tmp_path / "log").open("a") as file:
            file.write('{"number": 1, "af')
        AuditLog(tmp_path / "log").add(number=2)
        assert [entry["number"] for entry in read_log(tmp_path / "log")] == [0, 2]

    def test_two_writers_are_one_too_many(self, tmp_path):
        log = AuditLog(tmp_path / "log")
        with pytest.raises(DataError, match="Another process answers"):
            AuditLog(tmp_path / "log")
        threading.Timer(0.2, log.close).start()
        AuditLog(tmp_path / "log", patience=5.0).add(number=0)

    @pytest.mark.parametrize("change", ["edit", "remove", "swap"])
    def test_a_change_shows(self, tmp_path, change):
        log = AuditLog(tmp_path / "log")
        for number in range(4):
            log.add(number=number)
        lines = (tmp_path / "log").read_text().splitlines()
        if change == "edit":
            lines[1] = lines[1].replace('"number": 1', '"number": 9')
        elif change == "remove":
            del lines[1]
        else:
            lines[1], lines[2] = lines[2], lines[1]
        (tmp_path / "log").write_text("\n".join(lines) + "\n")
        with pytest.raises(DataError, match=r"Line [23]"):
            list(read_log(tmp_path / "log"))
