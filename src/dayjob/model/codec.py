"""Arguments and results as JSON: bound and checked at enqueue, rebuilt to the annotated types.

A payload is one JSON object with the given arguments by parameter name. ``*args`` is a list and ``**kwargs``
an object under their names. Defaults are not stored, so a changed default applies to waiting jobs too.
"""

from __future__ import annotations

import inspect
import re
import typing
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from difflib import get_close_matches
from functools import lru_cache, partial, reduce
from math import isfinite
from operator import or_
from pathlib import PurePath
from types import UnionType
from typing import Any

import msgspec
from msgspec import UNSET

from dayjob.errors import BadPayload
from dayjob.model.names import shown

_KINDS = inspect.Parameter
_VARIADIC = (_KINDS.VAR_POSITIONAL, _KINDS.VAR_KEYWORD)
_POSITIONAL = (_KINDS.POSITIONAL_ONLY, _KINDS.POSITIONAL_OR_KEYWORD)
_NAMED = (_KINDS.POSITIONAL_OR_KEYWORD, _KINDS.KEYWORD_ONLY)


def to_plain(value: Any) -> Any:
    """Encode values that msgspec can't: pydantic models and paths."""
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json", round_trip=True)
    if isinstance(value, PurePath):
        return str(value)
    raise NotImplementedError(f"{_a(value)} has no JSON form: use plain values, a dataclass, or an id")


def from_plain(wanted: Any, value: Any) -> Any:
    """Rebuild values of types that msgspec can't: the reverse of ``to_plain``."""
    if isinstance(wanted, Choice):
        return wanted.pick(value)
    if hasattr(wanted, "model_validate"):
        return wanted.model_validate(value, by_name=True)
    if isinstance(wanted, type) and issubclass(wanted, PurePath):
        return wanted(value)
    if typing.get_origin(wanted) is Iterable:
        return _convert(value, list[typing.get_args(wanted)[0]])  # type: ignore[misc]
    if isinstance(wanted, type) and isinstance(value, wanted):
        return value
    raise NotImplementedError(f"{wanted!r} can't be rebuilt from JSON")


_encoder = msgspec.json.Encoder(enc_hook=to_plain)
_canonical = msgspec.json.Encoder(enc_hook=to_plain, order="deterministic")
_convert = partial(msgspec.convert, dec_hook=from_plain, str_keys=True)
_AT = r"( - at `[^`]*`(?: in `[^`]*`)?)?$"
_PLACE = re.compile(_AT)
_INVALID = re.compile(rf"(Invalid (?:enum )?value) .*?{_AT}", re.DOTALL)
"""Matches the only errors of msgspec with a value."""
_UNKNOWN_FIELD = re.compile(r"Object contains unknown field `([^`]*)`$")
_MISSING_FIELD = re.compile(r"Object missing required field `([^`]*)`$")
"""These errors have no path: they concern the arguments themselves, and not a value inside one."""
_OWN_ERRORS = (
    msgspec.MsgspecError, NotImplementedError, TypeError, RecursionError, OverflowError, UnicodeError,
)  # fmt: skip
"""The errors whose texts are those of msgspec, Python and dayjob, without values."""
_ERRORS = (msgspec.MsgspecError, NotImplementedError, TypeError, ValueError, RecursionError, OverflowError)


UNDECODABLE = (msgspec.MsgspecError, ValueError, RecursionError)
"""The errors of msgspec for bytes that can't be decoded, for text that is not UTF-8, and for deep nesting."""


def encode(value: Any) -> bytes:
    return _encoder.encode(value)


def encode_arguments(task: str, arguments: dict[str, Any], values_in_errors: bool = False) -> bytes:
    """Return the payload of a call. Raise ``TypeError`` with the argument that has no JSON form."""
    try:
        return _encoder.encode(arguments)
    except _ERRORS as error:
        text = _unencodable(arguments, error, values_in_errors)
        raise TypeError(f"{task}: {text}") from (error if values_in_errors else None)


class OtherVersion(BadPayload):
    """The payload is a call of other parameters. A worker with another version of the code may have them."""


