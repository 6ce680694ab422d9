"""What a function was deployed with, as CreateFunction and its kin say it."""

from __future__ import annotations

import msgspec

# What AWS does unless told otherwise.
RETRIES = 2
EVENT_AGE_S = 21_600


class FunctionSettings(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    role: str
    handler: str
    runtime: str
    sha256: str
    """Of the zip, in base64."""
    code_bytes: int
    timeout_s: int = 3
    memory_mb: int = 128
    variables: dict[str, str] = {}
    architectures: tuple[str, ...] = ("x86_64",)
    vpc: dict[str, list[str]] = {}
    tags: dict[str, str] = {}
    description: str = ""
    retries: int = RETRIES
    """Of events that failed."""
    event_age_s: int = EVENT_AGE_S
    """How old an event may become before it is dropped."""
