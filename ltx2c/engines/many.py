"""Several results of one base, from one reading of it.

A block of the base is read once. For each result it is copied and fused in the copy, and all copies are written at the
same time. A result that is refused, or cannot be written, is left out from there on; the others go on.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from ltx2c.crew import Crew
from ltx2c.engines.blocks import Block, buffer_bytes, cut_into_blocks, read_block
from ltx2c.engines.fuser import Fused, Fuser
from ltx2c.engines.joint import JointWeight, Products, joint_work
from ltx2c.engines.nonfinite import Nonfinite
from ltx2c.engines.pipeline import BLOCK_BYTES, BUFFERS, Steps, run_pipeline, split_threads
from ltx2c.engines.report import FuseReport, outline
from ltx2c.engines.weights import WeightInWork, Work, work_of
from ltx2c.engines.writing import ResultWriter, write_beside
from ltx2c.errors import RefusedError
from ltx2c.files.buffers import new_buffer
from ltx2c.files.layout import FileLayout, OutputLayout
from ltx2c.files.places import AnyDestination, AnyStaged, stage_at
from ltx2c.files.staging import publish
from ltx2c.plan.opened import OpenedPlan, Sources
from ltx2c.progress import OnProgress, Tracker
from ltx2c.threads import resolve_threads

# Most that the buffers of all results take, but for what a single row of a weight needs.
BUFFERS_BYTES = 320 << 20
_SMALLEST_BLOCK = 1 << 20
_MOST_WRITERS = 8

Outcome = FuseReport | RefusedError | OSError
"""What became of one result."""


class Target(NamedTuple):
    """A result to be made: its plan, where its bytes lie, where it goes, and what a person should know of that."""

    opened: OpenedPlan
    layout: OutputLayout
    destination: AnyDestination
    notes: tuple[str, ...] = ()


def write_many(
    targets: Sequence[Target],
    sources: Sources,
    *,
    threads: int | None = None,
    allow_nonfinite: bool = False,
    progress: OnProgress | None = None,
) -> list[Outcome]:
    """Write several results of one base, each whole or not at all, and publish each when it is done.

    Args:
        targets: of one base, by one arithmetic, their tensors sharded alike.
        sources: the base and the adapters of all of them.
        threads, allow_nonfinite, progress: as for ``write_fused``.

    Returns:
        Per target, its report, or what it was refused for or failed with.

    Raises:
        OSError, RefusedError: of the base, which is everybody's.
    """
    if not targets:
        return []
    began = time.perf_counter()
    count = resolve_threads(threads)
    results = [_Result(target, began, allow_nonfinite) for target in targets]
    sources.base.check_unchanged()
    with contextlib.ExitStack() as stack:
        for result in results:
            with result.trying():
                result.begin(stack, count)
        begun = [result for result in results if result.is_going_on]
        if begun:
            _Maker(begun, sources, count, progress).run()
            sources.base.check_unchanged()
        for result in begun:
            if result.is_going_on:
                with result.trying():
                    result.publish()
    return [result.outcome for result in results]


@dataclass
class _Result:
    """One result in the making."""

    target: Target
    began: float
    allow_nonfinite: bool
    problem: RefusedError | OSError | None = None
    report: FuseReport | None = None
    _own: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)
    staged: AnyStaged = field(init=False)
    writer: ResultWriter = field(init=False)
    work: Work = field(init=False)

    @property
    def is_going_on(self) -> bool:
        return self.problem is None

    @property
    def outcome(self) -> Outcome:
        done = self.problem or self.report
        assert done is not None
        return done

    @contextlib.contextmanager
    def trying(self) -> Iterator[None]:
        """Keep what goes wrong in the block as this result's own problem, and remove what there is of it."""
        try:
            yield
        except (RefusedError, OSError) as error:
            self.problem = error
            self._own.close()

    def begin(self, stack: contextlib.ExitStack, threads: int) -> None:
        opened, layout, destination, notes = self.target
        known = outline(opened.plan, destination.path, threads)
        self.known = replace(known, notes=(*known.notes, *notes))
        stack.enter_context(self._own)
        self.staged = self._own.enter_context(stage_at(destination))
        nonfinite = Nonfinite(opened.plan.base.path, allowed=self.allow_nonfinite)
        self.work = work_of(opened)
        self.writer = self._own.enter_context(ResultWriter(layout, self.work.written.values(), nonfinite))
        opened.sources.check_unchanged()

    def publish(self) -> None:
        opened, layout, *_ = self.target
        write_beside(layout, self.staged)
        opened.sources.check_unchanged()
        publish(self.staged)
        self.report = FuseReport(
            **vars(self.known) | {"notes": (*self.known.notes, *self.staged.notes)},
            nonfinite=dict(self.writer.nonfinite.counts),
            seconds=time.perf_counter() - self.began,
            loss=self.writer.nonfinite.loss,
        )
        self._own.close()


class _Buffers(NamedTuple):
    """For one block under way: the base's bytes, and a copy for each result."""

    base: memoryview
    copies: list[memoryview]


class _Made(NamedTuple):
    """A block as it is in one result, and what fusing it came to, or why it could not be."""

    block: Block
    fused: Fused | RefusedError | OSError


