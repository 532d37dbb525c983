"""The byte ledger adds up."""

from anabranch.federation import Entry, Ledger


def filled():
    ledger = Ledger()
    for silo, kind, direction, size in [
        ("a", "x", "down", 10),
        ("a", "x", "down", 5),
        ("a", "x.reply", "up", 7),
        ("b", "x", "down", 100),
    ]:
        ledger.add(silo, kind, direction, size)
    return ledger


def test_sums_by_direction_and_silo():
    ledger = filled()
    assert ledger.bytes() == 122
    assert (ledger.bytes("down"), ledger.bytes("up")) == (115, 7)
    assert (ledger.bytes(silo="a"), ledger.bytes("down", "a"), ledger.bytes("up", "b")) == (22, 15, 0)


def test_entries_are_sorted_and_count_messages():
    assert filled().entries() == [
        Entry("a", "x", "down", 2, 15),
        Entry("a", "x.reply", "up", 1, 7),
        Entry("b", "x", "down", 1, 100),
    ]


def test_goes_on_from_its_state():
    ledger = Ledger()
    ledger.add("z", "other", "up", 3)
    ledger.load(filled().state())
    assert ledger.entries() == filled().entries()
    ledger.add("c", "x", "up", 1)
    assert ledger.bytes() == 123
