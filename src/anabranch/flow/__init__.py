"""How does a point move? Paths between pairs, velocity networks, ODE solvers, moving averages.

```python
field = network("mlp", dimension=2, seed=0)
sample = LinearPath().sample(x0, x1, t)                 # x_t and its velocity u_t
loss = (field(sample.x_t, sample.t) - sample.u_t).square().mean()
generated = integrate(field, fresh_x0, nfe=10).x1
```
"""

from anabranch.flow import conditioning, unet
from anabranch.flow._average import MovingAverage
from anabranch.flow._compiled import attempt, compile_in_place, is_compiled
from anabranch.flow._convolutions import convolutions
from anabranch.flow._networks import PotentialMLP, VelocityMLP, network, networks_with, register_network
from anabranch.flow._paths import (
    BridgePath,
    LinearPath,
    Path,
    PathSample,
    TargetPath,
    VariancePreservingPath,
    path,
    times_at,
)
from anabranch.flow._precision import has_bfloat16
from anabranch.flow._price import RowCost, price_of_row
from anabranch.flow._recorded import Recorded
from anabranch.flow._solvers import Flow, Velocity, integrate

__all__ = [
    "BridgePath",
    "Flow",
    "LinearPath",
    "MovingAverage",
    "Path",
    "PathSample",
    "PotentialMLP",
    "Recorded",
    "RowCost",
    "TargetPath",
    "VariancePreservingPath",
    "Velocity",
    "VelocityMLP",
    "attempt",
    "compile_in_place",
    "conditioning",
    "convolutions",
    "has_bfloat16",
    "integrate",
    "is_compiled",
    "network",
    "networks_with",
    "path",
    "price_of_row",
    "register_network",
    "times_at",
    "unet",
]
