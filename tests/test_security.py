"""What the package's source may not do, what it may depend on, and how a statement's text may come about."""

import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import alkstore_trio

PACKAGE = Path(alkstore_trio.__file__).parent
SOURCES = {
    str(path.relative_to(PACKAGE)): ast.parse(path.read_text(encoding="utf-8")) for path in PACKAGE.rglob("*.py")
}


# Nothing is run that was stored


_MODULES = {"code", "codeop", "ctypes", "dill", "marshal", "multiprocessing", "pickle", "pty", "runpy", "shelve"}
_MODULES |= {"subprocess", "yaml"}
_NAMES = {"__import__", "compile", "eval", "exec"}
_OF = {  # by a module, which goes by no other name
    "builtins": re.compile("|".join(_NAMES)),
    "os": re.compile(r"exec\w*|fork\w*|popen|posix_spawn\w*|spawn\w*|startfile|system"),
}
_OF_ANYBODY = re.compile(r"import_module|(open|run)_process|(create_)?subprocess_(exec|shell)")


def _runs(owner: str, name: str) -> bool:
    return bool(_OF_ANYBODY.fullmatch(name) or (owner in _OF and _OF[owner].fullmatch(name)))


def _dangers(tree: ast.AST) -> Iterator[str]:
    """What runs code, or another program."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.partition(".")[0] in _MODULES or (alias.asname and alias.name in _OF):
                    yield alias.name
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module is not None:
            if node.module.partition(".")[0] in _MODULES:
                yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names if _runs(node.module, alias.name))
        elif isinstance(node, ast.Name) and node.id in _NAMES:
            yield node.id
        elif isinstance(node, ast.Attribute) and _runs(ast.unparse(node.value), node.attr):
            yield ast.unparse(node)


@pytest.mark.parametrize("source", SOURCES)
def test_no_module_runs_what_was_stored_or_another_program(source: str) -> None:
    assert list(_dangers(SOURCES[source])) == []


@pytest.mark.parametrize(
    "text",
    [
        "import pickle",
        "import json, marshal as m",
        "from pickle import loads",
        "import multiprocessing.pool",
        "def f(x): return eval(x)",
        "f = exec",
        "import os; os.system('x')",
        "from os import execv",
        "os.posix_spawn('x', [], {})",
        "builtins.eval('1')",
        "import os as o; o.system('x')",
        "from builtins import eval as e",
        "import importlib; importlib.import_module('x')",
        "from importlib import import_module as load",
        "anyio.run_process('x')",
        "from anyio import open_process",
        "trio.lowlevel.open_process('x')",
        "asyncio.create_subprocess_exec('x')",
        "from asyncio import create_subprocess_shell",
        "loop.subprocess_exec(f, 'x')",
    ],
)
def test_such_a_module_would_be_found(text: str) -> None:
    assert len(list(_dangers(ast.parse(text)))) == 1


# Text that is put together


_BUILDING = {"format", "format_map", "join", "replace", "sub", "substitute"}
_CONSTANT = re.compile(r"_?[A-Z][A-Z_]*")


def _assigned(tree: ast.AST) -> Iterator[tuple[str, ast.expr]]:
    """What is assigned to a name, and what it is, or is said to be."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign):
            yield from ((target.id, node.value) for target in node.targets if isinstance(target, ast.Name))
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            yield node.target.id, node.annotation
        elif isinstance(node, ast.arg) and node.annotation is not None:
            yield node.arg, node.annotation


def _is_number(node: ast.AST) -> bool:
    return all(
        isinstance(part, ast.operator | ast.unaryop | ast.BinOp | ast.UnaryOp)
        or (isinstance(part, ast.Constant) and isinstance(part.value, int | float))
        for part in ast.walk(node)
    )


_ASSIGNED = [one for tree in SOURCES.values() for one in _assigned(tree) if _CONSTANT.fullmatch(one[0])]
_NUMBERS = {name for name, value in _ASSIGNED if _is_number(value)} - {
    name for name, value in _ASSIGNED if not _is_number(value)
}


