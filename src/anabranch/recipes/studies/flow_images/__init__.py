"""Flows of images trained on silos (FFM, section 5 and Appendix D): how good samples are after how many steps.

A cell is a run like any other, in a folder of its own: it is saved now and then, and goes on where it was stopped. What
came of it is sampled with few and with many Euler steps, all methods from the same noise, and compared with the
training and the test images of the set: by FID where Inception's weights are, else by the same distance between pixels.
Options ask for more: `memorised`, the share of copies among samples of the most steps; `adaptive`, samples of dopri5;
`precise`, some samples in 32 bits as well; and `curve`, distances while it trains.
"""

from anabranch.recipes.studies.flow_images._cell import RUN, run, share
from anabranch.recipes.studies.flow_images._config import FREE, config_of
from anabranch.recipes.studies.flow_images._curve import Curve
from anabranch.recipes.studies.flow_images._eyes import Eyes
from anabranch.recipes.studies.flow_images._pictures import draw
from anabranch.recipes.studies.flow_images._sampling import sampled, velocity_of
from anabranch.recipes.studies.flow_images._tables import tables

__all__ = ["FREE", "RUN", "Curve", "Eyes", "config_of", "draw", "run", "sampled", "share", "tables", "velocity_of"]
