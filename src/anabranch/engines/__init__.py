"""Where do the silos live? In this process, in others of this machine, or at institutions of their own."""

from anabranch.engines._choose import ENGINES, require, resume_on_its_engine, train_on

__all__ = ["ENGINES", "require", "resume_on_its_engine", "train_on"]