class _Built(ast.NodeVisitor):
    """Finds texts that are put together, and of what; those of errors, logs and ``__repr__`` are no statements."""

    def __init__(self, texts: set[str]) -> None:
        self.found: list[str] = []
        self._texts = texts  # the names that are one
        self._where: list[str] = []

    def _in(self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> None:
        if node.name not in ("__repr__", "__str__"):
            self._where.append(node.name)
            self.generic_visit(node)
            self._where.pop()

    visit_FunctionDef = visit_AsyncFunctionDef = visit_ClassDef = _in  # noqa: N815  # as the visitor calls them

    def visit_Assign(self, node: ast.Assign) -> None:
        top = not self._where and isinstance(node.targets[0], ast.Name)
        if top:
            assert isinstance(node.targets[0], ast.Name)
            self._where.append(node.targets[0].id)
        self.generic_visit(node)
        if top:
            self._where.pop()

    def visit_Raise(self, node: ast.Raise) -> None:
        """An error's text."""

    def _found(self, *parts: ast.AST) -> None:
        self.found.append(f"{'.'.join(self._where)}: {', '.join(ast.unparse(part) for part in parts)}")

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        parts = [value.value for value in node.values if isinstance(value, ast.FormattedValue)]
        if parts:
            self._found(*parts)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        if isinstance(node.op, ast.Add | ast.Mod) and any(map(self._is_text, (node.left, node.right))):
            self._found(node)
        self.generic_visit(node)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        if isinstance(node.op, ast.Add | ast.Mod) and any(map(self._is_text, (node.target, node.value))):
            self._found(node)
        self.generic_visit(node)

    def _is_text(self, node: ast.AST) -> bool:
        if isinstance(node, ast.Name):
            return node.id in self._texts or (bool(_CONSTANT.fullmatch(node.id)) and node.id not in _NUMBERS)
        return _is_text(node)

    def visit_Call(self, node: ast.Call) -> None:
        name = ast.unparse(node.func)
        if name.endswith("Error") or name.startswith("log.") or name == "CommitUnknown":
            return
        if isinstance(node.func, ast.Attribute) and node.func.attr in _BUILDING and name != "os.path.join":
            self._found(node)
        self.generic_visit(node)


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str))


def _built(tree: ast.AST) -> list[str]:
    visitor = _Built({name for name, value in _assigned(tree) if _is_text(value) or ast.unparse(value) == "str"})
    visitor.visit(tree)
    return visitor.found


_OF_MEMORY = {"_engines/memory.py", "_engines/overlay.py", "_engines/queue_table.py", "_engines/tables.py"}
_MAY_BUILD = sorted({name for name in SOURCES if name.startswith("_engines/")} - _OF_MEMORY | {"schema.py"})
_FRAGMENT = r"_?[A-Z][A-Z_]*|_(?:deadline|hash)\('[^']*'\)|_lane_of_pending\(_[A-Z_]+, '[^']*'\)"  # of constants alone
_CATALOGUE = re.compile(rf"_?[A-Z][A-Z_]*: (?:{_FRAGMENT})(?:, (?:{_FRAGMENT}))*")

_WITHOUT_COMMENTS = """\
_without_comments: '\\n'.join((line.partition('--')[0].rstrip() for line in text.splitlines() \
if line.partition('--')[0].strip()))"""