class UnknownParameter(OtherVersion):
    """The payload has an argument without a parameter: one that was added, renamed or removed."""


class MissingArgument(OtherVersion):
    """The payload has no argument for a required parameter: one that was added, renamed or removed."""


class NoMember(ValueError):
    """No member of a union accepts the value. The text has no part of the value."""


class Choice(type):
    """A replacement in annotations for a union that msgspec can't decode, such as ``datetime | str``.

    The value becomes the first member that encodes to the same JSON, else the first that accepts it. ``str``,
    which accepts any text, comes last.
    """

    members: tuple[Any, ...]

    def __new__(mcs, members: Iterable[Any]) -> Choice:
        made = super().__new__(mcs, "Choice", (), {})
        made.members = tuple(sorted(members, key=lambda member: member is str))
        return made

    def __init__(cls, members: Iterable[Any]) -> None:
        super().__init__("Choice", (), {})

    def __instancecheck__(cls, instance: object) -> bool:
        return True

    def pick(cls, value: Any) -> Any:
        fitting = []
        for member in cls.members:
            try:
                rebuilt = _convert(value, member)
            except _ERRORS:
                continue
            if msgspec.to_builtins(rebuilt, enc_hook=to_plain, str_keys=True) == value:
                return rebuilt
            fitting.append(rebuilt)
        if not fitting:
            names = ", ".join(getattr(member, "__name__", str(member)) for member in cls.members)
            raise NoMember(f"{_a(value)} is none of {names}")
        return fitting[0]


def rebuildable(annotation: Any) -> Any:
    """Return the annotation with a ``Choice`` for each union that msgspec can't decode."""
    try:
        msgspec.json.Decoder(annotation, dec_hook=from_plain)
    except TypeError:
        origin, members = typing.get_origin(annotation), typing.get_args(annotation)
        if origin is None or origin is typing.Literal:
            raise
        if origin is typing.Annotated:
            return rebuildable(members[0])
        members = tuple(member if member is ... else rebuildable(member) for member in members)
        if origin not in (typing.Union, UnionType):
            return origin[members]
        if str in members and not {bytes, bytearray}.isdisjoint(members):
            raise TypeError("bytes and str look the same in JSON: allow one of them") from None
        return _union(members)
    return annotation


def _union(members: tuple[Any, ...]) -> Any:
    union = reduce(or_, members)
    try:
        msgspec.json.Decoder(union, dec_hook=from_plain)
    except TypeError:
        return Choice(members)
    return union


