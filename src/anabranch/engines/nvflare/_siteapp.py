"""The silo half in an NVFLARE job: one published method, behind which stand the site's policy and its log."""

from __future__ import annotations

import os
import threading
from pathlib import Path

from nvflare.collab import collab

from anabranch.errors import AnabranchError, UsageError
from anabranch.federation import Refused, Site, encode

SITE, SITES = "ANABRANCH_SITE", "ANABRANCH_SITES"


class SiteApp:
    """Lives in the site's job process. It is part of the installed package: a job brings no code along."""

    def __init__(self) -> None:
        self._site: Site | None = None
        self._lock = threading.Lock()

    @collab.publish  # type: ignore[untyped-decorator]
    def answer(self, question: bytes) -> bytes:
        """The encoded answer. A site that cannot be opened says so, instead of ending the job of the others."""
        try:
            site = self._open(collab.site_name)
        except AnabranchError as error:
            return encode(Refused(type(error).__name__, str(error)))
        return site.answer(question)

    def _open(self, name: str) -> Site:
        with self._lock:
            if self._site is None:
                import torch

                from anabranch.sites import open_site

                torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
                site = open_site(site_folder(name))
                if site.silo.name != name:
                    raise UsageError(f"Site '{name}' was started with the folder of site '{site.silo.name}'.")
                self._site = site
            return self._site


def site_folder(name: str) -> Path:
    """Where this machine keeps the site's data, policy and log: the site's own word, never the job's."""
    if SITE in os.environ:
        return Path(os.environ[SITE])
    if SITES in os.environ:
        return Path(os.environ[SITES]) / name
    raise UsageError(f"Site '{name}' has no folder: start it with {SITE} naming the folder that 'site init' made.")