# Each place that makes a statement of parts, and why no value gets into it by that. Add one only with a reason.
_STATEMENTS = {
    "_engines/postgres/connection.py": [
        "AsyncAnyioConnection.listen: channel.replace('\"', '\"\"')",  # a hash in hexadecimal, and quoted all the same
        "AsyncAnyioConnection.listen: quoted",
    ],
    "_engines/postgres/server.py": [
        "Server.timeout: max(1, round(min(self.lock_timeout * 1000, 2 ** 31 - 1)))",  # a number that was checked
        "Server._found: table",  # all that follow: a schema's name that `quoted` has made, or what is placed in it
        "Server._upgrade: self.schema",  # a parameter, of the lock's name
        "Server._upgrade: self.schema",
        "Server._upgrade: ';'.join(statements)",
    ],
    "_engines/postgres/statements.py": [
        "_hash: queue",  # called with constants, when the module is imported
        "compiled: _HINT.sub('', template)",  # a template is a constant of the catalogue
        "compiled: _QUEUE.sub(_HASHED_QUEUE, _HINT.sub('', template).lstrip())",
        "compiled: _CLOCK, text[5:]",
        "compiled: _CLOCK, text",
        "compiled.numbered: numbers.setdefault(name, len(numbers) + 1), _TYPES[name]",
        "compiled: _PARAMETER.sub(numbered, text.replace(':now', _NOW))",
        "compiled: text.replace(':now', _NOW)",
        "_deadline: _ENDS_LATER.format(seconds)",  # called with constants, when the module is imported
        "_lane_of_pending: run_at, attempts",
        "CLAIM: _CLAIM.format(behind='', enough='')",
        (
            "CLAIM_BEHIND: _CLAIM.format(behind=' and (~priority, run_at, id) >= (:last_rank, :last_run_at, :last_id)',"
            " enough=' and (select count(*) from picked) = :n')"
        ),
        "RELEASE: _RELEASE.format(claimed=_BY_ONE)",
        "RELEASE_TOGETHER: _RELEASE.format(claimed=_BY_EACH)",
        "HEARTBEAT: _HEARTBEAT.format(claimed=_BY_ONE)",
        "HEARTBEAT_TOGETHER: _HEARTBEAT.format(claimed=_BY_EACH)",
    ],
    "_engines/statements.py": [
        "BODIES: n",  # names of parameters, of numbers
        "_OFFSETS_AND_BODIES: ', '.join((f'(:offset + {n}, :{body})' for n, body in enumerate(BODIES)))",
        "_OFFSETS_AND_BODIES: n, body",
    ],
    "_engines/postgres/tx.py": ["PostgresTx._begun: self._engine.server.timeout"],
    "_engines/postgres/upkeep.py": ["Upkeep._vacuum: table"],
    "_engines/schema.py": [
        "quoted: schema.replace('\"', '\"\"')",  # this is the quoting
        "quoted: escaped",
        "prefixed: text.replace('$', prefix)",  # an identifier that `checked_prefix` has let through
        'placed: schema.replace("\'", "\'\'")',
        "placed: _PLACE.sub(lambda table: f'{schema}.{table[1]}' if table[1] else f\"'{literal}.{table[2]}'\", text)",
        "placed: schema, table[1]",
        "placed: literal, table[2]",
        "postgres_steps: VERSION",  # a constant
        "postgres_steps: VERSION",
        "_statements: ';'.join(steps)",  # of constants
        _WITHOUT_COMMENTS,
    ],
    "_engines/sqlite/file.py": [
        "File.connect: self.durability",  # one of two words
        "File.connect: _WAL_LIMIT",  # a constant
        "File.connect: pragma",  # of those two
        "File.prepare: table",  # a table's name behind its prefix
        "File.prepare: table",
        "File._version: table",
    ],
    "schema.py": [
        "script: VERSION",
        "script: ''.join((f'{step};\\n\\n' for step in steps))",
        "script: step",
        "script: schema",
        "script: ''.join((f'{step};\\n\\n' for step in steps))",
        "script: step",
    ],
}

