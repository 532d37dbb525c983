"""Questions as bytes: what arrives is what was sent, or is refused."""

import json

import pytest
import torch

from anabranch.errors import MessageError
from anabranch.federation import Envelope, decode_question, encode_question
from tests.federation.adding import AMOUNT, question


class TestWire:
    def test_a_question_survives_the_wire(self):
        sent = Envelope("run", 4, 2, AMOUNT, 77)
        got = decode_question(encode_question(sent))
        assert got.place == sent.place and torch.equal(got.question.amount, AMOUNT.amount)

    @pytest.mark.parametrize(
        ("header", "words"),
        [
            ({"version": "99.0.0"}, "version 99.0.0 arrived at version"),
            ({"version": 3}, "version 3 arrived"),
            ({"round": -1}, "no whole number"),
            ({"round": True}, "no whole number"),
            ({"sequence": 2**63}, "no whole number"),
            ({"session": 1.5}, "no whole number"),
            ({"run": 7}, "no name"),
            ({"run": "x" * 513}, "no name"),
            ({"extra": 1}, "does not say"),
        ],
    )
    def test_a_wrong_header_is_refused(self, header, words):
        data = question()
        length = int.from_bytes(data[:4], "little")
        text = json.dumps({**json.loads(data[4 : 4 + length]), **header}).encode()
        with pytest.raises(MessageError, match=words):
            decode_question(len(text).to_bytes(4, "little") + text + data[4 + length :])

    @pytest.mark.parametrize("data", [b"", b"\x00", b"\xff\xff\xff\xff", b"\x02\x00\x00\x00[]", b"\x02\x00\x00\x00{}"])
    def test_bytes_that_are_no_question_are_refused(self, data):
        with pytest.raises(MessageError):
            decode_question(data)

    def test_a_mutated_question_is_refused_or_fits_the_schema(self):
        random = torch.Generator().manual_seed(0)
        whole, refused = question(), 0
        for _ in range(1500):
            data = bytearray(whole)
            for _ in range(int(torch.randint(1, 4, (1,), generator=random))):
                place = int(torch.randint(len(data), (1,), generator=random))
                choice = int(torch.randint(3, (1,), generator=random))
                if choice == 0:
                    data[place] = int(torch.randint(256, (1,), generator=random))
                elif choice == 1:
                    del data[place:]
                else:
                    data[place:place] = data[: int(torch.randint(20, (1,), generator=random))]
                if not data:
                    break
            try:
                envelope = decode_question(bytes(data))
            except MessageError:
                refused += 1
            else:
                assert envelope.question.amount.isfinite().all() and 0 <= envelope.round < 2**63
        assert refused > 500
