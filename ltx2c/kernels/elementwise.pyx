# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""Bindings of arithmetic on float32 values: bands of rows or columns in parallel, without the GIL."""

from cython.parallel cimport prange
from libc.stddef cimport size_t
from libc.stdint cimport uint8_t, uint64_t

import numpy as np

from ltx2c.kernels.fuse import obtainable_threads

cdef extern from "elementwise.h" nogil:
    void ltx2c_rescale_row(float *row, size_t columns, float magnitude, const float *step)
    void ltx2c_rescale_columns(float *values, size_t rows, size_t stride, size_t inputs, size_t places,
                               const float *magnitudes, const float *step, double *room)
    void ltx2c_multiply_part(float *first, const float *second, size_t count)

    ctypedef enum ltx2c_dtype:
        pass

    uint64_t ltx2c_store_row(const float *values, char *to, size_t count, int through_bf16, ltx2c_dtype dtype)

# Values that a thread takes at a time, and columns: a band's sums and factors stay in L1.
cdef enum:
    SHARE = 1 << 16
    BAND = 1024


def rescale_rows(float[:, ::1] values, const float[::1] magnitudes, step, int threads):
    """Give each row its length: see the stub file."""
    cdef Py_ssize_t row, rows = values.shape[0], columns = values.shape[1]
    cdef float given = 0 if step is None else step
    cdef const float *scale = NULL if step is None else &given
    if magnitudes.shape[0] != rows:
        raise IndexError("one magnitude a row")
    if not columns:
        return
    threads = obtainable_threads(threads)
    for row in prange(rows, nogil=True, num_threads=threads, schedule="dynamic", chunksize=8):
        ltx2c_rescale_row(&values[row, 0], columns, magnitudes[row], scale)


def rescale_columns(float[:, ::1] values, const float[::1] magnitudes, step, int threads):
    """Give each input's columns their length: see the stub file."""
    cdef Py_ssize_t inputs = magnitudes.shape[0], rows = values.shape[0], columns = values.shape[1]
    cdef Py_ssize_t band, bands, places, each
    cdef float given = 0 if step is None else step
    cdef const float *scale = NULL if step is None else &given
    if not inputs or columns % inputs:
        raise IndexError("one magnitude an input")
    if not rows or not columns:
        return
    places = columns // inputs
    each = max(1, BAND // places)
    bands = (inputs + each - 1) // each
    cdef double[:, ::1] room = np.empty((bands, 2 * each * places))
    threads = obtainable_threads(threads)
    for band in prange(bands, nogil=True, num_threads=threads, schedule="dynamic", chunksize=1):
        ltx2c_rescale_columns(&values[0, band * each * places], rows, columns, min(each, inputs - band * each), places,
                              &magnitudes[band * each], scale, &room[band, 0])


def multiply(float[::1] first, const float[::1] second, int threads):
    """Multiply the second values into the first: see the stub file."""
    cdef Py_ssize_t part, size = first.shape[0]
    if second.shape[0] != size:
        raise IndexError("as many values on either side")
    threads = obtainable_threads(threads)
    for part in prange((size + SHARE - 1) // SHARE, nogil=True, num_threads=threads, schedule="dynamic", chunksize=1):
        ltx2c_multiply_part(&first[part * SHARE], &second[part * SHARE], min(SHARE, size - part * SHARE))


def store(const float[:, ::1] values, uint8_t[:, :] out, int dtype, bint through_bf16, int threads):
    """Round and store values: see the stub file."""
    cdef Py_ssize_t row, rows = values.shape[0] if values.shape[1] else 0
    cdef uint64_t[::1] lost = np.zeros(rows, np.uint64)
    if out.shape[0] != values.shape[0] or out.shape[1] != values.shape[1] * (4 if dtype == 1 else 2):
        raise IndexError("values and out differ in shape")
    threads = obtainable_threads(threads)
    for row in prange(rows, nogil=True, num_threads=threads, schedule="dynamic", chunksize=8):
        lost[row] = ltx2c_store_row(&values[row, 0], <char *>&out[row, 0], values.shape[1], through_bf16,
                                    <ltx2c_dtype>dtype)
    return int(np.sum(lost))
