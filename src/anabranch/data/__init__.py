"""What are the samples, who holds them?

Shapes to practise on, checked points, tables that become points without being pooled, and partitioners that
decide which silo holds what.
"""

from anabranch.data._cloud import Cloud
from anabranch.data._encoder import (
    MISSING_RULES,
    CategoricalColumn,
    Column,
    Encoder,
    NumericColumn,
    Summary,
    merge,
    summarise,
)
from anabranch.data._partition import (
    PARTITIONERS,
    Partition,
    by_attribute,
    by_component,
    by_shards,
    dirichlet,
    iid,
)
from anabranch.data._points import Split, check_points, load_attribute, load_points, split
from anabranch.data._shapes import SHAPES, Points, Shape, shape
from anabranch.data._table import KINDS, MISSING, Table, infer_kinds

__all__ = [
    "KINDS",
    "MISSING",
    "MISSING_RULES",
    "PARTITIONERS",
    "SHAPES",
    "CategoricalColumn",
    "Cloud",
    "Column",
    "Encoder",
    "NumericColumn",
    "Partition",
    "Points",
    "Shape",
    "Split",
    "Summary",
    "Table",
    "by_attribute",
    "by_component",
    "by_shards",
    "check_points",
    "dirichlet",
    "iid",
    "infer_kinds",
    "load_attribute",
    "load_points",
    "merge",
    "shape",
    "split",
    "summarise",
]
