"""One set of samples against several sets of real images: FID and KID, each named by what it was taken against."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from anabranch.errors import UsageError
from anabranch.metrics._frechet import frechet_distance
from anabranch.metrics._kid import kernel_distance
from anabranch.metrics._reference import Reference
from anabranch.metrics._statistics import FeatureStatistics
from anabranch.seeds import generator

BLOCKS = 10  # of KID


def fid_report(features: Tensor, references: Mapping[str, Reference], sanity: bool = True) -> list[dict[str, Any]]:
    """Rows `fid_NAME`, `kid_NAME` and `kid_NAME_error` for samples' features (n, d), one set for each reference's name.

        references = {split: reference("cifar10", split, inception).to("cuda") for split in ("train", "test")}
        fid_report(inception.features(to_bytes(samples, (3, 32, 32))), references)

    Each row has `images`, how many samples it is of, and `real`, how many real images, both of which FID depends on.
    With references to `train` and `test` there is `fid_train_test`, the FID of the one against the other: what real
    images score. It takes as long as any other distance, so who compares many sets of samples asks for it once
    (`sanity=False`, and `train_against_test`). KID's blocks are drawn with a fixed seed, the same for all samples; it
    is left out where features of the real images were not kept, or where there are too few for blocks. All is taken on
    the references' device.
    """
    if not references:
        raise UsageError("No references were given, so there is nothing to compare with; give train or test, or both.")
    made = features.to(next(iter(references.values())).statistics.mean.device)
    statistics = FeatureStatistics.of(made)
    rows: list[dict[str, Any]] = []
    for name, real in references.items():
        size = {"images": len(features), "real": real.statistics.count}
        rows.append({"metric": f"fid_{name}", "value": frechet_distance(real.statistics, statistics), **size})
        if real.features is not None and min(len(real.features), len(made)) >= 2 * BLOCKS:
            kid = kernel_distance(real.features, made, generator(0, "kid", name), BLOCKS)
            rows.append({"metric": f"kid_{name}", "value": kid.value, **size})
            rows.append({"metric": f"kid_{name}_error", "value": kid.error, **size})
    return [*rows, *(train_against_test(references) if sanity else [])]


def train_against_test(references: Mapping[str, Reference]) -> list[dict[str, Any]]:
    """The row `fid_train_test`, what real images score; none where there are no references of these names."""
    if not {"train", "test"} <= set(references):
        return []
    train, test = references["train"].statistics, references["test"].statistics
    value = frechet_distance(train, test)
    return [{"metric": "fid_train_test", "value": value, "images": test.count, "real": train.count}]
