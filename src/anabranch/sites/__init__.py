"""What does one institution hold, and what is it willing to answer?

A site is a folder: `site.toml`, a secret, an audit log, the silo's own checkpoints. `open_site` makes of it something
that answers questions; everything else here helps the people who look after the folder.
"""

from anabranch.sites._check import Findings, check_site
from anabranch.sites._folder import PORT, go_back, withdraw
from anabranch.sites._kinds import Asked, kinds_of, questions
from anabranch.sites._log import LogView, view_log
from anabranch.sites._open import open_site
from anabranch.sites._settings import (
    SITE_SECTIONS,
    TAKEN,
    SiteData,
    SitePolicy,
    SitePrivacy,
    SiteSettings,
    check_name,
    read_site,
)
from anabranch.sites._write import new_settings, write_site

__all__ = [
    "PORT",
    "SITE_SECTIONS",
    "TAKEN",
    "Asked",
    "Findings",
    "LogView",
    "SiteData",
    "SitePolicy",
    "SitePrivacy",
    "SiteSettings",
    "check_name",
    "check_site",
    "go_back",
    "kinds_of",
    "new_settings",
    "open_site",
    "questions",
    "read_site",
    "view_log",
    "withdraw",
    "write_site",
]
