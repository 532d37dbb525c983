"""Flower, its simulation alone: nodes and messages come from it, questions and answers are ours.

This is for people who know Flower and want to see these methods run on it, with coarse rounds: a round with two sites
takes 0.13 s on two idle cores and 0.25 s on busy ones, however little is asked, for both sides of Flower look for
messages ten times a second; and eight seconds or more pass before the first. The engine `local` does the same round in
four milliseconds and ends with the same parameters, to the bit. Between institutions, use NVFLARE.

Importing this room needs nothing but the core; training needs the extra `flower`.
"""

from anabranch.engines.flower._drive import train_in_simulation

__all__ = ["train_in_simulation"]
