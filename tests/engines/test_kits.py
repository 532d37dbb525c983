"""Kits on paper: what they let in and what they keep out."""

import json
from pathlib import Path

import pytest
from nvflare.apis.fl_exception import UnsafeComponentError
from nvflare.apis.workspace import Workspace
from nvflare.app_common.widgets.component_path_authorizer import ComponentPathAuthorizer
from nvflare.fuel.sec.authz import AuthzContext, Person
from nvflare.security.security import FLAuthorizer

from anabranch.engines.nvflare import _kits
from anabranch.engines.nvflare._job import SERVER_CLASSES, SITE_CLASSES
from anabranch.engines.nvflare._kits import provision, read_kits
from anabranch.errors import UsageError
from tests.engines.two_sites import SITES


def test_everybody_gets_a_kit_and_keys_are_private(kits):
    assert sorted(path.name for path in (kits.folder / "kits").iterdir()) == ["admin", "hamburg", "porto", "server"]
    assert read_kits(kits.folder) == kits
    for kit in [kits.server, kits.admin, *kits.sites.values()]:
        assert kit.stat().st_mode & 0o777 == 0o700
        [key] = (kit / "startup").glob("*.key")
        assert key.stat().st_mode & 0o777 == 0o600
    authority = [kits.folder / "authority", *(kits.folder / "authority").rglob("*")]
    assert all(not path.stat().st_mode & 0o077 for path in authority)
    assert [path.name for path in authority if path.is_file()] == ["cert.json"]


def test_all_connections_are_mutual_tls(kits):
    server = json.loads((kits.server / "startup" / "fed_server.json").read_text())["servers"][0]
    admin = json.loads((kits.admin / "startup" / "fed_admin.json").read_text())["admin"]
    clients = [json.loads((kit / "startup" / "fed_client.json").read_text())["client"] for kit in kits.sites.values()]
    assert {part["connection_security"] for part in [server, admin, *clients]} == {"mtls"}


def resources(kit):
    return json.loads((kit / "local" / "resources.json").read_text())


@pytest.mark.parametrize("name", ["server", *SITES])
def test_only_our_classes_can_be_built(kits, name):
    authorizer = ComponentPathAuthorizer()
    workspace = Workspace(str(kits.kit(name)), name)
    allowed = SERVER_CLASSES if name == "server" else SITE_CLASSES
    for path in allowed:
        authorizer.authorize_component_config({"path": path}, workspace=workspace)
    others = ["subprocess.Popen", "anabranch.engines.nvflare._siteapp.Path", "anabranch.engines.nvflare._kits.stop"]
    others += ["nvflare.collab.api.module_wrapper.ModuleWrapper", "nvflare.app_common.np.np_trainer.NPTrainer"]
    others += SITE_CLASSES if name == "server" else SERVER_CLASSES
    for path in others:
        with pytest.raises(UnsafeComponentError, match="not in allow_list"):
            authorizer.authorize_component_config({"path": path}, workspace=workspace)
    assert resources(kits.kit(name))["class_allow_list"] == list(allowed)


def may(kit, user, right, role="project_admin"):
    policy = json.loads(Path(Workspace(str(kit), "x").get_authorization_file_path()).read_text())
    person = Person(user, "anabranch", role)
    return FLAuthorizer("anabranch", policy).authorize(AuthzContext(right, person, person))[0]


def test_nobody_may_bring_code_or_look_around(kits):
    for kit in [kits.server, *kits.sites.values()]:
        for right in ("byoc", "server-predeployed-flwr", "cat", "ls", "clone_job"):
            assert not may(kit, kits.user, right)
        for right in ("submit_job", "abort_job", "list_jobs"):
            assert may(kit, kits.user, right)
        for role in ("lead", "org_admin", "member"):
            assert not any(may(kit, "guest@example.org", right, role) for right in ("byoc", "submit_job", "list_jobs"))
    assert may(kits.server, kits.user, "download_job")
    assert not any(may(kit, kits.user, right) for kit in kits.sites.values() for right in ("download_job", "shutdown"))


def test_sites_keep_their_logs_and_nothing_falls_back(kits):
    for kit in [kits.server, *kits.sites.values()]:
        assert resources(kit)["allow_log_streaming"] is False
        assert not [one for one in resources(kit)["components"] if "logging" in one["path"]]
        assert not list((kit / "local").glob("*.default"))
        assert "/tmp/nvflare" not in (kit / "local" / "resources.json").read_text()


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"sites": []}, "at least one"),
        ({"sites": ["two words"]}, "'two words' cannot be a site's name"),
        ({"sites": ["-n"]}, "'-n' cannot be a site's name"),
        ({"sites": ["süd"]}, "'süd' cannot be a site's name"),
        ({"sites": ["north\n"]}, "cannot be a site's name"),
        ({"sites": ["x" * 64]}, "at most 63"),
        ({"sites": ["north", "North"]}, "'North' is taken"),
        ({"sites": ["server"]}, "'server' is taken"),
        ({"sites": ["admin"]}, "'admin' is taken"),
        ({"sites": ["localhost"]}, "'localhost' is taken"),
        ({"server": "no host"}, "'no host' is not a host's name"),
        ({"admin": "somebody"}, "'somebody' is not an address"),
        ({"project": "a/b"}, "'a/b' cannot be"),
        ({"port": 0}, "0 is not a port"),
        ({"port": 8003}, "give two ports"),
    ],
)
def test_names_and_ports_are_checked_first(tmp_path, settings, sentence):
    with pytest.raises(UsageError, match=sentence):
        provision(tmp_path / "federation", **{"sites": SITES, **settings})
    assert not (tmp_path / "federation").exists()


def test_kits_are_made_once_and_whole(tmp_path, kits, monkeypatch):
    with pytest.raises(UsageError, match="exists already"):
        provision(kits.folder, SITES)
    with pytest.raises(UsageError, match="without spaces"):
        provision(tmp_path / "my federation", SITES)
    with pytest.raises(UsageError, match="holds no kits"):
        read_kits(tmp_path)
    monkeypatch.setattr(_kits, "_write_policy", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        provision(tmp_path / "federation", SITES)
    assert not (tmp_path / "federation").exists()
