"""How the page looks: on a screen, light or dark as readers prefer, and on paper."""

from hpcsgd.charts.looks import DARK, GROUND, INK
from hpcsgd.charts.svg import dark_colours

CSS = f"""
:root {{ color-scheme: light; --ink: {INK}; --soft: #555; --rule: #d8d8d8;
  --ground: {GROUND}; --verdict: #f2f7fb; --marked: #fbe3d3; }}
@media screen and (prefers-color-scheme: dark) {{
  :root {{ color-scheme: dark; --ink: {DARK[INK]}; --soft: #a8adb2; --rule: #353a40;
    --ground: {DARK[GROUND]}; --verdict: #1b2833; --marked: #4a2a14;
    {dark_colours()} }}
}}
"""
CSS += """
* { box-sizing: border-box; }
html { background: var(--ground); }
body { margin: 0 auto; padding: 2.2rem 1.6rem 3rem; max-width: 76rem; color: var(--ink);
  font: 16px/1.5 system-ui, -apple-system, "Segoe UI", Helvetica, Arial,
  "Liberation Sans", sans-serif; background: var(--ground); }
h1 { font-size: 1.9rem; line-height: 1.2; margin: 0 0 .3rem; letter-spacing: -.01em; }
h2 { font-size: 1.35rem; margin: 2.6rem 0 .6rem; padding-top: .9rem;
  border-top: 2px solid var(--ink); }
h3 { font-size: 1.05rem; margin: 1.8rem 0 .5rem; }
p.lead { color: var(--soft); margin: 0 0 1rem; }
p.verdict { border-left: 5px solid #0072b2; background: var(--verdict); margin: 1rem 0;
  padding: .8rem 1.1rem; font-size: 1.1rem; max-width: 62rem; }
.verdict span { white-space: nowrap; }
.figures { display: grid; gap: 1.6rem 2rem; align-items: start;
  grid-template-columns: repeat(auto-fit, minmax(min(100%, 30rem), 1fr)); }
.figures + .maps { margin-top: 1.8rem; }
.maps { display: flex; flex-wrap: wrap; gap: 1.6rem 2rem; align-items: flex-start; }
.maps figure { max-width: 34rem; }
figure { margin: 0; }
figure h3 { margin: 0 0 .3rem; }
figure svg { display: block; max-width: 100%; height: auto; }
figcaption { color: var(--soft); font-size: .84rem; line-height: 1.4;
  margin-top: .35rem;
  max-width: 40rem; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-size: .84rem; line-height: 1.3;
  font-variant-numeric: tabular-nums lining-nums; }
caption { caption-side: bottom; text-align: left; color: var(--soft);
  padding-top: .45rem;
  line-height: 1.4; max-width: 62rem; }
th, td { padding: .3rem .7rem .3rem 0; text-align: right; white-space: nowrap;
  vertical-align: top; }
th.word, td.word { text-align: left; }
td.long { white-space: normal; min-width: 16rem; }
thead th { border-bottom: 1.5px solid var(--ink); vertical-align: bottom; }
tbody tr + tr > * { border-top: 1px solid var(--rule); }
tbody th { font-weight: 600; }
td.marked { font-weight: 700; background: var(--marked); outline: 1.5px solid #d55e00; }
footer { margin-top: 3rem; color: var(--soft); font-size: .84rem; }
@media print {
  @page { margin: 14mm; }
  body { max-width: none; padding: 0; font-size: 10.5pt; }
  .figures { grid-template-columns: 1fr 1fr; gap: 5mm 7mm; }
  .figures figure.bars { grid-column: 1 / -1; }
  figure.bars svg { max-width: 145mm; }
  figure, tr, p.verdict { break-inside: avoid; }
  h2, h3 { break-after: avoid; }
  .scroll { overflow: visible; }
  table { font-size: 7pt; }
  th, td { padding: 1.2pt 4pt 1.2pt 0; }
  figcaption, caption { font-size: 8pt; }
  p.verdict, td.marked { print-color-adjust: exact; -webkit-print-color-adjust: exact; }
}
"""
