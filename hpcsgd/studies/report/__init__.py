"""Reports on studies, runs and comparisons: an HTML page, and each figure as files.

`points` reads runs and groups them into settings and problems, `charts` makes charts
and the verdict of them, and `page` makes the tables and the page.
"""

from hpcsgd.studies.report.page import Report, make_report, write_figures, write_page

__all__ = ["Report", "make_report", "write_figures", "write_page"]
