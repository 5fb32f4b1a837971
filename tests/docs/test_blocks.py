"""Every code block of README.md and of the site runs, page by page, as printed."""

import pytest

from tests.helpers import blocks
from tests.helpers.blocks import ROOT, BlockError, Page

MADE = ("_build", "gallery", "notebooks")  # folders of docs that a build writes


def written(path):
    """Return whether a page is written by hand and has a block that does something."""
    return not set(MADE) & set(path.relative_to(ROOT).parts) and any(
        block.file or block.language in (*blocks.RUN, *blocks.SHELLS)
        for block in blocks.blocks_of(path.read_text())
    )


PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


@pytest.mark.parametrize("path", list(filter(written, PAGES)), ids=blocks.name_of)
def test_the_blocks_of_a_page_run(path, tmp_path):
    with Page(path, tmp_path / "page") as page:
        page.folder.mkdir()
        page.run()


def run(tmp_path, text, limit=60.0):
    """Run a page of this text."""
    path = tmp_path / "twin.md"
    path.write_text(text)
    folder = tmp_path / "page"
    folder.mkdir(exist_ok=True)
    with Page(path, folder, limit) as page:
        page.run()
    return folder


GOOD = """\
Text.

<!-- file: rates.toml -->
```toml
rate = 8
```

```console
$ export WORD=two; mkdir below; cd below
$ echo one $WORD \\
  three
one ... three
$ ls ../rates.toml; echo a note >&2
../rates.toml
```

1. In a list:

   ```python
   x = 6
   def twice(value):
       return 2 * value
   ```

```{note}
```python
>>> twice(x)
12
>>> print("a   b")
a b
```
```

<!-- needs: slurm, gpu -->
```console
$ srun -n 4 hpcsgd train run.toml --device cuda --ranks $N | tee log 2>&1
```

```text
$ not run
```
"""


def test_a_page_runs_in_order_and_keeps_its_state(tmp_path):
    folder = run(tmp_path, GOOD)
    assert (folder / "rates.toml").read_text() == "rate = 8\n"
    assert (folder / "below").is_dir()


def console(text):
    return f"```console\n{text}\n```\n"


def python(text):
    return f"```python\n{text}\n```\n"


BROKEN = {
    "another output": (console("$ echo 3 messages\n4 messages"), "4 messages"),
    "more output": (console("$ echo one; echo two\none"), "two"),
    "no output": (console("$ true\none"), "line 2"),
    "a failing command": (console("$ echo first\n$ false"), "line 3"),
    "a failing first half": (console("$ false | cat"), "exit code 1"),
    "a missing file": (console("$ cat all.h5"), "No such file"),
    "no command": (console("echo one"), "no `$ `"),
    "another shell": ("```bash\necho one\n```\n", "write `console`"),
    "an unknown need": ("<!-- needs: luck -->\n" + console("$ true"), "luck"),
    "an exception": (python("x = 1\nprint(no_such_name)"), "no_such_name"),
    "an exit": (python("raise SystemExit(3)"), "SystemExit"),
    "a crash": (python("import os\nos._exit(3)"), "os._exit"),
    "no Python": (python("def"), "invalid syntax"),
    "a wrong example": (python(">>> 1 + 1\n3"), "Got"),
    "a wrong example after text": (python("print(end='x')\n1 / 0"), "line 3"),
    "an unknown flag": (
        "<!-- needs: slurm -->\n" + console("$ srun hpcsgd train --no-such-flag 1"),
        "--no-such-flag",
    ),
    "an unknown command": (
        "<!-- needs: gpu -->\n" + console("$ FOO=1 hpcsgd no-such-command"),
        "no-such-command",
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_twin_is_reported_with_its_page(tmp_path, name):
    text, shown = BROKEN[name]
    with pytest.raises(BlockError) as caught:
        run(tmp_path, text)
    assert "twin.md: " in str(caught.value) and shown in str(caught.value)


@pytest.mark.parametrize(
    "text", [console("$ sleep 300"), python("import time; time.sleep(300)")]
)
def test_what_hangs_is_ended(tmp_path, text):
    with pytest.raises(BlockError, match="line 2"):
        run(tmp_path, text, limit=2.0)


def test_a_failure_shows_command_expected_and_printed(tmp_path):
    with pytest.raises(BlockError) as caught:
        run(tmp_path, "# Title\n\n" + console("$ echo 12 messages\n13 messages"))
    lines = str(caught.value).splitlines()
    assert lines[0].endswith("twin.md: line 4")
    assert lines[1:] == [
        "--- command",
        "echo 12 messages",
        "--- expected",
        "13 messages",
        "--- exit code 0, printed",
        "12 messages",
    ]


@pytest.mark.parametrize(
    "shown, printed, good",
    [
        ("loss 0.1...  in ... s", "loss 0.123 in 4.5 s", True),
        ("a\n...\nz", "a\nb\nc\nz", True),
        ("a\n...\nz", "a\nz", True),
        ("...\na\n...", "a", True),
        ("c ... gram ... c ...", "c  8  gram   c  0.3", True),
        ("a   b", "a b  ", True),
        ("a\n...\nz", "a\nyz", False),
        ("a\n...\nz", "a\nb\nc", False),
        ("loss 0.2...", "loss 0.123", False),
        ("a b", "ab", False),
    ],
)
def test_dots_stand_for_any_text(shown, printed, good):
    assert blocks.matches(shown, printed) == good


def test_arguments_are_found_behind_launchers_and_before_pipes():
    command = "OMP_NUM_THREADS=1 mpiexec -n 2 hpcsgd train run.toml --l2 1e-4 | tail -1"
    assert blocks.hpcsgd_words(command) == [["train", "run.toml", "--l2", "1e-4"]]
    assert blocks.hpcsgd_words("pip install hpcsgd && hpcsgd info") == [["info"]]
    assert blocks.hpcsgd_words("hpcsgd new run.toml > log 2>&1  # a note") == [
        ["new", "run.toml"]
    ]
