"""Encoders: the federated one is the pooled one; rows survive the way there and back."""

import statistics
from dataclasses import replace

import numpy
import pytest
import torch

from anabranch.data import CategoricalColumn, Encoder, NumericColumn, Table, infer_kinds, merge, summarise
from anabranch.errors import DataError, UsageError


def people(count, shift=0.0):
    """A table of whole, real, large, constant and categorical columns, all values present."""
    random = numpy.random.default_rng(count)
    return Table(
        {
            "age": [str(int(x)) for x in random.integers(18, 90, count)],
            "height": [f"{x:.4f}" for x in random.normal(1.7 + shift, 0.1, count)],
            "far": [repr(x) for x in random.normal(1e6 + shift, 1, count).tolist()],
            "constant": ["0.1"] * count,
            "town": random.choice(["Bonn", "Cork", "Lviv"], count).tolist(),
        }
    )


def pool(tables):
    return Table({name: [text for table in tables for text in table.columns[name]] for name in tables[0].names})


def encoder_of(**tables):
    kinds = infer_kinds(next(iter(tables.values())))
    return merge({name: summarise(table, kinds) for name, table in tables.items()})


def drop(table, share):
    """The table with a share of its values missing."""
    random = numpy.random.default_rng(len(table))
    return Table(
        {name: [text if random.random() > share else "NA" for text in values] for name, values in table.columns.items()}
    )


@pytest.mark.parametrize("share", [0.0, 0.2])
def test_the_federated_encoder_is_the_pooled_encoder(share):
    a, b, c = (drop(people(count, shift), share) for count, shift in [(50, 0.0), (400, 0.3), (7, -2.0)])
    federated, pooled = encoder_of(a=a, b=b, c=c), encoder_of(pooled=pool([a, b, c]))
    assert federated.names == pooled.names and federated.dimension == pooled.dimension == 7
    for ours, theirs in zip(federated.columns, pooled.columns, strict=True):
        if isinstance(ours, CategoricalColumn):
            assert ours == theirs
        else:
            assert ours.mean == pytest.approx(theirs.mean, rel=1e-12)
            # a mean near 1e6 is itself known to 1e-10 only, and so is a silo's distance from it
            assert ours.deviation == pytest.approx(theirs.deviation, rel=1e-9 if ours.name == "far" else 1e-12)
            assert ours.whole == theirs.whole
    assert federated == encoder_of(c=c, a=a, b=b)


def test_moments_are_exact_far_from_zero():
    """Against exact rational arithmetic: Σx² − (Σx)²/n keeps four digits of the first, none of the last."""
    for values in (
        people(300).columns["far"],
        [str(2020 + x) for x in (-1, 0, 1)] * 20,
        [repr(1e9 + x) for x in (0, 0.25, 0.5)] * 20,
    ):
        parts = {name: Table({"x": values[start::3]}) for start, name in enumerate("abc")}
        (column,) = encoder_of(**parts).columns
        numbers = [float(text) for text in values]
        assert column.mean == pytest.approx(statistics.fmean(numbers), rel=1e-15)
        assert column.deviation == pytest.approx(statistics.pstdev(numbers), rel=1e-7)


def test_encoded_columns_are_standard_and_one_hot():
    tables = {"a": people(300), "b": people(500, 0.3)}
    encoder = encoder_of(**tables)
    x = torch.cat([encoder.encode(table) for table in tables.values()])
    assert x.shape == (800, 7) and x.dtype == torch.float32
    assert torch.allclose(x[:, :3].mean(dim=0), torch.zeros(3), atol=1e-6)
    assert torch.allclose(x[:, :3].var(dim=0, correction=0), torch.ones(3), atol=1e-5)
    assert (x[:, 3].abs() < 1e-12).all()
    assert set(x[:, 4:].unique().tolist()) == {0, 1} and (x[:, 4:].sum(dim=1) == 1).all()


def test_rows_survive_the_way_there_and_back():
    table = people(200)
    encoder = encoder_of(a=table)
    back = encoder.decode(encoder.encode(table))
    assert back.names == table.names
    assert back.columns["age"] == table.columns["age"] and back.columns["town"] == table.columns["town"]
    assert back.columns["constant"] == table.columns["constant"]
    for name, tolerance in [("height", 1e-6), ("far", 1e-5)]:
        assert [float(x) for x in back.columns[name]] == pytest.approx(
            [float(x) for x in table.columns[name]], abs=tolerance
        )


def test_decoding_snaps_to_whole_numbers_and_categories():
    encoder = Encoder(
        (
            NumericColumn("age", 40, 10, whole=True),
            NumericColumn("rate", 0.0, 0.02, whole=False),
            CategoricalColumn("town", ("Bonn", "Cork"), (1, 2)),
        )
    )
    table = encoder.decode(torch.tensor([[0.123, 0.5, 0.3, -2.0], [-5.0, -1e-9, 0.1, 0.2]]))
    assert table.columns == {"age": ["41", "-10"], "rate": ["0.01", "0"], "town": ["Bonn", "Cork"]}


def test_a_silo_without_whole_numbers_makes_the_column_real():
    whole, real = Table({"x": ["1", "2.0"]}), Table({"x": ["2.5"]})
    assert encoder_of(a=whole, b=real).columns[0].whole is False
    assert encoder_of(a=real, b=whole).columns[0].whole is False
    assert encoder_of(a=Table({"x": ["1", "2.0"]}), b=Table({"x": ["NA"]})).columns[0].whole is True


