"""Reports on studies, runs and comparisons: one page, and every figure as files.

`point` and `reading` say what was measured, `groups` what belongs together, `verdict`
what is best; `curves`, `scaling`, `bars` and `maps` make charts of it, `tables` tables,
`contents` puts them in order, and `page` is the HTML.
"""

from hpcsgd.studies.report.page import Report, make_report, write_figures, write_page

__all__ = ["Report", "make_report", "write_figures", "write_page"]
