"""Fusion as the library offers it: kinds of array, layouts, destinations, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from goldens import bits
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.testing._internal.two_tensor import TwoTensor
from values import BF16, DTYPES, values

import ltx2c
from ltx2c import fusion, reference
from ltx2c.errors import RefusedError


def problem(rows=11, columns=37, rank=5, dtype=BF16, seed=0):
    rng = np.random.default_rng(seed)
    weight = values(rng, (rows, columns), "trained", dtype)
    return weight, values(rng, (rank, columns), "trained", BF16), values(rng, (rows, rank), "trained", BF16)


def as_torch(array):
    if array.dtype == BF16:
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def test_returns_a_new_array_and_leaves_the_weight_alone():
    weight, a, b = problem()
    before = weight.copy()
    fused = ltx2c.fuse_tensor(weight, [(a, b, 0.5)])
    assert np.array_equal(bits(fused), bits(reference.fuse_tensor(before, [(a, b, 0.5)])))
    assert np.array_equal(bits(weight), bits(before)) and not np.shares_memory(fused, weight)


def test_in_place_returns_the_weight_itself():
    weight, a, b = problem()
    expected = reference.fuse_tensor(weight, [(a, b, 0.5)])
    assert ltx2c.fuse_tensor(weight, [(a, b, 0.5)], out=weight) is weight
    assert np.array_equal(bits(weight), bits(expected))


@pytest.mark.parametrize("in_place", [False, True])
def test_without_terms_the_result_is_the_weights_bytes(in_place):
    weight = np.array([[0x8000, 0x7FA1, 0xFFFF]], np.uint16).view(BF16)  # -0.0 and NaNs keep their bits
    fused = ltx2c.fuse_tensor(weight, [], out=weight if in_place else None)
    assert bits(fused).tolist() == [[0x8000, 0x7FA1, 0xFFFF]]
    assert np.shares_memory(fused, weight) == in_place


@pytest.mark.parametrize("shape", [(0, 4), (4, 0), (0, 0)])
def test_an_empty_weight_is_no_work(shape):
    weight, a, b = np.empty(shape, BF16), np.ones((2, shape[1]), BF16), np.ones((shape[0], 2), BF16)
    assert ltx2c.fuse_tensor(weight, [(a, b, 1.0)]).shape == shape


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_torch_tensors_are_used_where_they_lie(dtype):
    weight, a, b = problem(dtype=dtype)
    expected = reference.fuse_tensor(weight, [(a, b, 0.5)])
    tensor = as_torch(weight)
    fused = ltx2c.fuse_tensor(tensor, [(as_torch(a), as_torch(b), 0.5)])
    assert isinstance(fused, torch.Tensor) and fused.dtype == tensor.dtype and fused.shape == tensor.shape
    assert ltx2c.fuse_tensor(tensor, [(a, as_torch(b), 0.5)], out=tensor) is tensor
    assert np.array_equal(bits(weight), bits(expected))  # zero-copy: the tensor is the array's memory
    assert torch.equal(fused.view(torch.uint8), tensor.view(torch.uint8))


def test_a_torch_parameter_that_wants_gradients():
    weight, a, b = problem(dtype=np.dtype(np.float32))
    parameter = torch.nn.Parameter(as_torch(weight))
    ltx2c.fuse_tensor(parameter, [(a, b, 1.0)], out=parameter)
    assert parameter.requires_grad and np.shares_memory(parameter.detach().numpy(), weight)


def test_autograd_is_told_of_a_fusion_in_place():
    weight, a, b = problem(dtype=np.dtype(np.float32))
    parameter = torch.nn.Parameter(as_torch(weight))
    loss = (parameter * parameter).sum()
    ltx2c.fuse_tensor(parameter, [(a, b, 1.0)], out=parameter)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()
    with torch.inference_mode():  # such tensors have no version
        ltx2c.fuse_tensor(parameter.clone(), [(a, b, 1.0)])


def test_a_refused_fusion_leaves_a_tensors_version():
    weight, a, b = problem(dtype=np.dtype(np.float32))
    tensor = as_torch(weight)
    with pytest.raises(RefusedError):
        ltx2c.fuse_tensor(tensor, [(a, b, "strong")], out=tensor)
    assert tensor._version == 0


def test_a_new_tensor_is_on_the_cpu_whatever_the_default_device():
    weight, a, b = problem()
    expected = reference.fuse_tensor(weight, [(a, b, 0.5)])
    with torch.device("meta"):
        fused = ltx2c.fuse_tensor(as_torch(weight), [(a, b, 0.5)])
    assert np.array_equal(fused.view(torch.int16).numpy(), expected.view(np.int16))


def test_one_row_is_the_same_memory_whatever_its_stride():
    store, a, b = problem(rows=4)
    expected = reference.fuse_tensor(store[:1], [(a, b[:1], 0.5)])
    ltx2c.fuse_tensor(store[:1], [(a, b[:1], 0.5)], out=store[0:2:2])
    assert np.array_equal(bits(store[:1]), bits(expected))


@pytest.mark.parametrize("step", [-1, 2, -2])
def test_rows_in_any_order(step):
    store, a, b = problem(rows=12)
    expected = reference.fuse_tensor(store[::step], [(a, b[::step], 0.5)])
    ltx2c.fuse_tensor(store[::step], [(a, b[::step], 0.5)], out=store[::step])
    assert np.array_equal(bits(store[::step]), bits(expected))


def test_a_memory_map_is_fused_in_place(tmp_path):
    weight, a, b = problem(dtype=np.dtype(np.float32))
    expected = reference.fuse_tensor(weight, [(a, b, 0.5)])
    weight.tofile(tmp_path / "w")
    mapped = np.memmap(tmp_path / "w", np.float32, "r+", shape=weight.shape)
    ltx2c.fuse_tensor(mapped, [(a, b, 0.5)], out=mapped)
    mapped.flush()
    assert np.array_equal(np.fromfile(tmp_path / "w", np.uint32), bits(expected).ravel())


def test_rows_of_b_may_be_a_block_of_a_larger_one():
    weight, a, b = problem(rows=40)
    expected = reference.fuse_tensor(weight, [(a, b, 0.5)])
    for start in range(0, 40, 16):
        rows = slice(start, start + 16)
        fusion.fuse_jobs([fusion.Job(weight[rows], [(a, b[rows], 0.5)], weight[rows])], threads=2)
    assert np.array_equal(bits(weight), bits(expected))


@pytest.mark.parametrize("which", ["a", "b", "both"])
def test_factors_of_any_layout(which):
    weight, a, b = problem()
    expected = reference.fuse_tensor(weight, [(a, b, 0.5)])
    a = np.asfortranarray(a) if which != "b" else a
    b = np.asfortranarray(b) if which != "a" else b
    assert np.array_equal(bits(ltx2c.fuse_tensor(weight, [(a, b, 0.5)])), bits(expected))


def test_a_column_of_a_matrix_as_a_weight():
    store, a, b = problem(columns=3)
    column = store[:, 1:2]
    expected = reference.fuse_tensor(column, [(a[:, :1], b, 0.5)])
    ltx2c.fuse_tensor(column, [(a[:, :1], b, 0.5)], out=column)
    assert np.array_equal(bits(store[:, 1:2]), bits(expected))


def test_a_single_column_with_a_stride_of_its_own():
    _, a, b = problem(columns=1)
    weight = np.zeros((22, 1), BF16)
    transposed = weight.reshape(1, 22).T[::2]  # strides (4, 44): no layout NumPy would choose, but plain memory
    expected = reference.fuse_tensor(transposed, [(a, b, 0.5)])
    ltx2c.fuse_tensor(transposed, [(a, b, 0.5)], out=transposed)
    assert np.array_equal(bits(weight[::2]), bits(expected)) and not weight[1::2].any()


def test_a_list_of_jobs():
    problems = [problem(rows=5 + i, rank=1 + i % 3, seed=i) for i in range(30)]
    expected = [reference.fuse_tensor(w, [(a, b, 0.5)]) for w, a, b in problems]
    ltx2c.fuse_tensors([(w, [(a, b, 0.5)], w) for w, a, b in problems], threads=2)
    for (weight, _, _), wanted in zip(problems, expected, strict=True):
        assert np.array_equal(bits(weight), bits(wanted))


def test_large_lists_are_cut_where_ctrl_c_can_be_seen(monkeypatch):
    monkeypatch.setattr(fusion, "_BATCH_MACS", 1)
    jobs = [fusion.Job(w, [(a, b, 0.5)], w) for w, a, b in (problem(seed=i) for i in range(3))]
    assert [len(batch) for batch, _ in fusion._batches(jobs)] == [1, 1, 1]
    assert fusion.fuse_jobs(jobs) == [0, 0, 0]


def test_counts_what_stopped_being_finite():
    weight = np.array([[1.0, np.inf, 3e38, 1.0]], BF16)
    a, b = np.array([[np.inf, 1.0, 3e38, 1.0]], BF16), np.ones((1, 1), BF16)
    assert fusion.fuse_jobs([fusion.Job(weight, [(a, b, 1.0)], weight)]) == [2]


# ---- Refusals -----------------------------------------------------------------------------------------------------

OVERLAPPING = np.zeros(200, BF16)


def refusals():
    weight, a, b = problem()
    read_only = weight.copy()
    read_only.flags.writeable = False
    yield "rank-mismatch", weight, [(a[:3], b, 1.0)], None
    yield "shape-mismatch", weight, [(a[:, :36], b, 1.0)], None
    yield "shape-mismatch", weight, [(b.T, a.T, 1.0)], None
    yield "dimensions", weight[0], [], None
    yield "dimensions", weight, [(a[0], b, 1.0)], None
    yield "unsupported-dtype", weight.astype(np.float64), [], None
    yield "unsupported-dtype", weight, [(a.astype(np.float64), b, 1.0)], None
    yield "unsupported-dtype", weight.view(np.uint16), [], None
    yield "unsupported-dtype", weight.astype(np.float32).astype(">f4"), [], None
    yield "unsupported-dtype", weight.astype(bool), [], None
    yield "dimensions", np.zeros((), BF16), [], None
    yield "type", weight[0, 0], [], None
    yield "type", np.ma.masked_array(weight), [], None
    yield "type", weight, [(np.ma.masked_array(a), b, 1.0)], None
    yield "read-only", np.zeros((11, 37), BF16), [], np.broadcast_to(np.zeros(37, BF16), (11, 37))
    yield "type", weight.tolist(), [], None
    yield "type", weight, [(a, None, 1.0)], None
    yield "bad-strength", weight, [(a, b, float("nan"))], None
    yield "bad-strength", weight, [(a, b, float("inf"))], None
    yield "bad-strength", weight, [(a, b, 1e39)], None
    yield "bad-strength", weight, [(a, b, "0.5")], None
    yield "bad-strength", weight, [(a, b, True)], None
    yield "bad-strength", weight, [(a, b, 10**400)], None
    yield "out-mismatch", weight, [], np.zeros((11, 36), BF16)
    yield "out-mismatch", weight, [], np.zeros((11, 37), np.float32)
    yield "read-only", weight, [], read_only
    yield "read-only", read_only, [], read_only
    yield "layout", np.asfortranarray(weight), [], None
    yield "layout", weight, [], np.zeros((37, 11), BF16).T
    yield "overlap", OVERLAPPING[:100].reshape(10, 10), [], OVERLAPPING[50:150].reshape(10, 10)
    yield "overlapping-rows", weight, [], np.lib.stride_tricks.as_strided(OVERLAPPING, (11, 37), (2, 2))
    yield "overlap", np.zeros((5, 37), BF16), [(a, np.zeros((5, 5), BF16), 1.0)], a
    yield "overlap", np.zeros((11, 5), BF16), [(np.zeros((5, 5), BF16), b, 1.0)], b


@pytest.mark.parametrize(("code", "weight", "terms", "out"), list(refusals()))
def test_refuses(code, weight, terms, out):
    with pytest.raises(RefusedError) as refusal:
        ltx2c.fuse_tensor(weight, terms, out=out)
    assert refusal.value.code == code
    assert "\n" not in str(refusal.value)


def test_refuses_a_torch_tensor_that_is_not_plain_memory():
    with pytest.raises(RefusedError) as refusal:
        ltx2c.fuse_tensor(torch.zeros(3, 3, device="meta"), [])
    assert refusal.value.code == "device"


def test_refuses_torch_tensors_of_other_values_than_their_memory_holds():
    pairs = torch.zeros(3, 3, dtype=torch.complex64).conj()
    for tensor, code in (
        (torch.zeros(3, 3, dtype=torch.float8_e4m3fn), "unsupported-dtype"),
        (pairs, "unsupported-dtype"),
        (pairs.imag, "type"),  # negated when it is read
    ):
        with pytest.raises(RefusedError) as refusal:
            ltx2c.fuse_tensor(tensor, [])
        assert refusal.value.code == code


def strange_tensors():
    freed = torch.zeros(11, 37)
    freed.untyped_storage().resize_(0)
    yield "storage", freed, "freed"
    part = torch.zeros(22, 37)
    half = part[11:]
    part.untyped_storage().resize_(11 * 37 * 4)
    yield "storage", half, "freed"
    with FakeTensorMode():
        yield "type", torch.zeros(11, 37), "FakeTensor"
    yield "type", TwoTensor(torch.zeros(11, 37), torch.zeros(11, 37)), "TwoTensor"


@pytest.mark.parametrize(("code", "tensor", "word"), list(strange_tensors()))
def test_refuses_torch_tensors_without_plain_memory_by_name(code, tensor, word):
    weight, a, b = problem(dtype=np.dtype(np.float32))
    for given in ((tensor, [(a, b, 1.0)], None), (weight, [(a, b, 1.0)], tensor)):
        with pytest.raises(RefusedError, match=word) as refusal:
            ltx2c.fuse_tensor(given[0], given[1], out=given[2])
        assert refusal.value.code == code


@pytest.mark.parametrize("transform", [torch.func.vmap, torch.func.grad])
def test_refuses_tensors_of_a_transform(transform):
    def fuse(weight):
        return ltx2c.fuse_tensor(weight, [])

    with pytest.raises(RefusedError, match="transform") as refusal:
        transform(fuse)(torch.zeros(2, 11, 37) if transform is torch.func.vmap else torch.zeros(11, 37))
    assert refusal.value.code == "type"


@pytest.mark.parametrize("clash", ["out-out", "out-weight", "out-factor"])
def test_refuses_jobs_that_would_race(clash):
    weight, a, b = problem(rows=37, columns=37, rank=37)
    other, c, d = problem(rows=37, columns=37, rank=37, seed=1)
    jobs = {
        "out-out": [(weight, [(a, b, 1.0)], weight), (other, [(c, d, 1.0)], weight)],
        "out-weight": [(weight, [(a, b, 1.0)], other), (other, [(c, d, 1.0)], other.copy())],
        "out-factor": [(weight, [(a, b, 1.0)], other), (np.zeros_like(weight), [(other, d, 1.0)], np.zeros_like(b))],
    }[clash]
    with pytest.raises(RefusedError) as refusal:
        ltx2c.fuse_tensors(jobs)
    assert refusal.value.code == "overlap"


@pytest.mark.parametrize("order", [1, -1])
@pytest.mark.parametrize("read", [(0, 20), (10, 30), (30, 50), (0, 50)])
def test_refuses_a_weight_read_where_another_job_works_in_place(order, read):
    store = np.zeros((50, 10), BF16)
    written, weight = store[10:40], store[slice(*read)]
    jobs = [(written, [], written), (weight, [], np.zeros_like(weight))][::order]
    with pytest.raises(RefusedError) as refusal:
        ltx2c.fuse_tensors(jobs)
    assert refusal.value.code == "overlap"


@pytest.mark.parametrize("order", [1, -1])
def test_refuses_a_read_that_the_writers_own_longer_one_hides(order):
    store = np.zeros((30, 16), BF16)
    out, own = store[1:, :8], store[:, 8:]  # the writer's factor begins before its out, and ends behind it
    jobs = [
        (np.zeros((29, 8), BF16), [(np.zeros((8, 8), BF16), own[:29], 1.0)], out),
        (out[:3], [], np.zeros((3, 8), BF16)),
    ]
    with pytest.raises(RefusedError) as refusal:
        ltx2c.fuse_tensors(jobs[::order])
    assert refusal.value.code == "overlap"


def test_columns_of_one_array_share_no_byte():
    store, a, b = problem(rows=40, columns=60)
    expected = reference.fuse_tensor(store, [(a, b, 0.5)])
    halves = (slice(0, 23), slice(23, 60))
    ltx2c.fuse_tensors([(store[:, at], [(a[:, at], b, 0.5)], store[:, at]) for at in halves], threads=2)
    assert np.array_equal(bits(store), bits(expected))
    other = np.zeros((40, 120), BF16)
    ltx2c.fuse_tensor(other[:, 60:], [], out=other[:, :60])  # out between the weight's rows


def test_columns_that_overlap_by_one_are_refused():
    store = np.zeros((40, 60), BF16)
    with pytest.raises(RefusedError) as refusal:
        ltx2c.fuse_tensors([(store[:, :24], [], store[:, :24]), (store[:, 23:], [], store[:, 23:])])
    assert refusal.value.code == "overlap"


def test_jobs_may_share_what_nobody_writes():
    weight, a, b = problem()
    one, two = np.empty_like(weight), np.empty_like(weight)
    ltx2c.fuse_tensors([(weight, [(a, b, 1.0)], one), (weight, [(a, b, 1.0)], two)])
    assert np.array_equal(bits(one), bits(two))


def test_a_job_counts_the_multiply_adds_of_all_its_terms():
    weight = np.zeros((5, 7), np.float32)
    terms = [(np.zeros((rank, 7), np.float32), np.zeros((5, rank), np.float32), 1.0) for rank in (2, 3)]
    assert fusion.Job(weight, terms, weight).macs == 5 * 7 * (2 + 3)
    assert fusion.Job(weight, [], weight).macs == 0


@pytest.mark.parametrize(("rows", "given", "expected"), [(32, None, 1), (32, 3, 3), (4096, None, 3)])
def test_small_work_wakes_no_thread_unless_told_to(monkeypatch, rows, given, expected):
    asked = []
    monkeypatch.setattr(fusion, "resolve_threads", lambda threads: 3)
    monkeypatch.setattr(fusion, "_run", lambda batch, kernel, threads: asked.append(threads) or [0])
    weight, a, b = np.zeros((rows, 256), BF16), np.zeros((16, 256), BF16), np.zeros((rows, 16), BF16)
    ltx2c.fuse_tensor(weight, [(a, b, 1.0)], out=weight, threads=given)
    assert asked == [expected]