@pytest.mark.parametrize("text", ["0.1", "1000000.1", "0", "7"])
def test_a_constant_column_has_deviation_one(text):
    """Also where the mean of equal numbers is not that number: three times 0.1 is not 0.3."""
    encoder = encoder_of(a=Table({"x": [text] * 3}), b=Table({"x": [text] * 9}))
    assert encoder.columns[0].deviation == 1


def test_missing_values_are_refused_or_typical():
    table = Table({"x": ["1", "3", "NA"], "town": ["Cork", "?", "Cork"]})
    kinds = infer_kinds(table)
    encoder = merge({"a": summarise(table, kinds), "b": summarise(Table({"x": ["5"], "town": ["Bonn"]}), kinds)})
    with pytest.raises(DataError, match="Column 'x' lacks 1 of 3 values"):
        encoder.encode(table)
    x = encoder.encode(table, missing="typical")
    assert x[2, 0] == 0 and x[1, 1:].tolist() == [0, 1]
    with pytest.raises(UsageError, match="rule for missing values 'typcal'; did you mean 'typical'"):
        encoder.encode(table, missing="typcal")


def test_columns_are_found_by_name():
    table = people(20)
    turned = Table(dict(reversed(table.columns.items())))
    encoder = encoder_of(a=table)
    assert torch.equal(encoder.encode(table), encoder.encode(turned))
    assert encoder_of(a=table, b=turned).names == tuple(sorted(table.names))
    assert encoder_of(a=table, b=turned) == encoder_of(b=turned, a=table)


def test_json_gives_an_equal_encoder_back():
    encoder = encoder_of(a=people(30), b=people(5))
    assert Encoder.from_json(encoder.to_json()) == encoder
    for text in (
        "no json",
        "[1]",
        '[{"name": "x", "mean": 0, "deviation": 0, "whole": true}]',
        '[{"name": "x", "mean": NaN, "deviation": 1, "whole": true}]',
        '[{"name": "x", "categories": ["a"], "counts": []}]',
        '[{"name": "x", "mean": 0}]',
    ):
        with pytest.raises(DataError, match="not a table encoder"):
            Encoder.from_json(text)


def test_describe_has_a_line_for_each_column():
    lines = encoder_of(a=Table({"x": ["1", "3"], "town": ["Cork", "Bonn"]})).describe().splitlines()
    assert lines == [
        "x: whole number, mean 2, standard deviation 1",
        "town: 2 categories, Bonn 50.0%, Cork 50.0%",
    ]


def test_a_summary_holds_no_single_value_of_a_numeric_column():
    table = people(40)
    summary = summarise(table, infer_kinds(table))
    reported = set(summary.total.tolist()) | set(summary.squares.tolist())
    for name in ("age", "height", "far"):
        assert not reported & {float(text) for text in table.columns[name]}
        assert name not in summary.categories


SUMMARY = summarise(Table({"x": ["1", "2"]}), {"x": "numeric"})


@pytest.mark.parametrize(
    ("ask", "sentence"),
    [
        (
            lambda: encoder_of(a=Table({"x": ["1"], "y": ["1"]}), b=Table({"x": ["1"], "z": ["1"]})),
            "no column 'y'",
        ),
        (
            lambda: merge({"a": SUMMARY, "b": summarise(Table({"z": ["1"]}), {"z": "numeric"})}),
            "Silo 'a' has a column 'x', silo 'b' has not",
        ),
        (
            lambda: merge({"a": SUMMARY, "b": summarise(Table({"x": ["1"]}), {"x": "categorical"})}),
            "Column 'x' is numeric in silo 'a' and categorical in silo 'b'",
        ),
        (lambda: merge({"a": replace(SUMMARY, squares=-SUMMARY.squares)}), "Silo 'a' reports sums"),
        (lambda: merge({"a": replace(SUMMARY, total=SUMMARY.total * torch.nan)}), "Silo 'a' reports sums"),
        (lambda: merge({}), "No summaries"),
        (lambda: encoder_of(a=Table({"x": ["NA", "?"]})), "Column 'x' has no value in any silo"),
        (lambda: summarise(Table({"x": []}), {"x": "numeric"}), "no rows"),
        (lambda: summarise(Table({"x": ["1"]}), {}), "Column 'x' has no kind"),
        (lambda: summarise(Table({"x": ["1"]}), {"x": "numerical"}), "did you mean 'numeric'"),
        (lambda: summarise(Table({"x": ["1", "b"]}), {"x": "numeric"}), "1 values, the first in row 2"),
        (lambda: summarise(Table({"x": ["1e300"]}), {"x": "numeric"}), "numbers over 1e\\+50"),
        (
            lambda: summarise(Table({"x": [f"id {k}" for k in range(101)]}), {"x": "categorical"}),
            "101 categories, over the 100 allowed",
        ),
        (
            lambda: encoder_of(a=Table({"x": ["1"]})).encode(Table({"y": ["1"]})),
            "Column 'x' is not in the table",
        ),
        (
            lambda: encoder_of(a=Table({"x": ["u", "v"]})).encode(Table({"x": ["u", "w"]})),
            "1 values, the first in row 2, in categories that no silo reported",
        ),
        (lambda: encoder_of(a=Table({"x": ["1"]})).decode(torch.zeros(2, 3)), r"needs \(n, 1\)"),
        (lambda: encoder_of(a=Table({"x": ["1"]})).decode(torch.full((1, 1), torch.nan)), "not finite"),
    ],
)
def test_what_does_not_fit_gets_a_sentence(ask, sentence):
    with pytest.raises((DataError, UsageError), match=sentence):
        ask()
