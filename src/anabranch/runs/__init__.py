"""What happened? Run folders: config, metrics, checkpoints, resume, results."""

from anabranch.runs._build import build_federation, build_silos, source_points
from anabranch.runs._config import SECTIONS, Config, from_dict, from_toml, merged, override
from anabranch.runs._drive import Notes, resume, train
from anabranch.runs._evaluate import Evaluation, Row, evaluate
from anabranch.runs._folder import Checkpoint, RunFolder, environment
from anabranch.runs._sample import draw_samples, save_samples

__all__ = [
    "SECTIONS",
    "Checkpoint",
    "Config",
    "Evaluation",
    "Notes",
    "Row",
    "RunFolder",
    "build_federation",
    "build_silos",
    "draw_samples",
    "environment",
    "evaluate",
    "from_dict",
    "from_toml",
    "merged",
    "override",
    "resume",
    "save_samples",
    "source_points",
    "train",
]
