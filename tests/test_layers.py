"""A module imports from its own layer or from below, never from above."""

import ast
from pathlib import Path

import anabranch

LAYERS = [
    {"errors", "seeds"},
    {"transport", "flow", "data", "metrics"},
    {"federation", "coupling"},
    {"methods"},
    {"runs", "report", "recipes", "bench", "sites", "engines", "cli"},
]
LEVEL = {room: level for level, rooms in enumerate(LAYERS) for room in rooms}
STRANGERS = [  # rooms that must not know each other, although their layers would allow it
    ("federation", "coupling"),
    ("coupling", "federation"),
    ("federation", "flow"),
    ("federation", "transport"),
    ("transport", "flow"),
    ("flow", "transport"),
    ("data", "flow"),
    ("report", "cli"),
    ("runs", "cli"),
]
ROOT = Path(anabranch.__file__).parent


def imports(path: Path) -> set[str]:
    """The rooms that a file imports, wherever in the file it does so."""
    rooms = set()
    package = ("anabranch", *path.relative_to(ROOT).parent.parts)
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(package[: len(package) - node.level + 1]) if node.level else ""
            stem = ".".join(part for part in (base, node.module) if part)
            names = [stem, *(f"{stem}.{alias.name}" for alias in node.names)]
        else:
            continue
        parts = [name.split(".") for name in names]
        rooms |= {part[1] for part in parts if part[0] == "anabranch" and len(part) > 1 and part[1] in LEVEL}
    return rooms


def test_no_module_looks_up():
    wrong = []
    for path in ROOT.rglob("*.py"):
        relative = path.relative_to(ROOT)
        room = relative.parts[0].removesuffix(".py")
        if room not in LEVEL:
            assert relative.name in {"__init__.py", "__main__.py"}, f"{relative} is in no room"
            continue
        for other in imports(path):
            if LEVEL[other] > LEVEL[room] or (room, other) in STRANGERS:
                wrong.append(f"{relative} imports {other}")
    assert not wrong, wrong


def test_every_room_exists():
    found = {path.name for path in ROOT.iterdir() if path.is_dir() and (path / "__init__.py").exists()}
    assert found == {room for room in LEVEL if room not in LAYERS[0]}
