"""What are the samples, who holds them?

Shapes to practise on, checked points, tables that become points without being pooled, images from package
registries or from folders, and partitioners that decide which silo holds what.
"""

from anabranch.data._cache import Progress, cache_folder, damage, get, weights
from anabranch.data._catalogue import CATALOGUE, IMAGE_SETS
from anabranch.data._cloud import Cloud
from anabranch.data._dsprites import FACTORS
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
from anabranch.data._folders import has_classes, load_folder, share_classes
from anabranch.data._images import ImageSet, load_images
from anabranch.data._partition import (
    PARTITIONERS,
    Partition,
    by_attribute,
    by_component,
    by_shards,
    dirichlet,
    iid,
)
from anabranch.data._pixels import FLIPS, Pixels, Samples, check_crop
from anabranch.data._points import (
    Split,
    check_points,
    has_labels,
    load_attribute,
    load_image_bytes,
    load_points,
    load_samples,
    save_images,
    split,
)
from anabranch.data._shapes import SHAPES, Points, Shape, shape
from anabranch.data._table import KINDS, MISSING, Table, infer_kinds
from anabranch.data._weights import WEIGHTS

__all__ = [
    "CATALOGUE",
    "FACTORS",
    "FLIPS",
    "IMAGE_SETS",
    "KINDS",
    "MISSING",
    "MISSING_RULES",
    "PARTITIONERS",
    "SHAPES",
    "WEIGHTS",
    "CategoricalColumn",
    "Cloud",
    "Column",
    "Encoder",
    "ImageSet",
    "NumericColumn",
    "Partition",
    "Pixels",
    "Points",
    "Progress",
    "Samples",
    "Shape",
    "Split",
    "Summary",
    "Table",
    "by_attribute",
    "by_component",
    "by_shards",
    "cache_folder",
    "check_crop",
    "check_points",
    "damage",
    "dirichlet",
    "get",
    "has_classes",
    "has_labels",
    "iid",
    "infer_kinds",
    "load_attribute",
    "load_folder",
    "load_image_bytes",
    "load_images",
    "load_points",
    "load_samples",
    "merge",
    "save_images",
    "shape",
    "share_classes",
    "split",
    "summarise",
    "weights",
]
