"""Nothing that is committed names a folder of somebody's machine."""

import re
import subprocess

from tests.architecture.source import ROOT

FOLDERS = b"home root Users work".split()
MACHINE_PATH = re.compile(rb"(?<![\w.])/(?:" + b"|".join(FOLDERS) + rb")/\w")
TEXT = {".py", ".pyi", ".md", ".toml", ".txt", ".json", ".yml", ".yaml", ".cfg", ".sh", ""}


def committed_files() -> list[str]:
    done = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True)
    return [name for name in done.stdout.decode().split("\0") if name]


def test_the_pattern_finds_every_folder():
    assert all(MACHINE_PATH.search(b"see /%s/ann/models" % folder) for folder in FOLDERS)
    assert not MACHINE_PATH.search(b"see docs/%s/ann" % FOLDERS[0])


def test_no_committed_text_names_one():
    paths = [ROOT / name for name in committed_files()]
    texts = [path for path in paths if path.suffix in TEXT and path.is_file()]
    assert len(texts) > 20
    assert [path.name for path in texts if MACHINE_PATH.search(path.read_bytes())] == []
