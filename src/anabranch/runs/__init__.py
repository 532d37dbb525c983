"""What happened? Run folders: config, metrics, checkpoints, resume, results."""

from anabranch.runs._build import Assembly, build_federation, build_silos, guards, points_of, source_points, tables_of
from anabranch.runs._config import FEDWAD, SECTIONS, Config, fill, from_dict, from_toml, merged, override
from anabranch.runs._drive import Notes, resume, run_name, simulate, train
from anabranch.runs._evaluate import Evaluation, Row, evaluate
from anabranch.runs._export import ExportedFlow, export, load_exported
from anabranch.runs._folder import Checkpoint, RunFolder, environment
from anabranch.runs._sample import draw_samples, save_samples

__all__ = [
    "FEDWAD",
    "SECTIONS",
    "Assembly",
    "Checkpoint",
    "Config",
    "Evaluation",
    "ExportedFlow",
    "Notes",
    "Row",
    "RunFolder",
    "build_federation",
    "build_silos",
    "draw_samples",
    "environment",
    "evaluate",
    "export",
    "fill",
    "from_dict",
    "from_toml",
    "guards",
    "load_exported",
    "merged",
    "override",
    "points_of",
    "resume",
    "run_name",
    "save_samples",
    "simulate",
    "source_points",
    "tables_of",
    "train",
]
