# SPDX-License-Identifier: Apache-2.0
"""A hash of the C++ and CUDA text that a program is compiled from, without what no compiler sees: comments, white
space, and the include lines themselves. No compiler is needed: the includes are followed by their text."""

import functools
import hashlib
import pathlib
import re

# Where the project's includes are looked up, after the folder of the file that includes and the folders above that.
INCLUDE_DIRS = ("tests", "include", "bench", "examples")

_TOKEN = re.compile(
    r"""
    (?P<space>(?:[ \t\v\f\r]|\\\r?\n)+)
  | (?P<newline>\n)
  | (?P<comment>//(?:\\\r?\n|[^\n])*|/\*.*?\*/)
  | (?P<raw>(?:u8|[uUL])?R"(?P<delimiter>[^ ()\\\t\v\f\n]*)\(.*?\)(?P=delimiter)"\w*)
  | (?P<text>(?:u8|[uUL])?(?:"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*')\w*)
  | (?P<number>\.?\d(?:'?\w|(?<=[eEpP])[+-]|\.)*)
  | (?P<word>[A-Za-z_]\w*)
  | (?P<sign><=>|->\*|\.\.\.|<<=|>>=|\#\#|::|\+\+|--|->|\.\*|<<|>>|<=|>=|==|!=|&&|\|\||[-+*/%^&|]=|[^\s\w])
    """,
    re.VERBOSE | re.DOTALL)
_INCLUDE = re.compile(r"[ \t]*(?:<(?P<angle>[^>\n]+)>|\"(?P<quoted>[^\"\n]+)\")")
_INCLUDE_WORD = re.compile(r"\#[ \t]*include\b")


class ScanError(Exception):
    """A file that cannot be read as C++ text."""


def _tokens(text):
    """(kind, token, position behind it) of each token."""
    position = 0
    while position < len(text):
        found = _TOKEN.match(text, position)
        if not found:
            line = text.count("\n", 0, position) + 1
            raise ScanError(f"line {line}: cannot read {text[position:position + 20]!r}")
        yield found.lastgroup if found.lastgroup != "delimiter" else "raw", found.group(), found.end()
        position = found.end()


def normalize(text):
    """(normalised text, included names). Tokens stand one space apart, so two texts are equal where the compiler sees
    the same tokens. A preprocessor directive keeps a line of its own, and `#define F (x)` stays apart from
    `#define F(x)`. A name is ("polystate/x.hpp", False), or ("x.hpp", True) where it stands in quotes."""
    lines, includes, current = [], [], []
    directive = spaced = False
    resume = 0

    def end_line():
        if current:
            lines.append(" ".join(current))
            current.clear()

    for kind, token, end in _tokens(text):
        if end <= resume:
            continue  # the name in an include line
        if kind in ("space", "comment"):
            spaced = True
            continue
        if kind == "newline":
            if directive:
                end_line()
                directive = False
            spaced = True
            continue
        if not directive and token == "#" and text[text.rfind("\n", 0, end) + 1:end - 1].strip() == "":
            include = _INCLUDE_WORD.match(text, end - 1)
            if include:
                name = _INCLUDE.match(text, include.end())
                if not name:
                    line = text.count("\n", 0, end) + 1
                    raise ScanError(f"line {line}: an include whose name is a macro cannot be followed")
                includes.append((name["angle"] or name["quoted"], name["quoted"] is not None))
                resume = name.end()
                continue
            end_line()
            directive = True
        elif directive and token == "(" and len(current) == 3 and current[1] == "define" and not spaced:
            current[2] += "("
            continue
        current.append(token)
        spaced = False
    end_line()
    return "\n".join(lines), includes


class Tree:
    """The texts of one checkout; each file is read once."""

    def __init__(self, root):
        self.root = pathlib.Path(root).resolve()

    @functools.lru_cache(maxsize=None)
    def file(self, name):
        """(hash of the normalised text, the project's files that it includes), or None where there is no such file."""
        try:
            text = (self.root / name).read_text()
        except (FileNotFoundError, IsADirectoryError):
            return None
        try:
            normal, includes = normalize(text)
        except ScanError as error:
            raise SystemExit(f"{name}: {error}") from None
        found = (self._find(name, *include) for include in includes)
        return hashlib.sha256(normal.encode()).hexdigest(), [path for path in found if path]

    def _find(self, includer, name, quoted):
        folders = list(INCLUDE_DIRS)
        if quoted:
            folders = [*map(str, pathlib.PurePosixPath(includer).parents)][:-1] + folders
        for folder in folders:
            path = (self.root / folder / name).resolve()
            if path.is_file() and path.is_relative_to(self.root):
                return str(path.relative_to(self.root))
        return None  # a system's or another library's

    def closure(self, sources):
        """The project's files that the sources reach by includes, themselves among them, whatever `#if` they are in;
        None where one of the sources is gone."""
        seen, open_files = set(), list(sources)
        while open_files:
            name = open_files.pop()
            if name not in seen:
                seen.add(name)
                content = self.file(name)
                if content is None:
                    return None
                open_files += content[1]
        return sorted(seen)

    def hash(self, sources):
        """Of the normalised texts in the closure, by path; None where a source is gone."""
        return self._hash(tuple(sorted(sources)))

    @functools.lru_cache(maxsize=None)
    def _hash(self, sources):
        files = self.closure(sources)
        if files is None:
            return None
        digest = hashlib.sha256()
        for name in files:
            digest.update(f"{name}\0{self.file(name)[0]}\n".encode())
        return digest.hexdigest()[:32]
