"""Import the ``App`` that ``pkg.module:app`` names, with an error message for each way to fail."""

from __future__ import annotations

import sys
import traceback
from importlib import import_module
from pathlib import Path
from types import ModuleType, TracebackType
from typing import IO, Any

import click

from dayjob.app import App
from dayjob.cli.output import print_text

_OURS = str(Path(__file__).parent)


class ImportFailed(click.ClickException):
    """The user's module raised an exception on import. Shown with the user's part of the traceback."""

    exit_code = 1

    def __init__(self, name: str, error: BaseException) -> None:
        super().__init__(f"{name} could not be imported: {type(error).__name__}: {error}")
        self.error = error

    def show(self, file: IO[Any] | None = None) -> None:
        trace = _from_user_code(self.error.__traceback__)
        text = "".join(traceback.format_exception(type(self.error), self.error, trace))
        print_text(text, end="", err=True)
        super().show(file)


def load_app(argument: str) -> App:
    """Return the app that ``module:attribute`` or ``./file.py:attribute`` names. ``:app`` is optional."""
    target, colon, attribute = argument.rpartition(":")
    if not colon:
        target, attribute = argument, "app"
    if not target or not attribute:
        raise click.UsageError(f"{argument!r} names no app: write MODULE:ATTRIBUTE, such as jobs:app")
    _search_first(Path.cwd())
    if target.endswith(".py") or "/" in target:
        module = _import_file(Path(target))
    else:
        module = _import(target)
    return _pick(module, attribute)


def _import_file(path: Path) -> ModuleType:
    """Import a file under the module name that its tasks have: the stem, within its package if any."""
    path = path.resolve()
    if not path.exists():
        raise click.UsageError(f"there is no file {path}")
    parts, folder = [path.stem], path.parent
    while (folder / "__init__.py").exists():
        parts.insert(0, folder.name)
        folder = folder.parent
    _search_first(folder)
    module = _import(".".join(parts))
    found = getattr(module, "__file__", None)
    if found is None or Path(found).resolve() not in (path, path / "__init__.py"):
        raise click.UsageError(
            f"{path} would be imported as {module.__name__!r}, but that is {found or 'built in'}: "
            "rename the file"
        )
    return module


def _search_first(folder: Path) -> None:
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))


def _import(name: str) -> ModuleType:
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and f"{name}.".startswith(f"{error.name}."):
            raise click.UsageError(
                f"there is no module {error.name!r} in {Path.cwd()} or elsewhere on the import path"
            ) from None
        raise ImportFailed(name, error) from error
    except (Exception, SystemExit) as error:
        raise ImportFailed(name, error) from error


def _pick(module: ModuleType, attribute: str) -> App:
    value: Any = module
    for part in attribute.split("."):
        try:
            value = getattr(value, part)
        except AttributeError:
            raise click.UsageError(
                f"module {module.__name__!r} has no attribute {attribute!r}. {_apps_in(module)}"
            ) from None
    if not isinstance(value, App):
        raise click.UsageError(
            f"{module.__name__}:{attribute} is a {type(value).__name__}, not an App. {_apps_in(module)}"
        )
    return value


def _apps_in(module: ModuleType) -> str:
    names = [name for name, value in vars(module).items() if isinstance(value, App)]
    if not names:
        return "The module has no App."
    return f"Its apps: {', '.join(f'{module.__name__}:{name}' for name in names)}"


def _from_user_code(trace: TracebackType | None) -> TracebackType | None:
    """Return the traceback without the frames between the command and the user's module."""
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        if not file.startswith((_OURS, "<frozen importlib")) and not file.endswith("importlib/__init__.py"):
            return trace
        trace = trace.tb_next
    return None
