"""The shipped file of defaults is what `hpcsgd new` writes."""

from pathlib import Path

import hpcsgd.config
from hpcsgd.cli.template import template
from hpcsgd.config import RunConfig, read_toml

FILE = Path(hpcsgd.config.__file__).with_name("defaults.toml")


def test_defaults_file_is_current():
    """To mend it: python -m tests.architecture.test_defaults"""
    assert FILE.read_text(encoding="utf-8") == template()
    assert RunConfig.parse(read_toml(FILE)) == RunConfig()


if __name__ == "__main__":
    FILE.write_text(template(), encoding="utf-8")
