"""Arguments and results of every type are rebuilt to their annotated type."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Generic, Literal, NamedTuple, Optional, TypedDict, TypeVar, Union
from uuid import UUID

import msgspec
import pydantic
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dayjob import App, Context, JobState
from tests.support.app_runs import arun, job, run, steady_id

T = TypeVar("T")


class Colour(enum.Enum):
    RED = "red"


class Size(enum.IntEnum):
    SMALL = 1


@dataclass
class Address:
    street: str
    since: date


@dataclass
class Person:
    name: str
    home: Address
    tags: set[str] = field(default_factory=set)


class Order(msgspec.Struct):
    id: UUID
    lines: tuple[tuple[str, Decimal], ...]


class Cat(msgspec.Struct, tag=True):
    lives: int


class Dog(msgspec.Struct, tag=True):
    lives: int


class Pair(Generic[T], msgspec.Struct):
    left: T
    right: T


class Point(NamedTuple):
    x: int
    y: int


class Movie(TypedDict):
    title: str
    year: int


class Inner(pydantic.BaseModel):
    at: datetime


class Model(pydantic.BaseModel):
    inner: Inner
    price: Decimal
    name: str = pydantic.Field(alias="fullName")
    place: str = pydantic.Field(default="", validation_alias="at", serialization_alias="where")


NOON = datetime(2026, 1, 2, 12, 30, 15, 250_000, tzinfo=UTC)
ID = UUID("0191e0a0-0000-7000-8000-000000000001")
MODEL = Model.model_validate(
    {"inner": {"at": NOON}, "price": Decimal("1.10"), "fullName": "Ada", "at": "home"}
)

CASES: list[tuple[Any, Any]] = [
    (int, 2**100),
    (float, 0.1),
    (float, 1e308),
    (bool, True),
    (str, "é\0\n\N{SNOWMAN}𝄞"),
    (type(None), None),
    (bytes, b"\x00\xff"),
    (bytearray, bytearray(b"\x00\xff")),
    (UUID, ID),
    (datetime, NOON),
    (datetime, NOON.replace(tzinfo=None)),
    (datetime, NOON.astimezone(timezone(timedelta(hours=5, minutes=30)))),
    (date, date(2026, 1, 2)),
    (time, time(12, 30)),
    (timedelta, timedelta(days=1, microseconds=5)),
    (timedelta, timedelta(seconds=-90)),
    (Decimal, Decimal("0.10000000000000000000000000001")),
    (Path, Path("a/b")),
    (PurePosixPath, PurePosixPath("/a")),
    (Colour, Colour.RED),
    (Size, Size.SMALL),
    (Literal["a", 1], 1),
    (Literal["a"], "a"),
    (list[int], [1, 2]),
    (set[str], {"a", "b"}),
    (frozenset[date], frozenset({date(2026, 1, 2)})),
    (tuple[int, str], (1, "a")),
    (tuple[UUID, ...], (ID, ID)),
    (dict[str, timedelta], {"a": timedelta(1)}),
    (dict[int, str], {1: "a"}),
    (dict[UUID, bytes], {ID: b"a"}),
    (dict[Colour, list[Decimal]], {Colour.RED: [Decimal("1.0")]}),
    (Sequence[date], [date(2026, 1, 2)]),
    (Iterable[date], [date(2026, 1, 2)]),
    (Mapping[str, Size], {"a": Size.SMALL}),
    (Address, Address("Main", date(2026, 1, 2))),
    (Person, Person("Ada", Address("Main", date(2026, 1, 2)), {"x"})),
    (Order, Order(ID, (("a", Decimal("1.1")),))),
    (Pair[date], Pair(date(2026, 1, 2), date(2026, 1, 3))),
    (Point, Point(1, 2)),
    (Movie, {"title": "M", "year": 1931}),
    (Model, MODEL),
    (list[Model], [MODEL]),
    (Model | None, MODEL),
    (Optional[int], None),  # noqa: UP045
    (Union[int, None, str], "a"),  # noqa: UP007
    (int | str, 5),
    (Cat | Dog, Dog(3)),
    (Annotated[int, msgspec.Meta(gt=0)], 1),
    (list[tuple[str, dict[str, set[date]]]], [("a", {"b": {date(2026, 1, 2)}})]),
]
"""Pairs of annotation and value."""

AMBIGUOUS: list[tuple[Any, Any]] = [
    (datetime | str, NOON),
    (datetime | str, "hello"),
    (str | datetime, NOON),
    (str | datetime | None, None),
    (datetime | date, date(2026, 1, 2)),
    (datetime | date, NOON),
    (UUID | Colour | int, ID),
    (UUID | Colour | int, Colour.RED),
    (UUID | Colour | int, 7),
    (Path | int, Path("a")),
    (Path | int, 1),
    (Order | Address, Address("Main", date(2026, 1, 2))),
    (Address | Order, Order(ID, ())),
    (Address | dict[str, str], {"street": "Main"}),
    (Model | Inner, Inner(at=NOON)),
    (Model | Inner, MODEL),
    (Model | str, MODEL),
    (list[datetime | str], [NOON, "a"]),
    (dict[str, list[Path | int]], {"a": [Path("b"), 1]}),
    (list[datetime | str] | None, [NOON]),
    (Annotated[datetime | str, "note"], NOON),
    (Pair[int] | Address, Pair(1, 2)),
    (set[int] | dict[str, int], {1, 2}),
    (tuple[int, int] | tuple[str, ...], ("a",)),
]
"""Unions that msgspec can't decode by itself."""


