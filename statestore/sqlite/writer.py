"""The one thread of a store that writes: commits before acquisitions before folding."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

import structlog

from sublet.functions.address import split_partition_name
from sublet.functions.errors import SubletError, UnavailableError
from sublet.statestore.contract import Commit, Outcome, StoreReplacedError, Trouble
from sublet.statestore.sqlite import tables
from sublet.statestore.sqlite.file import (
    StoreFileError,
    StoreLock,
    abandon,
    open_database,
    store_error,
    transaction,
)
from sublet.statestore.sqlite.fold import Checkpointer, Folder, FoldPolicy, Owned
from sublet.statestore.sqlite.identity import StoreFiles, begin_checkpoint, end_checkpoint

log = structlog.get_logger(__name__)

# Of one statement: six parameters a commit, SQLite allows 32,766.
GROUP_COMMITS_MAX = 1024
# What binding parameters raises for a commit that no table can hold.
IMPOSSIBLE_VALUE = (
    OverflowError,
    sqlite3.DataError,
    sqlite3.IntegrityError,
    sqlite3.InterfaceError,
    sqlite3.ProgrammingError,
)

# One statement is a whole transaction: each call into SQLite gives the interpreter lock away, and
# beside a busy event loop getting it back is what costs.
COMMIT_TRIGGER = """
CREATE TEMP VIEW step AS
    SELECT '' AS name, 0 AS epoch, 0 AS idx, x'' AS commit_id, 0 AS clock_ms, x'' AS blob;
CREATE TEMP TRIGGER apply_step INSTEAD OF INSERT ON step BEGIN
    INSERT INTO changelog (partition, idx, blob)
        SELECT id, new.idx, new.blob FROM partition
        WHERE name = new.name AND epoch = new.epoch AND idx = new.idx - 1;
    UPDATE partition SET idx = new.idx, commit_id = new.commit_id, clock_ms = new.clock_ms
        WHERE name = new.name AND epoch = new.epoch AND idx = new.idx - 1;