class Arguments:
    """The parameters of a task: converts calls to payloads and payloads to calls.

    Errors name the argument, its type and the reason, and not the value, unless ``values_in_errors``.
    """

    def __init__(
        self, function: Callable[..., Any], name: str, skip: int = 0, *, values_in_errors: bool = False
    ) -> None:
        self._name = name
        self._values_in_errors = values_in_errors
        signature = inspect.signature(function)
        self._parameters = list(signature.parameters.values())[skip:]
        self._signature = signature.replace(parameters=self._parameters)
        self._names = [parameter.name for parameter in self._parameters]
        self.required = {each.name for each in self._parameters if not _optional(each)}
        self._plain = all(each.kind in _NAMED for each in self._parameters)
        self._positional = sum(each.kind is _KINDS.POSITIONAL_OR_KEYWORD for each in self._parameters)
        self.names = set(self._names)
        self._all_given = len(self.required) == self._positional == len(self._names)
        hints = hints_of(function)
        annotations = {each.name: _annotation(each, hints) for each in self._parameters}
        self._compared = {
            known: _kept if _loose(annotation) else _rebuilt
            for known, annotation in annotations.items()
            if _loose(annotation) or _lossy(annotation)
        }
        """How to check that an argument survives, for the parameters whose types may lose a part of it."""
        self._decode = msgspec.json.Decoder(self._struct(annotations), dec_hook=from_plain).decode
        self._positional_call = self._call_struct() if self._all_given and not self._compared else None
        """Takes all arguments by position, for the calls that need no more checks than a decoding."""

    def _call_struct(self) -> type[msgspec.Struct]:
        fields = {f"p{number}": name for number, name in enumerate(self._names)}
        return msgspec.defstruct("Call", [(field, Any) for field in fields], rename=fields)

    def _struct(self, annotations: dict[str, Any]) -> type[msgspec.Struct]:
        """Return a struct with a field for each parameter, which decodes and checks in one step."""
        fields: list[tuple[str, Any, Any]] = []
        rename: dict[str, str] = {}
        for number, parameter in enumerate(self._parameters):
            try:
                annotation = rebuildable(annotations[parameter.name])
            except TypeError as error:
                raise TypeError(f"task {self._name!r}, parameter {parameter.name!r}: {error}") from None
            field = f"p{number}"
            rename[field] = parameter.name
            default = msgspec.field(default=UNSET) if _optional(parameter) else msgspec.field()
            fields.append((field, annotation, default))
        return msgspec.defstruct("Arguments", fields, rename=rename, forbid_unknown_fields=True, kw_only=True)

    def encode(self, args: Sequence[Any], kwargs: dict[str, Any]) -> bytes:
        """Return the payload of a call. Raise ``TypeError`` if the call does not fit the task."""
        if self._positional_call is not None and not kwargs and len(args) == self._positional:
            try:
                payload = _encoder.encode(self._positional_call(*args))
                self._decode(payload)
            except _ERRORS:
                pass  # The lines below raise it with a text.
            else:
                return payload
        bound = self._bind(args, kwargs)
        payload = encode_arguments(self._name, bound, self._values_in_errors)
        try:
            values = msgspec.structs.astuple(self._decode(payload))
        except _ERRORS as error:
            raise TypeError(f"{self._name}: {explained(error, self._values_in_errors)}") from self._cause(
                error
            )
        for name, survives in self._compared.items():
            rebuilt = values[self._names.index(name)]
            if name in bound and not survives(bound[name], rebuilt):
                form = shown(rebuilt) if self._values_in_errors else f"another value, {_a(rebuilt)}"
                raise TypeError(
                    f"{self._name}: argument `{name}` would be decoded as {form}: "
                    "pass a JSON value, or annotate the parameter with the type of the argument"
                )
        return payload

    def canonical(self, args: Sequence[Any], kwargs: dict[str, Any]) -> bytes:
        """Return the same bytes for equal arguments, regardless of the order of sets and mappings."""
        try:
            return _canonical.encode(_ordered(self._bind(args, kwargs)))
        except TypeError as error:
            raise TypeError(
                f"{self._name}: no dedup key can be derived from the arguments "
                f"({explained(error, self._values_in_errors)}): "
                "pass a function that returns the key as dedup"
            ) from None

    def bound(self, args: Sequence[Any], kwargs: dict[str, Any]) -> dict[str, Any]:
        """Return the arguments of a call by parameter name, including defaults."""
        defaults = {
            each.name: each.default
            for each in self._parameters
            if each.default is not inspect.Parameter.empty
        }
        return defaults | self._bind(args, kwargs)

    def _bind(self, args: Sequence[Any], kwargs: dict[str, Any]) -> dict[str, Any]:
        if self._plain and len(args) <= self._positional:  # The common case. `Signature.bind` is slower.
            bound = dict(zip(self._names, args, strict=False))
            bound.update(kwargs)
            names = bound.keys()
            if len(bound) == len(args) + len(kwargs) and self.required <= names <= self.names:
                return bound
        try:
            return self._signature.bind(*args, **kwargs).arguments
        except TypeError as error:
            raise TypeError(f"{self._name}: {error}") from None

    def decode(self, payload: bytes) -> tuple[Sequence[Any], dict[str, Any]]:
        """Return the arguments of the call in a payload."""
        try:
            values = msgspec.structs.astuple(self._decode(payload or b"{}"))
            if self._all_given:
                return values, {}
            return self._plain_call(values) if self._plain else self._call(values)
        except _ERRORS as error:
            unknown = _UNKNOWN_FIELD.match(str(error))
            if unknown is not None and unknown[1] not in self.names:
                raise UnknownParameter(f"task {self._name!r} has no parameter {unknown[1]!r}") from None
            missing = _MISSING_FIELD.match(str(error))
            if missing is not None and missing[1] in self.required:
                raise MissingArgument(
                    f"task {self._name!r} requires {missing[1]!r}, which the call does not have"
                ) from None
            raise BadPayload(
                f"the payload doesn't fit the task {self._name!r}: "
                f"{explained(error, self._values_in_errors)}; "
                "it may have been enqueued by another version of the code"
            ) from self._cause(error)

    def _cause(self, error: Exception) -> Exception | None:
        """Return the cause to show below an error. A traceback would show its text, which has the value."""
        return error if self._values_in_errors else None

    def misfit(self, payload: bytes) -> str | None:
        """Return why the payload is not a call of the task, without any value. None if it is one."""
        try:
            self.decode(payload)
        except OtherVersion:
            given = msgspec.json.decode(payload or b"{}", type=dict[str, msgspec.Raw]).keys()
            unknown, absent = sorted(given - self.names), self.names - given
            return _other_names(tuple(unknown), tuple(sorted(absent)), frozenset(absent & self.required))
        except BadPayload as error:
            return _reason(error)
        return None

    def by_name(self, payload: bytes) -> dict[str, Any]:
        """Return the arguments of the call in a payload by parameter name, including defaults."""
        values = msgspec.structs.astuple(self._decode(payload or b"{}"))
        given = {
            parameter.name: parameter.default if value is UNSET else value
            for parameter, value in zip(self._parameters, values, strict=True)
        }
        return {name: value for name, value in given.items() if value is not _KINDS.empty}

    def _plain_call(self, values: tuple[Any, ...]) -> tuple[list[Any], dict[str, Any]]:
        """Return arguments by position up to the first missing one, and by name from there."""
        end = 0
        while end < self._positional and values[end] is not UNSET:
            end += 1
        named = zip(self._names[end:], values[end:], strict=True)
        return list(values[:end]), {name: value for name, value in named if value is not UNSET}

    def _call(self, values: tuple[Any, ...]) -> tuple[list[Any], dict[str, Any]]:
        args: list[Any] = []
        kwargs: dict[str, Any] = {}
        given = [*zip(self._parameters, values, strict=True)]
        # With ``*args`` all parameters before them need values.
        has_varargs = any(each.kind is _KINDS.VAR_POSITIONAL and value is not UNSET for each, value in given)
        positional = True
        for parameter, value in given:
            kind = parameter.kind
            if value is UNSET and has_varargs and kind in _POSITIONAL:
                args.append(parameter.default)
            elif value is UNSET:
                positional = False
            elif kind is _KINDS.VAR_POSITIONAL:
                args.extend(value)
            elif kind is _KINDS.VAR_KEYWORD:
                kwargs.update(value)
            elif kind is _KINDS.KEYWORD_ONLY or not positional:
                kwargs[parameter.name] = value
            else:
                args.append(value)
        self._signature.bind(*args, **kwargs)
        return args, kwargs


