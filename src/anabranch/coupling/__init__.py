"""Which x0 meets which x1?

Every coupling draws aligned pairs and says which points it used; the training loop never knows which one it has.
"""

from anabranch.coupling._balanced import BalancedPotential
from anabranch.coupling._independent import Independent
from anabranch.coupling._minibatch import SOLVERS, MinibatchOT
from anabranch.coupling._pairs import Coupling, Pairs, Precise, Source, batch, pair
from anabranch.coupling._potential import TRANSFORMS, EntropicPotential, GlobalPotential
from anabranch.coupling._semidiscrete import SemiDiscrete
from anabranch.coupling._shared import Potential, PotentialCoupling, potential_duals
from anabranch.coupling._stream import Noises, Stream
from anabranch.coupling._together import pairs_together

__all__ = [
    "SOLVERS",
    "TRANSFORMS",
    "BalancedPotential",
    "Coupling",
    "EntropicPotential",
    "GlobalPotential",
    "Independent",
    "MinibatchOT",
    "Noises",
    "Pairs",
    "Potential",
    "PotentialCoupling",
    "Precise",
    "SemiDiscrete",
    "Source",
    "Stream",
    "batch",
    "pair",
    "pairs_together",
    "potential_duals",
]
