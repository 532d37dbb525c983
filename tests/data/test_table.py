"""Tables: CSV in and out, kinds, and the sentences for files that are none."""

import pytest

from anabranch.data import Table, infer_kinds
from anabranch.errors import DataError


def test_write_then_read_gives_the_table_back(tmp_path):
    table = Table({"a, b": ["1", "", "x\ny"], "ü": ['say "hi"', "NA", "?"]})
    table.write(tmp_path / "table.csv")
    assert Table.read(tmp_path / "table.csv") == table


def test_a_lonely_column_keeps_its_missing_values(tmp_path):
    table = Table({"only": ["1", "", "3"]})
    table.write(tmp_path / "table.csv")
    assert Table.read(tmp_path / "table.csv") == table


def test_byte_order_marks_blanks_and_empty_lines_are_forgiven(tmp_path):
    (tmp_path / "table.csv").write_bytes("\ufeffage, town\r\n41, Bonn \r\n\r\n39,Cork".encode())
    table = Table.read(tmp_path / "table.csv")
    assert table.columns == {"age": ["41", "39"], "town": ["Bonn", "Cork"]} and len(table) == 2


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"", "'table.csv' is empty"),
        (b"a,b\n1,2\n3\n", "Line 3 of 'table.csv' has 1 values, the header has 2"),
        (b"a,b,a\n1,2,3\n", "names the column 'a' more than once"),
        (b"a,,c\n1,2,3\n", "Column 2 of 'table.csv' has no name"),
        (b"a,b\n\xff\xfe,1\n", "not CSV text in UTF-8"),
        (b'a,b\n"1,2\n', "not CSV text"),
    ],
)
def test_broken_files_get_sentences(tmp_path, content, sentence):
    (tmp_path / "table.csv").write_bytes(content)
    with pytest.raises(DataError, match=sentence):
        Table.read(tmp_path / "table.csv")


def test_absent_files_and_ragged_columns_get_sentences(tmp_path):
    with pytest.raises(DataError, match="cannot be read: No such file"):
        Table.read(tmp_path / "absent.csv")
    with pytest.raises(DataError, match="Column 'b' has 2 values, 'a' has 1"):
        Table({"a": ["1"], "b": ["1", "2"]})
    with pytest.raises(DataError, match="no columns"):
        Table({})


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        (["1", "-2.5e3", "?", "", "NA", "nan"], "numeric"),
        (["1", "two"], "categorical"),
        (["1", "inf"], "categorical"),
        (["1_000", "2"], "categorical"),
    ],
)
def test_kinds_are_inferred_from_the_values_present(values, kind):
    assert infer_kinds(Table({"column": values})) == {"column": kind}
