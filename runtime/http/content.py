"""Bodies in and out: JSON or msgpack, by the headers of the request."""

from __future__ import annotations

from contextlib import suppress
from typing import Any, Literal

import msgspec

from sublet.functions.app import Function
from sublet.functions.codec import codec_for
from sublet.functions.errors import EncodeError, PayloadError
from sublet.runtime.http.errors import HttpProblemError

Form = Literal["json", "msgpack"]

JSON_TYPE = "application/json"
MSGPACK_TYPE = "application/msgpack"
MEDIA_TYPES: dict[Form, str] = {"json": JSON_TYPE, "msgpack": MSGPACK_TYPE}

_FORMS: dict[str, Form] = {
    JSON_TYPE: "json",
    MSGPACK_TYPE: "msgpack",
    "application/x-msgpack": "msgpack",
    "application/vnd.msgpack": "msgpack",
}
_ALLOWED = f"allowed: {JSON_TYPE}, {MSGPACK_TYPE}"
_ANY = codec_for(Any)


def form_of_body(content_type: str | None) -> Form:
    """Return the form that a Content-Type names; 415 if we cannot read it."""
    if content_type == JSON_TYPE:
        return "json"
    if not content_type:
        raise HttpProblemError(
            "unsupported_media_type", f"the body has no Content-Type; {_ALLOWED}"
        )
    media_type, _, parameters = content_type.partition(";")
    form = _FORMS.get(media_type.strip().lower())
    if form is None:
        raise HttpProblemError(
            "unsupported_media_type", f"the Content-Type is {media_type.strip()!r:.100}; {_ALLOWED}"
        )
    name, _, value = parameters.strip().partition("=")
    if name.strip().lower() == "charset" and value.strip(' "').lower() not in ("utf-8", "utf8"):
        raise HttpProblemError(
            "unsupported_media_type", f"the charset is {value!r:.40}; allowed: utf-8"
        )
    return form


def form_of_reply(accept: str | None, otherwise: Form) -> Form:
    """Return the form that an Accept header likes best, `otherwise` if it likes both equally."""
    if not accept or accept == "*/*":
        return otherwise
    likings: dict[Form, float] = {}
    general = 0.0
    for part in accept.split(","):
        media_type, *parameters = (each.strip().lower() for each in part.split(";"))
        liking = _quality(parameters)
        if media_type in ("*/*", "application/*"):
            general = max(general, liking)
        elif media_type in _FORMS:
            form = _FORMS[media_type]
            likings[form] = max(likings.get(form, 0.0), liking)
    forms: tuple[Form, ...] = (otherwise, "msgpack" if otherwise == "json" else "json")
    best = max(forms, key=lambda form: likings.get(form, general))
    if likings.get(best, general) <= 0:
        raise HttpProblemError("not_acceptable", f"Accept is {accept!r:.100}; {_ALLOWED}")
    return best


def _quality(parameters: list[str]) -> float:
    for parameter in parameters:
        if parameter.startswith("q="):
            try:
                return min(1.0, max(0.0, float(parameter[2:])))
            except ValueError:
                return 0.0
    return 1.0


def message_from(
    body: bytes, form: Form, function: Function, *, as_written: bool = False
) -> msgspec.Raw:
    """Return the message for a function, as msgpack.

    With `as_written`, without the defaults that its type fills in, wherever that says the same:
    they may differ each time, and it would not be seen that a request is repeated.

    400 if the body is no JSON or msgpack at all, `PayloadError` if it does not fit the function.
    """
    codec = function.message_codec
    try:
        message = codec.decode_json(body) if form == "json" else codec.decode(body)
        if as_written:
            with suppress(PayloadError, EncodeError):
                # In JSON, some types are texts that they are not in msgpack.
                written = body if form == "msgpack" else _ANY.encode(msgspec.json.decode(body))
                codec.decode(written)
                return msgspec.Raw(written)
        return msgspec.Raw(codec.encode(message))
    except EncodeError as error:
        # JSON knows larger numbers than msgpack.
        raise PayloadError(str(error)) from None
    except PayloadError:
        # A decoder stops at the first thing that it does not like, which may be the type.
        _check_well_formed(body, form)
        raise


def _check_well_formed(body: bytes, form: Form) -> None:
    try:
        (msgspec.json.decode if form == "json" else msgspec.msgpack.decode)(body)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        name = "JSON" if form == "json" else "msgpack"
        text = "nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise HttpProblemError("malformed_body", f"the body is not valid {name}: {text}") from None


def encoded(value: object, form: Form) -> bytes:
    """Return a value in its form; `EncodeError` if JSON has none for it."""
    if form == "msgpack":
        return _ANY.encode(value)
    try:
        return msgspec.json.encode(value)
    except (TypeError, ValueError, RecursionError) as error:
        raise EncodeError(
            f"JSON cannot represent the value ({error}); ask for {MSGPACK_TYPE}"
        ) from None
