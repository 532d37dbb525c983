"""Attributes of samples: what can be combined, who has seen which combination, and whether the rest can follow.

After "Compositional Generative Modeling from Decentralized Data" (Morshed and Boddeti; DCFM), section 3.1.
"""

from anabranch.data.attributes._attributed import Attributed
from anabranch.data.attributes._colored import COLORED, COLORS, paint
from anabranch.data.attributes._corners import CORNERS, corner_modes, corner_points
from anabranch.data.attributes._coverage import Coverage
from anabranch.data.attributes._declared import declared_space
from anabranch.data.attributes._divide import DIVISIONS, by_combinations, divide, keep_observed
from anabranch.data.attributes._files import load_attributed, load_silos, save_attributed
from anabranch.data.attributes._observed import OBSERVED, all_but_one, band, minimal, observed_mask
from anabranch.data.attributes._sources import SOURCES, attributed
from anabranch.data.attributes._space import NULL, AttributeSpace
from anabranch.data.attributes._sprites import sprite_space
from anabranch.data.attributes._union import union

__all__ = [
    "COLORED",
    "COLORS",
    "CORNERS",
    "DIVISIONS",
    "NULL",
    "OBSERVED",
    "SOURCES",
    "AttributeSpace",
    "Attributed",
    "Coverage",
    "all_but_one",
    "attributed",
    "band",
    "by_combinations",
    "corner_modes",
    "corner_points",
    "declared_space",
    "divide",
    "keep_observed",
    "load_attributed",
    "load_silos",
    "minimal",
    "observed_mask",
    "paint",
    "save_attributed",
    "sprite_space",
    "union",
]
