"""The card of a model that is handed on: what it is, what it was trained on, how good it is, what it reveals."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from anabranch.runs._config import Config
from anabranch.runs._folder import Checkpoint, RunFolder

MODEL, CARD, ENCODER = "model.safetensors", "card.json", "encoder.json"
_COSTS = ("_seconds", "_forward", "_backward")  # how rows are called that say what training took
_GUARDS = {
    "lookup_noise": "noise on semi-discrete answers",
    "lookup_limit": "limit on semi-discrete answers",
    "gradient_clip": "clip on gradients",
    "gradient_noise": "noise on gradients",
}
_REVEALS = (
    "A generative model can remember training points, above all when it is large and the data small. Nothing here"
    " measures that. Before it is given to others, compare its samples with the rows that must not be recognised."
)


def card_of(config: Config, folder: RunFolder, checkpoint: Checkpoint, own: dict[str, Any]) -> dict[str, Any]:
    """The whole card: what every run has to say, and the `own` parts of this kind of model."""
    results = folder.read_json("results.json")
    return {
        "title": own["title"],
        "licence": None,
        "model": {"file": MODEL, **own["model"]},
        **({"attributes": own["attributes"]} if "attributes" in own else {}),
        "data": _data(config, folder, results["rows"], checkpoint.facts.get("sizes", {})),
        "method": {"name": config.method, "rounds": results["rounds"], "seed": config.seed, **own["method"]},
        "figures": _figures(results["rows"]),
        "privacy": {"guards": _guards(config, folder), "reveals": [_REVEALS, *own["reveals"], *_reveals(folder)]},
        "versions": folder.read_json("environment.json"),
    }


def page_of(card: Mapping[str, Any]) -> str:
    """The card for people."""
    model, data, method, privacy = (card[key] for key in ("model", "data", "method", "privacy"))
    settings = {f"{name}.{key}": v for name, s in method.items() if isinstance(s, dict) for key, v in s.items()}
    parts = {
        "Model": f"The {model['what']}.\n\n"
        + _table(("", ""), [(key, value) for key, value in model.items() if key not in ("file", "what")]),
        **({"Attributes": _attributes(card["attributes"])} if "attributes" in card else {}),
        "Data": f"{data['where']} {_held_out(data['held_out'])}\n\n"
        + _table(
            ("silo", "points", "bytes received", "bytes sent"),
            [
                (name, s["points"] or "not recorded", s.get("bytes_down", 0), s.get("bytes_up", 0))
                for name, s in data["silos"].items()
            ],
        ),
        "Method": f"{method['name']}, {method['rounds']} rounds, seed {method['seed']}.\n\n"
        + _table(("setting", "value"), settings.items()),
        "Figures": _table(
            ("metric", "evaluations", "solver", "value"),
            [(_metric(f), f["nfe"] or "", f["solver"] or "", f"{f['value']:.4g}") for f in card["figures"]],
        ),
        "Privacy": "\n".join(f"- {line}" for line in [*(privacy["guards"] or ["no guards"]), *privacy["reveals"]]),
        "Versions": _table(("", ""), card["versions"].items()),
        "Licence": card["licence"] or "To be stated by whoever hands this on.",
    }
    return f"# {card['title']}\n" + "".join(f"\n## {name}\n\n{text}\n" for name, text in parts.items())


def flow_sections(config: Config) -> dict[str, Any]:
    """The sections that the method used; no path of a file is among them."""
    used = ["coupling", "federation"]
    used += ["semidiscrete"] if config.coupling.name == "semidiscrete" else []
    used += ["potential"] if config.coupling.name in ("potential", "entropic", "balanced") else []
    flow = {key: value for key, value in asdict(config.flow).items() if key != "source"}
    return {"flow": flow, **{name: asdict(getattr(config, name)) for name in used}}


def _figures(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """How good it is; what it cost to train stands elsewhere."""
    found = []
    for row in rows:
        if not row["metric"].startswith("bytes_") and not row["metric"].endswith(_COSTS):
            which = {"combination": row["combination"]} if "combination" in row else {}
            found.append({key: row.get(key) for key in ("metric", "nfe", "solver", "value")} | which)
    return found


def _data(config: Config, folder: RunFolder, rows: list[dict[str, Any]], sizes: dict[str, int]) -> dict[str, Any]:
    silos: dict[str, dict[str, Any]] = {}
    for row in rows:
        if row["metric"] in ("bytes_up", "bytes_down"):
            silo = silos.setdefault(row["silo"], {"points": sizes.get(row["silo"])})
            silo[row["metric"]] = silo.get(row["metric"], 0) + int(row["value"])
    held_out = None if config.data.at_sites else config.data.held_out
    return {"where": _where(config, folder, len(silos)), "held_out": held_out, "silos": silos}


def _held_out(share: float | None) -> str:
    return "Each site keeps points of its own for metrics." if share is None else f"Held out for metrics: {share:.0%}."


def _engine(folder: RunFolder) -> str:
    return str(folder.read_json("engine.json")["engine"]) if (folder.path / "engine.json").exists() else "local"


def _where(config: Config, folder: RunFolder, silos: int) -> str:
    if config.data.pooled:
        return "All rows lay in one place: a baseline, not a federation."
    if _engine(folder) == "nvflare":
        return f"The rows lay at {silos} sites, each in processes of its own institution. No row left a site."
    return f"{silos} silos were simulated on one machine. Messages passed between them and the server, no row did."


def _guards(config: Config, folder: RunFolder) -> list[str]:
    if _engine(folder) == "nvflare":
        return ["noise, clips and limits as each site has set them for itself; they are not known here"]
    found = [f"{words}: {value:g}" for key, words in _GUARDS.items() if (value := getattr(config.privacy, key))]
    if config.coupling.name == "semidiscrete" and config.coupling.group > 1:
        found.append(f"semi-discrete answers rest on groups of at least {config.coupling.group} points")
    return found


def _reveals(folder: RunFolder) -> list[str]:
    if not (folder.path / ENCODER).exists():
        return []
    return ["encoder.json holds means and deviations of columns, and every category with its count."]


def _metric(figure: Mapping[str, Any]) -> str:
    return f"{figure['metric']}: {figure['combination']}" if "combination" in figure else str(figure["metric"])


def _attributes(attributes: Mapping[str, Any]) -> str:
    """Which attributes there are, and which of their combinations some silo has seen."""
    numbers = attributes["numbers"]
    lines = [(text, kind) for kind in ("known", "novel") for text in attributes[kind]]
    more = sum(numbers.values()) - len(lines)
    return "\n\n".join(
        [
            _table(("attribute", "outcomes"), [(n, ", ".join(all_)) for n, all_ in attributes["outcomes"].items()]),
            f"Some silo has seen {numbers['known']} combinations, and none has seen the other {numbers['novel']}.",
            *attributes["problems"],
            _table(("combination", ""), lines) + (f"\n\nAnd {more} more." if more else ""),
        ]
    )


def _table(header: tuple[str, ...], lines: Any) -> str:
    rows = [header, ("---",) * len(header), *lines]
    return "\n".join("| " + " | ".join(str(cell).replace("|", "\\|") for cell in row) + " |" for row in rows)