class _Maker:
    """Makes the blocks of several results, file after file."""

    def __init__(self, results: Sequence[_Result], sources: Sources, threads: int, progress: OnProgress | None) -> None:
        self._results = results
        self._work = joint_work([result.work for result in results], sources.load)
        self._shares = split_threads(threads, together=self._work.goes_twice)
        self._fuser = Fuser(self._work.arithmetic, self._shares, measure=True)
        room = BUFFERS_BYTES // (BUFFERS * (1 + len(results)))
        self._block_bytes = min(self._work.block_bytes(BLOCK_BYTES), max(_SMALLEST_BLOCK, room))
        size = buffer_bytes(self._work.tensors.values(), self._work, self._block_bytes)
        self._buffers = [_Buffers(new_buffer(size), [new_buffer(size) for _ in results]) for _ in range(BUFFERS)]
        plans = [result.target.opened.plan for result in results]
        self._tracker = Tracker(sum(one.bytes_written for one in plans), sum(one.macs for one in plans), progress)

    def run(self) -> None:
        """Write all files of all results that nothing goes wrong with. Raises for the base alone."""
        with Crew(min(_MOST_WRITERS, len(self._results)), "ltx2c-write") as writers:
            for number in range(len(self._results[0].target.layout.files)):
                self._write_file(number, writers)

    def _write_file(self, number: int, writers: Crew) -> None:
        files = {id(result): result.target.layout.files[number] for result in self._results}
        self._everywhere(writers, lambda result, at: self._begin_file(result, files[id(result)], at))
        tensors = self._results[0].target.layout.files[number].tensors
        blocks = run_pipeline(
            cut_into_blocks(tensors, self._work, self._block_bytes),
            Steps(self._read, lambda block, buffers, _: self._fuse(block, buffers, number)),
            buffers=self._buffers,
            workers=len(self._shares),
        )
        with contextlib.closing(blocks):
            for _, buffers, made in blocks:
                self._append(writers, files, buffers, made)
        self._everywhere(writers, lambda result, _: self._end_file(result))

    def _begin_file(self, result: _Result, file: FileLayout, at: int) -> None:
        result.writer.begin(file, result.staged.file(file.name), self._buffers[0].copies[at])

    def _end_file(self, result: _Result) -> None:
        for name in result.writer.end():
            result.staged.complete(name)

    def _append(
        self, writers: Crew, files: Mapping[int, FileLayout], buffers: _Buffers, made: Sequence[_Made | None]
    ) -> None:
        def append(result: _Result, at: int) -> None:
            one = made[at]
            if one is not None:
                if isinstance(one.fused, Exception):
                    raise one.fused
                result.writer.append(files[id(result)], one.block, buffers.copies[at], one.fused)

        self._everywhere(writers, append)
        for result, one in zip(self._results, made, strict=True):
            if one is not None:
                self._tracker.advance(one.block.nbytes, one.block.macs(result.work))

    def _everywhere(self, writers: Crew, call: Callable[[_Result, int], None]) -> None:
        """Call for each result that is going on, all at the same time, and wait."""

        def tried(result: _Result, at: int) -> None:
            with result.trying():
                call(result, at)

        waiting: list[Future[None]] = [
            writers.submit(tried, result, at) for at, result in enumerate(self._results) if result.is_going_on
        ]
        for future in waiting:
            future.result()

    def _read(self, block: Block, buffers: _Buffers) -> None:
        read_block(block, buffers.base)

    def _fuse(self, block: Block, buffers: _Buffers, number: int) -> list[_Made | None]:
        whole = np.frombuffer(buffers.base[block.lead : block.lead + block.nbytes], np.uint8)
        products = self._products(block)
        made: list[_Made | None] = []
        for at, result in enumerate(self._results):
            if not result.is_going_on:
                made.append(None)
                continue
            own = self._own_block(block, at, number)
            failures = [joint.failed[at] for joint in _joint(block) if at in joint.failed]
            if failures:
                made.append(_Made(own, failures[0]))
                continue
            buffer = buffers.copies[at]
            np.copyto(np.frombuffer(buffer[own.lead : own.lead + own.nbytes], np.uint8), whole)
            parts = own.parts(buffer, buffers.base, block)
            if products is not None:
                parts = [part._replace(weight=products.share(part.weight)) for part in parts]
            made.append(_Made(own, self._fuser.fuse(parts)))
        return made

    def _own_block(self, block: Block, at: int, number: int) -> Block:
        """The block as it is in one result: where its header lets it begin, with what is fused there."""
        first, own = (self._results[index].target.layout.files[number] for index in (0, at))
        pieces = [piece._replace(weight=_weight_of(piece.weight, at)) for piece in block.pieces]
        return Block(block.begin + len(own.header) - len(first.header), block.nbytes, pieces)

    def _products(self, block: Block) -> Products | None:
        if not self._work.arithmetic.scales_products:
            return None
        return Products(
            weight
            for joint in _joint(block)
            for at, weight in enumerate(joint.of)
            if weight is not None and at not in joint.failed
        )


def _joint(block: Block) -> list[JointWeight]:
    return [piece.weight for piece in block.pieces if isinstance(piece.weight, JointWeight)]


def _weight_of(weight: WeightInWork | None, at: int) -> WeightInWork | None:
    return weight.of[at] if isinstance(weight, JointWeight) else None
