"""What happened? Run folders: config, metrics, checkpoints, resume, results."""

from anabranch.methods._records import fill
from anabranch.runs._attributed import spelling_hints
from anabranch.runs._build import (
    Assembly,
    attributed_parts,
    build_federation,
    build_silos,
    coverage_of,
    guards,
    points_of,
    source_points,
    tables_of,
)
from anabranch.runs._clock import Clock, Looks
from anabranch.runs._config import (
    COMPOSED,
    FEDWAD,
    PLAIN,
    SECTIONS,
    Config,
    from_dict,
    from_toml,
    merged,
    override,
)
from anabranch.runs._differences import differences
from anabranch.runs._drive import resume, run_name, simulate, train
from anabranch.runs._evaluate import Evaluation, Row, evaluate
from anabranch.runs._export import ExportedFlow, export, load_exported
from anabranch.runs._export_composition import ExportedComposition
from anabranch.runs._folder import Checkpoint, RunFolder, environment
from anabranch.runs._images import alike, device_of, images_of, read_folders
from anabranch.runs._notes import Notes
from anabranch.runs._sample import draw_samples, open_flow
from anabranch.runs._sample_composition import Chosen, ComposedSamples, draw_composed, draw_every, open_chosen
from anabranch.runs._sample_drawing import Computing, Drawing, Sampling, Written, write_drawing
from anabranch.runs._sample_forms import form_of, open_file
from anabranch.runs._sections import FOLDER
from anabranch.runs._trained import Kept, look_at

__all__ = [
    "COMPOSED",
    "FEDWAD",
    "FOLDER",
    "PLAIN",
    "SECTIONS",
    "Assembly",
    "Checkpoint",
    "Chosen",
    "Clock",
    "ComposedSamples",
    "Computing",
    "Config",
    "Drawing",
    "Evaluation",
    "ExportedComposition",
    "ExportedFlow",
    "Kept",
    "Looks",
    "Notes",
    "Row",
    "RunFolder",
    "Sampling",
    "Written",
    "alike",
    "attributed_parts",
    "build_federation",
    "build_silos",
    "coverage_of",
    "device_of",
    "differences",
    "draw_composed",
    "draw_every",
    "draw_samples",
    "environment",
    "evaluate",
    "export",
    "fill",
    "form_of",
    "from_dict",
    "from_toml",
    "guards",
    "images_of",
    "load_exported",
    "look_at",
    "merged",
    "open_chosen",
    "open_file",
    "open_flow",
    "override",
    "points_of",
    "read_folders",
    "resume",
    "run_name",
    "simulate",
    "source_points",
    "spelling_hints",
    "tables_of",
    "train",
    "write_drawing",
]
