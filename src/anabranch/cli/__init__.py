"""What can I type? Thin verbs over the library."""

import os

# Small products gain nothing from a BLAS's own threads, and they fight with torch's and with other runs.
for _name in ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_name, "1")


def main() -> None:
    """The `anabranch` command."""
    from anabranch.cli._verbs import app

    app()


__all__ = ["main"]
