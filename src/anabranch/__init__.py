"""Generative flows and optimal transport on data that stays in its silos."""
