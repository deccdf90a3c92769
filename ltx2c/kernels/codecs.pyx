# cython: language_level=3, boundscheck=False, wraparound=False
"""Bindings of the codecs: byte views of arrays in, bands of rows in parallel, without the GIL."""

from cython.parallel cimport prange
from libc.stddef cimport ptrdiff_t, size_t
from libc.stdint cimport uint8_t, uint32_t, uint64_t

import numpy as np

from ltx2c.kernels.fuse import obtainable_threads

cdef extern from "codecs.h" nogil:
    ctypedef enum ltx2c_fp8:
        pass

    ctypedef struct ltx2c_tally:
        uint64_t changed
        uint64_t nonfinite
        uint64_t unencodable

    void ltx2c_add_tally(ltx2c_tally *sum, ltx2c_tally more)

    ctypedef enum ltx2c_dtype:
        pass

    uint32_t ltx2c_largest_piece(const void *values, size_t count, int wide)
    uint64_t ltx2c_cast_row(const char *given, char *to, size_t count, ltx2c_dtype source, ltx2c_dtype target)

    ctypedef struct ltx2c_rows:
        char *data
        ptrdiff_t stride

    ctypedef struct ltx2c_patch:
        ltx2c_rows values
        ltx2c_rows codes
        size_t rows
        size_t columns
        int wide
        ltx2c_fp8 kind

    ctypedef struct ltx2c_grid:
        float *scales
        size_t step
        size_t rows
        size_t columns

    float ltx2c_scale_of_all(uint32_t largest, float before)
    void ltx2c_decode_band(const ltx2c_patch *patch, const ltx2c_grid *grid, size_t band)
    ltx2c_tally ltx2c_encode_band(const ltx2c_patch *patch, const ltx2c_grid *grid, size_t band)
    ltx2c_tally ltx2c_encode_band_by(const ltx2c_patch *patch, const ltx2c_grid *grid, size_t band, uint32_t largest)

cdef extern from "nvfp4.h" nogil:
    ctypedef struct ltx2c_nvfp4:
        ltx2c_rows values
        ltx2c_rows codes
        size_t rows
        size_t columns
        size_t first_row
        int wide
        uint8_t *scales
        size_t scale_columns
        int swizzled
        float scale

    enum:
        LTX2C_NVFP4_BLOCK

    void ltx2c_nvfp4_decode_row(const ltx2c_nvfp4 *weight, size_t row)
    float ltx2c_nvfp4_scale(uint32_t largest)
    int ltx2c_nvfp4_encodable(uint32_t largest)
    ltx2c_tally ltx2c_nvfp4_encode_row(const ltx2c_nvfp4 *weight, size_t row)

# Values that a thread takes at a time where rows of any number may be taken.
cdef enum:
    SHARE = 1 << 16


