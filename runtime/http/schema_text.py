"""JSON Schema for people: a type in a few words, and a value that fits it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import msgspec

Json = dict[str, Any]
Components = Mapping[str, Json]

_FORMATS = {
    "date": "2026-01-31",
    "date-time": "2026-01-31T12:00:00Z",
    "decimal": "9.50",
    "duration": "PT1H",
    "email": "ada@example.com",
    "time": "12:00:00",
    "uri": "https://example.com/",
    "uuid": "123e4567-e89b-42d3-a456-426614174000",
}
_NAMES = {"string": "text", "integer": "integer", "number": "number", "boolean": "boolean"}


def reference_name(schema: Json) -> str:
    """Return the component that a schema refers to; empty: none."""
    reference: str = schema.get("$ref", "")
    return reference.rpartition("/")[2].replace("~1", "/").replace("~0", "~")


def type_text(
    schema: Json, link: Callable[[str], str] = str, plain: Callable[[str], str] = str
) -> str:
    """Return a type in a few words.

    `link` makes what is shown of the name of a component, `plain` of all else.
    """
    if name := reference_name(schema):
        return link(name)
    if "const" in schema:
        return plain(_json(schema["const"]))
    if "enum" in schema:
        return plain(" | ".join(map(_json, schema["enum"])))
    for union in ("anyOf", "oneOf", "allOf"):
        if union in schema:
            return " | ".join(type_text(each, link, plain) for each in schema[union])
    kind = schema.get("type")
    if isinstance(kind, list):
        return " | ".join(type_text({**schema, "type": each}, link, plain) for each in kind)
    if kind == "array":
        return _array_text(schema, link, plain)
    if kind == "object":
        return _object_text(schema, link, plain)
    if kind == "null":
        return plain("null")
    return plain(_scalar_text(schema, kind))


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def _scalar_text(schema: Json, kind: Any) -> str:
    detail = schema.get("format") or schema.get("contentEncoding")
    name = _NAMES.get(str(kind), "anything" if kind is None else str(kind))
    return f"{name} ({detail})" if detail else name


def _array_text(schema: Json, link: Callable[[str], str], plain: Callable[[str], str]) -> str:
    if items := schema.get("prefixItems"):
        return (
            plain("[")
            + plain(", ").join(type_text(each, link, plain) for each in items)
            + plain("]")
        )
    item = schema.get("items")
    if not isinstance(item, dict) or not item:
        return plain("list")
    return plain("list of ") + type_text(item, link, plain)


def fields_text(
    schema: Json, components: Components, link: Callable[[str], str], plain: Callable[[str], str]
) -> str:
    """Return the fields of a component that a schema refers to, in one line; empty: it has none."""
    component = components.get(reference_name(schema), {})
    if not (properties := component.get("properties")):
        return ""
    required = component.get("required", ())
    fields = [
        plain(name if name in required else f"{name}?") + ": " + type_text(each, link, plain)
        for name, each in properties.items()
    ]
    return plain("{ ") + ", ".join(fields) + plain(" }")


def _object_text(schema: Json, link: Callable[[str], str], plain: Callable[[str], str]) -> str:
    values = schema.get("additionalProperties")
    if isinstance(values, dict) and values and not schema.get("properties"):
        return plain("{text: ") + type_text(values, link, plain) + plain("}")
    return plain("object")


class _ContainsItselfError(Exception):
    """A value of this type would have no end."""


def example(schema: Json, components: Components) -> Any:
    """Return a value that fits a schema, as far as that can be told."""
    try:
        return _example(schema, components, ())
    except _ContainsItselfError:
        return None


def _example(schema: Json, components: Components, inside: tuple[str, ...]) -> Any:
    """`inside` are the components that contain the value."""
    if name := reference_name(schema):
        if name in inside:
            raise _ContainsItselfError
        return _example(components.get(name, {}), components, (*inside, name))
    for given in ("default", "const"):
        if given in schema:
            return schema[given]
    for several in ("examples", "enum"):
        if values := schema.get(several):
            return values[0]
    for union in ("anyOf", "oneOf", "allOf"):
        if union in schema:
            return _union_example(schema[union], components, inside)
    kind = schema.get("type")
    if isinstance(kind, list):
        kind = next((each for each in kind if each != "null"), "null")
    if kind == "object":
        return _object_example(schema, components, inside)
    if kind == "array":
        return _array_example(schema, components, inside)
    return _scalar_example(schema, kind)


def _union_example(schemas: list[Json], components: Components, inside: tuple[str, ...]) -> Any:
    for each in sorted(schemas, key=lambda each: each.get("type") == "null"):
        try:
            return _example(each, components, inside)
        except _ContainsItselfError:
            continue
    raise _ContainsItselfError


def _object_example(schema: Json, components: Components, inside: tuple[str, ...]) -> Json:
    properties: Json = schema.get("properties", {})
    required = schema.get("required", ())
    made: Json = {}
    for name, each in properties.items():
        # What may be left out is shown only near the surface.
        if name in required:
            made[name] = _example(each, components, inside)
        elif len(inside) < 2:
            with suppress(_ContainsItselfError):
                made[name] = _example(each, components, inside)
    return made


def _array_example(schema: Json, components: Components, inside: tuple[str, ...]) -> list[Any]:
    if items := schema.get("prefixItems"):
        return [_example(each, components, inside) for each in items]
    item = schema.get("items")
    if not isinstance(item, dict):
        return []
    least = schema.get("minItems", 0)
    try:
        return [_example(item, components, inside)] * max(1, least)
    except _ContainsItselfError:
        if least:
            raise
        return []


def _scalar_example(schema: Json, kind: Any) -> Any:
    match kind:
        case "string":
            return _text_example(schema)
        case "integer":
            return int(_number_example(schema))
        case "number":
            return _number_example(schema)
        case "boolean":
            return True
        case _:
            return None


def _text_example(schema: Json) -> str:
    if known := _FORMATS.get(schema.get("format", "")):
        return known
    if schema.get("contentEncoding") == "base64":
        return "aGVsbG8="
    text = "text"
    return text.ljust(schema.get("minLength", 0), "x")[: schema.get("maxLength", len(text) + 99)]


def _number_example(schema: Json) -> float:
    """Return 1, or what is nearest to it among what is allowed."""
    least, most = schema.get("minimum", -1), schema.get("maximum", 1)
    if "exclusiveMinimum" in schema:
        least = schema["exclusiveMinimum"] + 1
    if "exclusiveMaximum" in schema:
        most = schema["exclusiveMaximum"] - 1
    number = max(least, min(1, most))
    multiple = schema.get("multipleOf")
    return float(multiple if multiple and number % multiple else number)
