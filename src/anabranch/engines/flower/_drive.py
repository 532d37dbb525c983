"""Trains in Flower's simulation: a process of ours that ends, and Ray with it, when the run does."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from anabranch.engines._progress import Follower
from anabranch.errors import AnabranchError
from anabranch.runs import Notes, Row, RunFolder

QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
}


def train_in_simulation(path: Path, notes: Notes, sites: Path) -> list[Row]:
    pass
