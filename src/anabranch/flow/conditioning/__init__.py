"""A field that is told attributes, some of them or none; and fields of single attributes that compose.

```python
field = network("conditional-mlp", dimension=2, seed=0, sizes=(2, 2))
masks, weight = Masking().masks(k=2)
velocities = all_masks(field, x_t, t, y, masks)                        # (k + 2, n, d), one pass
errors = (velocities - u_t).square().mean(dim=(1, 2))
loss = (weight * errors).sum() + strength * masked_penalty(velocities)
generated = integrate(conditioned(composed(field), y), fresh_x0, nfe=10).x1
```
"""

from anabranch.flow.conditioning._compose import Composition, composed, conditioned, guided, strengths
from anabranch.flow.conditioning._embedding import AttributeEmbedding
from anabranch.flow.conditioning._evaluate import Additive, AdditiveField, Field, all_masks, stacked
from anabranch.flow.conditioning._masks import NULL, Masking, masked, pair_masks, single_masks, weights_on
from anabranch.flow.conditioning._mlp import AdditiveMLP, ConditionalMLP
from anabranch.flow.conditioning._penalty import (
    full_penalty,
    independence_gap,
    independence_penalty,
    masked_penalty,
    pair_penalty,
)
from anabranch.flow.conditioning._score import (
    LinearSchedule,
    Schedule,
    VariancePreservingSchedule,
    score_to_velocity,
    velocity_to_data,
    velocity_to_noise,
    velocity_to_score,
)
from anabranch.flow.conditioning._since import AdditiveSince
from anabranch.flow.conditioning._standard import Standard
from anabranch.flow.conditioning._unet import AdditiveUNet, ConditionalUNet

__all__ = [
    "NULL",
    "Additive",
    "AdditiveField",
    "AdditiveMLP",
    "AdditiveSince",
    "AdditiveUNet",
    "AttributeEmbedding",
    "Composition",
    "ConditionalMLP",
    "ConditionalUNet",
    "Field",
    "LinearSchedule",
    "Masking",
    "Schedule",
    "Standard",
    "VariancePreservingSchedule",
    "all_masks",
    "composed",
    "conditioned",
    "full_penalty",
    "guided",
    "independence_gap",
    "independence_penalty",
    "masked",
    "masked_penalty",
    "pair_masks",
    "pair_penalty",
    "score_to_velocity",
    "single_masks",
    "stacked",
    "strengths",
    "velocity_to_data",
    "velocity_to_noise",
    "velocity_to_score",
    "weights_on",
]
