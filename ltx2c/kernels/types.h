/* What callers see: matrices, terms, jobs, batches, and how a call ended. Plain C and C++, and nothing but declarations. */
#ifndef LTX2C_TYPES_H
#define LTX2C_TYPES_H

#include <stddef.h>
#include <stdint.h>

typedef enum { LTX2C_BF16 = 0, LTX2C_F32 = 1, LTX2C_F16 = 2 } ltx2c_dtype;

/* What is computed: the contract's two arithmetics, and one for layouts that store the sum by a rule of their own.
 * LTX rounds factors, aggregate and sum through bf16. LTX_WIDE has the same aggregate, and its sum with an f32 weight
 * stays f32, unrounded. F32 keeps f32 throughout: products by fused multiply-add, the total starting at the weight. */
typedef enum { LTX2C_ARITHMETIC_LTX = 0, LTX2C_ARITHMETIC_F32 = 1, LTX2C_ARITHMETIC_LTX_WIDE = 2 } ltx2c_arithmetic;

/* A row-major matrix: `stride` bytes from one row to the next, elements of a row adjacent. Any address will do, odd ones
 * too: files hold tensors at any byte. So whatever points into a matrix is of bytes, and read by memcpy or by a vector
 * load that needs no alignment. */
typedef struct {
    const void *data;
    ptrdiff_t stride;
    ltx2c_dtype dtype;
} ltx2c_matrix;

/* Rows of the Kronecker product of two matrices, from row `first` on: f32(one[p, j] * two[q, r]) at row
 * p * two_rows + q, column j * two_columns + r. Both are contiguous. */
typedef struct {
    const float *one, *two; /* NULL in other terms */
    size_t one_rows, one_columns, two_rows, two_columns;
    size_t first;
} ltx2c_kronecker;

/* One adapter's part: of low rank, a [rank, in] and b [out, rank]; or a full matrix [out, in]; or a full matrix that is
 * made strip by strip. The rest is unused. */
typedef struct {
    ltx2c_matrix a, b;
    size_t rank;
    ltx2c_matrix full; /* data NULL in other terms */
    float strength;
    ltx2c_kronecker kronecker;
} ltx2c_term;

/* One weight: out = weight + the terms' delta, [rows, columns]. `out` has the weight's dtype and may be the weight.
 * LTX_WIDE takes f32 weights only. */
typedef struct {
    ltx2c_matrix weight;
    ltx2c_arithmetic arithmetic;
    void *out;
    ptrdiff_t out_stride;
    size_t rows, columns;
    const ltx2c_term *terms;
    size_t term_count;
    uint64_t nonfinite; /* result: how many values became inf or NaN where the weight was finite */
} ltx2c_job;

typedef struct ltx2c_kernel ltx2c_kernel; /* one instruction set's code */

/* Jobs cut into blocks, and the memory that fusing them takes. */
typedef struct {
    const ltx2c_kernel *kernel;
    struct ltx2c_slab *slabs;
    size_t slab_count, blocks, next_ticket;
    struct ltx2c_worker *workers;
    size_t worker_count;
    struct ltx2c_workspace *workspace;
} ltx2c_batch;

/* How a call ended. Where it is not LTX2C_OK, nothing was written. */
enum {
    LTX2C_OK = 0,
    LTX2C_NO_MEMORY = -1,
    LTX2C_BAD_POINTER = -2, /* NULL where a kernel, jobs, terms or the data of a matrix that has elements must be */
    LTX2C_BAD_DTYPE = -3,   /* no such dtype or arithmetic, or LTX_WIDE of a weight that is not f32 */
    LTX2C_BAD_SIZE = -4,    /* no terms, rank 0, a stride smaller than a row, more than 2^31 - 1 rows, columns or ranks,
                               a matrix that no address space holds, a Kronecker product of another shape */
    LTX2C_BAD_THREADS = -5  /* 0 threads or workers */
};

#endif