@lru_cache(1000)
def _other_names(unknown: tuple[str, ...], absent: tuple[str, ...], missing: frozenset[str]) -> str:
    """Return how the names of a call differ, with the likely new names of renamed parameters."""
    texts, left = [], list(absent)
    for name in unknown:
        similar = get_close_matches(name, left, 1) or (missing if len(unknown) == len(missing) == 1 else ())
        texts.append(f"no parameter {shown(name)}")
        for new in similar:
            texts[-1] += f": renamed to {new!r}?"
            left.remove(new)
    texts += [f"no argument for {name!r}, which is required" for name in left if name in missing]
    return "; ".join(texts)


def _reason(error: BadPayload) -> str:
    """Return the text of the error that a decoder raised, without values."""
    cause = error.__context__
    return explained(cause if isinstance(cause, Exception) else error)


class ResultDecoder:
    """Rebuilds the result of a task."""

    def __init__(self, function: Callable[..., Any], name: str, *, values_in_errors: bool = False) -> None:
        self._name = name
        self._values_in_errors = values_in_errors
        try:
            annotation = rebuildable(hints_of(function).get("return", Any))
        except TypeError:
            annotation = Any  # The task is accepted though its result can't be rebuilt.
        self._decode = msgspec.json.Decoder(annotation, dec_hook=from_plain).decode

    def decode(self, data: bytes) -> Any:
        try:
            return self._decode(data)
        except _ERRORS as error:
            raise BadPayload(
                f"the result doesn't fit the return annotation of task {self._name!r}: "
                f"{explained(error, self._values_in_errors)}"
            ) from (error if self._values_in_errors else None)

    def misfit(self, data: bytes) -> str | None:
        """Return why a stored result is not of the annotated type, without any value. None if it is."""
        try:
            self.decode(data)
        except BadPayload as error:
            return f"the result: {_reason(error)}"
        return None


