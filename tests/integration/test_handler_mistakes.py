"""What a handler does wrong is its own error, whoever asks and in whatever form it is written:
its caller is told the function, the key and the line, and nothing of it has happened."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import httpx
import pytest
from typer.testing import CliRunner

from sublet import Client, HandlerError, RejectedError
from sublet.runtime.cli.main import cli
from sublet.runtime.links.grpc_link import UnaryClient
from sublet.runtime.protocol.rpc import RecordEntry, RecordsRequest
from tests.integration import mistaken_app
from tests.integration.cluster import Cluster, running_cluster, until
from tests.ports import free_ports

APP = "tests.integration.mistaken_app:app"
FILE = "tests/integration/mistaken_app.py"
LINES = Path(mistaken_app.__file__).read_text().splitlines()
FORMS = ("plain", "at_once", "awaits", "in_thread", "in_batch", "by_key")
REPLIES = {
    "reply": "cannot be its reply: cannot encode a value of type object",
    "reply type": r"cannot be its reply: the value does not fit int: Expected `int`, got `str`",
    "reply range": "cannot be its reply: cannot encode an int",
}
MISTAKES = {
    "emit": "raised EncodeError: cannot encode a value of type object",
    "send": "raised EncodeError: cannot encode a value of type object",
    "send type": "raised PayloadError: mistaken/target does not take this message",
    "send type by name": "raised PayloadError: mistaken/target does not take this message",
    "send many": "raised PayloadError: mistaken/target does not take this message",
    "send after": "raised PayloadError: mistaken/target does not take this message",
    "key": "raised KeyRejectedError: a key is a str, not int",
    "unknown": "raised UnknownFunctionError: there is no function 'mistaken/nobody'",
    "state type": "raised StateTypeError: the state is declared as str, not int",
    "state size": "raised StateTooLargeError: the state would take",
    "raise": "raised ZeroDivisionError: integer division or modulo by zero",
}
OF_ONE_FORM = {
    "call": ("plain", "raised RejectedError: mistaken/plain is a plain `def`"),
    "call type": ("awaits", "raised PayloadError: mistaken/target does not take this message"),
}
MADE = [
    *[(form, mistake, text) for form in FORMS for mistake, text in (MISTAKES | REPLIES).items()],
    *[(form, mistake, text) for mistake, (form, text) in OF_ONE_FORM.items()],
]


def line_of(mark: str) -> int:
    """Return the line that ends with a comment."""
    (found,) = [at for at, line in enumerate(LINES, 1) if line.endswith(f"# {mark}")]
    return found


def check(text: str, form: str, mistake: str, expected: str, key: str) -> None:
    """An error says what is wrong, and where."""
    place = line_of(form) - 1 if mistake in REPLIES else line_of(mistake)
    assert re.search(expected, text), text
    assert text.startswith(f"mistaken/{form} "), text
    assert text.endswith(f"(key '{key}', {FILE}:{place})"), text


(HTTP_PORT,) = free_ports(1)


@pytest.fixture(scope="module")
def worker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    settings = {"state_bytes_max": mistaken_app.STATE_BYTES_MAX, "http_port": HTTP_PORT}
    cluster = Cluster(APP, tmp_path_factory.mktemp("worker"), settings)
    try:
        asyncio.run(cluster.start(1))
        yield cluster
    finally:
        cluster.close()


HTTP = f"http://127.0.0.1:{HTTP_PORT}"


async def test_a_client_is_told_what_a_handler_of_any_form_did_wrong_and_where(
    worker: Cluster,
) -> None:
    async with worker.client() as client:
        for form, mistake, expected in MADE:
            key = f"client {mistake}"
            with pytest.raises(HandlerError) as raised:
                await client.call(f"mistaken/{form}", key, mistake)
            check(str(raised.value), form, mistake, expected, key)
            async with client.snapshot(f"mistaken/{form}", keys=[key]) as states:
                assert [each async for each in states] == [], (form, mistake)
    assert await worker.egress("seen") == []


async def test_a_message_that_is_sent_becomes_a_dead_letter_with_the_traceback(
    worker: Cluster,
) -> None:
    sent = [each for each in MADE if each[1] not in REPLIES]
    async with worker.client() as client, UnaryClient(worker.workers[0].address) as unary:
        for form, mistake, _ in sent:
            await client.send(f"mistaken/{form}", f"sent {mistake}", mistake)
        letters: dict[tuple[str, str], RecordEntry] = {}

        async def all_died() -> bool:
            page = await unary.list_records(RecordsRequest(kind="dead", limit=500))
            letters.update({(each.function, each.key): each for each in page.entries})
            return len(letters) == len(sent)

        await until(all_died)
        for form, mistake, expected in sent:
            listed = letters[f"mistaken/{form}", f"sent {mistake}"]
            assert listed.error is not None
            check(listed.error.message, form, mistake, expected, f"sent {mistake}")
            assert listed.traceback == ""
            page = await unary.list_records(RecordsRequest(kind="dead", id=listed.id))
            shown = page.entries[0].traceback
            assert f'{FILE}", line {line_of(mistake)}, in ' in shown, shown
            assert LINES[line_of(mistake) - 1].strip() in shown, shown
            assert shown.splitlines()[-1].split(": ")[0].endswith("Error"), shown


async def test_replies_of_messages_that_are_sent_are_dropped_unseen(worker: Cluster) -> None:
    async with worker.client() as client:
        for form in FORMS:
            for mistake in REPLIES:
                key = f"dropped {mistake}"
                await client.send(f"mistaken/{form}", key, mistake)
                assert await client.call(f"mistaken/{form}", key, "no mistake") == 1


async def test_http_answers_with_500_and_the_command_line_ends_with_1(worker: Cluster) -> None:
    address = worker.workers[0].address
    async with httpx.AsyncClient(base_url=HTTP) as http:
        for mistake, expected in {**MISTAKES, **REPLIES, "call": OF_ONE_FORM["call"][1]}.items():
            key = f"ways {mistake}"
            answer = await http.post(f"/functions/mistaken/plain/{quote(key)}", json=mistake)
            assert answer.status_code == 500, (mistake, answer.text)
            check(answer.json()["detail"], "plain", mistake, expected, key)
            command = ["call", "plain", key, json.dumps(mistake), "--connect", address]
            ended = await asyncio.to_thread(CliRunner().invoke, cli, command)
            assert ended.exit_code == 1, (mistake, ended.output)
            text = ended.stderr.strip().removeprefix("error: ")
            check(text, "plain", mistake, expected, key)


async def test_what_a_handler_refuses_on_purpose_is_told_as_it_is(worker: Cluster) -> None:
    async with (
        worker.client() as client,
        httpx.AsyncClient(base_url=HTTP) as http,
    ):
        for function in ("refuse", "ask"):
            with pytest.raises(RejectedError, match=r"^sold out$") as raised:
                await client.call(f"mistaken/{function}", "a", "sold out")
            assert type(raised.value) is RejectedError
            answer = await http.post(f"/functions/mistaken/{function}/a", json="sold out")
            assert (answer.status_code, answer.json()["detail"]) == (422, "sold out")


async def test_each_mistake_is_logged_once_with_its_traceback(worker: Cluster) -> None:
    async with worker.client() as client:
        for mistake in [*MISTAKES, *MISTAKES]:
            with pytest.raises(HandlerError):
                await client.call(mistaken_app.plain, "logged", mistake)
    lines = [json.loads(each) for each in worker.log_path.read_text().splitlines()]
    failed = [each for each in lines if each["event"] == "a handler failed"]
    for mistake in MISTAKES:
        place = f"{FILE}:{line_of(mistake)})"
        told = [
            each
            for each in failed
            if each["function"] == "mistaken/plain" and each["error"].endswith(place)
        ]
        with_traceback = [each for each in told if "stack" in each]
        assert len(with_traceback) == 1, (mistake, told)
        assert LINES[line_of(mistake) - 1].strip() in with_traceback[0]["stack"]


async def test_a_dead_letter_is_shown_with_its_traceback(worker: Cluster) -> None:
    address = worker.workers[0].address
    async with worker.client() as client, UnaryClient(address) as unary:
        await client.send(mistaken_app.plain, "shown", "raise")
        found: list[RecordEntry] = []

        async def died() -> bool:
            page = await unary.list_records(RecordsRequest(kind="dead", limit=500))
            found[:] = [each for each in page.entries if each.key == "shown"]
            return bool(found)

        await until(died)
    letter = found[0].id
    command = ["dead", "show", letter, "--connect", address]
    shown = await asyncio.to_thread(CliRunner().invoke, cli, command)
    assert shown.exit_code == 0
    assert "Traceback (most recent call last):\n" in shown.stdout
    assert "    return 1 // 0  # raise\n" in shown.stdout
    as_json = await asyncio.to_thread(CliRunner().invoke, cli, [*command, "--json"])
    traceback = json.loads(as_json.stdout)["traceback"]
    async with httpx.AsyncClient(base_url=HTTP) as http:
        answer = await http.get(f"/dead/{quote(letter, safe='')}")
        assert answer.status_code == 200, answer.text
        assert answer.json()["traceback"] == traceback
        assert answer.json()["key"] == "shown"
        listed = (await http.get("/dead", params={"function": "mistaken/plain"})).json()
        assert letter in [each["id"] for each in listed["dead"]]
        assert not any("traceback" in each for each in listed["dead"])
        assert (await http.get("/dead/mistaken%2Fplain%2F0%23none%3A1")).status_code == 404
        assert (await http.get("/dead/nonsense")).status_code == 422


async def test_the_mistakes_of_lent_messages_are_told_as_those_at_home(tmp_path: Path) -> None:
    settings = {"binding": "accept-and-check"}
    async with (
        asyncio.timeout(200),
        running_cluster(tmp_path, 2, app=APP, **settings) as cluster,
        cluster.client() as client,
        UnaryClient(cluster.workers[0].address) as unary,
    ):
        for function, ending in (
            (mistaken_app.lent, f"{FILE}:{line_of('lent')})"),
            (mistaken_app.lent_reply, f"{FILE}:{line_of('lent_reply') - 1})"),
        ):
            pids: set[str] = set()
            while len(pids) < 2 and function is mistaken_app.lent:
                pids |= await _failed_at(client, function.name, ending)
            await _failed_at(client, function.name, ending)
        await client.send_many(mistaken_app.lent, [f"key{n}" for n in range(60)], [1] * 60)
        letters: list[RecordEntry] = []

        async def all_died() -> bool:
            page = await unary.list_records(RecordsRequest(kind="dead", limit=500))
            letters[:] = page.entries
            return len(letters) == 60

        await until(all_died)
        ran = {_pid(each.error.message) for each in letters if each.error is not None}
        shown = [
            (await unary.list_records(RecordsRequest(kind="dead", id=each.id))).entries[0]
            for each in letters
        ]
    by_pid = {
        pid: [each.traceback for each in shown if each.error and _pid(each.error.message) == pid]
        for pid in ran
    }
    for pid, tracebacks in by_pid.items():
        kept = [each for each in tracebacks if each]
        assert kept, (pid, len(tracebacks))
        assert all(LINES[line_of("lent") - 1].strip() in each for each in kept)


async def _failed_at(client: Client, function: str, ending: str) -> set[str]:
    """Let many fail; return which processes they failed in."""
    keys = [f"key{number}" for number in range(60)]
    errors = await client.call_many(function, keys, [1] * 60, return_errors=True)
    for key, error in zip(keys, errors, strict=True):
        assert isinstance(error, HandlerError), error
        assert str(error).endswith(f"(key '{key}', {ending}"), error
    async with client.snapshot(function) as states:
        assert [each async for each in states] == []
    return {_pid(str(each)) for each in errors} - {""}


def _pid(text: str) -> str:
    found = re.search(r"nobody(\d+)", text)
    return "" if found is None else found[1]
