"""What commands print: text for people or one JSON document. Questions and progress go to standard error."""

from __future__ import annotations

import errno
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, TextIO, TypeGuard, TypeVar

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table
from rich.text import Text

UNLIMITED_WIDTH = 100_000
"""Columns of a pipe or a file: nothing is cut or wrapped there."""

SHOWN_BEFORE_QUESTION = 10
"""So many states of a kind a question names; with --dry-run all are listed."""

T = TypeVar("T")


class RefusedError(click.ClickException):
    """The command would have to ask, and there is nobody to ask."""

    exit_code = 2


class PrintingGroup(click.Group):
    """Commands that fail, with one line, when what they print cannot be written, or the system refuses something."""

    def main(self, *args: Any, **options: Any) -> Any:
        """Run a command. Click ends it quietly with exit code 1 when a reader such as `head` goes away."""
        try:
            if sys.stdout is None:
                raise OSError(errno.EBADF, "it is closed")
            try:
                return super().main(*args, **options)
            finally:
                sys.stdout.flush()  # else Python does, at its exit, and complains in its own way
        except OSError as error:
            is_output = error.filename is None and error.errno in _OF_OUTPUT
            what = "Cannot write standard output" if is_output else str(error.filename or "The system refused")
            if is_output:
                _write_no_more()
            if error.errno != errno.EPIPE:
                click.ClickException(f"{what}: {error.strerror or error}.").show()
            sys.exit(1)


_OF_OUTPUT = {errno.EBADF, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.ENOSPC, errno.EPIPE}
"""What a file that is written fails with, and nothing else that commands do and do not catch."""


def _write_no_more() -> None:
    """Have what is still in a buffer go nowhere: Python writes it at its exit."""
    with suppress(AttributeError, OSError, ValueError):  # there is none, or it is no file
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def print_json(document: object) -> None:
    """Print one JSON document on standard output. Numbers that JSON has not, such as Infinity, become strings."""
    click.echo(json.dumps(json.loads(json.dumps(document), parse_constant=str), allow_nan=False))


def print_table(headings: Sequence[str], rows: Iterable[Sequence[str | Text]]) -> None:
    """Print columns; on a terminal what is too long goes on in the next line."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for heading in headings:
        table.add_column(heading, overflow="fold")
    for row in rows:
        table.add_row(*(cell if isinstance(cell, Text) else Text(printable(cell)) for cell in row))
    console = Console(file=sys.stdout, width=None if sys.stdout.isatty() else UNLIMITED_WIDTH, highlight=False)
    with console.capture() as captured:
        console.print(table)
    for line in captured.get().splitlines():
        click.echo(line.rstrip(), color=True)


def printable(text: str) -> str:
    """The text with its control characters escaped: a state ID must not steer the terminal."""
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def counted_noun(count: int, noun: str) -> str:
    """So many of something: `1 state`, `2 states`."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def as_time(microseconds: int) -> str:
    """A server's time as ISO 8601, UTC."""
    return datetime.fromtimestamp(microseconds // 1_000_000, timezone.utc).isoformat().replace("+00:00", "Z")


def short(value: Any, characters: int) -> str:
    """A value as JSON, cut to so many characters, without any that would steer the terminal."""
    text = printable(json.dumps(value, ensure_ascii=False)[: characters + 1])
    return text if len(text) <= characters else f"{text[: characters - 3]}..."


def first_of(items: Sequence[T], line: Callable[[T], str], most: int = SHOWN_BEFORE_QUESTION) -> Iterator[str]:
    """A line for each of the first items, then how many more there are."""
    yield from map(line, items[:most])
    if len(items) > most:
        yield f"and {len(items) - most} more"


def confirm(question: str, yes: bool, about: Iterable[str] = ()) -> None:
    """Ask before something is lost, unless `yes`.

    Args:
        question: What to ask.
        yes: The answer, so that nothing is asked.
        about: Lines to show before the question: what would be lost.

    Raises:
        click.exceptions.Exit: With exit code 1, if the answer is no.
        RefusedError: If there is no terminal to ask on.
    """
    if yes:
        return
    if sys.stdin is None or not sys.stdin.isatty():
        raise RefusedError("Nothing was done: this asks first, and there is no terminal. Give --yes to do it.")
    for line in about:
        click.echo(line, err=True)
    if not click.confirm(question, err=True):
        click.echo("Nothing was done.", err=True)
        raise click.exceptions.Exit(1)


@contextmanager
def progress(label: str, total: int | None = None) -> Iterator[Progress]:
    """A progress bar on standard error, only where that is a terminal; `counted` moves it."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    console = Console(stderr=True)
    bar = Progress(*columns, console=console, transient=True)
    bar.add_task(label, total=total)
    with bar if console.is_terminal else nullcontext():  # a bar that is disabled prints an empty line (rich 14.0)
        yield bar


def counted(items: Iterable[T], bar: Progress) -> Iterator[T]:
    """The items, each of them a step of the bar."""
    for item in items:
        bar.advance(bar.task_ids[0])
        yield item


@contextmanager
def destination(path: Path | None) -> Iterator[TextIO]:
    """Standard output for None and for `-`, else a file; see `whole_file`."""
    if is_file(path):
        with whole_file(path) as stream:
            yield stream
    else:
        yield sys.stdout


def is_file(path: Path | None) -> TypeGuard[Path]:
    """Whether it is a file, and not standard output."""
    return path is not None and str(path) != "-"


@contextmanager
def whole_file(path: Path) -> Iterator[TextIO]:
    """A file that takes its place only when it is complete; a device or a pipe is written as it is, never replaced."""
    place = path.resolve()
    draft = place.with_name(f".{place.name}.{os.getpid()}.part")
    try:
        if place.exists() and not place.is_file():
            with place.open("w", encoding="utf-8") as stream:
                yield stream
            return
        with draft.open("x", encoding="utf-8") as stream:
            yield stream
        draft.replace(place)
    except OSError as error:
        raise click.ClickException(f"Cannot write {path}: {error.strerror or error}.") from error
    finally:
        draft.unlink(missing_ok=True)
