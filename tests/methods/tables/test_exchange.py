"""Tables in three silos get the encoder that the pooled table would give, and only summaries travel."""

import pytest
import torch

from anabranch.data import Table, infer_kinds, merge, summarise
from anabranch.errors import DataError, UsageError
from anabranch.federation import Federation, Silo
from anabranch.methods.tables import agree

PARTS = {
    "north": {"age": ["41", "55", "38"], "dose": ["0.5", "1.25", "3"], "town": ["Bonn", "Cork", "Bonn"]},
    "south": {"age": ["29", "63"], "dose": ["2.5", "0.75"], "town": ["Lima", "Lima"]},
    "west": {"age": ["44", "47"], "dose": ["1000000.5", "1000001.25"], "town": ["Cork", "Oslo"]},
}


def silos(**changes):
    return [Silo.of_table(name, Table({**columns, **changes.get(name, {})})) for name, columns in PARTS.items()]


def pooled():
    return Table({name: [v for part in PARTS.values() for v in part[name]] for name in PARTS["north"]})


def spied(federation):
    """Everything that crosses between server and silos, both ways."""
    seen, ask = [], federation.engine.ask

    def listen(envelopes, timeout=None):
        replies = ask(envelopes, timeout)
        seen.extend([*(e.question for e in envelopes.values()), *replies.answers.values()])
        return replies

    federation.engine.ask = listen
    return seen


def test_the_encoder_is_that_of_the_pooled_table():
    table = pooled()
    whole = merge({"all": summarise(table, infer_kinds(table))})
    encoder = agree(Federation(silos()))
    assert encoder.names == whole.names
    for mine, theirs in zip(encoder.columns, whole.columns, strict=True):
        if hasattr(mine, "mean"):
            assert mine.mean == pytest.approx(theirs.mean, rel=1e-12)
            assert mine.deviation == pytest.approx(theirs.deviation, rel=1e-9) and mine.whole == theirs.whole
        else:
            assert mine == theirs


def test_every_silo_holds_its_own_rows_encoded():
    members = silos()
    encoder = agree(Federation(members))
    for member in members:
        assert torch.equal(member.data.x, encoder.encode(Table(PARTS[member.name])))
        assert encoder.decode(member.data.x).columns["town"] == PARTS[member.name]["town"]
    together = torch.cat([member.data.x for member in members]).double()
    assert together[:, 0].mean().abs() < 1e-6 and together[:, 0].std(correction=0) == pytest.approx(1, rel=1e-5)


def test_the_silos_can_open_a_run_afterwards():
    federation = Federation(silos())
    agree(federation)
    federation.open("run", seed=0)
    assert federation.weight == pytest.approx({"north": 3 / 7, "south": 2 / 7, "west": 2 / 7})


def test_only_summaries_and_the_encoder_travel():
    federation = Federation(silos())
    seen = spied(federation)
    agree(federation)
    assert {m.kind for m in seen} == {"tables.summarise", "tables.summarise.reply", "tables.encode", "done"}
    text = " ".join(str(message) for message in seen)
    assert "1000000.5" not in text and "55" not in text  # no single value of a row
    assert {entry.kind for entry in federation.ledger.entries()} == {m.kind for m in seen}


def test_numbers_that_are_codes_can_be_called_categories():
    encoder = agree(Federation(silos()), categorical=("age",))
    assert encoder.columns[0].categories == ("29", "38", "41", "44", "47", "55", "63")


def test_a_column_that_one_silo_lacks_is_named_with_both_silos():
    members = silos(south={"extra": ["1", "2"]})
    with pytest.raises(DataError, match=r"'south' has a column 'extra', silo 'north' has not"):
        agree(Federation(members))


def test_a_column_of_two_kinds_is_named_with_both_silos():
    members = silos(west={"age": ["young", "old"]})
    with pytest.raises(DataError, match=r"'age' is numeric in silo 'north' and categorical in silo 'west'"):
        agree(Federation(members))


def test_missing_values_are_refused_or_made_typical():
    changes = {"south": {"age": ["NA", "63"]}}
    with pytest.raises(DataError, match="'age' lacks 1 of 2"):
        agree(Federation(silos(**changes)))
    members = silos(**changes)
    agree(Federation(members), missing="typical")
    assert float(members[1].data.x[0, 0]) == pytest.approx(0, abs=1e-6)


def test_a_silo_whose_data_cannot_be_used_is_named():
    with pytest.raises(DataError, match="south"):
        agree(Federation(silos(south={"age": ["NA", "63"]})))


def test_a_silo_that_holds_points_has_no_table_to_summarise():
    with pytest.raises(DataError, match="'p' holds points"):
        agree(Federation([*silos(), Silo("p", torch.zeros(3, 2))]))


def test_a_misspelt_categorical_column_is_refused_with_a_suggestion():
    silos = [Silo.of_table(name, Table({"ward": ["1", "2"], "age": ["30", "40"]})) for name in ("a", "b")]
    with pytest.raises(UsageError, match="did you mean 'ward'"):
        agree(Federation(silos), categorical=("wrd",))