def echo(annotation: Any) -> Callable[[Any], Any]:
    def function(value: Any) -> Any:
        return received(value)

    received = Received()
    function.__annotations__ = {"value": annotation, "return": annotation}
    function.received = received  # type: ignore[attr-defined]
    return function


class Received:
    """Record the argument of the handler and return it."""

    def __call__(self, value: Any) -> Any:
        self.value = value
        return value


@pytest.mark.parametrize(("annotation", "value"), CASES + AMBIGUOUS, ids=steady_id)
async def test_a_value_is_rebuilt_to_its_annotated_type(memory_app: App, annotation: Any, value: Any) -> None:
    function = echo(annotation)
    handle = await memory_app.task(function).aenqueue(value)
    await arun(memory_app)
    received = function.received.value  # type: ignore[attr-defined]
    for rebuilt in (received, await handle.aresult(timeout=0)):
        assert rebuilt == value
        assert type(rebuilt) is type(value)
    assert "tzinfo" in repr(value) or sorted(repr(received)) == sorted(repr(value))


def test_union_members_are_chosen_by_their_fields(memory_app: App) -> None:
    @dataclass
    class Small:
        x: int

    @dataclass
    class Large:
        x: int
        y: int

    got: list[Any] = []

    @memory_app.task
    def take(value: Small | Large) -> None:
        got.append(value)

    take.enqueue_many([(Large(1, 2),), (Small(1),)])
    run(memory_app)
    assert got == [Large(1, 2), Small(1)]


def test_defaults_keywords_positionals_and_variadics_arrive_as_they_were_passed(app: App) -> None:
    got: list[Any] = []

    @app.task
    def every(
        a: int, /, b: date, c: str = "c", *rest: Decimal, d: UUID, e: float = 0.5, **more: timedelta
    ) -> None:
        got.append((a, b, c, rest, d, e, more))

    day = date(2026, 1, 2)
    every.enqueue(1, day, d=ID)
    every.enqueue(1, b=day, d=ID, e=2)
    every.enqueue(1, day, "x", Decimal(1), Decimal(2), d=ID, a=timedelta(1), z=timedelta(2))
    every.enqueue(1, c="y", b=day, d=ID)
    run(app)
    assert got == [
        (1, day, "c", (), ID, 0.5, {}),
        (1, day, "c", (), ID, 2.0, {}),
        (1, day, "x", (Decimal(1), Decimal(2)), ID, 0.5, {"a": timedelta(1), "z": timedelta(2)}),
        (1, day, "y", (), ID, 0.5, {}),
    ]


def test_a_skipped_default_leaves_the_ones_after_it_in_place(memory_app: App) -> None:
    got: list[Any] = []

    @memory_app.task
    def three(a: int = 1, b: int = 2, c: int = 3) -> None:
        got.append((a, b, c))

    three.enqueue(c=9)
    three.enqueue()
    three.enqueue(5, c=9)
    run(memory_app)
    assert got == [(1, 2, 9), (1, 2, 3), (5, 2, 9)]


def test_an_explicit_none_is_not_the_default(memory_app: App) -> None:
    got: list[Any] = []

    @memory_app.task
    def take(a: int | None = 1) -> None:
        got.append(a)

    take.enqueue(None)
    take.enqueue()
    run(memory_app)
    assert got == [None, 1]


