"""The catalogue is well-formed, and a fetch ends with the right file or a sentence."""

import http.server
import threading
from dataclasses import replace

import pytest

from hpcsgd.data.catalogue import fetch, get_card, load_catalogue, sha256
from hpcsgd.data.synthetic import SHAPES
from hpcsgd.errors import ConfigError, DataError

CONTENT = bytes(range(256)) * 5000
NAMES = "epsilon susy higgs a9a w1a rcv1 news20 url covtype yearpredictionmsd"


def test_every_card_holds_and_shapes_agree():
    cards = load_catalogue()
    assert set(cards) == {*NAMES.split(), "synth", "poisson-synth"}
    for name, shape in SHAPES.items():
        stated = cards[name].shape
        assert (stated.rows, stated.columns) == (shape.rows, shape.cols)
        assert cards[name].task == shape.task
    assert get_card("HIGGS").file.name == "HIGGS.csv.gz"
    with pytest.raises(ConfigError, match="known: epsilon"):
        get_card("moon")


@pytest.mark.parametrize(
    "change, said",
    [
        ("rows = 400_000", "rows = 0"),
        ("density = 1.0", "density = 2.0"),
        ('task = "binary"', 'task = "magic"'),
        ('sha256 = "unknown"', 'sha256 = "abc"'),
        ("columns = 2000", ""),
        ("columns = 2000", "columns = 2000\ncolour = 1"),
        ("[epsilon]", "[epsilon"),
    ],
)
def test_a_card_that_makes_no_sense_is_refused(tmp_path, change, said):
    from hpcsgd import files

    text = files.asset_path("data/catalog.toml").read_text()
    assert change in text
    (tmp_path / "c.toml").write_text(text.replace(change, said, 1))
    with pytest.raises(DataError, match="catalogue|cannot be read"):
        load_catalogue(tmp_path / "c.toml")


class Site(http.server.BaseHTTPRequestHandler):
    """Serves CONTENT, ranges of it too, and breaks off where it is told to."""

    stop_after = None
    asked = []

    def do_GET(self):
        wanted = self.headers.get("Range", "")
        self.asked.append(wanted)
        start = int(wanted[6:-1]) if wanted else 0
        if start >= len(CONTENT):
            self.send_error(416)
            return
        self.send_response(206 if wanted else 200)
        self.send_header("Content-Length", str(len(CONTENT) - start))
        self.end_headers()
        self.wfile.write(CONTENT[start : type(self).stop_after])

    def log_message(self, *args):
        pass


def with_file(name, **changes):
    card = get_card(name)
    return replace(card, file=replace(card.file, **changes))


@pytest.fixture
def card(monkeypatch):
    monkeypatch.setattr(Site, "stop_after", None)
    monkeypatch.setattr(Site, "asked", [])
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Site)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    url = f"http://127.0.0.1:{server.server_port}/a.txt"
    yield with_file("a9a", url=url)
    server.shutdown()
    server.server_close()


def test_a_broken_fetch_is_gone_on_with(card, tmp_path, monkeypatch):
    monkeypatch.setattr(Site, "stop_after", 2**20 + 5)
    with pytest.raises(DataError, match=r"copy it to .*a.txt \(its checksum"):
        fetch(card, tmp_path, lambda *_: None)
    assert not (tmp_path / "a.txt").exists()
    monkeypatch.setattr(Site, "stop_after", None)
    heard = []
    path = fetch(card, tmp_path, lambda *at: heard.append(at))
    assert path.read_bytes() == CONTENT
    assert Site.asked[1].startswith("bytes=1") and len(Site.asked) == 2
    assert heard[-1] == (len(CONTENT), len(CONTENT))
    fetch(card, tmp_path, lambda *_: None)
    assert len(Site.asked) == 2, "what is there is not fetched again"


def test_a_whole_part_is_only_renamed(card, tmp_path):
    (tmp_path / ".a.txt.part").write_bytes(CONTENT)
    assert fetch(card, tmp_path, lambda *_: None).read_bytes() == CONTENT


def test_a_checksum_that_differs_is_refused(card, tmp_path):
    wrong = replace(card, file=replace(card.file, sha256="0" * 64))
    with pytest.raises(DataError, match="remove it and fetch"):
        fetch(wrong, tmp_path, lambda *_: None)
    (tmp_path / "b").write_bytes(CONTENT)
    right = replace(card, file=replace(card.file, sha256=sha256(tmp_path / "b")))
    (tmp_path / ".a.txt.part").unlink()
    assert fetch(right, tmp_path, lambda *_: None).exists()


def test_no_site_no_folder_nothing_to_fetch(tmp_path):
    nowhere = with_file("a9a", url="http://127.0.0.1:9/a", sha256="1" * 64)
    with pytest.raises(DataError, match="its SHA-256 is 1111"):
        fetch(nowhere, tmp_path, lambda *_: None)
    with pytest.raises(ConfigError, match="no folder"):
        fetch(nowhere, tmp_path / "x", lambda *_: None)
    with pytest.raises(ConfigError, match="data synth"):
        fetch(get_card("synth"), tmp_path, lambda *_: None)
