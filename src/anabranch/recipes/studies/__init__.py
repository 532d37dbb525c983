"""Studies: experiments that are not flow training. A recipe names its module here, as in `study = "toy"`.

A study has

- `run(cell: StudyCell) -> list[Row]`: every figure of one cell; arrays for pictures go to `cell.folder` as .npz;
- `draw(rows, folders, out: Path) -> dict[str, Path]`: the pictures of the whole recipe, by title;
- optionally `share(cell) -> float`, how much of a running cell is done;
- optionally `tables(rows) -> list[tuple[str, list[list[str]]]]`: titles with lines, the header first. Without it, means
  over seeds are printed beside the paper's figures;
- optionally `FREE`, options that change no figure ("section.key") and may be set for a machine, and
- optionally `looks_at(method, option) -> bool`: whether a method's figures may follow from an option. A finished cell
  whose other options have changed still holds.

The recipe's line `paper = "…"` says which figures are made again. TOML allows a key only once, so the paper's own
figures are `[[published]]` entries: problem, method, metric, value, spread (optional), where. `recipe(name).published`
gives them. A problem may list the `methods` that it is for; a scale may list its `methods` and `problems`. Cells with
`alone = true` among their options run after all others and one at a time, so that their clocks can be trusted. A check
may select rows by their other keys, as in `where = { x = 1000 }`.
"""