END;
"""
CHANGES_PER_COMMIT = 2
STEP_WIDTH = 6
BREATH_S = 0.0002
# Somebody who reads at that moment keeps a log from being moved.
SAVE_TRIES_MAX = 50
SAVE_AGAIN_S = 0.01


class Reply:
    """Hands the result of the writer thread to the coroutine that awaits `future`."""

    __slots__ = ("_loop", "future")

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.future: asyncio.Future[Any] = self._loop.create_future()

    def send(self, result: object) -> None:
        """Wake the coroutine; an exception as result is raised there."""
        try:
            self._loop.call_soon_threadsafe(self._set, result)
        except RuntimeError:
            # The loop was closed meanwhile: nobody waits any more.
            return

    def _set(self, result: object) -> None:
        if self.future.done():
            return
        if isinstance(result, BaseException):
            self.future.set_exception(result)
        else:
            self.future.set_result(result)


@dataclass(slots=True)
class CommitJob:
    commits: Sequence[Commit]
    parameters: list[Any]
    """Of the statement: STEP_WIDTH for each commit, the packed commit last."""
    reply: Reply


@dataclass(slots=True)
class AcquireJob:
    partition: str
    worker: str
    reply: Reply


@dataclass(slots=True)
class FoldJob:
    """Fold all that was committed before; `last` also ends the writer."""

    reply: Reply
    last: bool = False


@dataclass(slots=True)
class SettleJob:
    """Say when everything that was committed before can be read here."""

    reply: Reply


Job = CommitJob | AcquireJob | FoldJob | SettleJob


def tell_refused(commit: Commit, error: Exception) -> None:
    log.error("commit_refused", partition=commit.partition, error=str(error))


class Writer:
    """The thread that writes, and the order in which it does its work."""

    def __init__(
        self,
        path: Path,
        connection: sqlite3.Connection,
        files: StoreFiles,
        owned: dict[str, Owned],
        policy: FoldPolicy,
        full_sync: bool,
    ) -> None:
        self._full_sync = full_sync
        self._jobs: SimpleQueue[Job] = SimpleQueue()
        self._path = path
        self._connection = connection
        self._owned = owned
        self._policy = policy
        self._files = files
        self._lock = StoreLock(path, files)
        self._checkpointer = Checkpointer(
            path, open_database(path, full_sync=full_sync), files, policy.wal_bytes_max
        )
        self._folder = Folder(connection, owned, policy, self._checkpointer.add)
        self._failing = False
        self._commits_fail: tuple[float, str] | None = None
        """Since when, and why; the loop reads it, too."""
        self._is_closed = False
        self._ended = False
        self.replaced: StoreReplacedError | None = None
        """Set once the files are not those that were opened any more: nothing is written since."""
        connection.executescript(COMMIT_TRIGGER)
        # A daemon, because a lock held by a stopped process must not keep this one from exiting.
        self._thread = threading.Thread(target=self._run, name="store-writer", daemon=True)
        self._thread.start()

    def put(self, job: Job) -> None:
        """Have a job done; its reply comes to the loop on which it was made."""
        if self._ended:
            raise RuntimeError("the store is closed")
        self._jobs.put(job)

    @property
    def rows_folded(self) -> int:
        return self._folder.rows_written

    def _run(self) -> None:
        try:
            self._work()
        except StoreReplacedError as error:
            self._refuse_all(error)
        finally:
            # Also after a defect: a caller must not wait for a thread that is gone.
            self._ended = True
            while not self._jobs.empty():
                self._jobs.get().reply.send(RuntimeError("the store is closed"))

    def _work(self) -> None:
        commits: list[CommitJob] = []
        acquires: list[AcquireJob] = []
        folds: list[FoldJob] = []
        try:
            while not self._is_closed:
                self._sort(commits, acquires, folds)
                if commits:
                    self._commit(commits)
                    commits.clear()
                if acquires:
                    self._acquire(acquires)
                    acquires.clear()
                if folds:
                    self._fold_for(folds)
                    folds.clear()
                if not self._is_closed:
                    self._work_in_background()
        except StoreReplacedError:
            # They are refused; of those that were answered already, nobody hears.
            unanswered: list[Job] = [*commits, *acquires, *folds]
            for job in unanswered:
                self._jobs.put(job)
            raise

    def _sort(
        self, commits: list[CommitJob], acquires: list[AcquireJob], folds: list[FoldJob]
    ) -> None:
        """Take the jobs that wait, each to its like."""
        for job in self._take():
            if isinstance(job, CommitJob):
                commits.append(job)
            elif isinstance(job, AcquireJob):
                acquires.append(job)
            elif isinstance(job, FoldJob):
                folds.append(job)
            else:
                # What this thread has committed, it has remembered before it took more.
                job.reply.send(None)

    def _fold_for(self, jobs: list[FoldJob]) -> None:
        self._fold_all()
        if any(job.last for job in jobs):
            self._close()
            self._is_closed = True
        for job in jobs:
            job.reply.send(None)

    def _refuse_all(self, error: StoreReplacedError) -> None:
        """Answer every job with the reason why there will be no more commits, until the end."""
        self.replaced = error
        log.error("store_replaced", path=str(self._path), problem=str(error))
        self._save_log()
        while True:
            job = self._jobs.get()
            if isinstance(job, FoldJob):
                # What is not folded is in the changelog.
                job.reply.send(None)
                if job.last:
                    self._checkpointer.close(is_replaced=True)
                    abandon(self._connection)
                    return
            else:
                job.reply.send(error)

    def _save_log(self) -> None:
        """Bring what was committed into the database, if only its log was deleted: it is open here,
        and whoever opens the database next has another."""
        try:
            with self._lock.unchecked():
                if not self._files.can_be_saved():
                    return
                begin_checkpoint(self._connection)
                for _ in range(SAVE_TRIES_MAX):
                    (frames,) = self._connection.execute("PRAGMA wal_checkpoint(PASSIVE)")
                    if frames[1] == frames[2]:
                        end_checkpoint(self._connection, frames)
                        return
                    time.sleep(SAVE_AGAIN_S)
        except (sqlite3.Error, OSError, SubletError):
            log.exception("log_not_saved", path=str(self._path))

    def _take(self) -> Iterator[Job]:
        """Yield the jobs that wait; block for one while there is nothing to do beside."""
        wait_s = self._folder.wait_s()
        if wait_s is not None:
            # At least a breath: the event loop was just woken and wants the interpreter lock,
            # which a thread that goes on computing gives up only every five milliseconds.
            wait_s = max(wait_s, BREATH_S)
        try:
            yield self._jobs.get(timeout=wait_s)
            # Bounded, because new jobs may come as fast as these are taken.
            for _ in range(GROUP_COMMITS_MAX):
                yield self._jobs.get_nowait()
        except Empty:
            return

    def _work_in_background(self) -> None:
        """Do a little of the fold; more of it the larger the backlog is."""
        steps = self._folder.steps_before_waiting_jobs()
        if steps == 0 and self._jobs.empty():
            steps = 1
        try:
            while steps > 0 and self._folder.wait_s() == 0:
                self._fold_step()
                steps = min(steps - 1, self._folder.steps_before_waiting_jobs())
        except (sqlite3.Error, UnavailableError) as error:
            self._note_failure(error)
            self._folder.start_again_later()
        self._checkpointer.start_if_due()

    def _commit(self, jobs: list[CommitJob]) -> None:
        start = 0
        while start < len(jobs):
            group = [jobs[start]]
            count = len(group[0].commits)
            for job in jobs[start + 1 :]:
                count += len(job.commits)
                if count > GROUP_COMMITS_MAX:
                    break
                group.append(job)
            start += len(group)
            self._commit_or_say_why(group)

    def _commit_or_say_why(self, group: list[CommitJob]) -> None:
        try:
            self._commit_group(group)
        except IMPOSSIBLE_VALUE as error:
            # Sending it again cannot help, so its owner must hear of it; the others go on.
            if len(group) > 1:
                for job in group:
                    self._commit_or_say_why([job])
            elif len(group[0].commits) > 1:
                group[0].reply.send(self._commit_singly(group[0]))
            else:
                (commit,) = group[0].commits
                tell_refused(commit, error)
                group[0].reply.send([Outcome.REFUSED])
        except (sqlite3.Error, UnavailableError) as error:
            self._note_failed_commit(error)
            for job in group:
                job.reply.send([Outcome.UNKNOWN] * len(job.commits))

    def _commit_singly(self, job: CommitJob) -> list[Outcome]:
        """Do those commits of a job that are possible, each in a transaction of its own."""
        outcomes: list[Outcome] = []
        for number, commit in enumerate(job.commits):
            start = number * STEP_WIDTH
            try:
                outcomes += self._apply([commit], job.parameters[start : start + STEP_WIDTH])
            except IMPOSSIBLE_VALUE as error:
                tell_refused(commit, error)
                outcomes.append(Outcome.REFUSED)
            except (sqlite3.Error, UnavailableError) as error:
                self._note_failed_commit(error)
                outcomes.append(Outcome.UNKNOWN)
        return outcomes

    def _commit_group(self, group: list[CommitJob]) -> None:
        commits = [each for job in group for each in job.commits]
        outcomes = self._apply(commits, [each for job in group for each in job.parameters])
        start = 0
        for job in group:
            end = start + len(job.commits)
            job.reply.send(outcomes[start:end])
            start = end

    def _apply(self, commits: list[Commit], parameters: list[Any]) -> list[Outcome]:
        """Do commits in one transaction, all that can be done."""
        with self._lock:
            applied = self._insert_steps(len(commits), parameters)
            if applied == len(commits):
                outcomes = [Outcome.DONE] * applied
            else:
                # Still under the lock: the newest rows of the changelog are those just applied.
                outcomes = self._classify(commits, applied)
            # Whoever is told that it is done must find it where others look.
            self._files.check_names()
        self._failing = False
        self._commits_fail = None
        blobs = parameters[STEP_WIDTH - 1 :: STEP_WIDTH]
        self._checkpointer.add(applied, sum(map(len, blobs)))
        self._remember(commits, outcomes, blobs)
        return outcomes

    def _insert_steps(self, count: int, parameters: list[Any]) -> int:
        """Apply those commits that are next in their partitions; return how many were."""
        connection = self._connection
        before = connection.total_changes
        if count <= GROUP_COMMITS_MAX:
            rows = ",".join(["(?,?,?,?,?,?)"] * count)
            connection.execute(f"INSERT INTO step VALUES {rows}", parameters)
        else:
            with transaction(connection):
                connection.executemany(
                    "INSERT INTO step VALUES (?,?,?,?,?,?)",
                    (
                        parameters[start : start + STEP_WIDTH]
                        for start in range(0, len(parameters), STEP_WIDTH)
                    ),
                )
        return (connection.total_changes - before) // CHANGES_PER_COMMIT

    def _classify(self, commits: list[Commit], applied: int) -> list[Outcome]:
        connection = self._connection
        just_applied = set(
            connection.execute(
                "SELECT name, changelog.idx FROM changelog"
                " JOIN partition ON partition.id = changelog.partition"
                " ORDER BY seq DESC LIMIT ?",
                (applied,),
            ).fetchall()
        )
        outcomes: list[Outcome] = []
        for commit in commits:
            stored = connection.execute(
                "SELECT epoch, idx, commit_id FROM partition WHERE name = ?", (commit.partition,)
            ).fetchone()
            if stored is None or stored[0] != commit.epoch:
                outcomes.append(Outcome.FENCED)
            elif (commit.partition, commit.index) in just_applied:
                # Only its first occurrence: it may have been sent twice at the same time.
                just_applied.remove((commit.partition, commit.index))
                outcomes.append(Outcome.DONE)
            elif stored[1:] == (commit.index, commit.id):
                outcomes.append(Outcome.DUPLICATE)
            else:
                outcomes.append(Outcome.GAP)
        return outcomes

    def _remember(self, commits: list[Commit], outcomes: list[Outcome], blobs: list[bytes]) -> None:
        """Let reads and folds see what was committed."""
        count = size_bytes = 0
        for commit, outcome, blob in zip(commits, outcomes, blobs, strict=True):
            owned = self._owned.get(commit.partition)
            if owned is None or owned.epoch != commit.epoch:
                continue
            if outcome is Outcome.FENCED:
                # Its rows belong to the new owner's fold, and reads go to the file again.
                del self._owned[commit.partition]
            elif outcome in (Outcome.DONE, Outcome.DUPLICATE) and commit.index > owned.index:
                # Packed: as objects, they would keep the garbage collector busy.
                owned.pending.append(blob)
                # Last, because it tells readers that the rest is there.
                owned.index = commit.index
                count += 1
                size_bytes += len(blob)
        self._folder.add(count, size_bytes)

    def _acquire(self, jobs: list[AcquireJob]) -> None:
        connection = self._connection
        try:
            with self._lock, transaction(connection):
                acquired = [self._acquire_one(job) for job in jobs]
            for owned in acquired:
                self._owned[owned.name] = owned
            self._failing = False
            for job, owned in zip(jobs, acquired, strict=True):
                recovered = tables.read_recovered(connection, owned.id, owned.epoch)
                owned.index = recovered.index
                job.reply.send(recovered)
        except (sqlite3.Error, StoreFileError, UnavailableError) as error:
            failure = self._note_failure(error)
            for job in jobs:
                job.reply.send(failure)

    def _acquire_one(self, job: AcquireJob) -> Owned:
        """Raise the epoch, then fold what former owners left, in the caller's transaction."""
        connection = self._connection
        function, _ = split_partition_name(job.partition)
        ((partition, epoch, index),) = connection.execute(
            "INSERT INTO partition VALUES (NULL, ?, ?, 1, 0, x'', 0, 0, ?)"
            " ON CONFLICT (name) DO UPDATE SET epoch = epoch + 1, owner = excluded.owner"
            " RETURNING id, epoch, idx",
            (job.partition, function, job.worker),
        ).fetchall()
        delta = tables.unfolded(connection, partition)
        if delta is not None:
            for statement in tables.write_statements(partition, delta):
                connection.execute(statement.sql, statement.parameters)
            connection.execute("DELETE FROM changelog WHERE partition = ?", (partition,))
        return Owned(job.partition, partition, epoch, index)

    def _fold_step(self) -> None:
        """Do a step of the fold, never with a full sync.

        A power failure may lose it. The deletion of the changelog rows that it was made of comes
        later in the same log, so it is lost too, and they are folded again.
        """
        if not self._full_sync:
            self._folder.step(self._lock)
            return
        self._connection.execute("PRAGMA synchronous = NORMAL")
        try:
            self._folder.step(self._lock)
        finally:
            self._connection.execute("PRAGMA synchronous = FULL")

    def _fold_all(self) -> None:
        try:
            while self._folder.has_work():
                self._fold_step()
        except (sqlite3.Error, UnavailableError) as error:
            # What is not folded is in the changelog: nothing is lost.
            self._note_failure(error)
            self._folder.start_again_later()

    def _note_failure(self, error: sqlite3.Error | SubletError) -> SubletError:
        failure = error if isinstance(error, SubletError) else store_error(error, self._path)
        # Once a spell: the caller sends again and again until it works.
        if not self._failing:
            log.error("the store is failing", path=str(self._path), error=str(failure))
        self._failing = True
        return failure

    def _note_failed_commit(self, error: sqlite3.Error | SubletError) -> None:
        since_s = time.monotonic() if self._commits_fail is None else self._commits_fail[0]
        self._commits_fail = (since_s, str(self._note_failure(error)))

    def trouble(self) -> Trouble | None:
        """Return for how long commits have been failing, and why; None if the last was done."""
        failing = self._commits_fail
        return None if failing is None else Trouble(time.monotonic() - failing[0], failing[1])

    def _close(self) -> None:
        try:
            self._checkpointer.finish()
        except (sqlite3.Error, UnavailableError) as error:
            self._note_failure(error)
        self._checkpointer.close()
        self._connection.close()
        self._lock.close()