# Texts that are none: of names of files, of channels, of holders, of errors that are raised elsewhere.
_OTHER_TEXTS = {
    "_engines/postgres/connection.py": [
        "AsyncAnyioConnection.connect: ' '.join(str(error).split())",
        "AsyncAnyioConnection.connect: attempt.get('hostaddr') or attempt.get('host'), timeout",
    ],
    "_engines/postgres/engine.py": ["PostgresEngine.foreign_holder: pid, name, seconds"],
    "_engines/postgres/failures.py": [
        "check_driver: owner.__name__, name",
        "check_driver: ', '.join(missing)",
        "redacted: params['service']",
        "redacted: host, dbname",
        "_said: ' '.join((error.diag.message_primary or str(error)).split())",
    ],
    "_engines/postgres/holds.py": ["Holds.too_long: stream", "Holds.too_long: consumer, stream"],
    "_engines/postgres/joined.py": ["_steps: UNMARKED + channel"],
    "_engines/postgres/wakes.py": [
        "Voice.payloads: self._mark + channel",
        "server_channel: blake2b(schema.encode(), digest_size=12).hexdigest()",
    ],
    "_engines/postgres/wire.py": [
        ": code",
        "_item: code",
        "_array.encode_all: b''.join([_HEAD(1, 1, element, len(items), 1), *items])",
    ],
    "_engines/sqlite/engine.py": [
        "SqliteEngine.__init__: os.getpid(), self.origin",
        "SqliteEngine._end: self._writer.join()",
        "SqliteEngine._end: self._readers.join()",
    ],
    "_engines/sqlite/file.py": [
        "failure: path, known, error",
        "failure: path, error",
        "_file_system: escaped.replace('\\\\040', ' ')",
        "_file_system: point.rstrip('/') + '/'",
        "Checkpoints.__init__: file.path",
    ],
    "_engines/sqlite/peers.py": [
        "Peers.__init__: prefix",
        "Peers.__init__: path",
        "Peers.__init__: self._alike, name",
        "Peers._make: self._name",
        "Peers.tell: b''.join((_HINT.pack(*hint) for hint in hints))",
        "Peers._write: start + _WHOLE",  # numbers
        "Peers.close: self._name",
    ],
    "_engines/sqlite/readers.py": ["Readers.join: thread.join()"],
    "_engines/sqlite/writer.py": ["Writer.join: self._thread.join()", "Writer._glance: hold.who, held"],
}


@pytest.mark.parametrize("source", sorted(_OF_MEMORY))
def test_the_memory_engine_knows_nobody_who_runs_statements(source: str) -> None:  # it says `replace` of a row
    imports = [node for node in ast.walk(SOURCES[source]) if isinstance(node, ast.Import | ast.ImportFrom)]
    assert not re.search(r"\b(sql\w*|statements|schema|reads|psycopg|postgres)\b", "\n".join(map(ast.unparse, imports)))


@pytest.mark.parametrize("source", _MAY_BUILD)
def test_a_statement_is_made_of_constants_and_of_names_that_were_checked(source: str) -> None:
    built = _built(SOURCES[source])
    if source.endswith("statements.py"):
        built = [place for place in built if not _CATALOGUE.fullmatch(place)]
    assert sorted(built) == sorted(_STATEMENTS.get(source, []) + _OTHER_TEXTS.get(source, []))


@pytest.mark.parametrize(
    "text",
    [
        "def f(name): return f'select {name}'",
        "def f(name): return 'select ' + name",
        "def f(name): return 'select %s' % name",
        "def f(table): return _ALL + table",
        "def f(name): return TEXT % name",
        "def f(name): t = 'select '; t += name",
        "def f(t: str, name): t += name",
        "def f(t, name): t += TEXT",
        "def f(table): t = 'select '; return t + table",
        "def f(name): return 'select {}'.format(name)",
        "def f(name): return TEXT.replace('?', name)",
        "def f(name): return ' '.join(['select', name])",
        "GET = f'select {name}'",
        "GET = f'select {read(NAME)}'",
    ],
)
def test_a_text_that_is_put_together_would_be_found(text: str) -> None:
    [place] = _built(ast.parse(text))
    assert not _CATALOGUE.fullmatch(place)


# What it depends on

_PROJECT = tomllib.loads((PACKAGE.parent / "pyproject.toml").read_text(encoding="utf-8"))["project"]
_EXTRAS = _PROJECT["optional-dependencies"]
_RUNTIME = {"anyio", "attr", "attrs", "trio"}
_ALLOWED = {  # by the path of a module, what it may import beside that and the standard library
    "_engines/postgres/": {"psycopg"},
    "testing/": {"pytest"},
}
_LICENCES = re.compile(
    r"mit|isc|0bsd|unlicense|bsd(-[23]-clause)?|apache([- ]2(\.0)?)?|psf(-2\.0)?|python-2\.0|mpl(-| )2\.0"
    r"|lgpl-3\.0-only|(mit|bsd|isc|apache software|python software foundation) license( \(iscl\))?"
    r"|mozilla public license 2\.0 \(mpl 2\.0\)|gnu (library or )?lesser general public license v3 \(lgplv3\)"
)


