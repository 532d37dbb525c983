"""What does it look like? Figures, tables, and one self-contained HTML page for one or several runs."""

from anabranch.report._grid import Cells, draw_cloud, draw_grid, draw_sheet
from anabranch.report._measures import Way, draw_coreset, draw_matrix, draw_way
from anabranch.report._page import write_report
from anabranch.report._read import Comparison, Run, comparison
from anabranch.report._statistics import Statistics
from anabranch.report._study import write_study_report
from anabranch.report._table import Table, figure_columns, summary_table, table

__all__ = [
    "Cells",
    "Comparison",
    "Run",
    "Statistics",
    "Table",
    "Way",
    "comparison",
    "draw_cloud",
    "draw_coreset",
    "draw_grid",
    "draw_matrix",
    "draw_sheet",
    "draw_way",
    "figure_columns",
    "summary_table",
    "table",
    "write_report",
    "write_study_report",
]