def test_a_changed_default_applies_to_waiting_jobs(app: App) -> None:
    got: list[Any] = []

    def before(a: int, b: str = "old") -> None:
        raise AssertionError("runs the code of before the deployment")

    def after(a: int, b: str = "new") -> None:
        got.append((a, b))

    app.task(name="t")(before).enqueue(1)
    deployed = App(app.url)  # Closed with the process, as a worker's is.
    deployed.task(name="t")(after)
    run(deployed)
    assert got == [(1, "new")]


def test_keyword_arguments_may_be_typed_as_a_whole(memory_app: App) -> None:
    from typing import Unpack

    got: list[Any] = []

    @memory_app.task
    def take(**movie: Unpack[Movie]) -> None:
        got.append(movie)

    take.enqueue(title="M", year=1931)
    with pytest.raises(TypeError, match="year"):
        take.enqueue(title="M", year="x")  # type: ignore[arg-type]
    run(memory_app)
    assert got == [{"title": "M", "year": 1931}]


def test_types_defined_next_to_a_local_task_are_found(memory_app: App) -> None:
    @dataclass
    class Local:
        x: date

    got: list[Any] = []

    @memory_app.task
    def take(value: list[Local], other: Local | None = None) -> None:
        got.append(value)

    take.enqueue([Local(date(2026, 1, 2))])
    run(memory_app)
    assert got == [[Local(date(2026, 1, 2))]]


def test_an_unresolvable_annotation_is_refused_when_the_task_is_registered(memory_app: App) -> None:
    def take(value: Nowhere) -> None:  # type: ignore[name-defined]  # noqa: F821
        pass

    with pytest.raises(TypeError, match=r"take.*'Nowhere'.*top of the module"):
        memory_app.task(take)


def test_a_union_of_bytes_and_str_is_refused_when_the_task_is_registered(memory_app: App) -> None:
    def take(value: bytes | str) -> None:
        pass

    with pytest.raises(TypeError, match=r"take', parameter 'value': bytes and str look the same"):
        memory_app.task(take)


def test_a_result_whose_annotation_can_not_be_rebuilt_is_plain_json(memory_app: App) -> None:
    @memory_app.task
    def take() -> bytes | str:
        return "plain"

    handle = take.enqueue()
    run(memory_app)
    assert handle.result(timeout=0) == "plain"


def test_values_without_annotations_arrive_as_json_types(memory_app: App) -> None:
    got: list[Any] = []

    def take(a, b=None, *args, **kwargs):
        got.append((a, b, args, kwargs))

    task: Any = memory_app.task(take)
    task.enqueue([1, "x", None, True, 0.5, {"k": [1]}], (1, (2, 3)), 4, five={"six": 6})
    run(memory_app)
    assert got == [([1, "x", None, True, 0.5, {"k": [1]}], [1, [2, 3]], (4,), {"five": {"six": 6}})]


@pytest.mark.parametrize(
    ("value", "came_back"),
    [
        (NOON, "'2026-01-02"),
        (ID, "'0191e0a0"),
        (b"x", "'eA=='"),
        (float("nan"), "None"),
        ({1: 2}, "'1': 2"),
        ({1, 2}, r"\[1, 2\]"),
        ([{"a": Decimal(1)}], "'1'"),
        (Address("Main", date(2026, 1, 2)), "'street'"),
    ],
    ids=repr,
)
@pytest.mark.parametrize("annotation", [None, Any, object], ids=str)
def test_a_value_that_would_change_without_an_annotation_is_refused(
    annotation: Any, value: Any, came_back: str
) -> None:
    app = App("memory://", values_in_errors=True)
    function = echo(annotation)
    if annotation is None:
        function.__annotations__ = {}
    with pytest.raises(TypeError, match=rf"function: argument `value` would be decoded as .*{came_back}"):
        app.task(function).enqueue(value)


@dataclass
class Employee(Person):
    salary: int = 0


class Rush(Order):
    hours: int = 1


class Spot(TypedDict):
    x: int


@dataclass(eq=False)
class Numbered:
    """Each construction changes a field: a rebuilt one is another value."""

    number: float

    def __post_init__(self) -> None:
        self.number += 1


class Deep(msgspec.Struct):
    people: list[Person]


