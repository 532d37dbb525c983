"""How fast are images? Training steps of every coupling, sampling, memory and loss, beside a plain loop and a roofline.

```python
work = work_of("auto")                               # the paper's network on a GPU, a tiny one on a CPU
figures = measure_images(work, ["step", "sampling"], out=Path("figures.json"), watch=print)
```
"""

from anabranch.bench.images._checks import image_checks
from anabranch.bench.images._loss import LossDifference, loss_difference
from anabranch.bench.images._ours import OurTraining
from anabranch.bench.images._parts import PARTS
from anabranch.bench.images._peer import PlainNetwork, PlainTraining, plain_sample
from anabranch.bench.images._result import ImageFigures, ImageRow
from anabranch.bench.images._roofline import Roofline, operations, operations_of_pass, roofline
from anabranch.bench.images._run import machine_of, measure_images, parts_of
from anabranch.bench.images._silos import pixels_of
from anabranch.bench.images._tables import image_tables
from anabranch.bench.images._work import Case, ImageWork, cases_of, work_of

__all__ = [
    "PARTS",
    "Case",
    "ImageFigures",
    "ImageRow",
    "ImageWork",
    "LossDifference",
    "OurTraining",
    "PlainNetwork",
    "PlainTraining",
    "Roofline",
    "cases_of",
    "image_checks",
    "image_tables",
    "loss_difference",
    "machine_of",
    "measure_images",
    "operations",
    "operations_of_pass",
    "parts_of",
    "pixels_of",
    "plain_sample",
    "roofline",
    "work_of",
]
