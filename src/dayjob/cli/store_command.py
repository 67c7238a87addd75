"""The store of a command: its URL on the command line, and a broker that is open during the command."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NoReturn, TypeVar
from urllib.parse import unquote

import click

from dayjob.broker import Broker
from dayjob.cli.output import Column, print_text, show, table
from dayjob.engines.registry import ENGINES, parse, without_password
from dayjob.errors import ConfigError, DayjobError, EngineFenced, EngineUnavailable, InvalidState
from dayjob.inspect.search import LISTED, ids_with_prefix
from dayjob.model.config import BrokerConfig
from dayjob.model.names import printable

OK, NOTHING, USAGE, UNAVAILABLE, INTERRUPTED = 0, 1, 2, 3, 130

Answer = TypeVar("Answer")
Item = TypeVar("Item")


class StoreCommand(click.Command):
    """A command on a store.

    The URL is an argument, ``--url`` before or after the command, or ``DAYJOB_URL``.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.params.insert(
            0,
            click.Option(
                ["-u", "--url"], envvar="DAYJOB_URL", show_envvar=True, metavar="URL",
                help="The store, such as sqlite:///jobs.db. It may also be an argument.",
            ),
        )  # fmt: skip

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        return ["[URL]", *super().collect_usage_pieces(ctx)]

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        url, args = take_url(args)
        if not url:
            url, args = self._take_later_url(args)
        before = ctx.find_root().params.get("url")
        return super().parse_args(ctx, [*(("--url", before) if before else ()), *url, *args])

    def _take_later_url(self, args: list[str]) -> tuple[list[str], list[str]]:
        """Return a URL among the arguments as an option, unless it is the value of another option."""
        with_value = {
            name
            for option in self.params
            if isinstance(option, click.Option) and not option.is_flag and not option.count
            for name in option.opts
        }
        for index, arg in enumerate(args):
            if arg.partition("://")[0] in ENGINES and "://" in arg and args[index - 1] not in with_value:
                return ["--url", arg], [*args[:index], *args[index + 1 :]]
        return [], args

    def invoke(self, ctx: click.Context) -> Any:
        """Report errors of the user or the storage in one line, without a traceback."""
        if ctx.params.get("url") is None:
            raise click.UsageError("no store is given: pass its URL, or set DAYJOB_URL", ctx)
        try:
            return super().invoke(ctx)
        except (EngineUnavailable, EngineFenced) as error:
            fail(str(error), UNAVAILABLE)
        except (ConfigError, TypeError, ValueError) as error:
            raise click.UsageError(printable(str(error)), ctx) from error
        except InvalidState as error:
            fail(str(error), NOTHING)
        except DayjobError as error:
            fail(f"{type(error).__name__}: {error}", NOTHING)


class CommandGroup(click.Group):
    """A group whose help has the whole first sentence of each command, in sections if it has any."""

    def __init__(
        self, *args: Any, sections: Mapping[str, Sequence[click.Command]] | None = None, **kwargs: Any
    ) -> None:
        super().__init__(*args, **kwargs)
        self._sections = sections

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        by_name = [self.commands[name] for name in sorted(self.commands)]
        for title, commands in (self._sections or {"Commands": by_name}).items():
            with formatter.section(title):
                formatter.write_dl([(each.name or "", each.get_short_help_str(1000)) for each in commands])


class StoreGroup(CommandGroup):
    """A group of such commands. The URL may come before or after the name of the subcommand."""

    command_class = StoreCommand

    def __init__(self, *args: Any, default: str | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._default = default

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        url, args = take_url(args)
        if not args or args[0] not in (*self.commands, "-h", "--help"):
            args = [self._default or "--help", *args]
        return super().parse_args(ctx, [args[0], *url, *args[1:]])


def take_url(args: list[str]) -> tuple[list[str], list[str]]:
    """Return the URL at the start of the arguments as an option, and the other arguments."""
    if args and is_url(args[0]):
        return ["--url", args[0]], args[1:]
    number = (
        2 if args and args[0] in ("-u", "--url") else int(bool(args) and args[0].startswith(("-u", "--url=")))
    )
    return args[:number], args[number:]


def is_url(text: str) -> bool:
    scheme, separator, _ = text.partition("://")
    return bool(separator) and (scheme.lower() in ENGINES or not text.startswith("-"))


def fail(text: str, code: int) -> NoReturn:
    print_text(f"Error: {text}".replace("\n", "\n  "), err=True)
    raise SystemExit(code)


def on_store(url: str, work: Callable[[Broker], Awaitable[Answer]], *, writes: bool = False) -> Answer:
    """Run the work on the open store. Without ``writes``, nothing is created and no owner is fenced."""

    async def run() -> Answer:
        async with Broker(opened_url(url, writes), config=BrokerConfig(duties=False)) as broker:
            return await work(broker)

    try:
        return asyncio.run(run())
    except KeyboardInterrupt:
        raise SystemExit(INTERRUPTED) from None


def show_list(
    url: str, read: Callable[[Broker], Awaitable[Sequence[Item]]], fields: Callable[[Item], object],
    columns: Sequence[Column], row: Callable[[Item], Sequence[object]], empty: str, as_json: bool,
    watch: bool,
) -> None:  # fmt: skip
    """Print what is read: the JSON ``fields`` of each item, or a table with a row for each."""

    async def work(broker: Broker) -> None:
        await show(
            partial(read, broker), lambda found: [*map(fields, found)],
            lambda found: table(columns, [*map(row, found)], empty=empty), as_json, watch,
        )  # fmt: skip

    on_store(url, work)


async def whole_id(broker: Broker, text: str) -> str:
    """Return the id of the only job whose id begins with the text; the text itself if there is none."""
    found = await ids_with_prefix(broker, text)
    if len(found) > 1:
        number = f"{LISTED} jobs or more" if len(found) == LISTED else f"{len(found)} jobs"
        fail("\n".join([f"{text} is the beginning of the ids of {number}: give more of it", *found]), USAGE)
    return found[0] if found else text


def opened_url(url: str, writes: bool) -> str:
    """Return the URL to open. Object storage allows one writer, so commands that only read use its reader."""
    location = parse(url)
    scheme = location.parts.scheme
    if scheme == "sqlite" and not writes:
        path = Path(unquote(location.parts.path[1:]))
        if not path.exists():
            raise EngineUnavailable(f"there is no file {path} (from {without_password(url)})")
    if ENGINES[scheme].extra == "slatedb" and not writes and "readonly" not in location.options:
        return f"{url}{'&' if '?' in url else '?'}readonly=1"
    return url