def hints_of(function: Callable[..., Any]) -> dict[str, Any]:
    """Return the resolved annotations. Those of a nested function may use names of its outer scope."""
    inner = underlying(function)
    known = {**_closure(inner), **_outer_locals(inner)}
    try:
        return typing.get_type_hints(inner, localns=known or None, include_extras=True)
    except NameError as error:
        raise TypeError(
            f"{inner.__qualname__}: the annotation {error.name!r} can't be resolved: "
            "define the type at the top of the module"
        ) from None


def underlying(function: Any) -> Any:
    """Return the function with the annotations, below decorators, ``partial`` and callable objects."""
    while True:
        function = inspect.unwrap(function)
        if isinstance(function, partial):
            function = function.func
        elif inspect.isroutine(function):
            return function
        else:
            function = type(function).__call__


def _closure(function: Any) -> dict[str, Any]:
    """Return the values of the function's closure. Omits unassigned names, such as the function's own."""
    known = {}
    if inspect.isfunction(function):
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            with suppress(ValueError):
                known[name] = cell.cell_contents
    return known


def _outer_locals(function: Any) -> dict[str, Any]:
    """Return the local names of the call that is defining this function."""
    outer, inside, _ = function.__qualname__.rpartition(".<locals>.")
    frame = inspect.currentframe() if inside else None
    while frame is not None:
        if frame.f_globals is function.__globals__ and frame.f_code.co_qualname == outer:
            return frame.f_locals
        frame = frame.f_back
    return {}


def _annotation(parameter: inspect.Parameter, hints: dict[str, Any]) -> Any:
    annotation = hints.get(parameter.name, Any)
    if parameter.kind is _KINDS.VAR_POSITIONAL:
        return list[annotation]  # type: ignore[valid-type]
    if parameter.kind is _KINDS.VAR_KEYWORD:
        if typing.get_origin(annotation) is typing.Unpack:
            return typing.get_args(annotation)[0]
        return dict[str, annotation]  # type: ignore[valid-type]
    return annotation


def _optional(parameter: inspect.Parameter) -> bool:
    return parameter.default is not parameter.empty or parameter.kind in _VARIADIC


def _loose(annotation: Any) -> bool:
    """Return whether the annotation allows any value, or is a model, which may drop some of it."""
    if annotation in (Any, object, list, dict, tuple, set, frozenset) or hasattr(annotation, "model_dump"):
        return True
    return typing.get_origin(annotation) is not typing.Literal and any(
        _loose(member) for member in typing.get_args(annotation) if member is not ...
    )


def _lossy(annotation: Any) -> bool:
    """Return whether a value of the type may be rebuilt as another: a class with fields, or ``float | None``.

    A field of a subclass would be dropped. JSON has no NaN, so it becomes None.
    """
    origin, members = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Literal:
        return False
    if _fields(annotation if origin is None else origin) is not None or typing.is_typeddict(annotation):
        return True
    if origin in (typing.Union, UnionType) and type(None) in members and float in members:
        return True
    return any(_lossy(member) for member in members if member is not ...)