def _names(requirements: list[str]) -> set[str]:
    return {Requirement(text).name for text in requirements}


def test_it_depends_on_nothing_else() -> None:
    assert _names(_PROJECT["dependencies"]) == {"anyio", "attrs", "trio"}
    assert _names(_EXTRAS["postgres"]) == {"psycopg"}
    assert _names(_EXTRAS["testing"]) == {"pytest", "pytest-trio"}


@pytest.mark.parametrize("source", SOURCES)
def test_a_module_imports_nothing_that_it_does_not_depend_on(source: str) -> None:
    imported = set()
    for node in ast.walk(SOURCES[source]):
        if isinstance(node, ast.Import):
            imported |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module is not None:
            imported.add(node.module.partition(".")[0])
    foreign = imported - sys.stdlib_module_names - _RUNTIME
    assert foreign <= {name for path, names in _ALLOWED.items() if source.startswith(path) for name in names}


def _needed(requirements: list[str]) -> Iterator[metadata.Distribution]:
    """What is installed of the distributions that are needed, and of those that they need."""
    waiting, seen = [Requirement(text) for text in requirements], set()
    while waiting:
        requirement = waiting.pop()
        if requirement.name == _PROJECT["name"]:
            waiting += [Requirement(text) for extra in requirement.extras for text in _EXTRAS[extra]]
            continue
        for extra in {"", *requirement.extras}:
            if (requirement.name.lower(), extra) not in seen:
                seen.add((requirement.name.lower(), extra))
                found = metadata.distribution(requirement.name)
                yield found
                needs = [Requirement(text) for text in found.requires or ()]
                waiting += [need for need in needs if need.marker is None or need.marker.evaluate({"extra": extra})]


def _is_allowed(found: metadata.Distribution) -> bool:
    """Whether a distribution may be used under one of the licences, by what it says of itself."""
    said = found.metadata
    expression = next((said[field] for field in ("License-Expression", "License") if field in said), "")
    if expression and len(expression) < 80:  # some have the whole text there
        choices = re.split(r"\s+or\s+", expression.lower().replace("(", "").replace(")", ""))
        return any(all(map(_LICENCES.fullmatch, re.split(r"\s+and\s+", choice))) for choice in choices)
    classifiers = [text for text in said.get_all("Classifier") or () if text.startswith("License ::")]
    return any(_LICENCES.fullmatch(text.rpartition(" :: ")[2].lower()) for text in classifiers)


def test_all_that_tests_and_examples_need_has_a_licence_that_is_allowed() -> None:
    needed = {found.metadata["Name"]: found for found in _needed([*_PROJECT["dependencies"], *_EXTRAS["test"]])}
    assert {"anyio", "rich", "hypothesis", "psycopg", "iniconfig"} <= needed.keys()
    assert [name for name, found in needed.items() if not _is_allowed(found)] == []


@pytest.mark.parametrize(
    ("field", "allowed"),
    [
        ("License-Expression: MIT OR GPL-3.0-only", True),
        ("License-Expression: (MIT AND BSD-3-Clause) OR GPL-2.0-only", True),
        ("License-Expression: MIT AND GPL-3.0-only", False),
        ("License-Expression: AGPL-3.0-or-later", False),
        ("License: Apache 2.0", True),
        ("License: Proprietary", False),
        ("Classifier: License :: OSI Approved :: MIT License", True),
        ("Classifier: License :: Other/Proprietary License", False),
        ("Summary: says nothing", False),
    ],
)
def test_a_licence_is_judged_by_what_is_said_of_it(tmp_path: Path, field: str, allowed: bool) -> None:
    (tmp_path / "METADATA").write_text(f"Metadata-Version: 2.4\nName: x\nVersion: 1\n{field}\n")
    assert _is_allowed(metadata.PathDistribution(tmp_path)) is allowed