cdef class Patch:
    """Rows of FP8 codes with the values that they become or come from, and their scales, as C structures.

    Without scales codes are values as they are. One scale is for all of them; else there is one for each granule, as a
    row-major grid.
    """

    cdef ltx2c_patch patch
    cdef ltx2c_grid grid
    cdef bint shared
    cdef Py_ssize_t bands

    def __init__(self, const uint8_t[:, :] codes, const uint8_t[:, :] values, bint wide, int kind,
                 const float[:, ::1] scales, tuple granule):
        cdef Py_ssize_t rows = codes.shape[0], columns = codes.shape[1], band_rows, granule_columns
        if values.shape[0] != rows or values.shape[1] != columns * (4 if wide else 2):
            raise IndexError("codes and values differ in shape")
        self.patch.rows = rows
        self.patch.columns = columns
        self.patch.wide = wide
        self.patch.kind = <ltx2c_fp8>kind
        self.patch.codes.stride = codes.strides[0]
        self.patch.values.stride = values.strides[0]
        if not rows or not columns:
            return
        self.patch.codes.data = <char *>&codes[0, 0]
        self.patch.values.data = <char *>&values[0, 0]
        self.shared = scales is None or scales.size == 1
        if self.shared:
            band_rows, granule_columns = max(1, SHARE // columns), columns
        else:
            band_rows, granule_columns = granule
            self.grid.step = scales.shape[1]
            if scales.shape[0] * band_rows < rows or scales.shape[1] * granule_columns < columns:
                raise IndexError("fewer scales than granules")
        if scales is not None:
            self.grid.scales = <float *>&scales[0, 0]
        self.grid.rows = band_rows
        self.grid.columns = granule_columns
        self.bands = (rows + band_rows - 1) // band_rows


def largest_magnitude(const uint8_t[:, :] values, bint wide, int threads):
    """The largest magnitude among ``values``: see the stub file."""
    threads = obtainable_threads(threads)
    cdef Py_ssize_t row, rows = values.shape[0] if values.shape[1] else 0, columns = values.shape[1] // (4 if wide else 2)
    cdef uint32_t largest = 0
    cdef uint32_t[::1] found = np.zeros(rows, np.uint32)
    for row in prange(rows, nogil=True, num_threads=threads, schedule="dynamic", chunksize=16):
        found[row] = ltx2c_largest_piece(&values[row, 0], columns, wide)
    for row in range(rows):
        largest = max(largest, found[row])
    return largest


def decode_fp8(const uint8_t[:, :] codes, uint8_t[:, :] values, bint wide, int kind, const float[:, ::1] scales,
               tuple granule, int threads):
    """Fill ``values`` from ``codes``: see the stub file."""
    threads = obtainable_threads(threads)
    cdef Patch part = Patch(codes, values, wide, kind, scales, granule)
    cdef Py_ssize_t band
    for band in prange(part.bands, nogil=True, num_threads=threads, schedule="dynamic", chunksize=1):
        ltx2c_decode_band(&part.patch, &part.grid, band)


def encode_fp8(const uint8_t[:, :] values, uint8_t[:, :] codes, bint wide, int kind, float[:, ::1] scales,
               tuple granule, uint32_t largest, int threads):
    """Fill ``codes`` and ``scales`` from ``values``: see the stub file."""
    threads = obtainable_threads(threads)
    cdef Patch part = Patch(codes, values, wide, kind, scales, granule)
    cdef Py_ssize_t band
    cdef ltx2c_tally total
    cdef uint8_t[::1] room = np.zeros((part.bands + 1) * sizeof(ltx2c_tally), np.uint8)
    cdef ltx2c_tally *tallies = <ltx2c_tally *>&room[0]
    if part.shared:
        for band in prange(part.bands, nogil=True, num_threads=threads, schedule="dynamic", chunksize=1):
            tallies[band] = ltx2c_encode_band_by(&part.patch, &part.grid, band, largest)
        if part.grid.scales:
            part.grid.scales[0] = ltx2c_scale_of_all(largest, part.grid.scales[0])
    else:
        for band in prange(part.bands, nogil=True, num_threads=threads, schedule="dynamic", chunksize=1):
            tallies[band] = ltx2c_encode_band(&part.patch, &part.grid, band)
    total = tallies[part.bands]  # zeros
    for band in range(part.bands):
        ltx2c_add_tally(&total, tallies[band])
    return total.changed, total.nonfinite, total.unencodable


cdef class Nvfp4:
    """Rows of a NVFP4 weight as a C structure."""

    cdef ltx2c_nvfp4 weight

    def __init__(self, const uint8_t[:, :] codes, const uint8_t[:, :] values, bint wide, const uint8_t[:, ::1] scales,
                 bint swizzled, Py_ssize_t first_row):
        cdef Py_ssize_t rows = codes.shape[0], columns = 2 * codes.shape[1]
        if values.shape[0] != rows or values.shape[1] != columns * (4 if wide else 2) or columns % LTX2C_NVFP4_BLOCK:
            raise IndexError("codes and values differ in shape")
        if scales.shape[0] < first_row + rows or scales.shape[1] * LTX2C_NVFP4_BLOCK < columns:
            raise IndexError("fewer scales than blocks")
        if swizzled and (scales.shape[0] % 128 or scales.shape[1] % 4):
            raise IndexError("scales are not whole tiles")
        self.weight.rows = rows if columns else 0
        self.weight.columns = columns
        self.weight.first_row = first_row
        self.weight.wide = wide
        self.weight.swizzled = swizzled
        self.weight.scale_columns = scales.shape[1]
        self.weight.codes.stride = codes.strides[0]
        self.weight.values.stride = values.strides[0]
        if self.weight.rows:
            self.weight.codes.data = <char *>&codes[0, 0]
            self.weight.values.data = <char *>&values[0, 0]
            self.weight.scales = <uint8_t *>&scales[0, 0]


def decode_nvfp4(const uint8_t[:, :] codes, uint8_t[:, :] values, bint wide, const uint8_t[:, ::1] scales, float scale,
                 bint swizzled, Py_ssize_t first_row, int threads):
    """Fill ``values`` from ``codes``: see the stub file."""
    threads = obtainable_threads(threads)
    cdef Nvfp4 rows = Nvfp4(codes, values, wide, scales, swizzled, first_row)
    cdef Py_ssize_t row, count = rows.weight.rows
    rows.weight.scale = scale
    for row in prange(count, nogil=True, num_threads=threads, schedule="dynamic", chunksize=16):
        ltx2c_nvfp4_decode_row(&rows.weight, row)


def encode_nvfp4(const uint8_t[:, :] values, uint8_t[:, :] codes, bint wide, uint8_t[:, ::1] scales, float scale,
                 bint swizzled, Py_ssize_t first_row, uint32_t largest, int threads):
    """Fill ``codes`` and ``scales`` from ``values``: see the stub file."""
    threads = obtainable_threads(threads)
    cdef Nvfp4 rows = Nvfp4(codes, values, wide, scales, swizzled, first_row)
    cdef Py_ssize_t row, count = rows.weight.rows
    cdef ltx2c_tally total
    cdef uint8_t[::1] room = np.zeros((count + 1) * sizeof(ltx2c_tally), np.uint8)
    cdef ltx2c_tally *tallies = <ltx2c_tally *>&room[0]
    if not largest:
        changed = sum(int(np.count_nonzero(np.bitwise_and(codes, half))) for half in (0x0F, 0xF0))
        codes[:, :] = 0
        return scale, changed, 0, 0
    if not ltx2c_nvfp4_encodable(largest):
        return scale, 0, 0, rows.weight.rows * rows.weight.columns
    rows.weight.scale = ltx2c_nvfp4_scale(largest)
    for row in prange(count, nogil=True, num_threads=threads, schedule="dynamic", chunksize=16):
        tallies[row] = ltx2c_nvfp4_encode_row(&rows.weight, row)
    total = tallies[count]  # zeros
    for row in range(count):
        ltx2c_add_tally(&total, tallies[row])
    return rows.weight.scale, total.changed, total.nonfinite, total.unencodable


def cast(const uint8_t[:, :] values, int source, uint8_t[:, :] out, int target, Py_ssize_t columns, int threads):
    """Fill ``out`` from ``values``: see the stub file."""
    cdef Py_ssize_t row, rows = values.shape[0] if columns else 0
    cdef uint64_t[::1] overflowed = np.zeros(rows, np.uint64)
    for row in prange(rows, nogil=True, num_threads=threads, schedule="dynamic", chunksize=16):
        overflowed[row] = ltx2c_cast_row(<const char *>&values[row, 0], <char *>&out[row, 0], columns,
                                         <ltx2c_dtype>source, <ltx2c_dtype>target)
    return int(np.sum(overflowed))