def _fields(kind: Any) -> Sequence[str] | None:
    for attribute in ("__struct_fields__", "__dataclass_fields__"):
        if isinstance(kind, type) and hasattr(kind, attribute):
            return tuple(getattr(kind, attribute))
    attributes = getattr(kind, "__attrs_attrs__", None)
    return None if attributes is None else [each.name for each in attributes]


def _rebuilt(given: Any, rebuilt: Any) -> bool:
    """Return whether the value was rebuilt as it was given. A dict may have become an object with fields."""
    if isinstance(given, float):
        return isfinite(given) and (given == rebuilt or not isinstance(rebuilt, float))
    if isinstance(given, list | tuple) and isinstance(rebuilt, list | tuple):
        return len(given) == len(rebuilt) and all(map(_rebuilt, given, rebuilt))
    if isinstance(given, dict) and isinstance(rebuilt, dict):
        return len(given) == len(rebuilt) and all(
            _rebuilt(value, rebuilt[key]) for key, value in given.items() if key in rebuilt
        )
    fields = _fields(type(given))
    if fields is not None:
        return type(given) is type(rebuilt) and all(
            _rebuilt(getattr(given, name, None), getattr(rebuilt, name, None)) for name in fields
        )
    return (
        isinstance(given, dict) or given == rebuilt or _canonical.encode(given) == _canonical.encode(rebuilt)
    )


def _kept(given: Any, rebuilt: Any) -> bool:
    """Return whether JSON preserved the value. A tuple may have become a list."""
    if isinstance(given, list | tuple) and isinstance(rebuilt, list | tuple):
        return len(given) == len(rebuilt) and all(map(_kept, given, rebuilt))
    if isinstance(given, dict) and isinstance(rebuilt, dict):
        return given.keys() == rebuilt.keys() and all(_kept(given[key], rebuilt[key]) for key in given)
    if type(given) is type(rebuilt) and not isinstance(given, set | frozenset):
        return not hasattr(given, "model_dump") or bool(given == rebuilt)
    return isinstance(given, type(rebuilt)) and bool(given == rebuilt)


def _ordered(value: Any) -> Any:
    """Return the value with its sets sorted by their encoded members."""
    if isinstance(value, set | frozenset):
        return sorted(_canonical.encode(_ordered(member)) for member in value)
    if isinstance(value, dict):
        return {key: _ordered(member) for key, member in value.items()}
    if type(value) in (list, tuple):
        return [_ordered(member) for member in value]
    return value


def _unencodable(bound: dict[str, Any], error: Exception, values_in_errors: bool) -> str:
    """Return the error text, with the name of the argument that can't be encoded."""
    for name, value in bound.items():
        try:
            _encoder.encode(value)
        except _ERRORS as found:
            return f"argument `{name}` can't be encoded: {explained(found, values_in_errors)}"
    return f"the arguments can't be encoded: {explained(error, values_in_errors)}"


def explained(error: Exception, values_in_errors: bool = False) -> str:
    """Return the error with argument names instead of JSON paths."""
    text = str(error) if values_in_errors else _without_value(error)
    return text.replace("- at `$.", "in argument `").replace("- at `$`", "").rstrip()


def _without_value(error: Exception) -> str:
    """Return the text of an error of msgspec, without the value that it may have.

    The text of a type's own check is left out, because it may have the value too.
    """
    text, cause = str(error), error.__cause__ if isinstance(error, msgspec.ValidationError) else None
    if cause is None or isinstance(cause, NoMember):
        return _INVALID.sub(r"\1\2", text) if isinstance(error, _OWN_ERRORS) else type(error).__name__
    place = _PLACE.search(text)
    details = ""
    if hasattr(cause, "errors"):  # Of pydantic: the fields, and the kinds of their errors.
        found = cause.errors(include_input=False, include_url=False, include_context=False)
        fields = (f"{'.'.join(map(str, each['loc']))}: {each['type']}" for each in found)
        details = f" ({', '.join(fields)})"
    return f"{type(cause).__name__}{details}{place[0] if place else ''}"


def _a(value: object) -> str:
    return f"a value of the type {type(value).__name__}"
