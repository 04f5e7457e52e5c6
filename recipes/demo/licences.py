"""Collect the licence of the library and the notices that its files carry themselves."""

from __future__ import annotations

import shutil
from pathlib import Path

from recipes.demo import corpus

# File, and how the first and the last line of its notice begin (comment signs removed).
NOTICES = (
    ("asynchat.py", "Copyright 1996 by Sam Rushing", "CONNECTION WITH THE USE"),
    ("asyncore.py", "Copyright 1996 by Sam Rushing", "CONNECTION WITH THE USE"),
    ("codecs.py", "Written by Marc-Andre Lemburg", "(c) Copyright CNRI"),
    ("http/cookies.py", "Copyright 2000 by Timothy", "PERFORMANCE OF THIS SOFTWARE"),
    ("logging/__init__.py", "Copyright 2001-2019 by Vinay", "OF OR IN CONNECTION"),
    ("logging/config.py", "Copyright 2001-2023 by Vinay", "OF OR IN CONNECTION"),
    ("logging/handlers.py", "Copyright 2001-2021 by Vinay", "OF OR IN CONNECTION"),
    ("optparse.py", "Copyright (c) 2001-2006 Gregory", "SOFTWARE, EVEN IF ADVISED"),
    ("platform.py", "Copyright (c) 1999-2000, Marc", "WITH THE USE OR PERFORMANCE"),
    ("profile.py", "Copyright Disney Enterprises", "governing permissions"),
    ("pstats.py", "Copyright Disney Enterprises", "governing permissions"),
    ("re/__init__.py", "Copyright (c) 1998-2001 by Secret", "other compatibility work"),
    ("sqlite3/__init__.py", "Copyright (C) 2005 Gerhard", "3. This notice may not be"),
    ("sqlite3/dbapi2.py", "Copyright (C) 2004-2005 Gerhard", "3. This notice may not be"),
    ("tarfile.py", "Copyright (C) 2002 Lars", "OTHER DEALINGS IN THE SOFTWARE"),
    ("textwrap.py", "Copyright (C) 1999-2001 Gregory", "Written by Greg Ward"),
    ("trace.py", "portions copyright 2001", "distribution of the software without"),
    ("turtle.py", "Copyright (C) 2006 - 2010", "3. This notice may not be"),
    ("unittest/__init__.py", "Copyright (c) 1999-2003 Steve", "SUPPORT, UPDATES, ENHANCEMENTS"),
    ("urllib/robotparser.py", "Copyright (C) 2000  Bastian", "2) PSF license"),
    ("uu.py", "Copyright 1994 by Lance", "OF THIS SOFTWARE, EVEN IF|OF OR IN CONNECTION"),
    ("wsgiref/validate.py", "(c) 2005 Ian Bicking", "Licensed to PSF"),
    ("xml/etree/ElementInclude.py", "Copyright (c) 1999-2008 by Fredrik", "OF THIS SOFTWARE"),
    ("xml/etree/ElementPath.py", "Copyright (c) 1999-2009 by Fredrik", "OF THIS SOFTWARE"),
    ("xml/etree/ElementTree.py", "Copyright (c) 1999-2008 by Fredrik", "OF THIS SOFTWARE"),
    ("xmlrpc/client.py", "Copyright (c) 1999-2002 by Secret", "OF THIS SOFTWARE"),
)
MIT = """The MIT license named by wsgiref/validate.py:

Permission is hereby granted, free of charge, to any person obtaining a copy of this software and
associated documentation files (the "Software"), to deal in the Software without restriction,
including without limitation the rights to use, copy, modify, merge, publish, distribute,
sublicense, and/or sell copies of the Software, and to permit persons to whom the Software is
furnished to do so, subject to the following conditions:

The above copyright notice and this permission notice shall be included in all copies or
substantial portions of the Software.

THE SOFTWARE IS PROVIDED "AS IS", WITHOUT WARRANTY OF ANY KIND, EXPRESS OR IMPLIED, INCLUDING BUT
NOT LIMITED TO THE WARRANTIES OF MERCHANTABILITY, FITNESS FOR A PARTICULAR PURPOSE AND
NONINFRINGEMENT. IN NO EVENT SHALL THE AUTHORS OR COPYRIGHT HOLDERS BE LIABLE FOR ANY CLAIM,
DAMAGES OR OTHER LIABILITY, WHETHER IN AN ACTION OF CONTRACT, TORT OR OTHERWISE, ARISING FROM, OUT
OF OR IN CONNECTION WITH THE SOFTWARE OR THE USE OR OTHER DEALINGS IN THE SOFTWARE.
"""
HEADER = """Notices that single files of CPython 3.11.7's library carry. The demo models were
trained on, copied from those files. The library as a whole: PSF-2.0.txt. Of the two licences that
urllib/robotparser.py offers, the PSF's is used.
"""


def notice(path: str, first: str, last: str) -> str:
    """The lines of a file's notice, comment signs removed."""
    text = (corpus.library_root() / path).read_text("utf-8")
    lines = [line.lstrip("#").strip() for line in text.splitlines()]
    start = next(i for i, line in enumerate(lines) if line.startswith(first))
    ends = tuple(last.split("|"))
    end = next(i for i in range(start, len(lines)) if lines[i].startswith(ends))
    return "\n".join(lines[start : end + 1])


def write(folder: Path) -> None:
    """Write the library's licence and the notices under `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(corpus.library_root() / "LICENSE.txt", folder / "PSF-2.0.txt")
    grouped: dict[str, list[str]] = {}
    for path, first, last in NOTICES:
        grouped.setdefault(notice(path, first, last), []).append(path)
    parts = [f"{', '.join(paths)}\n\n{text}\n" for text, paths in grouped.items()]
    rule = "\n" + "-" * 80 + "\n"
    body = rule.join([HEADER, *parts, MIT])
    (folder / "CPython-notices.txt").write_text(body)
