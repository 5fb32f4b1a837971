"""Count the words of prose in docs/, at a revision of Git and in this working tree.

A word of prose stands outside fenced blocks and tables. A page whose path is not
listed in `NEW` has taken over pages of the earlier docs; those of `NEW` have not, and
are counted apart.

python -m benchmarks.docs_words [REVISION]
"""

import json
import re
import subprocess
import sys

from benchmarks.lines import in_lines
from benchmarks.run import HERE

BEFORE = "c6bb8e6f"
DOCS = HERE.parent / "docs"
OUT = HERE / "results" / "docs_words.json"
FENCED = re.compile(r"^(```+|:::+|~~~+).*?^\1\s*$", re.DOTALL | re.MULTILINE)
NEW = (
    "index.md",
    "start/index.md",
    "start/cluster.md",
    "learn/index.md",
    "learn/sgd.md",
    "learn/s-steps.md",
    "howto/index.md",
    "howto/inference.md",
    "howto/plan.md",
    "howto/reproduce.md",
    "howto/serve.md",
    "reference/index.md",
    "reference/api/index.md",
    "reference/glossary.md",
    "reference/stability.md",
    "reference/support.md",
    "extend/index.md",
    "extend/backend.md",
    "extend/callback.md",
    "extend/family.md",
    "extend/site.md",
    "trust/index.md",
)


def words(text: str) -> int:
    """Return the number of words outside fenced blocks and tables."""
    lines = FENCED.sub("", text).splitlines()
    return sum(len(ln.split()) for ln in lines if not ln.strip().startswith("|"))


def pages_at(revision: str) -> dict[str, str]:
    """Return the text of each page of docs/ at this revision, by its path in docs/."""
    listed = _git("ls-tree", "-r", "--name-only", revision, "docs").splitlines()
    return {
        path.removeprefix("docs/"): _git("show", f"{revision}:{path}")
        for path in listed
        if path.endswith(".md")
    }


def pages_now() -> dict[str, str]:
    """Return the text of each page of docs/ that Git knows, by its path in docs/."""
    listed = _git("ls-files", "docs").splitlines()
    return {
        path.removeprefix("docs/"): (DOCS.parent / path).read_text(encoding="utf-8")
        for path in listed
        if path.endswith(".md")
    }


def measure(revision: str) -> dict:
    """Return the words of all pages before and now, and the share that is left."""
    before = {path: words(text) for path, text in pages_at(revision).items()}
    now = {path: words(text) for path, text in pages_now().items()}
    unknown = sorted(set(NEW) - set(now))
    if unknown:
        sys.exit(f"docs_words: {unknown[0]} is not a page of docs/; correct NEW")
    total, total_before = sum(now.values()), sum(before.values())
    new = sum(now[path] for path in NEW)
    return {
        "before": {"revision": revision, "pages": len(before), "words": total_before},
        "now": {"pages": len(now), "words": total, "of them new": new},
        "left of the earlier pages": round((total - new) / total_before, 3),
        "pages": now,
    }


def _git(*arguments: str) -> str:
    done = subprocess.run(
        ["git", *arguments], cwd=HERE.parent, capture_output=True, text=True, check=True
    )
    return done.stdout


if __name__ == "__main__":
    found = measure(sys.argv[1] if len(sys.argv) > 1 else BEFORE)
    OUT.write_text(in_lines(found) + "\n", encoding="utf-8")
    print(json.dumps({key: found[key] for key in found if key != "pages"}, indent=2))