@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        (float | None, float("nan")),
        (list[float | None], [1.0, float("inf")]),
        (dict[str, float | None], {"a": float("-inf")}),
        (Person, Employee("Ada", Address("Main", date(2026, 1, 2)), salary=5)),
        (list[Person], [Employee("Ada", Address("Main", date(2026, 1, 2)))]),
        (Deep, Deep([Employee("Ada", Address("Main", date(2026, 1, 2)))])),
        (Order, Rush(ID, ())),
        (Spot, {"x": 1, "y": 2}),
        (Numbered, Numbered(1)),
        (Numbered, Numbered(1.5)),
    ],
    ids=steady_id,
)
def test_a_value_that_would_lose_a_part_is_refused(memory_app: App, annotation: Any, value: Any) -> None:
    with pytest.raises(TypeError, match=r"function: argument `value` would be decoded as .*"):
        memory_app.task(echo(annotation)).enqueue(value)


@pytest.mark.parametrize(
    ("annotation", "value", "rebuilt"),
    [
        (float | None, None, None),
        (float | None, 1, 1.0),
        (Person, Person("Ada", Address("Main", date(2026, 1, 2)), {"a"}), None),
        (Person, {"name": "Ada", "home": {"street": "Main", "since": "2026-01-02"}}, None),
        (Order, Order("0191e0a0-0000-7000-8000-000000000001", (("a", 1),)), None),  # type: ignore[arg-type]
        (Spot, {"x": 1}, {"x": 1}),
    ],
    ids=steady_id,
)
def test_a_value_that_is_complete_in_another_form_is_accepted(
    memory_app: App, annotation: Any, value: Any, rebuilt: Any
) -> None:
    function: Any = echo(annotation)
    memory_app.task(function).enqueue(value)
    run(memory_app)
    if rebuilt is not None:
        assert function.received.value == rebuilt


class Login(pydantic.BaseModel):
    password: pydantic.SecretStr


class Draft(Inner):
    note: str = pydantic.Field(exclude=True)


@pytest.mark.parametrize(
    "model", [Login(password=pydantic.SecretStr("x")), Draft(at=NOON, note="x")], ids=repr
)
def test_a_model_that_drops_fields_is_refused(memory_app: App, model: Any) -> None:
    @memory_app.task
    def take(value: list[Login | Draft]) -> None: ...

    with pytest.raises(TypeError, match="`value"):
        take.enqueue([model])


def test_a_value_under_a_nested_any_that_would_change_is_refused(memory_app: App) -> None:
    @memory_app.task
    def take(value: dict[str, Any], rest: list = []) -> None:  # type: ignore[type-arg]  # noqa: B006
        pass

    take.enqueue({"a": [1, {"b": None}]})
    with pytest.raises(TypeError, match="value"):
        take.enqueue({"a": [NOON]})
    with pytest.raises(TypeError, match="rest"):
        take.enqueue({}, [NOON])


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(codec="utf-8")),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=10,
)


def test_json_values_arrive_unchanged() -> None:
    app = App("memory://")

    @app.task(name="t")
    def take(value: Any, *args: Any, **kwargs: Any) -> None: ...

    arguments = take.arguments
    assert arguments is not None

    @given(JSON, st.lists(JSON, max_size=3), st.dictionaries(st.text(max_size=5), JSON, max_size=3))
    @settings(max_examples=100, deadline=None)
    def check(value: Any, args: list[Any], kwargs: dict[str, Any]) -> None:
        kwargs.pop("value", None)
        decoded = arguments.decode(arguments.encode((value, *args), kwargs))
        assert repr(decoded) == repr(([value, *args], kwargs))

    check()


def test_a_tasks_context_is_not_an_argument(app: App) -> None:
    got: list[Any] = []

    @app.task
    def take(ctx: Context, a: int, b: int = 2) -> None:
        got.append((ctx.job.id, a, b))

    handle = take.enqueue(1)
    run(app)
    assert got == [(handle.id, 1, 2)]


def test_an_empty_payload_is_a_call_without_arguments(app: App) -> None:
    got: list[int] = []

    @app.task(name="t")
    def take(a: int = 7) -> None:
        got.append(a)

    async def enqueue() -> None:
        await (await app.opened()).enqueue("default", task="t")

    app.call(enqueue)
    run(app)
    assert got == [7]
    assert job(app).state is JobState.DONE
