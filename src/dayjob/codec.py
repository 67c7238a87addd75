"""Arguments and results as JSON: bound and checked when a job is enqueued, rebuilt to the annotated types.

A payload is one JSON object with an entry for each argument that was given, by its parameter's name;
``*args`` is a list and ``**kwargs`` an object under theirs. Defaults are not stored, so that a default
that changes holds for the jobs that wait.
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Sequence
from pathlib import PurePath
from types import UnionType
from typing import Any

import msgspec
from msgspec import UNSET

from dayjob.errors import BadPayload

_VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def to_plain(value: Any) -> Any:
    """What msgspec can't encode by itself: pydantic models and paths."""
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json")
    if isinstance(value, PurePath):
        return str(value)
    raise NotImplementedError(f"{value!r} is a {type(value).__name__}, which has no JSON form")


def from_plain(wanted: Any, value: Any) -> Any:
    """The reverse of ``to_plain`` for a type that msgspec does not know."""
    if hasattr(wanted, "model_validate"):
        return wanted.model_validate(value)
    if isinstance(wanted, type) and issubclass(wanted, PurePath):
        return wanted(value)
    if isinstance(wanted, type) and isinstance(value, wanted):
        return value
    raise NotImplementedError(f"{wanted!r} can't be rebuilt from JSON")


_encoder = msgspec.json.Encoder(enc_hook=to_plain)
_ERRORS = (msgspec.MsgspecError, NotImplementedError, TypeError, ValueError, RecursionError, OverflowError)


def encode(value: Any) -> bytes:
    return _encoder.encode(value)


class Decoder:
    """Rebuilds values of one annotated type.

    A union that msgspec can't tell apart, such as ``datetime | str``, takes the first member that fits.
    """

    def __init__(self, annotation: Any) -> None:
        self._alternatives: tuple[Decoder, ...] = ()
        self._decode: Callable[[bytes | msgspec.Raw], Any] | None = None
        try:
            self._decode = msgspec.json.Decoder(annotation, dec_hook=from_plain).decode
        except TypeError:
            if typing.get_origin(annotation) not in (typing.Union, UnionType):
                raise
            self._alternatives = tuple(Decoder(member) for member in typing.get_args(annotation))

    @property
    def simple(self) -> bool:
        return self._decode is not None

    def decode(self, data: bytes | msgspec.Raw) -> Any:
        if self._decode is not None:
            return self._decode(data)
        for alternative in self._alternatives:
            try:
                return alternative.decode(data)
            except _ERRORS:
                continue
        raise msgspec.ValidationError("no member of the union fits")


class Arguments:
    """The parameters of a task: binds calls to payloads and payloads to calls."""

    def __init__(self, function: Callable[..., Any], name: str, skip: int = 0) -> None:
        self._name = name
        signature = inspect.signature(function)
        self._parameters = list(signature.parameters.values())[skip:]
        self._signature = signature.replace(parameters=self._parameters)
        self._names = [parameter.name for parameter in self._parameters]
        self._plain = all(
            parameter.kind in (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
            for parameter in self._parameters
        )
        self._hints = _hints(function)
        self._special: dict[str, Decoder] = {}
        self._decode = msgspec.json.Decoder(self._struct(), dec_hook=from_plain).decode

    def _struct(self) -> type[msgspec.Struct]:
        """A struct with a field for each parameter, so that decoding and checking happen in one go."""
        fields: list[tuple[str, Any, Any]] = []
        rename: dict[str, str] = {}
        for place, parameter in enumerate(self._parameters):
            field = f"p{place}"
            rename[field] = parameter.name
            annotation = self._annotation(parameter)
            optional = parameter.default is not parameter.empty or parameter.kind in _VARIADIC
            fields.append((field, annotation, msgspec.field(default=UNSET) if optional else msgspec.field()))
        return msgspec.defstruct("Arguments", fields, rename=rename, forbid_unknown_fields=True, kw_only=True)

    def _annotation(self, parameter: inspect.Parameter) -> Any:
        annotation = self._hints.get(parameter.name, Any)
        if parameter.kind is inspect.Parameter.VAR_POSITIONAL:
            annotation = list[annotation]  # type: ignore[valid-type]
        elif parameter.kind is inspect.Parameter.VAR_KEYWORD:
            annotation = dict[str, annotation]  # type: ignore[valid-type]
        decoder = Decoder(annotation)
        if decoder.simple:
            return annotation
        self._special[parameter.name] = decoder
        return msgspec.Raw

    def encode(self, args: Sequence[Any], kwargs: dict[str, Any]) -> bytes:
        """The payload of a call; a call that the task could not be made with is a ``TypeError`` here."""
        bound = self._bind(args, kwargs)
        try:
            payload = _encoder.encode(bound)
        except _ERRORS as error:
            raise TypeError(f"{self._name}: an argument can't be encoded: {error}") from error
        try:
            self._rebuild(payload)
        except _ERRORS as error:
            raise TypeError(f"{self._name}: an argument doesn't fit its annotation: {error}") from error
        return payload

    def _bind(self, args: Sequence[Any], kwargs: dict[str, Any]) -> dict[str, Any]:
        if self._plain and not args and len(kwargs) == len(self._names) and kwargs.keys() == set(self._names):
            return kwargs
        try:
            return self._signature.bind(*args, **kwargs).arguments
        except TypeError as error:
            raise TypeError(f"{self._name}: {error}") from None

    def decode(self, payload: bytes) -> tuple[list[Any], dict[str, Any]]:
        """The call that a payload stands for."""
        try:
            values = self._rebuild(payload)
        except _ERRORS as error:
            raise BadPayload(
                f"the payload doesn't fit the task {self._name!r}: {error}; was it enqueued by other code?"
            ) from error
        args: list[Any] = []
        kwargs: dict[str, Any] = {}
        positional = True
        for parameter, value in zip(self._parameters, values, strict=True):
            kind = parameter.kind
            if value is UNSET:
                positional = False
            elif kind is inspect.Parameter.VAR_POSITIONAL:
                args.extend(value)
            elif kind is inspect.Parameter.VAR_KEYWORD:
                kwargs.update(value)
            elif kind is inspect.Parameter.KEYWORD_ONLY or not positional:
                kwargs[parameter.name] = value
            else:
                args.append(value)
        return args, kwargs

    def _rebuild(self, payload: bytes) -> tuple[Any, ...]:
        values = msgspec.structs.astuple(self._decode(payload))
        if self._special:
            values = tuple(
                self._special[name].decode(value) if name in self._special and value is not UNSET else value
                for name, value in zip(self._names, values, strict=True)
            )
        return values


def result_decoder(function: Callable[..., Any]) -> Decoder:
    """Rebuilds what the function returns."""
    return Decoder(_hints(function).get("return", Any))


def _hints(function: Callable[..., Any]) -> dict[str, Any]:
    """The annotations; those of a function inside a function may name what only its closure knows."""
    inner = inspect.unwrap(function)
    known = dict(inspect.getclosurevars(inner).nonlocals) if inspect.isfunction(inner) else {}
    try:
        return typing.get_type_hints(inner, localns=known or None, include_extras=True)
    except NameError as error:
        raise TypeError(
            f"{inner.__qualname__}: the annotation {error.name!r} can't be resolved: "
            "define the type at the top of the module"
        ) from None
