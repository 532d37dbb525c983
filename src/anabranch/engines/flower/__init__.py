"""Flower, its simulation alone: nodes and messages come from it, questions and answers are ours."""

from anabranch.engines.flower._drive import train_in_simulation

__all__ = ["train_in_simulation"]
