"""Small institutions: folders with a few dozen rows, and a federation that reaches them through bytes."""

import numpy as np
import pytest
import torch

from anabranch.federation import Federation, RemoteEngine
from anabranch.sites import SiteData, SitePolicy, SiteSettings, kinds_of, write_site

TINY = {
    "flow": {"rounds": 12, "batch": 32, "hidden": 16, "layers": 2},
    "potential": {"before": 6, "batch": 32, "hidden": 16, "layers": 2},
    "semidiscrete": {"rounds": 20, "local_rounds": 8, "count": 64, "noises": 500, "block": 200},
    "evaluation": {"nfe": [1, 2], "points": 64, "dopri5": False},
    "run": {"threads": 1, "checkpoint_every": 5},
}


class Lab:
    """Everything is small and seeded."""

    tiny = TINY

    @staticmethod
    def array(path, count=60, first=0):
        np.save(path, np.random.default_rng(first).normal(size=(count, 2)).astype("float32"))
        return path

    @staticmethod
    def table(path, count=60, first=20):
        wards = ("north", "south", "east")
        rows = [f"{first + number % 30},{number % 7 / 2},{wards[number % 3]}" for number in range(count)]
        path.write_text("\n".join(["age,stay,ward", *rows]) + "\n")
        return path

    @classmethod
    def site(cls, folder, method="vanilla", data="points.npy", secret=5, smallest_group=10, **policy):
        """A site's folder with data inside."""
        folder.mkdir(parents=True)
        first = 10 * (len(list(folder.parent.iterdir())) - 1)  # sites hold different points
        (cls.table if data.endswith(".csv") else cls.array)(folder / data, first=first)
        rules = {"kinds": kinds_of(method, data.endswith(".csv")), "smallest_group": smallest_group, **policy}
        write_site(folder, SiteSettings(folder.name, SiteData(data, held_out=0.25), SitePolicy(**rules)), secret)
        return folder

    @staticmethod
    def connected(*sites):
        """A federation that speaks to the sites through bytes."""
        by_name = {site.silo.name: site for site in sites}

        def carry(questions, patience):
            return {name: by_name[name].answer(data) for name, data in questions.items()}

        return Federation(RemoteEngine(by_name, carry))


@pytest.fixture(scope="session")
def lab():
    torch.set_num_threads(1)
    return Lab
